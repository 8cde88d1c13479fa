"""Whatever goes wrong ends in one line that says what and what to do, with exit code 2 and nothing lost."""

import dataclasses
import importlib.util
import json
import os
import re
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
    REACHER,
    ROOT,
    TRAINERS,
    Command,
    assert_same_run,
    change_settings,
    checkpoint_at,
    files,
    metadata,
    mistake,
    refused,
    resume,
    row_written,
    run,
    tensors,
)

import sac_baseline
import smose_sac

WRONG_NUMBERS = """
total_timesteps 0 -5 10**30 nan; seed -1 10**12; learning_starts -1 2*10**6; batch_size 0 -256 10**12
buffer_size 0 -1 10**12 10**15; gamma 1.5 -0.1 nan inf; tau 2.0 -1.0 nan; policy_lr -1e-3 nan 1e9; q_lr -1.0 inf
alpha_lr -1.0 nan; policy_frequency 0 -2; target_network_frequency 0; alpha -1.0 0.0 nan inf; eval_every 0 -1
eval_episodes 0 -3; final_eval_episodes 0; checkpoint_every 0 -7; num_threads 0 -1 10**9; n_experts 0 -8 10**9
"""
SMOSE_NUMBERS = "top_k 0 9 -1; balance_coef -1.0 nan; keep 0.0 -0.2 1.1 nan inf; router_inputs 0 -1"


def cases(text: str, *modules) -> list:
    """Every module with every name and value of lines such as `name value value; name value`."""
    known = {"nan": float("nan"), "inf": float("inf")}
    names = (part.split() for part in text.replace("\n", ";").split(";") if part.strip())
    found = [(name, eval(value, known)) for name, *values in names for value in values]
    return [pytest.param(m, n, v, id=f"{m.__name__}-{n}-{v}") for m in modules for n, v in found]


NUMBERS = [*cases(WRONG_NUMBERS, smose_sac, sac_baseline), *cases(SMOSE_NUMBERS, smose_sac)]


@pytest.mark.parametrize("module, name, value", NUMBERS)
def test_wrong_numbers_are_refused_by_name(module, name, value):
    args = dataclasses.replace(module.Args(), **{name: value})
    with pytest.raises(module.UserError) as told:
        module.check_args(args)
        module.Learner(args, module.make_env("Pendulum-v1"), module.torch.device("cpu"))
    assert name in str(told.value).replace("-", "_") and "\n" not in str(told.value)


@pytest.mark.parametrize("module", TRAINERS.values(), ids=TRAINERS)
def test_the_papers_settings_are_right(module):
    module.check_args(module.Args())
    module.check_args(module.Args(gamma=1, tau=1, learning_starts=0, total_timesteps=1, seed=2**32 - 1))


def test_a_new_number_of_ones_own_may_be_negative(tmp_path):
    """A field added to Args is no business of check_args until it is listed there."""
    source = Path(smose_sac.__file__).read_text()
    assert source.count("    gamma: float = 0.99") == 1
    changed = source.replace(
        "    gamma: float = 0.99", "    entropy_shift: float = -1.0  # mine\n    gamma: float = 0.99"
    )
    (tmp_path / "hacked.py").write_text(changed)
    spec = importlib.util.spec_from_file_location("hacked", tmp_path / "hacked.py")
    hacked = importlib.util.module_from_spec(spec)
    sys.modules["hacked"] = hacked  # dataclasses look their module up
    try:
        spec.loader.exec_module(hacked)
        hacked.check_args(hacked.Args(entropy_shift=-2.5))
    finally:
        del sys.modules["hacked"]


FLAGS = """
--total-timesteps 0; --total-timesteps many; --total-timesteps 1000.5; --total-timesteps inf; --total-timesteps 1e6
--buffer-size 1000000000000
--gamma nan; --keep 0; --keep 1.5; --router-inputs 4; --router-inputs 0; --top-k 9; --gate hard; --precision float16
--no-such-flag; --learning-start 5; --seed
""".replace("\n", ";").split(";")


@pytest.mark.parametrize("flags", [flag.strip() for flag in FLAGS if flag.strip()])
def test_wrong_flags_end_in_one_line_and_leave_nothing(tmp_path, flags):
    assert flags.split()[0] in refused(tmp_path, "smose_sac", "--env-id", "Pendulum-v1", *flags.split())


@pytest.mark.parametrize(
    "flags", ["--size XL", "--hidden-sizes", "--hidden-sizes 0", "--hidden-sizes 64 -5", "--hidden-sizes 1000000000"]
)
def test_wrong_networks(tmp_path, flags):
    assert flags.split()[0] in refused(tmp_path, "sac_baseline", "--env-id", "Pendulum-v1", *flags.split())


