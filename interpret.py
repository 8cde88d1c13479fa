"""Read a trained SMoSE policy: figures, equations and a live report, from one command.

    python interpret.py runs/Reacher-v4__smose_sac__0__1763251200
    python interpret.py runs/Reacher-v4__smose_sac__0__1763251200/actor_best.safetensors --output-dir best
    python interpret.py RUN --rank effect --threshold 0.5    # rank and cut terms by effect size, not by weight
    python interpret.py RUN --names my_names.json            # {"obs": ["angle", ...], "action": ["torque", ...]}
    python interpret.py RUN --video                          # rendered frames in the report and an mp4

Written beside the actor: report.html (one file, works offline), report.json (every number in it), weights.svg and
weights.png (the weights figure), equations.txt, equations.md and equations.tex, and episode.mp4 with --video.
"""

import base64
import contextlib
import html
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import gymnasium as gym
import numpy as np
import tyro
from safetensors import SafetensorError, safe_open

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TENSORS = ("router.weight", "router.bias", "experts.mean.weight", "experts.mean.bias", "action_scale", "action_bias")
FIRST_SEED = 100_000  # the episodes are those of the trainer's evaluation
RECORDED_EPISODES = 2  # episodes that can be replayed state by state in the page
RECORDED_NUMBERS = 250_000  # observations in the page, so that it stays a few megabytes
LONGEST_EPISODE = 10_000  # an environment without a time limit must not run forever
LATEX_GAP = r" \, "
MOST_FRAMES = 400  # rendered pictures of the first episode
SATURATED = 0.95  # a tanh beyond this barely reacts to its input
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#6F6F6F")


class UserError(Exception):
    """A mistake of the user's that one line explains."""


@dataclass
class Args:
    actor: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ACTOR")]
    """a run folder (its actor.safetensors is read) or a *.safetensors file of a SMoSE actor"""
    names: Optional[str] = None
    """a JSON file that names the observations and actions: {"obs": [...], "action": [...]}"""
    threshold: Optional[float] = None
    """terms of the equations below this are left out; by default all but the largest fifth, about as in the paper"""
    rank: Literal["order", "weight", "effect"] = "order"
    """order of the terms: as observed, by weight, or by effect size (the threshold then applies to effect sizes)"""
    episodes: Optional[int] = None
    """episodes of the deterministic policy that the report looks at; by default 5, or more for 2,000 states"""
    video: bool = False
    """render the first episode: frames beside its timeline, and episode.mp4"""
    output_dir: Optional[str] = None
    """where to write; beside the actor if not given"""


@dataclass
class Policy:
    """The deployed numbers: float32 as saved, computed with in float64 so that the page and NumPy agree."""

    router_weight: np.ndarray  # [M, n_s]
    router_bias: np.ndarray  # [M]
    mean_weight: np.ndarray  # [M, n_a, n_s]
    mean_bias: np.ndarray  # [M, n_a]
    action_scale: np.ndarray  # [n_a]
    action_bias: np.ndarray  # [n_a]
    top_k: int = 1
    gate: str = "one-hot"

    @property
    def n_experts(self) -> int:
        return len(self.router_weight)


@dataclass
class Episode:
    seed: int
    observations: np.ndarray  # [T, n_s] float32
    rewards: np.ndarray  # [T]
    experts: np.ndarray  # [T] index of the active expert
    ended: str  # "terminated", "truncated" or "cut"
    frames: dict[int, np.ndarray] = field(default_factory=dict)  # step -> rendered picture


def read_policy(path: Path) -> tuple[Policy, dict[str, Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key).astype(np.float64) for key in file.keys()}
        metadata |= {key: json.loads(metadata.get(key, "{}")) for key in ("args", "versions")}
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged or no safetensors file ({error}); copy or train it again") from error
    if metadata.get("format") != "smose-actor":
        found = f"{path} has the format {metadata.get('format')!r}"
        raise UserError(f"{found}; interpret.py reads SMoSE actors, whose experts are linear: give one of those")
    shape = tensors.get("experts.mean.weight", np.zeros(0)).shape
    m, n_a, n_s = shape if len(shape) == 3 and 0 not in shape else (1, 1, 1)
    for key, expected in zip(TENSORS, [(m, n_s), (m,), (m, n_a, n_s), (m, n_a), (n_a,), (n_a,)], strict=True):
        if key not in tensors or tensors[key].shape != expected:
            raise UserError(f"{path}: {key} is missing or of the wrong shape; copy or train it again")
        if not np.isfinite(tensors[key]).all():
            raise UserError(f"{path}: {key} holds values that are not finite numbers; the training diverged")
    top_k, gate, env_id = metadata.get("top_k", "1"), metadata.get("gate", "one-hot"), metadata.get("env_id")
    if top_k not in map(str, range(1, m + 1)) or gate not in ("one-hot", "softmax") or not env_id:
        raise UserError(f"{path}: no policy has top_k {top_k!r}, gate {gate!r}, env_id {env_id!r}; train it again")
    return Policy(*(tensors[key] for key in TENSORS), top_k=int(top_k), gate=gate), metadata


