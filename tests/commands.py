"""The trainers as a user meets them: commands, the folders that they leave, and the lines that they end with.

`run` calls a trainer's main in this process, which is the quickest. A Command is a process of its own, to be killed or
cut off; it is forked from one that has imported the libraries, which saves four seconds each.
"""

import contextlib
import csv
import functools
import hashlib
import io
import json
import multiprocessing
import os
import re
import runpy
import signal
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from conftest import Done
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import sac_baseline
import smose_sac

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
TRAINERS = {"smose_sac": smose_sac, "sac_baseline": sac_baseline}
FORKS = multiprocessing.get_context("forkserver")

SMALL = "--learning-starts 100 --batch-size 32 --checkpoint-every 60 --eval-every 150 --eval-episodes 2"
SMALL = f"{SMALL} --final-eval-episodes 3 --total-timesteps 420 --no-compile".split()
REACHER = ["--env-id", "Reacher-v4", "--buffer-size", "150", *SMALL]  # the ring of the replay wraps
HOPPER = ["--env-id", "Hopper-v4", "--buffer-size", "1000", "--seed", "2", *SMALL]
BRIEF = "--learning-starts 20 --batch-size 16 --total-timesteps 60 --eval-every 60 --eval-episodes 1".split()
BRIEF += "--final-eval-episodes 1 --buffer-size 100 --checkpoint-every 100 --no-compile".split()


def words_of(trainer: str, flags: tuple) -> list[str]:
    """SAC-S is the quickest of its sizes."""
    size = (
        ["--size", "S"] if trainer == "sac_baseline" and not {"--resume", "--hidden-sizes", "--size"} & {*flags} else []
    )
    return [str(ROOT / f"{trainer}.py"), *size, *map(str, flags)]


def run(folder: Path, trainer: str, *flags: object) -> Done:
    """`python trainer.py flags...` in that folder, but in this process."""
    module, out, err, code, here = TRAINERS[trainer], io.StringIO(), io.StringIO(), 0, Path.cwd()
    module.STOP.clear()
    os.chdir(folder)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            mock.patch.object(sys, "argv", words_of(trainer, flags)),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            module.main()
    except SystemExit as leaving:
        code = leaving.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.chdir(here)
        module.STOP.clear()
        torch.backends.mkldnn.matmul.fp32_precision = "none"  # as in a new process
    return Done(code, out.getvalue(), err.getvalue())


def train(folder: Path, trainer: str, *flags: object) -> Path:
    """The run folder of a command that has to work."""
    before = set(folder.glob("runs/[!.]*"))
    done = run(folder, trainer, *flags)
    assert (done.returncode, done.stderr) == (0, ""), done
    (made,) = set(folder.glob("runs/[!.]*")) - before
    return made


def resume(path: Path, trainer: str, *flags: object) -> str:
    """What a --resume that has to work prints."""
    time.sleep(1.1)  # TensorBoard names its files by the second, and reads them in the order of their names
    done = run(path.parent.parent, trainer, "--resume", path, *flags)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def mistake(done: Done) -> str:
    """The line that a user's mistake ends with."""
    assert done.returncode == 2, done
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr
    assert "Traceback" not in done.stdout
    assert not re.search(r"[│╭╰]|<class|Errno|None$", done.stderr), done.stderr
    assert len(done.stderr) < 500, done.stderr
    return done.stderr


def refused(folder: Path, trainer: str, *flags: object) -> str:
    """A mistake that leaves nothing behind."""
    before = set(folder.glob("**/*"))
    line = mistake(run(folder, trainer, *flags))
    assert {path for path in set(folder.glob("**/*")) - before if path.name != "runs"} == set()
    return line


