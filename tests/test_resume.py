"""A run that was killed, stopped, cut off or extended ends as if nothing had happened, or says what will differ."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import (
    BRIEF,
    HOPPER,
    REACHER,
    ROOT,
    SMALL,
    TESTS,
    Command,
    assert_same_run,
    change_settings,
    checkpoint_at,
    evaluations,
    files,
    metadata,
    mistake,
    resume,
    row_written,
    run,
    scalars,
    tensors,
    train,
)
from conftest import needs_compiler
from safetensors.torch import load_file, save_file

import smose_sac


@pytest.fixture(autouse=True)
def nothing_runs_on(monkeypatch):
    """a test that fails leaves no training behind"""
    started, start = [], Command.__init__

    def remember(self, *words, **environment):
        start(self, *words, **environment)
        started.append(self.process)

    monkeypatch.setattr(Command, "__init__", remember)
    yield
    for process in started:
        process.kill()


def kill_and_resume(
    trainer: str, uninterrupted: Path, folder: Path, flags: list[str], moments: list[str], **env
) -> None:
    """kill -9 at each of the moments in turn, then let it come to its end."""
    command = Command(folder, trainer, *flags, **env)
    for moment in moments:
        what, _, number = moment.partition(" ")
        if what == "part":
            command.until(lambda: list(folder.glob("runs/[!.]*/checkpoint*.part*")))  # a checkpoint is being written
        elif what == "folder":
            command.until(lambda: list(folder.glob("runs/[!.]*")))
        else:
            command.until({"row": row_written, "checkpoint": checkpoint_at}[what](folder, int(number)))
        assert command.signal(signal.SIGKILL).returncode == -signal.SIGKILL
        (killed,) = folder.glob("runs/*")
        assert (killed / "config.json").exists() and not (killed / "evaluation.json").exists()
        command = Command(folder, trainer, "--resume", f"runs/{killed.name}", **env)
    done = command.wait()
    assert (done.returncode, done.stderr) == (0, ""), done
    assert list(folder.glob("runs/*")) == [killed]
    assert_same_run(killed, uninterrupted)


MOMENTS = [["folder"], ["row 50"], ["row 170"], ["part", "checkpoint 360"]]


@pytest.mark.parametrize("moments", MOMENTS, ids=" and ".join)
def test_killed_run_resumes_bit_for_bit_on_reacher(trainer, reacher, tmp_path, moments):
    kill_and_resume(trainer, reacher, tmp_path, REACHER, moments)


def test_killed_run_resumes_bit_for_bit_on_hopper(tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    flags = [*HOPPER, "--precision", "bfloat16"]
    uninterrupted = train(tmp_path / "whole", "smose_sac", *flags)
    assert metadata(uninterrupted / "actor.safetensors")["precision"] == "bfloat16"
    kill_and_resume("smose_sac", uninterrupted, tmp_path / "killed", flags, ["row 80", "row 333"])


SHORT = ["--keep", "0.3", "--router-inputs", "2"]


def test_pruned_weights_are_exactly_zero_at_every_evaluation_and_after_resume(tmp_path):
    """HOPPER without its replay's ring wrapping, and with it: what pruning looks at is the same after a kill."""
    for name, buffer_size in (("whole", 1000), ("ring", 120)):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name} killed").mkdir()
        flags = [*REACHER, *SHORT, "--buffer-size", str(buffer_size), "--eval-every", "60"]
        uninterrupted = train(tmp_path / name, "smose_sac", *flags)
        kill_and_resume("smose_sac", uninterrupted, tmp_path / f"{name} killed", flags, ["checkpoint 240"])
    for name in ("actor", "actor_best"):
        saved = tensors(uninterrupted / f"{name}.safetensors")
        steps = int(metadata(uninterrupted / f"{name}.safetensors")["steps"])
        if steps > smose_sac.PRUNING_ENDS * 420:
            assert np.count_nonzero(saved["router.weight"].any(0)) == 2
            assert np.count_nonzero(saved["experts.mean.weight"]) == np.ceil(0.3 * 8 * 2 * 11)
        assert saved["router.bias"].all() and saved["experts.mean.bias"].all() and saved["experts.log_std.weight"].all()
    saved, config = (
        tensors(uninterrupted / "actor.safetensors"),
        json.loads((uninterrupted / "config.json").read_text()),
    )
    read = sum(np.count_nonzero(t) for n, t in saved.items() if "log_std" not in n and not n.startswith("action_"))
    final = json.loads((uninterrupted / "evaluation.json").read_text())
    assert config["n_read"] == final["n_read"] == read < 100
    assert (config["n_active"], config["n_total"]) == (144, 480)


