"""The paper's learning-curve figure: return over training steps, one panel per environment; or return over length.

    python scripts/plot.py                                       # runs/ -> learning_curves.png
    python scripts/plot.py runs /scratch/runs --output figure.pdf
    python scripts/plot.py results/runs --source evaluations --env-ids Hopper-v4 Ant-v4 --algos smose sac-m
    python scripts/plot.py results/runs --source numbers --steps 300000 --output length.png

From TensorBoard events (--source training, the default) the curve is the return in training, as in the paper: an
episode's return is given to all its steps. From evaluations.csv (--source evaluations) it is the mean return of the
deterministic policy. Lines are means over seeds, bands one standard deviation over seeds to either side, and dotted
lines the paper's final values. A run that is not finished is drawn only where no finished one is; the seeds of a line
end together, where the shortest run ends. Runs with other settings than the paper's are lines of their own, named by
what differs; of runs that differ in their number of steps alone the longest are drawn (or those that --steps names).
With --source numbers the final evaluation's return is drawn against how many numbers of the policy are not zero.
"""

from command_line import UserError, end_on_mistakes, output_file, parse_args, printable

# from here on Ctrl-C is quiet
# isort: split

import csv
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Optional

import matplotlib
import numpy as np
import tyro
from table import (
    ENVIRONMENTS,
    PAPER_STEPS,
    TRAINED,
    Kind,
    find_runs,
    group,
    kind_of,
    read_config,
    read_paper,
    run_folders,
    text,
    whole,
)

matplotlib.use("Agg")
matplotlib.rcParams["text.parse_math"] = False  # a $ in a run's settings is a $
import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

# Okabe and Ito's palette, told apart with any colour vision; SMoSE in its strongest colour
COLOURS = {"SMoSE": "#D55E00", "SAC-S": "#56B4E9", "SAC-M": "#009E73", "SAC-L": "#000000"}
MORE_COLOURS = ["#0072B2", "#CC79A7", "#E69F00", "#999999"]
POINTS = 400
PAPER_LABEL = f"the paper's, after {PAPER_STEPS:,} steps"


@dataclass
class Args:
    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH...")] = ()
    """folders with runs in them, at any depth (default: runs and results/runs)"""
    output: str = "learning_curves.png"
    """the figure; its ending (.png, .svg or .pdf) says the format"""
    source: Literal["training", "evaluations", "numbers"] = "training"
    """returns of the training episodes (TensorBoard events), of the periodic evaluations (evaluations.csv), or of the
    final ones (evaluation.json) against the numbers that there are to read"""
    env_ids: tuple[str, ...] = ()
    """only runs of these environments (default: all)"""
    algos: tuple[str, ...] = ()
    """only runs of these, named as in the tables and the legend: smose, sac-m, "smose, keep 0.2" (default: all)"""
    steps: Optional[int] = None
    """only runs of so many steps (default: the longest of each line)"""
    paper_settings_only: bool = False
    """leave out runs with other settings or another number of steps than the paper's"""
    window: Optional[int] = None
    """steps that a training curve is averaged over (default: 2% of the longest run; 1 for none)"""


@dataclass(frozen=True)
class Curve:
    """One run's return by training step, as steps: returns[i] holds from ends[i-1] (or 0) up to ends[i]."""

    ends: np.ndarray
    returns: np.ndarray


Curves = dict[str, dict[str, list[Curve]]]  # by environment and label, one for each seed


@dataclass(frozen=True)
class RunFolder:
    path: Path
    env_id: str
    kind: Kind
    total_timesteps: int
    seed: int
    finished: bool

    @property
    def label(self) -> str:
        """the algorithm, and what is not as in the paper"""
        return self.kind.name + (f" ({self.kind.settings})" if self.kind.settings else "")


@dataclass(frozen=True)
class Point:
    """A policy's length and final return, means over seeds; the spread is over seeds, or over one seed's episodes."""

    numbers: float
    mean: float
    spread: float
    text: str


