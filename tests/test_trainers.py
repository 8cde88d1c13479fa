"""Both trainers as a user meets them: commands, the folders they leave, kills, resumes and mistakes.

Commands run in processes forked from one that has imported the libraries, which saves two seconds each; a few start
from nothing, to be sure that it makes no difference.
"""

import csv
import ctypes.util
import fcntl
import functools
import importlib.util
import json
import math
import multiprocessing
import os
import pty
import re
import runpy
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Optional

import gymnasium as gym
import imageio.v3 as imageio
import numpy as np
import pytest
from conftest import needs_compiler
from safetensors import safe_open
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent
TRAINERS = [t for t in ("smose_sac.py", "sac_baseline.py") if (ROOT / t).exists()]
pytestmark = pytest.mark.filterwarnings("ignore:.*out of date")  # v4 is meant
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    "torch.utils.tensorboard gymnasium.envs.mujoco mujoco tyro safetensors.torch imageio.v3 pytest"
    " tensorboard.backend.event_processing.event_accumulator".split()
)

SMALL = "--learning-starts 120 --batch-size 32 --checkpoint-every 90 --eval-every 175 --eval-episodes 2"
SMALL = f"{SMALL} --final-eval-episodes 3 --total-timesteps 700 --no-compile".split()
REACHER = ["--env-id", "Reacher-v4", "--buffer-size", "300", *SMALL]  # the ring of the replay wraps
HOPPER = ["--env-id", "Hopper-v4", "--buffer-size", "1000", "--seed", "2", *SMALL]
BRIEF = "--learning-starts 20 --batch-size 16 --total-timesteps 60 --eval-every 60 --eval-episodes 1".split()
BRIEF += "--final-eval-episodes 1 --buffer-size 100 --checkpoint-every 100 --no-compile".split()

# Asymmetric bounds, float64 observations, terminations and truncations; writes down all that happens to it.
TUG = """
import json
from pathlib import Path

import gymnasium as gym
import numpy as np


class Tug(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Box(np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32))

    def __init__(self, render_mode=None):
        self.log = open(f"tug{len(list(Path.cwd().glob('tug*.jsonl')))}.jsonl", "w")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.state = 0, self.np_random.normal(size=3)
        print(json.dumps({"seed": seed}), file=self.log, flush=True)
        return self.state.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        before, self.steps = self.state.copy(), self.steps + 1
        self.state += 0.1 * self.np_random.normal(size=3) + 0.1 * np.array([action[0] - 1, action[1], 0])
        reward, terminated, truncated = -float(self.state[0] ** 2), bool(self.state[0] > 1.5), self.steps == 40
        row = [*before, *action.tolist(), *self.state, reward, terminated]
        print(json.dumps({"row": row, "done": terminated or truncated}), file=self.log, flush=True)
        return self.state.copy(), reward, terminated, truncated, {}


gym.register("Tug-v0", entry_point=Tug)
"""

# What the trainers can't use, and what goes wrong on the way.
ODD = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

unit = Box(-1, 1, (2,))


class Odd(gym.Env):
    observation_space, action_space = unit, unit

    def __init__(self, observation_space=unit, action_space=unit, odd=None, at=0, render_mode=None):
        self.observation_space, self.action_space, self.odd, self.at, self.count = (
            observation_space, action_space, odd, at, 0)
        if odd == "refuses":
            raise RuntimeError("this robot is not connected\\n(second line\\nthird line)")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed == 100000:
            self.at = 10**9  # an evaluation
        self.resets = getattr(self, "resets", 0) + 1
        bad = self.odd == "reset" and self.count >= self.at
        return np.array([np.nan if bad else 0.5, 0.0]), {}

    def step(self, action):
        self.count += 1
        obs, reward = self.np_random.uniform(-1, 1, 2), float(action[0])
        if self.count >= self.at:
            obs[1] = {"obs": np.inf, "huge obs": 1e300}.get(self.odd, obs[1])
            reward = {"reward": np.nan, "huge reward": 1e25}.get(self.odd, reward)
        return obs, reward, False, self.count % 10 == 0, {}


def add(name, **kwargs):
    gym.register(f"{name}-v0", entry_point=Odd, kwargs=kwargs)


add("DictObs", observation_space=Dict(a=unit, b=unit))
add("TupleObs", observation_space=Tuple((unit, unit)))
add("Image", observation_space=Box(0, 255, (8, 8, 3), np.uint8))
add("DiscreteObs", observation_space=Discrete(5))
add("Unbounded", action_space=Box(-np.inf, np.inf, (2,)))
add("HalfBounded", action_space=Box(np.array([-1, -1]), np.array([1, np.inf])))
add("ActionTable", action_space=Box(-1, 1, (2, 2)))
add("MultiDiscrete", action_space=MultiDiscrete([2, 3]))
add("Refuses", odd="refuses")
for odd in ("obs", "huge obs", "reward", "huge reward", "reset"):
    add("Odd" + odd.title().replace(" ", ""), odd=odd, at=250)
"""


def run_script(words: list[str], folder: str, output: str, environment: dict[str, str]) -> None:
    """In the forked process: become `python words...` in that folder."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{output}/{name}", os.O_WRONLY), number)
    os.chdir(folder)
    multiprocessing.set_start_method("fork", force=True)  # as in a process of its own
    os.environ.update(environment)
    sys.argv, sys.path[:0] = words, [str(ROOT), environment.get("PYTHONPATH", folder)]
    runpy.run_path(words[0], run_name="__main__")


@functools.cache
def outputs() -> tempfile.TemporaryDirectory:
    """Where commands print to: not into the folders that are tested."""
    return tempfile.TemporaryDirectory()