def test_pruned_weights_are_zero_in_what_every_evaluation_saves(tmp_path, monkeypatch):
    zeros, save = [], smose_sac.Run.save_actor

    def look(self, name):
        save(self, name)
        if name == "actor.safetensors":
            saved, step = tensors(self.folder / name), self.progress["global_step"]
            n_read = json.loads((self.folder / "config.json").read_text())["n_read"]
            zeros.append(
                (step, int((saved["experts.mean.weight"] == 0).sum()), int((saved["router.weight"] == 0).sum()))
            )
            assert n_read <= 8 * 12 + 8 * 2 * 12

    monkeypatch.setattr(smose_sac.Run, "save_actor", look)
    train(tmp_path, "smose_sac", *REACHER, "--keep", "0.25", "--eval-every", "42")
    steps, experts, router = zip(*zeros, strict=True)
    assert steps == tuple(range(42, 421, 42))
    begins, ends = smose_sac.PRUNING_BEGINS, smose_sac.PRUNING_ENDS
    wanted = 0.25 + 0.75 * (1 - np.clip((np.array(steps) / 420 - begins) / (ends - begins), 0, 1)) ** 3
    for n, all_of_them in ((experts, 176), (router, 88)):
        assert list(n) == sorted(n) and n[-1] == all_of_them - np.ceil(0.25 * all_of_them)
        np.testing.assert_allclose(1 - np.array(n) / all_of_them, wanted, atol=0.05)  # dense at first
        assert n[0] == 0


def test_resuming_reads_nothing_but_checkpoint_and_replay(trainer, reacher, tmp_path):
    """config.json is for readers, and written again."""
    whole, part = (shutil.copytree(reacher, tmp_path / "runs" / name) for name in ("whole", "part"))
    for name in ("config.json", "evaluations.csv", "evaluation.json", "actor.safetensors"):
        (part / name).unlink()
    for run_folder in (whole, part):
        resume(run_folder, trainer, "--total-timesteps", "450")
    assert_same_run(part, whole)
    one, two = (json.loads((run_folder / "config.json").read_text()) for run_folder in (whole, part))
    assert one | {"hours": 0} == two | {"hours": 0}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> dict[str, str]:
    """a private cache for compiled code that the tests share; compiling takes most of a minute"""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@needs_compiler
def test_compiled_run_resumes_bit_for_bit_or_says_that_weights_will_differ(tmp_path, cache):
    for name in ("whole", "killed", "temporary"):
        (tmp_path / name).mkdir()
    flags = [*REACHER, "--compile", "--total-timesteps", "240"]
    command = Command(tmp_path / "whole", "smose_sac", *flags, **cache, TMPDIR=str(tmp_path / "temporary"))
    done = command.wait()
    assert (done.returncode, done.stderr) == (0, ""), done
    lines, whole = done.stdout.splitlines(), command.run
    assert lines[1] == "compiling the two updates ..." and lines[2].startswith("compiled in ")
    assert lines[2].endswith(" s, for later runs too")
    assert json.loads((whole / "config.json").read_text())["compiled"] is True
    private = Path(cache["XDG_CACHE_HOME"], "smose")
    assert private.stat().st_mode & 0o777 == 0o700 and any(private.iterdir())
    assert not list((tmp_path / "temporary").rglob("*.so"))  # no code in the shared temporary folder

    kill_and_resume("smose_sac", whole, tmp_path / "killed", flags, ["checkpoint 120"], **cache)

    shutil.copytree(whole, tmp_path / "runs" / "copy")
    no_compiler = {"XDG_CACHE_HOME": str(tmp_path / "empty cache"), "PATH": "/nowhere"}
    command = Command(tmp_path, "smose_sac", "--resume", "runs/copy", "--total-timesteps", "300", **no_compiler)
    done = command.wait()
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "PyTorch can't compile here" in done.stdout
    assert "the weights will differ from those of an uninterrupted run" in done.stdout
    assert json.loads((tmp_path / "runs/copy/config.json").read_text())["compiled"] is False