def find_folders(folders: list[Path]) -> list[RunFolder]:
    """All runs below the folders, finished or not; a copied run counts once."""
    found = {}
    for file in sorted(config for folder in folders for config in folder.rglob("config.json")):
        config = read_config(file)
        if not config:
            continue
        try:
            settings = config["args"]
            steps, seed = whole(settings["total_timesteps"]), whole(settings["seed"])
            finished = file.with_name("evaluation.json").is_file()
            run = RunFolder(file.parent, text(config["env_id"]), kind_of(config), steps, seed, finished)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{file} is damaged ({error!r}); move its run away") from None
        found[run.path.name, run.env_id, run.kind, steps, seed] = run
    return list(found.values())


def longest(runs: list[RunFolder]) -> list[RunFolder]:
    """Of runs that differ in their number of steps alone, those with most: the others' curves are beginnings of it."""
    most: dict[tuple, int] = defaultdict(int)
    for run in runs:
        most[run.env_id, run.kind] = max(most[run.env_id, run.kind], run.total_timesteps)
    return [run for run in runs if run.total_timesteps == most[run.env_id, run.kind]]


def drop_overwritten(steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    """Keeps what a resumed run wrote last: an event takes back all earlier ones at its step and beyond."""
    kept: list[tuple[int, float]] = []
    for step, value in zip(steps, values, strict=True):
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, value))
    return [step for step, _ in kept], [value for _, value in kept]


def training_curve(folder: Path) -> Optional[Curve]:
    """From TensorBoard's charts/episodic_return, whose step is the one at which the episode ended."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    if "charts/episodic_return" not in events.Tags()["scalars"]:
        return None
    scalars = sorted(events.Scalars("charts/episodic_return"), key=lambda event: event.wall_time)
    steps, values = drop_overwritten([event.step for event in scalars], [event.value for event in scalars])
    if not np.isfinite(values).all():
        raise UserError(f"{folder} has returns in its events that are no numbers; move it away")
    return Curve(np.array(steps), np.array(values))


def evaluation_curve(folder: Path) -> Optional[Curve]:
    """From evaluations.csv, one point per periodic evaluation."""
    file = folder / "evaluations.csv"
    if not file.is_file():
        return None
    try:
        with open(file, newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        steps = np.array([int(row["step"]) for row in rows], dtype=np.int64)
        returns = np.array([float(row["return_mean"]) for row in rows])
    except (KeyError, OverflowError, TypeError, ValueError, csv.Error) as error:
        raise UserError(f"{file} is damaged ({error!r}); move its run away") from None
    if not np.isfinite(returns).all() or (np.diff(steps, prepend=0) <= 0).any():
        raise UserError(f"{file} is damaged (steps that don't grow, or returns that are no numbers); move its run away")
    return Curve(steps, returns) if rows else None


def smoothed(curve: Curve, steps: np.ndarray, window: int) -> np.ndarray:
    """The mean return of all steps within half a window of each step (less at the ends of the curve)."""
    # the integral of a step function is linear in between the ends of episodes, so this is exact
    knots = np.concatenate([[0], curve.ends])
    integral = np.concatenate([[0], np.cumsum(curve.returns * np.diff(knots))])
    low, high = np.maximum(steps - window / 2, 0), np.minimum(steps + window / 2, knots[-1])
    return (np.interp(high, knots, integral) - np.interp(low, knots, integral)) / (high - low)


def common_curves(curves: list[Curve], source: str, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps that all the curves reach, and every curve's return there [seeds, steps]."""
    last = min(curve.ends[-1] for curve in curves)
    if source == "training":
        steps = np.linspace(0, last, POINTS + 1)[1:]
        return steps, np.array([smoothed(curve, steps, window) for curve in curves])
    steps = curves[0].ends[curves[0].ends <= last]
    return steps, np.array([np.interp(steps, curve.ends, curve.returns) for curve in curves])