@pytest.mark.parametrize(
    "env_id, says",
    [
        ("Hoper-v4", "Did you mean: `Hopper`?"),
        ("reacher-v4", "Did you mean: `Reacher`?"),
        ("Hopper-v99", "v99"),
        ("Reacher", "Reacher-v5"),
        ("CartPole-v1", "Discrete(2)"),
        ("", "env"),
        ("\x1b[31mred", "Malformed environment ID: [31mred"),
        ("no_such_module:Env-v0", "no_such_module"),
        ("odd_env:Missing-v0", "Missing"),
        ("odd_env:DictObs-v0", "observations"),
        ("odd_env:TupleObs-v0", "observations"),
        ("odd_env:Image-v0", "observations"),
        ("odd_env:DiscreteObs-v0", "observations"),
        ("odd_env:Unbounded-v0", "unbounded"),
        ("odd_env:HalfBounded-v0", "unbounded"),
        ("odd_env:ActionTable-v0", "actions"),
        ("odd_env:MultiDiscrete-v0", "actions"),
        ("odd_env:Refuses-v0", "this robot is not connected"),
    ],
)
def test_environments_that_cannot_be_used(tmp_path, env_id, says):
    assert says in refused(tmp_path, "smose_sac", "--env-id", env_id)


LATE = [
    *BRIEF,
    "--total-timesteps",
    "300",
    "--eval-every",
    "1000",
    "--checkpoint-every",
    "60",
    "--learning-starts",
    "100",
]


@pytest.mark.parametrize(
    "name, says",
    [
        ("OddReward", "nan"),
        ("OddObs", "inf"),
        ("OddHugeObs", "inf"),
        ("OddReset", "nan"),
        ("OddHugeReward", "loss"),
        ("OddStepRaises", "a motor"),
        ("OddStepShape", "cannot reshape array of size 4 into shape (2,)"),
        ("OddResetRaises", "the robot does not answer"),
        ("OddResetShape", "cannot reshape array of size 3 into shape (2,)"),
        ("OddNoReward", "float"),
        ("OddOldStep", "step"),
    ],
)
def test_environments_that_fail_on_the_way_keep_the_checkpoint(tmp_path, name, says):
    done = run(tmp_path, "smose_sac", *LATE, "--env-id", f"odd_env:{name}-v0")
    line = mistake(done)
    assert says in line and re.search(r"\bstep 1[5-7]\d\b", line) and "the last checkpoint stays in runs/" in line
    (left,) = tmp_path.glob("runs/*")
    assert metadata(left / "checkpoint.safetensors")["global_step"] == "120"
    assert np.isfinite(np.load(left / "replay.npy", mmap_mode="r")).all()
    resumed = run(tmp_path, "smose_sac", "--resume", left, "--total-timesteps", "122", "--env-id", f"odd_env:{name}-v0")
    assert resumed.returncode == 2 and "--total-timesteps" not in resumed.stderr or resumed.returncode == 0


@pytest.fixture
def finished(reacher, tmp_path) -> Path:
    """a copy of the uninterrupted run, to be damaged"""
    return shutil.copytree(reacher, tmp_path / "runs" / reacher.name)


def not_resumed(trainer: str, path: Path, *flags: object) -> str:
    """A --resume that has to fail, and that leaves the folder as it is."""
    before = files(path)
    line = mistake(run(path.parent.parent, trainer, "--resume", path, *flags))
    assert files(path) == before
    return line


@pytest.mark.parametrize("what", ["missing", "empty", "file", ""])
def test_resume_of_what_is_no_run(tmp_path, what):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    assert "run" in mistake(run(tmp_path, "smose_sac", "--resume", what))
    assert sorted(tmp_path.iterdir()) == before and not list((tmp_path / "empty").iterdir())


