"""Both sweeps on tiny real runs: what they skip, resume and start, and that no run suffers from being interrupted."""

import contextlib
import fcntl
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import sweep
from conftest import ROOT, TINY_RUN
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

SETTINGS = TINY_RUN[2:]  # without --env-id, which is the sweep's
SHELL = [str(ROOT / "scripts/sweep.sh"), "--python", sys.executable]
LOCKS = Path("/proc/locks")
RAY = [sys.executable, str(ROOT / "scripts/sweep.py"), "--interval", "1"]


def call(command: list[str], folder: Path, timeout: float = 300) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)


def dry_run(folder: Path, *flags: str, clean: bool = True) -> list[str]:
    """The lines that --dry-run prints, which are the same for both sweeps."""
    shell, ray = (call([*command, "--dry-run", *flags], folder) for command in (SHELL, RAY))
    assert shell.returncode == ray.returncode == 0, shell.stderr + ray.stderr
    assert shell.stdout == ray.stdout
    assert not (clean and (folder / "runs/logs").exists())
    return ray.stdout.splitlines()


def plan_one(folder: Path, *settings: str, env_id: str = "Reacher-v4") -> str:
    """What --dry-run says of the environment's smose 0, without the paths of this machine."""
    (run,) = sweep.list_runs(sweep.Args(env_ids=(env_id,), seeds=("0",), algos=("smose",)), list(settings))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        sweep.print_commands([run], folder / "runs", "python", "runs/logs")
    return printed.getvalue().strip().replace(f"python {ROOT}/", "").split("  # ")[0]


