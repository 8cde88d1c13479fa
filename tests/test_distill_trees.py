"""Trees distilled from a router: exact where they can be, and judged on what they never saw."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from colours import COLOURS, colour
from command_line import UserError
from conftest import assert_one_line_error
from PIL import Image
from safetensors.numpy import load_file, save_file
from saved_actor import FIRST_EVAL_SEED, Actor, load_actor, make_env, make_policy, play
from saved_trees import chosen_expert, is_tree, leaf_of, read_trees, trees_folder
from scipy.stats import bootstrap
from sklearn import metrics
from sklearn.tree import DecisionTreeClassifier

import distill_trees as dt

ROOT = Path(__file__).resolve().parent.parent

# Three coordinates jump on a grid that leaves zero free, the fourth adds up the actions; reward needs the right expert.
OCTANTS = """
import gymnasium as gym
import numpy as np


class Octants(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,))
    action_space = gym.spaces.Box(-1, 1, (2,))

    def state(self):
        grid = self.np_random.choice([-1.0, -0.5, 0.5, 1.0], 3)
        return np.append(grid, self.drift)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.drift = 0, 0.0
        self.last = self.state()
        return self.last, {}

    def step(self, action):
        self.steps += 1
        self.drift += float(action.sum())
        reward = float(action @ self.last[:2]) + float(action[0] * self.last[2])
        self.last = self.state()
        return self.last, reward, False, self.steps == 25, {}


class NaNs(Octants):
    def state(self):
        return super().state() * (np.nan if self.steps == 7 else 1)


class NaNRewards(Octants):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, np.nan, *rest


class Breaks(Octants):
    def step(self, action):
        raise RuntimeError("cable loose")


for kind in (Octants, NaNs, NaNRewards, Breaks):
    gym.register(f"{kind.__name__}-v0", entry_point=kind)
"""
SIGNS = np.array([[a, b, c, 0] for a in (1, -1) for b in (1, -1) for c in (1, -1)], dtype=np.float32)


@pytest.fixture(autouse=True)
def octants(tmp_path, monkeypatch):
    (tmp_path / "octants_env.py").write_text(OCTANTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("octants_env", None)


def write_actor(folder: Path, env_id: str = "octants_env:Octants-v0", **changes) -> Path:
    """An actor whose router sends each sign pattern of the first three coordinates to its own expert."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    tensors = {
        "router.weight": SIGNS.copy(),
        "router.bias": np.zeros(8, np.float32),
        "experts.mean.weight": np.zeros((8, 2, 4), np.float32),
        "experts.mean.bias": rng.standard_normal((8, 2)).astype(np.float32),
        "experts.log_std.weight": np.zeros((8, 2, 4), np.float32),
        "experts.log_std.bias": np.zeros((8, 2), np.float32),
        "action_scale": np.ones(2, np.float32),
        "action_bias": np.zeros(2, np.float32),
    }
    metadata = {"format": "smose-actor", "env_id": env_id, "seed": "0", "steps": "1000", "n_experts": "8"}
    metadata |= {"top_k": "1", "gate": "one-hot", "args": "{}", "versions": "{}"}
    for name, value in changes.items():
        if name in metadata:
            metadata[name] = value
        else:
            tensors[name] = value
    save_file(tensors, folder / "actor.safetensors", metadata=metadata)
    return folder


def write_replay(folder: Path, states: np.ndarray, episodes: np.ndarray, spare: int = 50, **changes) -> Path:
    """A replay file as the trainer leaves it: one wide float32 table, the last `spare` rows never written."""
    n_s, n_a = states.shape[1], 2
    width = 2 * n_s + n_a + 3
    table = np.zeros((len(states) + spare, width), np.float32)
    table[: len(states), :n_s], table[: len(states), width - 1] = states, episodes
    np.save(folder / "replay.npy", table)
    columns = {"obs": [0, n_s], "action": [n_s, n_s + n_a], "next_obs": [n_s + n_a, width - 3]}
    columns |= {"reward": [width - 3, width - 2], "terminated": [width - 2, width - 1], "episode": [width - 1, width]}
    config = {"format": "smose-run", "env_id": "octants_env:Octants-v0", "obs_size": n_s, "action_size": n_a}
    (folder / "config.json").write_text(json.dumps(config | {"replay_columns": columns} | changes))
    return folder


def grid_states(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.choice([-1, -0.5, 0.5, 1], (n, 3)), rng.standard_normal(n)]).astype(np.float32)


OCTANTS_ID = "octants_env:Octants-v0"


@pytest.fixture
def run(run_main):
    """distil in this process, in a few episodes and a single fit unless told otherwise; imports the octants"""

    def distill(*arguments, fits: int = 1):
        return run_main(dt, *arguments, "--env-id", OCTANTS_ID, "--fits", fits)

    return distill


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / "trees" / name).read_text(encoding="utf-8"))


def random_router(n_s: int, n_experts: int = 8, seed: int = 0) -> Actor:
    router = np.random.default_rng(seed).standard_normal((n_experts, n_s)).astype(np.float32)
    weights = {"router.weight": router, "router.bias": np.zeros(n_experts, np.float32)}
    weights["experts.mean.weight"] = np.zeros((n_experts, 1, n_s), np.float32)
    weights["experts.mean.bias"] = np.zeros((n_experts, 1), np.float32)
    weights |= {"action_scale": np.ones(1, np.float32), "action_bias": np.zeros(1, np.float32)}
    return Actor(Path("none"), {"format": "smose-actor", "env_id": "none", "seed": "0", "steps": "0"}, weights)


