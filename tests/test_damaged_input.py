"""Damaged files and senseless flags, thrown at every script: it works, or says in one line what is wrong.

python -m pytest tests/test_damaged_input.py                  # a few hundred, the same ones each time
EXAMPLES=5000 python -m pytest tests/test_damaged_input.py    # a thorough search of an hour or so
"""

import contextlib
import csv
import io
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, TINY_RUN, Done
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

LONGEST = 60  # seconds that one example may take


@dataclass(frozen=True)
class Case:
    """A script, its command line in a folder with a run in `runs/`, the files that it reads, and flags to spoil."""

    script: str
    words: str
    files: str
    flags: str
    examples: int


CASES = [
    Case(
        "scripts/evaluate.py",
        "runs/smose runs/sac --episodes 1",
        "smose/actor.safetensors sac/actor.safetensors",
        "--episodes --router --env-id --noise --delay --mass --friction --output",
        60,
    ),
    Case("scripts/evaluate.py", "runs/smose --router trees --episodes 1", "smose/trees/trees.json", "--noise", 40),
    Case(
        "scripts/export.py",
        "runs/smose --format json --output out",
        "smose/actor.safetensors smose/config.json smose/replay.npy",
        "--format --output --names",
        25,
    ),
    Case(
        "scripts/export.py",
        "runs/sac --format python --names names.json",
        "sac/actor.safetensors names.json",
        "--format",
        30,
    ),
    Case(
        "scripts/table.py",
        "runs --resamples 100",
        "smose/config.json smose/evaluation.json sac/config.json sac/evaluation.json",
        "--format --output --resamples",
        60,
    ),
    Case(
        "scripts/plot.py",
        "runs --source evaluations --output curves.png",
        "smose/config.json smose/evaluations.csv sac/config.json sac/evaluations.csv",
        "--output --source --env-ids --window",
        25,
    ),
    Case("scripts/plot.py", "runs --output curves.svg", "sac/events*", "--window", 15),
    Case(
        "scripts/sweep.py",
        "--env-ids Reacher-v4 --seeds 0 --algos smose sac-s --dry-run",
        "smose/config.json smose/evaluation.json",
        "--env-ids --seeds --algos --jobs --runs-dir --cpus-per-run --gpus-per-run --interval --retries",
        60,
    ),
    Case(
        "scripts/sweep.sh",
        f"--env-ids Reacher-v4 --seeds 0 --algos smose --dry-run --python {sys.executable}",
        "smose/config.json smose/evaluation.json",
        "--env-ids --seeds --algos --jobs --python",
        15,
    ),
    Case(
        "scripts/benchmark.py",
        "--core 999",  # nothing is measured
        "",
        "--env-id --rounds --steps-per-round --peers --only --experts --batch-sizes --memory-env --device "
        "--buffer-size --learning-starts --output",
        40,
    ),
    Case(
        "distill_trees.py",
        "runs/smose --names names.json --episodes 0 --max-depth 2",
        "smose/actor.safetensors smose/config.json smose/replay.npy names.json",
        "--max-depth --data --max-samples --episodes --fits --dagger --seed --env-id --names --output",
        15,
    ),
    Case(
        "interpret.py",
        "runs/smose --names names.json --episodes 1 --no-pushes",
        "smose/actor.safetensors smose/trees/trees.json smose/trees/fidelity.json smose/robustness.json names.json",
        "--rank --episodes --env-id --names --output",
        15,
    ),
    Case(
        "sac_baseline.py",
        "--resume runs/sac",
        "sac/config.json sac/evaluations.csv sac/evaluation.json sac/checkpoint.safetensors sac/replay.npy",
        "--total-timesteps --seed --gamma --batch-size --env-id",
        20,
    ),
    Case(
        "smose_sac.py",
        f"{' '.join(TINY_RUN)} --total-timesteps 120",
        "",
        "--env-id --seed --total-timesteps --exp-name --resume --eval-every --eval-episodes --checkpoint-every "
        "--num-threads --n-experts --top-k --gate --balance-coef --buffer-size --gamma --tau --batch-size "
        "--learning-starts --policy-lr --policy-frequency --alpha --keep --router-inputs --precision",
        40,
    ),
]

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, -(2**63), 10**400, 0.5, -0.0, 1e37, 1e308, -1e308, float("inf"), float("nan")]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", " ", "nan", "-inf", "1e999", "\x1b[31mred\x1b[0m", "a\nb", "*/", '"""', "\\", "../x", "\u202e",
                     "²", "٣", "x" * 3000, "\ud800", "Nowhere-v1", "json:Env-v0", "Reacher", "%s{0}", r"$\no$"]),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)