class Command:
    """`python trainer flags...` in a folder, running or done."""

    def __init__(self, folder: Path, trainer: str, *flags: str, **environment: str):
        size = ["--size", "S"] if trainer == "sac_baseline.py" and "--resume" not in flags else []
        self.words, self.folder = [str(ROOT / trainer), *size, *map(str, flags)], folder
        self.output = Path(tempfile.mkdtemp(dir=outputs().name))
        for name in ("stdout", "stderr"):
            (self.output / name).touch()
        before = set(folder.glob("runs/*"))
        arguments = (self.words, str(folder), str(self.output), environment)
        self.process = FORKS.Process(target=run_script, args=arguments, daemon=True)
        self.process.start()
        self.new_runs = lambda: sorted(set(folder.glob("runs/*")) - before)

    stdout = property(lambda self: (self.output / "stdout").read_text())
    stderr = property(lambda self: (self.output / "stderr").read_text())
    code = property(lambda self: self.process.exitcode)

    def wait(self, seconds: float = 240) -> "Command":
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"{self.words} still ran after {seconds} s: {self.stdout} {self.stderr}")
        return self

    def until(self, happened, seconds: float = 120) -> None:
        """Wait for something that the run folder shows."""
        end = time.time() + seconds
        while not happened():
            assert self.process.is_alive(), f"{self.words} ended early: {self.stdout} {self.stderr}"
            assert time.time() < end, f"{self.words} took too long: {self.stdout} {self.stderr}"
            time.sleep(0.002)

    def signal(self, number: int) -> "Command":
        os.kill(self.process.pid, number)
        return self.wait()

    @property
    def run(self) -> Path:
        """The run folder that this command made."""
        (run,) = self.new_runs()
        return run


def train(folder: Path, trainer: str, *flags: str, **environment: str) -> Command:
    """A command that has to work."""
    done = Command(folder, trainer, *flags, **environment).wait()
    assert done.code == 0, done.stderr
    assert done.stderr == ""
    return done


def mistake(done: Command) -> str:
    """A command that has to fail as a user's mistake does; returns the line."""
    assert done.wait().code == 2, (done.code, done.stdout, done.stderr)
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr
    assert "Traceback" not in done.stdout
    assert not re.search(r"[│╭╰]|<class|Errno|None$", done.stderr), done.stderr
    assert len(done.stderr) < 500, done.stderr
    return done.stderr


def refused(folder: Path, trainer: str, *flags: str, **environment) -> str:
    """A mistake that leaves no run folder."""
    done = Command(folder, trainer, *flags, **environment)
    line = mistake(done)
    assert done.new_runs() == []
    return line


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


