"""Distil a trained SMoSE router into M readable decision trees, and measure what that costs.

Every state is labelled by the trained router; for each expert one small CART tree says whether that expert takes the
state (paper: appendix, "Decision Trees as a support for interpretation"). The trees are then judged three ways: on
held-out episodes, over depths 1 to 8, and in closed loop, where they replace the router on the same episode seeds.
Trees fitted on other episodes drive differently, so the closed loop is repeated with trees from resampled episodes.

    python distill_trees.py runs/Reacher-v4__smose_sac__0__1763251200
    python distill_trees.py results/policies/Reacher-v4/smose                # no replay file: states from new episodes
    python distill_trees.py runs/.../actor_best.safetensors --max-depth 4 --episodes 100
    python distill_trees.py runs/... --data rollouts --dagger 5              # also learn from states the trees visit

Leaves in `trees/` beside the actor (`trees_best/` for actor_best.safetensors, and so on): expert_m.svg, expert_m.png,
expert_m.txt, trees.json, fidelity.json, fidelity.png.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "scripts"))
from command_line import UserError, end_on_mistakes, parse_args, printable, read_json

# from here on Ctrl-C is quiet
# isort: split

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Optional

import gymnasium as gym
import matplotlib
import numpy as np
import tyro
from names import read_names
from saved_actor import FIRST_EVAL_SEED, Actor, Policy, load_actor, make_env, make_policy, play
from saved_trees import Forest, Nodes, chosen_expert, trees_folder
from sklearn.tree import DecisionTreeClassifier
from tqdm import tqdm
from tree_figures import curve_figure, leaf_answer, percent, symbol, tree_figure

CURVE_DEPTH = 8
HELD_OUT_SHARE = 0.2
ROLLOUT_SEED = 200_000  # states come from other episodes than the closed loop's, which start at FIRST_EVAL_SEED
DAGGER_SEED = 300_000  # plus 100,000 for each further round
OWN_FILES = r"expert_\d+\.(svg|png|txt)|trees\.json|fidelity\.(json|png)"
Report = dict[str, Any]
progress = partial(tqdm, disable=None, leave=False)  # None: shown on a terminal only


@dataclass
class Args:
    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="PATH")]
    """a run folder (its actor.safetensors is read) or a *.safetensors file of a SMoSE actor"""
    max_depth: int = 3
    """depth of the trees (1 to 8)"""
    data: Optional[Literal["replay", "rollouts"]] = None
    """states to learn from: the run's replay file or new episodes of the policy (default: replay if there is one)"""
    max_samples: int = 200_000
    """use at most this many of the states, drawn at random"""
    rollout_steps: int = 20_000
    """environment steps collected by `--data rollouts`, and by each round of `--dagger`"""
    episodes: int = 20
    """closed-loop episodes for the trees and for the linear router, on the same seeds (0 leaves the closed loop out)"""
    fits: int = 10
    """forests that drive in closed loop: the trees written, and others fitted on resampled training episodes"""
    dagger: int = 0
    """rounds of adding router-labelled states that the tree-routed policy itself visits"""
    seed: int = 0
    """seed of the held-out choice, the subsample, the fits and the bootstrap"""
    env_id: Optional[str] = None
    """another environment than the one the actor was trained on, of the same sizes (Hopper-v5 for Hopper-v4)"""
    names: Optional[str] = None
    """a JSON file that names the observations and actions: {"obs": [...], "action": [...]}"""
    output: Optional[Path] = None
    """the folder to write to (default: trees/ beside the actor)"""


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


def router_labels(actor: Actor, states: np.ndarray) -> np.ndarray:
    """The expert that the deployed policy gives each state to; ties go to the lowest index."""
    policy = make_policy(actor)
    return np.array([policy(state)[1] for state in states], np.int32)


def tree_routed(actor: Actor, forest: Forest) -> Policy:
    return make_policy(actor, route=partial(chosen_expert, forest))


