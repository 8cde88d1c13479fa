"""What a training leaves: the run folder's files against what happened, and what it says on the way."""

import ctypes.util
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import evaluate
import gymnasium as gym
import imageio.v3 as imageio
import mujoco
import numpy as np
import pytest
import saved_actor
from commands import (
    BRIEF,
    REACHER,
    ROOT,
    TESTS,
    TRAINERS,
    evaluations,
    events,
    file_names,
    metadata,
    scalars,
    tensors,
    train,
)
from commands import run as run_trainer
from conftest import Done

import smose_sac

needs_gl = pytest.mark.skipif(not ctypes.util.find_library("EGL"), reason="needs libegl1")


@pytest.fixture(scope="module")
def tug(trainer, tmp_path_factory) -> tuple[Path, Done]:
    """a run on an environment of the user's own, started from nothing, with all that happened in tug*.jsonl"""
    folder = tmp_path_factory.mktemp("tug")
    flags = "--env-id tug_env:Tug-v0 --seed 7 --total-timesteps 1_100 --learning-starts 800 --batch-size 32".split()
    flags += "--buffer-size 2_000 --eval-every 400 --eval-episodes 2 --final-eval-episodes 3 --no-compile".split()
    done = from_nothing(folder, trainer, *flags)
    assert (done.returncode, done.stderr) == (0, ""), done
    (run,) = folder.glob("runs/*")
    return run, done


def from_nothing(folder: Path, trainer: str, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    """In a process that imports everything itself; MuJoCo looks at the environment when it is imported."""
    size = ["--size", "S"] if trainer == "sac_baseline" else []
    environment = os.environ | {"PYTHONPATH": str(TESTS)} | environment
    command = [sys.executable, ROOT / f"{trainer}.py", *size, *flags]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)


def test_run_folder_holds_what_the_follow_up_scripts_read(trainer, reacher):
    assert file_names(reacher) == {
        "actor.safetensors", "actor_best.safetensors", "checkpoint.safetensors", "config.json", "evaluation.json",
        "evaluations.csv", "events", "replay.npy",
    }  # fmt: skip
    exp_name = {"smose_sac": "smose_sac", "sac_baseline": "sac_s"}[trainer]
    started = re.fullmatch(rf"Reacher-v4__{exp_name}__0__(\d+)", reacher.name)
    assert 0 <= time.time() - int(started[1]) < 36_000

    config, smose = json.loads((reacher / "config.json").read_text()), trainer == "smose_sac"
    read = sum(np.count_nonzero(t) for name, t in tensors(reacher / "actor.safetensors").items() if is_read(name))
    counts = {"n_active": 144, "n_total": 480} if smose else {"n_active": 148, "n_total": 148}
    expected = {"format": "smose-run" if smose else "sac-run", "env_id": "Reacher-v4", "obs_size": 11, **counts}
    expected |= {"action_size": 2, "n_read": int(read), "compiled": False}
    assert {name: config[name] for name in expected} == expected and 0 < config["hours"] < 1
    assert config.keys() == {*expected, "hours", "args", "replay_columns", "versions"}
    columns = {"obs": [0, 11], "action": [11, 13], "next_obs": [13, 24], "reward": [24, 25], "terminated": [25, 26]}
    assert config["replay_columns"] == columns | {"episode": [26, 27]}
    assert config["versions"].keys() == {"python", "torch", "gymnasium", "mujoco", "numpy"}
    assert config["versions"]["numpy"] == np.__version__
    flags = {"seed": 0, "total_timesteps": 420, "buffer_size": 150, "gamma": 0.99, "tau": 0.005, "keep_replay": True}
    flags |= {"precision": "float32"} | ({"keep": 1.0, "router_inputs": None, "authors": False} if smose else {})
    assert {name: config["args"][name] for name in flags} == flags

    for name in ("actor", "actor_best"):
        about = metadata(reacher / f"{name}.safetensors")
        own = {"n_experts": "8", "top_k": "1", "gate": "one-hot"} if smose else {"size": "S", "hidden_sizes": "[9]"}
        assert about.keys() == {"format", "env_id", "seed", "steps", "precision", "args", "versions", *own}
        expected = {"format": "smose-actor" if smose else "sac-actor", "env_id": "Reacher-v4", "seed": "0", **own}
        assert {key: about[key] for key in expected} == expected and about["precision"] == "float32"
        assert json.loads(about["args"]) == config["args"]
        assert json.loads(about["versions"]) == config["versions"]
    assert metadata(reacher / "actor.safetensors")["steps"] == "420"
    assert metadata(reacher / "checkpoint.safetensors")["global_step"] == "420"


