"""Read a trained SMoSE policy: figures, equations and a live report, from one command.

    python interpret.py runs/Reacher-v4__smose_sac__0__1763251200
    python interpret.py runs/Reacher-v4__smose_sac__0__1763251200/actor_best.safetensors --output best
    python interpret.py RUN --shorten                        # the shortest equations that keep 95% of the return
    python interpret.py RUN --names my_names.json            # {"obs": ["angle", ...], "action": ["torque", ...]}
    python interpret.py RUN --video                          # rendered frames in the report and an mp4
    python interpret.py RUN OTHER_RUN                        # two policies side by side, in compare.html

Written beside the actor: report.html (one file, works offline), report.json (every number in it), weights.svg and
weights.png (the weights figure), equations.txt, equations.md and equations.tex, and episode.mp4 with --video.
Equations that are shown have been driven just as they are printed, and their return stands beside them: those of
actor_short.safetensors, which --shorten writes, if it was made from this very actor, else every term of the actor.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "scripts"))
from command_line import UserError, end_on_mistakes, parse_args, read_json

# from here on Ctrl-C is quiet
# isort: split

import json
import os
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Optional

import gymnasium as gym
import numpy as np
import safetensors.numpy
import tyro
from colours import COLOURS
from equations import drive_printed, equation_files, equations_of, equations_txt, how_it_acts
from names import Names, read_names
from report.body import body_of, simulator
from report.compare import comparison
from report.gait import gait_of
from report.page import comparison_page, report_page
from report.pushes import jumps_of, pushes_of
from report.summary import decisive, failures_of, make_card, read_card, summary_of
from saved_actor import FIRST_EVAL_SEED, Actor, load_actor, make_env, make_policy, play
from saved_trees import read_trees, trees_folder
from sentences import sentences_of
from weights_figure import weights_figure

RECORDED_EPISODES = 2  # episodes that can be replayed state by state in the page
RECORDED_NUMBERS = 250_000  # observations in the page, so that it stays a few megabytes
DRIVEN_EPISODES = 20  # of the policy as printed, the real one and doing nothing
MOST_FRAMES = 400  # rendered pictures of the first episode
SATURATED = 0.95  # a tanh beyond this barely reacts to its input
# flags that the trainers had once, and what they were where nobody gave them
RETIRED = {"log_std_min": -5.0, "log_std_max": 2.0, "track": False, "wandb_project_name": "smose"}


@dataclass
class Args:
    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")]
    """a run folder (its actor.safetensors is read) or a *.safetensors file of a SMoSE actor"""
    names: Optional[str] = None
    """a JSON file that names the observations and actions: {"obs": [...], "action": [...]}"""
    shorten: bool = False
    """find the shortest equations that keep most of the return, and write them as actor_short.safetensors"""
    keep_return: float = 0.95
    """with --shorten: the part of the return's distance from doing nothing that is kept"""
    rank: Literal["effect", "weight", "order"] = "effect"
    """order of an equation's terms: by effect size (weight times spread), by weight, or as observed"""
    episodes: Optional[int] = None
    """episodes of the deterministic policy that the report looks at; by default 5, or more for 2,000 states"""
    video: bool = False
    """render the first episode: frames beside its timeline, and episode.mp4"""
    pushes: bool = True
    """push the simulated robot in every position and velocity and see whether it recovers; takes up to a minute"""
    card: bool = False
    """play under noise, delay, other mass and friction; robustness.json of scripts/evaluate.py is read anyway"""
    output: Optional[str] = None
    """the folder to write to; beside the actor if not given"""
    env_id: Optional[str] = None
    """another environment than the one the actor was trained on, of the same sizes (Hopper-v5 for Hopper-v4)"""
    other: Annotated[tyro.conf.Positional[Optional[str]], tyro.conf.arg(metavar="PATH")] = None
    """another actor of the same environment: both are compared in compare.html, and no report is written"""


@dataclass
class Episode:
    seed: int
    observations: np.ndarray  # [T, n_s] float32
    rewards: np.ndarray  # [T]
    experts: np.ndarray  # [T] index of the active expert
    ended: str  # "terminated" or "truncated"
    actions: Optional[np.ndarray] = None  # [T, n_a]
    poses: Optional[np.ndarray] = None  # [T, nq] MuJoCo's positions, where it is MuJoCo
    frames: dict[int, np.ndarray] = field(default_factory=dict)  # step -> rendered picture


