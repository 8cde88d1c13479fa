"""The neural actor of sac_baseline.py against plain float64 autograd and the paper's sizes; both trainers as twins."""

import ast
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import reference
import torch
from conftest import needs_compiler
from safetensors.torch import save_file
from saved_actor import load_actor, make_policy

import sac_baseline
from sac_baseline import Args, Batch, Learner, Replay, hidden_sizes

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
SPACE = gym.spaces.Box(np.array([-1.0, -2.0, 0.0]), np.array([1.0, 1.0, 3.0]), dtype=np.float64)
N_S, N_A, BATCH = 7, 3, 64
ENV = SimpleNamespace(observation_space=gym.spaces.Box(-9, 9, (N_S,)), action_space=SPACE)


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_pair(widths=(32, 16), **settings) -> tuple[Learner, reference.PlainLearner]:
    """A learner, and the reference with the same weights."""
    torch.manual_seed(1)
    learner = Learner(Args(hidden_sizes=widths, batch_size=BATCH, **settings), ENV, CPU)
    policy = reference.NetworkPolicy(learner.actor.scale, learner.actor.bias, widths)
    actor = sac_baseline.layers(learner.actor.weights, learner.actor.shapes)
    return learner, reference.PlainLearner(policy, actor, sac_baseline.layers(learner.critic, learner.shapes))


@pytest.mark.parametrize("widths", [(16,), (32, 24), (8, 8, 8)])
def test_actor_loss_and_gradient_equal_the_reference(double, widths):
    learner, plain = make_pair(widths)
    batch = Batch(torch.randn(BATCH, N_S), *[torch.zeros(0)] * 4)
    torch.manual_seed(4)
    (gradient, of_alpha), logs = reference.gradient_of_actor(learner, batch)
    torch.manual_seed(4)
    loss, log_pi = plain.actor_loss(plain.actor, batch.obs, plain.policy.draw(BATCH, update=True))
    expected = reference.flat(torch.autograd.grad(loss, plain.actor))
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    assert logs["actor_loss"].item() == pytest.approx(loss.item(), abs=1e-10)
    assert of_alpha.item() == pytest.approx(-(log_pi.mean().item() - N_A), rel=1e-9)  # alpha is 1


