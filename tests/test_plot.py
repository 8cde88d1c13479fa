"""scripts/plot.py on tiny real runs and against curves worked out by hand."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
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


def test_lines_keep_settings_apart(runs, smose_run):
    labels = {run.label for run in plot.name_steps(plot.find_folders([runs]))}
    assert labels == {f"{name} (batch-size 32, buffer-size 1000, learning-starts 100)" for name in ("SMoSE", "SAC-S")}
    short = plot.RunFolder(runs, "Ant-v4", "SMoSE", 300_000, 1, True)
    full, other = replace(short, total_timesteps=1_000_000), replace(short, label="SMoSE (gamma 0.9)")
    assert [run.label for run in plot.name_steps([short])] == ["SMoSE"]
    assert [run.label for run in plot.name_steps([short, full])] == ["SMoSE (300,000 steps)", "SMoSE"]
    longer = replace(other, total_timesteps=400_000)
    assert plot.name_steps([other, longer])[1].label == "SMoSE (gamma 0.9, 400,000 steps)"
    unfinished = Path(shutil.copytree(smose_run, runs / "Reacher-v4__smose_sac__0__9999999999"))
    (unfinished / "evaluation.json").unlink()
    curves, notes = plot.load_curves(plot.find_folders([runs]), "training")
    assert all(len(seeds) == 1 for seeds in curves["Reacher-v4"].values())
    assert any("1 unfinished run(s) left out" in note for note in notes)


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
