"""SMoSE: train a sparse mixture of shallow experts with Soft Actor-Critic, in one file.

    python smose_sac.py --env-id Hopper-v4 --seed 3                        # the paper's settings, 1,000,000 steps
    python smose_sac.py --env-id HalfCheetah-v4 --keep 0.4                 # a short policy: two fifths of its weights
    python smose_sac.py --env-id Swimmer-v4 --gamma 0.999                  # Swimmer needs a longer horizon
    python smose_sac.py --resume runs/Hopper-v4__smose_sac__3__1763251200  # go on after a kill, bit for bit

The policy is M affine experts and an affine router that picks one of them per state; the critics are CleanRL's.
Equation numbers are those of Vincze et al., "SMoSE: Sparse Mixture of Shallow Experts for Interpretable Reinforcement
Learning in Continuous Control Tasks", AAAI 2025. Tensors are [batch, features]; both critics are computed at once.
"""

import contextlib
import copy
import fcntl
import hashlib
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Optional

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the seconds of imports leaves no traceback

import gymnasium as gym
import imageio
import mujoco
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

FINAL_SEED = 100_000  # episode i of the final evaluation starts from env.reset(seed=FINAL_SEED + i)
PERIODIC_SEED = 200_000  # those on the way, which choose actor_best, start from others
PRUNING_BEGINS, PRUNING_ENDS = 0.5, 0.9  # of training, with --keep and --router-inputs
LOG_STD_MIN, LOG_STD_MAX = -5, 2  # of a random action's standard deviation
LONGEST_EPISODE = 10_000  # steps of an evaluation's episode, where the environment sets no limit
Unset = tyro.conf.arg(help_behavior_hint="")  # the text beside the flag says what happens without it


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


@dataclass
class Args:
    env_id: str = "Hopper-v4"  # any Gymnasium environment with a flat Box observation and a bounded Box action
    seed: int = 0  # seed of the experiment
    total_timesteps: int = 1_000_000  # total steps in the environment, warm-up included
    exp_name: Annotated[Optional[str], Unset] = None  # part of the run folder's name; smose_sac by default
    resume: Annotated[Optional[str], Unset] = None  # run folder to go on with from its checkpoint, as it was set
    eval_every: int = 25_000  # steps between two evaluations of the deterministic policy
    eval_episodes: int = 10  # episodes of such an evaluation
    final_eval_episodes: int = 100  # episodes of the evaluation at the end
    checkpoint_every: int = 50_000  # steps between two checkpoints for --resume
    keep_replay: bool = True  # leave the replay file in the run folder at the end (distill_trees.py reads it)
    capture_video: bool = False  # save an mp4 of one episode of every evaluation
    cuda: bool = True  # use CUDA where it is available
    num_threads: int = 1  # threads of PyTorch; 1 is best for sweeps
    compile: bool = True  # compile the two updates with torch.compile, which needs g++ and python3-dev
    precision: Literal["float32", "bfloat16"] = "float32"  # of the critics' hidden products
    n_experts: int = 8  # number of experts M
    top_k: int = 1  # experts that act together in a state; the paper's policy has 1
    gate: Literal["one-hot", "softmax"] = "one-hot"  # the chosen expert counts fully (Eq. 2), or by its probability
    balance_coef: float = 0.1  # weight lambda of the load-balancing losses
    authors: bool = False  # train as the authors' code does where it departs from the paper's text (README)
    keep: float = 1.0  # share of the router's and the mean heads' weights that is not zero at the end
    router_inputs: Annotated[Optional[int], Unset] = None  # observations that the router reads at the end, or all
    buffer_size: int = 1_000_000  # transitions that the replay buffer samples from
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # target smoothing coefficient
    batch_size: int = 256  # batch size sampled from the replay buffer
    learning_starts: int = 10_000  # uniformly random steps before learning starts
    policy_lr: float = 3e-4  # learning rate of the actor
    q_lr: float = 1e-3  # learning rate of the critics
    alpha_lr: float = 1e-3  # learning rate of the entropy coefficient
    policy_frequency: int = 2  # steps between two turns of the actor, which makes up for them by as many updates
    target_network_frequency: int = 1  # steps between two updates of the target networks
    alpha: float = 0.2  # entropy coefficient, if it isn't tuned
    autotune: bool = True  # tune the entropy coefficient, starting at 1


def make_env(env_id: str, **settings) -> gym.Env:
    gym.logger.min_level = gym.logger.ERROR  # v4 is meant: no advice to upgrade on every start
    warnings.filterwarnings("ignore", module="glfw")  # one line about a missing GL is enough
    try:
        env = gym.make(env_id, disable_env_checker=True, **settings)
    except Exception as error:
        raise UserError(f"cannot make environment {env_id!r}: {error}") from error
    if env.spec.id != env_id.rpartition(":")[2]:
        raise UserError(f"{env_id} names no version; give --env-id {env.spec.id}")
    for what, space in (("observations", env.observation_space), ("actions", env.action_space)):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise UserError(f"{env_id} has {what} {space}; this needs a flat vector of numbers (a one-dimensional Box)")
    if not env.action_space.is_bounded():
        raise UserError(f"{env_id} has unbounded actions {env.action_space}; give its Box finite limits")
    return env


class Batch(NamedTuple):
    obs: Tensor
    action: Tensor
    next_obs: Tensor
    reward: Tensor  # [batch]
    terminated: Tensor  # [batch], 1 where the episode really ended: a truncation bootstraps