def scores(actor: Actor, states: np.ndarray) -> np.ndarray:
    """S_m = w_m s + b_m, the router's logits [T, M], in the precision of the states"""
    return states @ actor.weights["router.weight"].T + actor.weights["router.bias"]


def gate_weights(actor: Actor, z: np.ndarray) -> np.ndarray:
    """How much each expert's output counts [T, M]: 1 for the winner of a top-1 one-hot gate, 0 for all others."""
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    chosen = np.argsort(-z, axis=-1, kind="stable")[..., : actor.top_k]
    weights = np.zeros_like(p)
    np.put_along_axis(weights, chosen, np.take_along_axis(p, chosen, axis=-1), axis=-1)
    return weights / weights.sum(axis=-1, keepdims=True) if actor.gate == "one-hot" else weights


def commands(actor: Actor, states: np.ndarray) -> np.ndarray:
    """The argument of the tanh [T, n_a]"""
    means = np.einsum("mai,ti->tma", actor.weights["experts.mean.weight"], states) + actor.weights["experts.mean.bias"]
    return np.einsum("tm,tma->ta", gate_weights(actor, scores(actor, states)), means)


def torques(actor: Actor, states: np.ndarray) -> np.ndarray:
    return actor.weights["action_scale"] * np.tanh(commands(actor, states)) + actor.weights["action_bias"]


def score_difference(actor: Actor, state: np.ndarray, i: int, j: int) -> tuple[np.ndarray, float]:
    """S_i - S_j split by observation, and the bias' part; together they are the difference exactly."""
    router, bias = (actor.weights[key].astype(np.float64) for key in ("router.weight", "router.bias"))
    return (router[i] - router[j]) * state, float(bias[i] - bias[j])


def smallest_change(actor: Actor, state: np.ndarray, i: int, j: int, unit: np.ndarray) -> tuple[np.ndarray, float]:
    """The smallest change of the state, each observation measured in its unit, at which experts i and j tie."""
    # the tie is a hyperplane, so this is a projection on it: closed form, no search
    parts, bias = score_difference(actor, state, i, j)
    direction = score_difference(actor, unit, i, j)[0]
    squared = direction @ direction
    if squared == 0.0:  # equal rows: no change of the state moves this difference
        return np.full_like(state, np.nan), np.inf
    margin = parts.sum() + bias
    return -margin / squared * direction * unit, float(abs(margin) / np.sqrt(squared))