def fit_trees(data: dt.Data, n_experts: int, depth: int) -> tuple[list[dt.Tree], dt.Tree]:
    states, labels = data.states[~data.held_out], data.labels[~data.held_out]
    return dt.fit_experts(states, labels, n_experts, depth, 0), dt.fit_tree(states, labels, n_experts, depth, 0)


def random_data(actor: Actor, n: int, seed: int = 0) -> dt.Data:
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((n, actor.obs_size)).astype(np.float32)
    labels, episodes = dt.router_labels(actor, states), np.arange(n) // 20
    counts = np.bincount(labels, minlength=actor.n_experts)
    return dt.Data(states, labels, episodes, dt.hold_out_episodes(episodes, rng), counts)


def plain_probability(nodes: list, state: list[float]) -> float:
    """How anyone reads trees.json, without this project's code."""
    node = nodes[0]
    while "feature" in node:
        node = nodes[node["left"]] if state[node["feature"]] <= node["threshold"] else nodes[node["right"]]
    return node["probability"]


def distill_process(folder: Path, *arguments, **settings) -> subprocess.CompletedProcess:
    """distil as a user does, in a process that finds the octants in `folder`"""
    command = [sys.executable, ROOT / "distill_trees.py", *arguments, "--env-id", OCTANTS_ID]
    settings["env"] = os.environ | {"PYTHONPATH": str(folder)} | settings.get("env", {})
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 300} | settings
    return subprocess.run(list(map(str, command)), **settings)


def test_exact_regions_are_recovered_from_the_command_line(tmp_path):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(3000), np.arange(3000) // 25 + 1)
    done = distill_process(tmp_path, run_dir, "--episodes", 6, "--fits", 3)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar outside a terminal, no warnings
    report = read(run_dir, "fidelity.json")
    assert report["joint_fidelity"] == report["multiclass_fidelity"] == 1
    for row in report["experts"]:
        assert [row[k] for k in ("accuracy", "balanced_accuracy", "precision", "recall", "f1")] == [1] * 5
        assert 0.08 < row["share"] < 0.17 and not row["never"]
    loop = report["closed_loop"]
    assert loop["episodes"] == 6 and loop["trees"]["returns"] == loop["router"]["returns"]
    assert loop["difference"] == {"mean": 0, "interval_95": [0, 0]} and loop["agreement"] == 1
    assert loop["fits"] == [loop["router"]["mean"]] * 3  # whatever the episodes, these regions are found
    assert np.std(loop["router"]["returns"]) > 0
    assert [row["depth"] for row in report["curve"]] == list(range(1, 9))
    assert report["curve"][0]["joint_fidelity"] < 0.6 and report["curve"][7]["joint_fidelity"] == 1
    assert "difference          0.00 (0.00 to 0.00)" in done.stdout
    written = {path.name for path in (run_dir / "trees").iterdir()}
    expected = {f"expert_{m}.{kind}" for m in range(1, 9) for kind in ("svg", "png", "txt")}
    assert written == expected | {"trees.json", "fidelity.json", "fidelity.png"}
    assert "obs[0] <= 0:" in (run_dir / "trees" / "expert_1.txt").read_text()


def test_trees_too_shallow_cost_return_and_the_interval_says_so(tmp_path, run):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(3000), np.arange(3000) // 25 + 1)
    run(run_dir, "--episodes", 8, "--max-depth", 1)
    report = read(run_dir, "fidelity.json")
    loop = report["closed_loop"]
    assert report["joint_fidelity"] < 0.6
    assert loop["trees"]["returns"] != loop["router"]["returns"] and loop["agreement"] < 0.6
    low, high = loop["difference"]["interval_95"]
    difference = np.mean(loop["trees"]["returns"]) - np.mean(loop["router"]["returns"])
    assert loop["difference"]["mean"] == pytest.approx(difference) and low < difference < high < 0


def test_trees_json_in_plain_python_equals_scikit_learn_on_10000_states():
    actor = random_router(n_s=11)
    data = random_data(actor, 8000)
    experts, multiclass = fit_trees(data, 8, dt.CURVE_DEPTH)
    forest = json.loads(json.dumps([dt.json_nodes(tree, 3) for tree in experts]))
    states = np.random.default_rng(9).standard_normal((10_000, 11)).astype(np.float32)
    train, labels = data.states[~data.held_out], data.labels[~data.held_out]
    ours = np.array([[plain_probability(nodes, state) for nodes in forest] for state in states.tolist()])
    theirs = np.empty_like(ours)
    for m in range(8):
        classifier = DecisionTreeClassifier(max_depth=3, class_weight="balanced", random_state=0)
        theirs[:, m] = classifier.fit(train, labels == m).predict_proba(states)[:, 1]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert [chosen_expert(forest, state) for state in states] == ours.argmax(axis=1).tolist()

    classifier = DecisionTreeClassifier(max_depth=3, class_weight="balanced", random_state=0).fit(train, labels)
    nodes = json.loads(json.dumps(dt.json_nodes(multiclass, 3, multiclass=True)))
    leaves = np.array([leaf_of(nodes, state)["probabilities"] for state in states.tolist()])
    np.testing.assert_allclose(leaves, classifier.predict_proba(states), rtol=0, atol=1e-12)


