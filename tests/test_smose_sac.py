"""The science of smose_sac.py against plain float64 autograd, hand-computed cases and the paper's own numbers."""

import ast
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import reference
import torch
from conftest import needs_compiler
from torch.nn import functional

import smose_sac
from smose_sac import Actor, Args, Batch, Learner, Replay, load_balance_losses, pruned

CPU = torch.device("cpu")
SPACE = gym.spaces.Box(np.array([-1.0, -2.0, 0.0]), np.array([1.0, 1.0, 3.0]), dtype=np.float64)  # asymmetric
N_S, N_A, BATCH = 7, 3, 64
ENV = SimpleNamespace(observation_space=gym.spaces.Box(-9, 9, (N_S,)), action_space=SPACE)
GATES = [
    (8, 1, "one-hot"),
    (5, 2, "one-hot"),
    (5, 2, "softmax"),
    (4, 1, "softmax"),
    (1, 1, "one-hot"),
    (6, 6, "one-hot"),
]


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch):
    """compiled code goes to a folder of the tests'"""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")


def make_learner(n_experts=8, top_k=1, gate="one-hot", **settings) -> Learner:
    torch.manual_seed(1)
    args = Args(n_experts=n_experts, top_k=top_k, gate=gate, batch_size=BATCH, **settings)
    return Learner(args, ENV, CPU)


def actor_parts(learner: Learner) -> list[torch.Tensor]:
    """The router's and the experts' weights, each with the biases last."""
    return smose_sac.layers(learner.actor.weights, learner.actor.shapes)


def critic_parts(learner: Learner) -> list[torch.Tensor]:
    return smose_sac.layers(learner.critic, learner.shapes)


def plain_twin(learner: Learner, q_value=reference.cleanrl_q) -> reference.PlainLearner:
    """The reference, from the learner's own weights."""
    args, actor = learner.args, learner.actor
    settings = args.n_experts, args.top_k, args.gate, args.balance_coef, args.authors
    policy = reference.MixturePolicy(actor.scale, actor.bias, *settings)
    plain = reference.PlainLearner(policy, actor_parts(learner), critic_parts(learner), q_value, args.gamma, args.tau)
    plain.target = [part.double().clone() for part in smose_sac.layers(learner.target, learner.shapes)]
    with torch.no_grad():
        plain.log_alpha.fill_(learner.log_alpha.item())
    return plain


def random_batch(n=BATCH, seed=3) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    obs, next_obs = (torch.randn(n, N_S, generator=generator) for _ in range(2))
    action = torch.rand(n, N_A, generator=generator) * torch.tensor([2.0, 3.0, 3.0]) + torch.tensor([-1.0, -2.0, 0.0])
    terminated = (torch.rand(n, generator=generator) < 0.3).to(obs.dtype)
    return Batch(obs, action, next_obs, torch.randn(n, generator=generator), terminated)


@pytest.mark.parametrize("authors", [False, True], ids=["paper", "authors"])
@pytest.mark.parametrize("n_experts, top_k, gate", GATES)
def test_actor_loss_and_gradient_equal_the_reference(double, n_experts, top_k, gate, authors):
    if authors and n_experts == 1:
        pytest.skip("one expert has no sample standard deviation")
    learner, batch = make_learner(n_experts, top_k, gate, authors=authors), random_batch()
    learner.log_alpha.fill_(-1.2)
    plain = plain_twin(learner)
    torch.manual_seed(4)
    (gradient, of_alpha), logs = reference.gradient_of_actor(learner, batch)
    torch.manual_seed(4)
    noise = plain.policy.draw(BATCH, update=True)
    loss, log_pi = plain.actor_loss(plain.actor, batch.obs, noise)
    expected = torch.autograd.grad(loss, plain.actor)
    losses = plain.policy.sample(plain.actor, batch.obs, *noise)[2]
    torch.testing.assert_close(gradient, reference.flat(expected), rtol=1e-9, atol=1e-12)
    told = torch.stack([logs["actor_loss"], logs["importance"], logs["load"]])
    torch.testing.assert_close(told, torch.stack([loss, *losses]).detach(), rtol=0, atol=1e-10)
    alpha = math.exp(-1.2)  # d/dlog_alpha of mean(-alpha (log_pi + target)), the target entropy being -n_a
    assert of_alpha.item() == pytest.approx(-alpha * (log_pi.mean().item() - N_A), rel=1e-9)
    assert logs["alpha_loss"].item() == pytest.approx(-alpha * (log_pi.mean().item() - N_A), rel=1e-9)


