"""What every script that reads a saved actor shares: load and check it, act with it, play an episode.

The deployed policy is one arithmetic, that of the trainers' own evaluation, to the last bit: float32 throughout, the
saved tensors as they are, `weight @ state + bias`. After hundreds of steps the last bit of an action decides where a
robot is.
"""

import difflib
import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Optional

import gymnasium as gym
import numpy as np
from command_line import UserError
from safetensors import SafetensorError, safe_open

FIRST_EVAL_SEED = 100_000  # episode i of a final evaluation starts from env.reset(seed=FIRST_EVAL_SEED + i)
LONGEST_EPISODE = 10_000  # steps, where the environment sets no limit itself
LARGEST_WEIGHT = 1e9  # beyond it float32 scores overflow; no training that went well comes near
LARGEST_OBSERVATION = float(np.finfo(np.float32).max)
ENV_ID = r"([A-Za-z_][\w.]*:)?([\w.-]+/)?[\w.-]+"  # Gymnasium's own pattern, ASCII only
PATTERNS = {"env_id": ENV_ID, "seed": r"\d{1,12}", "steps": r"\d{1,15}", "size": "S|M|L|custom"}
Policy = Callable[[np.ndarray], tuple[np.ndarray, int]]


@dataclass(frozen=True)
class Actor:
    """The tensors (float32, finite, of fitting shapes) and the metadata (checked) of an actor file."""

    path: Path
    metadata: dict[str, str]
    weights: dict[str, np.ndarray]

    @property
    def format(self) -> str:
        return self.metadata["format"]

    @property
    def env_id(self) -> str:
        return self.metadata["env_id"]

    @property
    def seed(self) -> int:
        return int(self.metadata["seed"])

    @property
    def steps(self) -> int:
        return int(self.metadata["steps"])

    @property
    def top_k(self) -> int:
        return int(self.metadata.get("top_k", 1))

    @property
    def gate(self) -> str:
        return self.metadata.get("gate", "one-hot")

    @property
    def n_experts(self) -> int:
        """0 for a SAC actor"""
        return len(self.weights["router.weight"]) if self.format == "smose-actor" else 0

    @property
    def obs_size(self) -> int:
        return self.weights["router.weight" if self.n_experts else "hidden.0.weight"].shape[1]

    @property
    def action_size(self) -> int:
        return len(self.weights["action_scale"])

    @cached_property
    def n_hidden(self) -> int:
        return sum(re.fullmatch(r"hidden\.\d+\.weight", name) is not None for name in self.weights)

    @property
    def name(self) -> str:
        return "SMoSE" if self.n_experts else f"SAC-{self.metadata['size']}"

    @cached_property
    def identity(self) -> dict[str, str | int]:
        """What is made from an actor, such as trees, carries this, so that it is never used with another."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return {"file": self.path.name, "sha256": digest, "steps": self.steps}

    @property
    def n_read(self) -> int:
        """Numbers of the deployed policy that are not zero: what there is to read."""
        read = [name for name in self.weights if "log_std" not in name and not name.startswith("action_")]
        return sum(int(np.count_nonzero(self.weights[name])) for name in read)


def load_actor(path: str | Path) -> Actor:
    """Reads an actor from a run folder or a safetensors file; whatever can't be an actor is refused."""
    path = Path(path)
    file = path / "actor.safetensors" if path.is_dir() else path
    if not file.is_file():
        wrong = "has no actor.safetensors" if path.is_dir() else "not found"
        raise UserError(f"{path} {wrong}; give the folder of a run, or an actor file")
    try:
        with safe_open(str(file), framework="np") as stored:
            metadata = stored.metadata() or {}
            weights = {name: stored.get_tensor(name) for name in stored.keys()}
    except (SafetensorError, TypeError, ValueError) as error:
        raise UserError(f"{file} is not a safetensors file ({error}); give a saved actor") from None
    if metadata.get("format") not in ("smose-actor", "sac-actor"):
        raise UserError(f"{file} is not an actor (its format is {metadata.get('format')!r}); give actor.safetensors")
    wrong = what_is_wrong(metadata, weights)
    if wrong:
        raise UserError(f"{file}: {wrong}; give an actor that a training has saved")
    return Actor(file, metadata, weights)


