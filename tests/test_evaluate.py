"""scripts/evaluate.py on tiny real runs: the run's own numbers come back, and every change does what it says."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import evaluate
import gymnasium as gym
import numpy as np
import pytest
import saved_actor
from conftest import assert_one_line_error
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent


class Recorder(gym.Env):
    """Ten steps; observes (step, -2 step), and keeps what it was given."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Box(0.0, 4.0, (1,))
    received: list = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        Recorder.received.append([])
        return np.zeros(2), {}

    def step(self, action):
        Recorder.received[-1].append(float(action[0]))
        self.step_number += 1
        return np.array([1.0, -2.0]) * self.step_number, float(action[0]), False, self.step_number == 10, {}


gym.register("Recorder-v0", entry_point=Recorder)


def copy_with(run: Path, folder: Path, metadata: dict[str, str] | None = None, **weights: np.ndarray) -> Path:
    """A copy of a real run's actor with some weights or metadata replaced."""
    actor = evaluate.load_actor(run)
    folder.mkdir(parents=True)
    save_file(actor.weights | weights, folder / "actor.safetensors", actor.metadata | (metadata or {}))
    return folder


def counting_actor(folder: Path, n_s: int = 2, **metadata: str) -> Path:
    """Two experts for the Recorder: expert 1 acts before step 4.5, with actions that grow with the step."""
    folder.mkdir(parents=True)
    weights = {
        "router.weight": np.zeros((2, n_s), np.float32),
        "router.bias": np.array([4.5, -4.5], np.float32),
        "experts.mean.weight": np.zeros((2, 1, n_s), np.float32),
        "experts.mean.bias": np.zeros((2, 1), np.float32),
        "experts.log_std.weight": np.zeros((2, 1, n_s), np.float32),
        "experts.log_std.bias": np.zeros((2, 1), np.float32),
        "action_scale": np.array([2], np.float32),
        "action_bias": np.array([2], np.float32),
    }
    weights["router.weight"][:, 0] = -1, 1
    weights["experts.mean.weight"][[0, 1], 0, [0, 1]] = 0.1
    settings = {"format": "smose-actor", "env_id": "Recorder-v0", "seed": "0", "steps": "0", "top_k": "1"}
    save_file(weights, folder / "actor.safetensors", settings | {"gate": "one-hot"} | metadata)
    return folder


@pytest.mark.parametrize("fixture", ["smose_run", "sac_run"])
def test_a_runs_own_evaluation_comes_back(run_main, fixture, request, tmp_path):
    run = request.getfixturevalue(fixture)
    own = json.loads((run / "evaluation.json").read_text())
    done = run_main(evaluate, run, run / "actor.safetensors", "--episodes", "3", "--output", tmp_path / "rows.json")
    assert done.returncode == 0, done.stderr
    by_folder, by_file = json.loads((tmp_path / "rows.json").read_text())
    assert by_folder["returns"] == own["returns"]  # to the last bit: one arithmetic
    assert by_folder["lengths"] == own["lengths"] and by_folder["first_eval_seed"] == own["first_eval_seed"]
    assert (by_folder["mean"], by_folder["std"]) == (own["mean"], own["std"])
    assert (by_folder["n_read"], by_folder["ended_early"]) == (own["n_read"], own["ended_early"])
    assert by_file["returns"] == by_folder["returns"]
    assert f"{own['mean']:.2f}" in done.stdout and "nominal" in done.stdout
    if fixture == "smose_run":
        np.testing.assert_allclose(by_folder["expert_usage"], own["expert_usage"], atol=1e-12)
        assert by_folder["switches_per_100_steps"] == pytest.approx(own["switches_per_100_steps"])
    else:
        assert "expert_usage" not in by_folder and by_folder["policy"] == "SAC-S"


def test_gate_by_hand():
    logits = np.log(np.array([1, 4, 2, 1], np.float32))
    for kind, total in (("one-hot", 6), ("softmax", 8)):
        chosen, weights = saved_actor.choose(logits, 2, kind)
        assert chosen.tolist() == [1, 2]
        np.testing.assert_allclose(weights, [4 / total, 2 / total], rtol=1e-6)
    assert [part.tolist() for part in saved_actor.choose(logits, 1, "one-hot")] == [[1], [1.0]]
    assert saved_actor.choose(np.zeros(4, np.float32), 2, "softmax")[0].tolist() == [0, 1]