@pytest.mark.parametrize("authors", [False, True], ids=["paper", "authors"])
def test_critic_loss_and_gradient_equal_the_reference(double, authors):
    learner, batch = make_learner(gamma=0.9, authors=authors), random_batch()
    learner.log_alpha.fill_(-0.7)
    learner.target.mul_(1.1)
    plain = plain_twin(learner)
    torch.manual_seed(5)
    (gradient,), logs = reference.gradient_of_critics(learner, batch)
    torch.manual_seed(5)
    losses = plain.critic_losses(plain.critic, batch, plain.policy.draw(BATCH, update=False))
    expected = reference.flat(torch.autograd.grad(losses.sum(), plain.critic))
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    values = plain.q(plain.critic, batch.obs, batch.action).mean(1)
    told = torch.stack([logs[n] for n in ("qf1_loss", "qf2_loss", "qf1_values", "qf2_values")])
    torch.testing.assert_close(told, torch.cat((losses, values)).detach(), rtol=0, atol=1e-12)
    assert logs["qf_loss"].item() == pytest.approx(losses.mean().item())


def fill(replay: Replay, n_s: int, n_a: int, steps: int, seed=5) -> None:
    rng = np.random.default_rng(seed)
    for i in range(steps):
        obs, action, after = rng.normal(size=n_s), rng.uniform(-1, 1, n_a), rng.normal(size=n_s)
        replay.add(obs, action, after, rng.normal(), rng.random() < 0.2, 1 + i // 50)


def follow(folder: Path, allowed: float, compiled: bool = False, q_value=reference.cleanrl_q, **settings) -> None:
    """200 updates of a learner and of the reference from the same weights, batches and noise, side by side."""
    torch.manual_seed(6)
    args = Args(batch_size=64, buffer_size=500, checkpoint_every=10, **settings)
    learner = Learner(args, ENV, CPU)
    replay = Replay(folder / "replay.npy", N_S, N_A, args, CPU)
    fill(replay, N_S, N_A, 500)
    replay.table = replay.table.astype(str(learner.log_alpha.dtype).removeprefix("torch."))
    if compiled:
        assert smose_sac.compile_updates(learner, replay)
    plain = plain_twin(learner, q_value)
    start = {name: part.clone() for name, part in learner.state().items()}
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
    for name in ("actor", "critic", "target"):
        end = reference.flat(getattr(plain, name))
        way, off = (end - start[name]).norm(), (end - learner.state()[name]).norm()
        assert way > 0.5  # 200 steps really went somewhere
        assert off < allowed * way, name
    assert abs(learner.log_alpha - plain.log_alpha.item()) < 1e-3
    assert abs(learner.log_alpha) > 0.1


@pytest.mark.parametrize("settings", [{}, {"authors": True}, {"top_k": 3, "gate": "softmax"}], ids=str)
def test_200_updates_follow_the_reference(double, tmp_path, settings):
    follow(tmp_path, 1e-7, **settings)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_200_updates_stay_near_the_reference_in_less_precision(tmp_path, precision):
    """Rounding grows over 200 steps of Adam, to a few percent of the way."""
    follow(tmp_path, 0.3, precision=precision)


@needs_compiler
def test_200_compiled_updates_follow_the_reference(double, tmp_path, own_cache):
    follow(tmp_path, 1e-7, compiled=True)


@needs_compiler
def test_compiled_updates_are_found_without_a_look_at_guards(tmp_path, own_cache):
    """Hundreds of guards would be checked at every call, which takes as long as Adam."""
    args = Args(batch_size=64, buffer_size=500, checkpoint_every=10)
    learner, replay = Learner(args, ENV, CPU), Replay(tmp_path / "replay.npy", N_S, N_A, args, CPU)
    fill(replay, N_S, N_A, 500)
    assert smose_sac.compile_updates(learner, replay)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        learner.update_critics(replay.sample())
        learner.update_actor(replay.sample())
    names = [event.name for event in seen.events()]
    assert sum("Torch-Compiled Region" in name for name in names) == 2
    assert not [name for name in names if "Cache Lookup" in name]


def layer_norm_elu(x, weights, product):
    """LayerNorm and ELU in place of ReLU: all that it takes to change the critic, with the shapes below."""
    w1, g1, w2, b2, g2, w3, b3 = weights
    h = functional.elu(functional.layer_norm(x @ w1, g1.shape[2:]) * (1 + g1))
    h = functional.elu(functional.layer_norm(product(h, w2) + b2, b2.shape[2:]) * (1 + g2))
    return (h * w3).sum(2) + b3


def layer_norm_shapes(n_in, hidden=64):
    row = hidden, (2, 1, hidden)
    return [(n_in, (2, n_in + 1, hidden)), row, (hidden, (2, hidden, hidden)), row, row, row, (hidden, (2, 1))]


def hack_the_critic(monkeypatch) -> None:
    monkeypatch.setattr(smose_sac, "q_values", layer_norm_elu)
    monkeypatch.setattr(smose_sac, "critic_shapes", layer_norm_shapes)


def test_another_critic_is_two_functions_and_follows_its_reference(double, tmp_path, monkeypatch):
    hack_the_critic(monkeypatch)
    follow(tmp_path, 1e-7, q_value=reference.layer_norm_elu_q)


CLEANRL_SHAPES = [(2, 14, 256), (2, 256, 256), (2, 1, 256), (2, 1, 256), (2, 1)]
BOTH_CRITICS = [
    (lambda n_in: list(zip((n_in, 256, 256, 256, 256), CLEANRL_SHAPES, strict=True)), reference.cleanrl_q),
    (layer_norm_shapes, reference.layer_norm_elu_q),
]


@pytest.mark.parametrize("shapes, q_value", BOTH_CRITICS, ids=["CleanRL's critic", "another critic"])
def test_training_is_the_plain_loop(tmp_path, monkeypatch, shapes, q_value):
    """Initial weights, warm-up, exploration, what learns when and how often, targets: a training step by step."""
    if shapes is layer_norm_shapes:
        hack_the_critic(monkeypatch)
    monkeypatch.chdir(tmp_path)
    args = Args("Reacher-v4", seed=3, total_timesteps=60, learning_starts=30, batch_size=32, buffer_size=200)
    args = dataclasses.replace(args, eval_every=1000, eval_episodes=1, final_eval_episodes=1, compile=False)
    run = smose_sac.train(args)
    policy = reference.MixturePolicy(torch.ones(2), torch.zeros(2))
    reference.assert_plain_training(run, "Reacher-v4", policy, shapes, q_value, 3, 60, 30, 32)


def test_initial_weights_are_pytorchs():
    """Uniform within 1 / sqrt(inputs), as of torch.nn.Linear."""
    learner = make_learner()
    linear = [torch.nn.Linear(N_S + N_A, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 1)]
    w1, w2, _, w3, _ = critic_parts(learner)
    assert w1.shape == (2, N_S + N_A + 1, 256)
    for layer, weight in zip(linear, (w1, w2, w3), strict=True):
        assert weight.std().item() == pytest.approx(layer.weight.std().item(), rel=0.15)
        assert weight.abs().max() <= layer.in_features**-0.5 and weight.abs().max() > 0.95 * layer.in_features**-0.5
    for part in actor_parts(learner):
        assert 0.8 * N_S**-0.5 < part.abs().max() <= N_S**-0.5
    assert torch.equal(learner.target, learner.critic) and learner.target.data_ptr() != learner.critic.data_ptr()
    assert learner.log_alpha == 0


def test_exploration_has_the_policys_own_standard_deviation():
    learner = make_learner()
    obs = np.linspace(-1, 1, N_S, dtype=np.float32)
    weights, states = [part.double() for part in actor_parts(learner)], torch.tensor(obs[None]).double()
    (heads,), _, _ = reference.moe_heads(weights, states, 0.0, 1, "one-hot")
    scale, bias = learner.actor.scale.numpy(), learner.actor.bias.numpy()
    actions = np.array([learner.actor.act(obs, explore=True)[0] for _ in range(4000)], np.float64)
    x = np.arctanh(np.clip((actions - bias) / scale, -1 + 1e-7, 1 - 1e-7))
    std = np.exp(-5 + 3.5 * (np.tanh(heads[N_A:].numpy()) + 1))
    np.testing.assert_allclose(x.mean(0), heads[:N_A].numpy(), atol=5 * std.max() / 4000**0.5)
    np.testing.assert_allclose(x.std(0), std, rtol=0.06)
    quiet = learner.actor.act(obs)[0]
    np.testing.assert_allclose(quiet, scale * np.tanh(heads[:N_A].numpy()) + bias, rtol=1e-5)


def test_updates_write_into_nothing_that_they_were_given(monkeypatch):
    learner, batch = make_learner(keep=0.5), random_batch()
    before = [part.clone() for part in batch]
    learner.update_critics(batch)
    learner.update_actor(batch)
    reference.update_target(learner)
    assert all(torch.equal(part, was) for part, was in zip(batch, before, strict=True))
    state = {name: part.clone() for name, part in learner.state().items()}
    for gradient in (reference.gradient_of_critics, reference.gradient_of_actor):
        gradient(learner, batch)
    assert all(torch.equal(part, state[name]) for name, part in learner.state().items())


def test_straight_through_gradient_reaches_every_router_weight():
    learner = make_learner(balance_coef=0.0)
    (gradient, _), _ = reference.gradient_of_actor(learner, random_batch())
    router, _ = smose_sac.layers(gradient, learner.actor.shapes)
    assert (router != 0).all()


def test_moments_of_a_dead_unit_end_in_zeros_not_in_denormal_numbers():
    weights = [torch.ones(1000)]
    optimizer = smose_sac.new_adam((weights[0], 1e-3))
    for step in range(1500):  # 0.9^1500 is 1e-69, far below the smallest float32
        smose_sac.descend(optimizer, [torch.full((1000,), 1e-3 * (step == 0))])
    assert not optimizer.state[weights[0]]["exp_avg"].any()
    assert torch.tensor(1e-39) / 2 > 0  # and nothing else is rounded


def test_fixed_entropy_coefficient_stays():
    learner = make_learner(autotune=False, alpha=0.3)
    learner.update_actor(random_batch())
    assert learner.log_alpha.exp().item() == pytest.approx(0.3)


@pytest.mark.parametrize("n_experts, top_k, gate", GATES)
def test_one_decision_in_numpy_is_the_batch_without_noise(n_experts, top_k, gate):
    learner, obs = make_learner(n_experts, top_k, gate), random_batch().obs
    actor, parts = learner.actor, [part.double() for part in actor_parts(learner)]
    heads, logits, _ = reference.moe_heads(parts, obs.double(), 0.0, top_k, gate)
    expected = actor.scale * heads[:, :N_A].tanh() + actor.bias
    actions, _, _ = actor.policy(actor.weights, obs, torch.zeros(BATCH, N_A), torch.zeros(1, n_experts))
    torch.testing.assert_close(actions.double(), expected, rtol=0, atol=2e-6)
    for i in range(BATCH):
        action, expert = actor.act(obs[i].numpy())
        np.testing.assert_allclose(action, expected[i].numpy(), atol=2e-6)
        assert expert == int(logits[i].argmax())


@pytest.mark.parametrize("gate", ["one-hot", "softmax"])
@pytest.mark.parametrize("top_k", [1, 2, 5, 40])
def test_ties_go_to_the_lowest_index(top_k, gate):
    """Of 40 experts 20 have the same highest score, in random places."""
    learner = make_learner(40, top_k, gate)
    actor, (router, _) = learner.actor, actor_parts(learner)
    rng, logits = np.random.default_rng(0), torch.zeros(BATCH, 40)
    for row in logits:
        row[torch.from_numpy(rng.permutation(40)[:20])] = 1.0
    *_, chosen, _ = actor.gate(logits, torch.zeros(1, 40))
    assert chosen.tolist() == [sorted(range(40), key=lambda m: (-row[m], m))[:top_k] for row in logits]
    for row, indices in zip(logits, chosen, strict=True):
        router.zero_()
        router[:, -1] = row
        assert actor.act(np.ones(N_S, np.float32))[1] == indices[0]


def test_importance_and_load_by_hand():
    """Two experts, two states, M = 2: p sums to (1.2, 0.8); gaps of 0 and -1 in units of the noise."""
    p = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    logits = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    tau = torch.tensor([[1.0], [1.0]])  # the clean maximum: M (logit - tau) = 0 for the winner, -1 for the other
    losses = load_balance_losses(logits, p, tau)
    assert losses["importance"] == pytest.approx(0.5 * (0.2 / 1.0) ** 2)  # population std of (1.2, 0.8) is 0.2, mean 1
    assert losses["load"] == pytest.approx(0.0, abs=1e-12)  # both experts: Phi(0) + Phi(-1)
    sample = load_balance_losses(logits, p, tau, sample_std=True)["importance"]
    assert sample == pytest.approx(0.5 * 0.08)  # (0.2^2 + 0.2^2) / (2 - 1)
    logits = torch.tensor([[1.0, 0.5], [1.0, 0.5]])  # now expert 1 wins both states
    load = load_balance_losses(logits, p, tau)["load"]
    phi = 0.5 * math.erfc(1 / math.sqrt(2))  # Phi(-1)
    mean, std = (1.0 + 2 * phi) / 2, (1.0 - 2 * phi) / 2
    assert load == pytest.approx(0.5 * (std / mean) ** 2)


PAPER_COUNTS = {
    "Walker2d-v4": (360, 1872), "HalfCheetah-v4": (360, 1872), "Hopper-v4": (168, 672),
    "Ant-v4": (672, 3808), "Reacher-v4": (144, 480), "Swimmer-v4": (108, 360),
}  # fmt: skip


@pytest.mark.parametrize("env_id", PAPER_COUNTS)
def test_parameter_counts_are_the_papers(env_id):
    env = smose_sac.make_env(env_id)
    actor = Learner(Args(batch_size=8), env, CPU).actor
    assert (actor.n_active, actor.n_total) == PAPER_COUNTS[env_id]
    two = Learner(Args(batch_size=8, top_k=2), env, CPU).actor
    active, total = PAPER_COUNTS[env_id]
    assert two.n_total == total and two.n_active == active + 2 * actor.n_a * (actor.n_s + 1)  # one expert more


def test_a_truncation_bootstraps_and_a_termination_does_not(tmp_path):
    """With gamma 1, Q = 0 and Q' = 1000, the loss y^2 tells which transitions look beyond their end."""
    args = Args(batch_size=16, gamma=1.0, autotune=False, alpha=1e-9, buffer_size=100, checkpoint_every=1)
    for terminated in (False, True):
        learner = Learner(args, ENV, CPU)
        replay = Replay(tmp_path / f"{terminated}.npy", N_S, N_A, args, CPU)
        replay.add(np.zeros(N_S), np.zeros(N_A), np.zeros(N_S), 1.0, terminated, 1)
        learner.critic.zero_()
        learner.target.zero_()
        learner.target[-2:] = 1000.0  # the last biases
        logs = learner.update_critics(replay.sample())
        expected = 1.0 if terminated else 1001.0**2
        assert [logs["qf1_loss"].item(), logs["qf2_loss"].item()] == pytest.approx([expected] * 2)


def test_replay_samples_the_last_transitions_only(tmp_path):
    args = Args(batch_size=64, buffer_size=30, checkpoint_every=10)
    replay = Replay(tmp_path / "replay.npy", 2, 1, args, CPU)
    seen = set()
    for step in range(200):
        replay.add([step, -step], [0], [step + 1, 0], step, False, 1)
        batch = replay.sample()
        assert batch.reward.max() <= step and batch.reward.min() > step - 30
        assert (batch.obs[:, 0] == batch.reward).all() and (batch.next_obs[:, 0] == batch.reward + 1).all()
        assert batch.reward.shape == batch.terminated.shape == (64,)
        seen |= set(batch.reward.tolist())
    assert len(seen) > 190
    assert np.load(tmp_path / "replay.npy").shape == (40, 8)


def test_pruning_looks_at_what_can_be_sampled(tmp_path, monkeypatch):
    """Not at the rows to spare, which after a kill are others, nor at what is long ago."""
    seen = []
    monkeypatch.setattr(smose_sac, "pruned", lambda parts, n_a, obs, *_: seen.append(obs) or torch.zeros(1))
    env = SimpleNamespace(observation_space=gym.spaces.Box(-9, 9, (2,)), action_space=gym.spaces.Box(-1, 1, (1,)))
    args = Args(batch_size=64, buffer_size=30, checkpoint_every=10, keep=0.5)
    learner = Learner(args, env, CPU)
    replay, obs = Replay(tmp_path / "replay.npy", 2, 1, args, CPU), np.random.default_rng(0).normal(size=(200, 2))
    for step in range(200):
        replay.add(obs[step], [0], [0, 0], 0, False, 1)
        learner.prune(replay, 0.7)
        np.testing.assert_array_equal(seen.pop(), obs[max(0, step - 29) : step + 1].astype(np.float32))
    long = Replay(tmp_path / "long.npy", 2, 1, Args(), CPU)
    long.count = 70_000
    learner.prune(long, 0.7)
    assert len(seen.pop()) == 50_000


def replay_of(batch: Batch) -> SimpleNamespace:
    """A replay that holds just this batch."""
    return SimpleNamespace(
        count=len(batch.obs), size=len(batch.obs), batch=lambda steps: Batch(*(p[steps] for p in batch))
    )


def states_and_weights() -> tuple[np.ndarray, list[np.ndarray]]:
    """States of which some observations hardly vary, far from zero, and an actor's weights, in double precision"""
    learner, rng = make_learner(), np.random.default_rng(3)
    obs = rng.normal(size=(2000, N_S)) * [0.1, 1.0, 3.0, 0.5, 2.0, 0.0, 1.5] + [3, 0, 0, -2, 1, 1, 0]
    router, experts = rng.normal(size=(8, N_S)), actor_parts(learner)[1].double().numpy()
    router /= np.linalg.norm(router * obs.std(0), axis=1, keepdims=True)
    router = np.column_stack([router, -router @ obs.mean(0)]).astype(np.float32).astype(float)  # so that all act
    assert len({*np.argmax(obs @ router[:, :-1].T + router[:, -1], 1)}) == 8
    return obs.astype(np.float32).astype(float), [router, experts]


def prune(weights: list[np.ndarray], obs: np.ndarray, share: float, n_inputs: int) -> list[np.ndarray]:
    """The router and the experts after pruning."""
    parts = [torch.tensor(part).float() for part in weights]
    new = pruned(parts, N_A, torch.tensor(obs).float(), share, n_inputs)
    return [part.double().numpy() for part in smose_sac.layers(new, [(N_S, part.shape) for part in parts])]


def best_of(w: np.ndarray, moments: np.ndarray, terms: np.ndarray) -> tuple[np.ndarray, float]:
    """An equation with these terms alone that moves least from w, mean square, and how far it moves; by hand."""
    inside, found = np.append(np.flatnonzero(terms), len(w) - 1), np.zeros(len(w))  # the bias stays
    found[inside] = np.linalg.solve(moments[np.ix_(inside, inside)], moments[inside] @ w)
    return found, (w - found) @ moments @ (w - found)


def greedy(w: np.ndarray, moments: np.ndarray, n_left: int, n_inputs: int) -> np.ndarray:
    """One after the other the column, then the weight, without which the equations move least."""
    terms = np.ones((len(w), w.shape[1] - 1), bool)

    def cost(row: int, j: int) -> float:
        return best_of(w[row], moments[row], terms[row] & (np.arange(terms.shape[1]) != j))[1]

    now = np.zeros(len(w))
    while terms.any(0).sum() > n_inputs:
        costs = {j: sum(cost(row, j) - now[row] for row in range(len(w))) for j in np.flatnonzero(terms.any(0))}
        terms[:, min(costs, key=costs.get)] = False
        now = np.array([best_of(*pair)[1] for pair in zip(w, moments, terms, strict=True)])
    costs = np.where(terms, 0.0, np.inf)
    for row, j in np.argwhere(terms):
        costs[row, j] = cost(row, j) - now[row]
    while terms.sum() > n_left:
        row, j = np.unravel_index(costs.argmin(), costs.shape)
        terms[row, j] = False
        now[row] = best_of(w[row], moments[row], terms[row])[1]
        costs[row] = [cost(row, j) - now[row] if terms[row, j] else np.inf for j in range(terms.shape[1])]
    return np.array([best_of(*pair)[0] for pair in zip(w, moments, terms, strict=True)])


@pytest.mark.parametrize("share, n_inputs", [(1.0, 7), (0.5, 7), (0.2, 7), (0.2, 2), (1.0, 2), (0.01, 1)])
def test_pruning_leaves_what_is_missed_most_and_the_others_make_up_for_the_rest(share, n_inputs):
    obs, weights = states_and_weights()
    obs[:, 2] += obs[:, 1]  # so that observations know of one another
    router, experts = weights
    new_router, new_experts = prune(weights, obs, share, n_inputs)

    x = np.column_stack([obs, np.ones(len(obs))]).astype(np.float32).astype(float)
    router = router - router.mean(0)
    acts = np.argmax(x @ router.T, 1)
    seen = np.array([x[acts == m].T @ x[acts == m] / len(x) * (1 + 1e-4 * np.eye(N_S + 1)) for m in range(8)])
    scores = greedy(router, np.tile(seen.sum(0), (8, 1, 1)), math.ceil(share * 8 * N_S), n_inputs)
    np.testing.assert_allclose(new_router, scores, atol=1e-5)
    np.testing.assert_array_equal(new_router != 0, scores != 0)

    means = experts[:, :N_A].reshape(8 * N_A, -1)
    means = greedy(means, seen.repeat(N_A, 0), math.ceil(share * 8 * N_A * N_S), N_S).reshape(8, N_A, -1)
    np.testing.assert_allclose(new_experts[:, :N_A], means, atol=1e-4)
    np.testing.assert_array_equal(new_experts[:, :N_A] != 0, means != 0)
    np.testing.assert_array_equal(new_experts[:, N_A:], experts[:, N_A:])  # the log-std heads


def test_pruning_looks_at_what_decides():
    """A column that all experts' scores share decides nothing, however large it is; nor does taking it away."""
    obs, weights = states_and_weights()
    weights[0][:, 4] += 50.0
    router, _ = prune(weights, obs, 1.0, N_S)
    logits, before = (obs @ r[:, :-1].T + r[:, -1] for r in (router, weights[0].astype(np.float32)))
    np.testing.assert_array_equal(logits.argmax(1), before.argmax(1))
    assert np.abs(router[:, 4]).max() < 2
    weights[0][:, 4] = 50.0
    router, _ = prune(weights, obs, 1.0, N_S - 2)
    assert not router[:, 4:6].any() and np.count_nonzero(router[:, :-1]) == 8 * (N_S - 2)  # observation 5 never changes


def test_an_expert_that_never_acts_is_pruned_first_and_harmlessly():
    obs, weights = states_and_weights()
    weights[0][2, -1] = -1e6
    _, experts = prune(weights, obs, 0.7, 7)
    assert not experts[2, :N_A, :-1].any() and np.isfinite(experts).all()
    np.testing.assert_allclose(experts[2, :, -1], weights[1][2, :, -1], rtol=1e-6)


def test_the_schedule_is_cubic(monkeypatch):
    begins, ends = smose_sac.PRUNING_BEGINS, smose_sac.PRUNING_ENDS
    asked = []
    monkeypatch.setattr(smose_sac, "pruned", lambda parts, n_a, obs, *asks: asked.append(asks) or torch.zeros(1))

    def left(progress: float, **settings) -> tuple[float, int]:
        """The share of the weights and the router's inputs that pruning leaves, if it prunes."""
        learner = make_learner(**settings)
        learner.prune(replay_of(random_batch()), progress)
        return asked.pop() if asked else (1.0, N_S)

    assert [left(progress, keep=0.2) for progress in (0.0, begins / 2, begins)] == [(1.0, N_S)] * 3
    assert left(ends, keep=0.2) == (pytest.approx(0.2), N_S)
    assert left((begins + ends) / 2, keep=0.2)[0] == pytest.approx(0.2 + 0.8 / 8)
    assert left(0.75 * begins + 0.25 * ends, keep=1e-9)[0] == pytest.approx(0.75**3)
    assert [left(begins + done * (ends - begins), router_inputs=2) for done in (0.1, 0.5, 0.999)] == [
        (1.0, math.ceil(2 + 5 * (1 - done) ** 3)) for done in (0.1, 0.5, 0.999)
    ]


def test_pruned_weights_stay_exactly_zero_while_the_others_learn():
    learner, batch = make_learner(keep=0.25, router_inputs=3), random_batch()
    learner.prune(replay_of(batch), smose_sac.PRUNING_BEGINS)
    assert learner.actor.weights.all()  # nothing yet
    learner.prune(replay_of(batch), smose_sac.PRUNING_ENDS)
    router, experts = (part == 0 for part in actor_parts(learner))
    assert router.any(0).sum() >= N_S - 3 and experts.sum() == 8 * N_A * N_S - math.ceil(0.25 * 8 * N_A * N_S)
    assert not router[:, -1].any() and not experts[:, :, -1].any()  # biases stay
    before, zero = learner.actor.weights.clone(), learner.actor.weights == 0
    for _ in range(5):
        learner.update_critics(batch)
        learner.update_actor(batch)
    weights = learner.actor.weights
    assert (weights[zero] == 0).all() and not weights[zero].signbit().any()
    assert (weights[~zero] != before[~zero]).float().mean() > 0.5
    before = weights.clone()
    learner.prune(replay_of(batch._replace(obs=2 * batch.obs)), smose_sac.PRUNING_ENDS + 0.01)  # the schedule is over
    assert torch.equal(weights, before)


def test_a_dense_policy_is_not_touched():
    learner = make_learner()
    learner.actor.weights[0] = 0.0
    learner.update_actor(random_batch())
    assert not learner.prunes and learner.actor.weights[0] != 0  # a zero that was not pruned learns on


def bits(x):
    return x.view(torch.int32) & 0xFFFF  # of a float32, what bfloat16 cuts off


def test_bfloat16_products_are_rounded_alike_with_and_without_instructions(monkeypatch):
    torch.manual_seed(2)
    a, b, g = torch.randn(2, 50, 256), torch.randn(2, 256, 256), torch.randn(2, 50, 256)
    found = {}
    for native in (False, True):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda native=native: {"avx512_bf16": native})
        product = smose_sac.product_in("bfloat16", CPU)
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        z = product(x, y)
        assert z.dtype == torch.float32
        found[native] = [z.detach(), *torch.autograd.grad(z, (x, y), g)]
        assert all((bits(part) == 0).all() for part in found[native])  # result and gradients are of bfloat16
    for one, two in zip(found[False], found[True], strict=True):
        assert (
            (one - two).abs() <= 2**-7 * two.abs() + 1e-3
        ).all()  # a last place, where the sums are rounded otherwise
        assert (one == two).float().mean() > 0.97
    exact = (a.bfloat16().double() @ b.bfloat16().double()).float()
    torch.testing.assert_close(found[False][0], exact.bfloat16().float(), rtol=2**-7, atol=1e-3)
    assert (found[False][0] != a @ b).float().mean() > 0.9
    x, y = torch.randn(2, 5, 6), torch.randn(2, 6, 7)
    assert torch.equal(smose_sac.product_in("float32", CPU)(x, y), x @ y)


