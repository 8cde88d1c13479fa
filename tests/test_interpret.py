"""What interpret.py computes, against hand-computed values, and its command line as a user meets it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import equations
import gymnasium as gym
import numpy as np
import pytest
from command_line import UserError
from names import read_names
from safetensors.numpy import load_file, save_file
from saved_actor import Actor, load_actor, make_env, make_policy, play
from sentences import sentences_of

import interpret
import smose_sac
from interpret import Episode

ROOT = Path(interpret.__file__).parent
NAMES = json.loads((ROOT / "scripts" / "names.json").read_text(encoding="utf-8"))


def random_actor(m: int, n_a: int, n_s: int, seed: int = 0, **metadata: str) -> Actor:
    rng = np.random.default_rng(seed)
    shapes = {"router.weight": (m, n_s), "router.bias": (m,)}
    shapes |= {
        f"experts.{head}.{kind}": (m, n_a, n_s)[: 3 if kind == "weight" else 2]
        for head in ("mean", "log_std")
        for kind in ("weight", "bias")
    }
    weights = {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    weights |= {"action_scale": np.ones(n_a, np.float32), "action_bias": np.zeros(n_a, np.float32)}
    described = {"format": "smose-actor", "env_id": "Reacher-v4", "seed": "0", "steps": "10", "args": "{}"}
    return Actor(Path("actor.safetensors"), described | metadata, weights)


def save_actor(path: Path, actor: Actor, env_id: str, **metadata: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(actor.weights, path, metadata=actor.metadata | {"env_id": env_id} | metadata)
    return path


def run_interpret(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "interpret.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def reported(smose_run, tmp_path_factory) -> Path:
    """a copy of the tiny run with its report made"""
    folder = tmp_path_factory.mktemp("reported") / smose_run.name
    shutil.copytree(smose_run, folder)
    done = run_interpret(folder, "--episodes", 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"wrote {folder / 'report.html'}"
    return folder


def test_equation_of_the_paper():
    weights = np.zeros(11)
    weights[[4, 5, 9]] = 0.3, 2.7, -5.6
    spread = np.full(11, 0.5)
    spread[9] = 0.1
    symbols = [name["text"] for name in NAMES["Reacher"]["obs"]]
    equation = equations.equation_of(weights, 0.2, spread, "effect")
    assert equations.written(equation, symbols) == "2.7 y_T - 5.6 Δ_y + 0.30 x_T + 0.20"
    assert [t["effect"] for t in equation["terms"]] == pytest.approx([2.7 * 0.5, -5.6 * 0.1, 0.15, 0])
    assert equations.effects_written(equation, symbols) == "y_T 1.4, Δ_y -0.56, x_T 0.15"


def test_terms_rank_by_effect_by_weight_or_as_observed_and_constants_stay():
    weights, spread = np.array([2.0, -3.0, 0.1, 0.0]), np.array([1.0, 0.1, 50.0, 1.0])
    ranked = {
        rank: equations.written(equations.equation_of(weights, -1.75, spread, rank), ["a", "b", "c", "d"])
        for rank in ("order", "weight", "effect")
    }
    assert ranked == {
        "order": "2.0 a - 3.0 b + 0.10 c - 1.8",
        "weight": "-3.0 b + 2.0 a + 0.10 c - 1.8",
        "effect": "0.10 c + 2.0 a - 3.0 b - 1.8",
    }


def test_an_equation_without_terms_is_zero():
    assert equations.written(equations.equation_of(np.zeros(2), 0.0, np.ones(2), "effect"), ["a", "b"]) == "0"
    assert equations.written(equations.equation_of(np.zeros(2), -0.56, np.ones(2), "effect"), ["a", "b"]) == "-0.56"


@pytest.mark.parametrize(
    "weight, text",
    [(12.96, "13.0"), (-2.25, "2.3"), (0.949, "0.95"), (0.5, "0.50"), (0.996, "1.0"), (0.00416, "0.0042"), (0, "0.0")],
)
def test_coefficients(weight, text):
    assert equations.coefficient(weight) == text
    assert equations.coefficient(np.float32(text)) == text  # what was printed prints alike again


def test_a_printed_equation_is_read_again():
    symbols = ["a", "a b", "50% load - 1", "θ_2"]
    weights = np.array([0.0123, -250.04, 3.0, -0.7])
    for rank in ("effect", "order"):
        text = equations.written(equations.equation_of(weights, -0.05, np.ones(4), rank), symbols)
        read, bias = equations.read_equation(text, symbols)
        assert (read == equations.as_it_prints(weights)).all() and bias == np.float32(-0.05)
    for nonsense in ("", "2.0 c", "2.0 a 3.0 a b", "two", "2.0 a +"):
        with pytest.raises(ValueError):
            equations.read_equation(nonsense, symbols)


def test_score_difference_adds_up():
    actor = random_actor(6, 2, 9)
    for state in np.random.default_rng(1).normal(size=(50, 9)):
        z = interpret.scores(actor, state[None])[0]
        for i in range(6):
            for j in range(6):
                parts, bias = interpret.score_difference(actor, state, i, j)
                assert parts.sum() + bias == pytest.approx(z[i] - z[j], abs=1e-12)


@pytest.mark.parametrize("unit", [np.ones(5), np.array([0.1, 3.0, 1.0, 0.0, 20.0])])
def test_smallest_change_switches_and_nothing_shorter_does(unit):
    actor = random_actor(7, 2, 5, seed=3)
    rng = np.random.default_rng(2)
    for state in rng.normal(size=(40, 5)):
        i = int(interpret.scores(actor, state[None])[0].argmax())
        distance, other = interpret.nearest_switch(actor, state[None], unit)
        change, pair_distance = interpret.smallest_change(actor, state, i, int(other[0]), unit)
        assert pair_distance == pytest.approx(distance[0])
        moved = unit > 0
        assert np.linalg.norm(change[moved] / unit[moved]) == pytest.approx(pair_distance)
        assert (change[~moved] == 0).all()
        beyond, short = (interpret.scores(actor, (state + change * f)[None])[0] for f in (1 + 1e-6, 1 - 1e-6))
        assert beyond.argmax() == other[0]
        assert short.argmax() == i
        directions = rng.normal(size=(200, 5))
        directions *= 0.999 * pair_distance / np.linalg.norm(directions, axis=1, keepdims=True)
        assert (interpret.scores(actor, state + directions * unit).argmax(axis=1) == i).all()


def test_smallest_change_by_hand():
    actor = random_actor(2, 1, 2)
    actor.weights["router.weight"][:] = [3.0, 4.0], [0.0, 0.0]
    actor.weights["router.bias"][:] = 5.0, 0.0
    change, distance = interpret.smallest_change(actor, np.array([1.0, 1.0]), 0, 1, np.ones(2))
    assert distance == pytest.approx(12 / 5)
    assert change == pytest.approx([-12 / 25 * 3, -12 / 25 * 4])


def test_equal_rows_and_a_single_expert_have_no_switch():
    actor = random_actor(2, 1, 3)
    actor.weights["router.weight"][1] = actor.weights["router.weight"][0]
    state = np.array([0.1, 0.2, 0.3])
    assert interpret.smallest_change(actor, state, 0, 1, np.ones(3))[1] == np.inf
    assert interpret.nearest_switch(actor, state[None], np.ones(3))[1].tolist() == [-1]
    alone = random_actor(1, 1, 3)
    distance, other = interpret.nearest_switch(alone, state[None], np.ones(3))
    assert (distance[0], other[0]) == (np.inf, -1)
    assert interpret.answers_at(alone, state, np.ones(3))["nearest"] is None


def test_gates_by_hand():
    z = np.log(np.array([[1.0, 4.0, 3.0, 2.0]]))
    gates = {
        (k, gate): interpret.gate_weights(random_actor(4, 1, 2, top_k=str(k), gate=gate), z)[0].tolist()
        for k in (1, 2)
        for gate in ("one-hot", "softmax")
    }
    assert gates[1, "one-hot"] == [0, 1, 0, 0]
    assert gates[1, "softmax"] == pytest.approx([0, 0.4, 0, 0])
    assert gates[2, "one-hot"] == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert gates[2, "softmax"] == pytest.approx([0, 0.4, 0.3, 0])
    tied = interpret.gate_weights(random_actor(3, 1, 2), np.array([[1.0, 2.0, 2.0]]))[0]
    assert tied.tolist() == [0, 1, 0]


def test_torques_pass_tanh_scale_and_bias():
    actor = random_actor(2, 2, 3)
    w = actor.weights
    w["action_scale"][:], w["action_bias"][:] = [2.0, 0.5], [0.0, 1.0]
    state = np.array([0.3, -0.2, 0.9])
    m = int((w["router.weight"] @ state + w["router.bias"]).argmax())
    u = w["experts.mean.weight"][m] @ state + w["experts.mean.bias"][m]
    assert interpret.torques(actor, state[None])[0] == pytest.approx([2 * np.tanh(u[0]), 0.5 * np.tanh(u[1]) + 1])


def test_usage_by_hand():
    def episode(experts):
        return Episode(
            0, np.zeros((len(experts), 1), np.float32), np.zeros(len(experts)), np.array(experts), "truncated"
        )

    usage = interpret.usage_of([episode([0, 0, 2, 2, 2, 0]), episode([2, 0])], 4)
    assert usage["share"] == [0.5, 0, 0.5, 0]
    assert usage["dead"] == [2, 4]
    assert usage["transitions"][0] == [1, 0, 1, 0]
    assert usage["transitions"][2] == [2, 0, 2, 0]  # the step from one episode to the next is no transition
    assert (usage["switches"], usage["switches_per_100_steps"]) == (3, 50.0)
    assert usage["dwell"][0] == {"visits": 3, "mean": pytest.approx(4 / 3), "median": 1.0, "longest": 2}
    assert usage["dwell"][1] is None


def test_shares_of_variation_add_up_to_one():
    actor = random_actor(3, 4, 6)
    states = np.random.default_rng(5).normal(size=(300, 6)) * [1, 2, 3, 0.1, 5, 0]
    work = interpret.at_work(actor, 1, states, states.std(axis=0))
    assert work["share_of_variation"].sum(axis=1) == pytest.approx(np.ones(4))
    assert (work["share_of_variation"][:, 5] == 0).all()
    assert any((work["state"] == state).all() for state in states.astype(np.float32))


@pytest.mark.parametrize("env", sorted(NAMES))
def test_names_fit_gymnasium(env):
    gym.logger.min_level = gym.logger.ERROR
    made = gym.make(f"{env}-v4")
    names = read_names(None, f"{env}-v4", *made.observation_space.shape, *made.action_space.shape)
    assert names["obs"][0]["text"] == NAMES[env]["obs"][0]["text"]
    for kind in ("obs", "action"):
        ascii_names = [name["ascii"] for name in names[kind]]
        assert len(set(ascii_names)) == len(ascii_names) and all(name.isidentifier() for name in ascii_names)
    at = {name["text"]: i for i, name in enumerate(names["obs"])}
    base = made.unwrapped
    observation, _ = made.reset(seed=0)
    made.action_space.seed(0)
    for _ in range(3):
        observation, *_ = made.step(0.1 * made.action_space.sample())  # Hopper and Walker2d clip velocities above 10
    positions = {base.model.joint(i).name: base.data.joint(i) for i in range(base.model.njnt)}

    def check(symbol: str, value: float) -> None:
        assert observation[at[symbol]] == pytest.approx(value), symbol

    if env == "Reacher":
        check("cos θ_sa", np.cos(positions["joint1"].qpos[0]))
        check("sin θ_fa", np.sin(positions["joint0"].qpos[0]))
        check("ω_sa", positions["joint1"].qvel[0])
        check("y_T", positions["target_y"].qpos[0])
        tip, target = base.get_body_com("fingertip"), base.get_body_com("target")
        check("Δ_x", tip[0] - target[0])
        check("Δ_y", tip[1] - target[1])
    elif env == "Ant":
        check("ω_t", positions["root"].qpos[3])  # MuJoCo's quaternions begin with their real term
        check("ψ_tz", positions["root"].qpos[6])
        check("θ_bl2", positions["ankle_3"].qpos[0])
        check("ω_br", positions["hip_4"].qvel[0])
        joints = [base.model.joint(base.model.actuator(i).trnid[0]).name for i in range(8)]
        legs = {"fl": 1, "fr": 2, "bl": 3, "br": 4}
        for name, joint in zip(names["action"], joints, strict=True):
            leg = name["text"].removeprefix("τ_")
            assert joint == f"{'ankle' if leg.endswith('2') else 'hip'}_{legs[leg.removesuffix('2')]}"
    elif env == "Swimmer":
        check("θ_2", positions["motor2_rot"].qpos[0])
        check("v_fy", positions["slider2"].qvel[0])
        check("ω_f", positions["free_body_rot"].qvel[0])
    else:
        joint, symbol = {
            "Hopper": ("leg_joint", "l"),
            "Walker2d": ("leg_left_joint", "ll"),
            "HalfCheetah": ("fshin", "fs"),
        }[env]
        check(f"θ_{symbol}", positions[joint].qpos[0])
        check(f"ω_{symbol}", positions[joint].qvel[0])
        check("z_t", positions["rootz"].qpos[0])


def test_names_of_other_environments():
    names = read_names(None, "Pendulum-v1", 3, 1)
    assert [name["text"] for name in names["obs"]] == ["obs[0]", "obs[1]", "obs[2]"]
    assert names["action"][0]["ascii"] == "action_0"
    assert read_names(None, "Ant-v5", 105, 8)["obs"][104]["text"] == "obs[104]"


def test_own_names(tmp_path):
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"obs": ["50% load", {"text": "θ", "latex": "\\theta"}], "action": ["u"]}))
    names = read_names(str(path), "X-v0", 2, 1)
    assert names["obs"][0]["latex"] == r"\text{50\% load}"
    assert names["obs"][1] == {"text": "θ", "latex": "\\theta", "ascii": "obs_1", "description": "θ", "unit": ""}


def test_report_files(reported):
    made = {
        "report.html",
        "report.json",
        "weights.svg",
        "weights.png",
        "equations.txt",
        "equations.md",
        "equations.tex",
    }
    assert made <= {path.name for path in reported.iterdir()}
    assert not list(reported.glob(".*.part"))
    assert (reported / "weights.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (reported / "weights.svg").read_text()
    for name in ("equations.txt", "equations.md", "equations.tex"):
        text = (reported / name).read_text(encoding="utf-8")
        assert "tanh" in text and "scale" in text and "as printed: " in text.lower()
    page = (reported / "report.html").read_text(encoding="utf-8")
    assert "http://www.w3.org/2000/svg" in page and "https://" not in page and "{{" not in page


def test_report_numbers(reported):
    report = json.loads((reported / "report.json").read_text(encoding="utf-8"))
    tensors = load_file(reported / "actor.safetensors")
    assert (np.float32(report["policy"]["mean_weight"]) == tensors["experts.mean.weight"]).all()
    assert (np.float32(report["policy"]["router_bias"]) == tensors["router.bias"]).all()
    states = np.concatenate([np.float32(e["observations"]) for e in report["episodes"][:2]])
    assert states.shape == (100, 11) and report["states"]["count"] == 150
    effects = tensors["router.weight"] * np.array(report["states"]["obs_spread"])
    assert np.array(report["effects"]["router"]) == pytest.approx(effects, rel=1e-6)
    assert (report["actor"]["n_active"], report["actor"]["n_total"]) == (144, 480)
    evaluation = json.loads((reported / "evaluation.json").read_text())
    assert report["returns"]["source"] == "evaluation.json"
    assert report["returns"]["mean"] == pytest.approx(evaluation["mean"])
    # the same seeds and the same deterministic policy as the trainer's own evaluation
    assert [e["return"] for e in report["episodes"]] == pytest.approx(evaluation["returns"], rel=1e-4)
    for answer in filter(None, report["answers"]):
        for pair in answer["against"]:
            assert sum(pair["by_observation"]) + pair["by_bias"] == pytest.approx(pair["difference"], abs=1e-6)
    shares = np.sum([w["share_of_variation"] for w in report["at_work"] if w], axis=-1)
    constant = (shares == 0).all(1)  # an expert that acts in a single state
    assert shares == pytest.approx(np.where(constant, 0, np.ones((2, len(shares)))).T, abs=1e-6)
    assert constant.sum() < len(shares) / 2


def test_report_says_when_returns_are_its_own(reported, tmp_path):
    shutil.copy(reported / "actor.safetensors", tmp_path)
    saved = json.loads((reported / "evaluation.json").read_text())
    (tmp_path / "evaluation.json").write_text(json.dumps(saved | {"steps": 7}))  # of another moment of the training
    interpret.interpret(interpret.Args(path=str(tmp_path), episodes=2))
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["returns"]["source"] == "rollouts" and len(report["returns"]["returns"]) == 2


def test_video(reported, tmp_path):
    shutil.copy(reported / "actor.safetensors", tmp_path)
    done = run_interpret(tmp_path, "--video", "--episodes", 1)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    if done.stderr:  # no GL here: one line says so and everything else is there
        assert done.stderr.startswith("no video: ") and len(done.stderr.splitlines()) == 1
        assert '"frames":[]' in page and not (tmp_path / "episode.mp4").exists()
    else:
        assert page.count('"jpeg":') == 25  # every second of 50 steps: 25 pictures a second
        assert (tmp_path / "episode.mp4").read_bytes()[4:8] == b"ftyp"


FAR_AWAY = """
import film, gymnasium as gym, mujoco, numpy as np, sys
sys.exit(3) if not film.can_render("HalfCheetah-v4") else None
envs = [gym.make("HalfCheetah-v4", render_mode="rgb_array", camera_name="track") for _ in range(2)]
film.widen_floor(envs[0])
envs[0].action_space.seed(0)
for env in envs:
    env.reset(seed=0)