def test_top_k_and_softmax_mix_experts_as_written(smose_run, tmp_path):
    obs = np.linspace(-1, 1, 11, dtype=np.float32)
    for k, gate in ((2, "one-hot"), (1, "softmax"), (3, "softmax")):
        folder = copy_with(smose_run, tmp_path / f"{gate}{k}", {"top_k": str(k), "gate": gate})
        action, expert = evaluate.make_policy(evaluate.load_actor(folder))(obs)
        w = {name: tensor.astype(np.float64) for name, tensor in load_file(folder / "actor.safetensors").items()}
        z = w["router.weight"] @ obs + w["router.bias"]
        p = np.exp(z) / np.exp(z).sum()
        top = sorted(range(8), key=lambda m: -z[m])[:k]
        total = sum(p[m] for m in top) if gate == "one-hot" else 1
        mean = sum(p[m] / total * (w["experts.mean.weight"][m] @ obs + w["experts.mean.bias"][m]) for m in top)
        np.testing.assert_allclose(action, w["action_scale"] * np.tanh(mean) + w["action_bias"], atol=1e-6)
        assert expert == top[0] and action.dtype == np.float32


def test_changes_of_nothing_change_nothing_and_real_ones_do(run_main, smose_run, tmp_path):
    flags = "--noise 0 0.1 --delay 0 2 --mass 1 1.5 --friction 1 2 --episodes 2".split()
    done = run_main(evaluate, smose_run, *flags, "--output", tmp_path / "rows.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["condition"] for row in rows] == ["nominal"] + [
        k for k in ("noise", "delay", "mass", "friction") for _ in "ab"
    ]
    nominal = rows[0]["returns"]
    for row in (rows[1], rows[3], rows[5], rows[7]):
        assert row["returns"] == nominal and row["difference"] == 0 and row["difference_se"] == 0
    for row in (rows[2], rows[4], rows[6]):
        assert row["returns"] != nominal
        assert row["difference"] == pytest.approx(np.mean(row["returns"]) - np.mean(nominal))
    assert done.stdout.count("\n") == 11 and "mass 1.5" in done.stdout


def test_delayed_actions_arrive_late_and_experts_are_counted(tmp_path):
    actor = evaluate.load_actor(counting_actor(tmp_path / "actor"))
    env = gym.make("Recorder-v0")
    plain = evaluate.rollouts(env, actor, evaluate.make_policy(actor), 1, evaluate.Condition(), np.zeros(0))
    undelayed = Recorder.received[-1]
    evaluate.rollouts(env, actor, evaluate.make_policy(actor), 1, evaluate.Condition("delay", 3), np.zeros(0))
    assert Recorder.received[-1] == [2, 2, 2] + undelayed[:-3]
    steps = np.arange(10)
    expected = 2 + 2 * np.tanh(np.where(steps < 5, 0.1 * steps, -0.2 * steps))
    np.testing.assert_allclose(undelayed, expected, rtol=1e-6)
    assert plain.expert_usage == [0.5, 0.5] and plain.switches_per_100_steps == 10
    assert plain.returns[0] == pytest.approx(expected.sum(), rel=1e-6) and plain.lengths == [10]
    np.testing.assert_allclose(plain.obs_std, [np.std(steps), np.std(2 * steps)])


def test_noise_is_a_fraction_of_each_observations_std(tmp_path):
    actor = evaluate.load_actor(counting_actor(tmp_path / "actor"))
    actor.weights["router.bias"] = np.array([1e6, 0], np.float32)  # expert 1 alone, so that the action tells the noise
    env, std = gym.make("Recorder-v0"), np.array([2.0, 0.0])
    evaluate.rollouts(env, actor, evaluate.make_policy(actor), 200, evaluate.Condition("noise", 0.25), std)
    seen = np.arctanh(np.array(Recorder.received[-200:]) / 2 - 1) / 0.1
    noise = seen - np.arange(10)
    assert noise.std() == pytest.approx(0.5, rel=0.05) and abs(noise.mean()) < 0.05
    evaluate.rollouts(env, actor, evaluate.make_policy(actor), 1, evaluate.Condition("noise", 0.25), std)
    assert Recorder.received[-1] == Recorder.received[-201]  # the same episode has the same noise