def test_neighbouring_float32_values_are_kept_apart():
    low = np.float32(3.3)  # scikit-learn splits only values more than 1e-7 apart
    high = np.nextafter(low, np.float32(4))
    for _ in range(20):  # half of the midpoints round to the upper value in float32
        states = np.array([[low], [high]] * 10, np.float32)
        nodes = dt.json_nodes(dt.fit_tree(states, np.array([0, 1] * 10), 2, 1, 0), 1)
        assert (
            leaf_of(nodes, states[0].tolist())["probability"] == 0
            and leaf_of(nodes, states[1].tolist())["probability"] == 1
        )
        low, high = high, np.nextafter(high, np.float32(4))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_cut_tree_is_the_tree_fitted_at_that_depth(depth):
    data = random_data(random_router(n_s=6), 6000, seed=3)
    for labels, n_classes in ((data.labels == 2, 2), (data.labels, 8)):
        deep = dt.fit_tree(data.states, labels, n_classes, dt.CURVE_DEPTH, seed=0)
        shallow = dt.fit_tree(data.states, labels, n_classes, depth, seed=0)
        cut, fitted = (dt.json_nodes(tree, depth, n_classes > 2) for tree in (deep, shallow))
        assert len(cut) == len(fitted) == 2 ** (depth + 1) - 1
        for a, b in zip(cut, fitted, strict=True):
            p, q = (node.pop("probabilities", None) or [node.pop("probability", None)] for node in (a, b))
            assert a == b and (p == [None] == q or p == pytest.approx(q, abs=1e-12))


def test_curve_equals_scikit_learn_at_every_depth():
    data = random_data(random_router(n_s=5, n_experts=4), 4000, seed=5)
    experts, multiclass = fit_trees(data, 4, 3)
    curve = dt.fidelity_curve(experts, multiclass, data, 3)
    train, test = ~data.held_out, data.held_out
    for row in curve:
        yes = []
        for m in range(4):
            classifier = DecisionTreeClassifier(max_depth=row["depth"], class_weight="balanced", random_state=0)
            classifier.fit(data.states[train], data.labels[train] == m)
            yes.append(classifier.predict_proba(data.states[test])[:, 1])
            truth, says = data.labels[test] == m, classifier.predict(data.states[test])
            assert row["experts"][m]["f1"] == pytest.approx(metrics.f1_score(truth, says))
            assert row["experts"][m]["recall"] == pytest.approx(metrics.recall_score(truth, says))
            assert row["experts"][m]["accuracy"] == pytest.approx(metrics.accuracy_score(truth, says))
            balanced = metrics.balanced_accuracy_score(truth, says)
            assert row["experts"][m]["balanced_accuracy"] == pytest.approx(balanced)
            assert row["experts"][m]["precision"] == pytest.approx(metrics.precision_score(truth, says))
        joint = (np.argmax(yes, axis=0) == data.labels[test]).mean()
        assert row["joint_fidelity"] == pytest.approx(joint)
        classifier.fit(data.states[train], data.labels[train])
        assert row["multiclass_fidelity"] == pytest.approx(classifier.score(data.states[test], data.labels[test]))


def test_classes_weigh_inversely_to_their_frequency():
    states = np.array([[0.0]] * 80 + [[1.0]] * 20, np.float32)
    labels = np.array([0] * 90 + [1] * 10)
    nodes = dt.json_nodes(dt.fit_tree(states, labels, 2, 1, 0), 1)
    # weights 100/(2*10) and 100/(2*90): 10*5 / (10*5 + 10*0.5556) = 0.9, where plain counting would say 0.5
    assert leaf_of(nodes, [1.0]) == {"probability": pytest.approx(0.9), "samples": 20}
    assert leaf_of(nodes, [0.0]) == {"probability": 0, "samples": 80}


