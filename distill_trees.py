"""Distil a trained SMoSE router into M readable decision trees, and measure what that costs.

Every state is labelled by the trained router; for each expert one small CART tree says whether that expert takes the
state (paper: appendix, "Decision Trees as a support for interpretation"). The trees are then judged three ways: on
held-out episodes, over depths 1 to 8, and in closed loop, where they replace the router on the same episode seeds.

    python distill_trees.py runs/Reacher-v4__smose_sac__0__1763251200
    python distill_trees.py results/policies/Reacher-v4/smose_seed0          # no replay file: states from new episodes
    python distill_trees.py runs/.../actor_best.safetensors --max-depth 4 --episodes 100
    python distill_trees.py runs/... --data rollouts --dagger 5              # also learn from states the trees visit

Leaves in `trees/` beside the actor: expert_m.svg, expert_m.png, expert_m.txt, trees.json, fidelity.json, fidelity.png.
"""

import contextlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Optional

import gymnasium as gym
import matplotlib
import numpy as np
import tyro
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import TextPath
from safetensors import SafetensorError, safe_open
from sklearn.tree import DecisionTreeClassifier
from tqdm import tqdm

CURVE_DEPTH = 8
HELD_OUT_SHARE = 0.2
EVALUATION_SEED = 100_000  # the trainers' evaluation seeds; no state of these episodes is ever trained on
ROLLOUT_SEED = 200_000
DAGGER_SEED = 300_000  # plus 100,000 for each further round
Nodes = list[dict[str, Any]]  # a tree as trees.json has it
Forest = list[Nodes]  # one tree per expert
Report = dict[str, Any]
progress = partial(tqdm, disable=None, leave=False)  # None: shown on a terminal only


@dataclass
class Args:
    path: tyro.conf.Positional[Path]
    """a run folder, or an actor.safetensors"""
    max_depth: int = 3
    """depth of the trees (1 to 8)"""
    data: Optional[Literal["replay", "rollouts"]] = None
    """states to learn from: the run's replay file (default when there) or new episodes of the policy"""
    max_samples: int = 200_000
    """use at most this many of the states, drawn at random (a million states of 27 numbers: about a minute)"""
    rollout_steps: int = 20_000
    """environment steps collected by `--data rollouts`, and by each round of `--dagger`"""
    episodes: int = 20
    """closed-loop episodes for the trees and for the linear router, on the same seeds (0 leaves the closed loop out)"""
    dagger: int = 0
    """rounds of adding router-labelled states that the tree-routed policy itself visits"""
    seed: int = 0
    """seed of the held-out choice, the subsample, the fits and the bootstrap"""
    names: Optional[Path] = None
    """a JSON file with names for this environment's observations: {"obs": ["height", ...]}"""


class UserError(Exception):
    """A mistake the user can mend: printed as one line."""


@dataclass
class Actor:
    env_id: str
    steps: int
    top_k: int
    gate: str
    router_weight: np.ndarray  # [M, n_s]
    router_bias: np.ndarray  # [M]
    mean_weight: np.ndarray  # [M, n_a, n_s]
    mean_bias: np.ndarray  # [M, n_a]
    action_scale: np.ndarray  # [n_a]
    action_bias: np.ndarray  # [n_a]

    @property
    def n_experts(self) -> int:
        return len(self.router_bias)

    @property
    def obs_size(self) -> int:
        return self.router_weight.shape[1]


@dataclass
class Data:
    """Labelled states; `held_out` marks those of episodes that no tree is trained on."""

    states: np.ndarray  # float32 [n, n_s]
    labels: np.ndarray  # [n], the router's expert, from 0
    episodes: np.ndarray  # [n]
    held_out: np.ndarray  # bool [n]
    counts: np.ndarray  # [M], labels over all states there were, before subsampling


@dataclass
class Tree:
    arrays: Any  # scikit-learn's own arrays: feature, threshold, children_left (-1 in a leaf), children_right, ...
    probability: np.ndarray  # [nodes, classes], by weighted training states; known for inner nodes too