class Replay:
    """The last `buffer_size` transitions, in a memory-mapped float32 table that is the run's own file: a ring with
    `checkpoint_every` rows to spare, so that a killed run overwrote nothing that its checkpoint still needs."""

    def __init__(self, path: Path, n_s: int, n_a: int, args: Args, device: torch.device):
        self.widths = {"obs": n_s, "action": n_a, "next_obs": n_s, "reward": 1, "terminated": 1, "episode": 1}
        self.size, self.n_rows, self.count = args.buffer_size, args.buffer_size + args.checkpoint_every, 0
        self.batch_size, self.device, width = args.batch_size, device, sum(self.widths.values())
        if not args.resume:
            np.lib.format.open_memmap(path, "w+", np.float32, (self.n_rows, width))
        try:
            np.load(path, mmap_mode="r")  # refuses a file that was cut short; "r+" would fill it with zeros
            self.file = np.load(path, mmap_mode="r+").reshape(self.n_rows, width)
        except (FileNotFoundError, ValueError, EOFError):
            raise UserError(f"{path} is damaged or gone (--no-keep-replay removes it); start a new run") from None
        with open(path, "r+b") as file:  # claim the disk now: a full one must not end in a bus error later
            os.posix_fallocate(file.fileno(), self.file.offset, 4 * width * min(self.n_rows, args.total_timesteps))
        self.table = self.file.view(np.ndarray)  # the same memory without memmap's slow indexing

    def add(self, obs, action, next_obs, reward: float, terminated: bool, episode: int) -> None:
        row = np.concatenate((obs, action, next_obs, (reward, terminated, episode)), dtype=np.float32)
        self.table[self.count % self.n_rows] = row  # episodes count from 1, so that 0 is an unused row
        self.count += 1

    def sample(self) -> Batch:
        return self.batch(torch.randint(max(0, self.count - self.size), self.count, (self.batch_size,)))

    def batch(self, steps: Tensor) -> Batch:
        rows = torch.from_numpy(self.table).index_select(0, steps % self.n_rows).to(self.device)
        obs, action, next_obs, reward, terminated, _ = rows.split([*self.widths.values()], 1)
        return Batch(obs, action, next_obs, reward.squeeze(1), terminated.squeeze(1))


def critic_shapes(n_in: int, hidden: int = 256) -> list[tuple]:
    """CleanRL's critics, Q_1 and Q_2 side by side: each layer's inputs, and its tensor's shape."""
    vector = (hidden, (2, 1, hidden))
    return [(n_in, (2, n_in + 1, hidden)), (hidden, (2, hidden, hidden)), vector, vector, (hidden, (2, 1))]


def q_values(x: Tensor, weights: list[Tensor], product: Callable) -> Tensor:
    """Q_1 and Q_2 [2, batch] of x = [obs, action, 1], a copy for each; `product` multiplies in --precision."""
    w1, w2, b2, w3, b3 = weights
    h = (x @ w1).relu()
    h = (product(h, w2) + b2).relu()
    return (h * w3).sum(2) + b3


def new_weights(shapes: list[tuple], device: torch.device) -> Tensor:
    """A network's weights in one flat tensor, that one call updates; they start as PyTorch's affine layers do."""
    return torch.cat([torch.empty(math.prod(size)).uniform_(-1, 1) * n_in**-0.5 for n_in, size in shapes]).to(device)


def layers(weights: Tensor, shapes: list[tuple]) -> list[Tensor]:
    """The tensors of a network, each in its shape."""
    parts = weights.split([math.prod(shape) for _, shape in shapes])
    return [part.view(shape) for part, (_, shape) in zip(parts, shapes, strict=True)]