def follow(folder: Path, compiled: bool) -> None:
    """200 updates of a learner and of the reference from the same weights, batches and noise, side by side."""
    learner, plain = make_pair((24,), buffer_size=500, checkpoint_every=10)
    replay, rng = Replay(folder / "replay.npy", N_S, N_A, learner.args, CPU), np.random.default_rng(5)
    for i in range(500):
        obs, action, after = rng.normal(size=N_S), rng.uniform(-1, 1, N_A), rng.normal(size=N_S)
        replay.add(obs, action, after, rng.normal(), rng.random() < 0.2, 1 + i // 50)
    replay.table = replay.table.astype(np.float64)
    if compiled:
        assert sac_baseline.compile_updates(learner, replay)
    for i in range(200):
        torch.manual_seed(100 + i)
        batch = replay.sample()
        learner.update_critics(batch)
        learner.update_actor(batch)
        reference.update_target(learner)
        torch.manual_seed(100 + i)
        batch = replay.sample()
        plain.update_critics(batch)
        plain.update_actor(batch)
        plain.update_target()
    for ours, theirs in (
        (learner.actor.weights, plain.actor),
        (learner.critic, plain.critic),
        (learner.target, plain.target),
    ):
        torch.testing.assert_close(ours, reference.flat(theirs), rtol=0, atol=1e-7)
    assert learner.log_alpha.item() == pytest.approx(plain.log_alpha.item(), abs=1e-8) and learner.log_alpha < -0.1


def test_200_updates_follow_the_reference(double, tmp_path):
    follow(tmp_path, compiled=False)


@needs_compiler
def test_200_compiled_updates_follow_the_reference(double, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    follow(tmp_path, compiled=True)


def test_training_is_the_plain_loop(tmp_path, monkeypatch):
    """Initial weights, warm-up, exploration, what learns when and how often, targets: a training step by step."""
    monkeypatch.chdir(tmp_path)
    args = Args("Reacher-v4", size="S", seed=3, total_timesteps=60, learning_starts=30, batch_size=32, buffer_size=200)
    args = dataclasses.replace(args, eval_every=1000, eval_episodes=1, final_eval_episodes=1, compile=False)
    run = sac_baseline.train(args)
    policy = reference.NetworkPolicy(torch.ones(2), torch.zeros(2), (9,))
    shapes = [(2, 14, 256), (2, 256, 256), (2, 1, 256), (2, 1, 256), (2, 1)]
    shapes = list(zip((13, 256, 256, 256, 256), shapes, strict=True))
    reference.assert_plain_training(run, "Reacher-v4", policy, lambda _: shapes, reference.cleanrl_q, 3, 60, 30, 32)


@pytest.mark.parametrize("widths", [(16,), (32, 24), (8, 8, 8)])
def test_actions_are_those_of_the_saved_actor_to_the_last_bit(widths, tmp_path):
    learner, plain = make_pair(widths)
    actor = learner.actor
    kept = actor.tensors() | {"action_scale": actor.scale, "action_bias": actor.bias}
    about = actor.about | {"env_id": "Reacher-v4", "seed": "0", "steps": "1"}
    save_file({name: part.contiguous() for name, part in kept.items()}, tmp_path / "a.safetensors", about)
    policy = make_policy(load_actor(tmp_path / "a.safetensors"))
    states = np.random.default_rng(0).normal(size=(200, N_S))
    means = plain.policy.heads(plain.actor, torch.tensor(states))[:, :N_A].detach()
    for obs, mean in zip(states, means, strict=True):
        action, _ = policy(obs)
        ours, expert = actor.act(obs.astype(np.float32))
        assert action.tobytes() == ours.tobytes() and expert is None
        np.testing.assert_allclose(ours, (plain.policy.scale * mean.tanh() + plain.policy.bias).numpy(), atol=2e-6)


PAPER_SIZES = {  # hidden width and parameters of SAC-S and SAC-M, parameters of SAC-L: the paper's Table 2
    "Walker2d-v4": (12, 372, 61, 1842, 73484), "HalfCheetah-v4": (12, 372, 61, 1842, 73484),
    "Hopper-v4": (10, 186, 37, 672, 70406), "Ant-v4": (16, 720, 86, 3800, 77072),
    "Reacher-v4": (9, 148, 30, 484, 69892), "Swimmer-v4": (8, 108, 27, 355, 69124),
}  # fmt: skip


@pytest.mark.parametrize("env_id", PAPER_SIZES)
def test_sizes_are_the_papers(env_id):
    env, (width_s, count_s, width_m, count_m, count_l) = sac_baseline.make_env(env_id), PAPER_SIZES[env_id]
    expected = {"S": ((width_s,), count_s), "M": ((width_m,), count_m), "L": ((256, 256), count_l)}
    for size, (widths, count) in expected.items():
        actor = Learner(Args(size=size, batch_size=8), env, CPU).actor
        assert hidden_sizes(size, actor.n_s, actor.n_a, 8) == widths
        assert json.loads(actor.about["hidden_sizes"]) == list(widths)
        assert actor.n_active == actor.n_total == count


def test_n_experts_sets_the_budget_that_is_matched():
    assert hidden_sizes("M", 11, 3, 16)[0] > hidden_sizes("M", 11, 3, 8)[0] > hidden_sizes("M", 11, 3, 3)[0]


# What may differ, and nothing else may: the actor, its flags, and the lines that use what only one of them has.
ONLY_SMOSE = {"load_balance_losses", "pruned", "fewer_terms", "Learner.prune", "PRUNING_BEGINS"}
ONLY_SAC = {"hidden_sizes"}
OWN_ACTOR = {"Actor.__init__", "Actor.policy", "Actor.gate", "Actor.noise", "Actor.act", "Actor.tensors", "Actor"}
OWN_FLAGS = {f"Args.{name}" for name in "n_experts top_k gate balance_coef authors keep router_inputs".split()}
OWN_FLAGS |= {f"Args.{name}" for name in "size hidden_sizes exp_name".split()}
A_FEW_LINES = {  # of so many lines, those that one has and the other has not
    "check_args": 6, "Learner.__init__": 7, "Learner.actor_loss": 8, "Learner.update_actor": 11, "Learner.state": 1,
    "train": 2, "RUN_FORMAT": 2,
}  # fmt: skip


def pieces(script: str) -> dict[str, str]:
    """The source of every function, method, setting and other statement, by its name."""
    source = (ROOT / script).read_text()
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body[1:]:
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])  # with the comments beside it
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                name = getattr(part, "name", None) or (part.target.id if isinstance(part, ast.AnnAssign) else "doc")
                found[f"{node.name}.{name}"] = "\n".join(lines[part.lineno - 1 : part.end_lineno])
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            found[getattr(target, "id", None) or target.elts[0].id] = text
        else:
            found[getattr(node, "name", text)] = text
    return found


def differing(one: str, two: str) -> int:
    one, two = one.splitlines(), two.splitlines()
    return len([line for line in one if line not in two]) + len([line for line in two if line not in one])


def test_the_two_trainers_are_twins_to_the_letter_but_for_the_actor():
    smose, sac = pieces("smose_sac.py"), pieces("sac_baseline.py")
    own = OWN_ACTOR | OWN_FLAGS | {"Actor.doc"}
    assert smose.keys() - sac.keys() <= ONLY_SMOSE | own and sac.keys() - smose.keys() <= ONLY_SAC | own
    both = [name for name in smose if name in sac and name not in own]
    assert both == [name for name in sac if name in smose and name not in own]  # in the same order
    assert {name for name in both if smose[name] != sac[name]} <= A_FEW_LINES.keys()
    assert {n: differing(smose[n], sac[n]) for n in both if differing(smose[n], sac[n]) > A_FEW_LINES.get(n, 0)} == {}