def load_actor(path: Path) -> Actor:
    names = ["router.weight", "router.bias", "experts.mean.weight", "experts.mean.bias", "action_scale", "action_bias"]
    try:
        with safe_open(path, framework="np") as file:
            meta = file.metadata() or {}
            if meta.get("format") != "smose-actor":
                found = meta.get("format") or "no format"
                raise UserError(f"{path} is not a SMoSE actor ({found} in its metadata); trees need a trained router")
            tensors = [file.get_tensor(name).astype(np.float32) for name in names]
        (m, n_s), n_a = tensors[0].shape, tensors[4].size
        sound = [t.shape for t in tensors] == [(m, n_s), (m,), (m, n_a, n_s), (m, n_a), (n_a,), (n_a,)]
        sound = sound and all(np.isfinite(t).all() for t in tensors) and 1 <= int(meta["top_k"]) <= m
        if not sound or meta["gate"] not in ("one-hot", "softmax"):
            raise ValueError("weights or metadata that cannot be")
        return Actor(meta["env_id"], int(meta["steps"]), int(meta["top_k"]), meta["gate"], *tensors)
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a safetensors actor ({error}); copy or train it again") from None


def router_labels(actor: Actor, states: np.ndarray) -> np.ndarray:
    """The expert the router gives each state to, in float32 as in training; ties go to the lowest index."""
    return np.argmax(states @ actor.router_weight.T + actor.router_bias, axis=1)


def act(actor: Actor, state: np.ndarray, expert: Optional[int] = None) -> np.ndarray:
    """The deployed action; where `expert` is given, that expert alone acts, with weight 1."""
    if expert is None:
        logits = actor.router_weight @ state + actor.router_bias
        p = np.exp(logits - logits.max())
        p /= p.sum()
        chosen = np.argsort(-logits, kind="stable")[: actor.top_k]
        weights = p[chosen] / p[chosen].sum() if actor.gate == "one-hot" else p[chosen]
    else:
        chosen, weights = [expert], [np.float32(1)]
    mean = sum(w * (actor.mean_weight[m] @ state + actor.mean_bias[m]) for m, w in zip(chosen, weights, strict=True))
    return actor.action_scale * np.tanh(mean) + actor.action_bias


def make_env(actor: Actor) -> gym.Env:
    gym.logger.min_level = gym.logger.ERROR  # v4 ids are what the paper used; their age is no news
    try:
        env = gym.make(actor.env_id)
    except Exception as error:
        raise UserError(f"cannot make the environment {actor.env_id} ({error}); install what it needs") from None
    sizes, own = (env.observation_space.shape, env.action_space.shape), ((actor.obs_size,), actor.action_scale.shape)
    if sizes != own:
        raise UserError(f"{actor.env_id} has observation and action sizes {sizes}, the actor {own}; give its own actor")
    return env


def run_episode(env: gym.Env, actor: Actor, seed: int, trees: Optional[Forest] = None) -> tuple[float, np.ndarray]:
    """One deterministic episode, routed by `trees` if given: its return and the states acted in."""
    observation, _ = env.reset(seed=seed)
    states, total, done = [], 0.0, False
    while not done:
        state = np.asarray(observation, dtype=np.float32)
        states.append(state)
        expert = None if trees is None else tree_routed_expert(trees, state)
        observation, reward, terminated, truncated, _ = env.step(act(actor, state, expert))
        total += float(reward)
        done = terminated or truncated
    return total, np.stack(states)