def wait_until(condition, seconds: float, what: str):
    """Polls until the condition gives something true, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen within {seconds} s")


def checkpoint_step(folder: Path) -> int:
    try:
        with safe_open(folder / "checkpoint.safetensors", "np") as file:
            return int(file.metadata()["global_step"])
    except (FileNotFoundError, SafetensorError):
        return 0


def find(folder: Path, exp_name: str, step: int) -> Path | None:
    """The run of that name, once it has a checkpoint at that step or later."""
    return next((run for run in folder.glob(f"runs/*__{exp_name}__*") if checkpoint_step(run) >= step), None)


def assert_same_weights(folder: Path, reference: Path) -> None:
    ours, theirs = (load_file(path / "actor.safetensors") for path in (folder, reference))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=f"{folder.name}: {name}")
    assert (folder / "evaluation.json").read_text() == (reference / "evaluation.json").read_text()


def test_words_of_a_list_may_come_in_one_string_or_several():
    assert sweep.words(("0 1", "2", "1")) == ["0", "1", "2"]


def test_flags_are_read_as_the_trainers_read_them():
    known = {"gamma": 0.99, "autotune": True, "hidden_sizes": None, "total_timesteps": 1}
    flags = ["--gamma", "0.9", "--no-autotune", "--hidden-sizes", "64", "32", "--total_timesteps=1_000"]
    assert sweep.parse_flags(flags, known, "x.py") == {
        "gamma": ("0.9",),
        "autotune": ("False",),
        "hidden_sizes": ("64", "32"),
        "total_timesteps": ("1_000",),
    }
    assert sweep.parse_flags(["--autotune"], known, "x.py") == {"autotune": ("True",)}
    with pytest.raises(sweep.UserError, match="x.py has no flag --gama"):
        sweep.parse_flags(["--gama", "0.9"], known, "x.py")


@pytest.mark.parametrize(
    "wanted, recorded, same",
    [
        (("1_000_000",), 1_000_000, True),
        (("0.99",), 0.99, True),
        (("0.9",), 0.99, False),
        (("False",), False, True),
        (("True",), False, False),
        (("64", "32"), [64, 32], True),
        (("64",), [64, 32], False),
        (("None",), None, True),
        (("softmax",), "softmax", True),
        (("softmax",), "one-hot", False),
        (("8",), "8", True),
        ((64, 32), [64, 32], True),  # a default, not words
        (None, None, True),
        (0.99, 0.999, False),
    ],
)
def test_settings_compare_by_value(wanted, recorded, same):
    assert sweep.same_setting(wanted, recorded) is same


def test_progress_line_of_the_trainers_is_understood(tmp_path):
    run = sweep.Run("Hopper-v4", "smose", 3, "smose_sac.py", (), "smose_sac", 1_000_000, {})
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs/Hopper-v4__smose_sac__3.log"
    assert sweep.read_progress(tmp_path, run, "abc") is None
    header = "# sweep abc attempt 2 on node7/12345678: python smose_sac.py\n"
    line = "step 10,000/1,000,000  142 steps/s  1:55:03 left  return 123.4  experts 8/8\n"
    log.write_text(line)
    assert sweep.read_progress(tmp_path, run, "abc") is None  # an earlier sweep's
    log.write_text(line + header)
    assert sweep.read_progress(tmp_path, run, "abc")["step"] == "10,000"  # from where it is about to go on
    log.write_text(line + header + "step 10,500/1,000,000  warm-up  return -1.0\n")
    at = sweep.read_progress(tmp_path, run, "abc")
    assert (at["step"], at["speed"], at["left"], at["return"]) == ("10,500", "", "", "-1.0")
    assert sweep.format_summary([run], ["running"], [at]) == "0 done  1 running  0 waiting  0 failed"
    log.write_text(line + header + line.replace("10,000/", "20,000/"))
    progress = sweep.read_progress(tmp_path, run, "abc")
    row = sweep.table_row(run, "running", progress, "")
    assert row == ("Hopper-v4 smose 3", "running", "20,000/1,000,000", "123.4", "1:55:03", "node7/12345678 (attempt 2)")
    summary = sweep.format_summary([run, run], ["running", "waiting"], [progress, None])
    assert summary == "0 done  1 running  1 waiting  0 failed  about 3:52:23 left"  # 1,980,000 steps at 142 steps/s


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="Debian's shellcheck is not installed")
def test_shell_scripts_are_clean(tmp_path):
    result = call(["shellcheck", str(ROOT / "scripts/sweep.sh"), str(ROOT / ".ci/run")], tmp_path)
    assert result.returncode == 0, result.stdout


def test_default_is_the_papers_study(tmp_path):
    lines = dry_run(tmp_path)
    assert len(lines) == len(set(lines)) == 6 * 10 * 4
    first = f"{sys.executable} {ROOT}/smose_sac.py --env-id Walker2d-v4 --seed 0  # Walker2d-v4 smose 0 > "
    assert lines[0] == f"{first}runs/logs/Walker2d-v4__smose_sac__0.log"
    assert f"{ROOT}/sac_baseline.py --env-id Swimmer-v4 --seed 9 --size L  # Swimmer-v4 sac-l 9 > " in lines[-1]


def done_line(folder: Path, title: str = "Reacher-v4 smose 0") -> str:
    mean = json.loads((folder / "evaluation.json").read_text())["mean"]
    return f"# {title} is done: return {mean:.1f}, {folder}"


def test_a_folder_counts_only_if_it_holds_this_very_run(smose_run, tmp_path):
    runs = tmp_path / "runs"
    new = "smose_sac.py --env-id Reacher-v4 --seed 0 " + " ".join(SETTINGS)
    assert plan_one(tmp_path, *SETTINGS) == new
    older, newer = runs / "Reacher-v4__smose_sac__0__100", runs / "Reacher-v4__smose_sac__0__99999"
    shutil.copytree(smose_run, older)
    shutil.copytree(smose_run, runs / "Reacher-v4__smose_sac__01__200")  # another run's name
    assert plan_one(tmp_path, *SETTINGS) == done_line(older)
    assert plan_one(tmp_path, *SETTINGS, "--checkpoint-every", "7") == done_line(older)
    assert plan_one(tmp_path, *SETTINGS, "--gamma", "0.9") == f"{new} --gamma 0.9"
    assert plan_one(tmp_path, *SETTINGS[:-2]) == new.removesuffix(" --final-eval-episodes 3")  # not the default
    more = [*SETTINGS, "--total-timesteps", "600"]
    assert plan_one(tmp_path, *more) == f"smose_sac.py --resume {older} --total-timesteps 600"
    fewer = [*SETTINGS, "--total-timesteps", "300"]
    assert plan_one(tmp_path, *fewer) == done_line(older)
    shutil.copytree(smose_run, newer)
    assert plan_one(tmp_path, *SETTINGS) == done_line(newer)
    (newer / "evaluation.json").unlink()
    with open(newer / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert plan_one(tmp_path, *SETTINGS) == done_line(older)
        (older / "evaluation.json").unlink()
        assert plan_one(tmp_path, *SETTINGS) == f"# Reacher-v4 smose 0 is being trained by another process: {newer}"
    assert plan_one(tmp_path, *SETTINGS) == f"smose_sac.py --resume {newer}"
    for damaged in ('{"format": "smo', "[]", "\udcff"):  # cut short by a crash, another program's, not UTF-8
        (newer / "config.json").write_text(damaged, errors="surrogateescape")
        assert plan_one(tmp_path, *SETTINGS) == f"smose_sac.py --resume {older}"


def test_a_run_whose_environment_is_a_modules_is_resumed_with_its_name(smose_run, tmp_path):
    """The trainer imports a module for --resume only if the command names it."""
    folder = tmp_path / "runs" / "tug_env-Tug-v0__smose_sac__0__100"
    shutil.copytree(smose_run, folder)
    (folder / "evaluation.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["env_id"] = config["args"]["env_id"] = "tug_env:Tug-v0"
    (folder / "config.json").write_text(json.dumps(config))
    again = plan_one(tmp_path, *SETTINGS, env_id="tug_env:Tug-v0")
    assert again == f"smose_sac.py --resume {folder} --env-id tug_env:Tug-v0"


def test_a_finished_run_and_a_longer_one_win_over_a_newer_shorter_one(smose_run, tmp_path):
    older, newer = (tmp_path / "runs" / f"Reacher-v4__smose_sac__0__{time}" for time in (100, 200))
    for folder, steps in ((older, 400), (newer, 300)):
        shutil.copytree(smose_run, folder)
        for name in ("config.json", "evaluation.json"):
            text = (folder / name).read_text()
            assert '": 400' in text
            (folder / name).write_text(text.replace('": 400', f'": {steps}'))
    assert plan_one(tmp_path, *SETTINGS) == done_line(older)
    more = [*SETTINGS, "--total-timesteps", "600"]
    assert plan_one(tmp_path, *more) == f"smose_sac.py --resume {older} --total-timesteps 600"


def test_sizes_of_the_baseline_are_told_apart(sac_run, tmp_path):
    shutil.copytree(sac_run, tmp_path / "runs" / sac_run.name)
    lines = dry_run(tmp_path, "--env-ids", "Reacher-v4", "--seeds", "0", "--algos", "sac-s sac-m", "--", *SETTINGS)
    assert lines[0] == done_line(tmp_path / "runs" / sac_run.name, "Reacher-v4 sac-s 0")
    assert "sac_baseline.py --env-id Reacher-v4 --seed 0 --size M" in lines[1]
    named = dry_run(
        tmp_path, "--env-ids", "Reacher-v4", "--seeds", "0", "--algos", "sac-m", "--", *SETTINGS, "--exp-name", "sac_s"
    )
    assert "--size M" in named[0]  # the same name does not make it the same run


@pytest.mark.parametrize("command", [SHELL, RAY], ids=["sweep.sh", "sweep.py"])
@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["--algos", "ppo"], "error: unknown algorithm 'ppo'; choose from smose, sac-s, sac-m, sac-l"),
        (["--seeds", "0 x"], "error: seed 'x' is not a whole number"),
        (["--dry-run", "--env-ids", "Hopper-v4,Reacher-v4"], "error: 'Hopper-v4,Reacher-v4' is no environment's name"),
        (["--jobs", "0"], "--jobs"),
        (["--jobs", "two"], "--jobs"),
        (["--env-ids"], "--env-ids"),
        (["--gamma", "0.9"], "--gamma"),
        (["--python", "/no/python"], "/no/python is not a program"),
        (["--", "--gama", "0.9"], "has no flag --gama"),
        (["--", "--seed", "1"], "error: --seed is set by the sweep"),
        (["--", "gamma"], "'gamma' after `--` is no flag"),
        (["--", "--total-timesteps", "many"], "error: --total-timesteps many is not a number"),
        (["--", "--total-timesteps", "inf"], "error: --total-timesteps inf is not a number"),
        (["--seeds", "9" * 5000], "is not a whole number"),
    ],
)
def test_a_mistake_is_one_line(command, flags, complaint, tmp_path):
    result = call([*command, *flags], tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1 and complaint in result.stderr
    assert not list(tmp_path.iterdir())


def test_mistakes_with_ray_alone(tmp_path):
    for flags, complaint in (
        (["--address", "127.0.0.1:1"], "error: no Ray cluster at 127.0.0.1:1 ("),
        (["--runs-dir", "elsewhere"], "error: --runs-dir elsewhere is not named `runs`"),
        (["--address", "auto", "--jobs", "2"], "error: --jobs is for this machine alone"),
        (["--gpus-per-run", "nan"], "error: --gpus-per-run nan is neither 0 nor a positive number"),
        (["--interval", "inf"], "error: --interval inf is neither 0 nor a positive number"),
    ):
        result = call([*RAY, "--seeds", "0", "--algos", "smose", *flags], tmp_path)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
        assert complaint in result.stderr
        assert not list(tmp_path.iterdir())


def test_real_progress_line_is_understood(tmp_path):
    steps = "--total-timesteps 10000 --learning-starts 8900 --buffer-size 10000 --eval-every 10000".split()
    result = call([sys.executable, str(ROOT / "smose_sac.py"), *TINY_RUN, *steps], tmp_path)
    ((step, total, speed, left, mean),) = sweep.PROGRESS.findall(result.stdout)
    assert (step, total, left) == ("10,000", "10,000", "0:00:00") and float(speed) > 0 and float(mean) < 0


@pytest.fixture
def cleanup():
    """Ends what a failed test would leave running or frozen."""
    with contextlib.ExitStack() as stack:
        yield stack


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pause_trainer(folder: Path, cleanup: contextlib.ExitStack) -> int:
    """Freezes the process that holds the folder's lock, so that what happens next falls mid-run on any machine."""
    (pid,) = re.findall(rf"FLOCK +ADVISORY +WRITE (\d+) \S+:{(folder / '.lock').stat().st_ino} ", LOCKS.read_text())
    os.kill(int(pid), signal.SIGSTOP)
    cleanup.callback(kill, int(pid))
    assert 150 <= checkpoint_step(folder) < 400 and not (folder / "evaluation.json").exists()
    return int(pid)


