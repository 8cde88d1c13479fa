"""The science of smose_sac.py against plain float64 autograd, hand-computed cases and the paper's own numbers."""

import math
import shutil
import subprocess
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import reference
import torch
from conftest import needs_compiler

import smose_sac
from smose_sac import Actor, Adam, Args, Learner, Replay, TwinCritic, fuse, load_balance_losses

CPU = torch.device("cpu")
SPACE = gym.spaces.Box(np.array([-1.0, -2.0, 0.0]), np.array([1.0, 1.0, 3.0]), dtype=np.float64)  # asymmetric
N_S, N_A, BATCH = 7, 3, 64
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


def rows(states):
    """[1, s] of each state"""
    return torch.cat((torch.ones(len(states), 1), states), 1)


def make_actor(n_experts=8, top_k=1, gate="one-hot", space=SPACE, **settings):
    args = Args(n_experts=n_experts, top_k=top_k, gate=gate, batch_size=BATCH, **settings)
    return Actor(N_S, N_A, args, space, CPU)


def make_critic():
    return TwinCritic(N_S, N_A, Args(batch_size=BATCH, gamma=0.9), CPU, hidden=32)


def critic_layers(weights):
    """The layers [bias | weight] of both critics, each [2, outputs, 1 + inputs]."""
    w1, b2, w2, b3, w3 = weights
    return [w1.mT, torch.cat((b2, w2), 1).mT, torch.cat((b3, w3), 2)]


def q_values(weights, inputs):
    return torch.stack([reference.q_value(*(layer[i] for layer in critic_layers(weights)), inputs) for i in (0, 1)])


def reference_actor_loss(weight, actor, critic, states, alpha):
    """With the noise that the actor drew last -> loss with balance terms, f_imp, f_load, actions, log-probabilities"""
    m = actor.n_experts
    gate, router_noise, noise = "one-hot" if actor.one_hot else "softmax", actor.router_noise.T / m, actor.noise.T
    experts = weight[m:].view(m, 2 * N_A, 1 + N_S)
    heads, logits, noisy = reference.moe_heads(weight[:m], experts, states, router_noise, actor.top_k, gate)
    action, log_pi = reference.squashed_sample(*heads.chunk(2, 1), noise, actor.scale[:, 0], actor.bias[:, 0])
    q = q_values(critic.weights, torch.cat((states, action), 1)).amin(0)
    f_imp, f_load = reference.balance_losses(logits, noisy, actor.top_k)
    return (alpha * log_pi - q).mean() + actor.balance_coef * (f_imp + f_load), f_imp, f_load, action, log_pi


@pytest.mark.parametrize("n_experts, top_k, gate", GATES)
def test_actor_forward_losses_and_gradient_equal_autograd(double, n_experts, top_k, gate):
    torch.manual_seed(1)
    check_actor(make_actor(n_experts, top_k, gate), make_critic())