def test_an_expert_without_states_gets_a_tree_that_says_never(tmp_path, run):
    bias = np.array([0, 0, -1e6, 0, 0, 0, 0, 0], np.float32)
    run_dir = write_actor(tmp_path / "run", **{"router.bias": bias})
    write_replay(run_dir, grid_states(2000), np.arange(2000) // 25 + 1)
    done = run(run_dir, "--episodes", 2, "--max-depth", 1)
    third = read(run_dir, "trees.json")["experts"][2]
    assert third == {
        "expert": 3,
        "share": 0,
        "never": True,
        "nodes": [{"probability": 0, "samples": third["nodes"][0]["samples"]}],
    }
    row = read(run_dir, "fidelity.json")["experts"][2]
    assert row["never"] and row["share"] == 0 and row["precision"] is None and row["recall"] is None
    (line,) = [line for line in done.stdout.splitlines() if "never" in line]
    assert line.split()[:2] == ["3", "0.0%"]
    assert "never" in (run_dir / "trees" / "expert_3.txt").read_text()
    assert (run_dir / "trees" / "expert_3.png").stat().st_size > 1000


def test_one_expert_alone(tmp_path, run):
    one = {name: tensor[:1] for name, tensor in load_file(write_actor(tmp_path / "all") / "actor.safetensors").items()}
    one |= {"action_scale": np.ones(2, np.float32), "action_bias": np.zeros(2, np.float32)}
    run_dir = write_actor(tmp_path / "run", **one)
    run(run_dir, "--episodes", 2, "--rollout-steps", 50)
    assert read(run_dir, "trees.json")["experts"][0]["nodes"][0]["probability"] == 1
    assert read(run_dir, "fidelity.json")["joint_fidelity"] == 1


def test_held_out_episodes_are_whole_and_a_fifth():
    episodes = np.random.default_rng(0).integers(1, 101, 5000)
    held_out = dt.hold_out_episodes(episodes, np.random.default_rng(4))
    assert len(np.unique(episodes[held_out])) == 20
    assert not set(episodes[held_out]) & set(episodes[~held_out])
    assert np.array_equal(held_out, dt.hold_out_episodes(episodes, np.random.default_rng(4)))
    assert not np.array_equal(held_out, dt.hold_out_episodes(episodes, np.random.default_rng(5)))
    assert dt.hold_out_episodes(np.array([7, 7, 8]), np.random.default_rng(0)).sum() in (1, 2)


def test_held_out_states_never_reach_the_trees():
    actor = random_router(n_s=4)
    data = random_data(actor, 3000)
    spoilt = replace(data, states=data.states.copy(), labels=data.labels.copy())
    spoilt.states[data.held_out], spoilt.labels[data.held_out] = 1e6, 0
    trees, spoilt_trees = (fit_trees(d, 8, 3) for d in (data, spoilt))
    for a, b in zip([*trees[0], trees[1]], [*spoilt_trees[0], spoilt_trees[1]], strict=True):
        assert dt.json_nodes(a, 3, True) == dt.json_nodes(b, 3, True)
    train_only = replace(data, held_out=np.zeros(3000, bool))
    assert dt.json_nodes(fit_trees(train_only, 8, 3)[0][0], 3) != dt.json_nodes(trees[0][0], 3)


def test_replay_rows_are_read_as_the_trainer_left_them(tmp_path):
    run_dir = write_actor(tmp_path / "run")
    states, episodes = grid_states(1000), np.roll(np.arange(1000) // 25 + 1, 300)  # a ring whose start lies inside
    write_replay(run_dir, states, episodes, spare=200_000)
    actor = load_actor(run_dir / "actor.safetensors")
    data = dt.read_replay(actor, run_dir, 10_000, np.random.default_rng(0))
    assert np.array_equal(data.states, states) and np.array_equal(data.episodes, episodes)
    by_sign = ((states[:, 0] < 0) * 4 + (states[:, 1] < 0) * 2 + (states[:, 2] < 0)).astype(int)
    assert np.array_equal(data.labels, by_sign) and data.counts.sum() == 1000
    few = dt.read_replay(actor, run_dir, 100, np.random.default_rng(0))
    assert len(few.states) == 100 and few.counts.sum() == 1000
    assert not set(few.episodes[few.held_out]) & set(few.episodes[~few.held_out])


def test_the_subsample_and_a_lone_episode_are_stated(tmp_path, run):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(1000), np.ones(1000))
    out = run(run_dir, "--episodes", 0, "--max-samples", 400, "--max-depth", 1).stdout
    assert "states: 400 of 1,000 from replay, drawn at random (--max-samples 400)" in out
    assert "note: only one episode" in out and "closed loop" not in out
    report = read(run_dir, "fidelity.json")
    assert report["data"]["states_used"] == 400 and report["data"]["states_available"] == 1000
    assert report["data"]["held_out_states"] == 80 and report["closed_loop"] is None


def test_dagger_adds_states_the_trees_lead_to_and_labels_them_by_the_router(tmp_path):
    actor = load_actor(write_actor(tmp_path / "run") / "actor.safetensors")
    env, args = make_env(actor, OCTANTS_ID), dt.Args(path=tmp_path, rollout_steps=250)
    always_second = [[{"probability": float(m == 1), "samples": 1}] for m in range(8)]
    data = dt.collect_states(env, actor, args, dt.DAGGER_SEED, np.random.default_rng(0), always_second)
    assert len(data.states) == 250 and np.array_equal(data.labels, dt.router_labels(actor, data.states))
    drift = np.tanh(actor.weights["experts.mean.bias"][1]).sum() * (
        np.arange(250) % 25
    )  # only the second expert has acted
    np.testing.assert_allclose(data.states[:, 3], drift, atol=1e-5)
    first = dt.collect_states(env, actor, args, dt.ROLLOUT_SEED, np.random.default_rng(0))
    assert not np.allclose(first.states[:, 3], drift, atol=1e-2)
    both = dt.aggregate(first, data)
    assert np.array_equal(both.states[250:], data.states) and both.held_out.sum() == 100
    assert len(np.unique(both.episodes)) == 20
    assert not set(both.episodes[both.held_out]) & set(both.episodes[~both.held_out])


def test_dagger_reports_every_round(tmp_path, run):
    run_dir = write_actor(tmp_path / "run")
    done = run(run_dir, "--dagger", 2, "--rollout-steps", 500, "--episodes", 3, "--max-depth", 2)
    report = read(run_dir, "fidelity.json")
    assert [row["round"] for row in report["dagger"]] == [0, 1, 2]
    assert [row["train_states"] for row in report["dagger"]] == [400, 800, 1200]
    assert report["data"]["train_states"] == 1200 and report["data"]["source"] == "rollouts"
    assert report["dagger"][2]["joint_fidelity"] == report["joint_fidelity"]
    assert report["dagger"][2]["closed_loop"] == report["closed_loop"]
    assert report["dagger"][0]["closed_loop"]["router"] == report["closed_loop"]["router"]
    table = done.stdout.split("DAgger")[1].splitlines()
    assert [line.split()[0] for line in table[2:5]] == ["0", "1", "2"]


def test_mixing_actors_act_as_deployed_and_the_note_says_what_trees_change(tmp_path, run):
    run_dir = write_actor(tmp_path / "run", top_k="2", gate="softmax")
    done = run(run_dir, "--episodes", 2, "--rollout-steps", 200)
    actor = load_actor(run_dir)
    mixed, alone = (make_policy(actor, route) for route in (None, lambda state: int(np.argmax(SIGNS @ state))))
    env, loop = make_env(actor, OCTANTS_ID), read(run_dir, "fidelity.json")["closed_loop"]
    for policy, who in ((mixed, "router"), (alone, "trees")):  # eight regions are found exactly at depth 3
        played = [sum(step.reward for step in play(env, policy, FIRST_EVAL_SEED + i)) for i in range(2)]
        assert loop[who]["returns"] == pytest.approx(played, abs=1e-12)
    assert loop["router"]["returns"] != loop["trees"]["returns"] and loop["agreement"] == 1
    assert "one expert acts alone" in read(run_dir, "fidelity.json")["notes"][0]
    assert "note: the actor weighs its experts (top_k 2, gate softmax)" in done.stdout


def test_bootstrap_interval_is_scipys_for_one_fit_and_of_all_draws_for_several():
    rng = np.random.default_rng(0)
    router, trees = rng.standard_normal((2, 20)).tolist()
    result = dt.compare_returns(router, [trees], seed=0)["difference"]
    theirs = bootstrap((np.subtract(trees, router),), np.mean, method="percentile", n_resamples=20_000, rng=1)
    assert result["mean"] == pytest.approx(np.mean(trees) - np.mean(router))
    assert result["interval_95"] == pytest.approx(list(theirs.confidence_interval), abs=0.03)
    assert dt.compare_returns([1.0], [[2.0]], 0)["difference"] == {"mean": 1, "interval_95": None}

    shifts = [0.0, 50.0, -30.0]  # fits that drive far better or worse than the trees written
    several = dt.compare_returns(router, [(np.array(trees) + shift).tolist() for shift in shifts], seed=0)
    assert several["difference"]["mean"] == result["mean"] and several["trees"]["returns"] == trees
    assert several["fits"] == pytest.approx([np.mean(trees) + shift for shift in shifts])
    pooled = [shift + theirs.bootstrap_distribution for shift in shifts]
    assert several["difference"]["interval_95"] == pytest.approx(np.percentile(pooled, [2.5, 97.5]), abs=0.03)
    one_episode = dt.compare_returns([1.0], [[2.0], [4.0]], 0)["difference"]
    assert one_episode["mean"] == 1 and one_episode["interval_95"] == [1, 3]


def test_resampling_draws_whole_training_episodes_with_replacement():
    data = random_data(random_router(n_s=3), 2000)
    trained_on = data.episodes[~data.held_out]
    rows = dt.resampled_rows(data, np.random.default_rng(2))
    assert not data.held_out[rows].any()
    times = np.unique(rows, return_counts=True)[1]
    drawn, sizes = np.unique(data.episodes[rows], return_counts=True)
    assert sizes.sum() == 20 * len(np.unique(trained_on)) and set(sizes) >= {20, 40} and not (sizes % 20).any()
    assert len(drawn) < len(np.unique(trained_on)) and np.array_equal(np.repeat(sizes // 20, 20), times)


def test_other_fits_are_of_other_episodes_and_the_same_every_time(tmp_path):
    actor = random_router(n_s=5)
    data, args = random_data(actor, 2000), dt.Args(path=tmp_path, fits=4, max_depth=2)
    forests = list(dt.other_forests(data, 8, args))
    assert len(forests) == 3 and forests[0] != forests[1] != forests[2] != forests[0]
    assert forests == list(dt.other_forests(data, 8, args))
    assert forests != list(dt.other_forests(data, 8, replace(args, seed=1)))
    written = [dt.json_nodes(tree, 2) for tree in fit_trees(data, 8, 2)[0]]
    assert written not in forests and all(is_tree(nodes, 5) for forest in forests for nodes in forest)


def test_the_interval_covers_what_another_fit_would_return(tmp_path, run):
    """Trees from few states differ from fit to fit by more than their episodes do."""
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(60), np.arange(60) // 3 + 1)
    done = run(run_dir, "--episodes", 8, "--max-depth", 2, fits=8)
    loop = read(run_dir, "fidelity.json")["closed_loop"]
    low, high = loop["difference"]["interval_95"]
    assert len(loop["fits"]) == 8 and loop["fits"][0] == loop["trees"]["mean"]
    costs = np.array(loop["fits"]) - loop["router"]["mean"]
    assert low <= costs.min() < costs.max() <= high  # with 8 fits, an eighth of the draws is around each
    assert f"with 7 more fits, on resampled episodes: returns {min(loop['fits']):.2f} to" in done.stdout
    run(run_dir, "--episodes", 8, "--max-depth", 2)
    alone = read(run_dir, "fidelity.json")["closed_loop"]
    assert alone["difference"]["mean"] == loop["difference"]["mean"] and len(alone["fits"]) == 1
    narrow = alone["difference"]["interval_95"]
    assert high - low > 1.2 * (narrow[1] - narrow[0])


def test_with_one_training_episode_the_interval_says_what_it_leaves_out(tmp_path, run):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(100), np.ones(100))
    done = run(run_dir, "--episodes", 2, "--max-depth", 1, fits=3)
    assert len(read(run_dir, "fidelity.json")["closed_loop"]["fits"]) == 1
    assert "the interval does not cover the fit" in done.stdout


def test_names_are_the_papers_the_users_or_plain(tmp_path, run):
    file = tmp_path / "names.json"
    own = ["left", {"text": "right", "latex": "r_1"}, "up $", "drift"]
    file.write_text(json.dumps({"obs": own, "action": ["a", "b"]}))
    run_dir = write_actor(tmp_path / "run")
    assert run(run_dir, "--names", file, "--episodes", 0, "--rollout-steps", 500).stderr == ""
    rules = (run_dir / "trees" / "expert_1.txt").read_text()
    assert "if left <= 0:" in rules and "if right <= 0:" in rules and "if up $ <= 0:" in rules
    assert read(run_dir, "trees.json")["obs_names"] == ["left", "right", "up $", "drift"]
    assert dt.symbol({"text": "cos θ_fa", "latex": r"\cos\theta_{fa}"}) == r"$\cos\theta_{fa}$"
    assert dt.symbol({"text": "5 $", "latex": r"\frac{a"}) == r"5 \$"  # more than matplotlib can set


def test_trees_name_their_actor_and_lie_beside_it(tmp_path, run):
    run_dir = write_actor(tmp_path / "run")
    tensors = load_file(run_dir / "actor.safetensors")
    with_metadata = {"format": "smose-actor", "env_id": OCTANTS_ID, "seed": "0", "steps": "700"}
    tensors["router.bias"] = np.linspace(0, 1, 8, dtype=np.float32)
    save_file(tensors, run_dir / "actor_best.safetensors", metadata=with_metadata)
    short = ["--episodes", 0, "--rollout-steps", 200, "--max-depth", 1]
    assert run(run_dir, *short).returncode == 0
    first = (run_dir / "trees" / "trees.json").read_bytes()
    assert run(run_dir / "actor_best.safetensors", *short).returncode == 0
    assert (run_dir / "trees" / "trees.json").read_bytes() == first
    content = (run_dir / "actor_best.safetensors").read_bytes()
    best = json.loads((run_dir / "trees_best" / "trees.json").read_text())
    sha = hashlib.sha256(content).hexdigest()
    assert best["actor"] == {"file": "actor_best.safetensors", "sha256": sha, "steps": 700}
    assert json.loads(first)["actor"] == load_actor(run_dir).identity and json.loads(first)["actor"]["steps"] == 1000
    assert trees_folder(Path("a/actor_short.safetensors")) == Path("a/trees_short")
    assert trees_folder(Path("a/walker.safetensors")) == Path("a/trees_walker")

    assert run(run_dir, *short, "--output", tmp_path / "elsewhere").returncode == 0
    assert (tmp_path / "elsewhere" / "trees.json").read_bytes() == first


def test_trees_of_another_actor_and_damaged_ones_are_refused(tmp_path, run):
    run_dir = write_actor(tmp_path / "run")
    run(run_dir, "--episodes", 0, "--rollout-steps", 200, "--max-depth", 2)
    actor, file = load_actor(run_dir), run_dir / "trees" / "trees.json"
    good = file.read_text()
    trees = read_trees(actor)
    assert trees == json.loads(good)

    def refused(*words):
        with pytest.raises(UserError) as told:
            read_trees(load_actor(run_dir))
        assert all(word in str(told.value) for word in (*words, f"distill_trees.py {actor.path}"))

    nodes = trees["experts"][0]["nodes"]
    assert is_tree(nodes, 4) and "left" in nodes[0]
    for change in ({"left": 0}, {"right": len(nodes)}, {"left": True}, {"left": -1}, {"feature": 4}, {"feature": -1}):
        assert not is_tree([nodes[0] | change, *nodes[1:]], 4)
    for change in ({"threshold": None}, {"threshold": float("nan")}, {"threshold": 10**400}, {"right": None}):
        assert not is_tree([nodes[0] | change, *nodes[1:]], 4)
    for leaf in ({}, {"probability": "1"}, {"probability": 1.5}, {"probability": float("nan")}, [], None):
        assert not is_tree([leaf], 4)
    assert not is_tree([], 4) and not is_tree({}, 4)

    trees["experts"][0]["nodes"] = [{"feature": 0, "threshold": 0.0, "left": 0, "right": 0}]  # a walk without end
    for damage in ("", "[" * 100_000, good[:-200], "{}", "[]", "1", good.replace('"sha256"', '"md5"')):
        file.write_text(damage)
        refused("trees.json is ")
    file.write_text(json.dumps(trees))
    refused("holds no trees for actor.safetensors")
    file.write_text(good)
    write_actor(run_dir, steps="1001")
    refused("made from another actor")
    file.unlink()
    refused("cannot read", "No such file")


@pytest.mark.parametrize("file", sorted(ROOT.glob("results/policies/*/*/trees*/trees.json")), ids=str)
def test_committed_trees_are_of_the_actor_beside_them(file):
    actor = load_actor(file.parent.with_name(file.parent.name.replace("trees", "actor") + ".safetensors"))
    assert read_trees(actor)["actor"]["file"] == actor.path.name
    fidelity = json.loads(file.with_name("fidelity.json").read_text(encoding="utf-8"))
    assert (fidelity["actor"], fidelity["steps"]) == (actor.path.name, actor.steps)
    assert len(fidelity["closed_loop"]["fits"]) == 10


def test_experts_have_the_reports_colours(tmp_path, run):
    run_dir = write_actor(tmp_path / "run")
    run(run_dir, "--episodes", 0, "--rollout-steps", 500)
    assert [colour(m) for m in range(1, 9)] == COLOURS and len({colour(m) for m in range(1, 33)}) == 32

    def area(file: str) -> dict[str, int]:
        pixels = np.array(Image.open(run_dir / "trees" / file).convert("RGB")).astype(int) @ [1 << 16, 1 << 8, 1]
        return {c: int((pixels == int(c[1:], 16)).sum()) for c in COLOURS}

    assert min(area("fidelity.png").values()) > 100
    for m in (1, 7, 8):
        assert max(area(f"expert_{m}.png").items(), key=lambda pair: pair[1])[0] == colour(m)
        assert area(f"expert_{m}.png")[colour(m)] > 5000  # the leaf that is sure, not only the square in the title


def spoil(run_dir: Path, what: str) -> list:
    """Break one thing; returns the arguments that a user would then type."""
    replay, config, actor = run_dir / "replay.npy", run_dir / "config.json", run_dir / "actor.safetensors"
    table = np.load(replay)
    if what == "no such folder":
        return [run_dir / "nowhere"]
    if what == "no actor in it":
        actor.unlink()
    elif what == "actor that mixes too many":
        write_actor(run_dir, top_k="99")
    elif what == "not safetensors":
        actor.write_bytes(b"PK" + bytes(100))
    elif what == "cut actor":
        actor.write_bytes(actor.read_bytes()[:-40])
    elif what == "actor with a hole":
        write_actor(run_dir, **{"router.bias": np.full(8, np.nan, np.float32)})
    elif what == "actor of two sizes":
        write_actor(run_dir, **{"router.bias": np.zeros(7, np.float32)})
    elif what == "replay of another environment":
        config.write_text(config.read_text().replace("octants_env:Octants-v0", "Hopper-v4"))
    elif what == "replay of another size":
        write_replay(run_dir, np.ones((20, 5)), np.ones(20))
    elif what == "cut replay":
        replay.write_bytes(replay.read_bytes()[:-4000])
    elif what == "replay with an open bracket":
        replay.write_bytes(replay.read_bytes().replace(b"}", b"(", 1))
    elif what == "replay is text":
        replay.write_text("hello")
    elif what == "replay with objects":
        np.save(replay, np.array([{}], dtype=object))
    elif what == "replay too narrow":
        np.save(replay, table[:, :6])
    elif what == "replay with nan":
        table[3, 0] = np.nan
        np.save(replay, table)
    elif what == "empty replay":
        np.save(replay, np.zeros_like(table))
    elif what == "no rows":
        np.save(replay, table[:0])
    elif what == "no config":
        config.unlink()
    elif what == "damaged config":
        config.write_text('{"env_id": ')
    elif what == "deep config":
        config.write_text("[" * 100_000)
    elif what == "endless config":
        config.write_text(config.read_text().replace('"obs_size": 4', '"obs_size": Infinity'))
    elif what == "config of other columns":
        config.write_text(config.read_text().replace('"episode": [', '"episode": [-'))
    elif what == "no replay":
        replay.unlink()
        return [run_dir, "--data", "replay"]
    elif what == "unknown environment":
        return [run_dir, "--env-id", "Nowhere-v7"]
    elif what == "environment of another size":
        return [run_dir, "--env-id", "Reacher-v4"]
    elif what == "code in an actor file":
        return [run_dir]
    elif what.startswith("environment"):
        return [run_dir, "--data", "rollouts", "--env-id", f"octants_env:{what.split()[-1]}"]
    elif what == "names for another size":
        (run_dir / "names.json").write_text('{"obs": ["one"]}')
        return [run_dir, "--names", run_dir / "names.json"]
    elif what == "names are no JSON":
        return [run_dir, "--names", actor]
    elif what == "trees is in use":
        (run_dir / "trees").mkdir()
        (run_dir / "trees" / "thesis.txt").write_text("mine")
        (run_dir / "trees" / "trees.json").write_text("{}")
    elif what == "output is a file":
        return [run_dir, "--env-id", OCTANTS_ID, "--output", config]
    elif what == "output nowhere":
        return [run_dir, "--env-id", OCTANTS_ID, "--output", run_dir / "no" / "where"]
    elif what.startswith("--"):
        return [run_dir, *what.split()]
    return [run_dir, "--env-id", OCTANTS_ID]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no such folder", "nowhere not found; give the folder of a run"),
        ("no actor in it", "has no actor.safetensors; give the folder of a run"),
        ("not safetensors", "not a safetensors file"),
        ("cut actor", "not a safetensors file"),
        ("actor with a hole", "router.bias holds numbers that are not finite"),
        ("actor of two sizes", "router.bias has the shape (7,)"),
        ("actor that mixes too many", "no policy of 8 experts has top_k '99'"),
        ("replay of another environment", "another environment (Hopper-v4"),
        ("replay of another size", "another environment"),
        ("cut replay", "replay.npy is damaged"),
        ("replay with an open bracket", "replay.npy is damaged"),
        ("replay is text", "replay.npy is damaged"),
        ("replay with objects", "replay.npy is"),
        ("replay too narrow", "no replay file of this run"),
        ("replay with nan", "replay.npy is damaged"),
        ("empty replay", "replay.npy is empty"),
        ("no rows", "replay.npy is"),
        ("no config", "config.json"),
        ("damaged config", "config.json"),
        ("deep config", "config.json is not JSON"),
        ("endless config", "config.json is damaged (OverflowError"),
        ("config of other columns", "no replay file of this run"),
        ("no replay", "has no replay.npy; use --data rollouts"),
        ("unknown environment", "cannot make environment 'Nowhere-v7'"),
        ("environment of another size", "is for 4 observations but Reacher-v4 has"),
        ("code in an actor file", "if you trust it: --env-id octants_env:Octants-v0"),
        ("environment NaNs-v0", "the environment gave"),
        ("environment NaNRewards-v0", "the environment gave the reward nan"),
        ("environment Breaks-v0", "RuntimeError('cable loose')"),
        ("names for another size", '1 names under "obs"'),
        ("names are no JSON", "JSON"),
        ("trees is in use", "has files that this script did not write"),
        ("output is a file", "config.json is a file; give another --output"),
        ("output nowhere", "the folder above it does not exist"),
        ("--max-depth 0", "choose 1 to 8"),
        ("--max-depth 9", "choose 1 to 8"),
        ("--max-samples 3", "--max-samples 3 is too small"),
        ("--episodes -1", "--episodes -1 is too small"),
        ("--dagger -1", "--dagger -1 is too small"),
        ("--fits 0", "--fits 0 is too small"),
        ("--seed -1", "--seed -1 is too small"),
        ("--seed 4294967296", "--seed 4294967296 is too large"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(what, says, tmp_path, run_main):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(100), np.arange(100) // 25 + 1)
    arguments = spoil(run_dir, what)
    before = sorted(str(path) for path in run_dir.rglob("*"))
    done = run_main(dt, *arguments)
    assert_one_line_error(done, says)
    assert done.stdout == "" and sorted(str(path) for path in run_dir.rglob("*")) == before


def test_a_failed_run_keeps_the_trees_of_the_one_before(tmp_path, run):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(500), np.arange(500) // 25 + 1)
    run(run_dir, "--episodes", 0, "--max-depth", 1)
    before = {path.name: path.read_bytes() for path in (run_dir / "trees").iterdir()}
    good = (run_dir / "replay.npy").read_bytes()
    (run_dir / "replay.npy").write_bytes(good[:-4000])
    assert run(run_dir, "--episodes", 0, "--max-depth", 2).returncode == 2
    assert {path.name: path.read_bytes() for path in (run_dir / "trees").iterdir()} == before
    (run_dir / "replay.npy").write_bytes(good)
    run(run_dir, "--episodes", 0, "--max-depth", 1)
    again = {path.name: path.read_bytes() for path in (run_dir / "trees").iterdir()}
    assert again == before  # the same run, the same files
    run(run_dir, "--episodes", 0, "--max-depth", 2)
    assert read(run_dir, "trees.json")["max_depth"] == 2 and not list(run_dir.glob(".trees*"))


def test_the_old_trees_come_back_when_the_last_step_fails(tmp_path, monkeypatch):
    folder = tmp_path / "trees"
    folder.mkdir()
    (folder / "trees.json").write_text("old")
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if target == folder and "new" in path.name:
            raise SystemExit(143)  # terminated between taking the old folder away and putting the new one there
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(SystemExit), dt.folder_replaced_at_the_end(folder) as fresh:
        (fresh / "trees.json").write_text("new")
    assert (folder / "trees.json").read_text() == "old" and list(tmp_path.glob(".*")) == []


def test_terminated_it_leaves_nothing(tmp_path):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(500), np.arange(500) // 25 + 1)
    command = [sys.executable, ROOT / "distill_trees.py", run_dir, "--env-id", OCTANTS_ID, "--episodes", "1000000"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    before = sorted(run_dir.iterdir())
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(1200):
            if sorted(run_dir.iterdir()) != before:
                break
            time.sleep(0.05)
        assert sorted(run_dir.iterdir()) != before  # it is at work
        process.send_signal(signal.SIGTERM)
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM and stderr == ""
    assert sorted(run_dir.iterdir()) == before


def test_ctrl_c_during_imports_is_quiet(tmp_path):
    (tmp_path / "sklearn.py").write_text("import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n")
    command, environment = (
        [sys.executable, ROOT / "distill_trees.py", "run"],
        os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "importing").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == -signal.SIGINT and process.stderr.read() == b""  # 130 to a shell


def test_nothing_is_lost_when_nobody_listens(tmp_path):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(500), np.arange(500) // 25 + 1)
    flags = ["--episodes", 1, "--fits", 1, "--max-depth", 1]
    reader, writer = os.pipe()
    os.close(reader)  # as after `| head -1`
    done = distill_process(tmp_path, run_dir, *flags, stdout=writer)
    os.close(writer)
    assert done.returncode == 0 and done.stderr == "" and len(read(run_dir, "trees.json")["experts"]) == 8
    shutil.rmtree(run_dir / "trees")
    done = distill_process(tmp_path, run_dir, *flags, stdout=None, preexec_fn=lambda: os.close(1))
    assert done.returncode == 0 and done.stderr == "" and len(read(run_dir, "trees.json")["experts"]) == 8


def test_an_ascii_terminal_will_do(tmp_path):
    run_dir = write_replay(write_actor(tmp_path / "größe"), grid_states(500), np.arange(500) // 25 + 1)
    (tmp_path / "names.json").write_text(json.dumps({"obs": ["höhe θ", "x", "y", "z"], "action": ["a", "b"]}))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    flags = ["--episodes", 1, "--fits", 1, "--names", tmp_path / "names.json"]
    done = distill_process(tmp_path, run_dir, *flags, env=plain)
    assert done.returncode == 0 and done.stderr == "" and "written to" in done.stdout
    assert "höhe θ <= 0" in (run_dir / "trees" / "expert_1.txt").read_text(encoding="utf-8")


def test_a_real_training_is_distilled_from_its_own_replay(smose_run, tmp_path, run_main):
    run_dir = tmp_path / smose_run.name
    shutil.copytree(smose_run, run_dir)
    assert run_main(dt, run_dir / "actor.safetensors", "--episodes", 3, "--fits", 2).returncode == 0
    report = read(run_dir, "fidelity.json")
    assert report["data"]["source"] == "replay" and report["data"]["states_available"] == 400
    actor = load_actor(run_dir)
    env, policy = make_env(actor), make_policy(actor)
    by_hand = []
    for i in range(3):
        by_hand.append(0.0)
        for step in play(env, policy, FIRST_EVAL_SEED + i):
            by_hand[-1] += step.reward
    assert report["closed_loop"]["router"]["returns"] == by_hand  # to the last bit
    trained = json.loads((run_dir / "evaluation.json").read_text())
    assert report["closed_loop"]["router"]["returns"] == trained["returns"]
    shares = [row["share"] for row in report["experts"]]
    assert len(shares) == 8 and sum(shares) == pytest.approx(1)
    assert read(run_dir, "trees.json")["obs_names"][0] == "cos θ_fa"


def test_a_sac_run_has_no_router(sac_run, run_main):
    assert_one_line_error(run_main(dt, sac_run), "is a SAC actor and has no router")