class Actor:
    """M affine experts and an affine router (Eq. 1-2); an expert's heads are its mean and its raw log-std."""

    def __init__(self, n_s: int, n_a: int, args: Args, space: gym.spaces.Box, device: torch.device):
        m, gate = args.n_experts, "softmax" if args.authors else args.gate
        self.n_s, self.n_a, self.n_experts, self.top_k = n_s, n_a, m, args.top_k
        self.one_hot, self.authors = gate == "one-hot", args.authors
        self.scale = torch.tensor((space.high - space.low) / 2).float().to(device)
        self.bias = torch.tensor((space.high + space.low) / 2).float().to(device)
        # the router, then the experts: mean heads first, log-std heads after them; biases are the last column
        self.shapes = [(n_s, (m, n_s + 1)), (n_s, (m, 2 * n_a, n_s + 1))]
        self.weights = new_weights(self.shapes, device)
        self.rng = np.random.default_rng(args.seed)  # to explore
        self.n_active, self.n_total = (m + 2 * n_a * args.top_k) * (n_s + 1), (m + 2 * n_a * m) * (n_s + 1)
        self.name, self.title = "smose_sac", f"SMoSE, {m} experts, N_act {self.n_active} (N_tot {self.n_total})"
        self.about = {"format": "smose-actor", "n_experts": str(m), "top_k": str(args.top_k), "gate": gate}

    def policy(self, weights: Tensor, obs: Tensor, noise: Tensor, router_noise: Tensor) -> tuple:
        """Eq. 1: a random action in each state, its log-probability, and the losses that keep all experts in use."""
        (router, experts), x = layers(weights, self.shapes), F.pad(obs, (0, 1), value=1.0)  # [obs, 1]
        logits = x @ router.T
        p, tau, chosen, w = self.gate(logits, router_noise)
        heads = (experts[chosen] * x[:, None, None]).sum(3)  # of the chosen experts, of no other
        action, log_pi = self.squash((w.unsqueeze(2) * heads).sum(1), noise)
        return action, log_pi, load_balance_losses(logits, p, tau, sample_std=self.authors)

    def gate(self, logits: Tensor, router_noise: Tensor) -> tuple[Tensor, ...]:
        """All probabilities [batch, M], the k-th largest noisy logit, and the chosen and their weights [batch, k]."""
        noisy = logits + router_noise / self.n_experts  # epsilon ~ N(0, 1/M^2)
        p = noisy.softmax(1)
        if self.top_k == 1:  # Eq. 2; ties go to the lowest index
            top, chosen = noisy.max(1, keepdim=True)
        else:
            top, chosen = (v[:, : self.top_k] for v in noisy.sort(dim=1, descending=True, stable=True))
        w = p.gather(1, chosen)
        if self.one_hot:  # the weights of the chosen sum to 1; straight through: their gradient is that of p
            w = w + (w / w.sum(1, keepdim=True) - w).detach()
        return p, top[:, -1:], chosen, w

    def squash(self, heads: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """a = scale tanh(x) + bias with x = mean + std noise, and log pi(a), as in CleanRL."""
        mean, raw = heads.chunk(2, 1)
        log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (raw.tanh() + 1)
        y = (mean + log_std.exp() * noise).tanh()
        log_density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return self.scale * y + self.bias, (log_density - (self.scale * (1 - y.square()) + 1e-6).log()).sum(1)

    def noise(self, n: int, update: bool) -> tuple[Tensor, Tensor]:
        """N(0, 1) for the actions in n states and, in the actor's update only, for the router."""
        rows = 1 if self.authors else n  # theirs is one draw for the whole batch
        router_noise = torch.randn(rows, self.n_experts) if update else torch.zeros(1, self.n_experts)
        return torch.randn(n, self.n_a).to(self.scale.device), router_noise.to(self.scale.device)

    def act(self, obs: np.ndarray, explore: bool = False) -> tuple[np.ndarray, int]:
        """The action in one state, the mean or to explore a random one, and the expert with the highest score."""
        router, experts = (part.numpy() for part in layers(self.weights.cpu(), self.shapes))

        def affine(w: np.ndarray) -> np.ndarray:  # rounded as by all who read the saved weights, which have no gaps
            return np.ascontiguousarray(w[..., :-1]) @ obs + w[..., -1]

        logits = affine(router)
        chosen = np.argsort(-logits, kind="stable")[: self.top_k]
        p, heads = np.exp(logits - logits.max()), experts[chosen]
        w = p[chosen] / (p[chosen].sum() if self.one_hot else p.sum())
        x = w @ affine(heads[:, : self.n_a])
        if explore:
            raw = w @ affine(heads[:, self.n_a :])
            log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (np.tanh(raw) + 1)
            x = x + np.exp(log_std) * self.rng.standard_normal(self.n_a, np.float32)
        return self.scale.cpu().numpy() * np.tanh(x) + self.bias.cpu().numpy(), int(chosen[0])

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the names that actor.safetensors gives them."""
        router, experts = layers(self.weights, self.shapes)
        named = {"router": router, "experts.mean": experts[:, : self.n_a], "experts.log_std": experts[:, self.n_a :]}
        pairs = {name: {"weight": part[..., :-1], "bias": part[..., -1]} for name, part in named.items()}
        return {f"{name}.{kind}": part for name, pair in pairs.items() for kind, part in pair.items()}


def load_balance_losses(logits: Tensor, p: Tensor, tau: Tensor, sample_std: bool = False) -> dict[str, Tensor]:
    """f_imp and f_load (Eq. 3 and 4): 1/2 (std/mean)^2 over the M experts of what each of them gets of a batch.

    Imp_m = sum_s p_m,  Load_m = sum_s Phi(M (logit_m - tau)) with the k-th largest noisy logit tau, as in V-MoE.
    """
    load = 0.5 * (1 + torch.erf((logits - tau) * (logits.shape[1] / math.sqrt(2))))
    shares = {"importance": p.sum(0), "load": load.sum(0)}
    return {name: 0.5 * v.var(unbiased=sample_std) / v.mean().square() for name, v in shares.items()}


def pruned(weights: list[Tensor], n_a: int, obs: Tensor, share: float, n_inputs: int) -> Tensor:
    """The actor's weights; of the router's and of the mean heads' this share is left, those that are missed most."""
    router, experts, x = (part.double() for part in (*weights, F.pad(obs, (0, 1), value=1.0)))
    if router.all():  # nothing is pruned yet: what all experts' scores have in common decides nothing
        router = router - router.mean(0)
    acts = F.one_hot((x @ router.T).argmax(1), len(router)).double()
    seen = torch.stack([(x * chosen[:, None]).T @ x for chosen in acts.T]) / len(x)  # where each expert acts
    router = fewer_terms(router, seen.sum(0).expand_as(seen), math.ceil(share * router[:, 1:].numel()), n_inputs)
    means = experts[:, :n_a].flatten(0, 1)
    means = fewer_terms(means, seen.repeat_interleave(n_a, 0), math.ceil(share * means[:, 1:].numel()), obs.shape[1])
    experts = torch.cat((means.view_as(experts[:, :n_a]), experts[:, n_a:]), 1)
    return torch.cat((router.flatten(), experts.flatten())).float()


def fewer_terms(w: Tensor, moments: Tensor, n_left: int, n_inputs: int) -> Tensor:
    """Affine equations, a row each with its bias last, of which n_left weights in n_inputs columns are left: the weight
    goes first whose equation's others make up for it best by least squares (Optimal Brain Surgeon; exact here)."""
    eye, there = torch.eye(w.shape[1]).to(w), F.pad(w[:, :-1] != 0, (0, 1), value=True)
    both = there[:, :, None] & there[:, None]  # a trace of noise in every observation keeps weights from growing large
    inverse = torch.linalg.inv(torch.where(both, moments * (1 + 1e-4 * eye) + 1e-12 * eye, eye))
    while True:
        left = w[:, :-1] != 0
        cost = (w.square() / inverse.diagonal(dim1=1, dim2=2))[:, :-1]
        if left.any(0).sum() > n_inputs:
            j = int(cost.where(left, 0).sum(0).where(left.any(0), math.inf).argmin())
            rows = left[:, j]
        elif left.sum() > n_left:
            row, j = divmod(int(cost.where(left, math.inf).argmin()), left.shape[1])
            rows = torch.arange(len(w), device=w.device) == row
        else:
            return w
        change = (inverse[:, :, j] / inverse[:, j, j, None]).where(rows[:, None], 0)
        w, inverse = w - w[:, j, None] * change, inverse - change[:, :, None] * inverse[:, None, j]


class Learner:
    """SAC's update of critics, actor and entropy coefficient: three losses, their gradients by autograd, Adam."""

    def __init__(self, args: Args, env: gym.Env, device: torch.device):
        (n_s,), (n_a,) = env.observation_space.shape, env.action_space.shape
        self.args, self.n_s, self.n_a = args, n_s, n_a
        self.actor = Actor(n_s, n_a, args, env.action_space, device)
        self.prunes = args.keep < 1 or args.router_inputs is not None
        if args.router_inputs is not None and not 1 <= args.router_inputs <= n_s:
            raise UserError(f"--router-inputs {args.router_inputs} is out of range; give a number from 1 to {n_s}")
        self.product, self.shapes = product_in(args.precision, device), critic_shapes(n_s + n_a)
        self.critic = new_weights(self.shapes, device)
        self.target = self.critic.clone()
        self.log_alpha = torch.tensor(0.0 if args.autotune else math.log(args.alpha), device=device)
        self.q_optimizer = new_adam((self.critic, args.q_lr))
        self.actor_optimizer = new_adam((self.actor.weights, args.policy_lr), (self.log_alpha, args.alpha_lr))
        self.critic_gradient = lambda *given: gradients(self.critic_loss, 1, *given)  # --compile puts in compiled ones
        self.actor_gradient = lambda *given: gradients(self.actor_loss, 2, *given)

    def q(self, critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        x = F.pad(torch.cat((obs, action), 1), (0, 1), value=1.0)  # [obs, action, 1]: the last weights are biases
        return q_values(x.expand(2, -1, -1), layers(critic, self.shapes), self.product)

    def critic_loss(self, critic: Tensor, target, actor, log_alpha, batch: Batch, noise) -> tuple[Tensor, dict]:
        """sum_i mean((Q_i - y)^2),  y = r + gamma (1 - terminated) (min_i Q_i'(s', a') - alpha log pi(a'|s'))"""
        next_action, next_log_pi, _ = self.actor.policy(actor, batch.next_obs, *noise)
        next_value = self.q(target, batch.next_obs, next_action).amin(0) - log_alpha.exp() * next_log_pi
        y = batch.reward + self.args.gamma * (1 - batch.terminated) * next_value
        q = self.q(critic, batch.obs, batch.action)
        losses, values = (q - y).square().mean(1), q.mean(1)
        logs = {"qf1_loss": losses[0], "qf2_loss": losses[1], "qf1_values": values[0], "qf2_values": values[1]}
        return losses.sum(), logs | {"qf_loss": losses.mean()}

    def actor_loss(self, actor: Tensor, log_alpha: Tensor, critic, batch: Batch, noise) -> tuple[Tensor, dict]:
        """mean(alpha log pi - min_i Q_i) + lambda (f_imp + f_load), and alpha's own loss beside it."""
        action, log_pi, balance = self.actor.policy(actor, batch.obs, *noise)
        q = self.q(critic, batch.obs, action).amin(0)
        loss = (log_alpha.exp().detach() * log_pi - q).mean() + self.args.balance_coef * sum(balance.values())
        alpha_loss = self.alpha_loss(log_alpha, log_pi)
        return loss + alpha_loss, {"actor_loss": loss, "alpha_loss": alpha_loss, **balance}

    def alpha_loss(self, log_alpha: Tensor, log_pi: Tensor) -> Tensor:
        """mean(-alpha (log pi + target entropy)), the target being -n_a"""
        return (-log_alpha.exp() * (log_pi.detach() - self.n_a)).mean()

    def update_critics(self, batch: Batch) -> dict[str, Tensor]:
        given = self.target, self.actor.weights, self.log_alpha, batch, self.actor.noise(len(batch.obs), update=False)
        gradient, logs = self.critic_gradient(self.critic, *given)
        descend(self.q_optimizer, gradient)
        return logs

    def update_actor(self, batch: Batch) -> dict[str, Tensor]:
        """One step of the actor, and one of alpha."""
        noise = self.actor.noise(len(batch.obs), update=True)
        (gradient, of_alpha), logs = self.actor_gradient(self.actor.weights, self.log_alpha, self.critic, batch, noise)
        gone, tunes = self.actor.weights == 0, self.args.autotune
        descend(self.actor_optimizer, (gradient, of_alpha if tunes and not self.args.authors else None))
        if self.prunes:  # what was pruned stays zero
            self.actor.weights.masked_fill_(gone, 0)
        if tunes and self.args.authors:  # as in CleanRL: alpha learns from another draw, of the actor as it is now
            noise = self.actor.noise(len(batch.obs), update=True)
            _, log_pi, _ = self.actor.policy(self.actor.weights, batch.obs, *noise)
            descend(self.actor_optimizer, (None, torch.func.grad(self.alpha_loss)(self.log_alpha, log_pi)))
        return logs

    def prune(self, replay: Replay, progress: float) -> None:
        """Leave what --keep and --router-inputs want by now, on a cubic way, by what the last 50,000 states say."""
        if PRUNING_BEGINS < progress <= PRUNING_ENDS:
            to_go = (1 - (progress - PRUNING_BEGINS) / (PRUNING_ENDS - PRUNING_BEGINS)) ** 3
            keep, inputs = self.args.keep, self.args.router_inputs or self.n_s
            share, n_inputs = keep + (1 - keep) * to_go, math.ceil(inputs + (self.n_s - inputs) * to_go)
            steps = torch.arange(max(0, replay.count - min(replay.size, 50_000)), replay.count)
            parts = layers(self.actor.weights, self.actor.shapes)
            self.actor.weights.copy_(pruned(parts, self.n_a, replay.batch(steps).obs, share, n_inputs))

    def state(self) -> dict[str, Tensor]:
        """Every tensor that an update depends on, by reference."""
        named = {"critic": self.critic, "target": self.target, "actor": self.actor.weights, "log_alpha": self.log_alpha}
        adams = [*self.q_optimizer.state.values(), *self.actor_optimizer.state.values()]
        return named | {f"adam.{i}.{name}": part for i, adam in enumerate(adams) for name, part in adam.items()}


def gradients(loss: Callable, n: int, *given) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The gradients of a loss in the first n of its arguments, and what else the loss returns."""
    learned = [part.detach().requires_grad_() for part in given[:n]]
    value, logs = loss(*learned, *given[n:])
    return torch.autograd.grad(value, learned), {name: v.detach() for name, v in logs.items()}


def new_adam(*pairs: tuple[Tensor, float]) -> torch.optim.Adam:
    """Adam for weights and their learning rates, with its state from the start: checkpoints have the same tensors."""
    adam = torch.optim.Adam([{"params": [part], "lr": lr} for part, lr in pairs], fused=True)
    for part, _ in pairs:
        moments = {name: torch.zeros_like(part) for name in ("exp_avg", "exp_avg_sq")}
        adam.state[part] = {"step": torch.zeros((), device=part.device), **moments}
    return adam


def descend(optimizer: torch.optim.Optimizer, gradient: tuple[Optional[Tensor], ...]) -> None:
    """One step of Adam for what has a gradient; denormal numbers, slow moments of dead units, become zeros."""
    for group, of_part in zip(optimizer.param_groups, gradient, strict=True):
        group["params"][0].grad = of_part
    torch.set_flush_denormal(True)
    optimizer.step()
    torch.set_flush_denormal(False)


def train(args: Args) -> Path:
    check_args(args)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)
    np.seterr(over="ignore")  # an observation too large for float32 is reported as what it becomes, inf
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    env = make_env(args.env_id)
    rollout, learner = Rollout(env, args.seed), Learner(args, env, device)
    actor, latest, experts = learner.actor, math.nan, deque(maxlen=1000)
    with Run(args, learner, rollout, device) as run:
        run.evaluate_if_due()  # a signal may have come during the last one
        for global_step in range(run.start, args.total_timesteps):
            obs = rollout.obs
            if global_step < args.learning_starts:
                action = (actor.bias + actor.scale * (2 * torch.rand(learner.n_a) - 1).to(device)).cpu().numpy()
            else:
                action, expert = actor.act(obs, explore=True)
                experts.append(expert)
            next_obs, reward, terminated, truncated = rollout.step(action)
            run.replay.add(obs, action, next_obs, reward, terminated, rollout.episode)
            if terminated or truncated:
                latest = rollout.episode_return
                run.log("charts", {"episodic_return": latest, "episodic_length": rollout.episode_length})
                rollout.reset()

            if global_step > args.learning_starts:
                batch = run.replay.sample()
                logs = learner.update_critics(batch)
                if global_step % args.policy_frequency == 0:
                    for _ in range(args.policy_frequency):
                        logs |= learner.update_actor(batch)
                if global_step % args.target_network_frequency == 0:
                    learner.target.lerp_(learner.critic, args.tau)
                if learner.prunes and global_step % math.ceil(args.total_timesteps / 1000) == 0:
                    learner.prune(run.replay, global_step / args.total_timesteps)
                if not math.isfinite(logs["qf_loss"] + logs.get("actor_loss", 0)):
                    raise UserError(f"losses became { ({name: float(value) for name, value in logs.items()}) }")
                if global_step % 100 == 0:
                    run.log("losses", logs | {"alpha": learner.log_alpha.exp()})
            run.end_step(latest, experts)
        run.finish()
    return run.folder


# Nothing below is about learning: settings, precision and compiler, the environment in use, run folder, command line.

RUN_FORMAT, NEXT_COMMAND = "smose-run", "python interpret.py"
VERSIONS = {"python": sys.version.split()[0]} | {m.__name__: m.__version__ for m in (torch, gym, mujoco, np)}
STOP: list[int] = []  # the signals that asked this process to leave


def check_args(args: Args) -> None:
    """Refuse what can't be meant, before anything is written."""
    counts = "total_timesteps buffer_size policy_frequency target_network_frequency checkpoint_every eval_every "
    counts += "eval_episodes final_eval_episodes"
    ranges = dict.fromkeys(counts.split(), (1, 10**9)) | {"seed": (0, 2**32 - 1), "alpha": (1e-9, 10**9)}
    ranges |= {"num_threads": (1, 1024), "batch_size": (1, 10**6), "balance_coef": (0, 10**9), "keep": (1e-9, 1)}
    ranges |= {"learning_starts": (0, args.total_timesteps - 1), "n_experts": (1, 4096), "top_k": (1, args.n_experts)}
    ranges |= dict.fromkeys(("gamma", "tau", "policy_lr", "q_lr", "alpha_lr"), (0, 1))
    for name, (low, high) in ranges.items():
        if not low <= getattr(args, name) <= high:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)} is out of range; give {low} to {high}")