def test_mass_and_friction_reach_the_model():
    plain, heavy, slippery = (gym.make("Hopper-v4").unwrapped for _ in range(3))
    evaluate.change_model(plain, evaluate.Condition())
    evaluate.change_model(heavy, evaluate.Condition("mass", 1.5))
    evaluate.change_model(slippery, evaluate.Condition("friction", 0.5))
    np.testing.assert_allclose(heavy.model.body_mass, 1.5 * plain.model.body_mass)
    np.testing.assert_allclose(heavy.model.body_inertia, 1.5 * plain.model.body_inertia)
    np.testing.assert_allclose(heavy.model.body_subtreemass, 1.5 * plain.model.body_subtreemass)
    np.testing.assert_allclose(slippery.model.geom_friction, 0.5 * plain.model.geom_friction)
    np.testing.assert_array_equal(slippery.model.body_mass, plain.model.body_mass)


def test_paired_difference_by_hand():
    assert evaluate.paired_difference([3, 5, 10], [1, 2, 3]) == (4, pytest.approx(np.sqrt(7 / 3)))
    assert evaluate.paired_difference([3], [1])[1] is None


def test_trees_route_as_distill_trees_measured_them(run_main, smose_run, tmp_path):
    run = shutil.copytree(smose_run, tmp_path / smose_run.name)
    assert_one_line_error(run_main(evaluate, run, "--router", "trees"), "trees.json", "distill_trees.py")
    command = [sys.executable, str(ROOT / "distill_trees.py"), str(run), "--episodes", "3"]
    distilled = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert distilled.returncode == 0, distilled.stderr
    measured = json.loads((run / "trees" / "fidelity.json").read_text())["closed_loop"]
    done = run_main(evaluate, run, "--router", "trees", "--episodes", "3", "--output", tmp_path / "rows.json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["returns"] == measured["trees"]["returns"]  # to the last bit
    assert row["router"] == "trees" and "SMoSE (trees)" in done.stdout


def tree_file(run: Path, **changes: object) -> Path:
    """trees/trees.json of a counting actor: expert 1 while obs[0] <= 2.5, then expert 2."""
    (run / "trees").mkdir(exist_ok=True)
    inner = {"feature": 0, "threshold": 2.5, "left": 1, "right": 2}
    leaves = [{"probability": 0.75}, {"probability": 0.25}]
    trees = {"actor": evaluate.load_actor(run).identity}
    trees["experts"] = [{"nodes": [inner, *leaves]}, {"nodes": [inner, *leaves[::-1]]}]
    (run / "trees" / "trees.json").write_text(json.dumps(trees | changes))
    return run / "trees" / "trees.json"


def test_trees_choose_the_expert(run_main, tmp_path):
    run = counting_actor(tmp_path / "run")
    tree_file(run)
    done = run_main(evaluate, run, "--router", "trees", "--episodes", "1", "--output", tmp_path / "rows.json")
    assert done.returncode == 0 and "SMoSE (trees)" in done.stdout
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["expert_usage"] == [0.3, 0.7] and row["actor"]["sha256"] == evaluate.load_actor(run).identity["sha256"]


def test_trees_of_another_actor_and_damaged_ones_are_refused(run_main, tmp_path):
    run = counting_actor(tmp_path / "run")
    file, again = tree_file(run), "distill_trees.py"
    whole = json.loads(file.read_text())
    inner, leaf = whole["experts"][0]["nodes"][:2]
    for nodes in (
        [],
        {},
        [1],
        [{}],
        [inner],  # leads out of the list
        [inner | {"left": 0}, leaf, leaf],  # a circle
        [inner | {"right": True}, leaf, leaf],
        [inner | {"feature": 2}, leaf, leaf],
        [inner | {"feature": -1}, leaf, leaf],
        [inner | {"threshold": None}, leaf, leaf],
        [inner | {"threshold": float("nan")}, leaf, leaf],
        [inner, leaf, {"probability": "0.5"}],
    ):
        tree_file(run, experts=[{"nodes": nodes}] * 2)
        assert_one_line_error(run_main(evaluate, run, "--router", "trees"), "trees.json", again)
    for changes in ({"experts": whole["experts"][:1]}, {"experts": 3}, {"experts": [1, 2]}, {"actor": None}):
        tree_file(run, **changes)
        assert_one_line_error(run_main(evaluate, run, "--router", "trees"), "trees.json", again)
    for content in (b"{}", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000):
        file.write_bytes(content)
        assert_one_line_error(run_main(evaluate, run, "--router", "trees"), "trees.json", again)
    file.write_text(json.dumps(whole))
    counting_actor(tmp_path / "other", steps="1")
    (tmp_path / "other" / "actor.safetensors").rename(run / "actor.safetensors")  # trained on since
    assert_one_line_error(run_main(evaluate, run, "--router", "trees"), "another actor", again)


class Faulty(Recorder):
    """Goes wrong in the way that its id names."""

    def __init__(self, fault: str):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        if self.fault == "raises-in-reset":
            raise RuntimeError("no such\nfile")
        obs, info = super().reset(seed=seed)
        return (np.zeros(3), info) if self.fault == "shape-in-reset" else (obs, info)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.step_number == 4:
            match self.fault:
                case "raises-in-step":
                    raise KeyError("joint")
                case "few-values":
                    return obs, reward
                case "nan-observation":
                    obs[1] = np.nan
                case "huge-observation":
                    obs[1] = 1e300
                case "nan-reward":
                    reward = np.nan
                case "no-reward":
                    reward = None
                case "shape-in-step":
                    obs = np.zeros(3)
                case "no-array":
                    obs = {"obs": obs}
                case "falls":
                    terminated = True
        if self.fault == "endless":
            truncated = False
        return obs, reward, terminated, truncated, info


FAULTS = {
    "raises-in-reset": ["failed in reset(seed=100000)", "RuntimeError", "no such"],
    "shape-in-reset": ["shape (3,), not (2,), before step 1 of"],
    "raises-in-step": ["failed in step 4 of the episode with seed 100000", "KeyError('joint')"],
    "few-values": ["failed in step 4", "not enough values"],
    "nan-observation": ["nan as obs[1] before step 5 of the episode with seed 100000"],
    "huge-observation": ["1e+300 as obs[1] before step 5"],
    "nan-reward": ["the reward nan in step 4"],
    "no-reward": ["failed in step 4", "NoneType"],
    "shape-in-step": ["shape (3,), not (2,), before step 5"],
    "no-array": ["no array before step 5"],
}
for fault in [*FAULTS, "falls", "endless"]:
    gym.register(f"Faulty-{fault}-v0", entry_point=Faulty, kwargs={"fault": fault})


@pytest.mark.parametrize("fault", FAULTS)
def test_an_environment_that_goes_wrong_is_said(run_main, tmp_path, fault):
    run = counting_actor(tmp_path / "run", env_id=f"Faulty-{fault}-v0")
    done = run_main(evaluate, run, "--episodes", "2", "--output", tmp_path / "rows.json")
    assert_one_line_error(done, *FAULTS[fault])
    assert done.stdout == "" and not (tmp_path / "rows.json").exists()


def test_an_environment_without_its_version_is_refused(run_main, tmp_path):
    """Gymnasium would take the newest without a word: another robot than the one that was trained on."""
    done = run_main(evaluate, counting_actor(tmp_path / "run", env_id="Faulty-falls"), "--episodes", "1")
    assert_one_line_error(done, "Faulty-falls names no version", "--env-id Faulty-falls-v0")
    done = run_main(evaluate, counting_actor(tmp_path / "other"), "--env-id", "Faulty-falls", "--episodes", "1")
    assert_one_line_error(done, "Faulty-falls names no version", "--env-id Faulty-falls-v0")


def test_the_share_that_ended_early_is_told(run_main, tmp_path):
    falling = counting_actor(tmp_path / "falling", env_id="Faulty-falls-v0")
    done = run_main(
        evaluate, falling, counting_actor(tmp_path / "run"), "--episodes", "2", "--json", tmp_path / "rows.json"
    )
    assert done.returncode == 0 and done.stderr == ""
    falls, stands = json.loads((tmp_path / "rows.json").read_text())
    assert (falls["ended_early"], falls["lengths"]) == (1.0, [4, 4]) and stands["ended_early"] == 0.0
    assert falls["n_read"] == 6  # two router weights and biases, one weight of each expert's mean
    header, first, second = done.stdout.splitlines()[:3]
    column = header.index("ended early")
    assert first[column:].startswith("100%") and second[column:].startswith("0%")


def test_an_endless_episode_is_cut_and_said_once(run_main, tmp_path):
    saved_actor.say_once.cache_clear()
    run = counting_actor(tmp_path / "run", env_id="Faulty-endless-v0")
    done = run_main(evaluate, run, "--episodes", "2", "--output", tmp_path / "rows.json")
    assert done.returncode == 0
    assert done.stderr == ("note: Faulty-endless-v0 sets no time limit; its episodes are cut after 10,000 steps\n")
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["lengths"] == [10_000, 10_000] and row["ended_early"] == 0


def test_code_is_imported_only_if_the_command_line_names_it(run_main, tmp_path, monkeypatch):
    (tmp_path / "stranger_env.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'owned')!r}).touch()\n"
        "import gymnasium, test_evaluate\n"
        "gymnasium.register('Stranger-v0', entry_point=test_evaluate.Recorder)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = counting_actor(tmp_path / "run", env_id="stranger_env:Stranger-v0")
    assert_one_line_error(run_main(evaluate, run), "import code", "--env-id stranger_env:Stranger-v0")
    assert not (tmp_path / "owned").exists()
    done = run_main(evaluate, run, "--episodes", "1", "--env-id", "stranger_env:Stranger-v0")
    assert done.returncode == 0 and (tmp_path / "owned").exists(), done.stderr


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"gate": "foo"}, "'foo'"),
        ({"top_k": "99"}, "'99'"),
        ({"top_k": "0"}, "'0'"),
        ({"top_k": "1.0"}, "'1.0'"),
        ({"seed": "seven"}, "seed 'seven'"),
        ({"seed": "٧"}, "seed"),
        ({"steps": "-1"}, "steps '-1'"),
        ({"steps": ""}, "steps ''"),
        ({"steps": "1\n2"}, "steps"),
        ({"env_id": "Recorder-v0 \x1b[31m"}, "env_id"),
        ({"env_id": "../../etc/passwd"}, "env_id"),
        ({"format": "sac-actor"}, "size None"),
        ({"format": "sac-actor", "size": "XXL"}, "size 'XXL'"),
        ({"format": "sac-actor", "size": "M"}, "hidden.0.weight"),
    ],
)
def test_metadata_that_no_training_saves_is_refused(run_main, tmp_path, metadata, word):
    assert_one_line_error(run_main(evaluate, counting_actor(tmp_path / "run", **metadata)), word)


