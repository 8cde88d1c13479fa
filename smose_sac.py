"""SMoSE: train a sparse mixture of shallow experts with Soft Actor-Critic, in one file.

    python smose_sac.py --env-id Hopper-v4 --seed 3                        # the paper's settings, 1,000,000 steps
    python smose_sac.py --env-id Swimmer-v4 --gamma 0.999                  # a longer horizon is what Swimmer needs
    python smose_sac.py --resume runs/Hopper-v4__smose_sac__3__1763251200  # go on after a kill, bit for bit
    for seed in 0 1 2; do python smose_sac.py --env-id Reacher-v4 --seed $seed --total-timesteps 300_000; done
    tensorboard --logdir runs

The policy is M affine experts and an affine router that picks one of them per state (Vincze et al., "SMoSE: Sparse
Mixture of Shallow Experts for Interpretable Reinforcement Learning in Continuous Control Tasks", AAAI 2025); the
critics are the neural ones of CleanRL's SAC. Equation numbers below are that paper's.

Gradients are written out beside their equations instead of recorded by autograd: every product then writes into a
buffer that is kept, and nothing is computed that nobody uses. A batch is a matrix whose columns are states and whose
row 0 is ones, so that an affine layer is `W @ h` with its bias in W's column 0.
"""

import contextlib
import csv
import difflib
import fcntl
import io
import json
import math
import os
import platform
import re
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, Optional

import gymnasium as gym
import mujoco
import numpy as np
import torch
import tyro
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

EVAL_SEED = 100_000  # episode i of every evaluation starts from env.reset(seed=EVAL_SEED + i)
FREE_ON_RESUME = {"resume", "total_timesteps", "track", "wandb_project_name", "wandb_entity", "capture_video"}


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


def parse_count(text: str) -> int:
    value = float(text)
    if not value.is_integer():
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


# a whole number that may be written 1e6 or 1_000_000
Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: parse_count(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]


@dataclass
class Args:
    env_id: str = "Hopper-v4"
    """any Gymnasium environment with a flat Box observation and a bounded Box action"""
    seed: Count = 0
    """seed of the experiment"""
    total_timesteps: Count = 1_000_000
    """total steps in the environment, warm-up included"""
    exp_name: str = "smose_sac"
    """the name of this experiment, part of the run folder's name"""
    resume: Optional[str] = None
    """run folder to continue from its last checkpoint (all other settings are taken from there)"""
    eval_every: Count = 25_000
    """steps between two evaluations of the deterministic policy"""
    eval_episodes: Count = 10
    """episodes of such an evaluation"""
    final_eval_episodes: Count = 100
    """episodes of the evaluation at the end"""
    checkpoint_every: Count = 50_000
    """steps between two checkpoints for --resume"""
    keep_replay: bool = True
    """leave the replay file in the run folder at the end (distill_trees.py reads it)"""
    capture_video: bool = False
    """save an mp4 of one episode of every evaluation"""
    track: bool = False
    """track the run with Weights and Biases"""
    wandb_project_name: str = "smose"
    """the wandb project's name"""
    wandb_entity: Optional[str] = None
    """the entity (team) of the wandb project"""
    cuda: bool = True
    """use CUDA where it is available"""
    num_threads: Count = 1
    """threads of PyTorch; 1 is best for sweeps"""

    # Algorithm specific arguments
    n_experts: Count = 8
    """number of experts M"""
    top_k: Count = 1
    """experts that act together in a state; the paper's policy has 1"""
    gate: Literal["one-hot", "softmax"] = "one-hot"
    """one-hot: the chosen expert counts fully (Eq. 2); softmax: it is scaled by its probability, as in V-MoE"""
    balance_coef: float = 0.1
    """weight lambda of the load-balancing losses"""
    buffer_size: Count = 1_000_000
    """transitions that the replay buffer samples from"""
    gamma: float = 0.99
    """discount factor"""
    tau: float = 0.005
    """target smoothing coefficient"""
    batch_size: Count = 256
    """batch size sampled from the replay buffer"""
    learning_starts: Count = 10_000
    """uniformly random steps before learning starts"""
    policy_lr: float = 3e-4
    """learning rate of the actor"""
    q_lr: float = 1e-3
    """learning rate of the critics"""
    alpha_lr: float = 1e-3
    """learning rate of the entropy coefficient"""
    policy_frequency: Count = 2
    """steps between two turns of the actor, which makes up for them by as many updates"""
    target_network_frequency: Count = 1
    """steps between two updates of the target networks"""
    alpha: float = 0.2
    """entropy coefficient, if it isn't tuned"""
    autotune: bool = True
    """tune the entropy coefficient, starting at 1"""
    log_std_min: float = -5.0
    """lowest logarithm of an action's standard deviation"""
    log_std_max: float = 2.0
    """highest logarithm of an action's standard deviation"""


