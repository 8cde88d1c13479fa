"""SMoSE: train a sparse mixture of shallow experts with Soft Actor-Critic, in one file.

    python smose_sac.py --env-id Hopper-v4 --seed 3                        # the paper's settings, 1,000,000 steps
    python smose_sac.py --env-id Swimmer-v4 --gamma 0.999                  # Swimmer needs a longer horizon
    python smose_sac.py --resume runs/Hopper-v4__smose_sac__3__1763251200  # go on after a kill, bit for bit
    for seed in 0 1 2; do python smose_sac.py --env-id Reacher-v4 --seed $seed --total-timesteps 300_000; done

The policy is M affine experts and an affine router that picks one of them per state; the critics are CleanRL's.
Equation numbers are those of Vincze et al., "SMoSE: Sparse Mixture of Shallow Experts for Interpretable Reinforcement
Learning in Continuous Control Tasks", AAAI 2025.

The critics' gradient is written out beside its equations: products then write into buffers that are kept, and nothing
is computed that nobody uses. What is left, many small operations, PyTorch's compiler joins (`fuse`). Batches are
[batch, features]; the rows that networks read, x = [1, s, a], begin with a one, for the bias of the first layer.
"""

import contextlib
import csv
import difflib
import fcntl
import functools
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Optional

import gymnasium as gym
import imageio
import mujoco
import numpy as np
import torch
import tyro
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

EVAL_SEED = 100_000  # episode i of every evaluation starts from env.reset(seed=EVAL_SEED + i)
RUN_FORMAT = "smose-run"
FREE_ON_RESUME = {"resume", "total_timesteps", "track", "wandb_project_name", "wandb_entity", "capture_video"}
INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION  # all that a step depends on, the solver's warm start included
VERSIONS = {"python": sys.version.split()[0]} | {m.__name__: m.__version__ for m in (torch, gym, mujoco, np)}


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


def whole_number(words: list[str]) -> int:
    if not float(words[0]).is_integer():
        raise ValueError(f"{words[0]} is not a whole number")
    return int(float(words[0]))


as_count = {"instance_from_str": whole_number, "is_instance": lambda v: isinstance(v, int)}
as_count |= {"nargs": 1, "metavar": "INT", "str_from_instance": lambda value: [str(value)]}
Count = Annotated[
    int, tyro.constructors.PrimitiveConstructorSpec(**as_count)
]  # 1e6 and 1_000_000 are whole numbers too


@dataclass
class Args:
    env_id: str = "Hopper-v4"
    """any Gymnasium environment with a flat Box observation and a bounded Box action"""
    seed: Count = 0
    """seed of the experiment"""
    total_timesteps: Count = 1_000_000
    """total steps in the environment, warm-up included"""
    exp_name: Optional[str] = None
    """the name of this experiment, part of the run folder's name; smose_sac by default"""
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
    compile: bool = True
    """let PyTorch's compiler join small operations, which needs g++ and python3-dev (CPU only)"""

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
    lowest = {"seed": 0, "learning_starts": 0, "alpha": 1e-9, "log_std_min": -50, "log_std_max": args.log_std_min}
    highest = {"seed": 2**32 - 1, "learning_starts": args.total_timesteps - 1, "n_experts": 4096, "batch_size": 10**6}
    highest |= {"gamma": 1, "tau": 1, "policy_lr": 1, "q_lr": 1, "alpha_lr": 1}
    highest |= {"num_threads": 1024, "checkpoint_every": 10**9, "log_std_max": 50}
    for name, value in asdict(args).items():
        if type(getattr(Args, name)) in (int, float) and type(value) not in (int, float):
            raise UserError(f"{name} is {value!r}, which is no number; mend config.json or start a new run")
        low, high = lowest.get(name, 1 if type(value) is int else 0), highest.get(name, 10**12)
        if type(value) in (int, float) and not low <= value <= high:
            raise UserError(f"--{name.replace('_', '-')} {value} is out of range; give a number from {low} to {high}")
    if args.track and find_spec("wandb") is None:
        raise UserError("--track needs the package wandb; install it with: pip install wandb")