def test_weights_that_no_training_saves_are_refused(run_main, tmp_path):
    run = counting_actor(tmp_path / "run")
    actor = evaluate.load_actor(run)
    w = actor.weights
    for changes, word in (
        ({"router.weight": w["router.weight"].astype(np.float64)}, "float64"),
        ({"router.weight": w["router.weight"].astype(np.int32)}, "int32"),
        ({"router.weight": w["router.weight"].T.copy()[:1]}, "router"),
        ({"router.weight": w["router.weight"][:, :0]}, "router.weight"),
        ({"router.weight": w["router.weight"][None]}, "router.weight"),
        ({"router.bias": np.full(2, 1e37, np.float32)}, "beyond 1e+09"),
        ({"router.bias": np.array([np.nan, 0], np.float32)}, "not finite"),
        ({"experts.mean.weight": w["experts.mean.weight"][:1]}, "experts.mean.weight has the shape (1, 1, 2)"),
        ({"action_scale": np.ones(3, np.float32)}, "shape"),
        ({"action_scale": np.float32([[2]])}, "action_scale has the shape (1, 1)"),
        ({"surprise": np.ones(3, np.float32)}, "'surprise'"),
    ):
        save_file(w | changes, run / "actor.safetensors", actor.metadata)
        assert_one_line_error(run_main(evaluate, run), word)
    for name in w:
        save_file({key: value for key, value in w.items() if key != name}, run / "actor.safetensors", actor.metadata)
        assert_one_line_error(run_main(evaluate, run), f"it lacks {name}")