def run_script(words: list[str], folder: str, output: str, environment: dict[str, str]) -> None:
    """In the forked process: become `python words...` in that folder."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{output}/{name}", os.O_WRONLY), number)
    os.chdir(folder)
    multiprocessing.set_start_method("fork", force=True)  # as in a process of its own
    os.environ.update(environment)
    sys.argv, sys.path[:0] = words, [str(ROOT), str(TESTS)]
    runpy.run_path(words[0], run_name="__main__")


@functools.cache
def start_forks() -> tempfile.TemporaryDirectory:
    """Starts the process to fork from; returns where commands print to: not into the folders that are tested."""
    FORKS.set_forkserver_preload(["preloaded"])
    with mock.patch.dict(os.environ, PYTHONPATH=str(TESTS)):
        forkserver.ensure_running()
    return tempfile.TemporaryDirectory()


class Command:
    """`python trainer.py flags...` in a folder, running or done."""

    def __init__(self, folder: Path, trainer: str, *flags: object, **environment: str):
        self.words, self.folder = words_of(trainer, flags), folder
        self.output = Path(tempfile.mkdtemp(dir=start_forks().name))
        for name in ("stdout", "stderr"):
            (self.output / name).touch()
        self.before = set(folder.glob("runs/[!.]*"))
        arguments = (self.words, str(folder), str(self.output), environment)
        self.process = FORKS.Process(target=run_script, args=arguments, daemon=True)
        self.process.start()

    stdout = property(lambda self: (self.output / "stdout").read_text())
    stderr = property(lambda self: (self.output / "stderr").read_text())

    def wait(self, seconds: float = 400) -> Done:
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"{self.words} still ran after {seconds} s: {self.stdout} {self.stderr}")
        return Done(self.process.exitcode, self.stdout, self.stderr)

    def until(self, happened, seconds: float = 300) -> None:
        """Wait for something that the run folder shows."""
        end = time.time() + seconds
        while not happened():
            assert self.process.is_alive(), f"{self.words} ended early: {self.stdout} {self.stderr}"
            assert time.time() < end, f"{self.words} took too long: {self.stdout} {self.stderr}"
            time.sleep(0.002)

    def signal(self, number: int) -> Done:
        os.kill(self.process.pid, number)
        return self.wait()

    @property
    def run(self) -> Path:
        """The run folder that this command made."""
        (run,) = set(self.folder.glob("runs/[!.]*")) - self.before
        return run


def row_written(folder: Path, row: int):
    """Has the (only) run below `folder` come to this row of its replay?"""

    def happened() -> bool:
        for path in folder.glob("runs/*/replay.npy"):
            try:
                return np.load(path, mmap_mode="r")[row, -1] > 0
            except (ValueError, EOFError, OSError):  # being made
                return False
        return False

    return happened


def checkpoint_at(folder: Path, step: int):
    """Has the (only) run below `folder` a checkpoint at this step or later?"""

    def happened() -> bool:
        paths = list(folder.glob("runs/*/checkpoint.safetensors"))
        return bool(paths) and int(metadata(paths[0])["global_step"]) >= step

    return happened


def tensors(path: Path) -> dict[str, np.ndarray]:
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "np") as file:
        return file.metadata()


def change_settings(run: Path, **settings: object) -> None:
    """As if the run had been started with these, checksum and all; ... takes one away."""
    path = run / "checkpoint.safetensors"
    about, parts = metadata(path), load_file(path)
    state = json.loads(about["state"])
    state["args"] = {name: value for name, value in (state["args"] | settings).items() if value is not ...}
    about["state"] = json.dumps(state)
    about["sha256"] = hashlib.sha256(save(parts) + about["state"].encode()).hexdigest()
    save_file(parts, path, about)


def evaluations(run: Path) -> list[dict[str, float]]:
    with open(run / "evaluations.csv", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def events(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's curves, as TensorBoard reads them."""
    read = events(run)
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def files(run: Path) -> dict[str, bytes]:
    """All files but the lock, by name."""
    return {p.name: p.read_bytes() for p in run.iterdir() if p.is_file() and not p.name.startswith(".")}


def file_names(run: Path) -> set[str]:
    return {re.sub(r"events.*", "events", name) for name in files(run)}


def assert_same_run(run: Path, other: Path, curves: bool = True) -> None:
    """Bit for bit the same training: weights, optimizers, replay, evaluations and curves."""
    for name in ("actor", "actor_best", "checkpoint"):
        one, two = tensors(run / f"{name}.safetensors"), tensors(other / f"{name}.safetensors")
        assert one.keys() == two.keys()
        assert [key for key in one if one[key].tobytes() != two[key].tobytes()] == [], name
    for name in ("replay.npy", "evaluations.csv", "evaluation.json"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name
    one, two = ({tag: v for tag, v in scalars(r).items() if tag != "charts/SPS"} for r in (run, other))
    assert one == two or not curves
    assert file_names(run) == file_names(other)
