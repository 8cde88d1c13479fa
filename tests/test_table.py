"""scripts/table.py against numbers computed by hand, on copies of tiny real runs."""

import csv
import dataclasses
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import table
from conftest import assert_one_line_error

import sac_baseline
import smose_sac

ROOT = Path(__file__).resolve().parent.parent


def as_if(
    run: Path, folder: Path, time: int, returns: list[float], seed: int, steps: int = 1_000_000, **settings
) -> Path:
    """A real run's files, with the paper's settings but for `settings`, and with these returns."""
    copy = folder / f"{run.name.rpartition('__')[0]}__{time}"
    folder.mkdir(parents=True, exist_ok=True)
    copy.mkdir()
    config, evaluation = (json.loads((run / name).read_text()) for name in ("config.json", "evaluation.json"))
    defaults = smose_sac.Args() if config["format"] == "smose-run" else sac_baseline.Args()
    config["args"] = config["args"] | dataclasses.asdict(defaults)
    config["args"] |= {"env_id": config["env_id"], "seed": seed, "total_timesteps": steps} | settings
    evaluation |= {"seed": seed, "steps": steps, "returns": returns, "episodes": len(returns)}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evaluation.json").write_text(json.dumps(evaluation))
    return copy


def test_interquartile_mean_by_hand():
    assert table.interquartile_mean(np.array([8.0, 1, 7, 2, 6, 3, 5, 100])) == np.mean([3, 5, 6, 7])
    assert table.interquartile_mean(np.array([1.0, 2, 9])) == 4  # too few to cut
    assert table.interquartile_mean(np.array([0.0, 0, 4, 4]), np.array([8.0, 8, 100, 1000])) == np.mean([4, 4, 8, 8])


def test_bootstrap_is_stratified_and_right():
    # two seeds 0 and 1: a resample's mean is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4
    assert table.bootstrap_interval([np.array([0.0, 1.0])], 2000) == (0, 1)
    # within each environment all seeds agree, so nothing can vary; over the pooled seeds it would
    low, high = table.bootstrap_interval([np.zeros(4), np.ones(4)], 2000)
    assert low == high == 0.5
    assert table.bootstrap_interval([np.array([3.0])], 2000) is None
    scores = np.random.default_rng(1).normal(100, 10, 10)
    low, high = table.bootstrap_interval([scores], 10_000)
    draws = np.random.default_rng(2).choice(scores, (20_000, 10))
    expected = np.percentile(np.sort(draws, axis=1)[:, 2:8].mean(1), [2.5, 97.5])
    np.testing.assert_allclose([low, high], expected, atol=0.5)


def test_every_flag_of_the_trainers_is_known_and_the_papers_settings_are_their_defaults():
    for args in (smose_sac.Args(), sac_baseline.Args()):
        flags = dataclasses.asdict(args)
        assert set(flags) <= set(table.PAPER_SETTINGS) | table.NOT_SETTINGS
        assert table.differences(flags) == ""
        assert args.total_timesteps == table.PAPER_STEPS
    assert set(table.PAPER_SETTINGS) <= set(dataclasses.asdict(smose_sac.Args()))
    assert smose_sac.Args().n_experts == 8


def test_differences_are_named():
    paper = dict(table.PAPER_SETTINGS)
    assert table.differences(paper | {"gamma": 0.999, "seed": 3, "alpha": 1.0}) == "gamma 0.999"
    assert table.differences(paper | {"autotune": False, "alpha": 0.1}) == "alpha 0.1, autotune False"
    assert table.differences(paper | {"reward_scale": 5}) == "reward-scale 5"


def test_parameter_counts_are_the_papers():
    paper, experts = table.read_paper()
    assert len(experts) == 30 and len({env for env, _ in paper}) == 6
    assert table.parameters(8, paper["Walker2d-v4", "SMoSE"]) == (360, 1872)
    # n_s = 11, n_a = 3: 12 (16 + 6) and 12 (16 + 16 * 6)
    assert table.parameters(16, paper["Hopper-v4", "SMoSE"]) == (264, 1344)