def scores(policy: Policy, states: np.ndarray) -> np.ndarray:
    """S_m = w_m s + b_m, the router's logits [T, M]"""
    return states @ policy.router_weight.T + policy.router_bias


def gate_weights(policy: Policy, z: np.ndarray) -> np.ndarray:
    """How much each expert's output counts [T, M]: 1 for the winner of a top-1 one-hot gate, 0 for all others."""
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    chosen = np.argsort(-z, axis=-1, kind="stable")[..., : policy.top_k]
    weights = np.zeros_like(p)
    np.put_along_axis(weights, chosen, np.take_along_axis(p, chosen, axis=-1), axis=-1)
    return weights / weights.sum(axis=-1, keepdims=True) if policy.gate == "one-hot" else weights


def commands(policy: Policy, states: np.ndarray) -> np.ndarray:
    """The argument of the tanh [T, n_a]"""
    means = np.einsum("mai,ti->tma", policy.mean_weight, states) + policy.mean_bias
    return np.einsum("tm,tma->ta", gate_weights(policy, scores(policy, states)), means)


def torques(policy: Policy, states: np.ndarray) -> np.ndarray:
    return policy.action_scale * np.tanh(commands(policy, states)) + policy.action_bias


def score_difference(policy: Policy, state: np.ndarray, i: int, j: int) -> tuple[np.ndarray, float]:
    """S_i - S_j split by observation, and the bias' part; together they are the difference exactly."""
    parts = (policy.router_weight[i] - policy.router_weight[j]) * state
    return parts, float(policy.router_bias[i] - policy.router_bias[j])


def smallest_change(policy: Policy, state: np.ndarray, i: int, j: int, unit: np.ndarray) -> tuple[np.ndarray, float]:
    """The smallest change of the state, each observation measured in its unit, at which experts i and j tie."""
    # the tie is a hyperplane, so this is a projection on it: closed form, no search
    parts, bias = score_difference(policy, state, i, j)
    direction = (policy.router_weight[i] - policy.router_weight[j]) * unit
    squared = direction @ direction
    if squared == 0.0:  # equal rows: no change of the state moves this difference
        return np.full_like(state, np.nan), np.inf
    margin = parts.sum() + bias
    return -margin / squared * direction * unit, float(abs(margin) / np.sqrt(squared))


