"""Shortened policies: what is fitted, against equations known beforehand, and what `interpret.py --shorten` leaves."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import equations
import numpy as np
import pytest
import shorten
from command_line import UserError
from conftest import ROOT
from saved_actor import load_actor, make_env, make_policy, play
from shorten import Size
from test_interpret import random_actor, save_actor

import interpret

REACHER = ROOT / "results" / "policies" / "Reacher-v4" / "smose"


@pytest.fixture
def states() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(500, 6)) * [1, 2, 3, 0.1, 5, 0] + [0, 1, 0, 3, 0, 7]


def test_pursuit_finds_the_terms_that_are_there(states):
    path = shorten.pursuit(states, 0.5 * states[:, 2] - 20 * states[:, 3] + 4)
    assert [np.flatnonzero(w).tolist() for w in path.weights[:3]] == [[], [3], [2, 3]]  # effects 2 and 1.5
    assert path.weights[2, [2, 3]] == pytest.approx([0.5, -20]) and path.biases[2] == pytest.approx(4)
    assert path.errors[0] > path.errors[1] > 100 * path.errors[2] == pytest.approx(0, abs=1e-9)


def test_a_constant_command_has_no_terms(states):
    path = shorten.pursuit(states, np.full(500, -0.3))
    assert (path.weights == 0).all() and path.biases == pytest.approx([-0.3])


def test_terms_go_where_the_coming_ones_lower_the_error_most():
    errors = [np.array([10.0, 4, 3]), np.array([9.0, 9, 0]), np.array([5.0, 4, 3.5])]
    # gains by hand: 6 then 1; two terms together 4.5 each; 1 then 0.5
    assert shorten.share_out(errors, 1) == [1, 0, 0]
    assert shorten.share_out(errors, 3) == [1, 2, 0]
    assert shorten.share_out(errors, 5) == [2, 2, 1]
    assert shorten.share_out(errors, 99) == [2, 2, 2]


def test_the_routers_pursuit_finds_the_observations_that_decide(states):
    router = np.zeros((3, 6))
    router[0, 2], router[1, 4] = 3, -1
    logits = states @ router.T + [0, 1, 0]
    found, bias = shorten.short_router(states, logits, 2)
    assert np.argwhere(found).tolist() == [[0, 2], [1, 4]]
    assert ((states @ found.T + bias).argmax(axis=1) == logits.argmax(axis=1)).mean() > 0.99


def test_a_fitted_policy_has_so_many_terms_and_unused_experts_never_win(states):
    actor = random_actor(4, 2, 6)
    actor.weights["router.weight"][3] = 0
    actor.weights["router.bias"][3] = -1000
    for size in (Size(7, 11), Size(24, 11)):
        short = shorten.fit(actor, states, size)
        w = short.weights
        assert np.count_nonzero(w["experts.mean.weight"]) == 11
        assert np.count_nonzero(w["router.weight"]) == (7 if size.router == 7 else 18)
        assert not w["experts.mean.weight"][3].any() and not w["router.weight"][3].any()
        assert 3 not in (states @ w["router.weight"].T + w["router.bias"]).argmax(axis=1)
        assert all((w[key] == equations.as_it_prints(w[key])).all() for key in equations.READ)
        assert all((w[key] == actor.weights[key]).all() for key in w if key not in equations.READ)


HURRIED = {"FIT_STATES": 1500, "ROUND_STATES": 500, "JUDGED_STATES": 1000, "ROUNDS": 2}


@pytest.fixture(scope="module")
def shortened(tmp_path_factory) -> Path:
    """the committed Reacher policy, shortened in a hurry, and its report"""
    folder = tmp_path_factory.mktemp("shortened")
    shutil.copy(REACHER / "actor.safetensors", folder)
    args = interpret.Args(path=str(folder), shorten=True, keep_return=0.8, episodes=2, pushes=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in HURRIED.items():
            patch.setattr(shorten, name, value)
        interpret.interpret(args)
    return folder


def test_the_shortest_is_held_to_episodes_that_chose_nothing(monkeypatch):
    """Where it falls short there, the next longer one that does not is taken; where all do, none."""
    for name, value in HURRIED.items():
        monkeypatch.setattr(shorten, name, value)
    actor, judged, passed, lucky = load_actor(REACHER), shorten.Task.judged, [], 1

    def judge(task: shorten.Task, short: shorten.Actor) -> float:
        if task.seeds == range(400_000, 400_020):
            if (share := judged(task, short)) >= 0.8:
                passed.append(short)
            return share
        assert task.seeds == range(500_000, 500_020)
        return 0.5 if any(short is one for one in passed[-lucky:]) else judged(task, short)

    monkeypatch.setattr(shorten.Task, "judged", judge)
    found = shorten.shorten(actor, make_env(actor), 0.8, say=lambda line: None)
    assert len(passed) > 2 and found.weights is passed[-2].weights
    passed.clear()
    lucky = 99
    with pytest.raises(UserError, match="no shorter equations keep 80% of the return"):
        shorten.shorten(actor, make_env(actor), 0.8, say=lambda line: None)


def test_a_shortened_policy_is_what_its_printed_equations_say(shortened):
    short, report = load_actor(shortened / "actor_short.safetensors"), read_report(shortened)
    printed = equations.read_equations((shortened / "equations.txt").read_text(), short, report["names"])
    assert all((printed.weights[key] == short.weights[key]).all() for key in equations.READ)
    env = make_env(short)
    for step in play(env, make_policy(short), 100_000):
        action, expert = make_policy(printed)(step.obs)
        assert (action == step.action).all() and expert == step.expert
    assert report["as_printed"]["source"] == "actor_short.safetensors"
    assert report["as_printed"]["numbers"] == short.n_read < 0.7 * load_actor(shortened).n_read


def test_a_shortened_policy_keeps_the_return_it_was_asked_to_keep(shortened):
    actor, short = load_actor(shortened), load_actor(shortened / "actor_short.safetensors")
    env, seeds = make_env(actor), range(500_000, 500_020)  # those that confirmed it: 1,000 states, 50 an episode
    real, kept, nothing = (
        np.mean([sum(s.reward for s in play(env, make_policy(policy), seed)) for seed in seeds])
        for policy in (actor, short, equations.idle(actor))
    )
    assert kept - nothing >= 0.8 * (real - nothing) > 0
    driven = read_report(shortened)["as_printed"]
    assert driven["printed"] - driven["nothing"] > 0.6 * (driven["real"] - driven["nothing"])  # other episodes


def test_a_shortened_policy_says_what_it_was_made_from(shortened):
    actor, short = load_actor(shortened), load_actor(shortened / "actor_short.safetensors")
    assert json.loads(short.metadata["made_from"]) == actor.identity
    assert short.metadata == actor.metadata | {"made_from": short.metadata["made_from"]}


def test_equations_are_the_shortened_ones_only_of_this_very_actor(shortened, tmp_path, capsys):
    args = interpret.Args(path=str(shortened), episodes=1, output=str(tmp_path), pushes=False)
    interpret.interpret(args)
    assert read_report(tmp_path)["as_printed"]["source"] == "actor_short.safetensors"
    other = load_actor(shortened)
    other.weights["router.bias"][0] += 1
    save_actor(tmp_path / "actor.safetensors", other, "Reacher-v4")
    shutil.copy(shortened / "actor_short.safetensors", tmp_path)
    interpret.interpret(interpret.Args(path=str(tmp_path), episodes=1, pushes=False))
    report = read_report(tmp_path)
    assert report["as_printed"]["source"] == "actor.safetensors" and report["as_printed"]["numbers"] == other.n_read
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "was not made from" in said


def test_printed_equations_of_report_json_drive_elsewhere_too(shortened):
    """As the experiment does that first measured printed equations: float64, terms of report.json alone."""
    report, actor = read_report(shortened), load_actor(shortened)
    rows = np.zeros((8, 3, 12))
    for m, entry in enumerate(report["equations"]):
        for row, equation in zip(rows[m], (entry["score"], *entry["torques"]), strict=True):
            for term in equation["terms"]:
                row[11 if term["obs"] is None else term["obs"]] = term["weight"]

    def policy(obs: np.ndarray) -> tuple[np.ndarray, int]:
        s = np.append(obs, 1)
        m = int((rows[:, 0] @ s).argmax())
        return np.tanh(rows[m, 1:] @ s), m

    env = make_env(actor)
    returns = [sum(s.reward for s in play(env, policy, seed)) for seed in range(100_000, 100_020)]
    assert np.mean(returns) == pytest.approx(report["as_printed"]["printed"], rel=1e-3)


def read_report(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("actor", "keep", "words"),
    [
        (random_actor(2, 2, 11), 0, "--keep-return must be above 0 and at most 1, not 0"),
        (random_actor(2, 2, 11), 1.5, "not 1.5"),
        (random_actor(2, 2, 11), float("nan"), "not nan"),
        (random_actor(2, 2, 11, top_k="2"), 0.9, "mixes experts"),
        (random_actor(2, 2, 11, gate="softmax"), 0.9, "mixes experts"),
        (random_actor(2, 2, 11), 0.9, "no more than doing nothing"),
    ],
)
def test_what_cannot_be_shortened_is_refused(actor, keep, words):
    with pytest.raises(UserError, match=words):
        shorten.shorten(actor, make_env(actor), keep)


def test_a_wrong_share_is_one_line_and_exit_code_2(tmp_path):
    command = [sys.executable, ROOT / "interpret.py", REACHER, "--shorten", "--keep-return", "2", "--output", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--keep-return" in done.stderr
    assert not list(tmp_path.iterdir())