def test_rows_from_runs_by_hand(smose_run, tmp_path):
    as_if(smose_run, tmp_path, 1, [-4.0, -6.0], seed=1)
    as_if(smose_run, tmp_path, 2, [-9.0, -9.0], seed=2)  # repeated below, where its latest run counts
    as_if(smose_run, tmp_path, 3, [-7.0, -7.0], seed=2)
    as_if(smose_run, tmp_path, 4, [-8.0, -10.0], seed=3)
    as_if(smose_run, tmp_path, 5, [-1.0, -1.0], seed=1, gamma=0.999)
    as_if(smose_run, tmp_path, 6, [-2.0, -3.0], seed=1, steps=300_000)
    as_if(smose_run, tmp_path, 7, [-6.0, -6.0], seed=1, n_experts=16)
    shutil.copytree(tmp_path / f"{smose_run.name.rpartition('__')[0]}__1", tmp_path / "policies" / "copied")
    unfinished = as_if(smose_run, tmp_path, 8, [0.0, 0.0], seed=9)
    (unfinished / "evaluation.json").unlink()
    tables, notes = table.build([tmp_path], 1000)
    first, second, fifth, aggregate = tables.values()
    ours = [row for row in second if row["environment"] == "Reacher-v4" and row["algorithm"].startswith("SMoSE")]
    assert [row["algorithm"] for row in ours] == ["SMoSE", "SMoSE", "SMoSE (gamma 0.999)"]
    assert ours == [row for row in first if row["environment"] == "Reacher-v4" and "SMoSE" in row["algorithm"]]
    paper_row, shorter, other = ours
    assert paper_row["paper_mean"] == -5.49 and paper_row["paper_std"] == 2.32
    assert paper_row["mean"] == pytest.approx((-5 - 7 - 9) / 3) and paper_row["seeds"] == 3
    assert paper_row["std_episodes"] == pytest.approx((1 + 0 + 1) / 3)
    assert paper_row["std_seeds"] == pytest.approx(2)
    assert paper_row["iqm"] == pytest.approx(-7) and -9 <= paper_row["iqm_low"] <= -7 <= paper_row["iqm_high"] <= -5
    assert (paper_row["n_active"], paper_row["n_total"], paper_row["steps"]) == (144, 480, 1_000_000)
    assert "paper_mean" not in shorter and shorter["steps"] == 300_000 and shorter["mean"] == -2.5
    assert "paper_mean" not in other and other["iqm_low"] == "one seed" and other["std_seeds"] == "one seed"
    experts = {row["algorithm"]: row for row in fifth if row["environment"] == "Reacher-v4" and "paper_mean" in row}
    assert experts["16 experts"]["mean"] == -6 and experts["16 experts"]["paper_mean"] == -4.94
    assert experts["8 experts"]["mean"] == paper_row["mean"] and "mean" not in experts["3 experts"]
    assert all("iqm" not in row for row in aggregate)
    assert any("Reacher-v4 SMoSE seed 2" in note for note in notes)
    assert not any("seed 1" in note for note in notes)  # a copy is no second run
    assert any("not finished" in note and unfinished.name in note for note in notes)