def nearest_switch(actor: Actor, states: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each state the distance to the nearest switch, and the expert that takes over there (-1 if there is none)."""
    # expert i acts in an intersection of half spaces, one for each other expert; the nearest of their borders is the
    # border of the whole, because a step that short crosses none of the others
    z = scores(actor, states)
    winner = z.argmax(axis=1)
    rows = actor.weights["router.weight"] * unit
    norms = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = (z.max(axis=1, keepdims=True) - z) / norms[winner]
    distances[~np.isfinite(distances)] = np.inf
    distances[np.arange(len(z)), winner] = np.inf
    nearest = distances.min(axis=1)
    return nearest, np.where(np.isfinite(nearest), distances.argmin(axis=1), -1)


def rollout(env: gym.Env, actor: Actor, seed: int, frame_every: int = 0) -> Episode:
    """An episode of the deployed policy, which acts to the last bit as evaluate.py's."""
    policy, frames, steps, poses = make_policy(actor), {}, [], []
    mujoco = simulator(env)

    def watched(obs: np.ndarray) -> tuple[np.ndarray, int]:
        if mujoco:
            poses.append(mujoco[1].qpos.copy())
        if frame_every and len(steps) % frame_every == 0 and len(frames) < MOST_FRAMES:
            frames[len(steps)] = env.render()
        return policy(obs)

    for step in play(env, watched, seed):
        steps.append(step)
    observations = np.array([step.obs for step in steps], np.float32)
    rewards, experts, actions = (
        np.array([getattr(step, key) for step in steps]) for key in ("reward", "expert", "action")
    )
    ended = "terminated" if steps[-1].terminated else "truncated"
    return Episode(seed, observations, rewards, experts, ended, actions, np.array(poses) if mujoco else None, frames)


def usage_of(episodes: list[Episode], n_experts: int) -> dict[str, Any]:
    active = np.concatenate([e.experts for e in episodes])
    share = np.bincount(active, minlength=n_experts) / len(active)
    transitions = np.zeros((n_experts, n_experts), dtype=int)
    stretches: list[list[int]] = [[] for _ in range(n_experts)]
    for episode in episodes:
        np.add.at(transitions, (episode.experts[:-1], episode.experts[1:]), 1)
        for stretch in np.split(episode.experts, np.flatnonzero(np.diff(episode.experts)) + 1):
            stretches[stretch[0]].append(len(stretch))
    switches = int(transitions.sum() - np.trace(transitions))
    return {
        "steps": len(active),
        "share": share.tolist(),
        "dead": [m + 1 for m in range(n_experts) if share[m] == 0],
        "transitions": transitions.tolist(),
        "switches": switches,
        "switches_per_100_steps": 100 * switches / max(1, int(transitions.sum())),
        "dwell": [
            {"visits": len(s), "mean": np.mean(s), "median": np.median(s), "longest": max(s)} if s else None
            for s in stretches
        ],
    }


def at_work(actor: Actor, m: int, states: np.ndarray, spread: np.ndarray) -> dict[str, Any]:
    """What expert m does where it acts: its torques there, and which observation makes each of them vary."""
    # the command u = sum_i w_i s_i + b is linear, so var(u) = sum_i w_i cov(s_i, u): the shares add up to 1 exactly
    centred = states - states.mean(axis=0)
    weights = actor.weights["experts.mean.weight"][m]
    command = states @ weights.T + actor.weights["experts.mean.bias"][m]
    covariance = (command - command.mean(axis=0)).T @ centred / len(states)  # [n_a, n_s]
    parts, variance = weights * covariance, command.var(axis=0)[:, None]
    share = np.divide(parts, variance, out=np.zeros_like(parts), where=variance > 1e-12)
    squashed = np.tanh(command)
    output = actor.weights["action_scale"] * squashed + actor.weights["action_bias"]
    typical = ((centred / np.where(spread > 0, spread, 1.0)) ** 2).sum(axis=1).argmin()
    return {
        "state": states[typical].astype(np.float32),
        "torque_mean": output.mean(axis=0),
        "torque_low": np.quantile(output, 0.1, axis=0),
        "torque_high": np.quantile(output, 0.9, axis=0),
        "saturated": (np.abs(squashed) > SATURATED).mean(axis=0),
        "share_of_variation": share,
    }


def answers_at(actor: Actor, state: np.ndarray, spread: np.ndarray) -> dict[str, Any]:
    """The exact answers for one state: why this expert and not each other one, and how far the switch is."""
    state = state.astype(np.float64)
    z = scores(actor, state[None])[0]
    i = int(z.argmax())
    pairs = []
    for j in [k for k in range(actor.n_experts) if k != i]:
        parts, bias = score_difference(actor, state, i, j)
        raw_change, raw = smallest_change(actor, state, i, j, np.ones_like(state))
        scaled_change, scaled = smallest_change(actor, state, i, j, spread)
        pair = {"other": j + 1, "difference": parts.sum() + bias, "by_observation": parts, "by_bias": bias}
        pair |= {"distance": raw, "change": raw_change}
        pairs.append(pair | {"distance_in_spreads": scaled, "change_in_spreads": scaled_change})
    nobody, output = {"other": None}, torques(actor, state[None])[0]
    answer = {"state": state.astype(np.float32), "scores": z, "expert": i + 1, "torques": output}
    answer["nearest"] = min(pairs, key=lambda p: p["distance"], default=nobody)["other"]
    answer["nearest_in_spreads"] = min(pairs, key=lambda p: p["distance_in_spreads"], default=nobody)["other"]
    return answer | {"against": pairs}


def trees_beside(actor: Actor) -> Optional[dict[str, Any]]:
    """What distill_trees.py left beside the actor, if it is of this very actor."""
    file, fidelity = (trees_folder(actor.path) / name for name in ("trees.json", "fidelity.json"))
    if not file.is_file():
        return None
    try:
        measured = read_json(fidelity, "run distill_trees.py again") if fidelity.is_file() else None
        return read_trees(actor) | {"fidelity": measured}
    except UserError as error:
        print(f"no trees in the report: {error}", file=sys.stderr)
        return None


def evaluation_of(actor: Actor, env_id: str) -> Optional[dict[str, Any]]:
    """The run's own final evaluation, when it is of this very actor."""
    path = actor.path.parent / "evaluation.json"
    if not path.is_file():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["steps"] != actor.steps or saved["env_id"] != env_id:
            return None
        return saved | {"returns": [float(v) for v in saved["returns"]], "mean": saved["mean"], "std": saved["std"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); evaluate the run again or move the file away") from error


def returns_of(actor: Actor, env_id: str, episodes: list[Episode]) -> dict[str, Any]:
    """Those of the run's own evaluation when it is of this very actor, else of the episodes rolled out now."""
    saved = evaluation_of(actor, env_id)
    if saved:
        return {"source": "evaluation.json", **{key: saved[key] for key in ("mean", "returns")}, "spread": saved["std"]}
    values = [float(e.rewards.sum()) for e in episodes]
    return {"source": "rollouts", "mean": float(np.mean(values)), "spread": float(np.std(values)), "returns": values}


def settings_of(actor: Actor, key: str) -> dict[str, Any]:
    """The training's settings or library versions; whoever made the file may have written anything there."""
    try:
        settings = json.loads(actor.metadata.get(key, "{}"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise UserError(f"{actor.path} has damaged metadata ({key}); copy it again")
    return {name: value for name, value in settings.items() if re.fullmatch(r"[A-Za-z][\w.-]*", name, re.ASCII)}


def flags(command: str, args: dict[str, Any]) -> str:
    """The command line that these settings came from, safe to paste into a shell."""
    for key, value in args.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            command += f" --{flag}" if value else f" --no-{flag}"
        elif value is not None and key != "resume":
            command += f" --{flag} " + shlex.join(map(str, value if isinstance(value, list) else [value]))
    return command


def without_retired(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a training, but for those that the trainers take no more and that say nothing."""
    return {key: value for key, value in settings.items() if RETIRED.get(key, ...) != value}


def plain(value: Any) -> Any:
    """JSON's own types; float32 in their shortest exact spelling, other floats to nine digits, infinities as null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return np.array(value.astype(str).astype(object)).astype(float).tolist()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.9g}") if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def kept_steps(n_s: int) -> int:
    """How many steps of a recorded episode the page holds."""
    return max(50, RECORDED_NUMBERS // (RECORDED_EPISODES * n_s))


def recorded(actor: Actor, episode: Episode, spread: np.ndarray, whole: bool) -> dict[str, Any]:
    entry = {"seed": episode.seed, "return": episode.rewards.sum(), "length": len(episode.rewards)}
    entry |= {"ended": episode.ended, "experts": episode.experts + 1}
    if whole:
        kept = kept_steps(len(spread))
        distance, other = nearest_switch(actor, episode.observations[:kept].astype(np.float64), spread)
        entry |= {"observations": episode.observations[:kept], "rewards": episode.rewards[:kept]}
        entry |= {"switch_distance_in_spreads": distance, "switch_to": other + 1}
    return entry


def build_report(
    args: Args, env: gym.Env, actor: Actor, shown: Actor, names: Names, episodes: list[Episode]
) -> dict[str, Any]:
    """Every number of the page; `shown` is the policy whose equations are printed."""
    m, n_a, n_s = actor.weights["experts.mean.weight"].shape
    states = np.concatenate([e.observations for e in episodes]).astype(np.float64)
    active = np.concatenate([e.experts for e in episodes])
    spread = states.std(axis=0)
    options = {key: vars(args)[key] for key in ("rank", "episodes", "names", "env_id")}
    parts = [states[active == k] for k in range(m)]
    works = [at_work(actor, k, mine, spread) if len(mine) else None for k, mine in enumerate(parts)]
    router, mean = (actor.weights[key].astype(np.float64) for key in ("router.weight", "experts.mean.weight"))
    usage, equations = usage_of(episodes, m), equations_of(shown, spread, args.rank)
    text = equations_txt(equations, names, usage["share"])
    policy = {"router_weight": "router.weight", "router_bias": "router.bias"} | {
        "mean_weight": "experts.mean.weight",
        "mean_bias": "experts.mean.bias",
        "action_scale": "action_scale",
        "action_bias": "action_bias",
    }
    report = {
        "format": "smose-report",
        "colours": COLOURS,
        "env_id": env.spec.id,
        "names": names,
        "seconds_per_step": seconds_per_step(env),
        "actor": {"file": actor.path.name, "seed": str(actor.seed), "steps": str(actor.steps), "n_read": actor.n_read}
        | {key: settings_of(actor, key) for key in ("args", "versions")}
        | {f"n_{kind}": (n_s + 1) * (m + 2 * n_a * k) for kind, k in (("active", actor.top_k), ("total", m))},
        "reproduce": [
            flags("python smose_sac.py", without_retired(settings_of(actor, "args"))),
            flags(f"python interpret.py {shlex.quote(args.path)}", options),
        ],
        "returns": returns_of(actor, env.spec.id, episodes),
        "policy": {"n_experts": m, "top_k": actor.top_k, "gate": actor.gate}
        | {key: actor.weights[tensor] for key, tensor in policy.items()},
        "states": {"count": len(states), "obs_spread": spread, "obs_mean": states.mean(axis=0)}
        | {"obs_min": states.min(axis=0), "obs_max": states.max(axis=0)},
        "effects": {"router": router * spread, "mean": mean * spread}
        | {"router_against_average": (router - router.mean(axis=0)) * spread},
        "rank": args.rank,
        "usage": usage,
        "at_work": works,
        "answers": [answers_at(actor, work["state"], spread) if work else None for work in works],
        "episodes": [recorded(actor, episode, spread, k < RECORDED_EPISODES) for k, episode in enumerate(episodes)],
        "trees": trees_beside(actor),
    }
    # each further part of the page comes from a module in scripts/ and joins the report here, under its own key
    mujoco, poses = (
        simulator(env),
        [e.poses[: kept_steps(n_s)] for e in episodes[:RECORDED_EPISODES] if e.poses is not None],
    )
    gait = gait_of(episodes, m)
    report |= {
        "body": body_of(mujoco[0], poses) if mujoco else None,
        "gait": gait,
        "jumps": jumps_of(episodes, actor.weights["action_scale"]),
        "pushes": pushes_of(env, make_policy(actor), episodes, names["obs"], gait) if args.pushes else None,
        "failures": failures_of(episodes, evaluation_of(actor, env.spec.id)),
        "card": make_card(actor, args.env_id) if args.card else read_card(actor, env.spec.id),
        "decisive": decisive(actor, states),
    }
    report["sentences"] = sentences_of(actor, states, active, names, report["decisive"]["observations"])
    report["summary"] = summary_of(report)
    return report | {
        "how_it_acts": how_it_acts(shown),
        "equations": equations,
        "as_printed": drive_printed(env, text, shown, actor, names, max(DRIVEN_EPISODES, len(episodes))),
    }


def seconds_per_step(env: gym.Env) -> float:
    return float(getattr(env.unwrapped, "dt", 0.0))


def write_all(folder: Path, files: dict[str, bytes]) -> None:
    """Each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        part = folder / f".{name}.part"
        try:
            part.write_bytes(content)
            os.replace(part, folder / name)
        finally:
            part.unlink(missing_ok=True)


def made_from(short: Actor, actor: Actor) -> bool:
    try:
        return json.loads(short.metadata["made_from"])["sha256"] == actor.identity["sha256"]
    except (KeyError, TypeError, ValueError):
        return False


def shown_actor(args: Args, actor: Actor, env: gym.Env, folder: Path) -> Actor:
    """The policy whose equations are shown: the shortened one if there is one, else the actor itself."""
    name = f"{actor.path.stem}_short.safetensors"
    if args.shorten:
        from shorten import shorten  # scikit-learn takes a second to import

        short = shorten(actor, env, args.keep_return)
        write_all(folder, {name: safetensors.numpy.save(short.weights, short.metadata)})
        return replace(short, path=folder / name)
    for path in dict.fromkeys((folder / name, actor.path.with_name(name))):
        if path.is_file():
            short = load_actor(path)
            if made_from(short, actor):
                return short
            print(f"{path} was not made from {actor.path}; --shorten makes it anew", file=sys.stderr)
    return actor


def interpret(args: Args) -> Path:
    """Plays, computes and writes everything; returns the page's path."""
    check_episodes(args)
    actor = smose_actor(args.path)
    names = read_names(args.names, args.env_id or actor.env_id, actor.obs_size, actor.action_size)
    env = make_env(actor, args.env_id)
    filming = False
    if args.video:
        from film import camera, can_render, embedded_frames, video, widen_floor

        filming = can_render(env.spec.id)
        env = make_env(actor, args.env_id, render_mode="rgb_array", **camera(env)) if filming else env
        widen_floor(env)  # for the eye alone: a step is the same
    dt = seconds_per_step(env)
    every = max(1, round(1 / (30 * dt))) if dt else 1  # at most about 30 pictures a second
    episodes = [rollout(env, actor, FIRST_EVAL_SEED, every if filming else 0)]
    args.episodes = args.episodes or min(40, max(5, 2000 // len(episodes[0].rewards)))
    episodes += [rollout(env, actor, FIRST_EVAL_SEED + k) for k in range(1, args.episodes)]
    folder = Path(args.output) if args.output else actor.path.parent
    shown = shown_actor(args, actor, env, folder)
    report = plain(build_report(args, env, actor, shown, names, episodes))
    env.close()
    title = f"{env.spec.id}, {actor.n_experts} experts, seed {actor.seed}, {actor.steps} steps"
    texts = equation_files(title, shown, report)
    texts["report.json"] = json.dumps(report, ensure_ascii=False, allow_nan=False)
    texts["report.html"] = report_page(report, embedded_frames(episodes[0].frames) if filming else [])
    files = {name: text.encode() for name, text in texts.items()} | weights_figure(report)
    if filming:
        files["episode.mp4"] = video(episodes[0].frames, episodes[0].experts, 1 / (dt * every) if dt else 30)
    write_all(folder, files)
    return folder / "report.html"


def compare(args: Args) -> Path:
    """Plays two policies on the same episode seeds and writes the comparison; returns its page's path."""
    check_episodes(args)
    paths = [args.path, str(args.other)]
    actors = [smose_actor(path) for path in paths]
    env_id = args.env_id or actors[0].env_id
    if (actors[0].obs_size, actors[0].action_size) != (actors[1].obs_size, actors[1].action_size) or (
        args.env_id is None and actors[0].env_id != actors[1].env_id
    ):
        raise UserError(
            f"{paths[0]} is for {actors[0].env_id}, {paths[1]} for {actors[1].env_id}; give two of one kind"
        )
    names = read_names(args.names, env_id, actors[0].obs_size, actors[0].action_size)
    env = make_env(actors[0], args.env_id)
    n = args.episodes or min(40, max(10, 2000 // len(rollout(env, actors[0], FIRST_EVAL_SEED).rewards)))
    episodes = [[rollout(env, actor, FIRST_EVAL_SEED + k) for k in range(n)] for actor in actors]
    mujoco, dt = simulator(env), seconds_per_step(env)
    data = plain(comparison(env_id, dt, names, actors, paths, episodes, mujoco[0] if mujoco else None))
    folder = Path(args.output) if args.output else actors[0].path.parent
    texts = {
        "compare.json": json.dumps(data, ensure_ascii=False, allow_nan=False),
        "compare.html": comparison_page(data),
    }
    write_all(folder, {name: text.encode() for name, text in texts.items()})
    return folder / "compare.html"


def check_episodes(args: Args) -> None:
    if args.episodes is not None and args.episodes < 1:
        raise UserError(f"--episodes must be at least 1, not {args.episodes}")


def smose_actor(path: str) -> Actor:
    actor = load_actor(path)
    if not actor.n_experts:
        raise UserError(f"{actor.path} is a SAC actor; interpret.py reads SMoSE actors, whose experts are linear")
    return actor


def main(args: Args) -> None:
    print(f"wrote {compare(args) if args.other else interpret(args)}")


if __name__ == "__main__":
    end_on_mistakes(lambda: main(parse_args(Args, __doc__)))
