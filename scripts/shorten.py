"""The shortest equations that keep most of a trained policy's return.

Leaving small terms out of the printed equations does not work: driven so, most policies fall. Here the remaining terms
are fitted anew. A command's terms come from orthogonal matching pursuit on the states where its expert acts, the
router's from the same pursuit for a softmax: the term with the steepest gradient joins, all are fitted again. Terms go
where they explain most, so that simple equations get few and hard ones many. States that the shortened policy visits
itself are labelled by the real one and added (DAgger). The number of terms is found by search: shorter as long as the
policy, with its numbers rounded as they are printed, keeps the wanted part of the return's distance from doing nothing,
on episodes that nothing was fitted on. Of many tries some pass there by luck, so the shortest is held to the same on
episodes that chose nothing; where it falls short, the next longer one is.
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Optional

import gymnasium as gym
import numpy as np
from command_line import UserError
from equations import idle, returns_of, rounded_actor
from saved_actor import Actor, make_policy, play
from scipy.optimize import minimize
from sklearn.linear_model import orthogonal_mp_gram

FIRST_FIT_SEED = 300_000  # episodes whose states equations are fitted on
FIRST_JUDGED_SEED = 400_000  # episodes that the search goes by
FIRST_CONFIRMED_SEED = 500_000  # episodes that have the last word; the report's are others again
FIT_STATES, ROUND_STATES, JUDGED_STATES = 10_000, 5_000, 60_000
FEWEST_EPISODES, MOST_EPISODES = 5, 300
ROUNDS = 6  # of fitting and playing for one number of terms
ROUTER_STATES = 2_000  # that the router's pursuit looks at, for speed
DECAY = 1e-6  # keeps a router finite whose choice is never in doubt
NEAR_MISS = 0.05  # a few episodes that fall short by no more are worth judging on many


class Size(NamedTuple):
    """Numbers of terms."""

    router: int
    commands: int


@dataclass(frozen=True)
class Task:
    """What a shortened policy is fitted to and held to."""

    actor: Actor
    env: gym.Env
    keep: float
    length: float  # of an episode
    seeds: range  # of the episodes that judge it
    real: float  # mean return on them
    nothing: float

    def on(self, first_seed: int) -> "Task":
        """The same, judged by the episodes from this seed on."""
        seeds = range(first_seed, first_seed + episodes_for(JUDGED_STATES, self.length))
        real, nothing = (float(returns_of(self.env, a, seeds).mean()) for a in (self.actor, idle(self.actor)))
        return replace(self, seeds=seeds, real=real, nothing=nothing)

    def kept(self, returns: np.ndarray) -> float:
        """The part of the real return's distance from doing nothing."""
        return (float(returns.mean()) - self.nothing) / (self.real - self.nothing)

    def judged(self, short: Actor) -> float:
        """The part that a policy keeps on the judging episodes, or on the first third of them if that is too little."""
        third = len(self.seeds) // 3
        returns = returns_of(self.env, short, self.seeds[:third])
        if self.kept(returns) < self.keep - NEAR_MISS:
            return self.kept(returns)
        return self.kept(np.append(returns, returns_of(self.env, short, self.seeds[third:])))