def is_read(name: str) -> bool:
    """Is this a tensor of the deployed policy's equations?"""
    return "log_std" not in name and not name.startswith("action_")


def test_saved_actor_has_the_named_tensors(trainer, reacher):
    shapes = {"action_scale": (2,), "action_bias": (2,)}
    if trainer == "smose_sac":
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


def played(path: Path, episodes: int, first_seed: int) -> list[list[saved_actor.Step]]:
    """Episodes of a saved actor, as every script plays them."""
    actor = saved_actor.load_actor(path)
    env, policy = saved_actor.make_env(actor, actor.env_id), saved_actor.make_policy(actor)
    return [list(saved_actor.play(env, policy, first_seed + i)) for i in range(episodes)]


def test_evaluations_are_those_of_the_saved_actors_to_the_last_bit(trainer, reacher):
    rows, final = evaluations(reacher), json.loads((reacher / "evaluation.json").read_text())
    smose = trainer == "smose_sac"
    usage = [f"usage_{m}" for m in range(1, 9)] if smose else []
    assert list(rows[0]) == ["step", "return_mean", "return_std", "length_mean", "length_std", *usage]
    assert [row["step"] for row in rows] == [150, 300, 420]
    expected = {"env_id": "Reacher-v4", "seed": 0, "steps": 420, "episodes": 3, "first_eval_seed": 100_000}
    expected |= {"ended_early": 0.0}
    counts = {
        name: json.loads((reacher / "config.json").read_text())[name] for name in ("n_active", "n_total", "n_read")
    }
    assert {name: final[name] for name in expected | counts} == expected | counts
    experts = {"expert_usage", "switches_per_100_steps"} if smose else set()
    assert final.keys() == {*expected, *counts, "returns", "lengths", "mean", "std", *experts}

    episodes = played(reacher / "actor.safetensors", 3, 100_000)
    assert final["returns"] == [sum(step.reward for step in steps) for steps in episodes]
    assert final["lengths"] == [len(steps) for steps in episodes] == [50, 50, 50]
    assert (final["mean"], final["std"]) == (np.mean(final["returns"]), np.std(final["returns"]))
    if smose:
        chosen = [[step.expert for step in steps] for steps in episodes]
        switches = sum(a != b for experts in chosen for a, b in zip(experts, experts[1:], strict=False))
        assert final["switches_per_100_steps"] == pytest.approx(100 * switches / 150)
        assert final["expert_usage"] == pytest.approx(np.bincount(np.concatenate(chosen), minlength=8) / 150)

    # those on the way, which choose actor_best, are played on other episodes
    episodes = played(reacher / "actor.safetensors", 2, 200_000)
    returns = [sum(step.reward for step in steps) for steps in episodes]
    assert (rows[-1]["return_mean"], rows[-1]["return_std"]) == (np.mean(returns), np.std(returns))
    assert (rows[-1]["length_mean"], rows[-1]["length_std"]) == (50, 0)
    chosen = np.concatenate([[step.expert for step in steps] for steps in episodes])
    assert [rows[-1][name] for name in usage] == pytest.approx([np.mean(chosen == m) for m in range(len(usage))])
    best = max(rows, key=lambda row: row["return_mean"])
    assert metadata(reacher / "actor_best.safetensors")["steps"] == f"{best['step']:.0f}"
    episodes = played(reacher / "actor_best.safetensors", 2, 200_000)
    assert best["return_mean"] == np.mean([sum(step.reward for step in steps) for steps in episodes])


def test_evaluate_script_gives_the_runs_own_returns(reacher, run_main, tmp_path):
    done = run_main(evaluate, reacher, "--episodes", 3, "--output", tmp_path / "evaluation.json")
    assert done.returncode == 0, done.stderr
    (again,), final = (json.loads((f / "evaluation.json").read_text()) for f in (tmp_path, reacher))
    assert (again["returns"], again["lengths"]) == (final["returns"], final["lengths"])