def make_env(env_id: str, render_mode: Optional[str] = None) -> gym.Env:
    """The environment, or one line that says why not."""
    gym.logger.min_level = gym.logger.ERROR  # v4 is meant: no advice to upgrade on every start
    warnings.filterwarnings("ignore", module="glfw")  # one line about a missing GL is enough
    try:
        env = gym.make(env_id, render_mode=render_mode, disable_env_checker=True)
    except Exception as error:
        near = difflib.get_close_matches(env_id, gym.registry.keys(), n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near and env_id not in gym.registry else ""
        reason = next(iter(f"{error}".splitlines()), type(error).__name__).split(" Did you mean")[0]
        raise UserError(f"cannot make environment {env_id!r}: {reason.rstrip('.')}{hint}") from error
    for what, space in (("observations", env.observation_space), ("actions", env.action_space)):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise UserError(f"{env_id} has {what} {space}; this needs a flat vector of numbers (a one-dimensional Box)")
    if not env.action_space.is_bounded():
        raise UserError(f"{env_id} has unbounded actions {env.action_space}; give its Box finite limits")
    return env


class Replay:
    """The last `buffer_size` transitions, in a memory-mapped float32 table that is the run's own file.

    It is a ring with `checkpoint_every` rows to spare: a killed run overwrote nothing that its checkpoint still needs.
    """

    def __init__(self, path: Path, n_s: int, n_a: int, args: Args, device: torch.device, fresh: bool = True):
        ends = np.cumsum([n_s, n_a, n_s, 1, 1, 1]).tolist()  # episodes count from 1, so that 0 marks an unused row
        names = ("obs", "action", "next_obs", "reward", "terminated", "episode")
        self.columns = dict(zip(names, pairwise([0, *ends]), strict=True))
        self.size, self.n_rows, self.count = args.buffer_size, args.buffer_size + args.checkpoint_every, 0
        if fresh:
            np.lib.format.open_memmap(path, "w+", np.float32, (self.n_rows, ends[-1]))
        if not path.exists():
            raise UserError(f"{path} is gone (--no-keep-replay removes it at the end), so this run can't be resumed")
        try:
            np.load(path, mmap_mode="r")  # refuses a file that was cut short; "r+" would fill it with zeros
            self.file = np.load(path, mmap_mode="r+").reshape(self.n_rows, ends[-1])
        except (ValueError, EOFError) as error:
            raise UserError(f"{path} is damaged ({error}); start a new run") from None
        with open(path, "r+b") as file:  # claim the disk now: a full one must not end in a bus error later
            os.posix_fallocate(file.fileno(), self.file.offset, 4 * ends[-1] * min(self.n_rows, args.total_timesteps))
        self.table = self.file.view(np.ndarray)  # the same memory without memmap's slow indexing
        self.rows = torch.from_numpy(self.table)
        self.steps, self.sampled = torch.empty(args.batch_size).long(), self.rows.new_empty(args.batch_size, ends[-1])
        self.batch = self.sampled.to(device)  # on the CPU the same memory
        self.reward, self.terminated = self.batch[:, ends[2]], self.batch[:, ends[3]]
        # what the networks read: the rows of x are [1, s, a], those of next_x [1, s', a']
        self.x, self.next_x = (torch.ones(args.batch_size, 1 + n_s + n_a, device=device) for _ in range(2))
        self.s, self.a = self.x[:, : 1 + n_s], self.x[:, 1 + n_s :]
        self.next_s, self.next_a = self.next_x[:, : 1 + n_s], self.next_x[:, 1 + n_s :]
        self.copies = (self.x[:, 1:], self.batch[:, : ends[1]]), (self.next_s[:, 1:], self.batch[:, ends[1] : ends[2]])

    def add(self, row: np.ndarray) -> None:
        self.table[self.count % self.n_rows] = row
        self.count += 1

    def sample(self) -> None:
        """Fill x, next_x (but for a'), reward and terminated with a random batch."""
        self.steps.random_(max(0, self.count - self.size), self.count)
        if self.count > self.n_rows:
            self.steps.remainder_(self.n_rows)
        torch.index_select(self.rows, 0, self.steps, out=self.sampled)
        if self.batch is not self.sampled:
            self.batch.copy_(self.sampled)
        for inputs, columns in self.copies:
            inputs.copy_(columns)


def fuse(*methods: Callable) -> None:
    """Let PyTorch's compiler join the many small operations of these methods into a few loops, at their first calls.

    They are functions of the tensors given to them. Where the compiler fails they stay as they are; a line says so.
    """
    failures = []

    def call_first(method: Callable, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen, start = method, time.time()
        try:
            if not failures:
                copies = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in tensors]
                chosen = compiled(method, copies)  # which calls it, and it may write into what it is given
                chosen(*copies)
                if time.time() - start > 5:
                    print(f"compiled for {time.time() - start:.0f} s, for later runs too", flush=True)
        except Exception as error:  # above all: no C++ compiler
            failures.append(error)
            reason, chosen = next(iter(str(error).splitlines()), type(error).__name__), method
            print(
                f"PyTorch can't compile here, so training is slower; install g++ and python3-dev ({reason})", flush=True
            )
        setattr(method.__self__, method.__name__, chosen)
        return chosen(*tensors)

    for method in methods:
        setattr(method.__self__, method.__name__, functools.partial(call_first, method))


def compiled(function: Callable, tensors: list[torch.Tensor]) -> Callable:
    """The function for tensors of these shapes; torch.compile's wrappers would take longer than the loops inside."""
    from torch._guards import TracingContext, tracing  # what only this needs takes a second to import
    from torch._inductor import compile_fx, config, decomposition
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    graph = make_fx(lambda *inputs: function(*inputs))(*tensors)
    graph = make_fx(functionalize(graph, remove="mutations"), decomposition.select_decomp_table())(*tensors)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with tracing(TracingContext(mode)), config.patch(compile_threads=1, size_asserts=False):
        loops = compile_fx.compile_fx_inner(graph, [mode.from_tensor(t, static_shapes=True) for t in tensors])
    return lambda *inputs: loops([*inputs])


def flat_weights(parts: list[tuple[int, tuple[int, ...]]], device: torch.device) -> tuple[torch.Tensor, list]:
    """One flat tensor for all parts (inputs, shape) of a network, and those, at PyTorch's own random start."""
    sizes = [math.prod(shape) for _, shape in parts]
    flat = torch.empty(sum(sizes), device=device)
    views = [view.view(shape) for view, (_, shape) in zip(flat.split(sizes), parts, strict=True)]
    for view, (n_in, _) in zip(views, parts, strict=True):
        view.uniform_(-1, 1).mul_(n_in**-0.5)
    return flat, views


class Adam:
    """Adam for one flat tensor: PyTorch's fused kernel without an optimizer object's overhead around it."""

    def __init__(self, flat: torch.Tensor, lr: float):
        self.flat, self.m, self.v = flat, torch.zeros_like(flat), torch.zeros_like(flat)
        self.t, self.one = flat.new_zeros(()), flat.new_ones(())  # to add a number makes a tensor of it each time
        self.settings = {"lr": lr, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}

    def step(self) -> None:
        self.t.add_(self.one)
        lists = [self.flat], [self.flat.grad], [self.m], [self.v], [], [self.t]
        torch._fused_adam_(*lists, **self.settings, amsgrad=False, maximize=False)


class TwinCritic:
    """CleanRL's Q_1 and Q_2 (two hidden layers of 256, ReLU) side by side, and their target networks."""

    def __init__(self, n_s: int, n_a: int, args: Args, device: torch.device, hidden: int = 256):
        parts = [(n_s + n_a, (2, 1 + n_s + n_a, hidden)), (hidden, (2, 1, hidden)), (hidden, (2, hidden, hidden))]
        parts += [(hidden, (2, 1, 1)), (hidden, (2, 1, hidden))]  # W1 with its bias in row 0; b2, W2; b3, W3'
        self.flat, self.weights = flat_weights(parts, device)
        self.flat.grad, self.grads = flat_weights(parts, device)
        self.target_flat, self.target_weights = flat_weights(parts, device)
        self.target_flat.copy_(self.flat)
        self.h1, self.z2, self.next_z2 = (torch.empty(2, args.batch_size, hidden, device=device) for _ in range(3))
        # gradients take the place of what is needed no more: the less memory, the more of it stays in the cache
        self.g2, self.g1, (self.own_active, self.own_g2), self.own_g1 = self.z2, self.next_z2, self.next_z2, self.z2[0]
        self.g_action, self.by_critic = (torch.empty(args.batch_size, n_a, device=device) for _ in range(2))
        self.gamma, self.w1_t, self.w2_t = args.gamma, [*self.weights[0][:, -n_a:].mT], [*self.weights[2].mT]

    def forward(self, x: torch.Tensor, weights: list[torch.Tensor], z2: torch.Tensor) -> torch.Tensor:
        """h1 = relu(x W1) and z2 = h1 W2 + b2 of both critics at once: [2, batch, hidden]."""
        w1, b2, w2, _, _ = weights
        torch.bmm(x.expand(2, -1, -1), w1, out=self.h1).relu_()
        return torch.baddbmm(b2, self.h1, w2, out=z2)

    def head(self, z2: torch.Tensor, b3: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
        """q = relu(z2) W3 + b3, [2, batch]"""
        return (z2.relu() * w3).sum(2) + b3[:, 0]

    def td_gradient(self, z2, b3, w3, next_z2, next_b3, next_w3, log_pi, reward, terminated, alpha, db2, db3, d3):
        """q and L_i = mean((Q_i - y)^2); in z2's place g2 = dL/dz2 = dL/dq W3' where z2 > 0; dL/db2, dL/db3, dL/dW3.

        y = r + gamma (1 - terminated) (min_i Q_i'(s', a') - alpha log pi(a'|s')); a truncation bootstraps.
        """
        q, next_q = self.head(z2, b3, w3), self.head(next_z2, next_b3, next_w3)
        y = reward + self.gamma * (1 - terminated) * (next_q.amin(0) - alpha * log_pi)
        error = q - y
        g_q = (error * (2 / len(y))).unsqueeze(2)
        g2 = torch.ops.aten.threshold_backward(g_q * w3, z2, 0)
        for gradient, terms in ((d3, g_q * z2.relu()), (db3, g_q), (db2, g2)):
            torch.sum(terms, 1, True, out=gradient)
        z2.copy_(g2)
        return q, error.square().mean(1)

    def backward(self, replay: Replay, next_log_pi: torch.Tensor, alpha: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The gradient of L_1 + L_2: g1 = g2 W2' where h1 > 0, dL/dW2 = h1' g2 and dL/dW1 = x' g1; returns q and L."""
        (*_, b3, w3), (*_, next_b3, next_w3), (d1, db2, d2, db3, d3) = self.weights, self.target_weights, self.grads
        next_q = self.forward(replay.next_x, self.target_weights, self.next_z2), next_b3, next_w3
        q = self.forward(replay.x, self.weights, self.z2), b3, w3
        batch = next_log_pi, replay.reward, replay.terminated
        q, losses = self.td_gradient(*q, *next_q, *batch, alpha, db2, db3, d3)
        torch.bmm(self.h1.mT, self.g2, out=d2)
        torch.bmm(self.g2, self.weights[2].mT, out=self.g1)
        torch.ops.aten.threshold_backward.grad_input(self.g1, self.h1, 0, grad_input=self.g1)
        torch.bmm(replay.x.T.expand(2, -1, -1), self.g1, out=d1)
        return q, losses

    def smaller_critic(self, z2, b3, w3, h1, active, g2) -> tuple[torch.Tensor, ...]:
        """q, the states with those first where Q_1 is smaller, and their number; of each state's smaller critic:

        active, whether h1 > 0, as 0 or 1, and g2 = dq/dz2 = W3' where z2 > 0.
        """
        q = self.head(z2, b3, w3)
        second = (q[0] >= q[1]).long()
        states = second.argsort(stable=True)
        critic = second[states]
        rows = states + len(states) * critic
        own_h1, own_z2 = (h.flatten(0, 1).index_select(0, rows) for h in (h1, z2))
        active.copy_(own_h1.sign())
        g2.copy_(own_z2.relu().sign() * w3[:, 0].index_select(0, critic))
        return q, states, len(states) - second.sum()

    def action_gradient(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q and d min_i Q_i / da [batch, n_a]: each state goes back through its smaller critic only."""
        z2 = self.forward(x, self.weights, self.z2)
        q, states, n_first = self.smaller_critic(z2, *self.weights[3:], self.h1, self.own_active, self.own_g2)
        sizes = [n_first.item()]
        sizes.append(len(states) - sizes[0])
        own_g1 = self.own_g1.split(sizes)
        for g2, w2, g1 in zip(self.own_g2.split(sizes), self.w2_t, own_g1, strict=True):
            torch.mm(g2, w2, out=g1)
        self.own_g1.mul_(self.own_active)
        for g1, w1, gradient in zip(own_g1, self.w1_t, self.by_critic.split(sizes), strict=True):
            torch.mm(g1, w1, out=gradient)
        return q, self.g_action.index_copy_(0, states, self.by_critic)


class SquashedGaussian:
    """What any actor does with its mean and raw log-std: a = scale tanh(mean + std noise) + bias, as in CleanRL."""

    def __init__(self, n_s: int, n_a: int, n_experts: int, args: Args, space: gym.spaces.Box, device: torch.device):
        self.n_s, self.n_a, self.n_experts = n_s, n_a, n_experts
        self.log_std_min, self.half_range = args.log_std_min, (args.log_std_max - args.log_std_min) / 2
        self.np_scale, self.np_bias = (((space.high + sign * space.low) / 2).astype(np.float32) for sign in (-1, 1))
        self.scale, self.bias = (torch.tensor(v, device=device).unsqueeze(1) for v in (self.np_scale, self.np_bias))
        self.row = torch.ones(1 + n_s).numpy()  # [1, obs] of the state to act in
        self.rng = np.random.default_rng(args.seed)  # to explore
        self.cpu_noise = torch.empty(n_a + n_experts, args.batch_size)
        self.all_noise = self.cpu_noise.to(device)  # on the CPU the same memory
        self.noise, self.router_noise = self.all_noise.split((n_a, n_experts))
        self.no_noise = torch.zeros_like(self.router_noise)

    def act(self, obs: np.ndarray, explore: bool = False) -> tuple[np.ndarray, Optional[int]]:
        """The action in one state, the mean or to explore a random one, and the expert that chose it."""
        self.row[1:] = obs
        h, expert = self.decide(self.row)
        x = h[: self.n_a]
        if explore:
            log_std = self.log_std_min + self.half_range * (np.tanh(h[self.n_a :]) + 1)
            x = x + np.exp(log_std) * self.rng.standard_normal(self.n_a, np.float32)
        return self.np_scale * np.tanh(x) + self.np_bias, expert

    def draw_noise(self, update: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """noise ~ N(0, 1) for the router, none outside of the actor's update, and for the actions."""
        (self.cpu_noise if update else self.cpu_noise[: self.n_a]).normal_()
        if self.all_noise is not self.cpu_noise:
            self.all_noise.copy_(self.cpu_noise)
        return self.router_noise if update else self.no_noise, self.noise

    def squash(self, h: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """a = scale tanh(x) + bias with x = mean + std noise, and log pi(a); h is the mean and the raw log-std."""
        mean, raw = h.chunk(2)
        log_std = self.log_std_min + self.half_range * (raw.tanh() + 1)
        y = (mean + log_std.exp() * noise).tanh()
        log_density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_pi = log_density - (self.scale * (1 - y.square()) + 1e-6).log()
        return (self.scale * y + self.bias).T, log_pi.sum(0)

    def loss(self, action: torch.Tensor, log_pi: torch.Tensor, q_gradient: torch.Tensor, alpha: torch.Tensor):
        """mean(alpha log pi - min_i Q_i) but for a constant, where min_i Q_i is known by its gradient in the action."""
        return (alpha * log_pi - (q_gradient * action).sum(1)).mean()


class Actor(SquashedGaussian):
    """M affine experts and an affine router (Eq. 1-2); an expert's heads are its mean and its raw log-std."""

    def __init__(self, n_s: int, n_a: int, args: Args, space: gym.spaces.Box, device: torch.device):
        super().__init__(n_s, n_a, args.n_experts, args, space, device)
        if args.top_k > args.n_experts:
            raise UserError(f"--top-k {args.top_k} is above --n-experts {args.n_experts}; lower it")
        self.top_k, self.one_hot = args.top_k, args.gate == "one-hot"
        self.balance_coef, self.loss_names = args.balance_coef, ("importance", "load")
        parts = [(n_s, (self.n_experts, 1 + n_s)), (n_s, (self.n_experts, 2 * n_a, 1 + n_s))]  # biases in column 0
        self.flat, (self.router, self.experts) = flat_weights(parts, device)
        self.flat.grad, (self.g_router, g_experts) = flat_weights(parts, device)
        self.g_experts, self.np_weight = g_experts.flatten(1), self.flat.view(-1, 1 + n_s).cpu().numpy()
        self.n_active, self.n_total = (self.n_experts + 2 * n_a) * (1 + n_s), self.flat.numel()
        self.name, self.title = "smose_sac", f"SMoSE, {self.n_experts} experts"
        self.about = {"format": "smose-actor", "n_experts": str(args.n_experts)}
        self.about |= {"top_k": str(args.top_k), "gate": args.gate}

    def sample(self, s: torch.Tensor, a: torch.Tensor, update: bool = False) -> torch.Tensor:
        """Random actions in the states s, put into a, and their log-probabilities; in an update the router is noisy."""
        noise, logits = self.draw_noise(update), torch.mm(self.router, s.T)
        log_pi, heads = self.draw(logits, s, self.experts, *noise, a)
        self.drawn = logits, heads, s, *noise
        return log_pi

    def gate(self, logits: torch.Tensor, router_noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All probabilities [M, batch], the k-th largest noisy logit, and the chosen and their weights [k, batch]."""
        noisy = logits + router_noise / self.n_experts  # epsilon ~ N(0, 1/M^2)
        p = noisy.softmax(0)
        top, chosen = noisy.max(0, keepdim=True) if self.top_k == 1 else noisy.topk(self.top_k, 0)  # Eq. 2
        w = p.gather(0, chosen)
        if self.one_hot:  # the weights of the chosen sum to 1; straight through: their gradient is that of p
            w = w + (w / w.sum(0) - w).detach()
        return p, top[-1], chosen, w

    def mix(self, w: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        """Eq. 1: mean and raw log-std [2 n_a, batch] from those of the chosen experts."""
        return (w.unsqueeze(2) * heads).sum(0).T

    def draw(self, logits, s, experts, router_noise, noise, a) -> tuple[torch.Tensor, ...]:
        """Put actions into a; returns log pi(a) and the heads [k, batch, 2 n_a] of the chosen, of no other expert."""
        _, _, chosen, w = self.gate(logits, router_noise)
        heads = (experts[chosen] * s.unsqueeze(1)).sum(3)
        action, log_pi = self.squash(self.mix(w, heads), noise)
        a.copy_(action)
        return log_pi, heads

    def loss_gradient(self, logits, heads, s, router_noise, noise, q_gradient, alpha) -> tuple[torch.Tensor, ...]:
        """Of the loss and lambda (f_imp + f_load): dL/dlogits, and for every state the chosen and dL/dW of its weights;

        then mean(log pi), f_imp and f_load.
        """
        logits, heads = logits.detach().requires_grad_(), heads.detach().requires_grad_()
        p, tau, chosen, w = self.gate(logits, router_noise)
        action, log_pi = self.squash(self.mix(w, heads), noise)
        own_losses = load_balance_losses(logits, p, tau)
        loss = self.loss(action, log_pi, q_gradient, alpha) + self.balance_coef * sum(own_losses)
        g_logits, g_heads = torch.autograd.grad(loss, (logits, heads))
        g_experts = (g_heads.unsqueeze(3) * s.unsqueeze(1)).reshape(chosen.numel(), -1).contiguous()
        return g_logits, chosen.flatten(), g_experts, *(value.detach() for value in (log_pi.mean(), *own_losses))

    def backward(self, q_gradient: torch.Tensor, alpha: torch.Tensor) -> list[torch.Tensor]:
        """The gradient in the weights; returns mean(log pi) and the actor's own losses."""
        g_logits, chosen, g_experts, *values = self.loss_gradient(*self.drawn, q_gradient, alpha)
        torch.mm(g_logits, self.drawn[2], out=self.g_router)
        self.g_experts.zero_().index_add_(0, chosen, g_experts)
        return values

    def decide(self, s: np.ndarray) -> tuple[np.ndarray, int]:
        """The same for one state in NumPy, which is quicker there, and the expert with the highest score."""
        out = (self.flat.cpu().numpy().reshape(-1, len(s)) if self.flat.is_cuda else self.np_weight) @ s
        logits, heads = out[: self.n_experts], out[self.n_experts :].reshape(self.n_experts, -1)
        if self.top_k == 1 and self.one_hot:
            return heads[logits.argmax()], int(logits.argmax())
        chosen = logits.argsort()[::-1][: self.top_k]
        p = np.exp(logits - logits.max())
        w = p[chosen] / (p[chosen].sum() if self.one_hot else p.sum())
        return w @ heads[chosen], int(chosen[0])

    def layers(self) -> dict[str, torch.Tensor]:
        """The weights [bias | weight] under the names that actor.safetensors gives them."""
        mean, log_std = self.experts.split(self.n_a, 1)
        return {"router": self.router, "experts.mean": mean, "experts.log_std": log_std}


def load_balance_losses(logits: torch.Tensor, p: torch.Tensor, tau: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """f_imp and f_load (Eq. 3 and 4): 1/2 (std/mean)^2 over the M experts of what each of them gets of a batch.

    Imp_m = sum_s p_m,  Load_m = sum_s Phi(M (logit_m - tau)) with the k-th largest noisy logit tau, as in V-MoE.
    """
    load = 0.5 * (1 + torch.erf((logits - tau) * (len(logits) / math.sqrt(2))))
    return tuple(0.5 * v.var(unbiased=False) / v.mean().square() for v in (p.sum(1), load.sum(1)))


class Learner:
    """SAC's update of the actor, the critics and the entropy coefficient."""

    def __init__(self, args: Args, env: gym.Env, device: torch.device):
        (n_s,), (n_a,) = env.observation_space.shape, env.action_space.shape
        self.args, self.n_s, self.n_a = args, n_s, n_a
        self.actor = Actor(n_s, n_a, args, env.action_space, device)
        self.critic = TwinCritic(n_s, n_a, args, device)
        self.actor_optimizer = Adam(self.actor.flat, args.policy_lr)
        self.q_optimizer = Adam(self.critic.flat, args.q_lr)
        self.alpha_tensor = torch.empty((), device=device)
        if args.compile and device.type == "cpu":
            fuse(self.actor.draw, self.actor.loss_gradient, self.critic.td_gradient, self.critic.smaller_critic)
        self.log_alpha, self.alpha_adam = 0.0 if args.autotune else math.log(args.alpha), (0.0, 0.0, 0)

    @property
    def alpha(self) -> float:
        return math.exp(self.log_alpha)

    def update_critics(self, replay: Replay) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of both critics on a fresh batch; returns their values and losses before it."""
        replay.sample()
        next_log_pi = self.actor.sample(replay.next_s, replay.next_a)
        q, losses = self.critic.backward(replay, next_log_pi, self.alpha_tensor.fill_(self.alpha))
        self.q_optimizer.step()
        return q, losses

    def update_actor(self, replay: Replay) -> tuple[float, torch.Tensor, dict[str, torch.Tensor]]:
        """One step down mean(alpha log pi - min_i Q_i), plus the actor's own losses, and one of alpha."""
        self.actor.sample(replay.s, replay.a, update=True)
        q, q_gradient = self.critic.action_gradient(replay.x)
        values = self.actor.backward(q_gradient, self.alpha_tensor.fill_(self.alpha))
        self.actor_optimizer.step()
        mean_log_pi, own_losses = values[0].item(), dict(zip(self.actor.loss_names, values[1:], strict=True))
        if self.args.autotune:  # Adam down -alpha (log pi + target entropy) in log alpha; the target is -n_a
            gradient = -self.alpha * (mean_log_pi - self.n_a)
            m, v, t = self.alpha_adam
            m, v, t = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2, t + 1
            self.log_alpha -= self.args.alpha_lr * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
            self.alpha_adam = m, v, t
        return mean_log_pi, q, own_losses

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor that an update depends on, by reference."""
        tensors = {"critic": self.critic.flat, "target": self.critic.target_flat, "actor": self.actor.flat}
        for name, adam in (("critic", self.q_optimizer), ("actor", self.actor_optimizer)):
            tensors |= {f"{name}.m": adam.m, f"{name}.v": adam.v, f"{name}.t": adam.t}
        return tensors


class Rollout:
    """The environment in use, and what it takes to bring it back to this very step."""

    def __init__(self, env: gym.Env, seed: int):
        self.env, self.episode, self.action = env, 0, np.zeros(env.action_space.shape, env.action_space.dtype)
        env.reset(seed=seed)
        model = getattr(env.unwrapped, "model", None)
        self.simulator = (model, env.unwrapped.data) if isinstance(model, mujoco.MjModel) else None
        self.before = np.zeros(mujoco.mj_stateSize(model, INTEGRATION) if self.simulator else 0)
        self.reset()

    def reset(self) -> None:
        self.rng_at_reset = self.env.unwrapped.np_random.bit_generator.state
        self.obs = np.asarray(self.env.reset()[0], np.float32)
        self.episode, self.episode_return, self.episode_length = self.episode + 1, 0.0, 0

    def step(self, action: np.ndarray, remember: bool = True) -> tuple[float, bool, bool]:
        if self.simulator and remember:
            mujoco.mj_getState(*self.simulator, self.before, INTEGRATION)
        self.action = action.astype(self.env.action_space.dtype)
        obs, reward, terminated, truncated, _ = self.env.step(self.action)
        self.obs = np.asarray(obs, np.float32)
        self.episode_return, self.episode_length = self.episode_return + float(reward), self.episode_length + 1
        return float(reward), bool(terminated), bool(truncated)

    def state(self) -> tuple[dict[str, torch.Tensor], dict]:
        arrays = {"env.obs": self.obs, "env.action": self.action, "env.before": self.before}
        values = {name: getattr(self, name) for name in ("episode", "episode_return", "episode_length", "rng_at_reset")}
        values["rng"] = self.env.unwrapped.np_random.bit_generator.state
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, values

    def restore(self, tensors: dict[str, torch.Tensor], values: dict) -> bool:
        """Back to a saved step, or False and a new episode where the environment can't be brought back.

        The episode is reset as it was then, and its last step taken again from the state before it: that also brings
        back what a step leaves behind (Reacher-v4's reward reads old body positions).
        """
        generator = self.env.unwrapped.np_random.bit_generator
        generator.state = values["rng_at_reset"] if self.simulator else values["rng"]
        self.reset()
        self.episode = values["episode"] + (not self.simulator)
        if self.simulator and values["episode_length"]:
            mujoco.mj_setState(*self.simulator, tensors["env.before"].numpy(), INTEGRATION)
            self.step(tensors["env.action"].numpy())
            self.env.set_wrapper_attr("_elapsed_steps", values["episode_length"], force=False)
            generator.state = values["rng"]
            self.episode_return, self.episode_length = values["episode_return"], values["episode_length"]
        return np.array_equal(self.obs, tensors["env.obs"].numpy())


def evaluate(args: Args, actor: Actor, episodes: int, stop: list, video: Optional[Path] = None) -> Optional[dict]:
    """The deterministic policy (clean router, mean action) on fixed episode seeds; None if a signal came meanwhile."""
    env = make_env(args.env_id, "rgb_array" if video else None)
    returns, choices, frames = [], [], []
    for episode in range(episodes):
        (obs, _), total, experts, done = env.reset(seed=EVAL_SEED + episode), 0.0, [], False
        while not done:
            if video and episode == 0:
                try:
                    frames.append(env.render())
                except Exception as error:  # no GL: all but the video goes on
                    print(f"no video: {error}; install libegl1 and set MUJOCO_GL=egl", file=sys.stderr, flush=True)
                    args.capture_video, video = False, None
            action, expert = actor.act(obs)
            obs, reward, terminated, truncated, _ = env.step(action.astype(env.action_space.dtype))
            total, done = total + float(reward), terminated or truncated
            experts.append(expert)
        if stop:
            return None
        returns.append(total)
        choices.append(experts)
    if frames:
        video.parent.mkdir(exist_ok=True)
        imageio.mimsave(video, frames, fps=env.metadata.get("render_fps", 30), macro_block_size=1)
    env.close()
    lengths = [len(experts) for experts in choices]
    result = {"returns": returns, "lengths": lengths, "mean": float(np.mean(returns)), "std": float(np.std(returns))}
    if actor.n_experts:
        usage = np.bincount(sum(choices, []), minlength=actor.n_experts) / sum(lengths)
        switches = sum(before != after for experts in choices for before, after in pairwise(experts))
        result |= {"expert_usage": usage.tolist(), "switches_per_100_steps": 100 * switches / sum(lengths)}
    return result


@contextlib.contextmanager
def whole(path: Path):
    """A name to write to; what is written there becomes `path` whole, or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        with open(part, "r+b") as file:
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def save_actor(path: Path, actor: Actor, args: Args, step: int) -> None:
    tensors = {"action_scale": actor.scale[:, 0], "action_bias": actor.bias[:, 0]}
    for name, layer in actor.layers().items():
        tensors |= {f"{name}.weight": layer[..., 1:], f"{name}.bias": layer[..., 0]}
    about = {"env_id": args.env_id, "seed": str(args.seed), "steps": str(step), "args": json.dumps(asdict(args))}
    with whole(path) as part:
        tensors = {name: tensor.cpu().float().contiguous() for name, tensor in tensors.items()}
        save_file(tensors, part, actor.about | about | {"versions": json.dumps(VERSIONS)})


def save_checkpoint(run: Path, learner: Learner, rollout: Rollout, replay: Replay, progress: dict) -> None:
    """All that --resume needs besides the replay file, in one safetensors file."""
    tensors, env_values = rollout.state()
    tensors |= learner.state() | {"rng": torch.get_rng_state()}
    if not (tensors["actor"].isfinite().all() and tensors["critic"].isfinite().all()):
        raise UserError(f"weights are not finite at step {progress['global_step']}; the last checkpoint stays in {run}")
    values = progress | {"log_alpha": learner.log_alpha, "alpha_adam": learner.alpha_adam, "env": env_values}
    values["explore_rng"] = learner.actor.rng.bit_generator.state
    replay.file.flush()
    with whole(run / "checkpoint.safetensors") as part:
        save_file(tensors, part, {"global_step": str(progress["global_step"]), "state": json.dumps(values)})


def load_checkpoint(run: Path, learner: Learner, rollout: Rollout, replay: Replay) -> dict:
    """Put everything back as it was; returns the loop's own progress."""
    try:
        with safe_open(run / "checkpoint.safetensors", "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            values = json.loads(file.metadata()["state"])
        for name, tensor in learner.state().items():
            tensor.copy_(tensors[name])
        learner.log_alpha, learner.alpha_adam = values["log_alpha"], values["alpha_adam"]
        learner.actor.rng.bit_generator.state = values["explore_rng"]
        replay.count = values["global_step"]
        if not rollout.restore(tensors, values["env"]):
            print("this environment's state can't be restored: a new episode starts, so results may differ", flush=True)
        torch.set_rng_state(tensors["rng"])
        return {name: values[name] for name in ("global_step", "best")}
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        what = f"{run}/checkpoint.safetensors is damaged or of another version"
        raise UserError(f"{what} ({error}); start a new run") from error


def open_run(args: Args, actor: Actor, device: torch.device):
    """The run folder, new or resumed, its lock (one trainer at a time) and its replay."""
    name = re.sub("[/:]", "-", f"{args.env_id}__{args.exp_name}__{args.seed}")
    run = Path(args.resume or f"runs/{name}__{int(time.time())}")
    while not args.resume and run.exists():  # two runs of one name within a second
        run = Path(f"runs/{name}__{int(time.time())}")
    run.mkdir(parents=True, exist_ok=True)
    lock = open(run / ".lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh = not (run / "checkpoint.safetensors").exists()
        return run, lock, Replay(run / "replay.npy", actor.n_s, actor.n_a, args, device, fresh)
    except BlockingIOError:
        raise UserError(f"{run} is being trained by another process; wait for it or stop it") from None
    except BaseException:
        if not args.resume:
            shutil.rmtree(run)
        raise


def record_evaluation(args: Args, run: Path, actor: Actor, writer: SummaryWriter, progress: dict) -> None:
    """Evaluate, add a line to evaluations.csv, save the actor, and keep the best."""
    step, path = progress["global_step"], run / "evaluations.csv"
    result = evaluate(args, actor, args.eval_episodes, [], run / f"videos/{step}.mp4" if args.capture_video else None)
    lengths, shares = result["lengths"], result.get("expert_usage", [])
    row = [step, result["mean"], result["std"], np.mean(lengths), np.std(lengths), *shares]
    header = ["step", "return_mean", "return_std", "length_mean", "length_std"]
    earlier = list(csv.reader(path.open()))[1:] if path.exists() else []
    with whole(path) as part, part.open("w", newline="") as file:
        csv.writer(file).writerow([*header, *(f"usage_{m}" for m in range(1, 1 + len(shares)))])
        csv.writer(file).writerows([*(line for line in earlier if int(line[0]) < step), row])
    writer.add_scalar("eval/episodic_return", result["mean"], step)
    save_actor(run / "actor.safetensors", actor, args, step)
    if result["mean"] > progress["best"]:
        progress["best"] = result["mean"]
        save_actor(run / "actor_best.safetensors", actor, args, step)


def show_progress(bar: tqdm, writer: SummaryWriter, step: int, marks: deque, latest: float, shares: list) -> None:
    """The rate and the experts for TensorBoard, the bar on a terminal, a plain line every 10,000 steps elsewhere."""
    marks.append((step, time.time()))
    rate = (step - marks[0][0]) / (marks[-1][1] - marks[0][1])
    for name, value in {
        "charts/SPS": rate,
        **{f"experts/usage_{m}": share for m, share in enumerate(shares, 1)},
    }.items():
        writer.add_scalar(name, value, step)
    said = f"return {latest:.1f}  experts {sum(share > 0 for share in shares)}/{len(shares)}"
    bar.set_postfix_str(said, refresh=False)
    bar.update(step - bar.n)
    if bar.disable and step % 10_000 == 0:
        left = tqdm.format_interval((bar.total - step) / rate)
        print(f"step {step:,}/{bar.total:,}  {rate:.0f} steps/s  {left} left  {said}", flush=True)


def train(args: Args) -> Path:
    """Train as `args` say; returns the run folder."""
    check_args(args)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)
    np.seterr(over="ignore")  # an observation too large for float32 is reported as what it becomes, inf
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    env = make_env(args.env_id)
    rollout, learner = Rollout(env, args.seed), Learner(args, env, device)
    actor, n_a = learner.actor, learner.n_a
    args.exp_name = args.exp_name or actor.name
    run, lock, replay = open_run(args, actor, device)
    progress, latest, experts = {"global_step": 0, "best": -math.inf}, math.nan, deque(maxlen=1000)
    if (run / "checkpoint.safetensors").exists():
        progress = load_checkpoint(run, learner, rollout, replay)
    start = progress["global_step"]
    if start > args.total_timesteps:
        raise UserError(f"{run} has {start} steps already; give --total-timesteps above that to train on")
    if start < args.total_timesteps:
        (run / "evaluation.json").unlink(missing_ok=True)  # it marks a finished run
    config = {"format": RUN_FORMAT, "env_id": args.env_id, "obs_size": actor.n_s, "action_size": n_a}
    config |= {"n_active": actor.n_active, "n_total": actor.n_total, "args": asdict(args) | {"resume": None}}
    with whole(run / "config.json") as part:
        part.write_text(json.dumps(config | {"replay_columns": replay.columns, "versions": VERSIONS}, indent=2) + "\n")
    size = f"{actor.n_s} observations, {n_a} actions; {actor.title}, N_act {actor.n_active} (N_tot {actor.n_total})"
    print(f"{args.env_id}: {size}; {run}", flush=True)
    if args.track:
        import wandb

        who = {"project": args.wandb_project_name, "entity": args.wandb_entity, "name": run.name}
        wandb.init(**who, config=asdict(args), dir=str(run), sync_tensorboard=True)
    writer = SummaryWriter(str(run), purge_step=start + 1 if args.resume else None)
    bar = tqdm(initial=start, total=args.total_timesteps, file=sys.stdout, disable=not sys.stdout.isatty())
    marks = deque([(start, time.time())], maxlen=11)  # of the last 10,000 steps, for the rate
    stop: list[int] = []  # the signals that asked us to leave
    handlers = {n: signal.signal(n, lambda number, _: stop.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        for global_step in range(start, args.total_timesteps):
            step, obs, losses = global_step + 1, rollout.obs, []
            leave = bool(stop)
            checkpoint = leave or step % args.checkpoint_every == 0 or step == args.total_timesteps
            if global_step < args.learning_starts:
                action = actor.np_bias + actor.np_scale * (2 * torch.rand(n_a).numpy() - 1)
            else:
                action, expert = actor.act(obs, explore=True)
                experts.append(expert)
            reward, terminated, truncated = rollout.step(action, remember=checkpoint)
            row = np.concatenate((obs, action, rollout.obs, (reward, terminated, rollout.episode)))
            if not np.isfinite(row).all():
                seen = f"reward {reward}, observations {obs.tolist()} and then {rollout.obs.tolist()}"
                raise UserError(f"{args.env_id} gave {seen} in step {step}; the last checkpoint stays in {run}")
            replay.add(row)
            if terminated or truncated:
                latest = rollout.episode_return
                writer.add_scalar("charts/episodic_return", latest, step)
                writer.add_scalar("charts/episodic_length", rollout.episode_length, step)
                rollout.reset()

            if global_step > args.learning_starts:
                q, q_losses = learner.update_critics(replay)
                losses += q_losses.tolist()
                if global_step % args.policy_frequency == 0:
                    for _ in range(args.policy_frequency):
                        log_pi, q_pi, own_losses = learner.update_actor(replay)
                        losses.append(log_pi)
                    if global_step % 100 == 0:
                        values = {"qf1_loss": q_losses[0], "qf2_loss": q_losses[1], "qf_loss": q_losses.mean()}
                        values |= {"qf1_values": q[0].mean(), "qf2_values": q[1].mean(), "alpha": learner.alpha}
                        values |= {"actor_loss": learner.alpha * log_pi - q_pi.amin(0).mean(), **own_losses}
                        values["alpha_loss"] = -learner.alpha * (log_pi - n_a)
                        for name, value in values.items():
                            writer.add_scalar(f"losses/{name}", float(value), step)
                if global_step % args.target_network_frequency == 0:
                    learner.critic.target_flat.lerp_(learner.critic.flat, args.tau)
                if not math.isfinite(sum(losses)):
                    raise UserError(f"losses are {losses} in step {step}; the last checkpoint stays in {run}")

            progress["global_step"] = step
            if step % args.eval_every == 0 or step == args.total_timesteps:
                record_evaluation(args, run, actor, writer, progress)
            if checkpoint:
                save_checkpoint(run, learner, rollout, replay, progress)
            if step % 1000 == 0:
                shares = [experts.count(m) / max(1, len(experts)) for m in range(actor.n_experts)]
                show_progress(bar, writer, step, marks, latest, shares)
            if leave:
                break
        result = None if stop else evaluate(args, actor, args.final_eval_episodes, stop)
    finally:
        bar.close()
        writer.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if stop:
        again = shlex.join(["python", sys.argv[0], "--resume", str(run)])
        print(f"stopped at step {progress['global_step']}; go on with: {again}", flush=True)
        sys.exit(128 + stop[0])
    about = {"env_id": args.env_id, "seed": args.seed, "steps": args.total_timesteps, "first_eval_seed": EVAL_SEED}
    with whole(run / "evaluation.json") as part:
        part.write_text(json.dumps(about | {"episodes": args.final_eval_episodes} | result, indent=2) + "\n")
    if not args.keep_replay:
        (run / "replay.npy").unlink()
    print(f"{args.final_eval_episodes} episodes: return {result['mean']:.2f} +/- {result['std']:.2f}; all in {run}")
    return run


def parse_args(default: Optional[Args] = None) -> Args:
    """The command line; tyro's framed message becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Args, default=default, description=__doc__)
    except SystemExit as leaving:
        if not leaving.code:
            raise
        rows = [row[2:].rstrip(" │") for row in re.sub(r"\x1b\[[\d;]*m", "", said.getvalue()).splitlines()[1:-1]]
        text = "\n".join(row for row in rows if not row.startswith(" " * 8))  # helptext is indented twice
        parts = [" ".join(part.split()).removeprefix("Error parsing ") for part in re.split("(?m)^[─-]{9,}$", text)]
        told = [part.rstrip(".") for part in parts if not re.match("(Argument|For full) helptext|$", part)]
        raise UserError("; ".join([*told, "see --help"])) from None


def resumed_args(folder: str) -> Args:
    """The settings of the run to resume; a flag given now must say the same, unless it may change."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text())
        if config["format"] != RUN_FORMAT:
            raise UserError(f"{folder} holds a {config['format']}, not a {RUN_FORMAT}; resume it with its own script")
        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in config["args"].items()}
        saved = Args(**settings | {"resume": folder})
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder!r} is not a run folder: there is no config.json in it") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}/config.json is damaged ({error}); start a new run") from None
    if (Path(folder) / "evaluation.json").exists() and not (Path(folder) / "checkpoint.safetensors").exists():
        raise UserError(f"{folder} is finished and has no checkpoint to go on from; start a new run")
    args = parse_args(default=saved)
    for name, now in asdict(args).items():
        then = getattr(saved, name)
        if now != then and name not in FREE_ON_RESUME:
            raise UserError(f"{folder} was trained with {name} {then}, not {now}; leave that flag out")
    return args


def main() -> None:
    try:
        args = parse_args()
        train(args if args.resume is None else resumed_args(args.resume))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (SafetensorError, OSError) as error:
        reason = f"{error.strerror}: {error.filename or 'runs'}" if isinstance(error, OSError) else error
        hint = "free some space or start where you may write; a run's last checkpoint stays, for --resume"
        print(f"error: cannot write ({reason}); {hint}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
