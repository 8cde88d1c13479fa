"""Tiny real runs, trained once per test session through the command line and shared by all tests.

A test that writes into a run folder copies it first (`shutil.copytree(smose_run, tmp_path / smose_run.name)`).
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Optional

import pytest
import tyro

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch or NumPy

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "scripts"))

from command_line import end_on_mistakes  # noqa: E402

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="g++ and Python's headers are not installed",
)

TINY_RUN = (
    "--env-id Reacher-v4 --total-timesteps 400 --learning-starts 100 --batch-size 32 --buffer-size 1000 "
    "--no-compile --eval-every 200 --eval-episodes 2 --final-eval-episodes 3"
).split()


def train_tiny(script: str, folder: Path, *flags: str) -> Path:
    """Runs a trainer as a user does, with `folder` as the current directory, and returns the run folder it left."""
    before = set(folder.glob("runs/*"))
    command = [sys.executable, str(ROOT / script), *TINY_RUN, *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (run,) = set(folder.glob("runs/*")) - before
    return run


@pytest.fixture(scope="session")
def smose_run(tmp_path_factory) -> Path:
    """run folder of a tiny SMoSE training on Reacher-v4 (read only)"""
    return train_tiny("smose_sac.py", tmp_path_factory.mktemp("smose"))


@pytest.fixture(scope="session")
def sac_run(tmp_path_factory) -> Path:
    """run folder of a tiny SAC-S training on Reacher-v4 (read only)"""
    return train_tiny("sac_baseline.py", tmp_path_factory.mktemp("sac"), "--size", "S")


@pytest.fixture(params=["smose_sac", "sac_baseline"], scope="session")
def trainer(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def reacher(trainer, tmp_path_factory) -> Path:
    """an uninterrupted run on Reacher-v4, longer than its buffer (read only)"""
    from commands import REACHER, train

    return train(tmp_path_factory.mktemp("reacher"), trainer, *REACHER)


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run_main(capsys, monkeypatch):
    """calls a script's main with command-line arguments in this process, which is quicker than a new one each time"""

    def run(script: ModuleType, *arguments: object, cwd: Optional[Path] = None, **environment: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            if cwd:
                patch.chdir(cwd)
            code = 0
            try:
                args = tyro.cli(script.Args, args=[str(argument) for argument in arguments])
                end_on_mistakes(lambda: script.main(args))
            except SystemExit as exit:
                code = exit.code
        return Done(code, *capsys.readouterr())

    return run


def assert_one_line_error(done: Done, *words: str, code: int = 2) -> None:
    """One line on stderr that has all the words, and the exit code of a mistake."""
    assert done.returncode == code
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