def product_in(precision: str, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """The matrix product whose operands and result, and those of its gradient, are rounded to the precision."""
    if precision == "float32":  # by oneDNN, which uses AVX-512 on AMD's CPUs too, unless it would round to less
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # its permission to round, which only AMX makes use of
        x = torch.full((2, 256, 256), 1 + 2**-12)  # rounded to bfloat16 or TF32 it is 1
        if (x @ x == 256).any():
            torch.backends.mkldnn.matmul.fp32_precision = "none"
        return torch.matmul
    kind = torch.bfloat16
    if device.type == "cpu" and not any(map(torch.cpu.get_capabilities().get, ("avx512_bf16", "amx_bf16", "bf16"))):
        say("no instructions for bfloat16 here: products are rounded to it, but are no faster than in float32")
        kind = torch.float32
    return lambda a, b: (a.bfloat16().to(kind) @ b.bfloat16().to(kind)).bfloat16().to(a.dtype)


def compile_updates(learner: Learner, replay: Replay) -> bool:
    """Let torch.compile make the two gradients faster, tried on a copy; where that fails, they stay as they are."""
    say("compiling the two updates ...")
    start, trial = time.time(), copy.deepcopy(learner)
    trial.critic_gradient, trial.actor_gradient = compiled(learner.critic_loss, 1), compiled(learner.actor_loss, 2)
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smose"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if cache.lstat().st_mode & 0o170077 != 0o40000 or cache.lstat().st_uid != os.getuid():  # pickles are read there
            raise PermissionError(f"{cache} is not this user's alone: set XDG_CACHE_HOME to a folder that is")
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with torch.random.fork_rng():
            batch = replay.batch(torch.zeros(replay.batch_size, dtype=torch.long))
            trial.update_critics(batch), trial.update_actor(batch)
    except Exception as error:  # above all: no C++ compiler
        say(f"PyTorch can't compile here, so training is slower; install g++ and python3-dev: {error}")
        return False
    learner.critic_gradient, learner.actor_gradient = trial.critic_gradient, trial.actor_gradient
    say(f"compiled in {time.time() - start:.0f} s, for later runs too")
    return True


def compiled(loss: Callable, n: int) -> Callable:
    """`gradients` of this loss in its first n arguments, compiled at the first call."""
    gradient = torch.func.grad(loss, tuple(range(n)), has_aux=True)
    options = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}  # shapes and settings never change
    options |= {"cpp_wrapper": True, "emulate_precision_casts": True}  # or rounding to bfloat16 would be left out
    how = {"fullgraph": True, "dynamic": False, "isolate_recompiles": True, "options": options}
    return torch.compile(lambda *given: gradient(*given), **how)  # what grad makes has one code object