def check_args(args: Args) -> None:
    """Refuse numbers that can't be meant, before anything is written."""
    bounds = {
        "seed": (0, 2**32 - 1), "total_timesteps": (1, 10**12), "eval_every": (1, 10**12), "eval_episodes": (1, 10**6),
        "final_eval_episodes": (1, 10**6), "checkpoint_every": (1, 10**9), "num_threads": (1, 1024),
        "n_experts": (1, 4096), "top_k": (1, 4096), "balance_coef": (0, 1e6), "buffer_size": (1, 10**10),
        "gamma": (0, 1), "tau": (0, 1), "batch_size": (1, 10**6), "learning_starts": (0, 10**12), "policy_lr": (0, 1),
        "q_lr": (0, 1), "alpha_lr": (0, 1), "policy_frequency": (1, 10**6), "target_network_frequency": (1, 10**6),
        "alpha": (0, 1e6), "log_std_min": (-50, 50), "log_std_max": (-50, 50),
    }  # fmt: skip
    for name, (low, high) in bounds.items():
        value = getattr(args, name, low)
        if not low <= value <= high:
            raise UserError(f"{flag(name)} {value} is out of range; give a number from {low:,} to {high:,}")
    if args.learning_starts >= args.total_timesteps:
        raise UserError(
            f"--learning-starts {args.learning_starts} is not below --total-timesteps {args.total_timesteps}: "
            "nothing would be learnt; lower the one or raise the other"
        )
    if args.log_std_min >= args.log_std_max:
        raise UserError(f"--log-std-min {args.log_std_min} must be below --log-std-max {args.log_std_max}")
    if args.top_k > args.n_experts:
        raise UserError(f"--top-k {args.top_k} is above --n-experts {args.n_experts}; choose at most all experts")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def make_env(env_id: str, render_mode: Optional[str] = None) -> gym.Env:
    """The environment, or one line that says why not."""
    gym.logger.min_level = gym.logger.ERROR  # v4 is meant: no advice to upgrade on every start
    try:
        env = gym.make(env_id, render_mode=render_mode)
    except Exception as error:
        near = difflib.get_close_matches(env_id, gym.registry.keys(), n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near and env_id not in gym.registry else ""
        reason = f"{error}".strip().splitlines() or [type(error).__name__]
        raise UserError(f"cannot make environment {env_id!r}: {reason[0].rstrip('.')}{hint}") from error
    seen, acts = env.observation_space, env.action_space
    if not isinstance(seen, gym.spaces.Box) or len(seen.shape) != 1:
        raise UserError(f"{env_id} observes {seen}; SMoSE needs a flat vector (a Box of one dimension)")
    if not isinstance(acts, gym.spaces.Box) or len(acts.shape) != 1:
        raise UserError(f"{env_id} takes actions {acts}; SMoSE needs continuous ones (a Box of one dimension)")
    if not (np.isfinite(acts.low).all() and np.isfinite(acts.high).all()):
        raise UserError(f"{env_id} has unbounded actions {acts}; wrap it in gymnasium.wrappers.RescaleAction or bound it")
    return env


class Replay:
    """The last `buffer_size` transitions, in a memory-mapped float32 table that is the run's own file.

    The file is a ring with `spare` rows more than are sampled from: what a killed run overwrote after its last
    checkpoint is then never something that the checkpoint still needs.
    """

    def __init__(self, path: Path, n_s: int, n_a: int, args: Args, device: torch.device):
        self.columns = replay_columns(n_s, n_a)
        self.size, self.n_rows = args.buffer_size, args.buffer_size + args.checkpoint_every
        shape = (self.n_rows, self.columns["episode"][1])
        if not path.exists():
            np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
        self.table = np.load(path, mmap_mode="r+")
        if self.table.shape != shape:
            raise UserError(f"{path} is not this run's replay: it has shape {self.table.shape}, not {shape}")
        with open(path, "r+b") as file:  # claim the disk now: a full one must not end in a bus error later
            used = min(self.n_rows, args.total_timesteps) * shape[1] * 4
            os.posix_fallocate(file.fileno(), self.table.offset, used)
        self.rows = torch.from_numpy(self.table)
        self.batch = torch.empty(args.batch_size, shape[1])
        # what the networks read: columns are transitions, row 0 is ones
        self.x = torch.ones(1 + n_s + n_a, args.batch_size, device=device)
        self.next_x = torch.ones(1 + n_s + n_a, args.batch_size, device=device)
        self.s, self.next_s = self.x[: 1 + n_s], self.next_x[: 1 + n_s]
        self.count = 0

    def add(self, obs, action, next_obs, reward: float, terminated: bool, episode: int) -> None:
        row, (_, end) = self.table[self.count % self.n_rows], self.columns["next_obs"]
        row[:end] = np.concatenate((obs, action, next_obs))
        row[end:] = reward, terminated, episode
        self.count += 1

    def sample(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Fill x = [1; s; a] and next_x = [1; s'; .] with a random batch; return rewards and terminations."""
        steps = torch.randint(max(0, self.count - self.size), self.count, (len(self.batch),))
        torch.index_select(self.rows, 0, steps.remainder_(self.n_rows), out=self.batch)
        (_, end_a), (first, last) = self.columns["action"], self.columns["next_obs"]
        self.x[1:] = self.batch[:, :end_a].T
        self.next_s[1:] = self.batch[:, first:last].T
        reward, terminated = self.batch[:, last : last + 2].T.to(self.x.device)
        return reward, terminated


def replay_columns(n_s: int, n_a: int) -> dict[str, tuple[int, int]]:
    """Where in a row of the replay table each quantity stands; episodes count from 1, so 0 marks an unused row."""
    widths = {"obs": n_s, "action": n_a, "next_obs": n_s, "reward": 1, "terminated": 1, "episode": 1}
    ends = np.cumsum(list(widths.values())).tolist()
    return {name: (end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}


def flat_weights(shapes: list[tuple[int, ...]], device: torch.device) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One flat tensor for all weights of a network, and its parts: one optimizer call serves them all."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.zeros(sum(sizes), device=device)
    return flat, [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


def init_uniform_(weights: list[torch.Tensor]) -> None:
    """PyTorch's own start for affine layers; column 0 is the bias."""
    for weight in weights:
        weight.uniform_(-1, 1).mul_((weight.shape[-1] - 1) ** -0.5)


class TwinCritic:
    """CleanRL's Q_1 and Q_2 (two hidden layers of 256, ReLU) side by side, and their target networks."""

    def __init__(self, n_in: int, batch_size: int, device: torch.device, hidden: int = 256):
        shapes = [(2, hidden, 1 + n_in), (2, hidden, 1 + hidden), (2, 1, 1 + hidden)]
        self.flat, self.weights = flat_weights(shapes, device)
        init_uniform_(self.weights)
        self.target_flat, self.target_weights = flat_weights(shapes, device)
        self.target_flat.copy_(self.flat)
        self.flat.grad, self.grads = flat_weights(shapes, device)
        self.h1, self.h2 = (torch.ones(2, 1 + hidden, batch_size, device=device) for _ in range(2))
        self.g1, self.g2 = (torch.empty(2, hidden, batch_size, device=device) for _ in range(2))

    def forward(self, x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        """q = W3 [1; relu(W2 [1; relu(W1 x)])], both critics at once: [2, batch]."""
        w1, w2, w3 = weights
        torch.bmm(w1, x.expand(2, -1, -1), out=self.h1[:, 1:]).relu_()
        torch.bmm(w2, self.h1, out=self.h2[:, 1:]).relu_()
        return torch.bmm(w3, self.h2).squeeze(1)

    def backward(self, g_q: torch.Tensor) -> None:
        """From dL/dq to dL/d(pre-activations): g2 = W3' g_q where h2 > 0, g1 = W2' g2 where h1 > 0."""
        _, w2, w3 = self.weights
        torch.mul(w3[:, :, 1:].mT, g_q.unsqueeze(1), out=self.g2)
        torch.ops.aten.threshold_backward.grad_input(self.g2, self.h2[:, 1:], 0, grad_input=self.g2)
        torch.bmm(w2[:, :, 1:].mT, self.g2, out=self.g1)
        torch.ops.aten.threshold_backward.grad_input(self.g1, self.h1[:, 1:], 0, grad_input=self.g1)


def critic_step(critic: TwinCritic, optimizer, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step down sum_i mean((Q_i(x) - y)^2); returns both critics' values and losses before the step."""
    q = critic.forward(x, critic.weights)
    error = q - y
    g_q = error * (2 / y.shape[0])
    critic.backward(g_q)
    d1, d2, d3 = critic.grads
    torch.bmm(critic.g1, x.expand(2, -1, -1).mT, out=d1)
    torch.bmm(critic.g2, critic.h1.mT, out=d2)
    torch.bmm(g_q.unsqueeze(1), critic.h2.mT, out=d3)
    optimizer.step()
    return q, error.square().mean(1)


def squash(h, noise, actor) -> tuple[torch.Tensor, torch.Tensor, tuple]:
    """Action and log-probability of a tanh-squashed Gaussian whose mean and raw log-std are the halves of h."""
    mean, raw = h.chunk(2)
    t = raw.tanh()
    log_std = actor.log_std_min + actor.half_range * (t + 1)
    step = log_std.exp() * noise
    y = (mean + step).tanh()
    slope = actor.scale * (1 - y * y)  # da/dx for a = scale tanh(x) + bias
    log_pi = (-0.5 * noise * noise - log_std - (slope + 1e-6).log() - 0.5 * math.log(2 * math.pi)).sum(0)
    return torch.addcmul(actor.bias, actor.scale, y), log_pi, (t, step, y, slope)


def squash_backward(g_action: torch.Tensor, g_log_pi: float, cache: tuple, actor) -> torch.Tensor:
    """From dL/da and dL/dlog_pi (the same for every state) to dL/dh, with x = mean + std noise:

    dlog_pi/dx = 2 y slope / (slope + 1e-6),  dlog_pi/dlog_std = dlog_pi/dx std noise - 1.
    """
    t, step, y, slope = cache
    g_x = slope * (g_action + (2 * g_log_pi) * y / (slope + 1e-6))
    g_raw = (g_x * step - g_log_pi) * (actor.half_range * (1 - t * t))
    return torch.cat((g_x, g_raw))


class Actor:
    """M affine experts and an affine router (Eq. 1-2); an expert's heads are its mean and its raw log-std."""

    def __init__(self, n_s: int, n_a: int, args: Args, action_space: gym.spaces.Box, device: torch.device):
        self.n_s, self.n_a, self.n_experts, self.top_k = n_s, n_a, args.n_experts, args.top_k
        self.one_hot, self.balance_coef = args.gate == "one-hot", args.balance_coef
        self.log_std_min, self.half_range = args.log_std_min, (args.log_std_max - args.log_std_min) / 2
        shape = (self.n_experts * (1 + 2 * n_a), 1 + n_s)
        self.flat, (self.weight,) = flat_weights([shape], device)  # the router's M rows, then 2 n_a rows per expert
        self.flat.grad, (self.grad,) = flat_weights([shape], device)
        init_uniform_([self.weight])
        low, high = (torch.tensor(bound, device=device).unsqueeze(1) for bound in (action_space.low, action_space.high))
        self.scale, self.bias = ((high - low) / 2).to(self.flat), ((high + low) / 2).to(self.flat)

    def forward(self, s: torch.Tensor, noise: Optional[torch.Tensor] = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Both heads of the gated experts [2 n_a, batch], and the expert with the highest score."""
        out = self.weight @ s
        logits, heads = out[: self.n_experts], out[self.n_experts :].view(self.n_experts, 2 * self.n_a, -1)
        noisy = logits if noise is None else logits + noise
        p = noisy.softmax(0)
        top, chosen = noisy.max(0, keepdim=True) if self.top_k == 1 else noisy.topk(self.top_k, 0)  # Eq. 2
        w = p.gather(0, chosen)
        w = w / w.sum(0) if self.one_hot else w
        picked = heads.gather(0, chosen.unsqueeze(1).expand(-1, 2 * self.n_a, -1))
        self.cache = s, logits, p, top[-1], chosen, w, picked
        return (w.unsqueeze(1) * picked).sum(0), chosen[0]  # Eq. 1

    def backward(self, g_h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradient of loss + lambda (f_imp + f_load) from dL/dh; returns f_imp and f_load.

        Straight through the gate: dh/dw_m = head_m for the chosen, and dw/dp = 1 whether or not w is normalised.
        """
        s, logits, p, tau, chosen, w, picked = self.cache
        f_imp, f_load, g_imp, g_gap = load_balance_losses(logits, p, tau)
        g_out = torch.zeros(self.weight.shape[0], s.shape[1], device=s.device)
        g_logits, g_heads = g_out[: self.n_experts], g_out[self.n_experts :].view(self.n_experts, 2 * self.n_a, -1)
        g_heads.scatter_(0, chosen.unsqueeze(1).expand(-1, 2 * self.n_a, -1), w.unsqueeze(1) * g_h)
        g_p = (self.balance_coef * g_imp).unsqueeze(1).expand_as(p)
        g_p = g_p.scatter_add(0, chosen, (picked * g_h).sum(1))
        torch.mul(p, g_p - (p * g_p).sum(0), out=g_logits)  # through the softmax
        g_logits.add_(g_gap, alpha=self.balance_coef)  # Load_m depends on logit_m and, through tau,
        g_logits.scatter_add_(0, chosen[-1:], -self.balance_coef * g_gap.sum(0, keepdim=True))  # on the k-th largest
        torch.mm(g_out, s.T, out=self.grad)
        return f_imp, f_load

    def router_noise(self, batch_size: int) -> torch.Tensor:
        """epsilon ~ N(0, 1/M^2) for every state and expert, in the actor's update only."""
        return torch.randn(self.n_experts, batch_size, device=self.flat.device).div_(self.n_experts)

    def counts(self) -> tuple[int, int]:
        """N_act and N_tot: what one decision uses, and what there is."""
        return (self.n_experts + 2 * self.n_a) * (1 + self.n_s), self.flat.numel()

    def describe(self) -> str:
        active, total = self.counts()
        return f"SMoSE, {self.n_experts} experts, N_act {active} (N_tot {total})"

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights under the names that actor.safetensors gives them."""
        heads = self.weight[self.n_experts :].view(self.n_experts, 2, self.n_a, 1 + self.n_s)
        layers = {"router": self.weight[: self.n_experts], "experts.mean": heads[:, 0], "experts.log_std": heads[:, 1]}
        return affine_tensors(layers, self)

    def metadata(self, args: Args) -> dict[str, str]:
        names = {"n_experts": str(args.n_experts), "top_k": str(args.top_k), "gate": args.gate}
        return {"format": "smose-actor", **names}


def load_balance_losses(logits: torch.Tensor, p: torch.Tensor, tau: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """f_imp (Eq. 3), f_load (Eq. 4), df_imp/dp per expert and df_load/dlogits [M, batch] at fixed tau.

    Imp_m = sum_s p_m,  Load_m = sum_s Phi(M (logit_m - tau)),  Phi'(z) = exp(-z^2/2) / sqrt(2 pi).
    """
    m = logits.shape[0]
    gap = m * (logits - tau)
    f_imp, g_imp = half_squared_variation(p.sum(1))
    f_load, g_load = half_squared_variation(torch.special.ndtr(gap).sum(1))
    g_gap = (gap * gap).mul_(-0.5).exp_() * (g_load * (m / math.sqrt(2 * math.pi))).unsqueeze(1)
    return f_imp, f_load, g_imp, g_gap


def half_squared_variation(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f = 1/2 (std/mean)^2 and df/dv_m = ((v_m - mean)/mean^2 - var/mean^3) / M; std over the M experts, as V-MoE's."""
    mean = v.mean()
    centred = v - mean
    f = 0.5 * (centred / mean).square().mean()
    return f, (centred / mean - 2 * f) / (mean * v.shape[0])


def affine_tensors(layers: dict[str, torch.Tensor], actor) -> dict[str, torch.Tensor]:
    """Split [bias | weight] layers for saving, and add the action's scale and bias."""
    parts = {}
    for name, layer in layers.items():
        parts[f"{name}.weight"], parts[f"{name}.bias"] = layer[..., 1:], layer[..., 0]
    parts |= {"action_scale": actor.scale[:, 0], "action_bias": actor.bias[:, 0]}
    return {name: part.detach().to("cpu", torch.float32, copy=True).contiguous() for name, part in parts.items()}


class Learner:
    """Actor, critics, their optimizers and the entropy coefficient: SAC's update."""

    def __init__(self, args: Args, n_s: int, n_a: int, action_space: gym.spaces.Box, device: torch.device):
        self.args, self.n_s, self.n_a = args, n_s, n_a
        self.actor = Actor(n_s, n_a, args, action_space, device)
        self.critic = TwinCritic(n_s + n_a, args.batch_size, device)
        self.actor_optimizer = torch.optim.Adam([self.actor.flat], lr=args.policy_lr, fused=True)
        self.q_optimizer = torch.optim.Adam([self.critic.flat], lr=args.q_lr, fused=True)
        self.log_alpha, self.alpha_adam = 0.0, (0.0, 0.0, 0)  # plain floats: a tensor of one number costs far more
        self.alpha = 1.0 if args.autotune else args.alpha

    def explore(self, s: torch.Tensor) -> tuple[np.ndarray, int]:
        """A random action for the one state in s, and the expert that chose it."""
        h, expert = self.actor.forward(s)
        action, _, _ = squash(h, torch.randn(self.n_a, 1, device=s.device), self.actor)
        return action[:, 0].cpu().numpy(), int(expert)

    def update_critics(self, replay: Replay) -> tuple[torch.Tensor, torch.Tensor]:
        """y = r + gamma (1 - terminated) (min_i Q_i'(s', a') - alpha log pi(a'|s')); a truncation bootstraps."""
        reward, terminated = replay.sample()
        h, _ = self.actor.forward(replay.next_s)
        noise = torch.randn(self.n_a, len(reward), device=h.device)
        replay.next_x[1 + self.n_s :], log_pi, _ = squash(h, noise, self.actor)
        next_q = self.critic.forward(replay.next_x, self.critic.target_weights).amin(0)
        y = reward + self.args.gamma * (1 - terminated) * (next_q - self.alpha * log_pi)
        return critic_step(self.critic, self.q_optimizer, replay.x, y)

    def update_actor(self, replay: Replay) -> tuple[float, torch.Tensor, tuple]:
        """One step down mean(alpha log pi - min_i Q_i) + lambda (f_imp + f_load), and alpha's towards its entropy."""
        batch_size = replay.x.shape[1]
        h, _ = self.actor.forward(replay.s, self.actor.router_noise(batch_size))
        noise = torch.randn(self.n_a, batch_size, device=h.device)
        replay.x[1 + self.n_s :], log_pi, cache = squash(h, noise, self.actor)
        q = self.critic.forward(replay.x, self.critic.weights)
        lower = q[0] < q[1]
        self.critic.backward(torch.stack((lower, ~lower)) * (-1 / batch_size))  # only the smaller Q counts
        g_action = torch.bmm(self.critic.weights[0][:, :, 1 + self.n_s :].mT, self.critic.g1).sum(0)
        balance = self.actor.backward(squash_backward(g_action, self.alpha / batch_size, cache, self.actor))
        self.actor_optimizer.step()
        mean_log_pi = log_pi.mean().item()
        if self.args.autotune:  # dL/dlog_alpha for L = -alpha (log pi + target entropy), target entropy -n_a; Adam
            gradient = -self.alpha * (mean_log_pi - self.n_a)
            m, v, t = self.alpha_adam
            m, v, t = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2, t + 1
            self.log_alpha -= self.args.alpha_lr * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
            self.alpha, self.alpha_adam = math.exp(self.log_alpha), (m, v, t)
        return mean_log_pi, q, balance

    def update_targets(self) -> None:
        self.critic.target_flat.lerp_(self.critic.flat, self.args.tau)

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor that an update reads, by reference."""
        tensors = {"critic": self.critic.flat, "target": self.critic.target_flat, "actor": self.actor.flat}
        for name, optimizer in (("critic", self.q_optimizer), ("actor", self.actor_optimizer)):
            for key, value in optimizer.state[tensors[name]].items():
                tensors[f"{name}.{key}"] = value
        return tensors

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, optimizer in (("critic", self.q_optimizer), ("actor", self.actor_optimizer)):
            keys = [key for key in tensors if key.startswith(f"{name}.")]
            optimizer.state[self.state()[name]] = {key.split(".")[1]: tensors[key].clone() for key in keys}
        for name, tensor in self.state().items():
            tensor.copy_(tensors[name])


class Rollout:
    """The environment in use, and what it takes to bring it back to this very step."""

    def __init__(self, env: gym.Env, seed: int):
        self.env, self.episode, self.simulator = env, 0, None
        self.env.reset(seed=seed)
        if isinstance(getattr(env.unwrapped, "model", None), mujoco.MjModel):
            # the solver's warm start is part of the state: positions and velocities alone do not bring it back
            self.simulator = (env.unwrapped.model, env.unwrapped.data)
            size = mujoco.mj_stateSize(env.unwrapped.model, mujoco.mjtState.mjSTATE_INTEGRATION)
            self.before = np.zeros(size)
        self.action = np.zeros(env.action_space.shape, np.float32)
        self.reset()

    def reset(self) -> None:
        self.rng_at_reset = self.rng()
        self.obs = self.env.reset()[0].astype(np.float32)
        self.episode, self.episode_return, self.episode_length = self.episode + 1, 0.0, 0

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        if self.simulator:
            mujoco.mj_getState(*self.simulator, self.before, mujoco.mjtState.mjSTATE_INTEGRATION)
        self.action = action
        obs, reward, terminated, truncated, _ = self.env.step(action.astype(self.env.action_space.dtype))
        self.episode_return += float(reward)
        self.episode_length += 1
        return np.asarray(obs, np.float32), float(reward), bool(terminated), bool(truncated)

    def rng(self) -> dict:
        return self.env.unwrapped.np_random.bit_generator.state

    def state(self) -> tuple[dict[str, torch.Tensor], dict]:
        tensors = {"env.obs": torch.from_numpy(self.obs), "env.action": torch.from_numpy(self.action)}
        if self.simulator:
            tensors["env.before"] = torch.from_numpy(self.before)
        names = ("episode", "episode_return", "episode_length", "rng_at_reset")
        return tensors, {"rng": self.rng(), **{name: getattr(self, name) for name in names}}

    def restore(self, tensors: dict[str, torch.Tensor], values: dict) -> bool:
        """Back to a saved step: reset as then, and take the last step again, which also brings back what a step
        leaves behind (Reacher's reward reads old body positions). False, in a new episode, where that can't be done.
        """
        self.episode, generator = values["episode"], self.env.unwrapped.np_random.bit_generator
        if self.simulator:
            generator.state = self.rng_at_reset = values["rng_at_reset"]
            obs = self.env.reset()[0]
            if values["episode_length"]:
                self.before, self.action = tensors["env.before"].numpy(), tensors["env.action"].numpy()
                mujoco.mj_setState(*self.simulator, self.before, mujoco.mjtState.mjSTATE_INTEGRATION)
                obs = self.env.step(self.action.astype(self.env.action_space.dtype))[0]
                self.env.set_wrapper_attr("_elapsed_steps", values["episode_length"], force=False)
            generator.state = values["rng"]
            self.obs = obs.astype(np.float32)
            self.episode_return, self.episode_length = values["episode_return"], values["episode_length"]
            if np.array_equal(self.obs, tensors["env.obs"].numpy()):
                return True
        generator.state = values["rng"]
        self.reset()
        return False


def evaluate(args: Args, actor: Actor, episodes: int, stop: list, video: Optional[Path] = None) -> Optional[dict]:
    """The deterministic policy (clean router, mean action) on fixed episode seeds; None if a signal came in between."""
    env = make_env(args.env_id, "rgb_array" if video else None)
    s = torch.ones(1 + actor.n_s, 1, device=actor.flat.device)
    returns, lengths, usage, switches, frames = [], [], np.zeros(actor.n_experts), 0, []
    for episode in range(episodes):
        obs, _ = env.reset(seed=EVAL_SEED + episode)
        total, length, last, done = 0.0, 0, None, False
        while not done:
            if video and episode == 0:
                try:
                    frames.append(env.render())
                except Exception as error:  # no GL: everything but the video goes on
                    print(f"no video: cannot render ({error}); try MUJOCO_GL=egl or MUJOCO_GL=osmesa", file=sys.stderr)
                    video, args.capture_video = None, False
            s[1:, 0] = torch.from_numpy(obs.astype(np.float32))
            h, expert = actor.forward(s)
            action = torch.addcmul(actor.bias, actor.scale, h[: actor.n_a].tanh())[:, 0].cpu().numpy()
            obs, reward, terminated, truncated, _ = env.step(action.astype(env.action_space.dtype))
            total, length, done = total + float(reward), length + 1, terminated or truncated
            if actor.n_experts:
                usage[int(expert)] += 1
                switches += last not in (None, int(expert))
                last = int(expert)
        returns.append(total)
        lengths.append(length)
        if stop:
            return None
    if frames and video:
        import imageio

        video.parent.mkdir(exist_ok=True)
        imageio.mimsave(video, frames, fps=env.metadata.get("render_fps", 30), macro_block_size=1)
    env.close()
    result = {"returns": returns, "lengths": lengths, "mean": float(np.mean(returns)), "std": float(np.std(returns))}
    if actor.n_experts:
        result |= {"expert_usage": (usage / usage.sum()).tolist(), "switches_per_100_steps": 100 * switches / sum(lengths)}
    return result


@contextlib.contextmanager
def whole(path: Path):
    """A name to write to; what is written there becomes `path` whole, or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        with open(part, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, content: dict) -> None:
    with whole(path) as part:
        part.write_text(json.dumps(content, indent=2) + "\n")


def versions() -> dict[str, str]:
    packages = {module.__name__: module.__version__ for module in (torch, gym, mujoco, np)}
    return {"python": platform.python_version(), **packages}


def save_actor(path: Path, actor: Actor, args: Args, step: int) -> None:
    about = {"env_id": args.env_id, "seed": str(args.seed), "steps": str(step), "args": json.dumps(asdict(args))}
    with whole(path) as part:
        save_file(actor.tensors(), part, {**actor.metadata(args), **about, "versions": json.dumps(versions())})


def save_checkpoint(run: Path, learner: Learner, rollout: Rollout, replay: Replay, values: dict) -> None:
    """All that --resume needs besides the replay file, in one safetensors file."""
    tensors, env_values = rollout.state()
    tensors |= learner.state() | {"rng": torch.get_rng_state()}
    if learner.actor.flat.is_cuda:
        tensors["cuda_rng"] = torch.cuda.get_rng_state()
    if not all(tensors[name].isfinite().all() for name in ("actor", "critic")):
        raise UserError(f"weights are not finite at step {values['global_step']}; the last checkpoint is kept in {run}")
    values = {**values, "log_alpha": learner.log_alpha, "alpha_adam": learner.alpha_adam, "env": env_values}
    replay.table.flush()
    with whole(run / "checkpoint.safetensors") as part:
        save_file(tensors, part, {"global_step": str(values["global_step"]), "state": json.dumps(values)})


def load_checkpoint(run: Path, learner: Learner, rollout: Rollout, replay: Replay) -> dict:
    """Put everything back as it was; returns the loop's own values."""
    try:
        with safe_open(run / "checkpoint.safetensors", "pt") as file:
            tensors, values = {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["state"])
        learner.load_state(tensors)
        torch.set_rng_state(tensors["rng"])
        if learner.actor.flat.is_cuda:
            torch.cuda.set_rng_state(tensors["cuda_rng"])
        learner.log_alpha, learner.alpha_adam = values["log_alpha"], tuple(values["alpha_adam"])
        learner.alpha = math.exp(learner.log_alpha) if learner.args.autotune else learner.args.alpha
        replay.count = values["global_step"]
        if not rollout.restore(tensors, values["env"]):
            print("this environment's state cannot be restored: a new episode starts, and results may differ")
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{run}/checkpoint.safetensors is damaged ({error}); start a new run") from error
    return values


def open_run(args: Args) -> tuple[Path, bool]:
    """The run folder, new or resumed, locked against a second trainer."""
    name = re.sub(r"[/:]", "-", args.env_id)
    run = Path(args.resume) if args.resume else Path("runs") / f"{name}__{args.exp_name}__{args.seed}__{int(time.time())}"
    while not args.resume and run.exists():
        time.sleep(0.1)
        run = run.with_name(f"{run.name.rsplit('__', 1)[0]}__{int(time.time())}")
    run.mkdir(parents=True, exist_ok=True)


def train(args: Args) -> Path:
    """Train as `args` say; returns the run folder."""
    check_args(args)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    env = make_env(args.env_id)
