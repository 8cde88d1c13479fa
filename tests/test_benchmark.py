"""scripts/benchmark.py: a tiny run of the real thing, on an environment that counts its steps by itself."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import benchmark
import numpy as np
import pytest
import torch

SCRIPT = Path(benchmark.__file__).resolve()
ROUNDS, STEPS, LEARNING_STARTS, WARM_UP = 2, 8, 20, 20 + benchmark.SETTLE
COUNTED = """
import itertools, os
import gymnasium as gym
from gymnasium.envs.classic_control.pendulum import PendulumEnv

class Counted(PendulumEnv):
    instances = itertools.count()

    def __init__(self, render_mode=None):
        super().__init__(render_mode=render_mode)
        path = f"counts/{'first' if next(Counted.instances) == 0 else 'later'}-{os.getpid()}"
        self.file = open(os.path.join(os.path.dirname(__file__), path), "ab", buffering=0)

    def step(self, action):
        self.file.write(b".")
        return super().step(action)

class Broken(PendulumEnv):
    def step(self, action):
        raise RuntimeError("the spring has snapped")

gym.register("Counted-v0", entry_point=Counted, max_episode_steps=200)
gym.register("Broken-v0", entry_point=Broken)
"""


def run_cli(folder: Path, *flags: str) -> subprocess.CompletedProcess:
    """As a user does, in a folder with an environment of their own."""
    (folder / "counts").mkdir(exist_ok=True)
    (folder / "scratch").mkdir(exist_ok=True)
    (folder / "counted.py").write_text(COUNTED)
    command = [sys.executable, str(SCRIPT), *flags]
    env = os.environ | {"TMPDIR": str(folder / "scratch")}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, env=env)


def counts(folder: Path, which: str) -> list[int]:
    """Steps that the environments counted: the first that a process made, or those after it."""
    return sorted(path.stat().st_size for path in folder.glob(f"counts/{which}-*"))


def assert_one_line_error(done: subprocess.CompletedProcess, *words: str) -> None:
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[Path, str, dict]:
    """folder, output and numbers of a whole benchmark: all competitors and a sweep"""
    folder = tmp_path_factory.mktemp("benchmark")
    flags = f"--env-id counted:Counted-v0 --rounds {ROUNDS} --steps-per-round {STEPS} --output numbers.json"
    flags += f" --learning-starts {LEARNING_STARTS} --buffer-size 1000 --experts 8 16 --batch-sizes 64"
    flags += " --device cpu --no-compile"  # compiling takes minutes, and is the trainers' own matter
    done = run_cli(folder, *flags.split())
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return folder, done.stdout, json.loads((folder / "numbers.json").read_text())


def test_every_competitor_has_its_row(tiny):
    _, printed, numbers = tiny
    rows = {row["name"]: row for row in numbers["devices"]["cpu"]["rows"]}
    assert list(rows) == ["smose", "sac-l", "smose-bf16", "sac-l-bf16", "sb3", "floor", "floor-l"]
    for name, row in rows.items():
        (line,) = re.findall(rf"^\| {re.escape(benchmark.LABELS[name])} +\|.*", printed, re.MULTILINE)
        assert f"{row['steps_per_second']['median']:.1f} (" in line and f"{row['peak_mb']:.0f} MB" in line
        assert (row["decision_us"] is None) == name.startswith("floor") == (row["share_of_floor"] is None)
        assert row["peak_mb"] > 50 and row["startup_s"] > 0.1
    assert rows["sb3"]["ratio_to_sb3"] == {"median": 1, "q1": 1, "q3": 1}
    assert 1 < rows["smose"]["decision_us"]["median"] < rows["sb3"]["decision_us"]["median"]
    assert numbers["machine"]["cpu"] in printed and f"torch {numbers['machine']['versions']['torch']}" in printed


def test_sweep_has_every_size(tiny):
    _, printed, numbers = tiny
    sweep = numbers["devices"]["cpu"]["sweep"]
    assert [row["name"] for row in sweep] == ["M = 8, batch 64", "M = 16, batch 64"]
    assert sweep[0]["cost"]["median"] == 1 and sweep[1]["cost"]["median"] > 0
    assert all(re.search(rf"^\| {row['name']} ", printed, re.MULTILINE) for row in sweep)


def test_competitors_take_turns_and_never_overlap(tiny):
    _, _, numbers = tiny
    rows = numbers["devices"]["cpu"]["rows"]
    turns = sorted((r["start"], r["end"], row["name"]) for row in rows for r in row["rounds"])
    assert [name for _, _, name in turns] == [row["name"] for row in rows] * ROUNDS
    assert all(start < end for start, end, _ in turns)
    assert all(end < start for (_, end, _), (start, _, _) in zip(turns[:-1], turns[1:], strict=True))


def test_clock_agrees_with_the_environment_that_counts(tiny):
    folder, _, numbers = tiny
    for row in numbers["devices"]["cpu"]["rows"]:
        warm_up = benchmark.SETTLE if row["name"].startswith("floor") else WARM_UP
        assert [r["clocked"] for r in row["rounds"]] == [warm_up + STEPS * (i + 1) for i in range(ROUNDS)]
        assert all(r["steps"] == STEPS for r in row["rounds"])
    # the controller's own is never stepped; the sweep's rounds are a quarter as long; then one step more is taken
    trained = [WARM_UP + ROUNDS * steps + 1 for steps in (*[STEPS // 4] * 2, *[STEPS] * 5)]
    assert counts(folder, "first") == [0, *trained]
    # stopped before the step that the last decision was for
    assert counts(folder, "later") == [benchmark.DECISIONS * benchmark.DECISION_ROUNDS - 1] * 7


def test_numbers_follow_from_the_rounds(tiny):
    _, _, numbers = tiny
    rows = {row["name"]: row for row in numbers["devices"]["cpu"]["rows"]}
    seconds = {name: np.array([r["end"] - r["start"] for r in row["rounds"]]) for name, row in rows.items()}
    rate = np.median(STEPS / seconds["smose"])
    assert rows["smose"]["steps_per_second"]["median"] == pytest.approx(rate)
    assert rows["smose"]["ratio_to_sb3"]["median"] == pytest.approx(np.median(seconds["sb3"] / seconds["smose"]))
    share = np.median(seconds["floor-l"] / seconds["sac-l"])
    assert rows["sac-l"]["share_of_floor_with_actor"]["median"] == pytest.approx(share)
    assert rows["sac-l"]["share_of_floor"]["median"] == pytest.approx(np.median(seconds["floor"] / seconds["sac-l"]))
    assert 0 < rows["smose"]["share_of_floor"]["median"] == rows["smose"]["share_of_floor_with_actor"]["median"]


def test_nothing_is_left_behind(tiny):
    folder, _, _ = tiny
    assert list((folder / "scratch").iterdir()) == []
    assert {path.name for path in folder.iterdir()} <= {
        "counted.py",
        "counts",
        "scratch",
        "numbers.json",
        "__pycache__",
    }


def test_full_memory_is_measured_with_every_row_in_use(tmp_path):
    args = benchmark.Args(buffer_size=1500, memory_env="counted:Counted-v0", only=("smose",))
    call = f"import benchmark; print(benchmark.measure_full_memory(benchmark.{args!r}, 'cpu'))"
    (tmp_path / "counts").mkdir()
    (tmp_path / "counted.py").write_text(COUNTED)
    env = os.environ | {"PYTHONPATH": str(SCRIPT.parent)}
    done = subprocess.run([sys.executable, "-c", call], cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert float(re.fullmatch(r"\[\{'name': 'smose', 'peak_mb': ([\d.]+)\}\]\n", done.stdout)[1]) > 50
    (steps,) = counts(tmp_path, "first")
    assert steps == 1500 + benchmark.SETTLE + 200


def test_peak_memory_sees_what_was_touched_and_freed():
    before = benchmark.peak_memory_mb()
    size = int(before) + 100  # beyond whatever this process had at its peak
    np.ones(size << 17)
    assert before < size <= benchmark.peak_memory_mb()


@pytest.mark.parametrize("layout", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_floor_products_are_the_gradients_of_an_affine_network(layout, one_by_one):
    network = benchmark.Network((5, 7, 6, 1), 2, 4, "cpu", layout)
    x, (w1, w2, w3) = network.h[0].clone().requires_grad_(), [w.clone().requires_grad_() for w in network.w]
    q = w3 @ (w2 @ (w1 @ x))
    expected = torch.autograd.grad(q, (w1, w2, w3, x), network.g[3])
    network.g[0].zero_()
    for products in ("forward", "input_gradients", "weight_gradients"):
        benchmark.run_calls(benchmark.as_calls(getattr(network, products)(), one_by_one))
    benchmark.run_calls(benchmark.as_calls(network.gradient_of_last_inputs(2), one_by_one))
    torch.testing.assert_close(network.h[3], q)
    for gradient, autograd in zip(network.d, expected[:3], strict=True):
        torch.testing.assert_close(gradient, autograd)
    torch.testing.assert_close(network.g[0][:, -2:], expected[3][:, -2:])
    assert not network.g[0][:, :-2].any()


def flops(neural_actor: bool) -> int:
    products = benchmark.floor_products(17, 6, 256, neural_actor, "cpu", (False, False))
    return sum(2 * left.numel() * right.shape[-1] for left, right, _ in products)


def test_floor_counts_what_a_step_cannot_avoid():
    """HalfCheetah: 17 observations, 6 actions, batch 256; a forward pass of both critics is 4 * 256 * 71680 flops."""
    layer1, layer2, layer3 = 23 * 256, 256 * 256, 256
    forward, through, actions = layer1 + layer2 + layer3, layer2 + layer3, 6 * 256
    critics = 2 * 2 * 256 * (4 * forward + 2 * through + actions)  # three forward passes and the weight gradients
    assert flops(neural_actor=False) == critics
    assert critics == pytest.approx(432e6, rel=0.01)
    actor = 17 * 256 + layer2 + 12 * 256
    more = 2 * 256 * (3 * actor + layer2 + 12 * 256)
    assert flops(neural_actor=True) == critics + more


def test_a_competitor_that_breaks_is_named_with_its_reason(tmp_path):
    flags = "--env-id counted:Broken-v0 --only smose --no-sweep --device cpu --output out.json"
    done = run_cli(tmp_path, *flags.split())
    assert_one_line_error(done, "smose_sac.py ended before it was measured", "the spring has snapped")
    assert not (tmp_path / "out.json").exists() and list((tmp_path / "scratch").iterdir()) == []


def test_unknown_flag_is_one_line(tmp_path):
    assert_one_line_error(run_cli(tmp_path, "--peers", "rllib"), "peers", "--help")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_one_line(tmp_path):
    assert_one_line_error(run_cli(tmp_path, "--device", "cuda"), "no GPU", "--device")


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"env_id": "HalfCheeta-v4"}, "HalfCheeta"),
        ({"env_id": "CartPole-v1"}, "Discrete"),
        ({"memory_env": "Nowhere-v4"}, "Nowhere"),
        ({"steps_per_round": 7}, "7 is odd"),
        ({"steps_per_round": 0}, "--steps-per-round 0"),
        ({"rounds": 0}, "--rounds 0"),
        ({"experts": ()}, "--no-sweep"),
        ({"output": "no/such/folder/numbers.json"}, "no/such/folder"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(mistake, words):
    with pytest.raises(benchmark.UserError, match=re.escape(words)) as caught:
        benchmark.check_args(benchmark.Args(**mistake))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(benchmark.importlib.util.find_spec("sbx") is not None, reason="sbx-rl is installed")
def test_a_peer_that_is_not_installed_is_named():
    with pytest.raises(benchmark.UserError, match="sbx-rl is not installed; pip install sbx-rl"):
        benchmark.check_args(benchmark.Args(peers=("sb3", "sbx")))


def test_a_core_that_is_not_there_is_refused():
    with pytest.raises(benchmark.UserError, match="--core 99999"):
        benchmark.choose_core(99999)


@pytest.mark.parametrize("compiled, flag", [(True, "--compile"), (False, "--no-compile")])
def test_trainers_are_measured_with_and_without_a_compiler(compiled, flag):
    schedule = benchmark.Schedule("HalfCheetah-v4", 100, 10, 2)
    for name in benchmark.TRAINERS:
        assert flag in benchmark.trainer_command(name, schedule, benchmark.Args(compile=compiled), "cpu")