@pytest.mark.parametrize(
    "flags", ["--gate softmax", "--top-k 2", "--gate softmax --top-k 3 --n-experts 4", "--authors"]
)
def test_other_gates_act_as_the_scripts_do_to_the_last_bit(flags, tmp_path):
    run = train(tmp_path, "smose_sac", *REACHER, "--total-timesteps", "140", *flags.split())
    about, config = metadata(run / "actor.safetensors"), json.loads((run / "config.json").read_text())
    args, final = config["args"], json.loads((run / "evaluation.json").read_text())
    assert about["gate"] == ("softmax" if "softmax" in flags or "authors" in flags else "one-hot")
    assert about["top_k"] == str(args["top_k"]) and (f"--top-k {about['top_k']}" in flags or about["top_k"] == "1")
    m, k = args["n_experts"], args["top_k"]
    assert (config["n_active"], config["n_total"]) == ((m + 4 * k) * 12, (m + 4 * m) * 12)
    assert final["returns"] == [sum(s.reward for s in steps) for steps in played(run, 3, 100_000)]
    assert len(final["expert_usage"]) == m and sum(final["expert_usage"]) == pytest.approx(1)


def tug_log(run: Path, seed: int) -> list[dict]:
    """What happened to the environment that was trained on."""
    logs = [[json.loads(line) for line in path.open()] for path in run.parent.parent.glob("tug*.jsonl")]
    (log,) = (log for log in logs if {"seed": seed} in log)
    return log


def test_replay_holds_what_happened_in_order(tug):
    run, _ = tug
    columns = json.loads((run / "config.json").read_text())["replay_columns"]
    assert columns["action"] == [3, 5] and columns["episode"] == [10, 11]
    replay = np.load(run / "replay.npy", mmap_mode="r")
    assert replay.dtype == np.float32 and len(replay) >= 1100
    happened = [event for event in tug_log(run, 7) if "row" in event]
    assert len(happened) == 1100 and sum(event["done"] for event in happened) > 20
    assert np.array_equal(replay[:1100, :10], np.array([event["row"] for event in happened], np.float32))
    episode = 1 + np.cumsum([0, *(event["done"] for event in happened[:-1])])
    assert np.array_equal(replay[:1100, 10], episode)
    assert not replay[1100:].any()
    terminated = replay[:1100, 9].astype(bool)
    done = np.array([event["done"] for event in happened])
    assert 0 < terminated.sum() < done.sum() and not (terminated & ~done).any()  # a truncation is no termination


def test_random_warm_up_covers_asymmetric_bounds(tug):
    run, _ = tug
    actions = np.load(run / "replay.npy", mmap_mode="r")[:800, 3:5]
    shares = [np.histogram(actions[:, i], 4, bounds)[0] for i, bounds in enumerate([(-1, 3), (0, 0.5)])]
    assert np.sum(shares, 1).tolist() == [800, 800] and np.min(shares) > 140
    saved = tensors(run / "actor.safetensors")
    assert saved["action_scale"].tolist() == [2, 0.25] and saved["action_bias"].tolist() == [1, 0.25]


def test_users_own_environment_is_evaluated_on_fixed_seeds(tug):
    """Episodes of the final evaluation are others than those that chose actor_best."""
    run, _ = tug
    assert re.fullmatch(r"tug_env-Tug-v0__(smose_sac|sac_s)__7__\d+", run.name)
    assert [row["step"] for row in evaluations(run)] == [400, 800, 1100]
    assert json.loads((run / "evaluation.json").read_text())["episodes"] == 3
    assert json.loads((run / "config.json").read_text())["args"]["total_timesteps"] == 1100
    logs = [[json.loads(line) for line in path.open()] for path in run.parent.parent.glob("tug*.jsonl")]
    seeds = []  # of episodes that were played
    for log in logs:
        seeds += [
            event["seed"] for event, after in zip(log, log[1:], strict=False) if "seed" in event and "row" in after
        ]
    assert sorted(seed for seed in seeds if seed) == [100_000, 100_001, 100_002] + [200_000] * 3 + [200_001] * 3


def test_tensorboard_has_cleanrls_curves(trainer, tug):
    run, _ = tug
    curves = scalars(run)
    tags = {"charts/episodic_return", "charts/episodic_length", "eval/episodic_return", "eval/final_return"}
    losses = "qf1_values qf2_values qf1_loss qf2_loss qf_loss actor_loss alpha alpha_loss".split()
    if trainer == "smose_sac":
        losses += ["importance", "load"]
        tags |= {f"experts/usage_{m}" for m in range(1, 9)}
        assert sum(curves[f"experts/usage_{m}"][-1][1] for m in range(1, 9)) == pytest.approx(1)
    assert curves.keys() == tags | {f"losses/{name}" for name in losses}  # no rate before 1,000 steps of learning
    assert all(math.isfinite(value) for curve in curves.values() for _, value in curve)
    evaluated = [(row["step"], np.float32(row["return_mean"])) for row in evaluations(run)]
    assert curves["eval/episodic_return"] == evaluated

    rewards, ends = [[]], []
    for i, event in enumerate(event for event in tug_log(run, 7) if "row" in event):
        rewards[-1].append(event["row"][8])
        if event["done"]:
            ends.append(i + 1)
            rewards.append([])
    steps, returns = zip(*curves["charts/episodic_return"], strict=True)
    assert list(steps) == ends
    assert returns == pytest.approx([sum(episode) for episode in rewards[:-1]], rel=1e-5)
    lengths = [value for _, value in curves["charts/episodic_length"]]
    assert lengths == [len(episode) for episode in rewards[:-1]]