def load_curves(runs: list[RunFolder], source: str) -> tuple[Curves, list[str]]:
    """Curves by environment and label, and notes on what was left out."""
    read = training_curve if source == "training" else evaluation_curve
    groups, notes = defaultdict(list), []
    for run in runs:
        groups[run.env_id, run.label].append(run)
    curves: Curves = defaultdict(dict)
    for (env_id, label), members in groups.items():
        chosen = [run for run in members if run.finished] or members
        by_seed = {run.seed: run for run in sorted(chosen, key=lambda run: run.path.name)}  # the latest run of a seed
        loaded = {run.path.name: read(run.path) for run in by_seed.values()}
        empty = [name for name, curve in loaded.items() if curve is None]
        notes += [f"{printable(name)} has no {source} returns and is left out" for name in empty]
        if len(chosen) < len(members):
            notes.append(f"{env_id} {label}: {len(members) - len(chosen)} unfinished run(s) left out")
        if len(empty) < len(loaded):
            curves[env_id][label] = [curve for curve in loaded.values() if curve is not None]
    return curves, notes


def step_text(step: float, _position: object = None) -> str:
    """A step on the axis: 0, 250k, 1M, 1.5M."""
    if step >= 1_000_000:
        return f"{step / 1_000_000:g}M"
    return f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"


def algorithm_of(label: str) -> str:
    return label.partition(" (")[0]


def label_order(label: str) -> tuple:
    method = algorithm_of(label).partition(",")[0]
    place = TRAINED.index(method) if method in TRAINED else len(TRAINED)
    return place, algorithm_of(label), label.count(","), label  # the fewer settings differ, the sooner: solid lines


def style_of(labels: list[str]) -> dict[str, dict]:
    """A colour per algorithm; its lines with several settings differ in their dashes."""
    algorithms = list(dict.fromkeys(map(algorithm_of, labels)))
    others = [algorithm for algorithm in algorithms if algorithm not in COLOURS]
    colours = COLOURS | {algorithm: MORE_COLOURS[i % len(MORE_COLOURS)] for i, algorithm in enumerate(others)}
    styles = {}
    for label in labels:
        earlier = [other for other in styles if algorithm_of(other) == algorithm_of(label)]
        dashes = ["-", "--", "-.", (0, (5, 1, 1, 1, 1, 1))][len(earlier) % 4]
        styles[label] = {"color": colours[algorithm_of(label)], "linestyle": dashes}
    return styles


