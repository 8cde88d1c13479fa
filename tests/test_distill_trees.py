"""Trees distilled from a router: exact where they can be, and judged on what they never saw."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
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


gym.register("Octants-v0", entry_point=Octants)
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


def run(monkeypatch, *arguments) -> None:
    monkeypatch.setattr(sys, "argv", ["distill_trees.py", *map(str, arguments)])
    dt.main()


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / "trees" / name).read_text(encoding="utf-8"))


def random_router(n_s: int, n_experts: int = 8, seed: int = 0) -> dt.Actor:
    rng = np.random.default_rng(seed)
    router = rng.standard_normal((n_experts, n_s)).astype(np.float32), np.zeros(n_experts, np.float32)
    experts = np.zeros((n_experts, 1, n_s), np.float32), np.zeros((n_experts, 1), np.float32)
    return dt.Actor("none", 0, 1, "one-hot", *router, *experts, np.ones(1, np.float32), np.zeros(1, np.float32))


def random_data(actor: dt.Actor, n: int, seed: int = 0) -> dt.Data:
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


def test_exact_regions_are_recovered_from_the_command_line(tmp_path):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(3000), np.arange(3000) // 25 + 1)
    command = [sys.executable, str(ROOT / "distill_trees.py"), str(run_dir), "--episodes", "6"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
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
    assert np.std(loop["router"]["returns"]) > 0
    assert [row["depth"] for row in report["curve"]] == list(range(1, 9))
    assert report["curve"][0]["joint_fidelity"] < 0.6 and report["curve"][7]["joint_fidelity"] == 1
    assert "difference          0.00 (0.00 to 0.00)" in done.stdout
    written = {path.name for path in (run_dir / "trees").iterdir()}
    expected = {f"expert_{m}.{kind}" for m in range(1, 9) for kind in ("svg", "png", "txt")}
    assert written == expected | {"trees.json", "fidelity.json", "fidelity.png"}
    assert "obs[0] <= 0:" in (run_dir / "trees" / "expert_1.txt").read_text()


def test_trees_too_shallow_cost_return_and_the_interval_says_so(tmp_path, monkeypatch):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(3000), np.arange(3000) // 25 + 1)
    run(monkeypatch, run_dir, "--episodes", 8, "--max-depth", 1)
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
    experts, multiclass = dt.fit_trees(data, 8, dt.CURVE_DEPTH, seed=0)
    forest = json.loads(json.dumps([dt.json_nodes(tree, 3) for tree in experts]))
    states = np.random.default_rng(9).standard_normal((10_000, 11)).astype(np.float32)
    train, labels = data.states[~data.held_out], data.labels[~data.held_out]
    ours = np.array([[plain_probability(nodes, state) for nodes in forest] for state in states.tolist()])
    theirs = np.empty_like(ours)
    for m in range(8):
        classifier = DecisionTreeClassifier(max_depth=3, class_weight="balanced", random_state=0)
        theirs[:, m] = classifier.fit(train, labels == m).predict_proba(states)[:, 1]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert [dt.tree_routed_expert(forest, state) for state in states] == ours.argmax(axis=1).tolist()

    classifier = DecisionTreeClassifier(max_depth=3, class_weight="balanced", random_state=0).fit(train, labels)
    nodes = json.loads(json.dumps(dt.json_nodes(multiclass, 3, multiclass=True)))
    leaves = np.array([dt.leaf_of(nodes, state)["probabilities"] for state in states])
    np.testing.assert_allclose(leaves, classifier.predict_proba(states), rtol=0, atol=1e-12)


def test_neighbouring_float32_values_are_kept_apart():
    low = np.float32(3.3)  # scikit-learn splits only values more than 1e-7 apart
    high = np.nextafter(low, np.float32(4))
    for _ in range(20):  # half of the midpoints round to the upper value in float32
        states = np.array([[low], [high]] * 10, np.float32)
        nodes = dt.json_nodes(dt.fit_tree(states, np.array([0, 1] * 10), 2, 1, 0), 1)
        assert dt.leaf_of(nodes, states[0])["probability"] == 0 and dt.leaf_of(nodes, states[1])["probability"] == 1
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
    experts, multiclass = dt.fit_trees(data, 4, 3, seed=0)
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
    assert dt.leaf_of(nodes, [1.0]) == {"probability": pytest.approx(0.9), "samples": 20}
    assert dt.leaf_of(nodes, [0.0]) == {"probability": 0, "samples": 80}


def test_an_expert_without_states_gets_a_tree_that_says_never(tmp_path, monkeypatch, capsys):
    bias = np.array([0, 0, -1e6, 0, 0, 0, 0, 0], np.float32)
    run_dir = write_actor(tmp_path / "run", **{"router.bias": bias})
    write_replay(run_dir, grid_states(2000), np.arange(2000) // 25 + 1)
    run(monkeypatch, run_dir, "--episodes", 2, "--max-depth", 1)
    third = read(run_dir, "trees.json")["experts"][2]
    assert third == {
        "expert": 3,
        "share": 0,
        "never": True,
        "nodes": [{"probability": 0, "samples": third["nodes"][0]["samples"]}],
    }
    row = read(run_dir, "fidelity.json")["experts"][2]
    assert row["never"] and row["share"] == 0 and row["precision"] is None and row["recall"] is None
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "never" in line]
    assert line.split()[:2] == ["3", "0.0%"]
    assert "never" in (run_dir / "trees" / "expert_3.txt").read_text()
    assert (run_dir / "trees" / "expert_3.png").stat().st_size > 1000


def test_one_expert_alone(tmp_path, monkeypatch):
    one = {name: tensor[:1] for name, tensor in load_file(write_actor(tmp_path / "all") / "actor.safetensors").items()}
    one |= {"action_scale": np.ones(2, np.float32), "action_bias": np.zeros(2, np.float32)}
    run_dir = write_actor(tmp_path / "run", **one)
    run(monkeypatch, run_dir, "--episodes", 2, "--rollout-steps", 50)
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
    trees, spoilt_trees = (dt.fit_trees(d, 8, 3, seed=0) for d in (data, spoilt))
    for a, b in zip([*trees[0], trees[1]], [*spoilt_trees[0], spoilt_trees[1]], strict=True):
        assert dt.json_nodes(a, 3, True) == dt.json_nodes(b, 3, True)
    train_only = replace(data, held_out=np.zeros(3000, bool))
    assert dt.json_nodes(dt.fit_trees(train_only, 8, 3, 0)[0][0], 3) != dt.json_nodes(trees[0][0], 3)


def test_replay_rows_are_read_as_the_trainer_left_them(tmp_path):
    run_dir = write_actor(tmp_path / "run")
    states, episodes = grid_states(1000), np.roll(np.arange(1000) // 25 + 1, 300)  # a ring whose start lies inside
    write_replay(run_dir, states, episodes, spare=200_000)
    actor = dt.load_actor(run_dir / "actor.safetensors")
    data = dt.read_replay(actor, run_dir, 10_000, np.random.default_rng(0))
    assert np.array_equal(data.states, states) and np.array_equal(data.episodes, episodes)
    by_sign = ((states[:, 0] < 0) * 4 + (states[:, 1] < 0) * 2 + (states[:, 2] < 0)).astype(int)
    assert np.array_equal(data.labels, by_sign) and data.counts.sum() == 1000
    few = dt.read_replay(actor, run_dir, 100, np.random.default_rng(0))
    assert len(few.states) == 100 and few.counts.sum() == 1000
    assert not set(few.episodes[few.held_out]) & set(few.episodes[~few.held_out])


def test_the_subsample_and_a_lone_episode_are_stated(tmp_path, monkeypatch, capsys):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(1000), np.ones(1000))
    run(monkeypatch, run_dir, "--episodes", 0, "--max-samples", 400, "--max-depth", 1)
    out = capsys.readouterr().out
    assert "states: 400 of 1,000 from replay, drawn at random (--max-samples 400)" in out
    assert "note: only one episode" in out and "closed loop" not in out
    report = read(run_dir, "fidelity.json")
    assert report["data"]["states_used"] == 400 and report["data"]["states_available"] == 1000
    assert report["data"]["held_out_states"] == 80 and report["closed_loop"] is None


def test_dagger_adds_states_the_trees_lead_to_and_labels_them_by_the_router(tmp_path):
    actor = dt.load_actor(write_actor(tmp_path / "run") / "actor.safetensors")
    env, args = dt.make_env(actor), dt.Args(path=tmp_path, rollout_steps=250)
    always_second = [[{"probability": float(m == 1), "samples": 1}] for m in range(8)]
    data = dt.collect_states(env, actor, args, dt.DAGGER_SEED, np.random.default_rng(0), always_second)
    assert len(data.states) == 250 and np.array_equal(data.labels, dt.router_labels(actor, data.states))
    drift = np.tanh(actor.mean_bias[1]).sum() * (np.arange(250) % 25)  # only the second expert has acted
    np.testing.assert_allclose(data.states[:, 3], drift, atol=1e-5)
    first = dt.collect_states(env, actor, args, dt.ROLLOUT_SEED, np.random.default_rng(0))
    assert not np.allclose(first.states[:, 3], drift, atol=1e-2)
    both = dt.aggregate(first, data)
    assert np.array_equal(both.states[250:], data.states) and both.held_out.sum() == 100
    assert len(np.unique(both.episodes)) == 20
    assert not set(both.episodes[both.held_out]) & set(both.episodes[~both.held_out])


def test_dagger_reports_every_round(tmp_path, monkeypatch, capsys):
    run_dir = write_actor(tmp_path / "run")
    run(monkeypatch, run_dir, "--dagger", 2, "--rollout-steps", 500, "--episodes", 3, "--max-depth", 2)
    report = read(run_dir, "fidelity.json")
    assert [row["round"] for row in report["dagger"]] == [0, 1, 2]
    assert [row["train_states"] for row in report["dagger"]] == [400, 800, 1200]
    assert report["data"]["train_states"] == 1200 and report["data"]["source"] == "rollouts"
    assert report["dagger"][2]["joint_fidelity"] == report["joint_fidelity"]
    assert report["dagger"][2]["closed_loop"] == report["closed_loop"]
    assert report["dagger"][0]["closed_loop"]["router"] == report["closed_loop"]["router"]
    table = capsys.readouterr().out.split("DAgger")[1].splitlines()
    assert [line.split()[0] for line in table[2:5]] == ["0", "1", "2"]


def test_mixing_actors_act_as_deployed_and_the_note_says_what_trees_change(tmp_path, monkeypatch, capsys):
    run_dir = write_actor(tmp_path / "run", top_k="2", gate="softmax")
    actor = dt.load_actor(run_dir / "actor.safetensors")
    state = np.array([1, 0.5, 0.5, 0], np.float32)
    logits = SIGNS @ state
    p = np.exp(logits) / np.exp(logits).sum()
    first, second = 0, 1  # scores 2 and 1; the third pattern also scores 1, ties go to the lowest index
    mean = p[first] * actor.mean_bias[first] + p[second] * actor.mean_bias[second]
    np.testing.assert_allclose(dt.act(actor, state), np.tanh(mean), rtol=1e-5)
    renormalised = mean / (p[first] + p[second])
    np.testing.assert_allclose(dt.act(replace(actor, gate="one-hot"), state), np.tanh(renormalised), rtol=1e-5)
    assert np.array_equal(dt.act(replace(actor, gate="one-hot", top_k=1), state), dt.act(actor, state, expert=0))
    run(monkeypatch, run_dir, "--episodes", 2, "--rollout-steps", 200, "--max-depth", 1)
    assert "one expert acts alone" in read(run_dir, "fidelity.json")["notes"][0]
    assert "note: the actor weighs its experts (top_k 2, gate softmax)" in capsys.readouterr().out


def test_bootstrap_interval_is_scipys():
    router, trees = np.random.default_rng(0).standard_normal((2, 20)).tolist()
    result = dt.compare_returns(router, trees, 1.0, seed=0)["difference"]
    theirs = bootstrap((np.subtract(trees, router),), np.mean, method="percentile", n_resamples=20_000, rng=1)
    assert result["mean"] == pytest.approx(np.mean(trees) - np.mean(router))
    assert result["interval_95"] == pytest.approx(list(theirs.confidence_interval), abs=0.03)
    assert dt.compare_returns([1.0], [2.0], 1.0, 0)["difference"] == {"mean": 1, "interval_95": None}


def test_names_are_the_papers_the_users_or_plain(tmp_path, monkeypatch):
    reacher = replace(random_router(n_s=11), env_id="Reacher-v4")
    texts, symbols = dt.observation_names(reacher, None)
    assert texts[0] == "cos θ_fa" and symbols[0] == r"$\cos\theta_{fa}$"
    assert dt.observation_names(replace(random_router(n_s=5), env_id="Reacher-v4"), None)[0][4] == "obs[4]"
    file = tmp_path / "names.json"
    file.write_text(json.dumps({"obs": ["left", {"text": "right", "latex": "r_1"}, "up $", "drift"]}))
    run_dir = write_actor(tmp_path / "run")
    run(monkeypatch, run_dir, "--names", file, "--episodes", 0, "--rollout-steps", 500)
    rules = (run_dir / "trees" / "expert_1.txt").read_text()
    assert "if left <= 0:" in rules and "if right <= 0:" in rules and "if up $ <= 0:" in rules
    assert read(run_dir, "trees.json")["obs_names"] == ["left", "right", "up $", "drift"]


def spoil(run_dir: Path, what: str) -> list:
    """Break one thing; returns the arguments that a user would then type."""
    replay, config, actor = run_dir / "replay.npy", run_dir / "config.json", run_dir / "actor.safetensors"
    table = np.load(replay)
    if what == "no such folder":
        return [run_dir / "nowhere"]
    if what == "no actor in it":
        actor.unlink()
    elif what == "SAC actor":
        save_file({"mean.weight": np.zeros((1, 1), np.float32)}, actor, metadata={"format": "sac-actor"})
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
    elif what == "no replay":
        replay.unlink()
        return [run_dir, "--data", "replay"]
    elif what == "unknown environment":
        return [write_actor(run_dir, env_id="Nowhere-v7"), "--data", "rollouts"]
    elif what == "environment of another size":
        return [write_actor(run_dir, env_id="Reacher-v4"), "--data", "rollouts"]
    elif what == "names for another size":
        (run_dir / "names.json").write_text('{"obs": ["one"]}')
        return [run_dir, "--names", run_dir / "names.json"]
    elif what == "names no matplotlib can set":
        (run_dir / "names.json").write_text(json.dumps({"obs": [{"text": "a", "latex": r"\frac{"}] * 4}))
        return [run_dir, "--names", run_dir / "names.json"]
    elif what == "trees is in use":
        (run_dir / "trees").mkdir()
        (run_dir / "trees" / "thesis.txt").write_text("mine")
    elif what.startswith("--"):
        return [run_dir, *what.split()]
    return [run_dir]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no such folder", "there is no"),
        ("no actor in it", "actor.safetensors; give a run folder"),
        ("SAC actor", "not a SMoSE actor (sac-actor"),
        ("not safetensors", "damaged or not a safetensors actor"),
        ("cut actor", "damaged"),
        ("actor with a hole", "damaged"),
        ("actor of two sizes", "damaged"),
        ("replay of another environment", "another environment (Hopper-v4"),
        ("replay of another size", "another environment"),
        ("cut replay", "replay.npy is damaged"),
        ("replay is text", "replay.npy is damaged"),
        ("replay with objects", "replay.npy is"),
        ("replay too narrow", "no replay file of this run"),
        ("replay with nan", "replay.npy is damaged"),
        ("empty replay", "replay.npy is empty"),
        ("no rows", "replay.npy is"),
        ("no config", "config.json"),
        ("damaged config", "config.json"),
        ("no replay", "has no replay.npy; use --data rollouts"),
        ("unknown environment", "cannot make the environment Nowhere-v7"),
        ("environment of another size", "the actor ((4,), (2,))"),
        ("names for another size", "names 1 observations, the actor has 4"),
        ("names no matplotlib can set", "no file of names"),
        ("trees is in use", "was not written by this script"),
        ("--max-depth 0", "choose 1 to 8"),
        ("--max-depth 9", "choose 1 to 8"),
        ("--max-samples 3", "--max-samples 3 is too small"),
        ("--episodes -1", "--episodes -1 is too small"),
        ("--dagger -1", "--dagger -1 is too small"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(what, says, tmp_path, monkeypatch, capsys):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(100), np.arange(100) // 25 + 1)
    arguments = spoil(run_dir, what)
    before = sorted(str(path) for path in run_dir.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, *arguments)
    captured = capsys.readouterr()
    assert stopped.value.code == 2 and captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and says in captured.err
    assert sorted(str(path) for path in run_dir.rglob("*")) == before


def test_a_failed_run_keeps_the_trees_of_the_one_before(tmp_path, monkeypatch):
    run_dir = write_replay(write_actor(tmp_path / "run"), grid_states(500), np.arange(500) // 25 + 1)
    run(monkeypatch, run_dir, "--episodes", 0, "--max-depth", 1)
    before = {path.name: path.read_bytes() for path in (run_dir / "trees").iterdir()}
    good = (run_dir / "replay.npy").read_bytes()
    (run_dir / "replay.npy").write_bytes(good[:-4000])
    with pytest.raises(SystemExit):
        run(monkeypatch, run_dir, "--episodes", 0, "--max-depth", 2)
    assert {path.name: path.read_bytes() for path in (run_dir / "trees").iterdir()} == before
    (run_dir / "replay.npy").write_bytes(good)
    run(monkeypatch, run_dir, "--episodes", 0, "--max-depth", 1)
    assert {
        path.name: path.read_bytes() for path in (run_dir / "trees").iterdir()
    } == before  # the same run, the same files
    run(monkeypatch, run_dir, "--episodes", 0, "--max-depth", 2)
    assert read(run_dir, "trees.json")["max_depth"] == 2 and not list(run_dir.glob(".trees*"))


def test_a_real_training_is_distilled_from_its_own_replay(smose_run, tmp_path, monkeypatch):
    run_dir = tmp_path / smose_run.name
    shutil.copytree(smose_run, run_dir)
    run(monkeypatch, run_dir / "actor.safetensors", "--episodes", 3)
    report = read(run_dir, "fidelity.json")
    assert report["data"]["source"] == "replay" and report["data"]["states_available"] == 400
    trained = json.loads((run_dir / "evaluation.json").read_text())
    assert report["closed_loop"]["router"]["returns"] == pytest.approx(trained["returns"][:3], rel=1e-4)
    shares = [row["share"] for row in report["experts"]]
    assert len(shares) == 8 and sum(shares) == pytest.approx(1)
    assert read(run_dir, "trees.json")["obs_names"][0] == "cos θ_fa"


def test_a_sac_run_has_no_router(sac_run, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, sac_run)
    assert stopped.value.code == 2 and "not a SMoSE actor" in capsys.readouterr().err