@pytest.mark.parametrize("has", ["avx512_bf16", "amx_bf16", "bf16", "avx2"])
def test_a_processor_without_instructions_for_bfloat16_is_told_of(has, monkeypatch, capsys):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {has: True})
    smose_sac.product_in("bfloat16", CPU)
    assert capsys.readouterr().out.count("no instructions for bfloat16 here") == (has == "avx2")


def test_only_the_critics_hidden_products_are_in_bfloat16():
    """The gradient of the last layer is of rounded hidden values, that of the actor's balance losses is exact."""
    plain, rounded = make_learner(), make_learner(precision="bfloat16")
    for one, two in zip(plain.state().values(), rounded.state().values(), strict=True):
        assert one.dtype == two.dtype == torch.float32 and torch.equal(one, two)
    batch, results = random_batch(), []
    for learner in (plain, rounded):
        torch.manual_seed(3)
        results.append(
            (reference.gradient_of_critics(learner, batch)[0], reference.gradient_of_actor(learner, batch)[1])
        )
    assert results[0][1]["importance"] == results[1][1]["importance"] and results[0][1]["load"] == results[1][1]["load"]
    of_both = (smose_sac.layers(gradient, plain.shapes) for (gradient,), _ in results)
    for one, two in zip(*of_both, strict=True):
        assert 0 < (one - two).norm() < 0.05 * one.norm()