def test_without_a_compiler_training_goes_on_and_says_so(trainer, reacher, tmp_path):
    no_compiler = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = Command(tmp_path, trainer, *REACHER, "--compile", **no_compiler)
    done = command.wait()
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.count("PyTorch can't compile here") == 1 and "will differ" not in done.stdout
    assert json.loads((command.run / "config.json").read_text())["compiled"] is False
    assert_same_run(command.run, reacher)  # which was told not to


def test_a_run_that_could_not_compile_goes_on_so_where_it_could(tmp_path, monkeypatch):
    """What was used before is used again: no compiler is asked."""
    stopped = train(tmp_path, "smose_sac", *BRIEF, "--env-id", "Reacher-v4")
    change_settings(stopped, compile=True)
    monkeypatch.setattr(smose_sac, "compile_updates", lambda *_: pytest.fail("it was not compiled before"))
    said = resume(stopped, "smose_sac", "--total-timesteps", "70")
    assert "compil" not in said
    assert json.loads((stopped / "config.json").read_text())["compiled"] is False


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_stopped_run_says_how_to_go_on(trainer, reacher, tmp_path, number, code):
    command = Command(tmp_path, trainer, *REACHER, "--exp-name", "two words")
    command.until(row_written(tmp_path, 130))
    done = command.signal(number)
    assert done.returncode == code
    step = int(metadata(command.run / "checkpoint.safetensors")["global_step"])
    assert (
        step > 130 and done.stderr.startswith(f"stopped at step {step}; go on with: ") and done.stderr.count("\n") == 1
    )
    if number == signal.SIGINT:
        resume(command.run, trainer)
    else:
        paste = done.stderr[done.stderr.index("python ") :].strip()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        pasted = subprocess.run(paste, shell=True, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True)
        assert (pasted.returncode, pasted.stderr) == (0, b"")
    assert_same_run(command.run, reacher)


def test_stop_during_an_evaluation_without_a_limit_loses_nothing(tmp_path):
    command = Command(tmp_path, "smose_sac", *BRIEF, "--env-id", "odd_env:OddEndless-v0", "--eval-episodes", "10000")
    command.until(row_written(tmp_path, 59))
    time.sleep(0.3)
    start = time.time()
    assert command.signal(signal.SIGTERM).returncode == 143
    assert time.time() - start < 60
    assert metadata(command.run / "checkpoint.safetensors")["global_step"] == "60"
    change_settings(command.run, eval_episodes=1)  # only to see the end of it today
    resume(command.run, "smose_sac", "--env-id", "odd_env:OddEndless-v0")
    assert [row["step"] for row in evaluations(command.run)] == [60]
    assert metadata(command.run / "actor.safetensors")["steps"] == "60"
    assert (command.run / "actor_best.safetensors").exists()


