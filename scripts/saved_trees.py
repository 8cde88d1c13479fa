"""Trees as distill_trees.py writes them: where they lie, whose they are, whether they are sound, whom they choose."""

from pathlib import Path
from typing import Any

import numpy as np
from command_line import UserError, read_json
from saved_actor import Actor

Nodes = list[dict[str, Any]]  # a tree as trees.json has it: the root first, a node before its children
Forest = list[Nodes]  # one tree per expert


def trees_folder(actor: Path) -> Path:
    """trees/ beside actor.safetensors, trees_best/ beside actor_best.safetensors, and so on."""
    stem = actor.stem
    return actor.with_name("trees" + (stem.removeprefix("actor") if stem.startswith("actor") else f"_{stem}"))


def read_trees(actor: Actor) -> dict[str, Any]:
    """The trees.json beside an actor, if its trees are of this very actor and sound."""
    if not actor.n_experts:
        raise UserError(f"{actor.path} is a SAC actor and has no router; trees need a SMoSE actor")
    file, again = trees_folder(actor.path) / "trees.json", f"run python distill_trees.py {actor.path}"
    trees = read_json(file, again)
    try:
        owner, forest = trees["actor"]["sha256"], forest_of(trees)
    except (KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged or of an older version ({error!r}); {again}") from None
    if owner != actor.identity["sha256"]:
        raise UserError(f"{file} was made from another actor than {actor.path.name}; {again}")
    if len(forest) != actor.n_experts or not all(is_tree(nodes, actor.obs_size) for nodes in forest):
        raise UserError(f"{file} holds no trees for {actor.path.name}; {again}")
    return trees


def forest_of(trees: dict[str, Any]) -> Forest:
    return [tree["nodes"] for tree in trees["experts"]]


def is_tree(nodes: Any, obs_size: int) -> bool:
    """Whether every walk from the root ends in a leaf: children come after their parent, so there is no way back."""

    def sound(i: int, node: Any) -> bool:
        if not isinstance(node, dict):
            return False
        if "feature" not in node:
            return type(node.get("probability")) in (int, float) and 0 <= node["probability"] <= 1
        sides = [node.get("left"), node.get("right")]
        steps_on = all(type(side) is int and i < side < len(nodes) for side in sides)
        feature, threshold = node["feature"], node.get("threshold")
        asks = type(feature) is int and 0 <= feature < obs_size and type(threshold) in (int, float)
        return steps_on and asks and abs(threshold) < 1e39  # beyond float32, NaN and infinity included

    return isinstance(nodes, list) and bool(nodes) and all(sound(i, node) for i, node in enumerate(nodes))


def leaf_of(nodes: Nodes, state: list[float]) -> dict[str, Any]:
    """Where a state ends up. Thresholds are doubles: rounded to float32 they could move past the next value."""
    node = nodes[0]
    while "feature" in node:
        node = nodes[node["left"] if state[node["feature"]] <= node["threshold"] else node["right"]]
    return node


def chosen_expert(forest: Forest, state: np.ndarray) -> int:
    """The (0-based) expert whose tree has the highest leaf probability; ties go to the lowest index."""
    values = np.asarray(state, np.float32).tolist()
    probabilities = [leaf_of(nodes, values)["probability"] for nodes in forest]
    return probabilities.index(max(probabilities))