@needs_compiler
@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
def test_compiled_bfloat16_is_rounded_as_without_compiling(native, own_cache, monkeypatch, tmp_path):
    """Left to itself, the compiler takes a rounding there and back for nothing and leaves it out."""
    if native and not torch.cpu.get_capabilities().get("avx512_bf16"):
        pytest.skip("this processor has no instructions for bfloat16")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    learner, exact, found = make_learner(precision="bfloat16"), make_learner(), {}
    replay = Replay(tmp_path / "replay.npy", N_S, N_A, dataclasses.replace(learner.args, buffer_size=BATCH), CPU)
    replay.table[:BATCH] = np.column_stack([*random_batch(), np.ones(BATCH)])
    batch = replay.batch(torch.arange(BATCH))  # compiled code takes a replay's batches, and no others
    for kind in ("float32", "eager", "compiled"):
        if kind == "compiled":
            assert smose_sac.compile_updates(learner, replay)
        torch.manual_seed(3)
        (gradient,), _ = reference.gradient_of_critics(exact if kind == "float32" else learner, batch)
        found[kind] = smose_sac.layers(gradient, learner.shapes)
    for compiled, eager, float32 in zip(*(found[kind] for kind in ("compiled", "eager", "float32")), strict=True):
        assert (compiled - eager).norm() < 0.1 * (eager - float32).norm()


