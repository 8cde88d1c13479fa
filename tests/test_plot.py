"""scripts/plot.py on tiny real runs and against curves worked out by hand."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import plot
import pytest
from conftest import assert_one_line_error

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def runs(smose_run, sac_run, tmp_path) -> Path:
    for run in (smose_run, sac_run):
        shutil.copytree(run, tmp_path / "runs" / run.name)
    return tmp_path / "runs"


def test_an_episodes_return_is_given_to_all_its_steps():
    curve = plot.Curve(np.array([10, 14, 30]), np.array([1.0, 5.0, 2.0]))
    steps = np.array([1, 9.5, 10.5, 13, 14.5, 29])
    np.testing.assert_allclose(plot.smoothed(curve, steps, 1), [1, 1, 5, 5, 2, 2])
    # around step 12 lie 4 steps of the first episode, 4 of the second and 2 of the third
    assert plot.smoothed(curve, np.array([11]), 10)[0] == pytest.approx((4 * 1 + 4 * 5 + 2 * 2) / 10)
    # at the end there is only half a window
    assert plot.smoothed(curve, np.array([30]), 40)[0] == pytest.approx((4 * 5 + 16 * 2) / 20)


def test_a_resumed_run_takes_back_what_it_repeats():
    steps, values = plot.drop_overwritten([10, 20, 30, 20, 35], [1, 2, 3, 4, 5])
    assert (steps, values) == ([10, 20, 35], [1, 4, 5])


def test_curves_of_a_real_run(smose_run):
    training = plot.training_curve(smose_run)
    first = training.ends[0]
    assert first in (49, 50)  # Reacher's episodes have 50 steps; CleanRL counts steps from 0
    assert training.ends.tolist() == list(range(first, 401, 50))
    config = json.loads((smose_run / "config.json").read_text())
    replay = np.load(smose_run / "replay.npy", mmap_mode="r")
    column = {name: low for name, (low, _) in config["replay_columns"].items()}
    for episode in range(1, 9):
        reward = replay[replay[:, column["episode"]] == episode, column["reward"]]
        assert training.returns[episode - 1] == pytest.approx(reward.sum(), rel=1e-5)
    evaluated = plot.evaluation_curve(smose_run)
    assert evaluated.ends.tolist() == [200, 400] and np.isfinite(evaluated.returns).all()


def test_seeds_end_together_and_are_averaged():
    curves = [
        plot.Curve(np.array([10, 20]), np.array([0.0, 2.0])),
        plot.Curve(np.array([10, 40]), np.array([4.0, 8.0])),
    ]
    steps, values = plot.common_curves(curves, "training", 1)
    assert steps[-1] == 20 and values.shape == (2, plot.POINTS)
    assert values.mean(0)[10] == 2 and values.mean(0)[-10] == 5
    steps, values = plot.common_curves(curves, "evaluations", 1)
    assert steps.tolist() == [10, 20] and values[0].tolist() == [0, 2]


def test_axis_in_thousands_and_millions():
    assert [plot.step_text(s) for s in (0, 500, 250_000, 1_000_000, 1_500_000)] == ["0", "500", "250k", "1M", "1.5M"]


def pretend(run: Path, folder: Path, seed: int, keep: float, n_read: int, returns: list[float]) -> None:
    """A copy of a run, with other words in its files."""
    shutil.copytree(run, folder)
    for name, words in (
        ("config.json", {"n_read": n_read}),
        ("evaluation.json", {"n_read": n_read, "returns": returns}),
    ):
        content = json.loads((folder / name).read_text()) | words
        if name == "config.json":
            content["args"] |= {"keep": keep, "seed": seed}
        else:
            content["seed"] = seed
        (folder / name).write_text(json.dumps(content))


def test_return_against_length(smose_run, tmp_path):
    pretend(smose_run, tmp_path / "runs/a", 0, 1.0, 280, [8.0, 10.0])
    pretend(smose_run, tmp_path / "runs/b", 0, 0.2, 70, [5.0, 7.0])
    pretend(smose_run, tmp_path / "runs/c", 1, 0.2, 90, [2.0, 2.0])
    (panel,) = plot.load_points(plot.find_folders([tmp_path])).values()
    ((label, points),) = panel.items()
    assert label == "SMoSE, 400 steps (batch-size 32, buffer-size 1000, learning-starts 100)"
    # two seeds with means 6 and 2 have a sample spread of sqrt(8); one seed has that of its episodes
    short, whole = plot.Point(80, 4, 8**0.5, "keep 0.2"), plot.Point(280, 9, 1, "all")
    assert points == [short, whole]
    output = tmp_path / "length.svg"
    command = [sys.executable, ROOT / "scripts/plot.py", tmp_path / "runs", "--source", "numbers", "--output", output]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{output}: 1 panel(s)\n"
    assert "keep 0.2" in output.read_text()
    for folder in "abc":
        (tmp_path / "runs" / folder / "evaluation.json").unlink()
    assert_one_line_error(subprocess.run(command, capture_output=True, text=True), "none of the 3 runs is finished")


def test_lines_keep_settings_apart(runs, smose_run):
    labels = {run.label for run in plot.find_folders([runs])}
    assert labels == {f"{name} (batch-size 32, buffer-size 1000, learning-starts 100)" for name in ("SMoSE", "SAC-S")}
    unfinished = Path(shutil.copytree(smose_run, runs / "Reacher-v4__smose_sac__0__9999999999"))
    (unfinished / "evaluation.json").unlink()
    curves, notes = plot.load_curves(plot.find_folders([runs]), "training")
    assert all(len(seeds) == 1 for seeds in curves["Reacher-v4"].values())
    assert any("1 unfinished run(s) left out" in note for note in notes)


def test_of_runs_that_differ_in_steps_alone_the_longest_are_drawn():
    kind, short = plot.Kind("SMoSE", 8, "", ""), plot.Kind("SMoSE", 8, "keep 0.2", "")
    runs = [plot.RunFolder(Path("r"), "Ant-v4", k, n, 1, True) for k, n in ((kind, 3), (kind, 5), (short, 3))]
    assert plot.longest(runs) == runs[1:]
    assert [run.label for run in runs[1:]] == ["SMoSE", "SMoSE, keep 0.2"]


def test_an_algorithm_has_one_colour_and_its_settings_differ_in_dashes():
    labels = ["SMoSE", "SMoSE (precision bfloat16)", "SMoSE, keep 0.2 (gamma 0.9)", "SAC-M (gamma 0.9)"]
    styles = plot.style_of(labels)
    assert [styles[label]["linestyle"] for label in labels] == ["-", "--", "-", "-"]
    assert styles["SMoSE"]["color"] == styles["SMoSE (precision bfloat16)"]["color"] == plot.COLOURS["SMoSE"]
    assert len({style["color"] for style in styles.values()}) == 3


def test_the_papers_final_values_are_lines_and_single_points_are_marked(runs, tmp_path):
    for i, run in enumerate(runs.iterdir()):
        lines = (run / "evaluations.csv").read_text().splitlines(keepends=True)
        (run / "evaluations.csv").write_text("".join(lines[: 2 + i]))
    curves, _ = plot.load_curves(plot.find_folders([runs]), "evaluations")
    figure = plot.draw(curves, plot.Args(source="evaluations"), 1)
    (axis,) = figure.axes
    drawn = {len(line.get_xdata()): line.get_marker() for line in axis.lines if line.get_linestyle() != ":"}
    assert drawn == {1: "o", 2: "None"}
    papers = {(line.get_color(), line.get_ydata()[0]) for line in axis.lines if line.get_linestyle() == ":"}
    assert papers == {(plot.COLOURS["SMoSE"], -5.49), (plot.COLOURS["SAC-S"], -4.82)}
    assert figure.legends[0].get_texts()[-1].get_text() == "the paper's, after 1,000,000 steps"
    plot.plt.close(figure)


def test_curves_without_events(run_main, runs):
    """As committed runs are: evaluations, no events."""
    for events in runs.rglob("events.out*"):
        events.unlink()
    done = run_main(plot, runs, "no", cwd=runs.parent)
    assert_one_line_error(done, "no is not a folder")
    assert_one_line_error(run_main(plot, runs, cwd=runs.parent), "no training returns", "--source evaluations")
    done = run_main(plot, runs, runs.parent / "nothing" / "runs", "--source", "evaluations", cwd=runs.parent)
    assert done.returncode == 0 and (runs.parent / "learning_curves.png").is_file()
    for file in runs.rglob("evaluations.csv"):
        file.unlink()
    assert_one_line_error(run_main(plot, runs, "--source", "evaluations", cwd=runs.parent), "wait for the first")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xff" + text,
        lambda text: text.replace(b"return_mean", b"return"),
        lambda text: text + b"many,1,2,3,4\n",
        lambda text: text + b"900,nan,2,3,4\n",
        lambda text: text + b"900\n",
        lambda text: text + b"300,1,2,3,4\n",
        lambda text: text + b"9" * 30 + b",1,2,3,4\n",
        lambda text: text + b'"' + b"9" * 200_000,
    ],
    ids=["not UTF-8", "no column", "no number", "nan", "cut", "back", "huge", "field"],
)
def test_damaged_evaluations_are_named(run_main, runs, change):
    run = next(runs.glob("*smose*"))
    (run / "evaluations.csv").write_bytes(change((run / "evaluations.csv").read_bytes()))
    done = run_main(plot, runs, "--source", "evaluations", cwd=runs.parent)
    assert_one_line_error(done, str(run / "evaluations.csv"), "damaged", "move its run away")
    assert not list(runs.parent.glob("*.png"))


def test_damaged_configs_and_events_are_named(run_main, runs):
    run = next(runs.glob("*smose*"))
    good = (run / "config.json").read_text()
    for damaged in (good.encode()[:-9], b"\xff", good.replace('"seed": 0', '"seed": "x"').encode()):
        (run / "config.json").write_bytes(damaged)
        assert_one_line_error(run_main(plot, runs, cwd=runs.parent), str(run / "config.json"), "move")
    (run / "config.json").write_text(good)
    for events in run.glob("events.out*"):
        events.write_bytes(b"not events at all" * 9)
    done = run_main(plot, runs, cwd=runs.parent)
    assert done.returncode == 0 and f"{run.name} has no training returns" in done.stderr


def test_names_from_files_are_no_formulas(run_main, runs):
    """Matplotlib would read what stands between two $ as TeX."""
    for file in runs.rglob("config.json"):
        config = json.loads(file.read_text())
        config |= {"env_id": r"$\no$", "args": config["args"] | {"gate": r"$\no$", "keep": "$^$"}}
        file.write_text(json.dumps(config))
    for source in ("evaluations", "numbers"):
        done = run_main(plot, runs, "--source", source, "--output", "curves.svg", cwd=runs.parent)
        assert done.returncode == 0, done.stderr
        assert r"$\no$" in (runs.parent / "curves.svg").read_text()


@pytest.mark.parametrize("ending, start", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures(run_main, runs, ending, start):
    source = "evaluations" if ending == "svg" else "training"
    done = run_main(plot, str(runs), "--output", f"curves.{ending}", "--source", source, cwd=runs.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"curves.{ending}: 1 panel(s)\n"
    assert (runs.parent / f"curves.{ending}").read_bytes().startswith(start)


def test_mistakes_are_one_line_and_leave_nothing(run_main, runs, tmp_path):
    wrong = {
        "no known ending": ("--output", "curves.gif"),
        "folder does not exist": ("--output", "no/curves.png"),
        "not a folder": ("nothing",),
        "none of the 2 runs": (str(runs), "--env-ids", "Ant-v4"),
        "none of the 2 runs found is": (str(runs), "--algos", "sac-l", "--steps", "400"),
        "none of the 2 runs found": (str(runs), "--paper-settings-only"),
        "--window 0": ("--window", "0"),
    }
    for word, arguments in wrong.items():
        assert_one_line_error(run_main(plot, *arguments, cwd=tmp_path), word)
    assert not list(tmp_path.glob("curves.*"))


def test_the_command_itself(runs):
    command = [sys.executable, str(ROOT / "scripts" / "plot.py")]
    done = subprocess.run(command, cwd=runs.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (runs.parent / "learning_curves.png").stat().st_size > 10_000


def test_the_line_whose_settings_differ_least_is_solid():
    labels = ["SMoSE (precision bfloat16)", "SMoSE (gamma 0.999, precision bfloat16)", "SMoSE, keep 0.4", "SAC-S"]
    assert sorted(reversed(labels), key=plot.label_order) == labels
