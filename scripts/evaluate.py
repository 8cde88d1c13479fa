"""Deterministic evaluation of saved actors, and a robustness card.

    python scripts/evaluate.py runs/Reacher-v4__smose_sac__1__1700000000
    python scripts/evaluate.py runs/*/actor_best.safetensors --episodes 20 --output evaluations.json
    python scripts/evaluate.py RUN --router trees
    python scripts/evaluate.py RUN --noise 0.01 0.1 --delay 1 2 --mass 0.8 1.2 --friction 0.5 2 \\
        --output RUN/robustness.json

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
Written to robustness.json beside the actor, the card of one policy is shown by interpret.py. An actor whose environment
is an id such as module:Env-v0 is played when --env-id names it, since that imports code.
"""

from command_line import UserError, end_on_mistakes, output_file, parse_args, printable, write_whole

# from here on Ctrl-C is quiet
# isort: split

import json
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Optional

import gymnasium as gym
import numpy as np
import tyro
from saved_actor import FIRST_EVAL_SEED, LONGEST_EPISODE, Actor, Policy, load_actor, make_env, make_policy, play
from saved_trees import chosen_expert, forest_of, read_trees
from tqdm import tqdm

MOST_EPISODES = 1_000_000


@dataclass
class Args:
    paths: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH...")] = ()
    """run folders (their actor.safetensors is read) or *.safetensors files of actors"""
    episodes: int = 100
    """number of episodes per row; episode i has seed 100000+i"""
    router: Literal["linear", "trees"] = "linear"
    """who chooses the expert: the trained linear router, or the trees that distill_trees.py left beside the actor"""
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
    output: Annotated[Optional[str], tyro.conf.arg(aliases=["--json"])] = None
    """write all rows, with every episode's return and length, to this JSON file (for one run, interpret.py shows what
    is in RUN/robustness.json)"""


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
        "noise": (args.noise, lambda x: 0 <= x < np.inf, "a fraction of 0 or more"),
        "delay": (args.delay, lambda x: 0 <= x <= LONGEST_EPISODE, f"0 to {LONGEST_EPISODE} steps"),
        "mass": (args.mass, lambda x: 0 < x < np.inf, "a factor above 0"),
        "friction": (args.friction, lambda x: 0 <= x < np.inf, "a factor of 0 or more"),
    }
    for kind, (values, allowed, wanted) in rules.items():
        for value in values:
            if not allowed(value):
                raise UserError(f"--{kind} {value:g} makes no sense; give {wanted}")
    return [Condition()] + [Condition(kind, value) for kind, (values, _, _) in rules.items() for value in values]


def change_model(env: gym.Env, condition: Condition) -> None:
    """Changes the environment's MuJoCo model if the condition asks for it."""
    if condition.kind not in ("mass", "friction"):
        return
    import mujoco

    model, data = getattr(env.unwrapped, "model", None), getattr(env.unwrapped, "data", None)
    if not isinstance(model, mujoco.MjModel):
        raise UserError(f"{env.spec.id} is not a MuJoCo environment; leave --mass and --friction out")
    if condition.kind == "friction":
        model.geom_friction *= condition.value
        model.pair_friction *= condition.value
    else:
        model.body_mass *= condition.value
        model.body_inertia *= condition.value
        mujoco.mj_setConst(model, data)  # what MuJoCo derives from the masses follows them


def changed(policy: Policy, condition: Condition, seed: int, sensor_std: np.ndarray, middle: np.ndarray) -> Policy:
    """The policy of one episode under noisy sensors or late actions."""
    if condition.kind == "noise":
        rng = np.random.default_rng(seed)  # the same noise whatever came before
        return lambda obs: policy(obs + condition.value * sensor_std * rng.standard_normal(obs.shape))
    if condition.kind != "delay":
        return policy
    pending = deque([middle] * int(condition.value))

    def late(obs: np.ndarray) -> tuple[np.ndarray, int]:
        action, expert = policy(obs)
        pending.append(action)
        return pending.popleft(), expert

    return late


@dataclass
class Rollouts:
    returns: list[float]
    lengths: list[int]
    ended_early: float
    """share of the episodes that terminated"""
    obs_std: np.ndarray
    """std of each observation over all steps, as the environment gave them"""
    expert_usage: list[float]
    switches_per_100_steps: float