def check_actor(actor, critic):
    states, alpha = torch.randn(BATCH, N_S), 0.3
    x = torch.cat((rows(states), torch.zeros(BATCH, N_A)), 1)
    log_pi = actor.sample(x[:, : 1 + N_S], x[:, 1 + N_S :], update=True)
    q, q_gradient = critic.action_gradient(x)
    mean_log_pi, *losses = actor.backward(q_gradient, torch.tensor(alpha))

    weight = actor.flat.view(-1, 1 + N_S).clone().requires_grad_()
    loss, f_imp, f_load, action, expected_log_pi = reference_actor_loss(weight, actor, critic, states, alpha)
    loss.backward()
    torch.testing.assert_close(x[:, 1 + N_S :], action.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(q, q_values(critic.weights, x[:, 1:]), rtol=0, atol=1e-12)
    torch.testing.assert_close(log_pi, expected_log_pi.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(mean_log_pi, expected_log_pi.mean().detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(losses, [f_imp.detach(), f_load.detach()], rtol=0, atol=1e-12)
    torch.testing.assert_close(actor.flat.grad.view_as(weight), weight.grad, rtol=1e-9, atol=1e-12)


def test_critic_forward_and_gradient_equal_autograd(double):
    torch.manual_seed(3)
    check_critic(make_critic())


def check_critic(critic):
    critic.target_flat.mul_(1.1)
    inputs, next_inputs = torch.randn(BATCH, N_S + N_A), torch.randn(BATCH, N_S + N_A)
    reward, terminated, next_log_pi = torch.randn(BATCH), (torch.rand(BATCH) < 0.3).double(), torch.randn(BATCH)
    next_q = q_values(critic.target_weights, next_inputs).amin(0)
    y = reward + 0.9 * (1 - terminated) * (next_q - 0.3 * next_log_pi)
    layers = [layer.clone().requires_grad_() for layer in critic.weights]
    values = q_values(layers, inputs)
    losses = (values - y).square().mean(1)
    losses.sum().backward()
    replay = SimpleNamespace(x=rows(inputs), next_x=rows(next_inputs), reward=reward, terminated=terminated)
    q, q_losses = critic.backward(replay, next_log_pi, torch.tensor(0.3))
    torch.testing.assert_close(q, values.detach(), rtol=0, atol=1e-13)
    torch.testing.assert_close(q_losses, losses.detach(), rtol=0, atol=1e-13)
    for layer, grad in zip(layers, critic.grads, strict=True):
        torch.testing.assert_close(grad, layer.grad, rtol=1e-10, atol=1e-14)


@needs_compiler
@pytest.mark.parametrize("gates", [(8, 1, "one-hot"), (5, 2, "softmax")])
def test_compiled_functions_equal_autograd_too(double, gates, capsys):
    """Two actors of one shape: what the compiler keeps for the first must not serve the second its constants."""
    torch.manual_seed(2)
    for space in (SPACE, gym.spaces.Box(-2.0, 7.0, (N_A,))):
        actor, critic = make_actor(*gates, space=space), make_critic()
        methods = actor.draw, actor.loss_gradient, critic.td_gradient, critic.smaller_critic
        fuse(*methods)
        check_actor(actor, critic)
        check_critic(critic)
        check_actor(actor, critic)  # the weights' memory changed since
        assert all(getattr(method.__self__, method.__name__) != method for method in methods)  # compiled, really
    assert "fails" not in capsys.readouterr().out


def test_adam_equals_pytorchs():
    torch.manual_seed(4)
    flat = torch.randn(1000)
    plain = flat.clone().requires_grad_()
    ours, theirs = Adam(flat, 3e-3), torch.optim.Adam([plain], lr=3e-3)
    for _ in range(50):
        plain.grad = flat.grad = torch.randn(1000)
        ours.step()
        theirs.step()
    torch.testing.assert_close(flat, plain.detach(), rtol=0, atol=1e-6)


def fill(replay, n_s, n_a, steps, seed=5):
    rng = np.random.default_rng(seed)
    for i in range(steps):
        obs, action, after = rng.normal(size=n_s), rng.uniform(-1, 1, n_a), rng.normal(size=n_s)
        replay.add(np.concatenate((obs, action, after, (rng.normal(), rng.random() < 0.2, 1 + i // 50))))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype, allowed", [(torch.float64, 1e-7), (torch.float32, 0.3)])
def test_200_updates_follow_plain_autograd(tmp_path, dtype, allowed, compiled):
    """The fast path and textbook SAC in float64, from the same weights, batches and noise.

    In float64 they stay together; in float32 rounding grows over 200 steps of Adam, to a few percent of the way.
    """
    torch.set_default_dtype(dtype)
    try:
        compare_200_updates(tmp_path, allowed, compiled)
    finally:
        torch.set_default_dtype(torch.float32)


def compare_200_updates(tmp_path, allowed, compiled):
    args = Args(batch_size=64, policy_frequency=1, learning_starts=0, buffer_size=500, compile=compiled)
    torch.manual_seed(6)
    learner = Learner(args, smose_sac.make_env("Reacher-v4"), CPU)
    n_s, n_a, m = learner.n_s, learner.n_a, args.n_experts
    replay = Replay(tmp_path / "replay.npy", n_s, n_a, args, CPU)
    fill(replay, n_s, n_a, 500)
    actor, critic = learner.actor, learner.critic
    start = {"actor": actor.flat.double().clone(), "critic": critic.flat.double().clone()}

    weight = actor.flat.view(-1, 1 + n_s).double().clone().requires_grad_()
    layers = [layer.double().clone().requires_grad_() for layer in critic.weights]
    targets = [layer.detach().clone() for layer in layers]
    log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizers = [torch.optim.Adam(p, lr=lr) for p, lr in (([weight], 3e-4), (layers, 1e-3), ([log_alpha], 1e-3))]
    scale, bias = actor.scale[:, 0].double(), actor.bias[:, 0].double()

    def sample(states, router_noise):
        experts, noise = weight[m:].view(m, 2 * n_a, 1 + n_s), actor.noise.T.double()
        heads, logits, noisy = reference.moe_heads(weight[:m], experts, states, router_noise, 1, "one-hot")
        return *reference.squashed_sample(*heads.chunk(2, 1), noise, scale, bias), logits, noisy

    for _ in range(200):
        learner.update_critics(replay)
        x, next_s = replay.x[:, 1:].double().clone(), replay.next_s[:, 1:].double().clone()
        with torch.no_grad():
            next_action, next_log_pi, _, _ = sample(next_s, 0.0)
            next_q = q_values(targets, torch.cat((next_s, next_action), 1)).amin(0)
            next_value = next_q - log_alpha.exp() * next_log_pi
            y = replay.reward.double() + args.gamma * (1 - replay.terminated.double()) * next_value
        optimizers[1].zero_grad()
        (q_values(layers, x) - y).square().mean(1).sum().backward()
        optimizers[1].step()

        learner.update_actor(replay)
        states = x[:, :n_s]
        action, log_pi, logits, noisy = sample(states, actor.router_noise.T.double() / m)
        q = q_values(layers, torch.cat((states, action), 1)).amin(0)
        loss = (log_alpha.exp().detach() * log_pi - q).mean()
        loss = loss + args.balance_coef * sum(reference.balance_losses(logits, noisy, 1))
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        optimizers[2].zero_grad()
        (-log_alpha.exp() * (log_pi.detach() - n_a).mean()).backward()
        optimizers[2].step()

        critic.target_flat.lerp_(critic.flat, args.tau)
        with torch.no_grad():
            for target, layer in zip(targets, layers, strict=True):
                target.lerp_(layer, args.tau)

    plain = [weight.detach().flatten(), torch.cat([layer.detach().flatten() for layer in layers])]
    for name, fast, slow in zip(("actor", "critic"), (actor.flat, critic.flat), plain, strict=True):
        way = (slow - start[name]).norm()
        assert way > 0.5  # 200 steps really went somewhere
        assert (fast.double() - slow).norm() < allowed * way
    assert abs(learner.log_alpha - log_alpha.item()) < 1e-4
    assert abs(learner.log_alpha) > 0.1


def test_straight_through_gradient_reaches_every_router_weight():
    torch.manual_seed(7)
    actor = make_actor(balance_coef=0.0)
    actor.sample(rows(torch.randn(BATCH, N_S)), torch.empty(BATCH, N_A), update=True)
    actor.backward(torch.randn(BATCH, N_A), torch.tensor(0.1))
    assert (actor.g_router != 0).all()


def deterministic_actions(actor, states):
    """What a batch does without any noise."""
    s, action = rows(states), torch.empty(BATCH, N_A)
    actor.draw(actor.router @ s.T, s, actor.experts, actor.no_noise, torch.zeros(N_A, BATCH), action)
    return action


def test_one_hot_gate_lets_the_chosen_expert_count_fully():
    torch.manual_seed(8)
    actor = make_actor()
    states = torch.randn(BATCH, N_S)
    actions = deterministic_actions(actor, states)
    tensors = actor.layers()
    chosen = reference.affine(tensors["router"], states).argmax(1)
    for i, m in enumerate(chosen):
        mean = reference.affine(tensors["experts.mean"][m], states[i : i + 1])[0]
        expected = actor.scale[:, 0] * mean.tanh() + actor.bias[:, 0]
        torch.testing.assert_close(actions[i], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_experts, top_k, gate", GATES)
def test_one_decision_in_numpy_is_the_batch_forward(n_experts, top_k, gate):
    torch.manual_seed(9)
    actor = make_actor(n_experts, top_k, gate)
    states = torch.randn(BATCH, N_S)
    actions = deterministic_actions(actor, states)
    for i in range(BATCH):
        action, expert = actor.act(states[i].numpy())
        np.testing.assert_allclose(action, actions[i].numpy(), atol=2e-6)
        assert expert == int((actor.router @ rows(states)[i]).argmax())


def test_importance_and_load_by_hand():
    """Two experts, two states, M = 2: p sums to (1.2, 0.8); gaps of 0 and -1 in units of the noise."""
    p = torch.tensor([[0.9, 0.3], [0.1, 0.7]])
    logits = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    tau = torch.tensor([1.0, 1.0])  # the clean maximum: M (logit - tau) = 0 for the winner, -1 for the other
    f_imp, f_load = load_balance_losses(logits, p, tau)
    assert f_imp == pytest.approx(0.5 * (0.2 / 1.0) ** 2)  # population std of (1.2, 0.8) is 0.2, mean 1
    assert f_load == pytest.approx(0.0, abs=1e-12)  # both experts: Phi(0) + Phi(-1)
    logits = torch.tensor([[1.0, 1.0], [0.5, 0.5]])  # now expert 1 wins both states
    _, f_load = load_balance_losses(logits, p, tau)
    phi = 0.5 * math.erfc(1 / math.sqrt(2))  # Phi(-1)
    mean, std = (1.0 + 2 * phi) / 2, (1.0 - 2 * phi) / 2
    assert f_load == pytest.approx(0.5 * (std / mean) ** 2)


PAPER_COUNTS = {
    "Walker2d-v4": (360, 1872), "HalfCheetah-v4": (360, 1872), "Hopper-v4": (168, 672),
    "Ant-v4": (672, 3808), "Reacher-v4": (144, 480), "Swimmer-v4": (108, 360),
}  # fmt: skip


@pytest.mark.parametrize("env_id", PAPER_COUNTS)
def test_parameter_counts_are_the_papers(env_id):
    learner = Learner(Args(batch_size=8), smose_sac.make_env(env_id), CPU)
    assert (learner.actor.n_active, learner.actor.n_total) == PAPER_COUNTS[env_id]


def test_a_truncation_bootstraps_and_a_termination_does_not(tmp_path):
    """With gamma 1, Q = 0 and Q' = 1000, the loss y^2 tells which transitions look beyond their end."""
    args = Args(batch_size=16, gamma=1.0, autotune=False, alpha=1e-9, buffer_size=100, compile=False)
    for terminated in (False, True):
        learner = Learner(args, smose_sac.make_env("Reacher-v4"), CPU)
        replay = Replay(tmp_path / f"{terminated}.npy", learner.n_s, learner.n_a, args, CPU)
        obs = np.zeros(learner.n_s)
        replay.add(np.concatenate((obs, np.zeros(learner.n_a), obs, (1.0, terminated, 1))))
        learner.critic.flat.zero_()
        learner.critic.target_flat.zero_()
        learner.critic.target_weights[3][:] = 1000.0
        _, losses = learner.update_critics(replay)
        assert losses.tolist() == pytest.approx([1.0 if terminated else 1001.0**2] * 2)


def test_replay_samples_the_last_transitions_only(tmp_path):
    args = Args(batch_size=64, buffer_size=30, checkpoint_every=10)
    replay = Replay(tmp_path / "replay.npy", 2, 1, args, CPU)
    seen = set()
    for step in range(200):
        replay.add(np.array([step, 0, 0, step + 1, 0, step, False, 1]))
        replay.sample()
        reward = replay.reward
        assert reward.max() <= step and reward.min() > step - 30
        assert (replay.x[:, 1] == reward).all() and (replay.next_s[:, 1] == reward + 1).all()
        seen |= set(reward.tolist())
    assert len(seen) > 190
    assert np.load(tmp_path / "replay.npy").shape == (40, 8)


@pytest.mark.parametrize("script, fixture", [("smose_sac.py", "smose_run"), ("sac_baseline.py", "sac_run")])
def test_a_finished_run_without_checkpoint_is_left_alone(script, fixture, request, tmp_path):
    """As the committed policies are: to start again from step 0 there would throw their results away."""
    run = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "run")
    (run / "checkpoint.safetensors").unlink()
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    command = [sys.executable, smose_sac.__file__.replace("smose_sac.py", script), "--resume", str(run)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "no checkpoint" in done.stderr and done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