def test_aggregate_over_environments_by_hand(smose_run, tmp_path):
    paper, _ = table.read_paper()
    for i, env_id in enumerate(table.ENVIRONMENTS):
        zero, one = table.RANDOM_RETURN[env_id], float(paper[env_id, "SMoSE"]["mean"])
        for seed, score in enumerate([0.5, 1.0] if i else [0.0, 2.0]):
            value = zero + score * (one - zero)
            run = as_if(smose_run, tmp_path, 10 * i + seed, [value, value], seed=seed)
            config = json.loads((run / "config.json").read_text())
            (run / "config.json").write_text(json.dumps(config | {"env_id": env_id}))
    row = table.build([tmp_path], 1000)[0]["All environments: IQM with 0 = random policy, 1 = the paper's SMoSE"][0]
    # twelve scores, three cut on either side: 0, .5 x5, 1 x5, 2
    assert row["algorithm"] == "SMoSE" and row["iqm"] == pytest.approx((3 * 0.5 + 3 * 1.0) / 6)
    assert 0.5 <= row["iqm_low"] < row["iqm"] < row["iqm_high"] <= 1.0


def test_tiny_real_runs_have_rows_of_their_own(run_main, smose_run, sac_run, tmp_path):
    runs = tmp_path / "runs"
    for run in (smose_run, sac_run):
        shutil.copytree(run, runs / run.name)
    done = run_main(table, runs, "--format", "markdown", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (smose,) = [line for line in done.stdout.split("### ")[2].splitlines() if "| SMoSE (" in line]
    cells = [cell.strip() for cell in smose.strip("|").split("|")]
    own = json.loads((smose_run / "evaluation.json").read_text())
    assert cells[:2] == ["Reacher-v4", "SMoSE (batch-size 32, buffer-size 1000, learning-starts 100)"]
    assert cells[2:5] == ["144 (480)", "-", f"{own['mean']:.2f}"] and cells[5] == f"{own['std']:.2f}"
    assert cells[6] == "one seed" and cells[7].endswith("[one seed]") and cells[8:] == ["1", "3", "400"]
    assert "SAC-S (batch-size 32" in done.stdout
    hopper = [
        line for line in done.stdout.splitlines() if "Hopper-v4" in line and "SAC-M" in line and "3224.25" in line
    ]
    assert len(hopper) == 1 and hopper[0].count("not run") == 4


def test_csv_and_latex(run_main, smose_run, tmp_path):
    as_if(smose_run, tmp_path / "runs", 1, [-4.0, -6.0], seed=1)
    as_if(smose_run, tmp_path / "runs", 2, [-6.0, -6.0], seed=2)
    assert run_main(table, tmp_path / "runs", "--format", "csv", "--output", tmp_path / "t.csv").returncode == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    (row,) = [
        r for r in rows if r["table"] == "Table 2" and r["environment"] == "Reacher-v4" and r["algorithm"] == "SMoSE"
    ]
    assert (row["mean"], row["paper_mean"], row["seeds"], row["std_seeds"]) == ("-5.5", "-5.49", "2", "0.7071")
    assert {r["mean"] for r in rows if r["environment"] == "Ant-v4"} == {"not run"}
    done = run_main(table, tmp_path / "runs", "--format", "latex")
    assert done.stdout.count(r"\begin{tabular}") == done.stdout.count(r"\end{tabular}") == 4
    body = [line for line in done.stdout.splitlines() if line.startswith("Reacher-v4 & SMoSE")]
    assert body[0].count("&") == 10 and r"-5.49 $\pm$ 2.32 & -5.50" in body[0] and body[0].endswith(r"\\")
    assert r"N\_act (N\_tot)" in done.stdout and r"95\% interval" in done.stdout


def test_mistakes_are_one_line(run_main, smose_run, tmp_path):
    broken = as_if(smose_run, tmp_path / "runs", 1, [1.0], seed=1)
    (broken / "evaluation.json").write_text("{")
    assert_one_line_error(run_main(table, tmp_path / "nothing"), "not a folder")
    assert_one_line_error(run_main(table, tmp_path / "runs"), "damaged", broken.name)
    assert_one_line_error(run_main(table, "--resamples", "3"), "--resamples 3")
    assert_one_line_error(run_main(table, "--output", tmp_path / "no" / "t.md"), "folder does not exist")


def test_the_command_itself(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "table.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("### ") == 4 and "4224.29 ± 25.96" in done.stdout