def what_is_wrong(metadata: dict[str, str], weights: dict[str, np.ndarray]) -> Optional[str]:
    """The first thing in an actor file that no training saves, or None."""
    smose = metadata["format"] == "smose-actor"
    for key, pattern in PATTERNS.items():
        value = metadata.get(key)
        if (key != "size" or not smose) and not (value and re.fullmatch(pattern, value, re.ASCII)):
            return f"no actor has the {key} {value!r}"
    for name, tensor in weights.items():
        if tensor.dtype != np.float32:
            return f"{name} is {tensor.dtype}, not float32"
        if not (np.abs(tensor) <= LARGEST_WEIGHT).all():
            return f"{name} holds numbers that are not finite or beyond {LARGEST_WEIGHT:g} (the training diverged)"
    n_a = weights.get("action_scale", np.zeros(0)).size
    if smose:
        m, n_s = (*weights.get("router.weight", np.zeros(0)).shape, 0, 0)[:2]
        shapes: dict[str, tuple[int, ...]] = {"router.weight": (m, n_s), "router.bias": (m,)}
        for head in ("experts.mean", "experts.log_std"):
            shapes |= {f"{head}.weight": (m, n_a, n_s), f"{head}.bias": (m, n_a)}
    else:
        n_hidden = sum(re.fullmatch(r"hidden\.\d+\.weight", name) is not None for name in weights)
        n_s = n_in = (*weights.get("hidden.0.weight", np.zeros(0)).shape, 0, 0)[1]
        shapes = {}
        for i in range(max(1, n_hidden)):
            n_out = weights.get(f"hidden.{i}.bias", np.zeros(0)).size
            shapes |= {f"hidden.{i}.weight": (n_out, n_in), f"hidden.{i}.bias": (n_out,)}
            n_in = n_out
        for head in ("mean", "log_std"):
            shapes |= {f"{head}.weight": (n_a, n_in), f"{head}.bias": (n_a,)}
    shapes |= {"action_scale": (n_a,), "action_bias": (n_a,)}
    lacking = [name for name in shapes if name not in weights]
    if lacking:
        return f"it lacks {lacking[0]}"
    for name, shape in shapes.items():
        if weights[name].shape != shape or 0 in shape:
            return f"{name} has the shape {weights[name].shape}, which fits no policy"
    unknown = sorted(set(weights) - set(shapes))
    if unknown:
        return f"no actor has a tensor {unknown[0]!r}"
    top_k, gate = metadata.get("top_k", "1"), metadata.get("gate", "one-hot")
    if smose and (top_k not in map(str, range(1, m + 1)) or gate not in ("one-hot", "softmax")):
        return f"no policy of {m} experts has top_k {top_k!r} and gate {gate!r}"
    return None


def choose(logits: np.ndarray, top_k: int, gate: str) -> tuple[np.ndarray, np.ndarray]:
    """The top k experts, best first (ties go to the lowest index), and their weights."""
    chosen = np.argsort(-logits, kind="stable")[:top_k]
    p = np.exp(logits - logits.max())
    return chosen, p[chosen] / (p[chosen].sum() if gate == "one-hot" else p.sum())


def make_policy(actor: Actor, route: Optional[Callable[[np.ndarray], int]] = None) -> Policy:
    """The deployed policy: from an observation to the action and the (0-based) expert, -1 for SAC.

    With `route` (such as distilled trees), the expert that it names acts, alone and with weight 1.
    """
    w = actor.weights
    scale, bias = w["action_scale"], w["action_bias"]

    def sac(obs: np.ndarray) -> tuple[np.ndarray, int]:
        x = np.asarray(obs, np.float32)
        for i in range(actor.n_hidden):
            x = np.maximum(w[f"hidden.{i}.weight"] @ x + w[f"hidden.{i}.bias"], 0)
        return scale * np.tanh(w["mean.weight"] @ x + w["mean.bias"]) + bias, -1

    if not actor.n_experts:
        return sac
    router, router_bias = w["router.weight"], w["router.bias"]
    mean, mean_bias = w["experts.mean.weight"], w["experts.mean.bias"]
    one = actor.top_k == 1 and actor.gate == "one-hot"

    def smose(obs: np.ndarray) -> tuple[np.ndarray, int]:
        s = np.asarray(obs, np.float32)
        if one or route:
            m = int(np.argmax(router @ s + router_bias)) if route is None else route(s)
            x = mean[m] @ s + mean_bias[m]
        else:
            chosen, weights = choose(router @ s + router_bias, actor.top_k, actor.gate)
            m, x = int(chosen[0]), weights @ (mean[chosen] @ s + mean_bias[chosen])
        return scale * np.tanh(x) + bias, m

    return smose