def hold_out_episodes(episodes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mark the states of a random fifth of the episodes; a lone episode gives its last fifth instead."""
    distinct = np.unique(episodes)
    if len(distinct) == 1:
        return np.arange(len(episodes)) >= len(episodes) - max(1, round(HELD_OUT_SHARE * len(episodes)))
    return np.isin(episodes, rng.choice(distinct, max(1, round(HELD_OUT_SHARE * len(distinct))), replace=False))


def read_replay(actor: Actor, folder: Path, max_samples: int, rng: np.random.Generator) -> Data:
    """Label every written row of the run's replay file chunk by chunk, then draw at most `max_samples` of them."""
    path = folder / "replay.npy"
    try:
        config = json.loads((folder / "config.json").read_text())
        env_id, obs_size, columns = config["env_id"], int(config["obs_size"]), config["replay_columns"]
        first, last, episode_column = int(columns["obs"][0]), int(columns["obs"][1]), int(columns["episode"][0])
    except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{folder / 'config.json'} is missing or damaged ({error!r}); use --data rollouts") from None
    if (env_id, obs_size, last - first) != (actor.env_id, actor.obs_size, actor.obs_size):
        pair = f"{path} is of another environment ({env_id}, {obs_size} numbers) than the actor ({actor.env_id}, "
        raise UserError(f"{pair}{actor.obs_size}); give the actor of that run or use --data rollouts")
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged ({error}); use --data rollouts") from None
    is_table = isinstance(table, np.ndarray) and table.ndim == 2 and table.dtype == np.float32
    if not is_table or first < 0 or table.shape[1] <= max(last - 1, episode_column):
        raise UserError(f"{path} is no replay file of this run (columns not as in config.json); use --data rollouts")

    labels = np.zeros(len(table), dtype=np.int32)
    episodes = np.zeros(len(table), dtype=np.int64)
    chunk = 65_536
    for start in progress(range(0, len(table), chunk), desc="labelling", unit="chunk"):
        block = np.array(table[start : start + chunk])
        written = block[:, episode_column] != 0  # the file is sparse: the rest was never filled
        if not np.isfinite(block[written][:, first:last]).all() or not (block[written, episode_column] >= 1).all():
            raise UserError(f"{path} is damaged (states or episode numbers that cannot be); use --data rollouts")
        episodes[start : start + chunk][written] = block[written, episode_column]
        labels[start : start + chunk][written] = router_labels(actor, block[written, first:last])
    rows = np.flatnonzero(episodes)
    if len(rows) < 2:
        raise UserError(f"{path} is empty; train longer or use --data rollouts")
    counts = np.bincount(labels[rows], minlength=actor.n_experts)
    rows = rows[np.sort(rng.choice(len(rows), min(len(rows), max_samples), replace=False))]
    return Data(table[rows, first:last], labels[rows], episodes[rows], hold_out_episodes(episodes[rows], rng), counts)


def collect_states(
    env: gym.Env, actor: Actor, args: Args, first_seed: int, rng: np.random.Generator, trees: Optional[Forest] = None
) -> Data:
    """States the policy visits in whole episodes (five at least, so that a fifth can be held out), with labels."""
    visited: list[np.ndarray] = []
    with progress(total=args.rollout_steps, desc="collecting", unit="step") as bar:
        while len(visited) < 5 or sum(map(len, visited)) < args.rollout_steps:
            visited.append(run_episode(env, actor, first_seed + len(visited), trees)[1])
            bar.update(len(visited[-1]))
    states = np.concatenate(visited)
    labels = router_labels(actor, states)
    counts = np.bincount(labels, minlength=actor.n_experts)
    rows = np.sort(rng.choice(len(states), min(len(states), args.max_samples), replace=False))
    episodes = np.repeat(np.arange(len(visited)), [len(part) for part in visited])[rows]
    return Data(states[rows], labels[rows], episodes, hold_out_episodes(episodes, rng), counts)


def aggregate(data: Data, more: Data) -> Data:
    """DAgger's growing data set; every part keeps its own held-out episodes."""
    pairs = [(getattr(data, name), getattr(more, name)) for name in ("states", "labels", "episodes", "held_out")]
    pairs[2] = (data.episodes, data.episodes.max() + 1 + more.episodes)
    return Data(*map(np.concatenate, pairs), data.counts + more.counts)


def fit_tree(states: np.ndarray, labels: np.ndarray, n_classes: int, depth: int, seed: int) -> Tree:
    """CART with weights inversely proportional to class frequency."""
    classifier = DecisionTreeClassifier(max_depth=depth, class_weight="balanced", random_state=seed)
    arrays = classifier.fit(states, labels).tree_
    probability = np.zeros((arrays.node_count, n_classes))
    probability[:, classifier.classes_.astype(int)] = arrays.value[:, 0]  # fractions of the weight
    return Tree(arrays, probability)


def fit_trees(data: Data, n_experts: int, depth: int, seed: int) -> tuple[list[Tree], Tree]:
    """One yes-or-no tree per expert, and one multi-class tree, from the states that are not held out."""
    states, labels = data.states[~data.held_out], data.labels[~data.held_out]
    bar = progress(range(n_experts), desc="fitting", unit="tree")
    experts = [fit_tree(states, labels == m, 2, depth, seed) for m in bar]
    return experts, fit_tree(states, labels, n_experts, depth, seed)


def step_down(tree: Tree, states: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Move every state one level down from its node; states in leaves stay."""
    arrays, left = tree.arrays, tree.arrays.children_left[nodes]
    values = states[np.arange(len(states)), np.maximum(arrays.feature[nodes], 0)].astype(np.float64)
    below = np.where(values <= arrays.threshold[nodes], left, arrays.children_right[nodes])
    return np.where(left >= 0, below, nodes)


def binary_metrics(truth: np.ndarray, says: np.ndarray) -> dict[str, Optional[float]]:
    """Scores of a yes-or-no tree; None where a score is undefined, as precision is for a tree that never says yes."""
    tp, fp = int((truth & says).sum()), int((~truth & says).sum())
    fn, tn = int((truth & ~says).sum()), int((~truth & ~says).sum())
    recall = tp / (tp + fn) if tp + fn else None
    specificity = tn / (tn + fp) if tn + fp else None
    return {
        "accuracy": (tp + tn) / len(truth),
        "balanced_accuracy": (recall + specificity) / 2 if None not in (recall, specificity) else None,
        "precision": tp / (tp + fp) if tp + fp else None,
        "recall": recall,
        "f1": 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else None,
    }


def fidelity_curve(experts: list[Tree], multiclass: Tree, data: Data, depth: int) -> list[dict[str, Any]]:
    """Held-out scores of the trees cut at depths 1 to `depth`, alone and together."""
    states, labels = data.states[data.held_out], data.labels[data.held_out]
    nodes = [np.zeros(len(states), dtype=np.int64) for _ in [*experts, multiclass]]
    curve = []
    for level in range(1, depth + 1):
        nodes = [step_down(tree, states, at) for tree, at in zip([*experts, multiclass], nodes, strict=True)]
        yes = np.stack([tree.probability[at, 1] for tree, at in zip(experts, nodes[:-1], strict=True)], axis=1)
        scores = [{"expert": m + 1, **binary_metrics(labels == m, yes[:, m] > 0.5)} for m in range(len(experts))]
        joint = float((yes.argmax(axis=1) == labels).mean())
        single = float((multiclass.probability[nodes[-1]].argmax(axis=1) == labels).mean())
        curve.append({"depth": level, "joint_fidelity": joint, "multiclass_fidelity": single, "experts": scores})
    return curve


def json_nodes(tree: Tree, depth: int, multiclass: bool = False) -> Nodes:
    """The first `depth` levels, whole: go left if float32(state[feature]) <= threshold; the root is node 0."""
    # CART is greedy, so a deep tree cut at a depth is the tree fitted at that depth (but for ties between splits)
    nodes: Nodes = []
    feature, threshold = tree.arrays.feature.tolist(), tree.arrays.threshold.tolist()

    def add(i: int, level: int) -> int:
        index = len(nodes)
        nodes.append({})
        if tree.arrays.children_left[i] >= 0 and level < depth:
            nodes[index] |= {"feature": feature[i], "threshold": threshold[i]}
            nodes[index]["left"] = add(tree.arrays.children_left[i], level + 1)
            nodes[index]["right"] = add(tree.arrays.children_right[i], level + 1)
        else:
            p = tree.probability[i].tolist()
            nodes[index] |= {"probabilities": p} if multiclass else {"probability": p[1]}
            nodes[index]["samples"] = int(tree.arrays.n_node_samples[i])
        return index

    add(0, 0)
    return nodes


def leaf_of(nodes: Nodes, state: np.ndarray) -> dict[str, Any]:
    node = nodes[0]
    while "left" in node:
        # float() because NumPy would round the threshold to float32, which can move it past the next value
        node = nodes[node["left"] if float(state[node["feature"]]) <= node["threshold"] else node["right"]]
    return node


def tree_routed_expert(experts: Forest, state: np.ndarray) -> int:
    """The expert whose tree has the highest leaf probability; ties go to the lowest index."""
    probabilities = [leaf_of(nodes, state)["probability"] for nodes in experts]
    return probabilities.index(max(probabilities))


def closed_loop(env: gym.Env, actor: Actor, episodes: int, trees: Optional[Forest] = None) -> tuple[list[float], float]:
    """Returns on the evaluation seeds, and how often the trees choose as the router does where they themselves lead."""
    returns, agreed = [], []
    desc = "closed loop, " + ("router" if trees is None else "trees")
    for i in progress(range(episodes), desc=desc, unit="episode"):
        total, states = run_episode(env, actor, EVALUATION_SEED + i, trees)
        returns.append(total)
        if trees is not None:
            chosen = np.array([tree_routed_expert(trees, state) for state in states])
            agreed.extend(chosen == router_labels(actor, states))
    return returns, float(np.mean(agreed or [0]))


def compare_returns(router: list[float], trees: list[float], agreement: float, seed: int) -> dict[str, Any]:
    """Both means, and the paired difference with a 95% percentile bootstrap interval (None for a single episode)."""
    difference, n, interval = np.array(trees) - np.array(router), len(router), None
    if n > 1:
        draws = np.random.default_rng(seed).integers(n, size=(10_000, n))
        interval = np.percentile(difference[draws].mean(axis=1), [2.5, 97.5]).tolist()
    return {
        "episodes": n,
        "first_seed": EVALUATION_SEED,
        "router": {"mean": float(np.mean(router)), "std": float(np.std(router)), "returns": router},
        "trees": {"mean": float(np.mean(trees)), "std": float(np.std(trees)), "returns": trees},
        "difference": {"mean": float(difference.mean()), "interval_95": interval},
        "agreement": agreement,
    }


def observation_names(actor: Actor, user_file: Optional[Path]) -> list[list[str]]:
    """Names for text, and for figures the paper's symbols: the user's, the project's for this size, or obs[i]."""
    file = user_file or Path(__file__).resolve().parent / "scripts" / "names.json"
    try:
        names = json.loads(file.read_text(encoding="utf-8")) if user_file or file.is_file() else {}
        entries = names["obs"] if user_file else names.get(actor.env_id.rsplit("-v", 1)[0], {}).get("obs", [])
        if user_file and len(entries) != actor.obs_size:
            raise UserError(f"{file} names {len(entries)} observations, the actor has {actor.obs_size}; name them all")
        if len(entries) != actor.obs_size:
            entries = [f"obs[{i}]" for i in range(actor.obs_size)]
        entries = [{"text": entry} if isinstance(entry, str) else entry for entry in entries]
        symbols = [f"${e['latex']}$" if "latex" in e else e["text"].replace("$", r"\$") for e in entries]
        for symbol in symbols:
            MathTextParser("path").parse(symbol)
        return [[entry["text"] for entry in entries], symbols]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f'{file} is no file of names ({error!r}); write {{"obs": ["first name", ...]}}') from None


def percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def leaf_answer(nodes: Nodes, leaf: dict[str, Any], expert: int) -> str:
    return f"expert {expert}" if leaf["probability"] > 0.5 else "never" if len(nodes) == 1 else "another"


def tree_rules(nodes: Nodes, names: list[str], expert: int, n_states: int, at: int = 0, indent: str = "") -> list[str]:
    """The tree as indented text."""
    node = nodes[at]
    if "left" not in node:
        share, answer = percent(node["samples"] / n_states), leaf_answer(nodes, node, expert)
        return [f"{indent}{answer}, probability {node['probability']:.3f} ({share} of states)"]
    yes, no = (tree_rules(nodes, names, expert, n_states, node[side], indent + "    ") for side in ("left", "right"))
    return [f"{indent}if {names[node['feature']]} <= {node['threshold']:.4g}:", *yes, f"{indent}else:", *no]


def tree_figure(nodes: Nodes, symbols: list[str], expert: int, n_states: int, title: str, about: str) -> Figure:
    """A drawn tree: questions in white boxes, leaves coloured by the probability that the expert takes the state."""
    row, box, gap, margin = 1.15, 0.6, 0.2, 0.25  # inches, as are all coordinates
    colours = LinearSegmentedColormap.from_list("probability", ["#efe9e1", "#c5dbe8", "#2f79a8", "#14507a"])

    def lines(node: dict[str, Any]) -> list[str]:
        if "left" in node:
            return [f"{symbols[node['feature']]} ≤ " + f"{node['threshold']:.4g}".replace("-", "−")]
        answer = f"{leaf_answer(nodes, node, expert)} · {node['probability']:.2f}"
        return [answer, f"{percent(node['samples'] / n_states)} of states"]

    def width(text: str, size: float) -> float:
        return TextPath((0, 0), text, size=size).get_extents().width / 72

    box_width = max([1.2, *(width(text, 11.5) + 0.25 for node in nodes for text in lines(node))])
    place: dict[int, tuple[float, int]] = {}
    leaves = iter(range(len(nodes)))

    def lay_out(i: int, level: int) -> float:
        below = [lay_out(nodes[i][side], level + 1) for side in ("left", "right") if side in nodes[i]]
        x = sum(below) / 2 if below else next(leaves) * (box_width + gap)
        place[i] = (x, level)
        return x

    lay_out(0, 0)
    tree_width = max(x for x, _ in place.values()) + box_width
    full_width = max(tree_width, width(title, 16), width(about, 9)) + 2 * margin
    height = max(level for _, level in place.values()) * row + box + 1.15
    left, top = (full_width - tree_width + box_width) / 2, height - 0.9 - box / 2
    figure = Figure(figsize=(full_width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, full_width), ylim=(0, height))
    axes.axis("off")
    axes.text(margin, height - 0.2, title, size=13, weight="bold", va="top", color="#222222")
    axes.text(margin, height - 0.5, about, size=9, va="top", color="#555555")
    centre = {i: (left + x, top - level * row) for i, (x, level) in place.items()}
    for i, node in enumerate(nodes):
        x, y = centre[i]
        for side, answer in (("left", "yes"), ("right", "no")) if "left" in node else ():
            to_x, to_y = centre[node[side]]
            axes.plot([x, to_x], [y - box / 2, to_y + box / 2], color="#888888", lw=1.2, zorder=1)
            paper = {"fc": "white", "ec": "none", "pad": 1.5}
            middle = ((x + to_x) / 2, (y + to_y) / 2)
            axes.text(*middle, answer, size=8.5, style="italic", color="#555555", ha="center", va="center", bbox=paper)
        p = node.get("probability")
        fill, ink = ("white", "#222222") if p is None else (colours(p), "white" if p > 0.55 else "#222222")
        corner, style = (x - box_width / 2 + 0.1, y - box / 2 + 0.1), "round,pad=0.1,rounding_size=0.13"
        size = (box_width - 0.2, box - 0.2)
        axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=style, fc=fill, ec="#666666", lw=1, zorder=2))
        first, *second = lines(node)
        weight = "bold" if second else "normal"
        axes.text(x, y + 0.1 * len(second), first, size=10.5, weight=weight, ha="center", va="center", color=ink)
        axes.text(x, y - 0.15, "".join(second), size=8, ha="center", va="center", color=ink)
    return figure


