"""scripts/table.py against numbers computed by hand, on copies of tiny real runs."""

import csv
import dataclasses
import io
import json
import re
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
    config.pop("hours", None)
    config |= {key: settings.pop(key) for key in ("env_id", "hours") if key in settings}
    defaults = smose_sac.Args() if config["format"] == "smose-run" else sac_baseline.Args()
    config["args"] = config["args"] | dataclasses.asdict(defaults)
    config["args"] |= {"env_id": config["env_id"], "seed": seed, "total_timesteps": steps} | settings
    evaluation |= {"seed": seed, "steps": steps, "returns": returns, "episodes": len(returns)}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evaluation.json").write_text(json.dumps(evaluation))
    return copy


def edit(file: Path, **values) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def read_markdown(printed: str) -> list[list[dict[str, str]]]:
    """All tables, row by row, by the names of their columns."""
    tables = []
    for part in printed.split("### ")[1:]:
        lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
        header, _, *rows = ([cell.strip() for cell in line] for line in lines)
        tables.append([dict(zip(header, row, strict=True)) for row in rows])
    return tables


def build(*folders: Path, **flags) -> tuple[dict[str, list[dict]], list[str]]:
    return table.build(table.Args(runs=tuple(map(str, folders)), resamples=1000, **flags))


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
    formats = {smose_sac.Args: "smose-run", sac_baseline.Args: "sac-run"}
    for args in (smose_sac.Args(), sac_baseline.Args()):
        flags = dataclasses.asdict(args)
        assert set(flags) <= set(table.PAPER_SETTINGS) | table.NOT_SETTINGS | table.VARIANTS
        kind = table.kind_of({"format": formats[type(args)], "args": flags})
        assert kind.like_paper and kind.variant == kind.settings == ""
        assert args.total_timesteps == table.PAPER_STEPS
    once = {"log_std_min", "log_std_max"}
    assert set(table.PAPER_SETTINGS) - once <= set(dataclasses.asdict(smose_sac.Args()))
    assert smose_sac.Args().n_experts == 8


def test_what_differs_is_named():
    def kind(**changed) -> table.Kind:
        return table.kind_of({"format": "smose-run", "args": {"n_experts": 8} | table.PAPER_SETTINGS | changed})

    assert kind(gamma=0.999, seed=3, alpha=1.0).settings == "gamma 0.999"
    assert kind(autotune=False, alpha=0.1).settings == "alpha 0.1, autotune False"
    assert kind(reward_scale=5).settings == "reward-scale 5" and not kind(reward_scale=5).like_paper
    assert (
        kind(precision="bfloat16") == ("SMoSE", 8, "", "precision bfloat16") and kind(precision="bfloat16").like_paper
    )
    authors = kind(authors=True, gate="softmax")
    assert authors.name == "SMoSE, authors' code" and authors.settings == "" and authors.like_paper
    short = kind(keep=0.2, router_inputs=1, precision="bfloat16")
    assert (short.name, short.settings) == ("SMoSE, keep 0.2, router-inputs 1", "precision bfloat16")
    assert not short.like_paper and kind(keep=1.0, router_inputs=0).like_paper
    assert kind(n_experts=16).name == "SMoSE, 16 experts"


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
    tables, notes = build(tmp_path)
    first, second, fifth, aggregate = tables.values()
    ours = [row for row in second if row["environment"] == "Reacher-v4" and row["algorithm"].startswith("SMoSE")]
    assert [row["algorithm"] for row in ours] == ["SMoSE", "SMoSE", "SMoSE"]
    assert [row["settings"] for row in ours] == ["the paper's", "the paper's", "gamma 0.999"]
    assert ours == [row for row in first if row["environment"] == "Reacher-v4" and "SMoSE" in row["algorithm"]]
    paper_row, shorter, other = ours
    assert paper_row["paper_mean"] == -5.49 and paper_row["paper_std"] == 2.32
    assert paper_row["mean"] == pytest.approx((-5 - 7 - 9) / 3) and paper_row["seeds"] == 3
    assert paper_row["std_episodes"] == pytest.approx((1 + 0 + 1) / 3)
    assert paper_row["std_seeds"] == pytest.approx(2)
    assert paper_row["iqm"] == pytest.approx(-7) and -9 <= paper_row["iqm_low"] <= -7 <= paper_row["iqm_high"] <= -5
    assert (paper_row["n_active"], paper_row["n_total"], paper_row["steps"]) == (144, 480, 1_000_000)
    assert "paper_mean" not in shorter and shorter["steps"] == 300_000 and shorter["mean"] == -2.5
    assert not {"paper_mean", "iqm_low", "std_seeds"} & set(other) and other["mean"] == -1
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
    row = build(tmp_path)[0]["All environments: IQM with 0 = random policy, 1 = the paper's SMoSE"][0]
    # twelve scores, three cut on either side: 0, .5 x5, 1 x5, 2
    assert row["algorithm"] == "SMoSE" and row["iqm"] == pytest.approx((3 * 0.5 + 3 * 1.0) / 6)
    assert 0.5 <= row["iqm_low"] < row["iqm"] < row["iqm_high"] <= 1.0