@pytest.mark.parametrize("cut", ["| head -1", ">&-"])
def test_closed_output_leaves_a_checkpoint(tmp_path, cut):
    flags = " ".join([*BRIEF, *"--env-id Pendulum-v1 --eval-every 50 --checkpoint-every 1000".split()])
    command = f"set -o pipefail; {sys.executable} {ROOT}/smose_sac.py {flags} --total-timesteps 200 {cut}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    (left,) = tmp_path.glob("runs/*")
    assert "Traceback" not in done.stderr and "free some space" not in done.stderr, done.stderr
    step = int(metadata(left / "checkpoint.safetensors")["global_step"])
    if cut == ">&-":
        assert (done.returncode, done.stderr, step) == (0, "", 200)
    else:
        assert done.stdout.count("\n") == 1 and step in (50, 51)
        assert done.stderr.startswith(f"stopped at step {step}; go on with: ") and done.returncode == 141
        resume(left, "smose_sac")
    assert json.loads((left / "evaluation.json").read_text())["steps"] == 200


def test_finished_run_trains_on_to_a_larger_total(trainer, reacher, tmp_path):
    finished = train(tmp_path, trainer, *REACHER, "--total-timesteps", "210")
    before = files(finished)
    resume(finished, trainer)
    after = files(finished)
    for name in ("actor.safetensors", "actor_best.safetensors", "evaluations.csv", "evaluation.json", "replay.npy"):
        assert after[name] == before[name], name

    command = Command(tmp_path, trainer, "--resume", finished, "--total-timesteps", "420")
    command.until(checkpoint_at(tmp_path, 300))
    assert command.signal(signal.SIGKILL).returncode == -signal.SIGKILL
    kept = (finished / "evaluation.json").read_bytes()
    assert kept == before["evaluation.json"] and json.loads(kept)["steps"] == 210  # until there is a new one
    resume(finished, trainer)
    rows, whole = evaluations(finished), evaluations(reacher)
    assert [row["step"] for row in rows] == [150, 210, 300, 420]
    assert [row for row in rows if row["step"] != 210] == whole
    for name in ("actor", "checkpoint"):
        one, two = tensors(finished / f"{name}.safetensors"), tensors(reacher / f"{name}.safetensors")
        assert all(one[key].tobytes() == two[key].tobytes() for key in one)
    assert (finished / "evaluation.json").read_bytes() == (reacher / "evaluation.json").read_bytes()
    assert (finished / "replay.npy").read_bytes() == (reacher / "replay.npy").read_bytes()
    assert json.loads((finished / "config.json").read_text())["args"]["total_timesteps"] == 420


def test_hidden_sizes_of_ones_own_train_to_the_end_and_on(tmp_path):
    finished = train(tmp_path, "sac_baseline", *BRIEF, "--env-id", "Pendulum-v1", "--hidden-sizes", "8", "5")
    resume(finished, "sac_baseline", "--total-timesteps", "70", "--hidden-sizes", "8", "5")
    config = json.loads((finished / "config.json").read_text())
    assert config["args"]["hidden_sizes"] == [8, 5] and config["args"]["total_timesteps"] == 70
    assert tensors(finished / "actor.safetensors")["hidden.1.weight"].shape == (5, 8)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "odd_env:CountingHopper-v0"])
def test_an_environment_of_any_kind_comes_back_by_taking_its_episodes_steps_again(tmp_path, env_id):
    """No simulator's state is needed: neither one without MuJoCo nor one with a counter beside it is any different."""
    flags = [*SMALL, "--env-id", env_id, "--total-timesteps", "310", "--buffer-size", "1000"]
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = train(tmp_path / "whole", "smose_sac", *flags)
    command = Command(tmp_path / "killed", "smose_sac", *flags)
    command.until(row_written(tmp_path / "killed", 160))
    assert command.signal(signal.SIGKILL).returncode == -signal.SIGKILL
    said = resume(command.run, "smose_sac", "--env-id", env_id)
    assert "does not repeat" not in said
    assert_same_run(command.run, whole)


def test_an_episode_that_does_not_come_out_the_same_is_noticed(tmp_path):
    """Hopper with a counter over all its episodes in the reward."""
    env_id = "odd_env:LongCountingHopper-v0"
    flags = [*BRIEF, "--total-timesteps", "62", "--learning-starts", "60", "--env-id", env_id, "--seed", "1"]
    finished = train(tmp_path, "smose_sac", *flags)
    episodes = np.load(finished / "replay.npy", mmap_mode="r")[:62, -1]
    assert episodes[-1] > 1 and np.sum(episodes == episodes[-1]) > 3
    said = resume(finished, "smose_sac", "--total-timesteps", "63", "--env-id", env_id)
    assert said.count("the environment does not repeat its episode: a new one starts, so results may differ") == 1
    assert np.load(finished / "replay.npy", mmap_mode="r")[62, -1] == episodes[-1] + 1


def test_an_episode_longer_than_the_replay_starts_anew(tmp_path):
    flags = [*BRIEF, "--env-id", "odd_env:OddEndless-v0", "--buffer-size", "20", "--checkpoint-every", "10"]
    finished = train(tmp_path, "smose_sac", *flags, "--eval-episodes", "1", "--total-timesteps", "60")
    said = resume(finished, "smose_sac", "--total-timesteps", "61", "--env-id", "odd_env:OddEndless-v0")
    assert "does not repeat its episode" in said
    assert json.loads((finished / "evaluation.json").read_text())["steps"] == 61


def test_one_flipped_bit_is_found(trainer, reacher, tmp_path):
    """Anywhere in the checkpoint: of tensors, names, shapes or the state of the generators."""
    damaged = shutil.copytree(reacher, tmp_path / "runs" / "damaged")
    path = damaged / "checkpoint.safetensors"
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    rng, before = np.random.default_rng(0), files(damaged)
    inside = content.index(b'"state"'), content.index(b'"state"') + 300
    places = [*rng.integers(header, len(content), 8), *rng.integers(*inside, 4), 0, 5, 9, len(content) - 1]
    for place in map(int, places):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        line = mistake(run(tmp_path, trainer, "--resume", damaged, "--total-timesteps", "430"))
        assert "checkpoint.safetensors is damaged" in line, (place, line)
        assert files(damaged) == before | {path.name: bytes(flipped)}
    path.write_bytes(content)
    resume(damaged, trainer, "--total-timesteps", "421")


def test_a_checkpoint_of_plausible_numbers_that_nobody_wrote_is_found(reacher, tmp_path):
    damaged = shutil.copytree(reacher, tmp_path / "runs" / "damaged")
    path = damaged / "checkpoint.safetensors"
    about, parts = metadata(path), load_file(path)
    parts["critic"] = parts["critic"] * 1.001
    save_file(parts, path, about)
    trainer = "smose_sac" if "smose" in reacher.name else "sac_baseline"
    assert "its checksum differs" in mistake(run(tmp_path, trainer, "--resume", damaged, "--total-timesteps", "430"))


def test_a_blank_or_damaged_last_line_of_the_evaluations_is_no_harm(tmp_path):
    finished = train(tmp_path, "smose_sac", *BRIEF, "--env-id", "Pendulum-v1")
    with open(finished / "evaluations.csv", "a", encoding="latin-1") as file:
        file.write("\n  \n\n,,\n\xff,1\n")
    resume(finished, "smose_sac", "--total-timesteps", "70")
    assert [row["step"] for row in evaluations(finished)] == [60, 70]


def test_same_seed_same_weights_and_other_seed_others(trainer, reacher, tmp_path):
    """From nothing, in a process of its own, and in this one."""
    size = ["--size", "S"] if trainer == "sac_baseline" else []
    command = [sys.executable, ROOT / f"{trainer}.py", *size, *REACHER]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")
    (again,) = tmp_path.glob("runs/*")
    assert_same_run(again, reacher)
    other = train(tmp_path, trainer, *REACHER, "--total-timesteps", "110", "--seed", "6")
    other = tensors(other / "actor.safetensors")
    for name, tensor in tensors(again / "actor.safetensors").items():
        assert name.startswith("action_") or np.mean(tensor == other[name]) < 0.01


def test_curves_of_a_resumed_run_have_every_step_once(reacher, tmp_path):
    trainer = "smose_sac" if "smose" in reacher.name else "sac_baseline"
    copy = shutil.copytree(reacher, tmp_path / "runs" / "copy")
    resume(copy, trainer, "--total-timesteps", "470")
    for tag, curve in scalars(copy).items():
        steps = [step for step, _ in curve]
        assert tag == "eval/final_return" or steps == sorted(set(steps)), tag