def damage_bytes(draw, file: Path) -> None:
    """Cut short, overwritten somewhere, or something else altogether."""
    content = file.read_bytes()
    at = draw(st.integers(0, len(content)))
    other = draw(st.binary(max_size=20))
    kind = draw(st.sampled_from(["cut", "overwrite", "insert", "replace", "empty", "folder", "nested"]))
    if kind == "folder":
        file.unlink()
        file.mkdir()
        return
    new = {"cut": content[:at], "overwrite": content[:at] + other + content[at + len(other) :], "empty": b""}
    new |= {"insert": content[:at] + other + content[at:], "replace": other, "nested": b"[" * 100_000}
    file.write_bytes(new[kind])


def damage_json(draw, file: Path) -> None:
    """Some value, at any depth, is another one or gone."""
    content = json.loads(file.read_text(encoding="utf-8"))
    holder, key, inner = None, None, content
    while isinstance(inner, dict | list) and inner and (holder is None or draw(st.integers(0, 3))):
        holder = inner
        key = draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(min(len(inner), 12))))
        inner = holder[key]
    if draw(st.integers(0, 9)) == 0:
        content = draw(VALUES)
    elif draw(st.integers(0, 4)) == 0:
        del holder[key]
    else:
        holder[key] = draw(VALUES)
    file.write_text(json.dumps(content), encoding="utf-8")


def damage_csv(draw, file: Path) -> None:
    """Some cell, row or header is another one or gone."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    row = draw(st.integers(0, len(rows) - 1))
    cell = draw(st.integers(0, len(rows[row]) - 1))
    match draw(st.sampled_from(["cell", "cell", "less", "more", "blank", "none", "latin-1"])):
        case "cell":
            rows[row][cell] = str(draw(st.one_of(NUMBERS, TEXTS)))
        case "less":
            del rows[row][cell]
        case "more":
            rows[row].insert(cell, "1")
        case "blank":
            rows[row] = []
        case "none":
            del rows[row]
        case "latin-1":
            rows[row][cell] = "\udce4"
    with file.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        with contextlib.suppress(UnicodeEncodeError):  # no file has half a surrogate pair
            csv.writer(stream).writerows(rows)


def damage_actor(draw, file: Path) -> None:
    """Some tensor has another shape, type or value, or is gone; or some of the metadata is another or gone."""
    with safe_open(file, framework="np") as stored:
        metadata, tensors = stored.metadata(), {name: stored.get_tensor(name) for name in stored.keys()}
    if draw(st.booleans()):
        key = draw(st.sampled_from([*sorted(metadata), "surprise"]))
        metadata[key] = draw(st.one_of(TEXTS, NUMBERS.map(str))).encode(errors="replace").decode()
        if draw(st.integers(0, 4)) == 0:
            del metadata[key]
    else:
        name = draw(st.sampled_from(sorted(tensors)))
        tensor = tensors[name]
        match draw(st.sampled_from(["value", "value", "dtype", "axis", "size", "gone", "name", "scale"])):
            case "value":
                tensor.flat[draw(st.integers(0, tensor.size - 1))] = draw(
                    st.sampled_from([np.nan, np.inf, -np.inf, 1e37, 9e8, -9e8, 1e-45, 0])
                )
            case "dtype":
                tensors[name] = tensor.astype(draw(st.sampled_from(["f8", "f2", "i4", "u1", "?"])))
            case "axis":
                tensors[name] = tensor[None]
            case "size":
                tensors[name] = np.ascontiguousarray(tensor[: draw(st.integers(0, len(tensor) - 1))])
            case "gone":
                del tensors[name]
            case "name":
                tensors[f"{name}.more"] = tensors.pop(name)
            case "scale":
                tensors[name] = tensor * np.float32(draw(st.sampled_from([0, -1, 1e6, 1e20])))
    save_file(tensors, file, metadata)


DAMAGE = {".safetensors": damage_actor, ".json": damage_json, ".csv": damage_csv}


class Hangs(BaseException):
    """No script catches this."""


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise Hangs(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_script(script: str, words: list[str], folder: Path, monkeypatch) -> Done:
    """As `python SCRIPT WORDS` in the folder, but in this process; warnings go to standard error as they do there."""
    if script.endswith(".sh"):
        command = ["bash", str(ROOT / script), *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=LONGEST)
        return Done(done.returncode, done.stdout, done.stderr)
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code = 0

    def show(message, category, *_: object) -> None:
        print(f"{category.__name__}: {message}", file=sys.stderr)

    with monkeypatch.context() as patch, warnings.catch_warnings(), at_most(LONGEST):
        warnings.simplefilter("default")
        for ignored in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", ignored)  # as Python does by itself
        patch.setattr(warnings, "showwarning", show)
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(ROOT / script), *words])
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as leaving:
            code = leaving.code or 0
        for stream in (stdout, stderr):
            stream.flush()
    return Done(code, *(stream.buffer.getvalue().decode(errors="replace") for stream in (stdout, stderr)))


def files_in(folder: Path) -> dict[str, int]:
    """What every file holds, in short; a lock holds nothing."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): zlib.crc32(path.read_bytes()) for path in files}


