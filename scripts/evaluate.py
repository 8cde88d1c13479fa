"""Deterministic evaluation of saved actors, and a robustness card.

    python scripts/evaluate.py runs/Reacher-v4__smose_sac__1__1700000000
    python scripts/evaluate.py runs/*/actor_best.safetensors --episodes 20 --json evaluation.json
    python scripts/evaluate.py RUN --router trees
    python scripts/evaluate.py RUN --noise 0.01 0.1 --delay 1 2 --mass 0.8 1.2 --friction 0.5 2

A PATH is a run folder (its actor.safetensors is taken) or an actor file, SMoSE or SAC. Episode i starts from
env.reset(seed=100000+i), as in training's own evaluation, so that every row is over the same episodes. The policy is
the deployed one: no noise in the router, the mean action, float32, without PyTorch. With --router trees the expert that
the trees choose acts alone.

The robustness card repeats the episodes under one change at a time, and gives the paired difference to the unchanged
('nominal') episodes with its standard error:
  --noise x     Gaussian noise on every observation, std = x times that observation's own std over the nominal episodes
  --delay d     each action reaches the environment d steps late; the first d actions are the middle of the range
  --mass x      every body's mass and inertia times x (MuJoCo environments only)
  --friction x  every contact friction coefficient times x (MuJoCo environments only)
"""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Optional

import gymnasium as gym
import numpy as np
import tyro
from command_line import UserError, end_on_mistakes, parse_args
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

FIRST_EVAL_SEED = 100_000
gym.logger.min_level = gym.logger.ERROR  # the paper's v4 environments are 'out of date' on purpose


@dataclass
class Args:
    paths: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH...")]
    """run folders or actor files (*.safetensors)"""
    episodes: int = 100
    """number of episodes per row; episode i has seed 100000+i"""
    router: Literal["linear", "trees"] = "linear"
    """who chooses the expert: the trained linear router, or the trees in trees/trees.json beside the actor"""
    env_id: Optional[str] = None
    """another environment than the one the actor was trained on, of the same sizes (Hopper-v5 for Hopper-v4)"""
    noise: tuple[float, ...] = ()
    """sensor noise, as fractions of each observation's std over the nominal episodes"""
    delay: tuple[int, ...] = ()
    """action delays in steps"""
    mass: tuple[float, ...] = ()
    """factors on the mass and inertia of all bodies (MuJoCo)"""
    friction: tuple[float, ...] = ()
    """factors on all contact friction coefficients (MuJoCo)"""
    json: Optional[str] = None
    """write all rows, with every episode's return and length, to this file"""


@dataclass
class Actor:
    path: Path
    format: str
    metadata: dict[str, str]
    weights: dict[str, np.ndarray]

    @property
    def env_id(self) -> str:
        return self.metadata["env_id"]

    @property
    def obs_size(self) -> int:
        first = "router.weight" if self.format == "smose-actor" else "hidden.0.weight"
        return self.weights[first].shape[1]

    @property
    def action_size(self) -> int:
        return self.weights["action_scale"].shape[0]

    @property
    def n_experts(self) -> int:
        return self.weights["router.weight"].shape[0] if self.format == "smose-actor" else 0

    @property
    def top_k(self) -> int:
        return int(self.metadata.get("top_k", 1))

    @property
    def gate(self) -> str:
        return self.metadata.get("gate", "one-hot")

    @property
    def n_hidden(self) -> int:
        return sum(name.startswith("hidden.") and name.endswith(".weight") for name in self.weights)

    @property
    def name(self) -> str:
        return "SMoSE" if self.format == "smose-actor" else f"SAC-{self.metadata.get('size', 'custom')}"