def draw(curves: Curves, args: Args, window: int) -> plt.Figure:
    """One panel per environment, one legend for all."""
    paper, _ = read_paper()
    env_ids = in_paper_order(curves)
    labels = sorted({label for panel in curves.values() for label in panel}, key=label_order)
    styles = style_of(labels)
    columns = 2 if len(env_ids) in (2, 4) else min(3, len(env_ids))
    rows = -(-len(env_ids) // columns)
    size = (max(4.2 * columns, 5.0), 2.9 * rows + 0.9)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    figure.get_layout_engine().set(hspace=0.06)
    handles = {}
    for axis, env_id in zip(axes.flat, env_ids, strict=False):
        for label in sorted(curves[env_id], key=label_order, reverse=True):  # SMoSE is drawn last, on top
            seeds = curves[env_id][label]
            steps, values = common_curves(seeds, args.source, window)
            mean, spread = values.mean(0), values.std(0, ddof=1) if len(seeds) > 1 else None
            width, marker = 2.0 if label.startswith("SMoSE") else 1.4, "o" if len(steps) == 1 else None
            (handles[label],) = axis.plot(steps, mean, linewidth=width, marker=marker, **styles[label])
            if spread is not None:
                axis.fill_between(
                    steps, mean - spread, mean + spread, color=styles[label]["color"], alpha=0.18, linewidth=0
                )
        for algorithm in {algorithm_of(label).partition(",")[0] for label in curves[env_id]}:
            if (env_id, algorithm) in paper:
                value, colour = float(paper[env_id, algorithm]["mean"]), COLOURS[algorithm]
                handles[PAPER_LABEL] = axis.axhline(value, color=colour, linestyle=":", linewidth=1.2)
        counts = sorted({len(seeds) for seeds in curves[env_id].values()})
        seeds_text = "1 seed" if counts == [1] else f"{'-'.join(map(str, counts))} seeds"
        axis.set_title(f"{env_id}  ({seeds_text})", fontsize=10)
        axis.xaxis.set_major_formatter(step_text)
        axis.set_xlim(left=0)
        axis.grid(True, color="#e6e6e6", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    for axis in axes.flat[len(env_ids) :]:
        axis.set_visible(False)
    n_seeds = max(len(seeds) for panel in curves.values() for seeds in panel.values())
    figure.supxlabel(f"environment steps  ({caption(args.source, window, n_seeds)})", fontsize=9)
    figure.supylabel("return", fontsize=9)
    ordered = [label for label in (*labels, PAPER_LABEL) if label in handles]
    if PAPER_LABEL in handles:
        handles[PAPER_LABEL] = plt.Line2D([], [], color="#555555", linestyle=":", linewidth=1.2)  # any algorithm's
    figure.legend(
        [handles[label] for label in ordered],
        ordered,
        loc="outside upper center",
        ncols=min(len(ordered), 4 if max(map(len, ordered)) < 20 else 2),
        frameon=False,
        fontsize=9,
    )
    return figure


def load_points(runs: list[RunFolder]) -> dict[str, dict[str, list[Point]]]:
    """By environment and by what else was set: a point for every way to train, from short to long."""
    finished, _ = find_runs([run.path for run in runs if run.finished])
    lines: dict[str, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for (env_id, kind, steps), seeds in group(finished)[0].items():
        if any(run.n_read is None for run in seeds):
            continue
        means = [np.mean(run.returns) for run in seeds]
        spread = np.std(means, ddof=1) if len(seeds) > 1 else np.std(seeds[0].returns)
        where = (np.mean([run.n_read for run in seeds]), np.mean(means), spread)
        line = f"{kind.algorithm}, {steps:,} steps" + (f" ({kind.settings})" if kind.settings else "")
        lines[env_id][line].append(Point(*map(float, where), kind.variant or "all"))
    return {
        e: {line: sorted(p, key=lambda point: point.numbers) for line, p in panel.items()} for e, panel in lines.items()
    }


def draw_points(lines: dict[str, dict[str, list[Point]]]) -> plt.Figure:
    """One panel per environment, every point with its name."""
    env_ids = in_paper_order(lines)
    figure, axes = plt.subplots(
        1, len(env_ids), figsize=(3.6 * len(env_ids) + 0.6, 3.4), squeeze=False, layout="constrained"
    )
    labels = sorted({label for panel in lines.values() for label in panel})
    colours, drawn = dict(zip(labels, itertools.cycle([COLOURS["SMoSE"], *MORE_COLOURS]))), {}
    for axis, env_id in zip(axes.flat, env_ids, strict=True):
        for label, points in lines[env_id].items():
            x, y, spread = ([getattr(point, name) for point in points] for name in ("numbers", "mean", "spread"))
            style = {"marker": "o", "markersize": 4, "linewidth": 1.4, "capsize": 3, "color": colours[label]}
            drawn[label] = axis.errorbar(x, y, spread, **style)
            for point, after in zip(points, [*points[1:], points[-1]], strict=True):  # names keep clear of the line
                up = 6 if after.mean < point.mean else -3 if 0 <= point.mean < 0.1 * max(y) else -11
                beside = {"xytext": (7, up), "textcoords": "offset points", "fontsize": 8, "color": "#333333"}
                axis.annotate(point.text, (point.numbers, point.mean), **beside)
        axis.set_title(env_id, fontsize=10)
        points = [point for points in lines[env_id].values() for point in points]
        axis.set_xlim(0, 1.2 * max(point.numbers for point in points))
        axis.margins(y=0.15)
        if min(point.mean - point.spread for point in points) >= 0:
            axis.set_ylim(0, 1.15 * max(point.mean + point.spread for point in points))
        axis.grid(True, color="#e6e6e6", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.supxlabel(
        "numbers of the policy that are not zero  (bars: spread over seeds, or episodes of one)", fontsize=9
    )
    figure.supylabel("return", fontsize=9)
    figure.legend([drawn[label] for label in labels], labels, frameon=False, fontsize=8, loc="outside upper center")
    return figure


def in_paper_order(env_ids: Iterable[str]) -> list[str]:
    return sorted(env_ids, key=lambda e: (ENVIRONMENTS.index(e) if e in ENVIRONMENTS else len(ENVIRONMENTS), e))


def caption(source: str, window: int, n_seeds: int) -> str:
    """What the lines and bands are, in a few words."""
    text = "return of the deterministic policy" if source == "evaluations" else "return in training"
    text += "; mean ± std over seeds" if n_seeds > 1 else ""
    return text + (f"; average over {step_text(window)} steps" if source == "training" and window > 1 else "")


def curve_figure(wanted: list[RunFolder], args: Args) -> tuple[plt.Figure, list[str]]:
    """Learning curves, and notes on what was left out."""
    curves, notes = load_curves(longest(wanted), args.source)
    if not curves:
        hint = "wait for the first evaluation"
        if args.source == "training":
            hint = "wait for the first episodes"
            if any((run.path / "evaluations.csv").is_file() for run in wanted):
                hint = "draw their evaluations: --source evaluations"
        raise UserError(f"the {len(wanted)} runs have no {args.source} returns; {hint}")
    last = max(curve.ends[-1] for panel in curves.values() for seeds in panel.values() for curve in seeds)
    window = args.window or max(int(float(f"{last / 50:.1g}")), 1)  # a round number, for the caption
    return draw(curves, args, window), notes


def point_figure(wanted: list[RunFolder]) -> tuple[plt.Figure, list[str]]:
    """Return against length, and notes on what was left out."""
    points = load_points(longest(wanted))
    if not points:
        raise UserError(f"none of the {len(wanted)} runs is finished; wait for its final evaluation")
    unfinished = [run for run in wanted if not run.finished]
    return draw_points(points), [f"{len(unfinished)} unfinished run(s) left out"] if unfinished else []


def main(args: Args) -> None:
    output = output_file(args.output)
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--output {output} has no known ending; use .png, .svg or .pdf")
    if args.window is not None and args.window < 1:
        raise UserError(f"--window {args.window} is too small; give 1 step or more")
    folders = run_folders(args.runs)
    runs = find_folders(folders)
    names = [name.lower() for name in args.algos]
    wanted = [
        run
        for run in runs
        if (not args.env_ids or run.env_id in args.env_ids)
        and (not names or run.kind.name.lower() in names)
        and args.steps in (None, run.total_timesteps)
        and not (args.paper_settings_only and not (run.kind.like_paper and run.total_timesteps == PAPER_STEPS))
    ]
    if not wanted:
        what = f"none of the {len(runs)} runs found is asked for" if runs else "no runs found"
        raise UserError(f"{what} in {', '.join(map(str, folders))}; train some, or name other folders")
    figure, notes = curve_figure(wanted, args) if args.source != "numbers" else point_figure(wanted)
    panels = sum(axis.get_visible() for axis in figure.axes)
    figure.savefig(output, dpi=160)
    plt.close(figure)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{output}: {panels} panel(s)")


if __name__ == "__main__":
    end_on_mistakes(lambda: main(parse_args(Args, __doc__)))