def shorten(actor: Actor, env: gym.Env, keep: float, say: Callable[[str], None] = print) -> Actor:
    """The actor with the fewest terms that the search found; its numbers are those that are printed."""
    if not 0 < keep <= 1:
        raise UserError(f"--keep-return must be above 0 and at most 1, not {keep:g}")
    if actor.top_k > 1 or actor.gate != "one-hot":
        raise UserError(f"{actor.path} mixes experts; only a policy in which one expert acts alone can be shortened")
    states, lengths, _ = visit(env, actor, range(FIRST_FIT_SEED, FIRST_FIT_SEED + FEWEST_EPISODES))
    length = float(np.mean(lengths))
    more = range(FIRST_FIT_SEED + FEWEST_EPISODES, FIRST_FIT_SEED + episodes_for(FIT_STATES, length))
    states = np.concatenate([states, visit(env, actor, more)[0]]) if more else states
    task = Task(actor, env, keep, length, range(0), 0, 0).on(FIRST_JUDGED_SEED)
    if task.real <= task.nothing:
        found = f"{actor.path} returns {task.real:.4g}, no more than doing nothing ({task.nothing:.4g})"
        raise UserError(f"{found}; there is nothing to keep, train it longer")
    size, shorter, trial = whole_size(actor), [], 0
    for shrinks in (Size(1, 1), Size(0, 1), Size(1, 0)):  # both together, then each alone
        step, failed = 0.5, False
        while step < 0.9:
            wanted = Size(*(round(n * step) if shrink else n for n, shrink in zip(size, shrinks, strict=True)))
            if min(wanted) < 1 or wanted == size:
                break
            trial += 1
            found = try_size(task, wanted, states, FIRST_FIT_SEED + 1000 * trial)
            asked = f"{wanted.router} terms in scores, {wanted.commands} in commands"
            if found is None:
                say(f"{asked}: too short")
                failed = True
            else:
                short, states, share = found
                say(f"{asked}: keeps {100 * share:.1f}% of the return, {short.n_read} numbers of {actor.n_read}")
                shorter.append(short)
                size = wanted
            step = step**0.5 if failed else step
    confirmed = task.on(FIRST_CONFIRMED_SEED)
    for short in reversed(shorter):
        share = confirmed.judged(short)
        say(f"{short.n_read} numbers keep {100 * share:.1f}% on {len(confirmed.seeds)} episodes that chose nothing")
        if share >= keep:
            return replace(short, metadata=actor.metadata | {"made_from": json.dumps(actor.identity)})
    raise UserError(f"no shorter equations keep {100 * keep:g}% of the return; lower --keep-return")


def whole_size(actor: Actor) -> Size:
    return Size(actor.weights["router.weight"].size, actor.weights["experts.mean.weight"].size)


def episodes_for(states: int, length: float) -> int:
    return int(np.clip(round(states / length), FEWEST_EPISODES, MOST_EPISODES))


def visit(env: gym.Env, actor: Actor, seeds: range) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The states [T, n_s] of some episodes, and each episode's length and return."""
    policy = make_policy(actor)
    episodes = [list(play(env, policy, seed)) for seed in seeds]
    states = np.array([step.obs for steps in episodes for step in steps], np.float32).astype(np.float64)
    returns = np.array([sum(step.reward for step in steps) for steps in episodes])
    return states, np.array([len(steps) for steps in episodes]), returns


def try_size(task: Task, size: Size, states: np.ndarray, seed: int) -> Optional[tuple[Actor, np.ndarray, float]]:
    """A policy of this size that keeps enough, all states seen and the share it keeps; None if there is none."""
    episodes = episodes_for(ROUND_STATES, task.length)
    for first in range(seed, seed + ROUNDS * episodes, episodes):
        short = fit(task.actor, states, size)
        visited, _, returns = visit(task.env, short, range(first, first + episodes))
        states = np.concatenate([states, visited])
        if task.kept(returns) >= task.keep - NEAR_MISS and (share := task.judged(short)) >= task.keep:
            return short, states, share
    return None


def fit(actor: Actor, states: np.ndarray, size: Size) -> Actor:
    """A policy with so many terms, fitted on these states to what the real policy does there."""
    w = actor.weights
    logits = states @ w["router.weight"].T + w["router.bias"]
    acting = logits.argmax(axis=1)
    commands = np.einsum("tai,ti->ta", w["experts.mean.weight"][acting], states) + w["experts.mean.bias"][acting]
    router, router_bias = w["router.weight"].astype(float), w["router.bias"].astype(float)
    alive = np.bincount(acting, minlength=actor.n_experts) > 0
    if size.router < whole_size(actor).router:
        router[alive], router_bias[alive] = short_router(states, logits[:, alive], size.router)
    # an expert that never acts is a constant that never wins
    router[~alive] = 0
    router_bias[~alive] = (states @ router.T + router_bias)[:, alive].max(axis=1).min() - 1
    mean, mean_bias = short_commands(states, acting, commands, actor.n_experts, size.commands)
    fitted = {
        "router.weight": router,
        "router.bias": router_bias,
        "experts.mean.weight": mean,
        "experts.mean.bias": mean_bias,
    }
    return rounded_actor(replace(actor, weights=w | {key: value.astype(np.float32) for key, value in fitted.items()}))


class Pursued(NamedTuple):
    """An equation with 0, 1, 2 ... terms."""

    weights: np.ndarray  # [k, n_s]
    biases: np.ndarray  # [k]
    errors: np.ndarray  # [k], summed squares


