"""Plain SAC and SMoSE in float64, written for clarity and independently of the trainers, to hold them to.

Weights are lists of tensors in the trainers' own layout, so that they can be compared one by one; where a tensor has
one more input than its layer, the weights of that input are the biases.
"""

import math

import gymnasium as gym
import numpy as np
import torch
from safetensors import safe_open
from torch.distributions import Normal
from torch.nn import functional


def cleanrl_q(w1, w2, b2, w3, b3, x):
    """One of CleanRL's critics; w1 and w2 are [inputs, outputs]."""
    h = functional.relu(functional.linear(x, w1[:-1].T, w1[-1]))
    h = functional.relu(functional.linear(h, w2.T, b2[0]))
    return functional.linear(h, w3, b3).squeeze(1)


def layer_norm_elu_q(w1, g1, w2, b2, g2, w3, b3, x):
    """A critic of somebody else's: LayerNorm (with a gain of 1 + g) and ELU."""
    for w, b, g in ((w1[:-1], w1[-1:], g1), (w2, b2, g2)):
        x = functional.linear(x, w.T, b[0])
        variance = ((x - x.mean(1, keepdim=True)) ** 2).mean(1, keepdim=True)
        x = (x - x.mean(1, keepdim=True)) / torch.sqrt(variance + 1e-5) * (1 + g[0])
        x = torch.where(x > 0, x, torch.exp(x) - 1)
    return functional.linear(x, w3, b3).squeeze(1)


def squashed_sample(mean, raw_log_std, noise, scale, bias, log_std_min=-5.0, log_std_max=2.0):
    """CleanRL's get_action with its Gaussian noise given."""
    log_std = log_std_min + 0.5 * (log_std_max - log_std_min) * (torch.tanh(raw_log_std) + 1)
    normal = Normal(mean, log_std.exp())
    x = mean + log_std.exp() * noise
    y = torch.tanh(x)
    log_prob = normal.log_prob(x) - torch.log(scale * (1 - y.pow(2)) + 1e-6)
    return scale * y + bias, log_prob.sum(1)


def moe_heads(weights, s, noise, top_k, gate):
    """Mean and raw log-std of the mixture [batch, 2 n_a], logits, noisy logits; straight-through gate."""
    router, experts = weights
    logits = functional.linear(s, router[:, :-1], router[:, -1])
    noisy = logits + noise
    p = torch.softmax(noisy, 1)
    chosen = noisy.topk(top_k, 1).indices
    mask = torch.zeros_like(p).scatter(1, chosen, 1.0)
    if gate == "one-hot":
        normalised = p * mask / (p * mask).sum(1, keepdim=True)
        shares = normalised.detach() + (p - p.detach()) * mask
    else:
        shares = p * mask
    outputs = torch.stack([functional.linear(s, w[:, :-1], w[:, -1]) for w in experts], 1)
    return (shares.unsqueeze(2) * outputs).sum(1), logits, noisy


def half_squared_variation(v, sample_std=False):
    return 0.5 * (v.std(unbiased=sample_std) / v.mean()) ** 2


def balance_losses(logits, noisy, top_k, sample_std=False):
    m = logits.shape[1]
    importance = torch.softmax(noisy, 1).sum(0)
    tau = noisy.topk(top_k, 1).values[:, -1:]
    load = (0.5 * (1 + torch.erf(m * (logits - tau) / math.sqrt(2)))).sum(0)
    return half_squared_variation(importance, sample_std), half_squared_variation(load, sample_std)