def test_tiny_real_runs_have_rows_of_their_own(run_main, smose_run, sac_run, tmp_path):
    runs = tmp_path / "runs"
    for run in (smose_run, sac_run):
        shutil.copytree(run, runs / run.name)
    done = run_main(table, runs, "--format", "markdown", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    second = read_markdown(done.stdout)[1]
    tiny = "batch-size 32, buffer-size 1000, learning-starts 100"
    (smose,) = [row for row in second if row["algorithm"] == "SMoSE" and row["settings"] == tiny]
    own = json.loads((smose_run / "evaluation.json").read_text())
    assert smose["ours"] == f"{own['mean']:.2f} ± {own['std']:.2f}"
    assert (smose["environment"], smose["N_act (N_tot)"], smose["paper"]) == ("Reacher-v4", "144 (480)", "-")
    assert (smose["seeds"], smose["steps"]) == ("1", "400") and "in 3 deterministic episodes" in done.stdout
    # 8 router rows and 8 x 2 mean rows of 11 weights and a bias, none of them zero
    assert smose["numbers read"] == str((8 + 16) * 12)
    assert [row["algorithm"] for row in second if row["settings"] == tiny] == ["SAC-S", "SMoSE"]
    (hopper,) = [row for row in second if (row["environment"], row["algorithm"]) == ("Hopper-v4", "SAC-M")]
    assert (hopper["paper"], hopper["ours"], hopper["settings"]) == ("3224.25 ± 177.90", "not run", "-")


def test_numbers_read_and_hours(smose_run, tmp_path):
    first = as_if(smose_run, tmp_path, 1, [-4.0], seed=1, keep=0.2, hours=2.0)
    assert not (first / "actor.safetensors").exists()
    second = as_if(smose_run, tmp_path, 2, [-4.0], seed=2, keep=0.2)
    for run in (first, second):  # as runs before this was counted
        for file in ("config.json", "evaluation.json"):
            values = json.loads((run / file).read_text())
            (run / file).write_text(json.dumps({k: v for k, v in values.items() if k != "n_read"}))
    (row,) = build(tmp_path, only_run=True)[0]["Ours beside the paper's"]
    assert "n_read" not in row and row["hours"] == 2
    shutil.copy(smose_run / "actor.safetensors", second)
    assert build(tmp_path, only_run=True)[0]["Ours beside the paper's"][0]["n_read"] == 288
    edit(first / "config.json", n_read=88, hours=2.0)
    edit(second / "evaluation.json", n_read=50)
    edit(second / "config.json", n_read=51, hours=3.0)
    (row,) = build(tmp_path, only_run=True)[0]["Ours beside the paper's"]
    assert (row["n_read"], row["hours"]) == (69, 2.5)
    columns = table.columns_of(row)
    assert (columns["algorithm"], columns["numbers read"], columns["hours"]) == ("SMoSE, keep 0.2", "69", "2.5")


def test_only_run_is_the_readmes_table(run_main, smose_run, sac_run, tmp_path):
    runs = tmp_path / "results" / "runs"
    in_bfloat16 = {"precision": "bfloat16", "hours": 1.0}
    as_if(smose_run, runs / "Reacher-v4" / "smose_seed0", 1, [-4.0, -6.0], seed=0, **in_bfloat16)
    as_if(smose_run, runs / "Reacher-v4" / "smose_seed1", 1, [-6.0, -8.0], seed=1, **in_bfloat16)
    as_if(smose_run, runs / "Reacher-v4" / "keep", 1, [-9.0], seed=0, keep=0.2, **in_bfloat16)
    as_if(smose_run, runs / "Reacher-v4" / "authors", 1, [-5.0], seed=0, authors=True, gate="softmax")
    as_if(smose_run, runs / "Reacher-v4" / "16", 1, [-5.0], seed=0, n_experts=16)
    as_if(sac_run, runs / "Walker2d-v4" / "sac_m", 1, [4000.0], seed=0, size="M", env_id="Walker2d-v4")
    for seed, value in enumerate([2000.0, 2500.0, 3000.0]):
        for precision in ("float32", "bfloat16"):
            folder = runs / "Hopper-v4" / f"{precision}{seed}"
            as_if(smose_run, folder, 1, [value], seed=seed, steps=300_000, env_id="Hopper-v4", precision=precision)
    done = run_main(table, runs, "--only-run")
    assert done.returncode == 0, done.stderr
    (rows,) = read_markdown(done.stdout)
    names = ["environment", "algorithm", "settings", "paper", "ours", "over seeds", "seeds", "steps", "hours"]
    short = [" | ".join(row[name] for name in names) for row in rows]
    assert short == [
        "Walker2d-v4 | SAC-M | the paper's | 4020.51 ± 192.75 | 4000.00 ± 0.00 | - | 1 | 1,000,000 | -",
        "Hopper-v4 | SMoSE | the paper's | 2816.08 ± 445.57 | 2500.00 ± 0.00 | 500.00 | 3 | 300,000 | -",
        "Hopper-v4 | SMoSE | precision bfloat16 | 2816.08 ± 445.57 | 2500.00 ± 0.00 | 500.00 | 3 | 300,000 | -",
        "Reacher-v4 | SMoSE | precision bfloat16 | -5.49 ± 2.32 | -6.00 ± 1.00 | 1.41 | 2 | 1,000,000 | 1.0",
        "Reacher-v4 | SMoSE, authors' code | the paper's | -5.49 ± 2.32 | -5.00 ± 0.00 | - | 1 | 1,000,000 | -",
        "Reacher-v4 | SMoSE, keep 0.2 | precision bfloat16 | -5.49 ± 2.32 | -9.00 ± 0.00 | - | 1 | 1,000,000 | 1.0",
        "Reacher-v4 | SMoSE, 16 experts | the paper's | -4.94 ± 2.05 | -5.00 ± 0.00 | - | 1 | 1,000,000 | -",
    ]
    missing = (
        "SMoSE on Walker2d-v4, Hopper-v4, Ant-v4, HalfCheetah-v4, Swimmer-v4; SAC-S on all six; SAC-M on Hopper-v4"
    )
    assert f"not run with the paper's settings and 1,000,000 steps: {missing}" in done.stdout

    compared = ("--env-ids", "Hopper-v4", "HalfCheetah-v4", "--algos", "smose", "--steps", "300000")
    (rows,) = read_markdown(run_main(table, runs, "--only-run", *compared).stdout)
    assert [row["settings"] for row in rows] == ["the paper's", "precision bfloat16"]
    assert {row["IQM [95% interval]"] for row in rows} == {"2500.00 [2000.00, 3000.00]"}
    wrong = run_main(table, runs, "--only-run", "--algos", "sac-l")
    assert_one_line_error(wrong, "none of the 12 runs is asked for", "Hopper-v4 SMoSE 300000")

    beside = [row for row in read_markdown(run_main(table, runs).stdout)[1] if row["paper"] == "-5.49 ± 2.32"]
    assert [row["algorithm"] for row in beside] == ["SMoSE", "SMoSE, authors' code"]
    assert [row["ours"] for row in beside] == ["-6.00 ± 1.00", "-5.00 ± 0.00"]


def test_where_nothing_was_run_yet_the_paper_stands_alone(run_main, tmp_path):
    for folders in ([], ["runs"], [tmp_path], ["runs", tmp_path]):
        done = run_main(table, *folders, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        tables = read_markdown(done.stdout)
        assert len(tables) == 4 and "4224.29 ± 25.96" in done.stdout
        assert folders == [] or {row["ours"] for rows in tables for row in rows} == {"not run"}
    done = run_main(table, "runs", "--only-run", cwd=tmp_path)
    assert done.returncode == 0 and read_markdown(done.stdout) == [[]] and "SMoSE on all six" in done.stdout
    assert_one_line_error(run_main(table, "rusn", cwd=tmp_path), "rusn is not a folder")


def test_csv_has_a_number_or_nothing_in_every_column_of_numbers(run_main, smose_run, tmp_path):
    as_if(smose_run, tmp_path / "runs", 1, [-4.0, -6.0], seed=1)
    as_if(smose_run, tmp_path / "runs", 2, [-6.0, -6.0, -6.0], seed=2)
    as_if(smose_run, tmp_path / "runs", 3, [-6.0], seed=2, gamma=0.9, keep=0.2)
    done = run_main(table, tmp_path / "runs", "--format", "csv", "--output", tmp_path / "t.csv")
    assert done.returncode == 0 and done.stdout == ""
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    ours = [
        r for r in rows if r["table"] == "Table 2" and r["environment"] == "Reacher-v4" and "SMoSE" in r["algorithm"]
    ]
    assert [(r["algorithm"], r["settings"]) for r in ours] == [
        ("SMoSE", "the paper's"),
        ("SMoSE, keep 0.2", "gamma 0.9"),
    ]
    row = ours[0]
    assert (row["mean"], row["paper_mean"], row["seeds"], row["std_seeds"]) == ("-5.5", "-5.49", "2", "0.7071")
    assert row["episodes"] == "2" and (ours[1]["std_seeds"], ours[1]["iqm_low"]) == ("", "")
    for row in rows:
        for name in table.FIELDS[4:]:
            assert row[name] == "" or np.isfinite(float(row[name])), (name, row)
    assert {(r["mean"], r["settings"]) for r in rows if r["environment"] == "Ant-v4"} == {("", "not run")}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="Debian's texlive-latex-base is not installed")
def test_latex_compiles_and_stays_within_the_page(run_main, smose_run, tmp_path):
    strange = r"Ant\v4_{}$&#%^~<>|é"
    for i in range(60):  # more rows than a page has lines
        settings = {"gamma": 1 - i / 100, "tau": 0.5, "policy_lr": 1.0, "buffer_size": 12345, "env_id": strange}
        as_if(smose_run, tmp_path / "runs", 2 * i, [-123456.0, -6.0], seed=1, keep=0.2, **settings)
        as_if(smose_run, tmp_path / "runs", 2 * i + 1, [-654321.0, -6.0], seed=2, keep=0.2, **settings)
    done = run_main(table, tmp_path / "runs", "--format", "latex", "--resamples", "100")
    needed = re.search(r"% needs (\\usepackage.*)", done.stdout)[1]
    document = f"\\documentclass{{article}}\n{needed}\n\\begin{{document}}\n{done.stdout}\n\\end{{document}}\n"
    (tmp_path / "t.tex").write_text(document)
    command = ["pdflatex", "-halt-on-error", "-no-shell-escape", "t.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert made.returncode == 0, made.stdout[-2000:]
    log = (tmp_path / "t.log").read_text(errors="replace")
    assert "Overfull" not in log and "Float too large" not in log and "Missing character" not in log
    (body,) = [line for line in done.stdout.splitlines() if line.startswith("SMoSE") and "4224.29" in line][:1]
    assert r"4224.29 $\pm$ 25.96 & not run" in body
    assert r"N\_act (N\_tot)" in done.stdout and r"95\% interval" in done.stdout and ", continued" in done.stdout


def test_names_from_files_are_inert_in_a_terminal(run_main, smose_run, tmp_path):
    evil = "\x1b]0;owned\x07\x1b[2J"
    as_if(smose_run, tmp_path / "runs", 1, [1.0], seed=1, env_id=f"A{evil}", gate=f"x{evil}|y", keep=f"{evil}\n")
    named = shutil.copytree(smose_run, tmp_path / "runs" / f"b{evil}")
    (named / "evaluation.json").unlink()
    for flags in ((), ("--only-run",), ("--format", "csv"), ("--format", "latex")):
        done = run_main(table, tmp_path / "runs", *flags)
        assert done.returncode == 0 and "]0;owned" in done.stdout
        assert all(character.isprintable() for character in done.stdout.replace("\n", ""))
        read_markdown(done.stdout)


@pytest.mark.parametrize("file", ["config.json", "evaluation.json"])
@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe{}", b"[" * 100_000, b"1" * 5000], ids=["cut", "utf", "deep", "big"]
)
def test_a_file_that_is_no_json_is_named(run_main, smose_run, tmp_path, file, content):
    run = as_if(smose_run, tmp_path / "runs", 1, [1.0], seed=1)
    (run / file).write_bytes(content)
    assert_one_line_error(run_main(table, tmp_path / "runs"), str(run), file, "move it")


@pytest.mark.parametrize(
    "file, values",
    [
        ("evaluation.json", {"returns": []}),
        ("evaluation.json", {"returns": None}),
        ("evaluation.json", {"returns": [1.0, float("nan")]}),
        ("evaluation.json", {"returns": [10**400]}),
        ("evaluation.json", {"returns": ["1"]}),
        ("evaluation.json", {"seed": "one"}),
        ("evaluation.json", {"steps": 1e6}),
        ("evaluation.json", {"n_read": -1}),
        ("config.json", {"args": None}),
        ("config.json", {"args": {}}),
        ("config.json", {"env_id": 3}),
        ("config.json", {"n_total": "many"}),
        ("config.json", {"hours": float("inf")}),
        ("config.json", {"versions": []}),
        ("config.json", {"versions": {"mujoco": [3]}}),
    ],
)
def test_a_damaged_value_is_named(run_main, smose_run, tmp_path, file, values):
    run = as_if(smose_run, tmp_path / "runs", 1, [1.0], seed=1)
    edit(run / file, **values)
    assert_one_line_error(run_main(table, tmp_path / "runs"), str(run), "damaged", "move it away")


def test_a_config_of_something_else_is_passed_over(run_main, tmp_path):
    for i, content in enumerate(("[]", "{}", '{"format": "other"}', '{"format": ["smose-run"]}')):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "config.json").write_text(content)
    assert run_main(table, tmp_path).returncode == 0


def test_mistakes_are_one_line(run_main, tmp_path):
    assert_one_line_error(run_main(table, tmp_path / "nothing"), "not a folder")
    assert_one_line_error(run_main(table, "--resamples", "3"), "--resamples 3")
    assert_one_line_error(run_main(table, "--output", tmp_path / "no" / "t.md"), "folder does not exist")


@pytest.mark.parametrize("redirect", [">&-", "| head -1", "2>&- >&-"])
def test_nobody_reading_is_no_traceback(tmp_path, redirect):
    command = f"set -o pipefail; {sys.executable} {ROOT}/scripts/table.py {tmp_path} {redirect}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""


def test_the_command_itself(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "table.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("### ") == 4 and "4224.29 ± 25.96" in done.stdout