def say(text: str) -> None:
    """Print a line now; if nobody reads any more (`| head -1`), ask for a checkpoint and an end."""
    try:
        print(text.partition("\n")[0], flush=True)
    except BrokenPipeError:
        STOP.append(signal.SIGPIPE)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Rollout:
    """The environment in use, how far its episode is, and a line about what is wrong if it answers what it may not."""

    def __init__(self, env: gym.Env, seed: int):
        self.env, self.episode = env, -1
        self.reset(seed)
        self.reset()

    def call(self, function: Callable, *values, **settings) -> tuple[np.ndarray, float, bool, bool]:
        try:
            obs, *others, _ = function(*values, **settings)
            obs = np.asarray(obs, np.float32).reshape(self.env.observation_space.shape)
            reward, terminated, truncated = map(float, others or (0, 0, 0))
        except Exception as error:
            raise UserError(f"the environment failed in {function.__name__}: {error!r}") from error
        if not (math.isfinite(reward) and np.isfinite(obs).all()):
            raise UserError(f"the environment gave the observation {obs.tolist()} with the reward {reward}")
        return obs, reward, bool(terminated), bool(truncated)

    def reset(self, seed: Optional[int] = None) -> None:
        self.rng_at_reset = self.env.unwrapped.np_random.bit_generator.state
        self.obs, *_ = self.call(self.env.reset, seed=seed)
        self.episode, self.episode_return, self.episode_length = self.episode + 1, 0.0, 0

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.obs, reward, *ends = self.call(self.env.step, action.astype(self.env.action_space.dtype))
        self.episode_return, self.episode_length = self.episode_return + reward, self.episode_length + 1
        return self.obs, reward, *ends

    def restore(self, episode: int, rng_at_reset: dict, steps: Batch) -> None:
        """Back to where it was: the episode starts as it did then, and its steps are taken again."""
        self.env.unwrapped.np_random.bit_generator.state = rng_at_reset
        self.reset()
        self.episode = episode
        for action, next_obs, reward, terminated in zip(*(part.cpu().numpy() for part in steps[1:]), strict=True):
            obs, *others, _ = self.step(action)
            if not np.array_equal(np.float32([*obs, *others]), [*next_obs, reward, terminated]):
                say("the environment does not repeat its episode: a new one starts, so results may differ")
                return self.reset()