def nearest_switch(policy: Policy, states: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each state the distance to the nearest switch, and the expert that takes over there (-1 if there is none)."""
    # expert i acts in an intersection of half spaces, one for each other expert; the nearest of their borders is the
    # border of the whole, because a step that short crosses none of the others
    z = scores(policy, states)
    winner = z.argmax(axis=1)
    rows = policy.router_weight * unit
    norms = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = (z.max(axis=1, keepdims=True) - z) / norms[winner]
    distances[~np.isfinite(distances)] = np.inf
    distances[np.arange(len(z)), winner] = np.inf
    nearest = distances.min(axis=1)
    return nearest, np.where(np.isfinite(nearest), distances.argmin(axis=1), -1)


def make_env(env_id: str, policy: Policy, **kwargs: Any) -> gym.Env:
    gym.logger.min_level = gym.logger.ERROR  # the paper's v4 environments are called out of date
    try:
        env = gym.make(env_id, **kwargs)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot make {env_id} ({reason}); install what it needs, the report rolls it out") from error
    n_a, n_s = policy.mean_weight.shape[1:]
    if env.observation_space.shape != (n_s,) or env.action_space.shape != (n_a,):
        found = f"{env.observation_space.shape} and {env.action_space.shape}"
        raise UserError(f"{env_id} observes and acts with shapes {found}, the actor with ({n_s},) and ({n_a},)")
    return env


def rollout(env: gym.Env, policy: Policy, seed: int, frame_every: int = 0) -> Episode:
    observation, _ = env.reset(seed=seed)
    observations, rewards, frames, ended = [], [], {}, "cut"
    while len(rewards) < LONGEST_EPISODE:
        state = np.asarray(observation, dtype=np.float32)
        if frame_every and len(rewards) % frame_every == 0 and len(frames) < MOST_FRAMES:
            frames[len(rewards)] = env.render()
        observations.append(state)
        action = torques(policy, state[None].astype(np.float64))[0].astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        if terminated or truncated:
            ended = "terminated" if terminated else "truncated"
            break
    states = np.array(observations)
    experts = scores(policy, states.astype(np.float64)).argmax(axis=1)
    return Episode(seed, states, np.array(rewards), experts, ended, frames)


def name_entry(entry: Any, ascii_name: str) -> dict[str, str]:
    entry = {"text": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str) or not entry["text"].strip():
        raise UserError(f'a name must be a string or an object with "text", not {json.dumps(entry)[:60]}')
    text = entry["text"]
    escaped = re.sub(r"([_%&#${}])", r"\\\1", re.sub(r"[\\^~]", "", text))
    derived = {"latex": rf"\text{{{escaped}}}", "ascii": ascii_name, "description": text, "unit": ""}
    return {key: str(value) for key, value in {**derived, **entry}.items()}


def read_names(path: Optional[str], env_id: str, n_s: int, n_a: int) -> dict[str, list[dict[str, str]]]:
    """The user's names, else the paper's symbols for its environments, else obs[i] and action[i]."""
    sizes = {"obs": n_s, "action": n_a}
    try:
        names = json.loads(Path(path or SCRIPTS / "names.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} as JSON ({error}); --names wants such a file") from error
    if path is None:
        names = names.get(re.sub(r"-v\d+$", "", env_id), {})
        if any(len(names.get(kind, [])) != n for kind, n in sizes.items()):
            names = {kind: [f"{kind}[{i}]" for i in range(n)] for kind, n in sizes.items()}
    for kind, n in sizes.items():
        entries = names.get(kind) if isinstance(names, dict) else None
        if not isinstance(entries, list) or len(entries) != n:
            found = f"{len(entries)} names" if isinstance(entries, list) else "no list"
            raise UserError(f'{path} has {found} under "{kind}"; {env_id} needs {n} there')
    return {kind: [name_entry(e, f"{kind}_{i}") for i, e in enumerate(names[kind])] for kind in sizes}


def terms_of(weights: np.ndarray, bias: float, spread: np.ndarray, threshold: float, rank: str) -> dict[str, Any]:
    """One equation: the kept terms (obs None is the constant) in their order, and what was dropped."""
    terms = [{"obs": i, "weight": float(w), "effect": float(w * spread[i])} for i, w in enumerate(weights)]
    terms.append({"obs": None, "weight": float(bias), "effect": 0.0})  # a constant varies with nothing
    measure = "effect" if rank == "effect" else "weight"
    kept = [t for t in terms if abs(t[measure]) >= threshold and t["weight"] != 0.0]
    dropped = [t for t in terms if t not in kept]
    if rank != "order":
        kept.sort(key=lambda t: -abs(t[measure]))
    largest = max(dropped, key=lambda t: abs(t["effect"]), default=None)
    return {"terms": kept, "dropped": len(dropped), "of": len(terms), "largest_dropped": largest}


def usual_threshold(policy: Policy, spread: np.ndarray, rank: str) -> float:
    rows = np.concatenate([policy.router_weight, *policy.mean_weight])
    sizes = np.abs(rows * spread if rank == "effect" else rows)
    return float(f"{np.quantile(sizes, 0.8):.2g}")


def expert_equations(policy: Policy, spread: np.ndarray, threshold: float, rank: str) -> list[dict[str, Any]]:
    def rows(weights: np.ndarray, biases: np.ndarray) -> list[dict[str, Any]]:
        return [terms_of(w, b, spread, threshold, rank) for w, b in zip(weights, biases, strict=True)]

    experts = zip(rows(policy.router_weight, policy.router_bias), policy.mean_weight, policy.mean_bias, strict=True)
    return [{"expert": m, "score": score, "torques": rows(w, b)} for m, (score, w, b) in enumerate(experts, start=1)]


def coefficient(weight: float) -> str:
    """One decimal as in the paper, more where one would say nothing."""
    size = abs(weight)
    if 0 < size < 0.01:
        return np.format_float_positional(size, precision=1, fractional=False, trim="-")
    return str(Decimal(size).quantize(Decimal("0.1" if size >= 0.95 else "0.01"), ROUND_HALF_UP))


def written(equation: dict[str, Any], symbols: list[str], space: str = " ") -> str:
    text = ""
    for term in equation["terms"]:
        negative = term["weight"] < 0
        text += (" - " if negative else " + ") if text else ("-" if negative else "")
        text += coefficient(term["weight"]) + ("" if term["obs"] is None else space + symbols[term["obs"]])
    return text or "0"


def effects_written(equation: dict[str, Any], symbols: list[str], mark: str = "") -> str:
    varying = [(mark + symbols[t["obs"]] + mark, t["effect"]) for t in equation["terms"] if t["obs"] is not None]
    return ", ".join(f"{symbol} {'-' if effect < 0 else ''}{coefficient(effect)}" for symbol, effect in varying)


def vector(values: np.ndarray) -> str:
    return f"{values[0]:g}" if np.ptp(values) == 0 else "(" + ", ".join(f"{v:g}" for v in values) + ")"


def how_it_acts(policy: Policy, threshold: float, rank: str) -> list[str]:
    mix = "The expert with the largest score S_m acts."
    if policy.top_k > 1 or policy.gate == "softmax":
        share = "its softmax probability" + (", renormalised over these" if policy.gate == "one-hot" else "")
        mix = f"The {policy.top_k} expert(s) with the largest scores S_m act, each weighted by {share}."
    squash = f"scale {vector(policy.action_scale)} and bias {vector(policy.action_bias)}"
    return [
        mix,
        f"Each tau below is the argument of a tanh: action = scale * tanh(tau) + bias with {squash}.",
        f"Terms of {'effect' if rank == 'effect' else 'weight'} below {threshold:g} are left out and counted.",
        "Effect size: weight times the spread (standard deviation) of the observation over the visited states.",
    ]


def equation_files(title: str, policy: Policy, report: dict[str, Any]) -> dict[str, str]:
    names, notes, share = report["names"], report["how_it_acts"], report["usage"]["share"]
    text = [title, "", *notes]
    markdown = [f"# {title}", "", *(note + "  " for note in notes)]
    tex = ["% \\input this file; it needs amsmath.", *(f"% {note}" for note in (title, *notes))]
    tex += ["\\noindent Each $\\tau$ is the argument of a $\\tanh$: $a = c \\tanh(\\tau) + d$ with scale"]
    tex += [f"$c = {vector(policy.action_scale)}$ and bias $d = {vector(policy.action_bias)}$.", ""]
    plain_obs, latex_obs = ([name[form] for name in names["obs"]] for form in ("text", "latex"))
    for entry in report["equations"]:
        m = entry["expert"]
        used = f"{100 * share[m - 1]:.1f} % of steps" if share[m - 1] > 0 else "never active"
        lines = [(f"S_{m}", f"S_{{{m}}}", entry["score"])]
        lines += [(a["text"], a["latex"], t) for a, t in zip(names["action"], entry["torques"], strict=True)]
        text += ["", f"Expert {m} ({used})"]
        markdown += ["", f"## Expert {m} ({used})", "", "| equation | terms dropped | effect sizes |", "|---|---|---|"]
        cases, dropped, effects = [], [], []
        for symbol, latex, equation in lines:
            count, sizes = f"{equation['dropped']} of {equation['of']}", effects_written(equation, latex_obs, "$")
            effect = effects_written(equation, plain_obs) or "none"
            text += [f"  {symbol} ≈ {written(equation, plain_obs)}", f"      [{count} dropped; effect sizes: {effect}]"]
            cases += [f"{latex} \\approx {written(equation, latex_obs, LATEX_GAP)}"]
            markdown += [f"| ${cases[-1]}$ | {count} | {sizes or 'none'} |"]
            dropped += [f"${latex}$: {count}"]
            effects += [f"  ${latex}$: {sizes or 'none'};"]
        tex += [f"\\paragraph{{Expert {m} (${cases[0]}$)}}", f"% {used}", "\\begin{equation*}", "    \\begin{cases}"]
        tex += [*(f"        {case} \\\\" for case in cases[1:]), "    \\end{cases}", "\\end{equation*}"]
        tex += [f"{{\\footnotesize Terms left out: {', '.join(dropped)}. Effect sizes:", *effects, "}", ""]
    files = {"equations.txt": text, "equations.md": markdown, "equations.tex": tex}
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


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


def at_work(policy: Policy, m: int, states: np.ndarray, spread: np.ndarray) -> dict[str, Any]:
    """What expert m does where it acts: its torques there, and which observation makes each of them vary."""
    # the command u = sum_i w_i s_i + b is linear, so var(u) = sum_i w_i cov(s_i, u): the shares add up to 1 exactly
    centred = states - states.mean(axis=0)
    command = states @ policy.mean_weight[m].T + policy.mean_bias[m]
    covariance = (command - command.mean(axis=0)).T @ centred / len(states)  # [n_a, n_s]
    parts, variance = policy.mean_weight[m] * covariance, command.var(axis=0)[:, None]
    share = np.divide(parts, variance, out=np.zeros_like(parts), where=variance > 1e-12)
    squashed = np.tanh(command)
    output = policy.action_scale * squashed + policy.action_bias
    typical = ((centred / np.where(spread > 0, spread, 1.0)) ** 2).sum(axis=1).argmin()
    return {
        "state": states[typical].astype(np.float32),
        "torque_mean": output.mean(axis=0),
        "torque_low": np.quantile(output, 0.1, axis=0),
        "torque_high": np.quantile(output, 0.9, axis=0),
        "saturated": (np.abs(squashed) > SATURATED).mean(axis=0),
        "share_of_variation": share,
    }


def answers_at(policy: Policy, state: np.ndarray, spread: np.ndarray) -> dict[str, Any]:
    """The exact answers for one state: why this expert and not each other one, and how far the switch is."""
    state = state.astype(np.float64)
    z = scores(policy, state[None])[0]
    i = int(z.argmax())
    pairs = []
    for j in [k for k in range(policy.n_experts) if k != i]:
        parts, bias = score_difference(policy, state, i, j)
        raw_change, raw = smallest_change(policy, state, i, j, np.ones_like(state))
        scaled_change, scaled = smallest_change(policy, state, i, j, spread)
        pair = {"other": j + 1, "difference": parts.sum() + bias, "by_observation": parts, "by_bias": bias}
        pair |= {"distance": raw, "change": raw_change}
        pairs.append(pair | {"distance_in_spreads": scaled, "change_in_spreads": scaled_change})
    nobody, output = {"other": None}, torques(policy, state[None])[0]
    answer = {"state": state.astype(np.float32), "scores": z, "expert": i + 1, "torques": output}
    answer["nearest"] = min(pairs, key=lambda p: p["distance"], default=nobody)["other"]
    answer["nearest_in_spreads"] = min(pairs, key=lambda p: p["distance_in_spreads"], default=nobody)["other"]
    return answer | {"against": pairs}


def read_trees(actor: Path, policy: Policy, metadata: dict[str, Any]) -> Optional[dict[str, Any]]:
    """What distill_trees.py left beside the actor, if it ran."""
    path = actor.parent / "trees" / "trees.json"
    if not path.is_file():
        return None
    try:
        trees = json.loads(path.read_text(encoding="utf-8"))
        fidelity = path.with_name("fidelity.json")
        trees["fidelity"] = json.loads(fidelity.read_text(encoding="utf-8")) if fidelity.is_file() else None
        features = [node.get("feature", 0) for tree in trees["experts"] for node in tree["nodes"]]
        fits = len(trees["experts"]) == policy.n_experts and max(features) < policy.router_weight.shape[1]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path.parent} holds damaged JSON ({error!r}); run distill_trees.py again") from error
    if not fits:
        raise UserError(f"{path} belongs to another policy; run distill_trees.py again or move the folder away")
    source = trees["fidelity"] or {"actor": actor.name, "steps": metadata.get("steps")}
    trees["stale"] = source.get("actor") != actor.name or str(source.get("steps")) != metadata.get("steps")
    return trees


def returns_of(folder: Path, metadata: dict[str, Any], episodes: list[Episode]) -> dict[str, Any]:
    """The run's own evaluation when it is of this very actor, else the episodes rolled out now."""
    path = folder / "evaluation.json"
    if path.is_file():
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            if str(saved["steps"]) == metadata.get("steps") and saved["env_id"] == metadata["env_id"]:
                values = [float(v) for v in saved["returns"]]
                return {"source": "evaluation.json", "mean": saved["mean"], "spread": saved["std"], "returns": values}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error!r}); evaluate the run again or move the file away") from error
    values = [float(e.rewards.sum()) for e in episodes]
    return {"source": "rollouts", "mean": float(np.mean(values)), "spread": float(np.std(values)), "returns": values}


