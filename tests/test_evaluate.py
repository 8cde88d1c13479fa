"""scripts/evaluate.py on tiny real runs: the run's own numbers come back, and every change does what it says."""

import json
import shutil
import subprocess
import sys
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
    np.testing.assert_allclose(by_folder["returns"], own["returns"], atol=1e-4)
    assert by_folder["lengths"] == own["lengths"] and by_folder["first_eval_seed"] == own["first_eval_seed"]
    np.testing.assert_allclose((by_folder["mean"], by_folder["std"]), (own["mean"], own["std"]), atol=1e-4)
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


def test_tree_thresholds_are_compared_in_double_precision():
    nodes = [{"feature": 1, "threshold": 0.1, "left": 1, "right": 2}, {"probability": 0.25}, {"probability": 0.75}]
    above = float(np.float32(0.1))  # a little more than the double 0.1
    assert evaluate.tree_probability(nodes, [0, above]) == 0.75
    assert evaluate.tree_probability(nodes, [0, 0.1]) == 0.25


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
    np.testing.assert_allclose(row["returns"], measured["trees"]["returns"], atol=1e-5)
    assert row["router"] == "trees" and "SMoSE (trees)" in done.stdout


def test_mistakes_are_one_line(run_main, smose_run, sac_run, tmp_path):
    assert_one_line_error(run_main(evaluate, tmp_path / "nothing"), "nothing", "not found")
    assert_one_line_error(run_main(evaluate, tmp_path), "no actor.safetensors")
    assert_one_line_error(run_main(evaluate), "no actor given")
    assert_one_line_error(run_main(evaluate, smose_run / "checkpoint.safetensors"), "not an actor")
    assert_one_line_error(run_main(evaluate, smose_run / "config.json"), "not a safetensors file")
    assert_one_line_error(run_main(evaluate, sac_run, "--router", "trees"), "no router")
    assert_one_line_error(run_main(evaluate, smose_run, "--noise", "-0.1"), "--noise -0.1")
    assert_one_line_error(run_main(evaluate, smose_run, "--mass", "0"), "--mass 0")
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