def evaluate(args: Args, actor: Actor, episodes: int, first_seed: int, env: Optional[gym.Env] = None) -> dict:
    """The deterministic policy (clean router, mean action) on fixed episode seeds."""
    rollout, played = Rollout(env or make_env(args.env_id), first_seed), []
    limit = math.inf if rollout.env.spec.max_episode_steps else LONGEST_EPISODE
    for episode in range(episodes):
        rollout.reset(first_seed + episode)
        experts, ends = [], (False, False)
        while not any(ends) and len(experts) < limit:
            if STOP:
                sys.exit(128 + STOP[0])  # by way of Run.__exit__, which saves a checkpoint
            action, expert = actor.act(rollout.obs)
            experts.append(expert)
            _, _, *ends = rollout.step(action)
        if len(experts) == limit:
            say(f"{args.env_id} sets no limit to its episodes: one was cut after {limit:,} steps")
        played.append((rollout.episode_return, experts, ends[0]))
    returns, choices, ended = map(list, zip(*played, strict=True))
    lengths = [len(experts) for experts in choices]
    result = {"returns": returns, "lengths": lengths, "mean": float(np.mean(returns)), "std": float(np.std(returns))}
    result |= {"episodes": episodes, "first_eval_seed": first_seed, "ended_early": float(np.mean(ended))}
    if actor.n_experts:
        usage = np.bincount(sum(choices, []), minlength=actor.n_experts) / sum(lengths)
        switches = sum(before != after for experts in choices for before, after in pairwise(experts))
        result |= {"expert_usage": usage.tolist(), "switches_per_100_steps": 100 * switches / sum(lengths)}
    return result


def film(args: Args, actor: Actor, path: Path) -> None:
    """A video of an evaluation's first episode, by the camera that follows the robot where the model has one."""
    try:
        with gym.wrappers.RenderCollection(make_env(args.env_id, render_mode="rgb_array")) as env:
            with contextlib.suppress(AttributeError, KeyError):
                env.unwrapped.mujoco_renderer.camera_id = env.unwrapped.model.camera("track").id
            evaluate(args, actor, 1, PERIODIC_SEED, env)
            path.parent.mkdir(exist_ok=True)
            imageio.mimsave(path, env.render(), fps=env.metadata.get("render_fps", 30), macro_block_size=1)
    except Exception as error:  # no GL: all but the video goes on
        say(f"no video; install libegl1 and set MUJOCO_GL=egl: {error}")
        args.capture_video = False