def flags(command: str, args: dict[str, Any]) -> str:
    """The command line that these settings came from."""
    for key, value in args.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            command += f" --{flag}" if value else f" --no-{flag}"
        elif value is not None and key != "resume":
            command += f" --{flag} " + (" ".join(map(str, value)) if isinstance(value, list) else str(value))
    return command


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


def recorded(policy: Policy, episode: Episode, spread: np.ndarray, whole: bool) -> dict[str, Any]:
    entry = {"seed": episode.seed, "return": episode.rewards.sum(), "length": len(episode.rewards)}
    entry |= {"ended": episode.ended, "experts": episode.experts + 1}
    if whole:
        kept = max(50, RECORDED_NUMBERS // (RECORDED_EPISODES * len(spread)))
        distance, other = nearest_switch(policy, episode.observations[:kept].astype(np.float64), spread)
        entry |= {"observations": episode.observations[:kept], "rewards": episode.rewards[:kept]}
        entry |= {"switch_distance_in_spreads": distance, "switch_to": other + 1}
    return entry


def build_report(
    args: Args, actor: Path, policy: Policy, metadata: dict[str, Any], names: dict, episodes: list[Episode], dt: float
) -> dict[str, Any]:
    m, n_a, n_s = policy.mean_weight.shape
    states = np.concatenate([e.observations for e in episodes]).astype(np.float64)
    active = np.concatenate([e.experts for e in episodes])
    spread = states.std(axis=0)
    threshold = usual_threshold(policy, spread, args.rank) if args.threshold is None else args.threshold
    options = {"threshold": threshold} | {key: vars(args)[key] for key in ("rank", "episodes", "names")}
    parts = [states[active == k] for k in range(m)]
    works = [at_work(policy, k, mine, spread) if len(mine) else None for k, mine in enumerate(parts)]
    return {
        "format": "smose-report",
        "colours": COLOURS,
        "env_id": metadata["env_id"],
        "names": names,
        "seconds_per_step": dt,
        "actor": {"file": actor.name, **{key: metadata.get(key) for key in ("seed", "steps", "args", "versions")}}
        | {f"n_{kind}": (n_s + 1) * (m + 2 * n_a * k) for kind, k in (("active", policy.top_k), ("total", m))},
        "reproduce": [
            flags("python smose_sac.py", metadata["args"]),
            flags(f"python interpret.py {args.actor}", options),
        ],
        "returns": returns_of(actor.parent, metadata, episodes),
        "policy": {"n_experts": m, "top_k": policy.top_k, "gate": policy.gate}
        | {key: value.astype(np.float32) for key, value in vars(policy).items() if isinstance(value, np.ndarray)},
        "states": {"count": len(states), "obs_spread": spread, "obs_mean": states.mean(axis=0)}
        | {"obs_min": states.min(axis=0), "obs_max": states.max(axis=0)},
        "effects": {"router": policy.router_weight * spread, "mean": policy.mean_weight * spread}
        | {"router_against_average": (policy.router_weight - policy.router_weight.mean(axis=0)) * spread},
        "threshold": threshold,
        "usual_thresholds": {rank: usual_threshold(policy, spread, rank) for rank in ("weight", "effect")},
        "rank": args.rank,
        "how_it_acts": how_it_acts(policy, threshold, args.rank),
        "equations": expert_equations(policy, spread, threshold, args.rank),
        "usage": usage_of(episodes, m),
        "at_work": works,
        "answers": [answers_at(policy, work["state"], spread) if work else None for work in works],
        "episodes": [recorded(policy, episode, spread, k < RECORDED_EPISODES) for k, episode in enumerate(episodes)],
        "trees": read_trees(actor, policy, metadata),
    }


def figure_label(name: dict[str, str]) -> str:
    from matplotlib.mathtext import MathTextParser

    label = name["text"].replace("$", r"\$")
    if not name["latex"].startswith(r"\text{"):
        with contextlib.suppress(ValueError, RuntimeError):  # LaTeX beyond matplotlib's subset keeps its plain text
            MathTextParser("path").parse(f"${name['latex']}$")
            label = f"${name['latex']}$"
    return label


def weights_figure(policy: Policy, report: dict[str, Any]) -> dict[str, bytes]:
    """The paper's figure: one panel for each expert, its row of the router first, then its mean weights."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "smose"  # the same policy gives the same file
    names, share = report["names"], report["usage"]["share"]
    m, n_a, n_s = policy.mean_weight.shape
    tables = np.concatenate([policy.router_weight[:, None], policy.mean_weight], axis=1)  # [M, 1 + n_a, n_s]
    limit = max(float(np.quantile(np.abs(tables), 0.99)), 1e-9)
    obs, actions = ([figure_label(name) for name in names[kind]] for kind in ("obs", "action"))
    rows = -(-m // max(1, 66 // (n_a + 2)))
    columns = -(-m // rows)
    panel = np.array([0.2 * (n_a + 1), 0.19 * n_s])  # all sizes in inches
    step = np.array([max(panel[0] + 0.14, 0.62), panel[1] + 0.9])
    left = 0.15 + 0.062 * max(len(name["text"]) for name in names["obs"])
    size = np.array([left + columns * step[0] + 0.75, rows * step[1] + 0.2])
    figure = Figure(figsize=tuple(size))

    def place(column: int, row: int, width: float) -> Any:
        corner = np.array([left + column * step[0], size[1] - 0.75 - row * step[1] - panel[1]])
        return figure.add_axes((*(corner / size), width / size[0], panel[1] / size[1]))

    for k in range(m):
        axis = place(k % columns, k // columns, panel[0])
        image = axis.imshow(tables[k].T, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="none")
        axis.set_title(f"Expert {k + 1}\n" + (f"{100 * share[k]:.0f} %" if share[k] else "unused"), fontsize=7)
        axis.set_xticks(range(n_a + 1), [f"$S_{{{k + 1}}}$", *actions], fontsize=7, rotation=90 if n_a > 3 else 0)
        axis.set_yticks(*((range(n_s), obs) if k % columns == 0 else ([], [])), fontsize=7)
        axis.tick_params(length=0)
        axis.axvline(0.5, color="white", linewidth=2)
        axis.spines[:].set_color("#cccccc")
    figure.colorbar(image, cax=place(columns, 0, 0.1), extend="both").ax.tick_params(labelsize=7)
    figure.text(0.1 / size[0], 1 - 0.2 / size[1], f"{report['env_id']}: router and mean weights", fontsize=8)
    files = {}
    for kind, extra in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **extra)
        files[f"weights.{kind}"] = buffer.getvalue()
    return files


def can_render(env_id: str) -> bool:
    """Tried in a process of its own, because a missing GL breaks the import of mujoco for good."""
    os.environ.setdefault("MUJOCO_GL", "egl")  # no screen needed
    attempt = "import sys, gymnasium; e = gymnasium.make(sys.argv[1], render_mode='rgb_array'); e.reset(); e.render()"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", attempt, env_id], capture_output=True, text=True)
    if done.returncode:
        os.environ.pop("MUJOCO_GL")
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"no video: cannot render {env_id} here ({reason}); try MUJOCO_GL=osmesa", file=sys.stderr)
    return done.returncode == 0


def labelled(frame: np.ndarray, expert: int, step: int) -> np.ndarray:
    """A frame with a band that says which expert acts."""
    from PIL import Image, ImageColor, ImageDraw, ImageFont

    height, width = frame.shape[0] // 16 * 16, frame.shape[1] // 16 * 16  # what video codecs take
    picture = Image.fromarray(frame[:height, :width])
    draw, band = ImageDraw.Draw(picture), height // 12
    colour = ImageColor.getrgb(COLOURS[expert % len(COLOURS)])
    draw.rectangle((0, 0, width, band), fill=colour)
    ink = "black" if np.dot(colour, (0.3, 0.59, 0.11)) > 128 else "white"
    font = ImageFont.load_default(size=band * 0.6)
    draw.text((band // 3, band // 5), f"Expert {expert + 1}   step {step}", fill=ink, font=font)
    return np.array(picture)


def video(episode: Episode, frames_per_second: float) -> bytes:
    import imageio_ffmpeg

    pictures = [labelled(frame, int(episode.experts[step]), step) for step, frame in episode.frames.items()]
    with tempfile.TemporaryDirectory() as folder:
        path, size = Path(folder) / "episode.mp4", pictures[0].shape[1::-1]
        writer = imageio_ffmpeg.write_frames(str(path), size, fps=frames_per_second, quality=7)
        writer.send(None)
        for picture in pictures:
            writer.send(picture)
        writer.close()
        return path.read_bytes()


def embedded_frames(episode: Episode) -> list[dict[str, Any]]:
    from PIL import Image

    frames = []
    for step, frame in episode.frames.items():
        picture, buffer = Image.fromarray(frame), io.BytesIO()
        picture.thumbnail((240, 240))
        picture.save(buffer, format="JPEG", quality=55, optimize=True)
        frames.append({"step": step, "jpeg": base64.b64encode(buffer.getvalue()).decode()})
    return frames


def fill_page(report: dict[str, Any], frames: list[dict[str, Any]]) -> str:
    template = (SCRIPTS / "report_template.html").read_text(encoding="utf-8")
    data = json.dumps({**report, "frames": frames}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    title = f"{report['env_id']} · SMoSE policy report"
    return template.replace("{{TITLE}}", html.escape(title)).replace("{{REPORT}}", data.replace("<", "\\u003c"))


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


def interpret(args: Args) -> Path:
    if not 0 <= (args.threshold or 0) < np.inf or (args.episodes is not None and args.episodes < 1):
        raise UserError("--threshold must be 0 or more and --episodes at least 1; change the one that is not")
    given = Path(args.actor)
    actor = given / "actor.safetensors" if given.is_dir() else given
    if not actor.is_file():
        raise UserError(f"there is no {actor}; give the folder of a SMoSE run or a *.safetensors file")
    policy, metadata = read_policy(actor)
    env_id = metadata["env_id"]
    names = read_names(args.names, env_id, policy.mean_weight.shape[2], policy.mean_weight.shape[1])
    filming = args.video and can_render(env_id)
    env = make_env(env_id, policy, **({"render_mode": "rgb_array"} if filming else {}))
    dt = float(getattr(env.unwrapped, "dt", 0.0))
    every = max(1, round(1 / (30 * dt))) if dt else 1  # at most about 30 pictures a second
    episodes = [rollout(env, policy, FIRST_SEED, every if filming else 0)]
    args.episodes = args.episodes or min(40, max(5, 2000 // len(episodes[0].rewards)))
    episodes += [rollout(env, policy, FIRST_SEED + k, 0) for k in range(1, args.episodes)]
    env.close()
    report = plain(build_report(args, actor, policy, metadata, names, episodes, dt))
    title = f"{env_id}, {policy.n_experts} experts, seed {metadata.get('seed')}, {metadata.get('steps')} steps"
    texts = equation_files(title, policy, report)
    texts["report.json"] = json.dumps(report, ensure_ascii=False, allow_nan=False)
    texts["report.html"] = fill_page(report, embedded_frames(episodes[0]))
    files = {name: text.encode() for name, text in texts.items()} | weights_figure(policy, report)
    if filming:
        files["episode.mp4"] = video(episodes[0], 1 / (dt * every) if dt else 30)
    folder = Path(args.output_dir) if args.output_dir else actor.parent
    write_all(folder, files)
    return folder / "report.html"


def parse_args() -> Args:
    """The command line; tyro's framed message about a mistake becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Args)
    except SystemExit as leaving:
        if not leaving.code:
            raise
        rows = [row[2:].rstrip(" │") for row in re.sub(r"\x1b\[[\d;]*m", "", said.getvalue()).splitlines()[1:-1]]
        text = "\n".join(row for row in rows if not row.startswith(" " * 8))  # helptext is indented twice
        parts = [" ".join(part.split()).removeprefix("Error parsing ") for part in re.split("(?m)^[─-]{9,}$", text)]
        told = [part.rstrip(".") for part in parts if not re.match("(Argument|For full) helptext|$", part)]
        raise UserError("; ".join([*told, "see --help"])) from None


def main() -> None:
    try:
        print(f"wrote {interpret(parse_args())}")
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