def test_tensorboard_has_the_settings_and_one_chart_of_the_experts(trainer, tug):
    run, _ = tug
    read = events(run)
    (text,) = read.Tensors("hyperparameters/text_summary")
    table = text.tensor_proto.string_val[0].decode()
    assert "|gamma|0.99|" in table and "|env_id|tug_env:Tug-v0|" in table
    final = json.loads((run / "evaluation.json").read_text())["mean"]
    assert [event.value for event in read.Scalars("eval/final_return")] == [np.float32(final)]
    hparams = read.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"tug_env:Tug-v0" in hparams and b"policy_lr" in hparams
    layout = b"".join(t.tensor_proto.string_val[0] for tag in read.Tags()["tensors"] if "custom_scalars" in tag
                      for t in read.Tensors(tag))  # fmt: skip
    if trainer == "smose_sac":
        assert b"experts/usage_" in layout  # TensorBoard looks for tags that match


def test_start_evaluations_and_end_are_told(trainer, tug):
    run, done = tug
    first, *lines, last = done.stdout.splitlines()
    counts = json.loads((run / "config.json").read_text())
    assert "tug_env:Tug-v0" in first and f"N_act {counts['n_active']} (N_tot {counts['n_total']})" in first
    assert trainer != "smose_sac" or (counts["n_active"], counts["n_total"]) == (48, 160)
    told = [line for line in lines if re.match(r"step [\d,]+: return", line)]
    for row, line in zip(evaluations(run), told, strict=True):
        assert line.startswith(f"step {row['step']:,.0f}: return {row['return_mean']:.1f} +/- {row['return_std']:.1f}")
    following = {"smose_sac": "interpret.py", "sac_baseline": "scripts/evaluate.py"}[trainer]
    assert last == f"next: python {following} runs/{run.name}"


def test_hopper_terminates_and_reacher_truncates(trainer, reacher, tmp_path):
    hopper = train(
        tmp_path, trainer, *BRIEF, "--env-id", "Hopper-v4", "--learning-starts", 399, "--total-timesteps", 400
    )
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
            assert len(ends) > 5 and terminated[ends].all() and terminated.sum() - len(ends) in (0, 1)
        else:
            assert len(ends) > 2 and not terminated.any() and np.bincount(episode.astype(int)).max() == 50
    ended = json.loads((hopper / "evaluation.json").read_text())
    assert ended["ended_early"] == 1.0 and ended["lengths"][0] < 1000


def test_progress_says_warm_up_and_the_rate_of_learning_alone(tmp_path):
    flags = "--env-id Pendulum-v1 --total-timesteps 20_100 --learning-starts 18000 --batch-size 2".split()
    flags += "--buffer-size 1000".split()
    flags += "--policy-frequency 999 --target-network-frequency 999 --eval-every 1_000_000 --eval-episodes 1".split()
    done = run_trainer(tmp_path, "smose_sac", *flags, "--final-eval-episodes", 1, "--no-compile")
    (run,) = tmp_path.glob("runs/*")
    warm_up, learning = [line for line in done.stdout.splitlines() if re.match(r"step [\d,]+/", line)]
    assert warm_up == "step 10,000/20,100  warm-up"
    pattern = r"step 20,000/20,100  (\d+) steps/s  0:\d\d:\d\d left  return -[\d.]+  experts [1-8]/8"
    shown = re.fullmatch(pattern, learning)
    (rate,) = scalars(run)["charts/SPS"]  # from 19,000 to 20,000
    assert rate[0] in (20_000, 20_001) and rate[1] == pytest.approx(int(shown[1]), abs=1) and rate[1] < 3000