for _ in range(100):
    action = envs[0].action_space.sample()
    (ours, *_), (theirs, *_) = (env.step(action) for env in envs)
    assert np.array_equal(ours, theirs)
contrast = []
for env in envs:
    env.unwrapped.data.qpos[0] = 300
    mujoco.mj_forward(env.unwrapped.model, env.unwrapped.data)
    contrast.append(env.render()[-60:].std())
assert contrast[0] > 50 and contrast[1] < 30, contrast
"""


def test_the_floor_has_no_end_in_a_video_and_a_step_is_the_same():
    paths = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FAR_AWAY], env=paths, capture_output=True, text=True)
    if done.returncode == 3 and os.environ.get("CI") != "true":
        pytest.skip("no GL here")
    assert done.returncode == 0, done.stderr


def test_without_gl_the_report_is_made_without_video(reported, tmp_path):
    shutil.copy(reported / "actor.safetensors", tmp_path)
    command = [sys.executable, str(ROOT / "interpret.py"), str(tmp_path), "--video", "--episodes", "1"]
    environment = {**os.environ, "MUJOCO_GL": "glfw", "DISPLAY": ":nowhere"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("no video: ") and len(done.stderr.splitlines()) == 1
    assert (tmp_path / "report.html").exists() and not (tmp_path / "episode.mp4").exists()


def test_mistakes_end_in_one_line(reported, sac_run, tmp_path):
    damaged, wrong_names, short_names = (
        tmp_path / name for name in ("damaged.safetensors", "wrong.json", "short.json")
    )
    damaged.write_bytes((reported / "actor.safetensors").read_bytes()[:100])
    wrong_names.write_text("[")
    short_names.write_text('{"obs": ["a"], "action": ["u", "v"]}')
    nowhere = save_actor(tmp_path / "nowhere" / "actor.safetensors", random_actor(2, 1, 3), "no_such_module:Nothing-v0")
    misfit = save_actor(tmp_path / "misfit" / "actor.safetensors", random_actor(2, 1, 3), "Reacher-v4")
    diverged = random_actor(2, 1, 3)
    diverged.weights["experts.mean.bias"][0, 0] = np.nan
    huge = random_actor(2, 1, 3)
    huge.weights["experts.mean.weight"][0, 0, 0] = 1e37
    too_large = save_actor(tmp_path / "huge" / "actor.safetensors", huge, "Pendulum-v1")
    broken = save_actor(tmp_path / "broken" / "actor.safetensors", diverged, "Pendulum-v1")
    cases = [
        ([tmp_path / "missing"], "not found"),
        ([sac_run], "SMoSE actors"),
        ([damaged], "not a safetensors file"),
        ([reported, "--names", wrong_names], "JSON"),
        ([reported, "--names", short_names], "needs 11"),
        ([reported, "--episodes", "0"], "--episodes"),
        ([nowhere], "no_such_module"),
        ([misfit], "3 observations"),
        ([broken], "not finite"),
        ([too_large], "beyond 1e+09"),
    ]
    for arguments, part in cases:
        given = [str(a) for a in arguments]
        options = dict(zip(given[1::2], given[2::2], strict=True))
        args = interpret.Args(given[0], options.get("--names"), episodes=int(options.get("--episodes", 1)))
        with pytest.raises(UserError, match=r"[;,]") as mistake:
            interpret.interpret(args)
        assert part in str(mistake.value) and "\n" not in str(mistake.value)
    assert not [path for path in (nowhere.parent / "report.html", misfit.parent / "report.html") if path.exists()]
    done = run_interpret(tmp_path / "missing")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("error: ")


HAND_NAMES = {"obs": [{"text": text} for text in "xyz"], "action": [{"text": text} for text in "uv"]}


def hand_made() -> tuple[Actor, np.ndarray, np.ndarray]:
    """Two experts that share x between them, the first acts where x > 0, and a third that never acts."""
    actor = random_actor(3, 2, 3)
    w = actor.weights
    w["router.weight"][:] = [1, 0, 0], [-1, 0, 0], [0, 0, 0]
    w["router.bias"][:] = 0, 0, -9
    w["experts.mean.weight"][:2] = [[0, 0.1, 0], [0, 0, 0]], [[0, -0.1, 0], [0, 0, 5]]
    w["experts.mean.bias"][:2] = [0, 9], [0, 0]
    x = [1, 2, 3, 4, -1, -2, -3, -4, -5, -6]
    y = [1, -2, 1, 2, 1, -1, 2, -2, 1, 1]
    z = [0, 0, 0, 0, 9, 9, 9, 9, 9, -9]
    return actor, np.array([x, y, z], float).T, np.array([0] * 4 + [1] * 6)


def test_every_sentence_of_a_hand_made_policy_against_counts_by_hand():
    actor, states, acting = hand_made()
    said = sentences_of(actor, states, acting, HAND_NAMES)
    # the median of x is -1.5: all of the first expert's states lie above it, and 5 of the second's 6 below
    one = (
        "Expert 1 is favoured when x is above -1.5 (the median): so in 4 of its 4 states (100%), and in 1 of the other "
    )
    two = (
        "Expert 2 is favoured when x is below -1.5 (the median): so in 5 of its 6 states (83%), and in 0 of the other "
    )
    assert [(s["text"], s["share"], s["n"], s["expert"]) for s in said] == [
        (one + "6 states (17%).", 1, 4, 1),
        ("Its u has the sign of y in 4 of its 4 states (100%).", 1, 4, 1),
        ("Its v is positive in 4 of its 4 states (100%).", 1, 4, 1),
        ("Its v is beyond 95% of its limit in 4 of its 4 states (100%).", 1, 4, 1),
        ("Expert 1 acts in 4 of 10 states (40%).", 0.4, 10, 1),
        (two + "4 states (0%).", 5 / 6, 6, 2),
        ("Its u has the opposite sign of y in 6 of its 6 states (100%).", 1, 6, 2),
        ("Its v has the sign of z in 6 of its 6 states (100%).", 1, 6, 2),
        ("Its v is beyond 95% of its limit in 6 of its 6 states (100%).", 1, 6, 2),
        ("Expert 2 acts in 6 of 10 states (60%).", 0.6, 10, 2),
        ("Expert 3 acts in 0 of 10 states (0%).", 0, 10, 3),
    ]


def test_only_observations_that_decide_are_said_to_favour_an_expert():
    actor, states, acting = hand_made()
    actor.weights["router.weight"][:2, 2] = -0.3, 0.3  # z is nearly as telling as x
    one, other = (
        [s["when"][0]["obs"] for s in sentences_of(actor, states, acting, HAND_NAMES, deciding) if "when" in s]
        for deciding in ([0], [2])
    )
    assert one == [0, 0] and other == [2, 2]


def test_what_favours_an_expert_is_not_said_where_it_does_not_hold():
    actor, states, acting = hand_made()
    said = [s["text"] for s in sentences_of(actor, states, 1 - acting, HAND_NAMES) if "favour" in s["text"]]
    none = "No observation that favours Expert {} tells when it acts: each lies on its side of the median in at most "
    assert said == [
        none.format(1) + "1 of its 6 states (17%), or about as often when others act.",
        none.format(2) + "0 of its 4 states (0%), or about as often when others act.",
    ]


def test_equations_drive_as_printed_and_return_what_stands_beside_them(reported):
    report = json.loads((reported / "report.json").read_text(encoding="utf-8"))
    text = (reported / "equations.txt").read_text(encoding="utf-8")
    actor, driven = load_actor(reported), report["as_printed"]
    printed = equations.read_equations(text, actor, report["names"])
    for key in equations.READ:
        assert printed.weights[key] == pytest.approx(actor.weights[key], rel=0.0501, abs=0)  # two digits
    assert printed.n_read == actor.n_read == driven["numbers"] == 288
    env = make_env(actor)
    for policy, name in ((printed, "printed"), (actor, "real"), (equations.idle(actor), "nothing")):
        returns = [sum(s.reward for s in play(env, make_policy(policy), seed)) for seed in range(100_000, 100_020)]
        assert driven[name] == pytest.approx(np.mean(returns), rel=1e-8)  # nine digits in report.json
    acting = [s.expert for seed in range(100_000, 100_020) for s in play(env, make_policy(printed), seed)]
    assert driven["share"] == pytest.approx(np.bincount(acting, minlength=8) / len(acting))
    said = [float(share) for share in re.findall(r"^Expert \d \((.*) % of steps\)$", text, re.M)]
    assert said == pytest.approx([100 * share for share in driven["share"]], abs=0.051)
    assert (driven["episodes"], driven["first_seed"], driven["source"]) == (20, 100_000, "actor.safetensors")
    beside = f"as printed: {driven['printed']:.1f} of {driven['real']:.1f} (doing nothing: {driven['nothing']:.1f});"
    assert text.splitlines()[1].startswith(beside)
    assert beside in (reported / "equations.md").read_text() and beside in (reported / "equations.tex").read_text()


def test_the_report_acts_to_the_last_bit_as_evaluate_does(reported):
    actor = load_actor(reported)
    env = make_env(actor)
    episode = interpret.rollout(env, actor, 100_001)
    steps = list(play(env, make_policy(actor), 100_001))
    assert episode.rewards.tolist() == [step.reward for step in steps]
    assert episode.experts.tolist() == [step.expert for step in steps]
    assert (episode.observations == np.array([step.obs for step in steps], np.float32)).all()


def test_kept_terms_of_report_json_are_all_that_is_not_zero(reported):
    report = json.loads((reported / "report.json").read_text(encoding="utf-8"))
    rows = [row for entry in report["equations"] for row in (entry["score"], *entry["torques"])]
    assert sum(len(row["terms"]) for row in rows) == load_actor(reported).n_read
    for row in rows:
        effects = [abs(term["effect"]) for term in row["terms"] if term["obs"] is not None]
        assert effects == sorted(effects, reverse=True) and row["terms"][-1]["obs"] is None


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
def test_equations_fit_a_page_of_latex(reported, tmp_path):
    page = r"\documentclass{article}\usepackage{amsmath}\begin{document}\input{equations.tex}\end{document}"
    (tmp_path / "page.tex").write_text(page)
    shutil.copy(reported / "equations.tex", tmp_path)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout and (tmp_path / "page.pdf").exists()


def test_names_that_cannot_be_told_apart_are_refused(reported, tmp_path):
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"obs": ["a"] * 11, "action": ["u", "v"]}))
    args = interpret.Args(str(reported), str(names), episodes=1, output=str(tmp_path), pushes=False)
    with pytest.raises(UserError, match="give other --names"):
        interpret.interpret(args)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("actor", sorted(ROOT.glob("results/policies/*/*/actor.safetensors")), ids=str)
def test_the_trainer_takes_the_command_that_reproduces_a_policy(actor, monkeypatch):
    """Also where the policy was trained by a version with other flags."""
    settings = interpret.settings_of(load_actor(actor), "args")
    shown = interpret.flags("python smose_sac.py", interpret.without_retired(settings))
    assert json.loads((actor.parent / "report.json").read_text())["reproduce"][0] == shown
    monkeypatch.setattr(sys, "argv", shlex.split(shown)[1:])
    args = vars(smose_sac.parse_args())
    assert all(settings.get(name, value) == value for name, value in args.items())