def load_actor(path: str | Path) -> Actor:
    """Reads an actor from a run folder or a safetensors file."""
    path = Path(path)
    file = path / "actor.safetensors" if path.is_dir() else path
    if not file.is_file():
        wrong = "has no actor.safetensors" if path.is_dir() else "not found"
        raise UserError(f"{path} {wrong}; give the folder of a run, or an actor file")
    try:
        with safe_open(str(file), framework="np") as stored:
            metadata = stored.metadata() or {}
            weights = {name: stored.get_tensor(name) for name in stored.keys()}
    except SafetensorError as error:
        raise UserError(f"{file} is not a safetensors file ({error}); give a saved actor") from None
    if metadata.get("format") not in ("smose-actor", "sac-actor"):
        raise UserError(f"{file} is not an actor (its format is {metadata.get('format')}); give actor.safetensors")
    layers = ["router", "experts.mean", "experts.log_std"]
    if metadata["format"] == "sac-actor":
        layers = ["hidden.0", "mean", "log_std"]
    needed = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")} | {"action_scale", "action_bias"}
    lacking = needed - set(weights) | {"env_id", "seed", "steps"} - set(metadata)
    if lacking:
        raise UserError(f"{file} lacks {', '.join(sorted(lacking))}; give an actor that a training has saved")
    if not all(np.isfinite(tensor).all() for tensor in weights.values()):
        raise UserError(f"{file} has weights that are not finite (the training diverged); give another actor")
    return Actor(file, metadata["format"], metadata, weights)


def load_trees(actor: Actor) -> dict:
    """Reads trees/trees.json beside the actor, as distill_trees.py writes it."""
    file = actor.path.parent / "trees" / "trees.json"
    if actor.format != "smose-actor":
        raise UserError(f"{actor.path} is a SAC actor and has no router; leave --router trees out")
    if not file.is_file():
        raise UserError(f"{file} not found; run python distill_trees.py {actor.path.parent} first")
    try:
        trees = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{file} is not JSON ({error}); distill it again") from None
    if len(trees["experts"]) != actor.n_experts:
        raise UserError(f"{file} has {len(trees['experts'])} experts but the actor {actor.n_experts}; distill it again")
    return trees


def tree_probability(nodes: list[dict], obs: list[float]) -> float:
    """The leaf probability that one expert's tree gives to a state; thresholds are doubles, so the state is as well."""
    node = nodes[0]
    while "feature" in node:
        node = nodes[node["left"] if obs[node["feature"]] <= node["threshold"] else node["right"]]
    return node["probability"]