def write_whole(path: Path, content: bytes | dict) -> None:
    """Bytes, or JSON; the file is there whole, or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            file.write(content if isinstance(content, bytes) else json.dumps(content, indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Run(contextlib.AbstractContextManager):
    """The run folder and what is written there: lock, replay, checkpoints, evaluations, TensorBoard, progress."""

    def __init__(self, args: Args, learner: Learner, rollout: Rollout, device: torch.device):
        args.exp_name = args.exp_name or learner.actor.name
        self.args, self.learner, self.actor, self.rollout = args, learner, learner.actor, rollout
        self.settings = asdict(args) | {"resume": None}
        self.earlier_hours, self.progress = 0.0, {"global_step": 0, "evaluations": [], "hours": 0.0, "compiled": None}
        new = Path(f"runs/.new-{os.getpid()}")  # a run folder is there with all that belongs to it, or not at all
        self.folder = Path(args.resume or new)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.folder / ".lock", "w")
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.replay = Replay(self.folder / "replay.npy", learner.n_s, learner.n_a, args, device)
            if args.resume:
                tensors, state = read_checkpoint(self.folder)
                self.progress, self.earlier_hours = state["progress"], state["progress"]["hours"]
                for name, tensor in learner.state().items():
                    tensor.copy_(tensors[name])
                self.replay.count = end = self.progress["global_step"]
                steps = torch.arange(end - state["rollout"].pop("episode_length"), end)
                rollout.restore(**state["rollout"], steps=self.replay.batch(steps))
                self.actor.rng.bit_generator.state = state["explore"]
                torch.set_rng_state(tensors["rng"])
            else:
                self.save_checkpoint()
                self.write_config()
                name = re.sub(r"[^\w.+-]+", "-", f"{args.env_id}__{args.exp_name}__{args.seed}", flags=re.ASCII)
                names = (Path(f"runs/{name}__{second}") for second in count(int(time.time())))
                self.folder = new.rename(next(path for path in names if not path.exists()))
        except BlockingIOError:
            raise UserError(f"{self.folder} is being trained by another process; wait for it or stop it") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
        self.start, self.marks = self.progress["global_step"], deque(maxlen=11)  # times every 1000 steps, for the rate
        say(f"{args.env_id}: {learner.n_s} observations, {learner.n_a} actions; {self.actor.title}; {self.folder}")
        self.writer = SummaryWriter(str(self.folder), purge_step=self.start + 1 if args.resume else None)
        rows = "\n".join(f"|{name}|{value}|" for name, value in asdict(args).items())
        self.writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
        self.usage = [f"usage_{m}" for m in range(1, 1 + self.actor.n_experts)]
        self.writer.add_custom_scalars({"experts": {"usage": ["Multiline", ["experts/usage_"]]}} if self.usage else {})
        before = self.progress["compiled"]  # what was used before is used again: other rounding, other weights
        wanted = args.compile and before is not False and self.start < args.total_timesteps
        self.progress["compiled"] = compile_updates(learner, self.replay) if wanted else bool(before)
        if before and not self.progress["compiled"]:
            say("it was compiled until here: the weights will differ from those of an uninterrupted run")
        self.write_config()

    def __exit__(self, _, error, __) -> None:
        step = self.progress["global_step"]
        if isinstance(error, SystemExit):  # a signal came
            self.save_checkpoint()
            words = ["python", sys.argv[0], "--resume", str(self.folder), "--env-id", self.args.env_id]
            print(f"stopped at step {step}; go on with: {shlex.join(words)}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError if error else ()):  # of two errors the first is told
            self.writer.close()
        if isinstance(error, UserError):
            raise UserError(f"{error} in step {step + 1}; the last checkpoint stays in {self.folder}") from error

    def write_config(self) -> dict:
        """config.json; of the deployed policy's numbers, those that are not zero are left to read (n_read)."""
        actor, ends = self.actor, np.cumsum([0, *self.replay.widths.values()]).tolist()
        deployed = [part for name, part in actor.tensors().items() if "log_std" not in name]
        config = {"format": RUN_FORMAT, "env_id": self.args.env_id, "obs_size": actor.n_s, "action_size": actor.n_a}
        config |= {"n_active": actor.n_active, "n_total": actor.n_total}
        config |= {"n_read": sum(int(part.count_nonzero()) for part in deployed), "args": self.settings}
        config |= {"compiled": self.progress["compiled"], "hours": round(self.progress["hours"], 3)}
        config |= {"versions": VERSIONS, "replay_columns": dict(zip(self.replay.widths, pairwise(ends), strict=True))}
        write_whole(self.folder / "config.json", config)
        return config

    def save_actor(self, file: str) -> None:
        about = {"env_id": self.args.env_id, "seed": str(self.args.seed), "steps": str(self.progress["global_step"])}
        about |= {"precision": self.args.precision, "args": json.dumps(self.settings), "versions": json.dumps(VERSIONS)}
        tensors = self.actor.tensors() | {"action_scale": self.actor.scale, "action_bias": self.actor.bias}
        tensors = {name: part.cpu().contiguous() for name, part in tensors.items()}
        write_whole(self.folder / file, save(tensors, self.actor.about | about))

    def log(self, kind: str, values: dict) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{kind}/{name}", float(value), self.progress["global_step"] + 1)

    def end_step(self, latest: float, experts: deque) -> None:
        """Whatever is due after a step; the latest return and the last experts are for the line every 10,000 steps."""
        args, total, said = self.args, self.args.total_timesteps, "warm-up"
        step = self.progress["global_step"] = self.progress["global_step"] + 1
        self.evaluate_if_due()
        if step % args.checkpoint_every == 0 or step == total:
            self.save_checkpoint()
            self.writer.flush()  # curves up to here are never lost
        if step % 1000 == 0 and step > args.learning_starts:
            self.marks.append(time.time())
            shares = [experts.count(m) / len(experts) for m in range(self.actor.n_experts)]
            said = f"return {latest:.1f}  experts {sum(share > 0 for share in shares)}/{len(shares)}"
            self.log("experts", dict(zip(self.usage, shares, strict=True)))
            if len(self.marks) > 1:
                rate = 1000 * (len(self.marks) - 1) / (self.marks[-1] - self.marks[0])
                self.log("charts", {"SPS": rate})
                said = f"{rate:.0f} steps/s  {timedelta(seconds=round((total - step) / rate))} left  {said}"
        if step % 10_000 == 0:
            say(f"step {step:,}/{total:,}  {said}")
        if STOP:
            sys.exit(128 + STOP[0])

    def evaluate_if_due(self) -> None:
        """Evaluate, add a line to evaluations.csv, save the actor, and keep the best."""
        args, step, rows = self.args, self.progress["global_step"], self.progress["evaluations"]
        if not step or step % args.eval_every and step != args.total_timesteps or rows and rows[-1][0] == step:
            return
        result = evaluate(args, self.actor, args.eval_episodes, PERIODIC_SEED)
        mean, std, lengths, shares = (result.get(name, []) for name in ("mean", "std", "lengths", "expert_usage"))
        rows.append([step, mean, std, float(np.mean(lengths)), float(np.std(lengths)), *shares])
        header = ["step", "return_mean", "return_std", "length_mean", "length_std", *self.usage]
        lines = [",".join(map(str, row)) + "\r\n" for row in (header, *rows)]
        write_whole(self.folder / "evaluations.csv", "".join(lines).encode())
        self.writer.add_scalar("eval/episodic_return", mean, step)
        self.save_actor("actor.safetensors")
        if max(rows, key=lambda row: row[1])[0] == step:
            self.save_actor("actor_best.safetensors")
        say(f"step {step:,}: return {mean:.1f} +/- {std:.1f} over {len(lengths)} episodes")
        if args.capture_video:
            film(args, self.actor, self.folder / f"videos/{step}.mp4")

    def finish(self) -> None:
        """The final evaluation, and the command that shows what was learned."""
        args, config = self.args, self.write_config()
        result = evaluate(args, self.actor, args.final_eval_episodes, FINAL_SEED)
        about = {name: config[name] for name in ("env_id", "n_active", "n_total", "n_read")}
        about |= {"seed": args.seed, "steps": args.total_timesteps}
        write_whole(self.folder / "evaluation.json", about | result)
        settings = {name: v if isinstance(v, int | float) else str(v) for name, v in self.settings.items()}
        self.writer.add_hparams(settings, {"eval/final_return": result["mean"]}, run_name=".")
        if not args.keep_replay:
            (self.folder / "replay.npy").unlink()
        say(f"{result['episodes']} episodes: return {result['mean']:.2f} +/- {result['std']:.2f}; {self.folder}")
        say(f"next: {NEXT_COMMAND} {shlex.quote(str(self.folder))}")

    def save_checkpoint(self) -> None:
        """All that --resume needs besides the replay file, in one safetensors file."""
        self.progress["hours"] = self.earlier_hours + time.process_time() / 3600  # of this core, whoever else had it
        tensors = self.learner.state() | {"rng": torch.get_rng_state()}
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise UserError("weights became infinite")
        state = {"format": RUN_FORMAT, "args": self.settings, "progress": self.progress}
        state["rollout"] = {name: getattr(self.rollout, name) for name in ("episode", "episode_length", "rng_at_reset")}
        state = json.dumps(state | {"explore": self.actor.rng.bit_generator.state})
        sha256 = hashlib.sha256(save(tensors) + state.encode()).hexdigest()
        about = {"state": state, "sha256": sha256, "global_step": str(self.progress["global_step"])}
        self.replay.file.flush()
        write_whole(self.folder / "checkpoint.safetensors", save(tensors, about))


