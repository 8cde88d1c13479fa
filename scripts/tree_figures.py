"""The pictures of distill_trees.py: a drawn tree, and how well trees of every depth agree with the router."""

from typing import Any

import numpy as np
from colours import colour
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.patheffects import Normal, Stroke
from matplotlib.textpath import TextPath
from saved_trees import Nodes

INK, SOFT, PAPER = "#222222", "#555555", "#f3f0eb"


def percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def leaf_answer(nodes: Nodes, leaf: dict[str, Any], expert: int) -> str:
    return f"expert {expert}" if leaf["probability"] > 0.5 else "never" if len(nodes) == 1 else "another"


def symbol(name: dict[str, str]) -> str:
    """A name as a figure sets it: its LaTeX, or plain text where that is more than matplotlib understands."""
    try:
        MathTextParser("path").parse(f"${name['latex']}$")
        return f"${name['latex']}$"
    except (ValueError, RecursionError):
        return name["text"].replace("$", r"\$")


def text_width(text: str, size: float) -> float:
    """Inches, by the control points of the outlines: exact extents would take a third of all drawing."""
    x = TextPath((0, 0), text, size=size).vertices[:, 0]
    return float(np.ptp(x)) / 72 if len(x) else 0.0


def tree_figure(nodes: Nodes, symbols: list[str], expert: int, n_states: int, title: str, about: str) -> Figure:
    """Questions in white boxes, leaves the more in the expert's colour, the likelier it takes the state."""
    row, box, gap, margin = 1.15, 0.6, 0.2, 0.25  # inches, as are all coordinates
    fills = LinearSegmentedColormap.from_list("probability", [PAPER, colour(expert)])

    def lines(node: dict[str, Any]) -> list[str]:
        if "feature" in node:
            return [f"{symbols[node['feature']]} ≤ " + f"{node['threshold']:.4g}".replace("-", "−")]
        answer = f"{leaf_answer(nodes, node, expert)} · {node['probability']:.2f}"
        return [answer, f"{percent(node['samples'] / n_states)} of states"]

    box_width = max([1.2, *(text_width(text, 11.5) + 0.25 for node in nodes for text in lines(node))])
    place: dict[int, tuple[float, int]] = {}
    leaves = iter(range(len(nodes)))

    def lay_out(i: int, level: int) -> float:
        below = [lay_out(nodes[i][side], level + 1) for side in ("left", "right") if side in nodes[i]]
        x = sum(below) / 2 if below else next(leaves) * (box_width + gap)
        place[i] = (x, level)
        return x

    lay_out(0, 0)
    tree_width = max(x for x, _ in place.values()) + box_width
    full_width = max(tree_width, text_width(title, 16) + 0.3, text_width(about, 9)) + 2 * margin
    height = max(level for _, level in place.values()) * row + box + 1.15
    left, top = (full_width - tree_width + box_width) / 2, height - 0.9 - box / 2
    figure = Figure(figsize=(full_width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, full_width), ylim=(0, height))
    axes.axis("off")
    axes.add_patch(Rectangle((margin, height - 0.37), 0.17, 0.17, fc=colour(expert), ec="none"))
    axes.text(margin + 0.27, height - 0.2, title, size=13, weight="bold", va="top", color=INK)
    axes.text(margin, height - 0.5, about, size=9, va="top", color=SOFT)
    centre = {i: (left + x, top - level * row) for i, (x, level) in place.items()}
    for i, node in enumerate(nodes):
        x, y = centre[i]
        for side, answer in (("left", "yes"), ("right", "no")) if "feature" in node else ():
            to_x, to_y = centre[node[side]]
            axes.plot([x, to_x], [y - box / 2, to_y + box / 2], color="#888888", lw=1.2, zorder=1)
            paper = {"fc": "white", "ec": "none", "pad": 1.5}
            middle = ((x + to_x) / 2, (y + to_y) / 2)
            axes.text(*middle, answer, size=8.5, style="italic", color=SOFT, ha="center", va="center", bbox=paper)
        fill = fills(node["probability"]) if "probability" in node else (1.0, 1.0, 1.0)
        ink = INK if sum(part * c for part, c in zip((0.299, 0.587, 0.114), fill, strict=False)) > 0.5 else "white"
        corner, style = (x - box_width / 2 + 0.1, y - box / 2 + 0.1), "round,pad=0.1,rounding_size=0.13"
        size = (box_width - 0.2, box - 0.2)
        axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=style, fc=fill, ec="#666666", lw=1, zorder=2))
        first, *second = lines(node)
        weight = "bold" if second else "normal"
        axes.text(x, y + 0.1 * len(second), first, size=10.5, weight=weight, ha="center", va="center", color=ink)
        axes.text(x, y - 0.15, "".join(second), size=8, ha="center", va="center", color=ink)
    return figure


def curve_figure(report: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    together, alone = figure.subplots(1, 2)
    curve, n_experts = report["curve"], len(report["experts"])
    depths = [row["depth"] for row in curve]
    joint, single = ([row[f"{name}_fidelity"] for row in curve] for name in ("joint", "multiclass"))
    together.plot(depths, joint, "o-", color=INK, label=f"{n_experts} trees")
    together.plot(depths, single, "s--", color="#777777", label="one multi-class tree")
    together.axhline(report["majority_fidelity"], color="#777777", lw=1, ls=":", label="always the commonest expert")
    together.set_title("agreement with the router", loc="left", size=11)
    together.set_ylim(0, 1.02)
    outlined = [Stroke(linewidth=2.2, foreground=SOFT), Normal()]  # yellow is hard to see on white
    for m in range(1, n_experts + 1):
        scores = [row["experts"][m - 1]["balanced_accuracy"] for row in curve]
        if None not in scores:
            style = {"color": colour(m), "path_effects": outlined if sum(to_rgb(colour(m))) > 2 else None}
            alone.plot(depths, scores, "o-", ms=4, lw=1.6, label=f"expert {m}", **style)
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