def gate(logits: np.ndarray, top_k: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The top k experts, best first (ties go to the lowest index), and their weights."""
    chosen = np.argsort(-logits, kind="stable")[:top_k]
    p = np.exp(logits - logits.max())
    return chosen, p[chosen] / (p[chosen].sum() if kind == "one-hot" else p.sum())


def affine(weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    """A layer as [bias | weight], so that it is one product with [1; x]."""
    return np.concatenate([weights[f"{name}.bias"][..., None], weights[f"{name}.weight"]], axis=-1)


def make_policy(actor: Actor, trees: Optional[dict] = None) -> Callable[[np.ndarray], tuple[np.ndarray, int]]:
    """The deployed policy: from a float32 observation to the action and the (0-based) expert, -1 for SAC.

    The products are those of the trainers' own evaluation, log-std rows included: in another shape they would round
    differently, and after hundreds of steps the last bit of an action decides where a robot is.
    """
    w, m, n_a = actor.weights, actor.n_experts, actor.action_size
    scale, bias = w["action_scale"], w["action_bias"]
    column = np.ones(1 + actor.obs_size, np.float32)
    if actor.format == "sac-actor":
        first = np.ascontiguousarray(affine(w, "hidden.0").T)
        names = [f"hidden.{i}" for i in range(1, actor.n_hidden)]
        others = [(np.ascontiguousarray(w[f"{name}.weight"].T), w[f"{name}.bias"]) for name in names]
        heads, heads_bias = (np.concatenate([w[f"mean.{part}"], w[f"log_std.{part}"]]) for part in ("weight", "bias"))

        def sac(obs: np.ndarray) -> tuple[np.ndarray, int]:
            column[1:] = obs
            x = np.maximum(column @ first, 0)
            for weight, offset in others:
                x = np.maximum(x @ weight + offset, 0)
            return scale * np.tanh((heads @ x + heads_bias)[:n_a]) + bias, -1

        return sac

    experts = np.concatenate([affine(w, "experts.mean"), affine(w, "experts.log_std")], axis=1)
    layer = np.concatenate([affine(w, "router"), experts.reshape(2 * m * n_a, -1)])

    def smose(obs: np.ndarray) -> tuple[np.ndarray, int]:
        column[1:] = obs
        out = layer @ column
        if trees is None:
            chosen, weights = gate(out[:m], actor.top_k, actor.gate)
        else:
            state = obs.tolist()
            best = np.argmax([tree_probability(tree["nodes"], state) for tree in trees["experts"]])
            chosen, weights = np.array([best]), np.ones(1, np.float32)
        mean = (weights @ out[m:].reshape(m, -1)[chosen])[:n_a]
        return scale * np.tanh(mean) + bias, int(chosen[0])

    return smose


@dataclass(frozen=True)
class Condition:
    """One change of the environment; the default is none."""

    kind: str = "nominal"
    value: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == "nominal" else f"{self.kind} {self.value:g}"


def conditions_of(args: Args) -> list[Condition]:
    """The rows of the card, the nominal one first."""
    rules = {
        "noise": (args.noise, lambda x: x >= 0, "a fraction of 0 or more"),
        "delay": (args.delay, lambda x: x >= 0, "0 steps or more"),
        "mass": (args.mass, lambda x: 0 < x < np.inf, "a factor above 0"),
        "friction": (args.friction, lambda x: 0 <= x < np.inf, "a factor of 0 or more"),
    }
    for kind, (values, allowed, wanted) in rules.items():
        for value in values:
            if not allowed(value):
                raise UserError(f"--{kind} {value:g} makes no sense; give {wanted}")
    return [Condition()] + [Condition(kind, value) for kind, (values, _, _) in rules.items() for value in values]


def make_env(env_id: str, condition: Condition) -> gym.Env:
    """The environment, with its MuJoCo model changed if the condition asks for it."""
    try:
        env = gym.make(env_id)
    except Exception as error:  # a user's own environment may fail in any way
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"cannot make the environment {env_id} ({reason}); is its package installed?") from None
    if condition.kind in ("mass", "friction"):
        import mujoco

        model, data = getattr(env.unwrapped, "model", None), getattr(env.unwrapped, "data", None)
        if not isinstance(model, mujoco.MjModel):
            raise UserError(f"{env_id} is not a MuJoCo environment; leave --mass and --friction out")
        if condition.kind == "friction":
            model.geom_friction *= condition.value
            model.pair_friction *= condition.value
        else:
            model.body_mass *= condition.value
            model.body_inertia *= condition.value
            mujoco.mj_setConst(model, data)  # what MuJoCo derives from the masses follows them
    return env


@dataclass
class Rollouts:
    returns: list[float]
    lengths: list[int]
    obs_std: np.ndarray
    """std of each observation over all steps, as the environment gave them"""
    expert_usage: list[float]
    switches_per_100_steps: float


def rollouts(
    env: gym.Env, actor: Actor, trees: Optional[dict], episodes: int, condition: Condition, sensor_std: np.ndarray
) -> Rollouts:
    """Plays full episodes with the deterministic policy; episode i has seed FIRST_EVAL_SEED + i."""
    policy = make_policy(actor, trees)
    delay = int(condition.value) if condition.kind == "delay" else 0
    noise = condition.value * sensor_std if condition.kind == "noise" else None
    usage = np.zeros(max(actor.n_experts, 1))
    total, total_square = np.zeros(actor.obs_size), np.zeros(actor.obs_size)
    returns, lengths, switches = [], [], 0
    for i in tqdm(range(episodes), desc=f"{actor.env_id} {condition}", leave=False, disable=None):
        rng = np.random.default_rng(FIRST_EVAL_SEED + i)  # the same sensor noise whatever came before
        pending = deque([actor.weights["action_bias"]] * delay)
        obs, _ = env.reset(seed=FIRST_EVAL_SEED + i)
        episode_return, length, last_expert, done = 0.0, 0, None, False
        while not done:
            obs = np.asarray(obs, dtype=np.float64).reshape(-1)
            total += obs
            total_square += obs**2
            seen = obs if noise is None else obs + noise * rng.standard_normal(obs.shape)
            action, expert = policy(seen.astype(np.float32))
            usage[expert] += 1
            switches += last_expert is not None and expert != last_expert
            last_expert = expert
            pending.append(action)
            obs, reward, terminated, truncated, _ = env.step(pending.popleft())
            episode_return += float(reward)
            length += 1
            done = terminated or truncated
        returns.append(episode_return)
        lengths.append(length)
    steps = sum(lengths)
    obs_std = np.sqrt(np.maximum(total_square / steps - (total / steps) ** 2, 0))
    return Rollouts(returns, lengths, obs_std, (usage / steps).tolist(), 100 * switches / steps)


def paired_difference(changed: list[float], nominal: list[float]) -> tuple[float, float]:
    """Mean of the per-episode differences and its standard error (NaN for one episode)."""
    difference = np.asarray(changed) - np.asarray(nominal)
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.nan
    return float(difference.mean()), float(error)


def evaluate(path: str, args: Args) -> list[dict]:
    """All rows of one actor: nominal, then one per change."""
    actor = load_actor(path)
    trees = load_trees(actor) if args.router == "trees" else None
    env_id = args.env_id or actor.env_id
    conditions = conditions_of(args)
    envs = [make_env(env_id, condition) for condition in conditions]  # a wrong flag shows before the first episode
    spaces = envs[0].observation_space, envs[0].action_space
    for space, size, what in zip(spaces, (actor.obs_size, actor.action_size), ("observations", "actions"), strict=True):
        if not isinstance(space, gym.spaces.Box) or np.prod(space.shape) != size:
            raise UserError(f"{actor.path} is for {size} {what} but {env_id} has {space}; give the actor's own env")
    rows, nominal = [], None
    for condition, env in zip(conditions, envs, strict=True):
        result = rollouts(env, actor, trees, args.episodes, condition, nominal.obs_std if nominal else np.zeros(0))
        env.close()
        nominal = nominal or result
        row = {
            "path": str(path),
            "policy": actor.name,
            "router": args.router if actor.n_experts else None,
            "env_id": env_id,
            "seed": int(actor.metadata["seed"]),
            "steps": int(actor.metadata["steps"]),
            "condition": condition.kind,
            "value": None if condition.kind == "nominal" else condition.value,
            "episodes": args.episodes,
            "first_eval_seed": FIRST_EVAL_SEED,
            "returns": result.returns,
            "lengths": result.lengths,
            "mean": float(np.mean(result.returns)),
            "std": float(np.std(result.returns)),
            "length_mean": float(np.mean(result.lengths)),
        }
        if actor.n_experts:
            row |= {"expert_usage": result.expert_usage, "switches_per_100_steps": result.switches_per_100_steps}
        if condition.kind != "nominal":
            row["difference"], row["difference_se"] = paired_difference(result.returns, nominal.returns)
        rows.append(row)
    return rows


def format_rows(rows: list[dict]) -> str:
    """The rows as a table for the terminal."""
    with_card = any("difference" in row for row in rows)
    with_experts = any("expert_usage" in row for row in rows)
    cells = [["actor", "env", "policy", "condition", "return mean", "std", "length"]]
    cells[0] += ["experts used"] * with_experts + ["difference to nominal"] * with_card
    for row in rows:
        router = " (trees)" if row["router"] == "trees" else ""
        condition = str(Condition(row["condition"], row["value"]))
        line = [row["path"], row["env_id"], row["policy"] + router, condition]
        line += [f"{row['mean']:.2f}", f"{row['std']:.2f}", f"{row['length_mean']:.1f}"]
        if with_experts:
            usage = row.get("expert_usage", [])
            line.append(f"{sum(share > 0 for share in usage)} of {len(usage)}" if usage else "")
        if with_card:
            line.append(f"{row['difference']:+.2f} ± {row['difference_se']:.2f}" if "difference" in row else "")
        cells.append(line)
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def main(args: Args) -> None:
    if not args.paths:
        raise UserError("no actor given; give run folders or *.safetensors files")
    if args.episodes < 1:
        raise UserError(f"--episodes {args.episodes} is too few; give 1 or more")
    if args.json and not Path(args.json).parent.is_dir():
        raise UserError(f"--json {args.json}: its folder does not exist; make it first")
    for path in args.paths:
        load_actor(path)  # a mistyped path shows before hours of episodes
    rows = [row for path in args.paths for row in evaluate(path, args)]
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    print(format_rows(rows))
    last_seed = FIRST_EVAL_SEED + args.episodes - 1
    print(f"{args.episodes} episodes per row, seeds {FIRST_EVAL_SEED} to {last_seed}; std over episodes", end="")
    print("; difference paired by episode ± its standard error" if "difference" in rows[-1] else "")


if __name__ == "__main__":
    end_on_mistakes(lambda: main(parse_args(Args, __doc__)))