@pytest.fixture
def float32_products():
    yield torch.backends.mkldnn.matmul
    torch.backends.mkldnn.matmul.fp32_precision = "none"


def test_float32_products_are_not_rounded_to_less(float32_products):
    smose_sac.product_in("float32", CPU)
    torch.manual_seed(0)
    for a, b in ((torch.randn(2, 256, 256), torch.randn(2, 256, 256)), (torch.randn(256, 17), torch.randn(17, 256))):
        assert 0 < (a @ b - a.double() @ b.double()).abs().max() < 2e-4  # bfloat16 is off by 0.3


@pytest.mark.parametrize("one", [1.0, 1 + 2**-12], ids=["rounded", "exact"])
def test_where_onednn_would_round_it_is_not_asked(one, float32_products, monkeypatch):
    """As on a processor that takes 1 + 2^-12 for 1."""
    if one > 1 and not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch was built without oneDNN")
    monkeypatch.setattr(torch, "full", lambda shape, _: torch.ones(shape) * one)
    smose_sac.product_in("float32", CPU)
    rounds = torch.cpu.get_capabilities().get("amx_bf16")
    assert float32_products.fp32_precision == ("none" if one == 1 or rounds else "bf16")


def test_only_runs_in_float32_ask_onednn(float32_products, monkeypatch):
    monkeypatch.setattr(torch, "full", lambda shape, _: pytest.fail("asked"))
    smose_sac.product_in("bfloat16", CPU)
    assert float32_products.fp32_precision == "none"