def shell(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    command = command.replace("evaluate.py", f"{sys.executable} {ROOT}/scripts/evaluate.py")
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


def test_any_terminal_will_do(smose_run, tmp_path):
    """ASCII alone, no standard output at all, a reader that leaves, a full disk."""
    flags = f"{smose_run} --episodes 2 --noise 0.1 --output rows.json"
    ascii = shell(f"evaluate.py {flags}", tmp_path, LC_ALL="C", PYTHONUTF8="0")
    assert ascii.returncode == 0 and ascii.stderr == "" and "paired by episode ? its standard error" in ascii.stdout
    (tmp_path / "rows.json").unlink()
    closed = shell(f"evaluate.py {flags} >&-", tmp_path)
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "") and (tmp_path / "rows.json").is_file()
    left = shell(f"set -o pipefail; evaluate.py {flags} | head -1 | grep -c actor", tmp_path)
    assert (left.returncode, left.stdout, left.stderr) == (0, "1\n", "")
    full = shell(f"evaluate.py {flags} > /dev/full", tmp_path)
    assert_one_line_error(full, "No space left")


@pytest.mark.parametrize(
    "script",
    ["distill_trees.py", "interpret.py"] + [f"scripts/{name}.py" for name in ("evaluate", "export", "plot", "table")],
)
def test_ctrl_c_during_imports_is_quiet(tmp_path, script):
    (tmp_path / "numpy.py").write_text("import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n")
    command, environment = [sys.executable, ROOT / script], os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "importing").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == -signal.SIGINT and process.stderr.read() == b""  # 130 to a shell