def start(command: list[str], folder: Path, cleanup: contextlib.ExitStack) -> subprocess.Popen:
    def heed_ctrl_c() -> None:  # also where the tests run in the background, which ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=folder, preexec_fn=heed_ctrl_c, **pipes)
    cleanup.callback(process.kill)
    return process


def stop_midway(command: list[str], folder: Path, number: signal.Signals, after: int, cleanup) -> str:
    """Starts the sweep, signals it once its run has a checkpoint after that step, and returns what it printed."""
    started = start(command, folder, cleanup)
    run = wait_until(lambda: find(folder, "smose_sac", after), 180, "a checkpoint")
    trainer = pause_trainer(run, cleanup)
    started.send_signal(number)
    lines = []
    while not (lines and lines[-1].startswith("stopping")):
        lines.append(started.stdout.readline())
        assert lines[-1], lines
    os.kill(trainer, signal.SIGCONT)
    output, _ = started.communicate(timeout=300)
    assert started.returncode == 130, lines + [output]
    assert after <= checkpoint_step(run) < 400 and not (run / "evaluation.json").exists()
    return output


def test_sweeps_stop_and_go_on_where_they_were(smose_run, tmp_path, cleanup, monkeypatch):
    """Begun with Ray, gone on with in the shell, both stopped midway: the weights of a run that nobody disturbed."""
    pytest.importorskip("ray")
    flags = ["--env-ids", "Reacher-v4", "--seeds", "0", "--algos", "smose", "--jobs", "1"]
    settings = ["--", *SETTINGS, "--checkpoint-every", "50"]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    output = stop_midway([*RAY, *flags, *settings], tmp_path, signal.SIGINT, 150, cleanup)
    assert not (tmp_path / "home/.ray").exists()  # a token file there would lock out the next cluster
    assert output == "stopped with 1 of 1 runs to do; the same command goes on from here\n"
    output = stop_midway([*SHELL, *flags, *settings], tmp_path, signal.SIGTERM, 250, cleanup)
    assert output == "stopped with 0 done, 0 skipped, 0 failed; the same command goes on from here\n"

    result = call([*SHELL, *flags, "--env-ids", "Reacher-v4 Nothing-v4", "--jobs", "2", *settings], tmp_path)
    assert result.returncode == 1
    (run,) = tmp_path.glob("runs/Reacher*")
    assert done_line(run).removeprefix("# ").replace(" is done", "") in result.stdout
    assert result.stdout.endswith("\n1 done, 0 skipped, 1 failed\n")
    assert re.search("^failed: Nothing-v4 smose 0: exit code 2: error: .*Nothing", result.stderr)
    assert_same_weights(run, smose_run)
    assert (tmp_path / "runs/logs/Reacher-v4__smose_sac__0.log").read_text().count(f"--resume {run}\n") >= 2
    assert call([*SHELL, *flags, *settings], tmp_path).stdout.endswith("\n0 done, 1 skipped, 0 failed\n")
    again = call([*RAY, *flags, *settings], tmp_path)
    assert again.returncode == 0 and again.stdout.endswith("1 done  0 running  0 waiting  0 failed\n")