class MixturePolicy:
    """SMoSE's policy; with authors=True as their code has it."""

    def __init__(self, scale, bias, n_experts=8, top_k=1, gate="one-hot", balance_coef=0.1, authors=False):
        self.scale, self.bias, self.n_experts, self.top_k = scale.double(), bias.double(), n_experts, top_k
        self.gate, self.balance_coef, self.authors = "softmax" if authors else gate, balance_coef, authors

    def draw(self, n, update):
        """N(0, 1) for the router, when it explores, and for the actions, in the trainer's order."""
        rows = 1 if self.authors else n
        router_noise = torch.randn(rows, self.n_experts).double() / self.n_experts if update else 0.0
        return torch.randn(n, len(self.scale)).double(), router_noise

    def sample(self, weights, s, noise, router_noise):
        """action, log-probability, the losses of its own, and their weighted sum"""
        heads, logits, noisy = moe_heads(weights, s, router_noise, self.top_k, self.gate)
        action, log_pi = squashed_sample(*heads.chunk(2, 1), noise, self.scale, self.bias)
        losses = balance_losses(logits, noisy, self.top_k, sample_std=self.authors)
        return action, log_pi, losses, self.balance_coef * sum(losses)

    def shapes(self, n_s):
        m, heads = self.n_experts, 2 * len(self.scale)
        return [(n_s, (m, n_s + 1)), (n_s, (m, heads, n_s + 1))]

    def heads(self, weights, s):
        return moe_heads(weights, s, 0.0, self.top_k, self.gate)[0]


class NetworkPolicy:
    """SAC's: affine layers with ReLU between them."""

    def __init__(self, scale, bias, widths):
        self.scale, self.bias, self.widths = scale.double(), bias.double(), widths
        self.authors = False

    def draw(self, n, update):
        return (torch.randn(n, len(self.scale)).double(),)

    def heads(self, weights, s):
        *hidden, w, b = weights
        for i in range(0, len(hidden), 2):
            s = functional.relu(functional.linear(s, hidden[i], hidden[i + 1]))
        return functional.linear(s, w, b)

    def sample(self, weights, s, noise):
        return *squashed_sample(*self.heads(weights, s).chunk(2, 1), noise, self.scale, self.bias), (), 0.0

    def shapes(self, n_s):
        sizes, found = [n_s, *self.widths, 2 * len(self.scale)], []
        for n, m in zip(sizes, sizes[1:], strict=False):
            found += [(n, (m, n)), (n, (m,))]
        return found


class PlainLearner:
    """Textbook SAC, one loss after the other, with the paper's settings."""

    def __init__(self, policy, actor, critic, q_value=cleanrl_q, gamma=0.99, tau=0.005):
        self.policy, self.q_value, self.gamma, self.tau = policy, q_value, gamma, tau
        self.actor = [part.double().clone().requires_grad_() for part in actor]
        self.critic = [part.double().clone().requires_grad_() for part in critic]
        self.target = [part.double().clone() for part in critic]
        self.log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.adams = {
            "critic": torch.optim.Adam(self.critic, lr=1e-3),
            "actor": torch.optim.Adam(self.actor, lr=3e-4),
            "alpha": torch.optim.Adam([self.log_alpha], lr=1e-3),
        }

    def q(self, critic, s, a):
        inputs = torch.cat((s, a), 1)
        return torch.stack([self.q_value(*(part[i] for part in critic), inputs) for i in (0, 1)])

    def descend(self, name, loss):
        self.adams[name].zero_grad()
        loss.backward()
        self.adams[name].step()

    def critic_losses(self, critic, batch, noise):
        obs, action, next_obs, reward, terminated = (part.double() for part in batch)
        with torch.no_grad():
            next_action, next_log_pi, _, _ = self.policy.sample(self.actor, next_obs, *noise)
            next_value = self.q(self.target, next_obs, next_action).amin(0) - self.log_alpha.exp() * next_log_pi
            y = reward + self.gamma * (1 - terminated) * next_value
        return (self.q(critic, obs, action) - y).square().mean(1)

    def actor_loss(self, actor, obs, noise):
        action, log_pi, _, own = self.policy.sample(actor, obs.double(), *noise)
        q = self.q(self.critic, obs.double(), action).amin(0)
        return (self.log_alpha.exp().detach() * log_pi - q).mean() + own, log_pi.detach()

    def update_critics(self, batch):
        noise = self.policy.draw(len(batch[0]), update=False)
        self.descend("critic", self.critic_losses(self.critic, batch, noise).sum())

    def update_actor(self, batch):
        loss, log_pi = self.actor_loss(self.actor, batch[0], self.policy.draw(len(batch[0]), update=True))
        self.descend("actor", loss)
        if self.policy.authors:  # another draw, of the actor as it is now
            noise = self.policy.draw(len(batch[0]), update=True)
            log_pi = self.policy.sample(self.actor, batch[0].double(), *noise)[1].detach()
        target_entropy = -len(self.policy.scale)
        self.descend("alpha", (-self.log_alpha.exp() * (log_pi + target_entropy)).mean())

    def update_target(self):
        with torch.no_grad():
            for target, part in zip(self.target, self.critic, strict=True):
                target.copy_(self.tau * part + (1 - self.tau) * target)