def damage_checkpoint(path: Path) -> None:
    content = (path / "checkpoint.safetensors").read_bytes()
    (path / "checkpoint.safetensors").write_bytes(content[: len(content) // 2])


def forget_state(path: Path) -> None:
    shutil.copy(path / "actor.safetensors", path / "checkpoint.safetensors")


DAMAGES = {
    "half a checkpoint": (damage_checkpoint, "checkpoint"),
    "empty checkpoint": (lambda path: (path / "checkpoint.safetensors").write_bytes(b""), "checkpoint"),
    "checkpoint of noise": (lambda path: (path / "checkpoint.safetensors").write_bytes(b"\xff" * 5000), "checkpoint"),
    "another safetensors file": (forget_state, "checkpoint"),
    "setting of another version": (lambda path: change_settings(path, new=1), "of another trainer or version"),
    "setting that it lacks": (lambda path: change_settings(path, gamma=...), "of another trainer or version"),
    "gamma is absurd": (lambda path: change_settings(path, gamma=7.0), "--gamma 7.0 is out of range"),
    "env_id has a module": (
        lambda path: change_settings(path, env_id="odd_env:Gone-v0"),
        "if you trust it, add --env-id odd_env:Gone-v0",
    ),
    "no replay": (lambda path: (path / "replay.npy").unlink(), "replay.npy"),
    "half a replay": (lambda path: os.truncate(path / "replay.npy", 9_000), "replay.npy"),
    "empty replay": (lambda path: os.truncate(path / "replay.npy", 0), "replay.npy"),
    "replay of noise": (lambda path: (path / "replay.npy").write_bytes(b"noise" * 999), "replay.npy"),
    "replay of another shape": (lambda path: np.save(path / "replay.npy", np.zeros((9, 9), np.float32)), "replay.npy"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_resume_of_a_damaged_run(finished, damage):
    harm, says = DAMAGES[damage]
    harm(finished)
    trainer = "smose_sac" if "smose" in finished.name else "sac_baseline"
    assert says in not_resumed(trainer, finished, "--total-timesteps", "430")


@pytest.mark.parametrize(
    "flags", ["--seed 5", "--env-id Hopper-v4", "--n-experts 4", "--gamma 0.9", "--buffer-size 99"]
)
def test_resume_with_other_settings(trainer, finished, flags):
    line = not_resumed(trainer, finished, *flags.split())
    name, value = flags.split()
    assert name.strip("-").replace("-", "_") in line.replace("-", "_") and value in line


def test_resume_to_a_smaller_total(trainer, finished):
    assert "420" in not_resumed(trainer, finished, "--total-timesteps", "300")


def test_resume_by_the_other_trainer(trainer, finished):
    (other,) = set(TRAINERS) - {trainer}
    assert json.loads((finished / "config.json").read_text())["format"] in not_resumed(other, finished)


def test_a_finished_run_without_checkpoint_is_left_alone(trainer, finished):
    """As the committed policies are: to start again from step 0 there would throw their results away."""
    (finished / "checkpoint.safetensors").unlink()
    assert "no checkpoint" in not_resumed(trainer, finished)
    assert "no checkpoint" in not_resumed(trainer, finished, "--total-timesteps", "430")


def test_resume_of_a_run_that_is_being_trained(tmp_path):
    command = Command(tmp_path, "smose_sac", *REACHER, "--total-timesteps", "1000000")
    try:
        command.until(row_written(tmp_path, 20))
        assert "another process" in mistake(run(tmp_path, "smose_sac", "--resume", command.run))
        assert command.process.is_alive()
    finally:
        command.process.kill()


def test_runs_is_a_file(tmp_path):
    (tmp_path / "runs").write_text("mine")
    assert "runs" in mistake(run(tmp_path, "smose_sac", *BRIEF, "--env-id", "Pendulum-v1"))
    assert (tmp_path / "runs").read_text() == "mine"


def test_no_write_permission(tmp_path):
    root = ["setpriv", "--bounding-set", "-dac_override"] if os.getuid() == 0 else []  # root may write anywhere
    if root and subprocess.run([*root, "true"], capture_output=True).returncode:
        pytest.skip("root can't give up its rights here")
    tmp_path.chmod(0o555)
    command = [*root, sys.executable, ROOT / "smose_sac.py", *BRIEF, "--env-id", "Pendulum-v1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    tmp_path.chmod(0o755)
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*ermission.*runs.*\n|error: .*runs.*ermission.*\n", done.stderr), done.stderr
    assert not list(tmp_path.iterdir())


def test_ctrl_c_during_the_imports_leaves_no_traceback(tmp_path):
    command = [sys.executable, "-X", "importtime", ROOT / "smose_sac.py", *BRIEF, "--env-id", "Pendulum-v1"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:  # what has been imported so far
            if line.rstrip().endswith(" gymnasium.spaces"):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) in (-signal.SIGINT, 130)
    assert "Traceback" not in said and "KeyboardInterrupt" not in said
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path):
    """a disk of 8 MB"""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can't be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """All that is left of the disk, in one file."""
    with (disk / "filler").open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return disk / "filler"


def test_disk_too_small_for_the_replay(small_disk):
    line = refused(small_disk, "smose_sac", "--env-id", "Pendulum-v1", "--buffer-size", "1000000")
    assert "No space left" in line


def test_disk_full_at_the_start(small_disk):
    fill(small_disk)
    assert "No space left" in refused(small_disk, "smose_sac", *BRIEF, "--env-id", "Pendulum-v1")


def test_disk_full_on_the_way(trainer, reacher, small_disk):
    command = Command(small_disk, trainer, *REACHER)
    command.until(checkpoint_at(small_disk, 120))
    filler = fill(small_disk)
    line = mistake(command.wait())
    assert "No space left" in line and "--resume" in line
    assert int(metadata(command.run / "checkpoint.safetensors")["global_step"]) % 60 == 0
    assert not list(command.run.glob("*.part"))
    filler.unlink()
    resume(command.run, trainer)
    assert_same_run(command.run, reacher, curves=False)  # points of them may be what could not be written


def test_disk_full_for_tensorboard_alone(small_disk):
    """Checkpoints and evaluations are far away: what can't be written first are the curves."""
    flags = [*BRIEF, "--env-id", "Pendulum-v1", "--total-timesteps", "1000000", "--checkpoint-every", "50000"]
    command = Command(small_disk, "smose_sac", *flags, "--eval-every", "1000000", "--buffer-size", "1000")
    try:
        command.until(row_written(small_disk, 300))
        end = time.time() + 300
        while command.process.is_alive() and time.time() < end:
            fill(small_disk)
            time.sleep(0.2)
        assert "No space left" in mistake(command.wait(10))
    finally:
        command.process.kill()


def test_the_cache_of_compiled_code_is_this_users_alone(tmp_path, monkeypatch, capsys):
    """What is compiled is not at issue here, but where compiled code is read from."""
    folder, anybodys = tmp_path / "smose", "/tmp/anybodys"
    monkeypatch.setattr(smose_sac, "compiled", lambda loss, n: lambda *given: smose_sac.gradients(loss, n, *given))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    args = smose_sac.Args("Pendulum-v1", buffer_size=9, checkpoint_every=9, batch_size=4)
    env, cpu = smose_sac.make_env("Pendulum-v1"), smose_sac.torch.device("cpu")
    learner, replay = smose_sac.Learner(args, env, cpu), smose_sac.Replay(tmp_path / "replay.npy", 3, 1, args, cpu)

    def is_used() -> bool:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", anybodys)
        used = smose_sac.compile_updates(learner, replay)
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == (str(folder) if used else anybodys)
        assert used or "PyTorch can't compile here, so training is slower; " in capsys.readouterr().out
        return used

    assert is_used() and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    assert not is_used()  # its group may put pickles there
    folder.chmod(0o700)
    if os.getuid() == 0:
        os.chown(folder, 12345, 12345)
        assert not is_used()  # another user's
        os.chown(folder, 0, 0)
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert not is_used()  # may be pointed elsewhere by whoever made it
    folder.unlink()
    folder.touch()
    assert not is_used()  # a file
    folder.unlink()
    assert is_used()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert not is_used()


def test_without_a_cache_of_ones_own_nothing_is_compiled_and_a_line_says_why(tmp_path, monkeypatch):
    (tmp_path / "smose").mkdir()
    (tmp_path / "smose").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags = [*BRIEF, "--env-id", "Pendulum-v1", "--compile"]
    done = run(tmp_path, "smose_sac", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is not this user's alone: set XDG_CACHE_HOME to a folder that is") == 1
    (left,) = tmp_path.glob("runs/*")
    assert json.loads((left / "config.json").read_text())["compiled"] is False


def test_infinite_weights_are_not_saved(tmp_path, monkeypatch):
    """The last checkpoint that can be trained on from stays."""
    save = smose_sac.Run.save_checkpoint

    def spoil(self):
        if self.progress["global_step"] == 60:
            self.learner.critic[0] = float("inf")
        save(self)

    monkeypatch.setattr(smose_sac.Run, "save_checkpoint", spoil)
    flags = [*BRIEF, "--env-id", "Pendulum-v1", "--checkpoint-every", "30"]
    assert "weights became infinite" in mistake(run(tmp_path, "smose_sac", *flags))
    (left,) = tmp_path.glob("runs/*")
    assert metadata(left / "checkpoint.safetensors")["global_step"] == "30"
    assert all(np.isfinite(tensor).all() for tensor in tensors(left / "checkpoint.safetensors").values())