@pytest.fixture(scope="session")
def original(sac_run, tmp_path_factory) -> Path:
    """a folder with a run of each kind in `runs/`, all that our scripts can leave beside the SMoSE actor, and names"""
    folder = tmp_path_factory.mktemp("original")
    smose = shutil.copytree(ROOT / "results" / "policies" / "Reacher-v4" / "smose", folder / "runs" / "smose")
    shutil.copytree(sac_run, folder / "runs" / "sac", ignore=shutil.ignore_patterns("actor_best*"))
    columns = json.loads((smose / "config.json").read_text())["replay_columns"]
    replay = np.random.default_rng(0).standard_normal((500, max(end for _, end in columns.values())))
    replay[:, columns["episode"][0]] = 1 + np.arange(500) // 50
    np.save(smose / "replay.npy", replay.astype(np.float32))
    names = {"obs": [{"text": f"o{i}", "description": "an angle", "unit": "rad"} for i in range(11)]}
    (folder / "names.json").write_text(json.dumps(names | {"action": ["left", "right"]}))
    with pytest.MonkeyPatch.context() as patch:
        words = "runs/smose --episodes 1 --noise 0.1 --output runs/smose/robustness.json".split()
        assert run_script("scripts/evaluate.py", words, folder, patch).returncode == 0
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.script} {case.words.partition(' ')[0]} {case.files}")
def test_damaged_input_is_told_in_one_line(case, original, tmp_path, monkeypatch):
    @settings(
        max_examples=int(os.environ.get("EXAMPLES", case.examples)),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],  # shrinking would take minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def throw(data) -> None:
        folder = tmp_path / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        words = case.words.split()
        if not case.files or data.draw(st.integers(0, 3)) == 0:
            flag = data.draw(st.sampled_from(case.flags.split()))
            values = st.one_of(TEXTS, NUMBERS.filter(lambda x: x != 2**31).map(str))  # so many steps would take years
            words += [flag, *data.draw(st.lists(values, max_size=2))]
            words = [word.encode(errors="replace").decode().replace("\0", "") for word in words]  # as a shell would
        else:
            name = data.draw(st.sampled_from(case.files.split()))
            file = next(path for path in (folder / name, *(folder / "runs").glob(name)) if path.exists())
            damage = data.draw(st.sampled_from([damage_bytes, *[DAMAGE.get(file.suffix, damage_bytes)] * 3]))
            damage(data.draw, file)
        before = files_in(folder)
        done = run_script(case.script, words, folder, monkeypatch)
        assert done.returncode in (0, 2), done
        if done.returncode == 2:
            assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
            assert files_in(folder) == before
        assert not [name for name in files_in(folder) if ".part" in name]
        assert "\x1b" not in done.stdout + done.stderr  # no text from a file or flag commands the terminal

    throw()