def read_checkpoint(folder: str | Path) -> tuple[dict[str, Tensor], dict]:
    """All that --resume goes by besides the replay: tensors, and the settings and state in the metadata."""
    path = Path(folder) / "checkpoint.safetensors"
    try:
        with safe_open(path, "pt") as file:
            tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
        if hashlib.sha256(save(tensors) + about["state"].encode()).hexdigest() != about["sha256"]:
            raise ValueError("its checksum differs")
        state = json.loads(about["state"])
        if state["format"] != RUN_FORMAT or state["args"].keys() != asdict(Args()).keys():
            raise ValueError(f"a {state['format']} with {len(state['args'])} settings")
        return tensors, state
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{str(folder)!r} has no checkpoint to go on from; give a run folder or start anew") from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged, or of another trainer or version ({error}); start a new run") from error


def parse_args(default: Optional[Args] = None) -> Args:
    """The command line; tyro's framed message becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Args, default=default, description=__doc__)
    except SystemExit as leaving:
        if not leaving.code:
            raise
        text = re.sub(r"\x1b\[[\d;]*m|[│╭╮╰╯|+]", "", said.getvalue())
        _, *parts = (" ".join(part.split()).rstrip(".") for part in re.split("[─-]{9,}", text))
        told = "; ".join(part for part in parts if not re.match("(Argument|For full) helptext|$", part))
        raise UserError(f"{told.removeprefix('Error parsing ')}; see --help") from None


def resumed_args(folder: str) -> Args:
    """The settings of the run to resume; a flag given now must say the same, unless it may change."""
    _, state = read_checkpoint(folder)
    saved = Args(**state["args"] | {"resume": folder})
    if ":" in saved.env_id and not any(word.startswith(("--env-id", "--env_id")) for word in sys.argv):
        raise UserError(f"{folder} would import a module of its own; if you trust it, add --env-id {saved.env_id}")
    args = parse_args(default=saved)
    for name, now in asdict(args).items():
        then = getattr(saved, name)
        if now != then and name not in ("resume", "total_timesteps", "capture_video"):
            raise UserError(f"{folder} was trained with {name} {then}, not {now}; leave that flag out")
    if args.total_timesteps < (step := state["progress"]["global_step"]):
        raise UserError(f"{folder} has {step} steps already; give --total-timesteps above that")
    return args


def main() -> None:
    # what TensorBoard's thread could not write, its next call raises here
    threading.excepthook = lambda told: told.exc_type is OSError or threading.__excepthook__(told)
    try:
        args = parse_args()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: STOP.append(number))  # a checkpoint first, then an end
        train(args if args.resume is None else resumed_args(args.resume))
    except (UserError, OSError) as error:
        if isinstance(error, OSError):
            error = f"cannot write ({error.strerror}: {error.filename or 'runs'}); mend that, then --resume goes on"
        told = "".join(c if c.isprintable() else " " for c in str(error))  # no text of a flag commands the terminal
        print(f"error: {' '.join(told.split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