def rollouts(
    env: gym.Env, actor: Actor, policy: Policy, episodes: int, condition: Condition, sensor_std: np.ndarray
) -> Rollouts:
    """Plays full episodes with the deterministic policy; episode i has seed FIRST_EVAL_SEED + i."""
    usage = np.zeros(max(actor.n_experts, 1))
    total, total_square = np.zeros(actor.obs_size), np.zeros(actor.obs_size)
    returns, lengths, switches, n_terminated = [], [], 0, 0
    for i in tqdm(range(episodes), desc=f"{actor.env_id} {condition}", leave=False, disable=None):
        seed, episode_return, length, last_expert = FIRST_EVAL_SEED + i, 0.0, 0, None
        acting = changed(policy, condition, seed, sensor_std, actor.weights["action_bias"])
        for step in play(env, acting, seed):
            total += step.obs
            total_square += step.obs**2
            usage[step.expert] += 1
            switches += last_expert is not None and step.expert != last_expert
            last_expert = step.expert
            episode_return += step.reward
            length += 1
        n_terminated += step.terminated
        returns.append(episode_return)
        lengths.append(length)
    n = sum(lengths)
    obs_std = np.sqrt(np.maximum(total_square / n - (total / n) ** 2, 0))
    return Rollouts(returns, lengths, n_terminated / episodes, obs_std, (usage / n).tolist(), 100 * switches / n)


def paired_difference(returns: list[float], nominal: list[float]) -> tuple[float, Optional[float]]:
    """Mean of the per-episode differences and its standard error (None for one episode)."""
    difference = np.asarray(returns) - np.asarray(nominal)
    error = float(difference.std(ddof=1) / np.sqrt(len(difference))) if len(difference) > 1 else None
    return float(difference.mean()), error


def evaluate(path: str, args: Args) -> list[dict]:
    """All rows of one actor: nominal, then one per change."""
    actor = load_actor(path)
    route = partial(chosen_expert, forest_of(read_trees(actor))) if args.router == "trees" else None
    policy = make_policy(actor, route)
    conditions = conditions_of(args)
    envs = [make_env(actor, args.env_id) for _ in conditions]
    for env, condition in zip(envs, conditions, strict=True):
        change_model(env, condition)  # a wrong flag shows before the first episode
    rows, nominal = [], None
    for condition, env in zip(conditions, envs, strict=True):
        result = rollouts(env, actor, policy, args.episodes, condition, nominal.obs_std if nominal else np.zeros(0))
        env.close()
        nominal = nominal or result
        row = {
            "path": str(path),
            "actor": actor.identity,
            "policy": actor.name,
            "router": args.router if actor.n_experts else None,
            "n_read": actor.n_read,
            "env_id": args.env_id or actor.env_id,
            "seed": actor.seed,
            "steps": actor.steps,
            "condition": condition.kind,
            "value": None if condition.kind == "nominal" else condition.value,
            "episodes": args.episodes,
            "first_eval_seed": FIRST_EVAL_SEED,
            "returns": result.returns,
            "lengths": result.lengths,
            "mean": float(np.mean(result.returns)),
            "std": float(np.std(result.returns)),
            "length_mean": float(np.mean(result.lengths)),
            "ended_early": result.ended_early,
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
    cells = [["actor", "env", "policy", "condition", "return mean", "std", "length", "ended early"]]
    cells[0] += ["experts used"] * with_experts + ["difference to nominal"] * with_card
    for row in rows:
        router = " (trees)" if row["router"] == "trees" else ""
        condition = str(Condition(row["condition"], row["value"]))
        line = [row["path"], row["env_id"], row["policy"] + router, condition]
        line += [f"{row['mean']:.2f}", f"{row['std']:.2f}", f"{row['length_mean']:.1f}", f"{row['ended_early']:.0%}"]
        if with_experts:
            usage = row.get("expert_usage", [])
            line.append(f"{sum(share > 0 for share in usage)} of {len(usage)}" if usage else "")
        if with_card:
            error = f" ± {row['difference_se']:.2f}" if row.get("difference_se") is not None else ""
            line.append(f"{row['difference']:+.2f}{error}" if "difference" in row else "")
        cells.append([printable(cell) for cell in line])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def main(args: Args) -> None:
    if not args.paths:
        raise UserError("no actor given; give run folders or *.safetensors files")
    if not 1 <= args.episodes <= MOST_EPISODES:
        raise UserError(f"--episodes {args.episodes} makes no sense; give 1 to {MOST_EPISODES:,}")
    output = output_file(args.output) if args.output else None
    for path in args.paths:
        load_actor(path)  # a mistyped path shows before hours of episodes
    rows = [row for path in args.paths for row in evaluate(path, args)]
    if output:
        write_whole(output, json.dumps(rows, indent=1, allow_nan=False) + "\n")
    print(format_rows(rows))
    last_seed = FIRST_EVAL_SEED + args.episodes - 1
    print(f"{args.episodes} episodes per row, seeds {FIRST_EVAL_SEED} to {last_seed}; std over episodes", end="")
    print("; difference paired by episode ± its standard error" if "difference" in rows[-1] else "")


if __name__ == "__main__":
    end_on_mistakes(lambda: main(parse_args(Args, __doc__)))
