"""Two policies of one environment side by side: what they reach, how they move, and which experts do the same work."""

import os
from typing import Any

import numpy as np
from colours import COLOURS
from report.body import body_of
from report.gait import POSES, gait_of
from report.summary import failures_of
from saved_actor import Actor, make_policy
from scipy.optimize import linear_sum_assignment

MOST_STATES = 4000  # of both together, on which experts are matched
DRAWN_STEPS = 1000  # of one episode of each


def side_of(actor: Actor, label: str, episodes: list[Any], model: Any) -> dict[str, Any]:
    """One column of the comparison."""
    experts = np.concatenate([e.experts for e in episodes])
    switches = sum(int((np.diff(e.experts) != 0).sum()) for e in episodes)
    returns = [float(e.rewards.sum()) for e in episodes]
    share = np.bincount(experts, minlength=actor.n_experts) / len(experts)
    first = episodes[0]
    return {
        "label": label,
        "n_experts": actor.n_experts,
        "n_read": actor.n_read,
        "seed": actor.seed,
        "steps": actor.steps,
        "returns": returns,
        "mean": float(np.mean(returns)),
        "spread": float(np.std(returns)),
        "share": share,
        "switches_per_100_steps": 100 * switches / max(1, len(experts) - len(episodes)),
        "gait": gait_of(episodes, actor.n_experts),
        "failures": failures_of(episodes, None),
        "body": body_of(model, [first.poses[:DRAWN_STEPS]]) if model is not None else None,
        "experts": first.experts[:DRAWN_STEPS] + 1,
        "rewards": first.rewards[:DRAWN_STEPS],
    }


def matched_experts(actors: list[Actor], states: np.ndarray) -> dict[str, Any]:
    """Pairs of experts that act in the same states, best first, and how alike the two policies act at all."""
    acted = [[make_policy(actor)(state) for state in states] for actor in actors]
    chosen = [np.array([expert for _, expert in steps]) for steps in acted]
    width = 2 * actors[0].weights["action_scale"]
    apart = (np.abs(np.subtract(*[np.array([action for action, _ in steps]) for steps in acted])) / width).mean(axis=1)
    together = np.zeros([actor.n_experts for actor in actors], int)
    np.add.at(together, tuple(chosen), 1)
    pairs = []
    for i, j in zip(*linear_sum_assignment(-together), strict=True):
        both = (chosen[0] == i) & (chosen[1] == j)
        either = (chosen[0] == i) | (chosen[1] == j)
        if both.any():
            pair = {"a": int(i) + 1, "b": int(j) + 1, "overlap": both.sum() / either.sum()}
            pairs.append(pair | {"states": int(both.sum()), "difference": float(apart[both].mean())})
    pairs.sort(key=lambda pair: -pair["states"])
    return {"states": len(states), "difference": float(apart.mean()), "pairs": pairs}


def distinct(labels: list[str]) -> list[str]:
    """Paths from the last folder on that both have in common."""
    common = os.path.commonpath(labels) if len({os.path.isabs(label) for label in labels}) == 1 else ""
    return [os.path.relpath(label, os.path.dirname(common) or ".") if common else label for label in labels]


def aligned(gait: dict[str, Any], other: dict[str, Any], spread: np.ndarray) -> dict[str, Any]:
    """A cycle that begins where another does: turned by eighths, as its pictures are, to where they differ least."""
    if not (gait["periodic"] and other["periodic"]):
        return gait
    scale = np.where(spread > 1e-9, spread, np.inf)[:, None]
    mine, theirs = (np.asarray(g["observations"]["median"]) / scale for g in (gait, other))
    step = mine.shape[1] // POSES
    turn = min(range(POSES), key=lambda k: float(((np.roll(mine, -k * step, axis=1) - theirs) ** 2).sum()))

    def turned(curves: Any) -> Any:
        return np.roll(np.asarray(curves), -turn * step, axis=1)

    poses = gait["poses"][turn:] + gait["poses"][:turn]
    poses = [pose | {"phase": k / POSES} for k, pose in enumerate(poses)]
    curves = {kind: {key: turned(v) for key, v in gait[kind].items()} for kind in ("observations", "actions")}
    return gait | curves | {"experts": turned(gait["experts"]), "poses": poses}


def comparison(
    env_id: str, dt: float, names: dict, actors: list[Actor], labels: list[str], episodes: list[list[Any]], model: Any
) -> dict[str, Any]:
    """Everything of the page; both policies played the same episode seeds."""
    labels = distinct(labels)
    states = np.concatenate([e.observations for side in episodes for e in side])
    states = states[np.linspace(0, len(states) - 1, min(len(states), MOST_STATES)).astype(int)]
    a, b = (np.array([e.rewards.sum() for e in side]) for side in episodes)
    error = float((b - a).std(ddof=1) / np.sqrt(len(a))) if len(a) > 1 else None
    sides = [side_of(*side, model) for side in zip(actors, labels, episodes, strict=True)]
    sides[1]["gait"] = aligned(sides[1]["gait"], sides[0]["gait"], states.std(axis=0))
    return {
        "format": "smose-comparison",
        "env_id": env_id,
        "colours": COLOURS,
        "names": names,
        "seconds_per_step": dt,
        "sides": sides,
        "difference": {"mean": float((b - a).mean()), "standard_error": error, "episodes": len(a)},
        "matched": matched_experts(actors, states),
    }