def gradient_of_critics(learner, batch):
    """Along what a trainer's update of the critics descends, and its logs; nothing is updated."""
    noise = learner.actor.noise(len(batch.obs), update=False)
    given = learner.target, learner.actor.weights, learner.log_alpha, batch, noise
    return learner.critic_gradient(learner.critic, *given)


def gradient_of_actor(learner, batch):
    noise = learner.actor.noise(len(batch.obs), update=True)
    return learner.actor_gradient(learner.actor.weights, learner.log_alpha, learner.critic, batch, noise)


def update_target(learner):
    """As a trainer's loop has it."""
    learner.target.lerp_(learner.critic, learner.args.tau)


def flat(parts):
    """A network's tensors as one, as the trainers keep them."""
    return torch.cat([part.detach().flatten() for part in parts])


def uniform_start(shapes):
    """PyTorch's start of an affine layer: uniform within 1 / sqrt(inputs)."""
    return [torch.empty(shape).uniform_(-1, 1) / math.sqrt(n_in) for n_in, shape in shapes]


def plain_training(env_id, policy, critic_shapes, q_value, seed, steps, learning_starts, batch_size):
    """The whole training as CleanRL has it: the actor learns every second step, twice. -> learner, start, steps"""
    torch.manual_seed(seed)
    rng, env = np.random.default_rng(seed), gym.make(env_id)
    env.reset(seed=seed)
    obs, _ = env.reset()
    n_s, n_a = len(obs), len(policy.scale)
    learner = PlainLearner(policy, uniform_start(policy.shapes(n_s)), uniform_start(critic_shapes(n_s + n_a)), q_value)
    start = {name: [part.detach().clone() for part in getattr(learner, name)] for name in ("actor", "critic", "target")}
    history = []
    for step in range(steps):
        if step < learning_starts:
            x = 2 * torch.rand(n_a).double() - 1
            action = policy.bias + policy.scale * x
        else:
            with torch.no_grad():
                mean, raw = policy.heads(learner.actor, torch.tensor(obs[None]).float().double())[0].chunk(2)
                std = torch.exp(-5 + 3.5 * (torch.tanh(raw) + 1))
                noise = torch.from_numpy(rng.standard_normal(n_a, np.float32))
                action = policy.scale * torch.tanh(mean + std * noise) + policy.bias
        next_obs, reward, terminated, truncated, _ = env.step(action.float().numpy())
        history.append((obs, action.numpy(), next_obs, reward, terminated))
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step > learning_starts:
            chosen = torch.randint(0, len(history), (batch_size,))
            batch = [torch.tensor(np.array([history[i][k] for i in chosen]), dtype=torch.float32) for k in range(5)]
            learner.update_critics(batch)
            if step % 2 == 0:
                learner.update_actor(batch)
                learner.update_actor(batch)
            learner.update_target()
    return learner, start, history


def assert_plain_training(run, env_id, *settings):
    """What a run saw, did and learned is what the plain loop does; only its float32 makes a small difference."""
    plain, start, history = plain_training(env_id, *settings)
    expected = np.array([np.concatenate((*row[:3], row[3:])) for row in history])
    replay = np.load(run / "replay.npy")[: len(history), : expected.shape[1]]
    np.testing.assert_allclose(replay, expected, rtol=1e-3, atol=1e-3)
    with safe_open(run / "checkpoint.safetensors", "pt") as file:
        for name, parts in start.items():
            end = flat(getattr(plain, name))
            way, off = (end - flat(parts)).norm(), (end - file.get_tensor(name)).norm()
            assert way > 0.02 and off < 0.05 * way, (name, way, off)
        assert abs(file.get_tensor("log_alpha") - plain.log_alpha.item()) < 1e-4 and abs(plain.log_alpha) > 0.01