def test_an_evaluation_ends_where_the_environment_sets_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(smose_sac, "LONGEST_EPISODE", 70)
    done = run_trainer(tmp_path, "smose_sac", *BRIEF, "--env-id", "odd_env:OddEndless-v0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("odd_env:OddEndless-v0 sets no limit to its episodes: one was cut after 70 steps") == 2
    (run,) = tmp_path.glob("runs/*")
    assert json.loads((run / "evaluation.json").read_text())["lengths"] == [70]


def test_limits_are_the_scripts_own():
    for module in TRAINERS.values():
        assert module.LONGEST_EPISODE == saved_actor.LONGEST_EPISODE == 10_000
        assert module.FINAL_SEED == saved_actor.FIRST_EVAL_SEED


def test_v5_without_its_replay(tmp_path):
    run = train(tmp_path, "smose_sac", *BRIEF, "--env-id", "Reacher-v5", "--no-keep-replay")
    assert not (run / "replay.npy").exists()
    assert tensors(run / "actor.safetensors")["action_scale"].tolist() == [1, 1]
    assert len(json.loads((run / "evaluation.json").read_text())["returns"]) == 1


def test_experiment_names_stay_below_runs(tmp_path):
    (tmp_path / "here").mkdir()
    run = train(tmp_path / "here", "smose_sac", *BRIEF, "--env-id", "Pendulum-v1", "--exp-name", "../../../x y")
    assert re.fullmatch(r"Pendulum-v1__\.\.-\.\.-\.\.-x-y__0__\d+", run.name)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@needs_gl
def test_video_of_an_evaluation(tmp_path):
    flags = [*BRIEF, "--env-id", "Reacher-v4", "--capture-video"]
    done = from_nothing(tmp_path, "smose_sac", *flags, MUJOCO_GL="egl")
    assert (done.returncode, done.stderr) == (0, "")
    (video,) = tmp_path.glob("runs/*/videos/60.mp4")
    frames = imageio.imread(video, plugin="pyav") if importlib.util.find_spec("av") else imageio.imread(video)
    assert len(frames) in (50, 51) and frames.std() > 5


def test_without_gl_there_is_a_line_and_training_goes_on(tmp_path):
    flags = [*BRIEF, "--env-id", "Reacher-v4", "--capture-video"]
    done = from_nothing(tmp_path, "smose_sac", *flags, MUJOCO_GL="glfw", DISPLAY="", WAYLAND_DISPLAY="")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^no video; .+: .+$", done.stdout, re.M) and "Traceback" not in done.stderr
    assert list(tmp_path.glob("runs/*/evaluation.json")) and not list(tmp_path.glob("runs/*/videos/*.mp4"))


FOLLOWED = """
import sys
from pathlib import Path
import imageio, mujoco, numpy as np, smose_sac

def far_away(args, actor, episodes, seed, env):  # in place of an episode: two looks at the cheetah, here and far away
    env.reset(seed=0)
    for x in (0.0, 40.0):
        env.unwrapped.data.qpos[0] = x
        mujoco.mj_forward(env.unwrapped.model, env.unwrapped.data)
        env.step(env.action_space.sample() * 0)

def look(path, frames, **_):  # the cheetah is orange
    for red, green, blue in (np.moveaxis(frame.astype(int), 2, 0) for frame in frames[-2:]):
        print(int(((red > green + 40) & (green > blue)).sum()))

smose_sac.evaluate, imageio.mimsave = far_away, look
smose_sac.film(smose_sac.Args("HalfCheetah-v4"), None, Path("videos/1.mp4"))
"""


@needs_gl
def test_the_camera_follows_the_robot(tmp_path):
    environment = os.environ | {"MUJOCO_GL": "egl", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FOLLOWED]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    near, far = map(int, done.stdout.split())
    assert near > 1000 and abs(far - near) < 0.2 * near, done


def test_a_random_policy_is_worse_than_a_trained_one(trainer, tmp_path):
    flags = (
        "--env-id Pendulum-v1 --seed 2 --total-timesteps 4000 --learning-starts 300 --batch-size 64 --tau 0.02".split()
    )
    flags += (
        "--policy-lr 3e-3 --q-lr 3e-3 --alpha-lr 1e-2 --eval-every 1000 --final-eval-episodes 10 --no-compile".split()
    )
    run, env, returns = train(tmp_path, trainer, *flags), gym.make("Pendulum-v1"), []
    for i in range(10):  # on the same episodes
        env.reset(seed=200_000 + i)
        env.action_space.seed(i)
        returns.append(sum(env.step(env.action_space.sample())[1] for _ in range(200)))
    assert np.mean(returns) < -1000
    best = max(row["return_mean"] for row in evaluations(run))
    assert best > np.mean(returns) / 2, f"{best} after 4,000 steps; random actions give {np.mean(returns)}"


def test_mujoco_is_what_the_versions_say(reacher):
    assert json.loads((reacher / "config.json").read_text())["versions"]["mujoco"] == mujoco.__version__