def pursuit(states: np.ndarray, command: np.ndarray) -> Pursued:
    """Orthogonal matching pursuit of a command, the constant apart."""
    n_s, mean, middle = states.shape[1], states.mean(axis=0), command.mean()
    centred, target = states - mean, command - middle
    spread = np.sqrt((centred**2).sum(axis=0))
    varying = np.flatnonzero(spread > 1e-6 * np.sqrt(len(states)))
    weights = np.zeros((1, n_s))
    most = min(len(varying), len(states) - 1)
    if most and target @ target > 1e-9:
        columns = centred[:, varying] / spread[varying]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # it says when it ends early because all is explained
            path = orthogonal_mp_gram(columns.T @ columns, columns.T @ target, n_nonzero_coefs=most, return_path=True)
        path = path.reshape(len(varying), -1)
        weights = np.zeros((path.shape[1] + 1, n_s))
        weights[1:, varying] = (path / spread[varying][:, None]).T
    return Pursued(weights, middle - weights @ mean, ((target[:, None] - centred @ weights.T) ** 2).sum(axis=0))


def short_commands(
    states: np.ndarray, acting: np.ndarray, commands: np.ndarray, m: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [M, n_a, n_s] with n terms in all, and constants [M, n_a]."""
    n_a, n_s = commands.shape[1], states.shape[1]
    nothing = Pursued(np.zeros((1, n_s)), np.zeros(1), np.zeros(1))
    mine = [acting == k for k in range(m)]
    paths = [pursuit(states[own], commands[own, a]) if own.any() else nothing for own in mine for a in range(n_a)]
    lengths = share_out([path.errors for path in paths], n)
    weights = np.array([path.weights[k] for path, k in zip(paths, lengths, strict=True)])
    biases = np.array([path.biases[k] for path, k in zip(paths, lengths, strict=True)])
    return weights.reshape(m, n_a, n_s), biases.reshape(m, n_a)


def share_out(errors: list[np.ndarray], n: int) -> list[int]:
    """How many of n terms each equation gets: the next goes where the coming ones lower the error most, on average."""

    def gain(error: np.ndarray, k: int) -> float:
        return float(((error[k] - error[k + 1 :]) / np.arange(1, len(error) - k)).max(initial=0))

    lengths = [0] * len(errors)
    gains = [gain(error, 0) for error in errors]
    for _ in range(n):
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            break
        lengths[best] += 1
        gains[best] = gain(errors[best], lengths[best])
    return lengths


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def short_router(states: np.ndarray, logits: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights [M, n_s] with n terms in all, and constants [M], whose softmax is near that of these logits [T, M]."""
    some = np.linspace(0, len(states) - 1, min(len(states), ROUTER_STATES)).astype(int)
    mean, spread = states.mean(axis=0), states.std(axis=0)
    spread[spread < 1e-6] = np.inf  # what never varies tells nothing
    x = np.column_stack([(states[some] - mean) / spread, np.ones(len(some))])
    wanted = softmax(logits[some])
    free = np.zeros((logits.shape[1], x.shape[1]), bool)
    free[:, -1] = True

    def filled(values: np.ndarray) -> np.ndarray:
        weights = np.zeros(free.shape)
        weights[free] = values
        return weights

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        p = softmax(x @ filled(values).T)
        entropy = -(wanted * np.log(p + 1e-300)).sum() / len(x)
        return entropy + DECAY * (values @ values), ((p - wanted).T @ x / len(x))[free] + 2 * DECAY * values

    def refitted(weights: np.ndarray, iterations: int) -> np.ndarray:
        return filled(minimize(loss, weights[free], jac=True, method="L-BFGS-B", options={"maxiter": iterations}).x)

    weights = np.zeros(free.shape)
    for _ in range(n):
        p = softmax(x @ weights.T)
        gradient, curvature = (p - wanted).T @ x, (p * (1 - p)).T @ x**2
        promise = np.divide(gradient**2, curvature, out=np.zeros_like(curvature), where=~free & (curvature > 1e-9))
        if promise.max() == 0:
            break
        free.flat[promise.argmax()] = True
        weights = refitted(weights, 5)
    weights = refitted(weights, 200)
    router = weights[:, :-1] / spread
    return router, weights[:, -1] - router @ mean