def test_sweep_and_trainer_name_a_run_alike_even_when_nobody_reads_the_output(tmp_path, cleanup):
    """Else it would be trained twice, never start, or write its log elsewhere; `| head -1` must not end a training."""
    pytest.importorskip("ray")
    flags = ["--env-ids", "Reacher-v4", "--seeds", "0", "--algos", "smose", "--jobs", "1", "--", *SETTINGS]
    for command, exp_name in ((SHELL, "a:b/c > x"), (RAY, "../ray $(d)")):
        reader, writer = os.pipe()
        process = subprocess.Popen([*command, *flags, "--exp-name", exp_name], cwd=tmp_path, stdout=writer)
        cleanup.callback(process.kill)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)  # as head does after its last line
        assert process.wait(300) == 0
        settings = sweep.Args(env_ids=("Reacher-v4",), seeds=("0",), algos=("smose",))
        (run,) = sweep.list_runs(settings, [*SETTINGS, "--exp-name", exp_name])
        (folder,) = (path for path in tmp_path.glob("runs/Reacher*") if path.name.startswith(f"{run.name}__"))
        assert dry_run(tmp_path, *flags, "--exp-name", exp_name, clean=False) == [done_line(folder)]
        assert (tmp_path / "runs/logs" / f"{run.name}.log").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    logs = {path.name for path in tmp_path.glob("runs/logs/*")}
    assert logs == {"Reacher-v4__a-b-c-x__0.log", "Reacher-v4__..-ray-d-__0.log", "ray.log"}


