"""The cycle that gait.py finds, on signals whose cycle is known."""

from types import SimpleNamespace

import numpy as np
import pytest
from report.gait import PHASES, gait_of, period_of


def episode(period: float, steps: int = 600, noise: float = 0.05, seed: int = 0) -> SimpleNamespace:
    """Two swinging observations, a constant one, and a switch from expert 0 to expert 1 half a cycle after 0."""
    rng, t = np.random.default_rng(seed), np.arange(steps)
    angle = 2 * np.pi * t / period + seed
    observations = np.stack([5 * np.cos(angle), np.sin(angle) + 0.5 * np.sin(2 * angle), np.full(steps, 3.0)], axis=1)
    observations[:, :2] += noise * rng.standard_normal((steps, 2))
    experts = (np.sin(angle) < 0).astype(int)
    actions = np.stack([np.where(experts == 0, 1.0, -1.0)], axis=1)
    return SimpleNamespace(observations=observations, actions=actions, experts=experts, seed=seed)


@pytest.mark.parametrize("period", [5.0, 6.4, 39.3, 75.0])
def test_the_cycle_of_a_known_signal(period):
    gait = gait_of([episode(period, seed=k) for k in range(3)], n_experts=3)
    assert gait["periodic"] and gait["period"] == pytest.approx(period, rel=0.02)
    assert gait["strength"] > 0.9
    assert gait["cycles"] > 0.4 * 3 * 600 / period
    assert gait["reference"] in (0, 1)
    share = np.asarray(gait["experts"])
    assert share.shape == (3, PHASES) and share.sum(axis=0) == pytest.approx(np.ones(PHASES))
    assert share.mean(axis=1) == pytest.approx([0.5, 0.5, 0.0], abs=0.12)  # five steps per cycle: two or three each
    assert (share.max(axis=0) > 0.9).mean() > 0.6  # one expert holds nearly every phase
    curve = np.asarray(gait["observations"]["median"])[0]
    assert np.ptp(curve) == pytest.approx(10, rel=0.2)  # chords between five points are flatter than the circle
    low, high = (np.asarray(gait["observations"][name])[2] for name in ("low", "high"))
    assert low == pytest.approx(3.0) and high == pytest.approx(3.0)


def test_poses_lie_at_their_phases():
    one = episode(40.0, noise=0.0)
    gait = gait_of([one], n_experts=2)
    steps = np.array([pose["step"] for pose in gait["poses"]])
    assert len(steps) == 8
    turns = (steps - steps[0]) / 40.0 % 1.0
    assert np.abs((turns - np.arange(8) / 8 + 0.5) % 1 - 0.5).max() < 0.03


def test_poses_show_the_expert_that_usually_acts_there():
    one = episode(40.0, noise=0.0)
    middle = slice(270, 350)  # the two cycles in the middle of the steady part are an exception
    one.experts[middle] = 2
    gait = gait_of([one], n_experts=3)
    leading = np.asarray(gait["experts"])[:, :: PHASES // 8].argmax(axis=0)
    assert [one.experts[pose["step"]] for pose in gait["poses"]] == leading.tolist()
    assert 2 not in leading


def test_what_does_not_repeat_is_not_periodic():
    rng = np.random.default_rng(1)
    walk = np.cumsum(rng.standard_normal((500, 3)), axis=0)
    noise = rng.standard_normal((500, 3))
    decay = np.exp(-np.arange(50) / 10)[:, None] * [1.0, 2.0]
    for x in (walk, noise, decay, np.ones((2, 2))):
        assert gait_of([seen(x)], 1) == {"periodic": False}


def seen(x: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(observations=x, actions=x[:, :1], experts=np.zeros(len(x), int), seed=0)


def test_trembling_at_rest_is_no_gait():
    t = np.arange(600)
    settles = np.exp(-t / 12) * 5
    trembles = np.stack([settles + 0.001 * np.cos(t), settles + 0.001 * np.sin(t)], axis=1)
    for x in (trembles, np.ones((300, 2))):
        assert gait_of([seen(x)], 1) == {"periodic": False, "at_rest": True}
    assert gait_of([seen(trembles), seen(trembles[300:] * 1000)], 1)["periodic"]  # one of two goes on


def test_a_period_between_whole_steps_is_found_at_once():
    t = np.arange(400)
    x = np.stack([np.cos(2 * np.pi * t / 6.5), np.sin(2 * np.pi * t / 6.5)], axis=1)
    period, strength = period_of([x])
    assert period == pytest.approx(6.5, abs=0.1)  # not 13, the first whole number of steps after which it repeats
    assert strength > 0.9