def private_names(path: Path) -> set[str]:
    """Names with a leading underscore that are looked up in something else than self."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            words = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found |= {word for name in words for word in name.split(".") if word.startswith("_")}
    return found


@pytest.mark.parametrize("script", ["smose_sac.py", "sac_baseline.py"])
def test_only_public_names(script):
    path = Path(smose_sac.__file__).with_name(script)
    assert private_names(path) == set()
    assert "torch._" not in path.read_text() and "TORCHINDUCTOR_" in path.read_text()


def test_the_search_for_private_names_finds_some(tmp_path):
    (tmp_path / "bad.py").write_text(
        "import torch._dynamo\nfrom torch import _inductor\ntorch._C._x()\nself.__init__()"
    )
    assert private_names(tmp_path / "bad.py") == {"_dynamo", "_inductor", "_C", "_x"}


@pytest.mark.parametrize("n_experts, top_k, gate", GATES)
def test_actions_are_those_of_the_saved_actor_to_the_last_bit(n_experts, top_k, gate, tmp_path):
    from safetensors.torch import save_file
    from saved_actor import load_actor, make_policy

    actor = make_learner(n_experts, top_k, gate).actor
    kept = actor.tensors() | {"action_scale": actor.scale, "action_bias": actor.bias}
    about = actor.about | {"env_id": "Reacher-v4", "seed": "0", "steps": "1"}
    save_file({name: part.contiguous() for name, part in kept.items()}, tmp_path / "a.safetensors", about)
    policy = make_policy(load_actor(tmp_path / "a.safetensors"))
    for obs in np.random.default_rng(0).normal(size=(200, N_S)):
        action, expert = policy(obs)
        ours, chosen = actor.act(obs.astype(np.float32))
        assert action.dtype == ours.dtype == np.float32
        assert action.tobytes() == ours.tobytes() and expert == chosen


@pytest.mark.parametrize("script, bound", [("smose_sac.py", 850), ("sac_baseline.py", 850)])
def test_science_comes_first_and_the_file_is_short(script, bound):
    lines = Path(smose_sac.__file__).with_name(script).read_text().splitlines()
    (line,) = (i for i, text in enumerate(lines) if text.startswith("# Nothing below is about learning"))
    assert line < 490 and len(lines) < bound


def test_actor_is_made_for_any_space():
    actor = Actor(4, 1, Args(), gym.spaces.Box(np.float32([2]), np.float32([6])), CPU)
    assert actor.scale.tolist() == [2] and actor.bias.tolist() == [4]