def test_mistakes_are_one_line(run_main, smose_run, sac_run, tmp_path):
    assert_one_line_error(run_main(evaluate, tmp_path / "nothing"), "nothing", "not found")
    assert_one_line_error(run_main(evaluate, tmp_path), "no actor.safetensors")
    assert_one_line_error(run_main(evaluate), "no actor given")
    assert_one_line_error(run_main(evaluate, smose_run / "checkpoint.safetensors"), "not an actor")
    assert_one_line_error(run_main(evaluate, smose_run / "config.json"), "not a safetensors file")
    assert_one_line_error(run_main(evaluate, sac_run, "--router", "trees"), "no router")
    assert_one_line_error(run_main(evaluate, smose_run, "--noise", "-0.1"), "--noise -0.1")
    assert_one_line_error(run_main(evaluate, smose_run, "--mass", "0"), "--mass 0")
    assert_one_line_error(run_main(evaluate, smose_run, "--noise", "nan"), "--noise nan")
    assert_one_line_error(run_main(evaluate, smose_run, "--delay", "1000000000000"), "--delay 1e+12", "10000 steps")
    assert_one_line_error(run_main(evaluate, smose_run, "--output", tmp_path), "is a folder")
    assert_one_line_error(run_main(evaluate, smose_run, "--episodes", "0"), "--episodes 0")
    assert_one_line_error(run_main(evaluate, smose_run, "--env-id", "Hopper-v4"), "2 actions", "Hopper-v4")
    assert_one_line_error(run_main(evaluate, smose_run, "--env-id", "Nowhere-v1"), "Nowhere-v1")
    assert_one_line_error(
        run_main(evaluate, smose_run, "--output", tmp_path / "no" / "rows.json"), "folder does not exist"
    )
    pendulum = counting_actor(tmp_path / "pendulum", n_s=3, env_id="Pendulum-v1")
    assert_one_line_error(run_main(evaluate, pendulum, "--mass", "1.2"), "Pendulum-v1 is not a MuJoCo environment")
    broken = copy_with(smose_run, tmp_path / "broken", None, **{"router.bias": np.full(8, np.nan, np.float32)})
    assert_one_line_error(run_main(evaluate, broken), "not finite")


def test_the_command_itself(smose_run, tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), str(smose_run), "--episodes", "2"]
    done = subprocess.run([*command, "--json", "rows.json"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Reacher-v4" in done.stdout and len(json.loads((tmp_path / "rows.json").read_text())) == 1