def run_episode(env: gym.Env, policy: Policy, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
    """One deterministic episode: its return, the states acted in, and who acted."""
    total, states, experts = 0.0, [], []
    for step in play(env, policy, seed):
        total += step.reward
        states.append(step.obs)
        experts.append(step.expert)
    return total, np.array(states, np.float32), np.array(experts)


def hold_out_episodes(episodes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mark the states of a random fifth of the episodes; a lone episode gives its last fifth instead."""
    distinct = np.unique(episodes)
    if len(distinct) == 1:
        return np.arange(len(episodes)) >= len(episodes) - max(1, round(HELD_OUT_SHARE * len(episodes)))
    return np.isin(episodes, rng.choice(distinct, max(1, round(HELD_OUT_SHARE * len(distinct))), replace=False))


def read_replay(actor: Actor, folder: Path, max_samples: int, rng: np.random.Generator) -> Data:
    """Label every written row of the run's replay file chunk by chunk, then draw at most `max_samples` of them."""
    path = folder / "replay.npy"
    config = read_json(folder / "config.json", "use --data rollouts")
    try:
        env_id, obs_size, columns = config["env_id"], int(config["obs_size"]), config["replay_columns"]
        first, last, episode_column = int(columns["obs"][0]), int(columns["obs"][1]), int(columns["episode"][0])
    except (LookupError, ArithmeticError, ValueError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} is damaged ({error!r}); use --data rollouts") from None
    if (env_id, obs_size, last - first) != (actor.env_id, actor.obs_size, actor.obs_size):
        pair = f"{path} is of another environment ({env_id}, {obs_size} numbers) than the actor ({actor.env_id}, "
        raise UserError(f"{pair}{actor.obs_size}); give the actor of that run or use --data rollouts")
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy's reader lets a tokenizer's errors through, among others
        raise UserError(f"{path} is damaged ({error}); use --data rollouts") from None
    is_table = isinstance(table, np.ndarray) and table.ndim == 2 and table.dtype == np.float32
    if not is_table or min(first, episode_column) < 0 or table.shape[1] <= max(last - 1, episode_column):
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
    env: gym.Env, actor: Actor, args: Args, first_seed: int, rng: np.random.Generator, forest: Optional[Forest] = None
) -> Data:
    """States the policy visits in whole episodes (five at least, so that a fifth can be held out), with labels."""
    policy = make_policy(actor) if forest is None else tree_routed(actor, forest)
    visited: list[np.ndarray] = []
    with progress(total=args.rollout_steps, desc="collecting", unit="step") as bar:
        while len(visited) < 5 or sum(map(len, visited)) < args.rollout_steps:
            visited.append(run_episode(env, policy, first_seed + len(visited))[1])
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


def fit_experts(states: np.ndarray, labels: np.ndarray, n_experts: int, depth: int, seed: int) -> list[Tree]:
    """One yes-or-no tree per expert."""
    bar = progress(range(n_experts), desc="fitting", unit="tree")
    return [fit_tree(states, labels == m, 2, depth, seed) for m in bar]


def resampled_rows(data: Data, rng: np.random.Generator) -> np.ndarray:
    """The training rows of as many training episodes, drawn with replacement."""
    rows = np.flatnonzero(~data.held_out)
    distinct, which = np.unique(data.episodes[rows], return_inverse=True)
    times = np.bincount(rng.integers(len(distinct), size=len(distinct)), minlength=len(distinct))
    return np.repeat(rows, times[which])


def other_forests(data: Data, n_experts: int, args: Args) -> Iterator[Forest]:
    """What might have been written had other episodes been seen: trees fitted on resampled training episodes."""
    rng = np.random.default_rng([args.seed, 1])
    one_episode = len(np.unique(data.episodes[~data.held_out])) == 1
    for _ in range(0 if one_episode else args.fits - 1):
        rows = resampled_rows(data, rng)
        trees = fit_experts(data.states[rows], data.labels[rows], n_experts, args.max_depth, args.seed)
        yield [json_nodes(tree, args.max_depth) for tree in trees]


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


def closed_loop(env: gym.Env, policy: Policy, args: Args, desc: str) -> tuple[list[float], np.ndarray, np.ndarray]:
    """Returns on the evaluation seeds, with all states met and who acted in them."""
    bar = progress(range(args.episodes), desc=f"closed loop, {desc}", unit="episode")
    returns, states, experts = zip(*(run_episode(env, policy, FIRST_EVAL_SEED + i) for i in bar), strict=True)
    return list(returns), np.concatenate(states), np.concatenate(experts)


def compare_returns(router: list[float], fits: list[list[float]], seed: int) -> dict[str, Any]:
    """The first fit's trees against the router, paired by episode, with a 95% bootstrap interval.

    A draw takes any of the fits and resamples its episodes: the interval says how far the cost of distilling may lie
    from the mean, had other episodes been driven or learnt from. None where there is nothing to resample.
    """
    rng, n, differences = np.random.default_rng(seed), len(router), np.array(fits) - np.array(router)
    drawn = [difference[rng.integers(n, size=(10_000, n))].mean(axis=1) for difference in differences]
    interval = np.percentile(drawn, [2.5, 97.5]).tolist() if differences.size > 1 else None
    return {
        "episodes": n,
        "first_seed": FIRST_EVAL_SEED,
        "router": {"mean": float(np.mean(router)), "std": float(np.std(router)), "returns": router},
        "trees": {"mean": float(np.mean(fits[0])), "std": float(np.std(fits[0])), "returns": fits[0]},
        "fits": [float(np.mean(returns)) for returns in fits],
        "difference": {"mean": float(differences[0].mean()), "interval_95": interval},
    }


def drive(env: gym.Env, actor: Actor, forest: Forest, data: Data, router: list[float], args: Args) -> dict[str, Any]:
    """The closed loop with the trees as router, and with the trees of other fits."""
    returns, states, experts = closed_loop(env, tree_routed(actor, forest), args, "trees")
    fits = [returns]
    for other in other_forests(data, actor.n_experts, args):
        fits.append(closed_loop(env, tree_routed(actor, other), args, f"fit {len(fits) + 1} of {args.fits}")[0])
    agreement = float((experts == router_labels(actor, states)).mean())
    driven_in = args.env_id or actor.env_id
    return {"env_id": driven_in} | compare_returns(router, fits, args.seed) | {"agreement": agreement}


def tree_rules(nodes: Nodes, names: list[str], expert: int, n_states: int, at: int = 0, indent: str = "") -> list[str]:
    """The tree as indented text."""
    node = nodes[at]
    if "feature" not in node:
        share, answer = percent(node["samples"] / n_states), leaf_answer(nodes, node, expert)
        return [f"{indent}{answer}, probability {node['probability']:.3f} ({share} of states)"]
    yes, no = (tree_rules(nodes, names, expert, n_states, node[side], indent + "    ") for side in ("left", "right"))
    return [f"{indent}if {names[node['feature']]} <= {node['threshold']:.4g}:", *yes, f"{indent}else:", *no]


def write_files(
    out: Path, report: Report, actor: Actor, experts: list[Tree], multiclass: Tree, names: list[dict[str, str]]
) -> None:
    texts, symbols = [printable(name["text"]) for name in names], [symbol(name) for name in names]
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
    trees = {"format": "smose-trees", "env_id": report["env_id"], "actor": actor.identity, "obs_names": texts}
    trees |= {"max_depth": depth, "experts": exported}
    trees |= {"multiclass": {"nodes": json_nodes(multiclass, depth, multiclass=True)}}
    (out / "trees.json").write_text(json.dumps(trees, ensure_ascii=False, indent=1), encoding="utf-8")
    (out / "fidelity.json").write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
    curve_figure(report).savefig(out / "fidelity.png", dpi=160)


@contextlib.contextmanager
def folder_replaced_at_the_end(folder: Path) -> Iterator[Path]:
    """Write into a fresh folder that takes the place of the old one only when everything is there."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give another --output")
    if folder.exists() and not all(re.fullmatch(OWN_FILES, path.name) for path in folder.iterdir()):
        raise UserError(f"{folder} has files that this script did not write; move it away or give another --output")
    if not folder.parent.is_dir():
        raise UserError(f"--output {folder}: the folder above it does not exist; make it first")
    fresh, old = (folder.with_name(f".{folder.name}-{word}-{os.getpid()}") for word in ("new", "old"))
    try:
        fresh.mkdir()
        yield fresh
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left_over in (fresh, old):
            shutil.rmtree(left_over, ignore_errors=True)


def make_report(
    args: Args, actor: Actor, data: Data, source: dict[str, Any], curve: list[dict], rounds: list[dict]
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
    if len(parts[0]) == 1 and args.episodes and args.fits > 1:
        notes.append("only one training episode: nothing to resample, so the interval does not cover the fit")
    if actor.top_k > 1 or actor.gate != "one-hot":
        mix = f"the actor weighs its experts (top_k {actor.top_k}, gate {actor.gate})"
        notes.append(f"{mix}; routed by trees, one expert acts alone with weight 1: part of the difference")
    counted = {"train_states": rounds[-1]["train_states"], "held_out_states": rounds[-1]["held_out_states"]}
    counted |= {"train_episodes": len(parts[0]), "held_out_episodes": len(parts[1])}
    return {
        "format": "smose-fidelity",
        "env_id": actor.env_id,
        "actor": actor.path.name,
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
    print(
        f"{report['env_id']}: {n_experts} experts, labels by the router of {report['actor']} (step {report['steps']:,})"
    )
    used, available = data["states_used"], data["states_available"]
    drawn = f", drawn at random (--max-samples {data['max_samples']})" if used < available else ""
    print(f"states: {used:,} of {available:,} from {data['source']}{drawn}")
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
        episodes = f"{loop['episodes']} episodes on the same seeds ({loop['first_seed']}...)"
        print(f"\nclosed loop in {loop['env_id']}, {episodes}")
        print(f"  linear router {loop['router']['mean']:10.2f} (spread over episodes {loop['router']['std']:.2f})")
        print(f"  trees         {loop['trees']['mean']:10.2f} (spread over episodes {loop['trees']['std']:.2f})")
        others = len(loop["fits"]) - 1
        over = "episodes and fits" if others else "episodes"
        print(f"  difference    {difference_text(loop)}, paired, with its 95% interval over {over}")
        if others:
            low, mean, high = min(loop["fits"]), np.mean(loop["fits"]), max(loop["fits"])
            among = f"with {others} more fits, on resampled episodes"
            print(f"  {among}: returns {low:.2f} to {high:.2f}, {mean:.2f} on average")
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
    first_data, forest, rounds = data, [], []
    router_returns = closed_loop(env, make_policy(actor), args, "router")[0] if args.episodes else []
    for number in range(args.dagger + 1):
        if number:
            first_seed = DAGGER_SEED + 100_000 * (number - 1)
            data = aggregate(data, collect_states(env, actor, args, first_seed, rng, forest))
        depth = CURVE_DEPTH if number == args.dagger else args.max_depth  # only the last trees get a curve
        states, labels = data.states[~data.held_out], data.labels[~data.held_out]
        experts = fit_experts(states, labels, actor.n_experts, depth, args.seed)
        multiclass = fit_tree(states, labels, actor.n_experts, depth, args.seed)
        forest = [json_nodes(tree, args.max_depth) for tree in experts]
        now, on_first = (fidelity_curve(experts, multiclass, d, args.max_depth)[-1] for d in (data, first_data))
        result = {"round": number, "train_states": len(states), "held_out_states": int(data.held_out.sum())}
        result |= {"joint_fidelity": now["joint_fidelity"], "joint_fidelity_first_data": on_first["joint_fidelity"]}
        result["closed_loop"] = drive(env, actor, forest, data, router_returns, args) if args.episodes else None
        rounds.append(result)
    return data, experts, multiclass, rounds


def check(args: Args) -> None:
    if not 1 <= args.max_depth <= CURVE_DEPTH:
        raise UserError(f"--max-depth {args.max_depth} is out of range; choose 1 to {CURVE_DEPTH}")
    for name, least in {
        "max_samples": 10,
        "rollout_steps": 1,
        "episodes": 0,
        "fits": 1,
        "dagger": 0,
        "seed": 0,
    }.items():
        if getattr(args, name) < least:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)} is too small; give {least} or more")
    if args.seed >= 2**32:
        raise UserError(f"--seed {args.seed} is too large; give at most {2**32 - 1}")


def main(args: Args) -> None:
    check(args)
    actor = load_actor(args.path)
    if not actor.n_experts:
        raise UserError(f"{actor.path} is a SAC actor and has no router; trees need a SMoSE actor")
    names = read_names(args.names, actor.env_id, actor.obs_size, actor.action_size)["obs"]
    folder = actor.path.parent
    has_replay = (folder / "replay.npy").is_file()
    if args.data == "replay" and not has_replay:
        raise UserError(f"{folder} has no replay.npy; use --data rollouts")
    source = args.data or ("replay" if has_replay else "rollouts")
    env = make_env(actor, args.env_id) if source == "rollouts" or args.episodes or args.dagger else None
    rng = np.random.default_rng(args.seed)
    output = (args.output or trees_folder(actor.path)).resolve()
    with folder_replaced_at_the_end(output) as out:
        if source == "replay":
            data = read_replay(actor, folder, args.max_samples, rng)
        else:
            data = collect_states(env, actor, args, ROLLOUT_SEED, rng)
        origin = {"source": source, "states_available": int(data.counts.sum()), "states_used": len(data.states)}
        data, experts, multiclass, rounds = distill_rounds(args, actor, env, data, rng)
        curve = fidelity_curve(experts, multiclass, data, CURVE_DEPTH)
        report = make_report(args, actor, data, origin, curve, rounds)
        write_files(out, report, actor, experts, multiclass, names)
    print_report(report)  # last, so that nothing is lost when nobody listens
    print(f"\nwritten to {printable(str(output))}")


if __name__ == "__main__":
    end_on_mistakes(lambda: main(parse_args(Args, __doc__)))