def agent_ports() -> dict[str, int]:
    """Free ports for a node's agents: to find them itself, Ray waits 15 s at most, too little for a busy machine."""
    names = ["metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port"]
    ports = {}
    while names:
        port = random.randrange(20_000, 32_000)  # below those that the system gives to anyone who asks
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            ports[names.pop()] = port
    return ports


@pytest.fixture
def two_nodes(monkeypatch):
    """Ray's own test cluster: two nodes of one CPU each, as processes of this machine."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = pytest.importorskip("ray.cluster_utils").Cluster()
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    fast = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 10}
    try:
        cluster.add_node(**node, **agent_ports(), _system_config=fast)
        yield cluster, cluster.add_node(**node, **agent_ports())
    finally:
        cluster.shutdown()


def test_runs_of_a_lost_node_and_a_lost_worker_end_with_the_same_weights(
    two_nodes, smose_run, sac_run, tmp_path, cleanup
):
    cluster, doomed = two_nodes
    flags = ["--env-ids", "Reacher-v4", "--seeds", "0", "--algos", "smose sac-s"]
    command = [*RAY, "--address", cluster.address, *flags, "--", *SETTINGS, "--checkpoint-every", "50"]
    driver = start(command, tmp_path, cleanup)
    paused: dict[Path, int] = {}

    def pause_both() -> bool:
        for name in ("smose_sac", "sac_s"):
            run = find(tmp_path, name, 150)
            if run and run not in paused:
                paused[run] = pause_trainer(run, cleanup)
        return len(paused) == 2

    def log_of(run: Path) -> str:
        return (tmp_path / "runs/logs" / f"{run.name.rpartition('__')[0]}.log").read_text()

    wait_until(pause_both, 180, "a checkpoint of both runs")
    (moved,) = (run for run in paused if f"/{doomed.node_id[:8]}:" in log_of(run))
    (stayed,) = paused.keys() - {moved}
    worker = int(re.search(r"PPid:\s(\d+)", Path(f"/proc/{paused[stayed]}/status").read_text())[1])
    assert Path(f"/proc/{worker}/cmdline").read_bytes().startswith(b"ray::")
    os.kill(worker, signal.SIGKILL)
    cluster.remove_node(doomed, allow_graceful=False)
    for trainer in paused.values():  # or it would train on beside its own retry
        wait_until(lambda pid=trainer: not Path(f"/proc/{pid}").exists(), 30, "the end of a trainer whose worker died")

    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, output
    assert output.endswith("\n2 done  0 running  0 waiting  0 failed\n")
    for run in paused:
        nodes = re.findall("^# sweep .* attempt . on (.*): .*/python ", log_of(run), re.M)
        assert len(nodes) == 2 and (nodes[0] != nodes[1]) == (run == moved)
        assert log_of(run).count(f"--resume {run}\n") == 1
        assert_same_weights(run, smose_run if "smose" in run.name else sac_run)
    assert len(list(tmp_path.glob("runs/R*"))) == 2


class Host:
    """A shell on a host of its own: with its own network, processes, name, home, /tmp/ray and /dev/shm."""

    def __init__(self, name: str, namespace: str, home: Path) -> None:
        home.mkdir()
        Path("/tmp/ray").mkdir(exist_ok=True)
        places = "mount -t tmpfs tmpfs /tmp/ray && mount -t tmpfs tmpfs /dev/shm"
        unshare = "unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc".split()
        command = ["ip", "netns", "exec", namespace, *unshare, "sh", "-c"]
        command.append(f"{places} && hostname {name} && exec 2>&1 && cd {home} && exec bash")
        environment = os.environ | {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.shell = subprocess.Popen(command, env=environment, text=True, **pipes)

    def run(self, command: str) -> tuple[int, str]:
        """Types a command into the shell; its exit code and what it printed."""
        self.shell.stdin.write(f"{{\n{command}\n}} < /dev/null\nprintf '\\nended: %s\\n' $?\n")
        self.shell.stdin.flush()
        printed, patience = [], threading.Timer(200, self.shell.kill)
        patience.start()
        while not (printed and printed[-1].startswith("ended: ")):
            printed.append(self.shell.stdout.readline())
            assert printed[-1], printed
        patience.cancel()
        return int(printed[-1].split()[1]), "".join(printed[:-1])


@pytest.fixture
def two_hosts(tmp_path, cleanup):
    """Two hosts with a cable between them: network namespaces, which only root can make."""
    if not shutil.which("ip") or not shutil.which("unshare") or os.geteuid():
        pytest.skip("network namespaces need root and Debian's iproute2")
    names = [f"smose{os.getpid()}-{i}" for i in (1, 2)]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}")
    for i, name in enumerate(names, start=1):
        commands += [f"-n {name} address add 10.99.0.{i}/24 dev eth0"]
        commands += [f"-n {name} link set {device} up" for device in ("eth0", "lo")]
        commands += [f"-n {name} route add default via 10.99.0.{3 - i}"]  # Ray looks there for its own address
    for name in names:
        cleanup.callback(subprocess.run, ["ip", "netns", "delete", name], capture_output=True)
    for command in commands:
        made = call(["ip", *command.split()], tmp_path)
        if made.returncode:
            pytest.skip(f"cannot make network namespaces here: {made.stderr.strip()}")
    hosts = []
    for i, name in enumerate(names, start=1):
        hosts.append(Host(f"host{i}", name, tmp_path / f"home{i}"))
        cleanup.callback(hosts[-1].shell.wait)
        cleanup.callback(hosts[-1].shell.kill)
    return hosts


def test_the_readmes_cluster_recipe_works_on_two_hosts_and_a_missing_token_is_named(two_hosts, tmp_path):
    pytest.importorskip("ray")
    (recipe,) = re.findall(r"\*\*Cluster\.\*\*.*?```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (tmp_path / "shared").mkdir()
    recipe = recipe.replace("/shared/smose", f"{tmp_path}/shared").replace("FIRST_NODE", "10.99.0.1")
    token, export, head, other, command = recipe.replace("scripts/", f"{ROOT}/scripts/").splitlines()
    first, second = two_hosts
    for host, line in ((first, token), (first, export), (second, export), (first, head), (second, other)):
        assert host.run(line)[0] == 0, line
    assert (tmp_path / "shared/ray_token").stat().st_mode & 0o077 == 0

    command += f" --interval 1 --cpus-per-run {os.cpu_count()} --env-ids Reacher-v4 --seeds 0 1 --algos smose"
    command += f" -- {' '.join(SETTINGS)}"
    without = command.replace("--address auto", "--address 10.99.0.1:6379")
    code, output = second.run(f"env -u RAY_AUTH_MODE -u RAY_AUTH_TOKEN_PATH {without}")
    assert code == 2 and output.strip().count("\n") == 0, output
    assert output.startswith("error: the Ray cluster at 10.99.0.1:6379 asks for a token that this shell doesn't have;")
    assert not (tmp_path / "shared/runs").exists()

    code, output = first.run(command)
    assert code == 0 and output.strip().endswith("2 done  0 running  0 waiting  0 failed"), output
    logs = "".join(path.read_text() for path in (tmp_path / "shared/runs/logs").glob("Reacher*.log"))
    assert set(re.findall("^# sweep .* on (host.)/", logs, re.M)) == {"host1", "host2"}