def curve_figure(report: Report) -> Figure:
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    together, alone = figure.subplots(1, 2)
    curve, n_experts = report["curve"], len(report["experts"])
    depths = [row["depth"] for row in curve]
    joint, single = ([row[f"{name}_fidelity"] for row in curve] for name in ("joint", "multiclass"))
    together.plot(depths, joint, "o-", color="#14507a", label=f"{n_experts} trees")
    together.plot(depths, single, "s--", color="#c2571a", label="one multi-class tree")
    together.axhline(report["majority_fidelity"], color="#777777", lw=1, ls=":", label="always the commonest expert")
    together.set_title("agreement with the router", loc="left", size=11)
    together.set_ylim(0, 1.02)
    colours = matplotlib.colormaps["tab10" if n_experts <= 10 else "turbo"]
    for m in range(n_experts):
        scores = [row["experts"][m]["balanced_accuracy"] for row in curve]
        colour = colours(m if n_experts <= 10 else m / (n_experts - 1))
        if None not in scores:
            alone.plot(depths, scores, "o-", ms=3.5, lw=1.3, color=colour, label=f"expert {m + 1}")
    alone.set_title("balanced accuracy of each expert's tree", loc="left", size=11)
    for axes in (together, alone):
        axes.axvline(report["max_depth"], color="#bbbbbb", lw=7, alpha=0.35, zorder=0)
        axes.set(xlabel="depth", xticks=depths)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    together.legend(frameon=False, fontsize=9, loc="lower right")
    outside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    alone.legend(*alone.get_legend_handles_labels(), frameon=False, fontsize=8, ncols=1 + n_experts // 17, **outside)
    figure.suptitle(f"{report['env_id']}: trees and router on held-out states", x=0.01, ha="left", weight="bold")
    return figure


def write_files(out: Path, report: Report, experts: list[Tree], multiclass: Tree, names: list[list[str]]) -> None:
    texts, symbols = names
    n_states, depth = report["data"]["train_states"], report["max_depth"]
    exported = []
    for tree, row in zip(progress(experts, desc="drawing", unit="tree"), report["experts"], strict=True):
        nodes, m = json_nodes(tree, depth), row["expert"]
        exported.append({"expert": m, "share": row["share"], "never": row["never"], "nodes": nodes})
        title = f"{report['env_id']}: does expert {m} take the state?"
        about = f"never: none of the {n_states:,} training states is routed to expert {m}"
        if not row["never"]:
            about = f"It takes {percent(row['share'])} of states; balanced accuracy {score(row['balanced_accuracy'])} "
            about += "on held-out states. Probabilities weigh it and all others equally."
        rules = "\n".join([title, about, "", *tree_rules(nodes, texts, m, n_states), ""])
        (out / f"expert_{m}.txt").write_text(rules, encoding="utf-8")
        figure = tree_figure(nodes, symbols, m, n_states, title, about)
        with matplotlib.rc_context({"svg.hashsalt": "smose"}):  # the same tree gives the same file
            figure.savefig(out / f"expert_{m}.svg", metadata={"Date": None})
        # deep trees are wide, and a PNG side has at most 65,536 pixels
        figure.savefig(out / f"expert_{m}.png", dpi=min(160, 30_000 / figure.get_figwidth()))
    forest = {"format": "smose-trees", "env_id": report["env_id"], "obs_names": texts, "max_depth": depth}
    forest |= {"experts": exported, "multiclass": {"nodes": json_nodes(multiclass, depth, multiclass=True)}}
    (out / "trees.json").write_text(json.dumps(forest, ensure_ascii=False, indent=1), encoding="utf-8")
    (out / "fidelity.json").write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
    curve_figure(report).savefig(out / "fidelity.png", dpi=160)


@contextlib.contextmanager
def folder_replaced_at_the_end(folder: Path) -> Iterator[Path]:
    """Write into a fresh folder that takes the place of the old one only when everything is there."""
    if folder.exists() and not (folder.is_dir() and ((folder / "trees.json").exists() or not any(folder.iterdir()))):
        raise UserError(f"{folder} exists and was not written by this script; move it away, it would be replaced")
    fresh = folder.with_name(f".trees-{os.getpid()}")
    fresh.mkdir()
    try:
        yield fresh
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def make_report(
    args: Args, path: Path, actor: Actor, data: Data, source: dict[str, Any], curve: list[dict], rounds: list[dict]
) -> Report:
    """Everything fidelity.json says."""
    in_training = np.bincount(data.labels[~data.held_out], minlength=actor.n_experts)
    at_depth = curve[args.max_depth - 1]
    experts = [
        {"expert": row["expert"], "share": float(share), "never": bool(n == 0), **row}
        for row, share, n in zip(at_depth["experts"], data.counts / data.counts.sum(), in_training, strict=True)
    ]
    parts = [np.unique(data.episodes[data.held_out == part]) for part in (False, True)]
    notes = []
    if np.intersect1d(*parts).size:
        notes.append("only one episode: its last fifth is held out, so neighbouring states are in both parts")
    if actor.top_k > 1 or actor.gate != "one-hot":
        mix = f"the actor weighs its experts (top_k {actor.top_k}, gate {actor.gate})"
        notes.append(f"{mix}; routed by trees, one expert acts alone with weight 1: part of the difference")
    counted = {"train_states": rounds[-1]["train_states"], "held_out_states": rounds[-1]["held_out_states"]}
    counted |= {"train_episodes": len(parts[0]), "held_out_episodes": len(parts[1])}
    return {
        "format": "smose-fidelity",
        "env_id": actor.env_id,
        "actor": path.name,
        "steps": actor.steps,
        "max_depth": args.max_depth,
        "seed": args.seed,
        "data": source | {"max_samples": args.max_samples} | counted,
        "notes": notes,
        "experts": experts,
        **{name: at_depth[name] for name in ("joint_fidelity", "multiclass_fidelity")},
        "majority_fidelity": float((data.labels[data.held_out] == in_training.argmax()).mean()),
        "curve": curve,
        "closed_loop": rounds[-1]["closed_loop"],
        "dagger": rounds if args.dagger else [],
    }


def score(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.3f}"


def print_report(report: Report) -> None:
    data, depth, n_experts = report["data"], report["max_depth"], len(report["experts"])
    trained = f"trained on {data['train_states']:,} states of {data['train_episodes']:,} episodes"
    held_out = f"held out {data['held_out_states']:,} states of {data['held_out_episodes']:,} others"
    print("\n".join([f"{trained}, {held_out}", *(f"note: {note}" for note in report["notes"])]))
    print(f"\ntrees of depth {depth}, on held-out states\nexpert   share  accuracy  balanced  precision  recall     F1")
    for row in report["experts"]:
        line = f"{row['expert']:>6} {percent(row['share']):>7}  {score(row['accuracy']):>8}"
        line += f"  {score(row['balanced_accuracy']):>8}  {score(row['precision']):>9}  {score(row['recall']):>6}"
        print(f"{line}  {score(row['f1']):>5}" + "  never: no training state is routed to it" * row["never"])
    print("\nhow often the choice is the router's, on held-out states")
    print(f"depth  {n_experts:>2} trees  one multi-class tree")
    for row in report["curve"]:
        mark = "  <- the trees written" * (row["depth"] == depth)
        print(f"{row['depth']:>5}  {row['joint_fidelity']:>8.1%}  {row['multiclass_fidelity']:>20.1%}{mark}")
    print(f"(always the commonest expert: {report['majority_fidelity']:.1%})")
    if loop := report["closed_loop"]:
        print(f"\nclosed loop, {loop['episodes']} episodes on the same seeds (from {loop['first_seed']})")
        print(f"  linear router {loop['router']['mean']:10.2f} ± {loop['router']['std']:.2f} over episodes")
        print(f"  trees         {loop['trees']['mean']:10.2f} ± {loop['trees']['std']:.2f} over episodes")
        print(f"  difference    {difference_text(loop)}, paired, with its 95% bootstrap interval")
        print(f"  where they lead, the trees choose the router's expert {loop['agreement']:.1%} of the time")
    if report["dagger"]:
        print("\nDAgger\nround   states  fidelity  (first data)  where they lead     return  difference (95% interval)")
    for row in report["dagger"]:
        first = row["joint_fidelity_first_data"]
        line = f"{row['round']:>5}  {row['train_states']:>7}  {row['joint_fidelity']:>8.1%}  {first:>12.1%}"
        if loop := row["closed_loop"]:
            line += f"  {loop['agreement']:>15.1%}  {loop['trees']['mean']:>9.2f}  {difference_text(loop)}"
        print(line)


def difference_text(loop: dict[str, Any]) -> str:
    mean, interval = loop["difference"]["mean"], loop["difference"]["interval_95"]
    return f"{mean:10.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else " (one episode)")


def distill_rounds(
    args: Args, actor: Actor, env: Optional[gym.Env], data: Data, rng: np.random.Generator
) -> tuple[Data, list[Tree], Tree, list[dict[str, Any]]]:
    """Fit and judge; with --dagger, again after each round of states that the trees themselves lead to."""
    first_data, trees, rounds = data, [], []
    router_returns = closed_loop(env, actor, args.episodes)[0]
    for number in range(args.dagger + 1):
        if number:
            first_seed = DAGGER_SEED + 100_000 * (number - 1)
            data = aggregate(data, collect_states(env, actor, args, first_seed, rng, trees))
        depth = CURVE_DEPTH if number == args.dagger else args.max_depth  # only the last trees get a curve
        experts, multiclass = fit_trees(data, actor.n_experts, depth, args.seed)
        trees = [json_nodes(tree, args.max_depth) for tree in experts]
        now, on_first = (fidelity_curve(experts, multiclass, d, args.max_depth)[-1] for d in (data, first_data))
        result = {"round": number, "train_states": int((~data.held_out).sum())}
        result |= {"held_out_states": int(data.held_out.sum()), "joint_fidelity": now["joint_fidelity"]}
        result |= {"joint_fidelity_first_data": on_first["joint_fidelity"], "closed_loop": None}
        if args.episodes:
            tree_returns, agreement = closed_loop(env, actor, args.episodes, trees)
            result["closed_loop"] = compare_returns(router_returns, tree_returns, agreement, args.seed)
        rounds.append(result)
    return data, experts, multiclass, rounds


def distill(args: Args) -> None:
    if not 1 <= args.max_depth <= CURVE_DEPTH:
        raise UserError(f"--max-depth {args.max_depth} is out of range; choose 1 to {CURVE_DEPTH}")
    for name, least in {"max_samples": 10, "rollout_steps": 1, "episodes": 0, "dagger": 0, "seed": 0}.items():
        if getattr(args, name) < least:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)} is too small; give {least} or more")
    path = args.path / "actor.safetensors" if args.path.is_dir() else args.path
    if not path.is_file():
        raise UserError(f"there is no {path}; give a run folder or an actor file that smose_sac.py wrote")
    actor = load_actor(path)
    names = observation_names(actor, args.names)
    has_replay = (path.parent / "replay.npy").is_file()
    if args.data == "replay" and not has_replay:
        raise UserError(f"{path.parent} has no replay.npy; use --data rollouts")
    source = args.data or ("replay" if has_replay else "rollouts")
    env = make_env(actor) if source == "rollouts" or args.episodes or args.dagger else None
    rng = np.random.default_rng(args.seed)
    with folder_replaced_at_the_end(path.parent / "trees") as out:
        if source == "replay":
            data = read_replay(actor, path.parent, args.max_samples, rng)
        else:
            data = collect_states(env, actor, args, ROLLOUT_SEED, rng)
        available, used = int(data.counts.sum()), len(data.states)
        print(f"{actor.env_id}: {actor.n_experts} experts, labels by the router of {path.name} (step {actor.steps:,})")
        drawn = f", drawn at random (--max-samples {args.max_samples})" if used < available else ""
        print(f"states: {used:,} of {available:,} from {source}{drawn}", flush=True)
        data, experts, multiclass, rounds = distill_rounds(args, actor, env, data, rng)
        curve = fidelity_curve(experts, multiclass, data, CURVE_DEPTH)
        origin = {"source": source, "states_available": available, "states_used": used}
        report = make_report(args, path, actor, data, origin, curve, rounds)
        write_files(out, report, experts, multiclass, names)
    print_report(report)
    print(f"\nwritten to {path.parent / 'trees'}")


def parse_args() -> Args:
    """The command line; tyro's framed message about a mistake becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Args, description=__doc__)
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
        distill(parse_args())
    except (UserError, OSError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
