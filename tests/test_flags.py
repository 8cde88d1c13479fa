"""A mistake on the command line of any script is one line on stderr, with exit code 2; Ctrl-C is no traceback."""

import os
import pty
import re
import runpy
import signal
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from conftest import ROOT, Done, assert_one_line_error
from safetensors.numpy import save_file

# script, what it needs on the command line, and a flag with a value of the wrong type
SCRIPTS = [
    ("smose_sac.py", [], ["--tau", "half"]),
    ("sac_baseline.py", [], ["--size", "XXL"]),
    ("distill_trees.py", ["run"], ["--max-depth", "deep"]),
    ("interpret.py", ["run"], ["--rank", "first"]),
    ("scripts/benchmark.py", [], ["--rounds", "many"]),
    ("scripts/evaluate.py", ["run"], ["--episodes", "few"]),
    ("scripts/export.py", ["run", "--format", "c"], ["--format", "fortran"]),
    ("scripts/plot.py", [], ["--window", "wide"]),
    ("scripts/sweep.py", [], ["--jobs", "2.5"]),
    ("scripts/table.py", [], ["--resamples", "1e"]),
]
NAMES = [name for name, _, _ in SCRIPTS]


@pytest.fixture
def run_script(capsys, monkeypatch, tmp_path):
    """runs a script as `python SCRIPT ...` does, but in this process, where PyTorch and the like are imported once"""

    def run(script: str, *arguments: object) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        monkeypatch.delitem(gym.registry, "Clocked-v0", raising=False)  # benchmark.py's own, anew each time
        on_sigterm, code = signal.getsignal(signal.SIGTERM), 0
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as leaving:
            code = leaving.code
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)
        return Done(code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(("script", "needed", "wrong"), SCRIPTS, ids=NAMES)
def test_a_wrong_flag_or_value_is_named_in_one_line(run_script, script, needed, wrong, tmp_path):
    for mistake, word in ((["--no-such-flag", "1"], "--no-such-flag"), (wrong, wrong[-1]), (wrong[:1], "value")):
        done = run_script(script, *needed, *mistake)
        assert_one_line_error(done, mistake[0], word, "; see --help")
        assert done.stdout == "" and "──" not in done.stderr and "│" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("script", "arguments", "missing"),
    [
        ("distill_trees.py", [], "PATH"),
        ("interpret.py", [], "PATH"),
        ("scripts/evaluate.py", [], "no actor given"),
        ("scripts/export.py", [], "PATH"),
        ("scripts/export.py", ["run"], "--format {c,python,onnx,json}"),
    ],
)
def test_what_is_missing_is_named_in_one_line(run_script, script, arguments, missing):
    assert_one_line_error(run_script(script, *arguments), missing)


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("distill_trees.py", ["run", "--max-dept", "3"], ["--max-dept,", "Perhaps you meant: --max-depth "]),
        ("interpret.py", ["run", "--episode", "3"], ["--episode,", "Perhaps you meant: --episodes "]),
        ("scripts/evaluate.py", ["run", "--episode", "3"], ["--episode,", "Perhaps you meant: --episodes "]),
        ("scripts/export.py", ["run", "--fromat", "c"], ["--format {c,", "Unrecognized options: --fromat c;"]),
    ],
)
def test_a_mistyped_flag_brings_a_short_suggestion(run_script, script, arguments, words):
    done = run_script(script, *arguments)
    assert_one_line_error(done, *words)
    assert "helptext" not in done.stderr and "(default" not in done.stderr and "(required)" not in done.stderr


@pytest.mark.parametrize("script", NAMES)
def test_help_is_no_mistake(run_script, script):
    done = run_script(script, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert "usage" in done.stdout and "show this help message and exit" in done.stdout
    assert not re.search(r"\(default: (None)?\)", " ".join(done.stdout.split()))  # the text says what is done then


def test_one_flag_has_one_description_in_all_scripts():
    """What is the same thing is told in the same words; --output, --episodes and --seed are each script's own."""
    told: dict[str, set[str]] = {}
    for script in NAMES[2:]:
        source = (ROOT / script).read_text()
        for flag, text in re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""$', source, re.M | re.S):
            told.setdefault(flag, set()).add(" ".join(text.split()))
    assert {len(told[flag]) for flag in ("names", "runs")} == {1}
    assert told["env_id"] == {
        "another environment than the one the actor was trained on, of the same sizes (Hopper-v5 for Hopper-v4)",
        "environment to train on",
    }
    assert {text.partition("*.safetensors")[0] for text in told["path"]} == {
        "a run folder (its actor.safetensors is read) or a "
    }
    # those of the sweep say what to train, not what to look at
    assert len(told["env_ids"]) == len(told["algos"]) == 2


@pytest.mark.parametrize("script", ["distill_trees.py", "interpret.py", "scripts/sweep.py"])
def test_on_a_terminal_too_there_are_no_colours_and_no_frame(run_script, script, monkeypatch):
    screen, terminal = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")  # tyro colours what it says there
    for encoding in ("utf-8", "ascii"):  # and draws another frame
        with open(terminal, "w", encoding=encoding, closefd=False) as stdout, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            done = run_script(script, "run", "--no-such-flag", "1")
        assert_one_line_error(done, "--no-such-flag, 1; see --help")
        assert not set(done.stderr) & set("\x1b│─") and "---" not in done.stderr
    os.close(terminal)
    os.close(screen)


class Interrupted(gym.Env):
    """A user presses Ctrl-C as soon as the first episode begins."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("script", ["distill_trees.py", "interpret.py"])
def test_ctrl_c_ends_without_a_traceback_and_leaves_nothing(run_script, script, tmp_path: Path):
    gym.register("Interrupted-v0", Interrupted)
    shapes = {"router.weight": (2, 3), "router.bias": (2,), "action_scale": (1,), "action_bias": (1,)}
    for head in ("experts.mean", "experts.log_std"):
        shapes |= {f"{head}.weight": (2, 1, 3), f"{head}.bias": (2, 1)}
    tensors = {name: np.ones(shape, dtype=np.float32) for name, shape in shapes.items()}
    metadata = {"format": "smose-actor", "env_id": "Interrupted-v0", "seed": "0", "steps": "1"}
    metadata |= {"top_k": "1", "gate": "one-hot"}
    save_file(tensors, tmp_path / "actor.safetensors", metadata)
    done = run_script(script, tmp_path)
    gym.registry.pop("Interrupted-v0")
    assert done.returncode == 130 and done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["actor.safetensors"]