def evaluations(run: Path) -> list[dict[str, float]]:
    with open(run / "evaluations.csv", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's curves, as TensorBoard reads them."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def files(run: Path) -> dict[str, bytes]:
    """All files but the lock, by name."""
    return {p.name: p.read_bytes() for p in run.iterdir() if p.is_file() and not p.name.startswith(".")}


def assert_same_run(run: Path, other: Path) -> None:
    """Bit for bit the same training: weights, optimizers, replay, evaluations and curves."""
    for name in ("actor", "actor_best", "checkpoint"):
        one, two = tensors(run / f"{name}.safetensors"), tensors(other / f"{name}.safetensors")
        assert one.keys() == two.keys()
        assert [key for key in one if one[key].tobytes() != two[key].tobytes()] == [], name
    for name in ("replay.npy", "evaluations.csv", "evaluation.json"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name
    one, two = scalars(run), scalars(other)
    assert {tag: values for tag, values in one.items() if tag != "charts/SPS"} == {
        tag: values for tag, values in two.items() if tag != "charts/SPS"
    }
    assert {re.sub(r"events.*", "events", p.name) for p in run.iterdir()} == {
        re.sub(r"events.*", "events", p.name) for p in other.iterdir()
    }


def deployed(path: Path):
    """The saved policy in plain NumPy: obs -> action, expert (from 0; None without experts)."""
    w, about = tensors(path), metadata(path)

    def smose(s):
        z = w["router.weight"] @ s + w["router.bias"]
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        chosen = np.argsort(-z, kind="stable")[: int(about["top_k"])]
        share = p[chosen] / (p[chosen].sum() if about["gate"] == "one-hot" else 1)
        means = w["experts.mean.weight"][chosen] @ s + w["experts.mean.bias"][chosen]
        return share @ means, int(chosen[0])

    def sac(s):
        for i in range(len(json.loads(about["hidden_sizes"]))):
            s = np.maximum(w[f"hidden.{i}.weight"] @ s + w[f"hidden.{i}.bias"], 0)
        return w["mean.weight"] @ s + w["mean.bias"], None

    def act(obs):
        mean, expert = (smose if about["format"] == "smose-actor" else sac)(np.asarray(obs, np.float32))
        return w["action_scale"] * np.tanh(mean) + w["action_bias"], expert

    return act


def episodes(env_id: str, path: Path, n: int) -> tuple[list[float], list[int], list[list[Optional[int]]]]:
    """Returns, lengths and experts of the saved policy on the evaluation's seeds."""
    act, env = deployed(path), gym.make(env_id)
    returns, lengths, experts = [], [], []
    for i in range(n):
        obs, done, total, chosen = env.reset(seed=100_000 + i)[0], False, 0.0, []
        while not done:
            action, expert = act(obs)
            obs, reward, terminated, truncated, _ = env.step(action.astype(env.action_space.dtype))
            total, done = total + reward, terminated or truncated
            chosen.append(expert)
        returns, lengths, experts = [*returns, total], [*lengths, len(chosen)], [*experts, chosen]
    return returns, lengths, experts


@pytest.fixture(params=TRAINERS, scope="module")
def trainer(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def reacher(trainer, tmp_path_factory) -> Path:
    """an uninterrupted run on Reacher-v4, longer than its buffer (read only)"""
    return train(tmp_path_factory.mktemp("reacher"), trainer, *REACHER).run


@pytest.fixture(scope="module")
def hopper(trainer, tmp_path_factory) -> Path:
    """an uninterrupted run on Hopper-v4 (read only)"""
    return train(tmp_path_factory.mktemp("hopper"), trainer, *HOPPER).run


@pytest.fixture(scope="module")
def tug(trainer, tmp_path_factory) -> Command:
    """a run on an environment of the user's own, started from nothing, with all that happened in tug*.jsonl"""
    folder = tmp_path_factory.mktemp("tug")
    (folder / "tug_env.py").write_text(TUG)
    flags = "--env-id tug_env:Tug-v0 --seed 7 --total-timesteps 1.1e3 --learning-starts 200 --batch-size 32".split()
    flags += "--buffer-size 2_000 --eval-every 400 --eval-episodes 2 --final-eval-episodes 3".split()
    return train(folder, trainer, *flags, PYTHONPATH=str(folder))


@pytest.fixture(autouse=True)
def nothing_runs_on():
    """a test that fails leaves no training behind"""
    yield
    for process in multiprocessing.active_children():
        process.kill()


@pytest.fixture
def odd(tmp_path) -> dict[str, str]:
    """environment variables under which odd_env:... ids can be made"""
    (tmp_path / "odd_env.py").write_text(ODD)
    return {"PYTHONPATH": str(tmp_path)}


def test_run_folder_holds_what_the_follow_up_scripts_read(trainer, reacher):
    names = {re.sub(r"events.*", "events", name) for name in files(reacher)}
    assert names == {
        "actor.safetensors", "actor_best.safetensors", "checkpoint.safetensors", "config.json", "evaluation.json",
        "evaluations.csv", "events", "replay.npy",
    }  # fmt: skip
    exp_name = {"smose_sac.py": "smose_sac", "sac_baseline.py": "sac_s"}[trainer]
    started = re.fullmatch(rf"Reacher-v4__{exp_name}__0__(\d+)", reacher.name)
    assert 0 <= time.time() - int(started[1]) < 3600

    config = json.loads((reacher / "config.json").read_text())
    smose = trainer == "smose_sac.py"
    counts = {"n_active": 144, "n_total": 480} if smose else {"n_active": 148, "n_total": 148}
    expected = {"format": "smose-run" if smose else "sac-run", "env_id": "Reacher-v4", "obs_size": 11, **counts}
    assert {name: config[name] for name in expected} == expected and config["action_size"] == 2
    assert config.keys() == {*expected, "action_size", "args", "replay_columns", "versions"}
    columns = {"obs": [0, 11], "action": [11, 13], "next_obs": [13, 24], "reward": [24, 25], "terminated": [25, 26]}
    assert config["replay_columns"] == columns | {"episode": [26, 27]}
    assert config["versions"].keys() == {"python", "torch", "gymnasium", "mujoco", "numpy"}
    assert config["versions"]["numpy"] == np.__version__
    flags = {"seed": 0, "total_timesteps": 700, "buffer_size": 300, "gamma": 0.99, "tau": 0.005, "keep_replay": True}
    assert {name: config["args"][name] for name in flags} == flags

    for name in ("actor", "actor_best"):
        about = metadata(reacher / f"{name}.safetensors")
        own = {"n_experts": "8", "top_k": "1", "gate": "one-hot"} if smose else {"size": "S", "hidden_sizes": "[9]"}
        assert about.keys() == {"format", "env_id", "seed", "steps", "args", "versions", *own}
        expected = {"format": "smose-actor" if smose else "sac-actor", "env_id": "Reacher-v4", "seed": "0", **own}
        assert {key: about[key] for key in expected} == expected
        assert json.loads(about["args"]) == config["args"]
        assert json.loads(about["versions"]) == config["versions"]
    assert metadata(reacher / "actor.safetensors")["steps"] == "700"
    assert metadata(reacher / "checkpoint.safetensors")["global_step"] == "700"


def test_saved_actor_has_the_named_tensors(trainer, reacher):
    shapes = {"action_scale": (2,), "action_bias": (2,)}
    if trainer == "smose_sac.py":
        shapes |= {"router.weight": (8, 11), "router.bias": (8,)}
        shapes |= {f"experts.{head}.weight": (8, 2, 11) for head in ("mean", "log_std")}
        shapes |= {f"experts.{head}.bias": (8, 2) for head in ("mean", "log_std")}
    else:
        shapes |= {"hidden.0.weight": (9, 11), "hidden.0.bias": (9,)}
        shapes |= {f"{head}.weight": (2, 9) for head in ("mean", "log_std")}
        shapes |= {f"{head}.bias": (2,) for head in ("mean", "log_std")}
    for name in ("actor", "actor_best"):
        saved = tensors(reacher / f"{name}.safetensors")
        assert {key: tensor.shape for key, tensor in saved.items()} == shapes
        assert {tensor.dtype for tensor in saved.values()} == {np.dtype(np.float32)}
        assert all(np.isfinite(tensor).all() for tensor in saved.values())
        assert saved["action_scale"].tolist() == [1, 1] and saved["action_bias"].tolist() == [0, 0]


def test_evaluations_are_those_of_the_saved_actors(trainer, reacher):
    rows, final = evaluations(reacher), json.loads((reacher / "evaluation.json").read_text())
    smose = trainer == "smose_sac.py"
    usage = [f"usage_{m}" for m in range(1, 9)] if smose else []
    assert list(rows[0]) == ["step", "return_mean", "return_std", "length_mean", "length_std", *usage]
    assert [row["step"] for row in rows] == [175, 350, 525, 700]
    expected = {"env_id": "Reacher-v4", "seed": 0, "steps": 700, "episodes": 3, "first_eval_seed": 100_000}
    assert {name: final[name] for name in expected} == expected
    experts = {"expert_usage", "switches_per_100_steps"} if smose else set()
    assert final.keys() == {*expected, "returns", "lengths", "mean", "std", *experts}

    returns, lengths, chosen = episodes("Reacher-v4", reacher / "actor.safetensors", 3)
    assert final["returns"] == pytest.approx(returns, rel=1e-4) and final["lengths"] == lengths == [50, 50, 50]
    assert final["mean"] == pytest.approx(np.mean(returns), rel=1e-4)
    assert final["std"] == pytest.approx(np.std(returns), rel=1e-3)
    last = rows[-1]
    assert last["return_mean"] == pytest.approx(np.mean(final["returns"][:2]), rel=1e-9)
    assert last["return_std"] == pytest.approx(np.std(final["returns"][:2]), rel=1e-9)
    assert (last["length_mean"], last["length_std"]) == (50, 0)
    if smose:
        switches = sum(a != b for episode in chosen for a, b in zip(episode, episode[1:], strict=False))
        shares = [np.mean([expert == m for episode in chosen for expert in episode]) for m in range(8)]
        assert final["switches_per_100_steps"] == pytest.approx(100 * switches / 150)
        assert final["expert_usage"] == pytest.approx(shares)
        assert [last[name] for name in usage] == pytest.approx(
            [np.mean([expert == m for episode in chosen[:2] for expert in episode]) for m in range(8)]
        )

    best = max(rows, key=lambda row: row["return_mean"])
    assert metadata(reacher / "actor_best.safetensors")["steps"] == f"{best['step']:.0f}"
    returns, _, _ = episodes("Reacher-v4", reacher / "actor_best.safetensors", 2)
    assert best["return_mean"] == pytest.approx(np.mean(returns), rel=1e-4)


def tug_log(tug: Command) -> list[dict]:
    """What happened to the environment that was trained on."""
    logs = [[json.loads(line) for line in path.open()] for path in tug.folder.glob("tug*.jsonl")]
    (log,) = (log for log in logs if {"seed": 7} in log)
    return log


def test_replay_holds_what_happened_in_order(tug):
    columns = json.loads((tug.run / "config.json").read_text())["replay_columns"]
    assert columns["action"] == [3, 5] and columns["episode"] == [10, 11]
    replay = np.load(tug.run / "replay.npy", mmap_mode="r")
    assert replay.dtype == np.float32 and len(replay) >= 1100
    happened = [event for event in tug_log(tug) if "row" in event]
    assert len(happened) == 1100 and sum(event["done"] for event in happened) > 20
    assert np.array_equal(replay[:1100, :10], np.array([event["row"] for event in happened], np.float32))
    episode = 1 + np.cumsum([0, *(event["done"] for event in happened[:-1])])
    assert np.array_equal(replay[:1100, 10], episode)
    assert not replay[1100:].any()
    terminated = replay[:1100, 9].astype(bool)
    done = np.array([event["done"] for event in happened])
    assert 0 < terminated.sum() < done.sum() and not (terminated & ~done).any()


def test_random_warm_up_covers_asymmetric_bounds(tug):
    actions = np.load(tug.run / "replay.npy", mmap_mode="r")[:200, 3:5]
    shares = [np.histogram(actions[:, i], 4, bounds)[0] for i, bounds in enumerate([(-1, 3), (0, 0.5)])]
    assert np.sum(shares, 1).tolist() == [200, 200] and np.min(shares) > 25
    saved = tensors(tug.run / "actor.safetensors")
    assert saved["action_scale"].tolist() == [2, 0.25] and saved["action_bias"].tolist() == [1, 0.25]


def test_users_own_environment_is_evaluated_on_fixed_seeds(tug):
    assert re.fullmatch(r"tug_env-Tug-v0__(smose_sac|sac_s)__7__\d+", tug.run.name)
    assert [row["step"] for row in evaluations(tug.run)] == [400, 800, 1100]
    assert json.loads((tug.run / "evaluation.json").read_text())["episodes"] == 3
    assert json.loads((tug.run / "config.json").read_text())["args"]["total_timesteps"] == 1100
    logs = [[json.loads(line) for line in path.open()] for path in tug.folder.glob("tug*.jsonl")]
    seeds = [event["seed"] for log in logs for event in log if event.get("seed", 0) and event["seed"] != 7]
    assert sorted(seeds) == [100_000] * 4 + [100_001] * 4 + [100_002]


def test_tensorboard_has_cleanrls_curves(trainer, tug):
    curves = scalars(tug.run)
    tags = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "eval/episodic_return"}
    losses = "qf1_values qf2_values qf1_loss qf2_loss qf_loss actor_loss alpha alpha_loss".split()
    if trainer == "smose_sac.py":
        losses += ["importance", "load"]
        tags |= {f"experts/usage_{m}" for m in range(1, 9)}
        assert sum(curves[f"experts/usage_{m}"][-1][1] for m in range(1, 9)) == pytest.approx(1)
    assert curves.keys() == tags | {f"losses/{name}" for name in losses}
    assert all(math.isfinite(value) for curve in curves.values() for _, value in curve)
    evaluated = [(row["step"], np.float32(row["return_mean"])) for row in evaluations(tug.run)]
    assert curves["eval/episodic_return"] == evaluated

    rewards, ends = [[]], []
    for i, event in enumerate(event for event in tug_log(tug) if "row" in event):
        rewards[-1].append(event["row"][8])
        if event["done"]:
            ends.append(i)
            rewards.append([])
    steps, returns = zip(*curves["charts/episodic_return"], strict=True)
    assert np.ptp(np.array(steps) - np.array(ends)) == 0 and abs(steps[0] - ends[0]) <= 1
    assert returns == pytest.approx([sum(episode) for episode in rewards[:-1]], rel=1e-5)
    lengths = [value for _, value in curves["charts/episodic_length"]]
    assert lengths == [len(episode) for episode in rewards[:-1]]


def test_start_says_what_is_trained(trainer, tug):
    first = tug.stdout.splitlines()[0]
    counts = json.loads((tug.run / "config.json").read_text())
    assert "tug_env:Tug-v0" in first and f"N_act {counts['n_active']} (N_tot {counts['n_total']})" in first
    assert trainer != "smose_sac.py" or (counts["n_active"], counts["n_total"]) == (48, 160)


def test_hopper_terminates_and_reacher_truncates(hopper, reacher):
    for run in (hopper, reacher):
        replay = np.load(run / "replay.npy", mmap_mode="r")
        replay = replay[replay[:, -1] > 0]
        replay = np.roll(replay, -int(np.argmin(replay[:, -1])), 0)  # in time order, but for the cut first episode
        n_s = json.loads((run / "config.json").read_text())["obs_size"]
        obs, next_obs, terminated, episode = replay[:, :n_s], replay[:, -3 - n_s : -3], replay[:, -2], replay[:, -1]
        follows = np.flatnonzero(np.diff(episode) == 0)
        follows = follows[follows > np.sum(episode == episode[0])]
        assert np.array_equal(next_obs[follows], obs[follows + 1])
        ends = np.flatnonzero(np.diff(episode) == 1)
        if run == hopper:
            assert len(ends) > 10 and terminated[ends].all() and terminated.sum() - len(ends) in (0, 1)
        else:
            assert len(ends) > 5 and not terminated.any() and np.bincount(episode.astype(int)).max() == 50


def test_same_seed_same_weights_and_other_seed_others(trainer, tmp_path):
    flags = [*REACHER, "--total-timesteps", "220"]
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    size = ["--size", "S"] if trainer == "sac_baseline.py" else []
    command = [sys.executable, ROOT / trainer, *size, *flags, "--seed", "5"]  # from nothing
    done = subprocess.run(command, cwd=tmp_path / "a", capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    (one,) = (tmp_path / "a").glob("runs/*")
    two = train(tmp_path / "b", trainer, *flags, "--seed", "5").run
    assert_same_run(one, two)
    three = tensors(train(tmp_path / "c", trainer, *flags, "--seed", "6").run / "actor.safetensors")
    for name, tensor in tensors(one / "actor.safetensors").items():
        assert name.startswith("action_") or np.mean(tensor == three[name]) < 0.01


@pytest.mark.parametrize("moments", [["row 60"], ["row 250"], ["part", "checkpoint 600"]], ids=" and ".join)
def test_killed_run_resumes_bit_for_bit_on_reacher(trainer, reacher, tmp_path, moments):
    kill_and_resume(trainer, reacher, tmp_path, REACHER, moments)


@pytest.mark.parametrize("moments", [["row 333"], ["row 110", "row 390"]], ids=" and ".join)
def test_killed_run_resumes_bit_for_bit_on_hopper(trainer, hopper, tmp_path, moments):
    kill_and_resume(trainer, hopper, tmp_path, HOPPER, moments)


def kill_and_resume(trainer: str, uninterrupted: Path, folder: Path, flags: list[str], moments: list[str]) -> None:
    """kill -9 at each of the moments in turn, then let it come to its end."""
    command = Command(folder, trainer, *flags)
    for moment in moments:
        what, _, number = moment.partition(" ")
        if what == "part":
            command.until(lambda: list(folder.glob("runs/*/checkpoint*.part*")))  # a checkpoint is being written
        else:
            command.until({"row": row_written, "checkpoint": checkpoint_at}[what](folder, int(number)))
        assert command.signal(signal.SIGKILL).code == -signal.SIGKILL
        (run,) = folder.glob("runs/*")
        assert not (run / "evaluation.json").exists()
        command = Command(folder, trainer, "--resume", f"runs/{run.name}")
    assert command.wait().code == 0, command.stderr
    assert list(folder.glob("runs/*")) == [run]
    assert_same_run(run, uninterrupted)


@needs_compiler
def test_compiled_run_resumes_bit_for_bit(trainer, tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    done = train(tmp_path / "whole", trainer, *REACHER, "--compile")
    assert "can't compile" not in done.stdout
    kill_and_resume(trainer, done.run, tmp_path / "killed", [*REACHER, "--compile"], ["row 250"])


def test_without_a_compiler_training_goes_on_and_says_so(trainer, reacher, tmp_path):
    no_compiler = {"CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = train(tmp_path, trainer, *REACHER, "--compile", **no_compiler)
    assert done.stdout.count("\n") == 3 and done.stdout.count("PyTorch can't compile here") == 1
    assert_same_run(done.run, reacher)  # which was told not to


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_stopped_run_says_how_to_go_on(trainer, reacher, tmp_path, number, code):
    command = Command(tmp_path, trainer, *REACHER, "--exp-name", "two words")
    command.until(row_written(tmp_path, 130))
    assert command.signal(number).code == code
    assert command.stderr == ""
    step = int(metadata(command.run / "checkpoint.safetensors")["global_step"])
    assert step > 130 and f"{step}" in command.stdout
    paste = command.stdout[command.stdout.index("python ") :].strip()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(paste, shell=True, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert_same_run(command.run, reacher)


def test_stop_during_an_evaluation_loses_nothing(trainer, tmp_path):
    flags = [*BRIEF, "--env-id", "Pendulum-v1", "--eval-episodes", "100"]
    command = Command(tmp_path, trainer, *flags)
    command.until(row_written(tmp_path, 59))
    time.sleep(0.1)
    assert command.signal(signal.SIGTERM).code == 143
    assert train(tmp_path, trainer, "--resume", command.run).code == 0
    assert [row["step"] for row in evaluations(command.run)] == [60]
    assert metadata(command.run / "actor.safetensors")["steps"] == "60"
    assert (command.run / "actor_best.safetensors").exists()


def test_finished_run_trains_on_to_a_larger_total(trainer, reacher, tmp_path):
    run = train(tmp_path, trainer, *REACHER, "--total-timesteps", "350").run
    before = files(run)
    command = train(tmp_path, trainer, "--resume", run)
    after = files(run)
    for name in ("actor.safetensors", "actor_best.safetensors", "evaluations.csv", "evaluation.json", "replay.npy"):
        assert after[name] == before[name], name
    assert "Traceback" not in command.stdout

    command = Command(tmp_path, trainer, "--resume", run, "--total-timesteps", "7e2")
    command.until(checkpoint_at(tmp_path, 500))
    assert not (run / "evaluation.json").exists()  # it says that a run is done
    assert command.signal(signal.SIGKILL).code == -signal.SIGKILL
    train(tmp_path, trainer, "--resume", run)
    assert_same_run(run, reacher)
    assert json.loads((run / "config.json").read_text())["args"]["total_timesteps"] == 700


def test_pendulum_resumes_with_a_new_episode_and_says_so(trainer, tmp_path):
    flags = [*BRIEF, *"--env-id Pendulum-v1 --total-timesteps 900 --checkpoint-every 150 --eval-every 300".split()]
    flags += ["--buffer-size", "2000"]
    command = Command(tmp_path, trainer, *flags)
    command.until(row_written(tmp_path, 460))
    assert command.signal(signal.SIGKILL).code == -signal.SIGKILL
    done = train(tmp_path, trainer, "--resume", command.run)
    assert "new episode" in done.stdout
    assert [row["step"] for row in evaluations(command.run)] == [300, 600, 900]
    replay = np.load(command.run / "replay.npy", mmap_mode="r")[:900]
    follows = np.flatnonzero(np.diff(replay[:, -1]) == 0)
    assert np.array_equal(replay[follows, 4:7], replay[follows + 1, :3])  # an episode's number is its own
    lengths = np.bincount(replay[:, -1].astype(int))[1:]
    assert lengths.max() == 200 and lengths.sum() == 900


def test_v5_without_its_replay(trainer, tmp_path):
    flags = ["--env-id", "Reacher-v5", "--no-keep-replay"]
    run = train(tmp_path, trainer, *BRIEF, *flags).run
    assert not (run / "replay.npy").exists()
    assert tensors(run / "actor.safetensors")["action_scale"].tolist() == [1, 1]
    assert len(json.loads((run / "evaluation.json").read_text())["returns"]) == 1
    before = files(run)
    assert "replay" in mistake(Command(tmp_path, trainer, "--resume", run, "--total-timesteps", "100"))
    assert files(run) == before


@pytest.mark.parametrize("flags", ["--gate softmax", "--top-k 2", "--gate softmax --top-k 3 --n-experts 4"])
def test_other_gates_train_and_evaluate(flags, tmp_path):
    run = train(tmp_path, "smose_sac.py", *REACHER, "--total-timesteps", "240", *flags.split()).run
    about, args = metadata(run / "actor.safetensors"), json.loads((run / "config.json").read_text())["args"]
    assert (about["gate"], about["top_k"]) == (args["gate"], str(args["top_k"]))
    assert f"--gate {about['gate']}" in flags or about["gate"] == "one-hot"
    assert f"--top-k {about['top_k']}" in flags or about["top_k"] == "1"
    returns, lengths, _ = episodes("Reacher-v4", run / "actor.safetensors", 3)
    final = json.loads((run / "evaluation.json").read_text())
    assert final["returns"] == pytest.approx(returns, rel=1e-4)
    assert len(final["expert_usage"]) == args["n_experts"] and sum(final["expert_usage"]) == pytest.approx(1)


def test_piped_progress_is_a_line_every_10_000_steps(trainer, tmp_path):
    flags = "--env-id Pendulum-v1 --total-timesteps 2.01e4 --learning-starts 20_000 --batch-size 16".split()
    flags += "--buffer-size 1e3 --eval-every 1e6 --eval-episodes 1 --final-eval-episodes 2 --no-compile".split()
    done = train(tmp_path, trainer, *flags)
    first, *lines, last = done.stdout.splitlines()
    assert "Pendulum-v1" in first and str(done.run.name) in first + last
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["10,000/20,100", "20,000/20,100"]
    assert len(lines) == 2 and all("steps/s" in line and "return -" in line for line in lines)
    assert json.loads((done.run / "config.json").read_text())["args"]["learning_starts"] == 20_000
    assert [row["step"] for row in evaluations(done.run)] == [20_100]


def test_terminal_shows_a_bar(trainer, tmp_path):
    flags = "--env-id Pendulum-v1 --total-timesteps 2_010 --learning-starts 2e3 --eval-episodes 1 --buffer-size 9e3"
    size = ["--size", "S"] if trainer == "sac_baseline.py" else []
    command = [sys.executable, ROOT / trainer, *size, *flags.split(), "--final-eval-episodes", "1"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 120, 0, 0))
    with subprocess.Popen(command, cwd=tmp_path, stdout=theirs, stderr=theirs) as p:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # the other end has closed
            pass
        assert p.wait(120) == 0, shown
    os.close(ours)
    text = shown.decode()
    assert re.search(r"(it|steps)/s", text) and re.search(r"return.-\d+", text) and "/2010" in text
    assert trainer != "smose_sac.py" or re.search(r"experts.\d/8", text)
    assert "step 2,000" not in text


@pytest.mark.skipif(not ctypes.util.find_library("EGL"), reason="needs libegl1")
def test_video_of_an_evaluation(trainer, tmp_path):
    done = from_nothing(tmp_path, trainer, MUJOCO_GL="egl")
    assert (done.returncode, done.stderr) == (0, "")
    (video,) = tmp_path.glob("runs/*/videos/*.mp4")
    frames = imageio.imread(video, plugin="pyav") if importlib.util.find_spec("av") else imageio.imread(video)
    assert len(frames) in (50, 51) and frames.std() > 5


def test_without_gl_there_is_a_line_and_training_goes_on(trainer, tmp_path):
    done = from_nothing(tmp_path, trainer, MUJOCO_GL="glfw", DISPLAY="", WAYLAND_DISPLAY="")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^no video: .+; .+$", done.stderr, re.M) and "Traceback" not in done.stderr
    assert list(tmp_path.glob("runs/*/evaluation.json")) and not list(tmp_path.glob("runs/*/videos/*.mp4"))


def from_nothing(folder: Path, trainer: str, **environment: str) -> subprocess.CompletedProcess:
    """A brief run with --capture-video; MuJoCo looks at the environment when it is imported."""
    size = ["--size", "S"] if trainer == "sac_baseline.py" else []
    command = [sys.executable, ROOT / trainer, *size, *BRIEF, "--env-id", "Reacher-v4", "--capture-video"]
    environment = os.environ | environment
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_track_without_wandb(trainer, tmp_path):
    assert "pip install wandb" in refused(tmp_path, trainer, *BRIEF, "--env-id", "Pendulum-v1", "--track")


WRONG_NUMBERS = """
--total-timesteps 0; --total-timesteps -5; --total-timesteps 1e30; --total-timesteps nan; --total-timesteps many
--total-timesteps 1000.5; --total-timesteps 1.0005e3
--seed -1; --seed 1e12; --learning-starts -1; --learning-starts 2e6
--batch-size 0; --batch-size -256; --batch-size 1e12; --buffer-size 0; --buffer-size -1; --buffer-size 1e15
--gamma 1.5; --gamma -0.1; --gamma nan; --gamma inf; --tau 2; --tau -1; --tau nan
--policy-lr -1e-3; --policy-lr nan; --policy-lr 1e9; --q-lr -1; --q-lr inf; --alpha-lr -1; --alpha-lr nan
--policy-frequency 0; --policy-frequency -2; --target-network-frequency 0; --alpha -1; --alpha nan; --alpha inf
--eval-every 0; --eval-every -1; --eval-episodes 0; --eval-episodes -3; --final-eval-episodes 0
--checkpoint-every 0; --checkpoint-every -7; --num-threads 0; --num-threads -1; --num-threads 1e9
--n-experts 0; --n-experts -8; --n-experts 1e9
""".replace("\n", ";").split(";")
WRONG_NUMBERS = [flag.strip() for flag in WRONG_NUMBERS if flag.strip()]
SMOSE_ONLY = ["--top-k 0", "--top-k 9", "--top-k -1", "--gate hard", "--balance-coef -1", "--balance-coef nan"]
SAC_ONLY = ["--size XL", "--hidden-sizes 0", "--hidden-sizes -5", "--hidden-sizes 64 0", "--hidden-sizes 1000000000"]


@pytest.mark.parametrize("flags", WRONG_NUMBERS)
def test_wrong_numbers(trainer, tmp_path, flags):
    name, value = flags.split()
    line = refused(tmp_path, trainer, "--env-id", "Pendulum-v1", name, value)
    assert name in line


@pytest.mark.parametrize("flags", SMOSE_ONLY)
def test_wrong_mixtures(tmp_path, flags):
    assert flags.split()[0] in refused(tmp_path, "smose_sac.py", "--env-id", "Pendulum-v1", *flags.split())


@pytest.mark.skipif("sac_baseline.py" not in TRAINERS, reason="sac_baseline.py isn't here")
@pytest.mark.parametrize("flags", SAC_ONLY)
def test_wrong_networks(tmp_path, flags):
    assert flags.split()[0] in refused(tmp_path, "sac_baseline.py", "--env-id", "Pendulum-v1", *flags.split())


@pytest.mark.parametrize("flags", ["--no-such-flag", "--learning-start 5", "--seed", "Hopper-v4"])
def test_wrong_flags(trainer, tmp_path, flags):
    line = refused(tmp_path, trainer, "--env-id", "Pendulum-v1", *flags.split())
    assert flags.split()[0] in line


@pytest.mark.parametrize("flag", ["--total-timesteps 6e1", "--total-timesteps=6e1", "--total-timesteps 6_0", "6E1"])
def test_whole_numbers_may_be_written_in_many_ways(trainer, tmp_path, flag):
    words = (flag if flag.startswith("--") else f"--total-timesteps {flag}").split()
    run = train(tmp_path, trainer, *BRIEF, "--env-id", "Pendulum-v1", *words, "--exp-name", "1e3").run
    assert run.name.startswith("Pendulum-v1__1e3__0__")  # a name stays a name
    assert json.loads((run / "config.json").read_text())["args"]["total_timesteps"] == 60


def test_experiment_names_stay_below_runs(trainer, tmp_path):
    (tmp_path / "here").mkdir()
    done = Command(tmp_path / "here", trainer, *BRIEF, "--env-id", "Pendulum-v1", "--exp-name", "../../../x").wait()
    assert done.code == 0 or mistake(done)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert not list((tmp_path / "here").glob("runs/*/*/*"))


@pytest.mark.parametrize(
    "env_id, says",
    [
        ("Hoper-v4", "Hopper-v4"),
        ("reacher-v4", "Reacher-v4"),
        ("Hopper-v99", "v99"),
        ("CartPole-v1", "Discrete(2)"),
        ("", "env"),
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
def test_environments_that_cannot_be_used(trainer, tmp_path, odd, env_id, says):
    assert says in refused(tmp_path, trainer, "--env-id", env_id, **odd)


@pytest.mark.parametrize("name, says", [("OddReward", "nan"), ("OddObs", "inf"), ("OddHugeObs", "inf")])
def test_non_finite_numbers_stop_the_run_and_keep_the_checkpoint(trainer, tmp_path, odd, name, says):
    flags = [*BRIEF, "--total-timesteps", "400", "--checkpoint-every", "100", "--env-id", f"odd_env:{name}-v0"]
    command = Command(tmp_path, trainer, *flags, **odd)
    line = mistake(command)
    assert says in line and re.search(r"\b(249|250)\b", line) and name in line
    assert metadata(command.run / "checkpoint.safetensors")["global_step"] == "200"
    again = Command(tmp_path, trainer, "--resume", command.run, **odd)
    assert says not in again.wait().stdout and again.code == 0  # it counts from its own start


@pytest.mark.parametrize("learning_starts", [20, 300])
def test_non_finite_start_of_an_episode(trainer, tmp_path, odd, learning_starts):
    flags = [*BRIEF, "--total-timesteps", "400", "--checkpoint-every", "100", "--env-id", "odd_env:OddReset-v0"]
    command = Command(tmp_path, trainer, *flags, "--learning-starts", learning_starts, **odd)
    line = mistake(command)
    assert "nan" in line and re.search(r"\b(250|251)\b", line)
    assert metadata(command.run / "checkpoint.safetensors")["global_step"] == "200"
    assert np.isfinite(np.load(command.run / "replay.npy", mmap_mode="r")).all()


def test_non_finite_losses(trainer, tmp_path, odd):
    flags = [*BRIEF, "--total-timesteps", "400", "--checkpoint-every", "100", "--env-id", "odd_env:OddHugeReward-v0"]
    command = Command(tmp_path, trainer, *flags, **odd)
    line = mistake(command)
    assert "loss" in line and re.search(r"\b2[5-9]\d\b", line)
    assert metadata(command.run / "checkpoint.safetensors")["global_step"] == "200"


@pytest.fixture
def finished(reacher, tmp_path) -> Path:
    """a copy of the uninterrupted run, to be damaged"""
    return shutil.copytree(reacher, tmp_path / "runs" / reacher.name)


def not_resumed(trainer: str, run: Path, *flags: str, **environment) -> str:
    """A --resume that has to fail, and that leaves the folder as it is."""
    before = files(run)
    line = mistake(Command(run.parent.parent, trainer, "--resume", run, *flags, **environment))
    assert files(run) == before
    return line


@pytest.mark.parametrize("what", ["missing", "empty", "file", ""])
def test_resume_of_what_is_no_run(trainer, tmp_path, what):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    assert "run" in mistake(Command(tmp_path, trainer, "--resume", what))
    assert sorted(tmp_path.iterdir()) == before and not list((tmp_path / "empty").iterdir())


def damage_checkpoint(run: Path) -> None:
    content = (run / "checkpoint.safetensors").read_bytes()
    (run / "checkpoint.safetensors").write_bytes(content[: len(content) // 2])


def forget_state(run: Path) -> None:
    shutil.copy(run / "actor.safetensors", run / "checkpoint.safetensors")


def change_config(run: Path, change) -> None:
    config = json.loads((run / "config.json").read_text())
    change(config)
    (run / "config.json").write_text(json.dumps(config))


DAMAGES = {
    "half a checkpoint": (damage_checkpoint, "checkpoint"),
    "empty checkpoint": (lambda run: (run / "checkpoint.safetensors").write_bytes(b""), "checkpoint"),
    "checkpoint of noise": (lambda run: (run / "checkpoint.safetensors").write_bytes(b"\xff" * 5000), "checkpoint"),
    "another safetensors file": (forget_state, "checkpoint"),
    "config of noise": (lambda run: (run / "config.json").write_bytes(b"\xff\x00 {"), "config.json"),
    "empty config": (lambda run: (run / "config.json").write_text(""), "config.json"),
    "config is a list": (lambda run: (run / "config.json").write_text("[1, 2]"), "config.json"),
    "config without args": (lambda run: change_config(run, lambda c: c.pop("args")), "config.json"),
    "args are a list": (lambda run: change_config(run, lambda c: c.update(args=[])), "config.json"),
    "an arg is text": (lambda run: change_config(run, lambda c: c["args"].update(gamma="high")), "gamma"),
    "an arg is absurd": (lambda run: change_config(run, lambda c: c["args"].update(gamma=7.0)), "gamma"),
    "other architecture": (lambda run: change_config(run, lambda c: c["args"].update(n_experts=30)), "checkpoint"),
    "no replay": (lambda run: (run / "replay.npy").unlink(), "replay.npy"),
    "half a replay": (lambda run: os.truncate(run / "replay.npy", 20_000), "replay.npy"),
    "empty replay": (lambda run: os.truncate(run / "replay.npy", 0), "replay.npy"),
    "replay of noise": (lambda run: (run / "replay.npy").write_bytes(b"noise" * 999), "replay.npy"),
    "replay of another shape": (lambda run: np.save(run / "replay.npy", np.zeros((9, 9), np.float32)), "replay.npy"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_resume_of_a_damaged_run(trainer, finished, damage):
    harm, says = DAMAGES[damage]
    harm(finished)
    assert says in not_resumed(trainer, finished, "--total-timesteps", "800")


@pytest.mark.parametrize(
    "flags", ["--seed 5", "--env-id Hopper-v4", "--n-experts 4", "--gamma 0.9", "--buffer-size 99"]
)
def test_resume_with_other_settings(trainer, finished, flags):
    line = not_resumed(trainer, finished, *flags.split())
    name, value = flags.split()
    assert name.strip("-").replace("-", "_") in line.replace("-", "_") and value in line


def test_resume_to_a_smaller_total(trainer, finished):
    assert "700" in not_resumed(trainer, finished, "--total-timesteps", "500")


@pytest.mark.skipif(len(TRAINERS) < 2, reason="one trainer only")
def test_resume_by_the_other_trainer(trainer, finished):
    (other,) = set(TRAINERS) - {trainer}
    assert json.loads((finished / "config.json").read_text())["format"] in not_resumed(other, finished)


def test_resume_of_a_run_that_is_being_trained(trainer, tmp_path):
    command = Command(tmp_path, trainer, *REACHER, "--total-timesteps", "1e6")
    command.until(row_written(tmp_path, 20))
    line = mistake(Command(tmp_path, trainer, "--resume", command.run))
    assert "another process" in line
    assert command.process.is_alive()
    command.signal(signal.SIGKILL)


def test_runs_is_a_file(trainer, tmp_path):
    (tmp_path / "runs").write_text("mine")
    assert "runs" in mistake(Command(tmp_path, trainer, *BRIEF, "--env-id", "Pendulum-v1"))
    assert (tmp_path / "runs").read_text() == "mine"


def test_no_write_permission(trainer, tmp_path):
    root = ["setpriv", "--bounding-set", "-dac_override"] if os.getuid() == 0 else []  # root may write anywhere
    if root and subprocess.run([*root, "true"], capture_output=True).returncode:
        pytest.skip("root can't give up its rights here")
    tmp_path.chmod(0o555)
    command = [*root, sys.executable, ROOT / trainer, *BRIEF, "--env-id", "Pendulum-v1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    tmp_path.chmod(0o755)
    assert done.returncode == 2 and re.fullmatch(
        r"error: .*ermission.*runs.*\n|error: .*runs.*ermission.*\n", done.stderr
    )
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
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return disk / "filler"


def test_disk_too_small_for_the_replay(trainer, small_disk):
    line = refused(small_disk, trainer, "--env-id", "Pendulum-v1", "--buffer-size", "1e6")
    assert "No space left" in line or "full" in line


def test_disk_full_at_the_start(trainer, small_disk):
    fill(small_disk)
    line = refused(small_disk, trainer, *BRIEF, "--env-id", "Pendulum-v1")
    assert "No space left" in line or "full" in line


def test_disk_full_on_the_way(trainer, small_disk, reacher):
    command = Command(small_disk, trainer, *REACHER)
    command.until(checkpoint_at(small_disk, 270))
    filler = fill(small_disk)
    line = mistake(command)
    assert "No space left" in line or "full" in line
    assert int(metadata(command.run / "checkpoint.safetensors")["global_step"]) % 90 == 0
    assert not list(command.run.glob("*.part"))
    filler.unlink()
    train(small_disk, trainer, "--resume", command.run)
    assert_same_run(command.run, reacher)


def test_it_learns(trainer, tmp_path):
    flags = (
        "--env-id Pendulum-v1 --seed 2 --total-timesteps 4000 --learning-starts 300 --batch-size 64 --tau 0.02".split()
    )
    flags += "--policy-lr 3e-3 --q-lr 3e-3 --alpha-lr 1e-2 --eval-every 1000 --final-eval-episodes 10".split()
    run, env, returns = train(tmp_path, trainer, *flags).run, gym.make("Pendulum-v1"), []
    for i in range(10):  # a random policy on the same episodes
        env.reset(seed=100_000 + i)
        env.action_space.seed(i)
        returns.append(sum(env.step(env.action_space.sample())[1] for _ in range(200)))
    assert np.mean(returns) < -1000
    best = max(row["return_mean"] for row in evaluations(run))
    assert best > np.mean(returns) / 2, f"{best} after 4,000 steps; random actions give {np.mean(returns)}"
    returns, _, _ = episodes("Pendulum-v1", run / "actor_best.safetensors", 10)
    assert np.mean(returns) == pytest.approx(best, rel=1e-2)
