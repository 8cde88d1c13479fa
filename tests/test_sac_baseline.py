"""The neural actor of sac_baseline.py against float64 autograd and the paper's sizes, and the two trainers as twins."""

import ast
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import reference
import torch
from safetensors import safe_open
from torch.nn import functional

import sac_baseline
from sac_baseline import Actor, Args, Learner, TwinCritic, hidden_sizes

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
SPACE = gym.spaces.Box(np.array([-1.0, -2.0, 0.0]), np.array([1.0, 1.0, 3.0]), dtype=np.float64)
N_S, N_A, BATCH = 7, 3, 64


def rows(states):
    """[1, s] of each state"""
    return torch.cat((torch.ones(len(states), 1), states), 1)


def plain_heads(layers, states):
    *hidden, heads = layers
    for layer in hidden:
        states = functional.relu(reference.affine(layer, states))
    return reference.affine(heads, states)


@pytest.mark.parametrize("widths", [(16,), (32, 24), (8, 8, 8)])
def test_actor_forward_and_gradient_equal_autograd(widths):
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(1)
        actor = Actor(N_S, N_A, Args(hidden_sizes=widths, batch_size=BATCH), SPACE, CPU)
        critic = TwinCritic(N_S, N_A, Args(batch_size=BATCH), CPU, hidden=32)
        states, alpha = torch.randn(BATCH, N_S), 0.3
        x = torch.cat((rows(states), torch.zeros(BATCH, N_A)), 1)
        log_pi = actor.sample(x[:, : 1 + N_S], x[:, 1 + N_S :], update=True)
        _, q_gradient = critic.action_gradient(x)
        (mean_log_pi,) = actor.backward(q_gradient, torch.tensor(alpha))

        named = {name: layer.clone().requires_grad_() for name, layer in actor.layers().items()}
        *hidden, mean, log_std = named.values()
        mean, raw = plain_heads([*hidden, torch.cat((mean, log_std))], states).chunk(2, 1)
        action, expected = reference.squashed_sample(mean, raw, actor.noise.T, actor.scale[:, 0], actor.bias[:, 0])
        w1, b2, w2, b3, w3 = critic.weights
        layers = [w1.mT, torch.cat((b2, w2), 1).mT, torch.cat((b3, w3), 2)]
        inputs = torch.cat((states, action), 1)
        q = torch.minimum(*(reference.q_value(*(layer[i] for layer in layers), inputs) for i in (0, 1)))
        (alpha * expected - q).mean().backward()
        torch.testing.assert_close(x[:, 1 + N_S :], action.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(log_pi, expected.detach(), rtol=0, atol=1e-9)
        torch.testing.assert_close(mean_log_pi, expected.mean().detach(), rtol=0, atol=1e-9)
        actor.flat.copy_(actor.flat.grad)  # to read the gradient under the same names
        for name, gradient in actor.layers().items():
            torch.testing.assert_close(gradient, named[name].grad, rtol=1e-9, atol=1e-13)
    finally:
        torch.set_default_dtype(torch.float32)


def test_one_decision_in_numpy_is_the_batch_forward():
    torch.manual_seed(3)
    actor = Actor(N_S, N_A, Args(hidden_sizes=(32, 16), batch_size=BATCH), SPACE, CPU)
    states = torch.randn(BATCH, N_S)
    heads = actor.forward(rows(states))
    for i in range(BATCH):
        action, expert = actor.act(states[i].numpy())
        expected = actor.scale[:, 0] * heads[:N_A, i].tanh() + actor.bias[:, 0]
        np.testing.assert_allclose(action, expected.numpy(), atol=2e-6)
        assert expert is None


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
        assert actor.n_active == actor.n_total == count


def test_n_experts_sets_the_budget_that_is_matched():
    assert hidden_sizes("M", 11, 3, 16)[0] > hidden_sizes("M", 11, 3, 8)[0] > hidden_sizes("M", 11, 3, 3)[0]


def test_saved_actor_acts_as_the_trained_one(sac_run):
    """actor.safetensors alone, read in plain NumPy, repeats the run's own evaluation to the last digits."""
    with safe_open(sac_run / "actor.safetensors", "np") as file:
        weights, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
    assert metadata["format"] == "sac-actor" and metadata["size"] == "S" and json.loads(metadata["hidden_sizes"]) == [9]
    evaluation = json.loads((sac_run / "evaluation.json").read_text())
    env = gym.make("Reacher-v4")
    for episode, expected in enumerate(evaluation["returns"]):
        obs, _ = env.reset(seed=evaluation["first_eval_seed"] + episode)
        total, done = 0.0, False
        while not done:
            h = np.maximum(weights["hidden.0.weight"] @ obs.astype(np.float32) + weights["hidden.0.bias"], 0)
            mean = weights["mean.weight"] @ h + weights["mean.bias"]
            action = weights["action_scale"] * np.tanh(mean) + weights["action_bias"]
            obs, reward, terminated, truncated, _ = env.step(action)
            total, done = total + reward, terminated or truncated
        assert total == pytest.approx(expected, rel=1e-4)


ACTOR_ONLY = {"Actor", "load_balance_losses", "hidden_sizes"}  # the science: what may differ
ACTOR_FLAGS = {"n_experts", "top_k", "gate", "balance_coef", "size", "hidden_sizes", "exp_name"}


def pieces(script):
    """Every top-level statement's source, by what it defines; of Args, every field with its help."""
    source = (ROOT / script).read_text()
    found = {}
    for node in ast.parse(source).body[1:]:
        text = ast.get_source_segment(source, node)
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            for field, doc in zip(node.body[::2], node.body[1::2], strict=True):
                found[f"Args.{field.target.id}"] = ast.unparse(field) + doc.value.value
        elif isinstance(node, ast.Assign):
            found[node.targets[0].id] = text
        else:
            found[getattr(node, "name", text)] = text
    return found


def test_the_two_trainers_are_twins():
    smose, sac = pieces("smose_sac.py"), pieces("sac_baseline.py")
    may_differ = ACTOR_ONLY | {f"Args.{name}" for name in ACTOR_FLAGS} | {"RUN_FORMAT"}
    assert {name for name in smose.keys() | sac.keys() if smose.get(name) != sac.get(name)} <= may_differ
    assert [name for name in smose if name in sac] == [name for name in sac if name in smose]