def make_env(actor: Actor, env_id: Optional[str] = None, **settings: Any) -> gym.Env:
    """The actor's environment, or another of the same sizes that the command line names.

    An id such as module:Env-v0 imports that module: from an actor file, which may be a stranger's, it does not.
    """
    gym.logger.min_level = gym.logger.ERROR  # the paper's v4 environments are 'out of date' on purpose
    if env_id is None and ":" in actor.env_id:
        raise UserError(
            f"{actor.path} wants to import code for {actor.env_id}; if you trust it: --env-id {actor.env_id}"
        )
    wanted = env_id or actor.env_id
    try:
        env = gym.make(wanted, disable_env_checker=True, **settings)
    except Exception as error:  # a user's own environment may fail in any way
        near = difflib.get_close_matches(wanted, gym.registry.keys(), n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near and wanted not in gym.registry else ""
        reason = next(iter(str(error).splitlines()), type(error).__name__).split(" Did you mean")[0].rstrip(".")
        raise UserError(f"cannot make environment {wanted!r}: {reason}{hint}") from error
    if env.spec.id != wanted.rpartition(":")[2]:  # Gymnasium takes the newest version: another robot than it was
        raise UserError(f"{wanted} names no version; give --env-id {env.spec.id} if you mean that")
    spaces = ("observations", env.observation_space, actor.obs_size), ("actions", env.action_space, actor.action_size)
    for what, space, size in spaces:
        if not isinstance(space, gym.spaces.Box) or space.shape != (size,):
            raise UserError(f"{actor.path} is for {size} {what} but {wanted} has {space}; give the actor's own env")
    return env


class Step(NamedTuple):
    obs: np.ndarray
    """what was seen before the action, as the environment gave it"""
    action: np.ndarray
    expert: int
    reward: float
    terminated: bool
    truncated: bool


def play(env: gym.Env, policy: Policy, seed: int) -> Iterator[Step]:
    """One episode, step by step: until the environment ends it, or 10,000 steps where it sets no limit."""
    limit = None if env.spec and env.spec.max_episode_steps else LONGEST_EPISODE
    try:
        obs = env.reset(seed=seed)[0]
    except Exception as error:  # a user's own environment may fail in any way
        raise UserError(f"the environment failed in reset(seed={seed}) ({error!r})") from error
    for n in itertools.count(1):
        step = f"step {n} of the episode with seed {seed}"
        obs = seen(env, obs, step)
        with np.errstate(all="ignore"):  # an overflow shows in the action
            action, expert = policy(obs)
        if not np.isfinite(action).all():
            raise UserError(f"the action of {step} is not finite: the weights or the observations are too large")
        try:
            after, reward, terminated, truncated, _ = env.step(action.astype(env.action_space.dtype))
            reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        except Exception as error:
            raise UserError(f"the environment failed in {step} ({error!r})") from error
        if not np.isfinite(reward):
            raise UserError(f"the environment gave the reward {reward} in {step}; mend it")
        if n == limit and not (terminated or truncated):
            name, truncated = env.spec.id if env.spec else type(env.unwrapped).__name__, True
            say_once(f"{name} sets no time limit; its episodes are cut after {LONGEST_EPISODE:,} steps")
        yield Step(obs, action, expert, reward, terminated, truncated)
        if terminated or truncated:
            return
        obs = after


def seen(env: gym.Env, obs: Any, step: str) -> np.ndarray:
    """What the environment shows, if it is something that a policy can act on."""
    try:
        obs = np.array(obs, np.float64)  # a copy: an environment may write into its own
    except (TypeError, ValueError) as error:
        raise UserError(f"the environment gave an observation that is no array before {step} ({error})") from None
    if obs.shape != env.observation_space.shape:
        space = env.observation_space.shape
        raise UserError(f"the environment gave an observation of shape {obs.shape}, not {space}, before {step}")
    wrong = np.flatnonzero(~(np.abs(obs) <= LARGEST_OBSERVATION))
    if wrong.size:
        raise UserError(f"the environment gave {obs[wrong[0]]} as obs[{wrong[0]}] before {step}; mend it")
    return obs


@cache
def say_once(note: str) -> None:
    print(f"note: {note}", file=sys.stderr)
