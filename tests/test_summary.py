"""The sentences on top of the report, from facts made up by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from report.summary import (
    decisive,
    decisive_sentence,
    experts_sentence,
    failure_sentence,
    failures_of,
    gait_sentence,
    push_sentence,
)
from test_interpret import random_actor

OBS = [{"text": "z", "description": "height", "unit": "m"}, {"text": "v", "description": "speed", "unit": ""}]


def episode(last: list[float], ended: str, expert: int, n: int = 50) -> SimpleNamespace:
    observations = np.random.default_rng(n).normal(size=(n, 2))
    observations[-1] = last
    return SimpleNamespace(
        observations=observations, experts=np.full(n, expert), rewards=np.ones(n), ended=ended, seed=n
    )


def test_failures_say_when_who_and_what_was_seen():
    episodes = [episode([-9, 0], "terminated", 2, 50), episode([0, 0], "truncated", 0, 60)]
    episodes += [episode([-8, 1], "terminated", 2, 70)]
    failures = failures_of(episodes, None)
    assert failures["share"] == pytest.approx(2 / 3)
    assert [(e["step"], e["expert"], e["seen"][0]["obs"]) for e in failures["ended"]] == [(50, 3, 0), (70, 3, 0)]
    text = failure_sentence(failures, OBS)
    assert text.startswith("2 of 3 episodes end early, between steps 50 and 70, while Expert 3 acted, with the height")
    assert failure_sentence(failures_of(episodes[1:2], None), OBS) == "None of 1 episodes ends early."
    judged = failure_sentence(failures_of(episodes, {"ended_early": 0.25, "episodes": 100}), OBS)
    assert judged.startswith("25% of the 100 episodes of its evaluation ended early; here between")
    calm = failure_sentence(failures_of(episodes[1:2], {"ended_early": 0.0, "episodes": 5}), OBS)
    assert calm == "None of the 5 episodes of its evaluation ended early."


def test_decisive_observations_choose_alone():
    actor = random_actor(4, 2, 6)
    actor.weights["router.weight"][:, [1, 4]] = 0
    states = np.random.default_rng(0).normal(size=(500, 6))
    found = decisive(actor, states)
    assert not {1, 4} & set(found["observations"])
    assert 0.9 <= found["agreement"] <= 1


def test_what_hardly_matters_is_said_in_words():
    matter = {"observations": [1, 2, 3, 4, 5], "agreement": 0.93, "commands": 0.9}
    names = [OBS[0], *({"text": f"obs[{k}]", "description": f"obs[{k}]", "unit": ""} for k in range(1, 6))]
    result = "the same expert is chosen in 93% of the visited states, and its commands keep 90% of their variance."
    assert (
        decisive_sentence(matter, names)
        == f"The height hardly matters for who acts: with it held at its mean, {result}"
    )
    lost = decisive_sentence(matter | {"commands": 0.0}, names)
    assert lost.endswith("in 93% of the visited states, but its commands keep none of their variance.")
    assert "but its commands keep 40% of" in decisive_sentence(matter | {"commands": 0.4}, names)
    few = decisive_sentence(matter | {"observations": [0, 3]}, names)
    assert (
        few
        == f"2 of 6 observations decide who acts, the height and obs[3]: with all others held at their means, {result}"
    )


def acting(share: list[float], sentences: list[dict], low: float, mean: float, high: float) -> dict:
    """A report of experts that all give one action from `low` to `high`."""
    work = {"torque_low": np.array([low]), "torque_mean": np.array([mean]), "torque_high": np.array([high])}
    policy = {"action_scale": np.array([2.0]), "action_bias": np.array([0.0])}
    names = {"obs": OBS, "action": [{"text": "u", "description": "force"}]}
    report = {"usage": {"share": share}, "sentences": sentences, "at_work": [work] * len(share)}
    return report | {"policy": policy, "names": names}


def test_the_experts_sentence_says_when_and_what_as_counted():
    when = [{"obs": 0, "side": "above", "value": 1.0}, {"obs": 1, "side": "below", "value": -0.5}]
    favoured = {"expert": 2, "share": 0.9, "when": when, "others": 0.2}
    text = "Expert 2 (70% of steps) acts mostly when the height is above 1 m and the speed is below -0.5"
    text += " (90% of its states, 20% of others); then "
    swings = acting([0.3, 0.7], [favoured], -0.5, 0.2, 1.25)
    assert experts_sentence(swings) == text + "the force swings from -0.5 to 1.2 (the middle 80%)."
    small = acting([0.3, 0.7], [favoured], -0.1, 0.0, 0.3)
    assert experts_sentence(small) == text + "all actions stay below 15% of their limits (the middle 80%)."
    sided = {"expert": 2, "share": 0.96, "action": 0, "claim": "is negative"}
    other = {"expert": 1, "share": 1.0, "action": 0, "claim": "is positive"}
    one_way = acting([0.3, 0.7], [favoured, sided, other], -1.9, -1.0, -0.5)
    assert experts_sentence(one_way) == text + "the force is negative (96%)."
    assert experts_sentence(acting([0.3, 0.7], [], 0, 0, 0)) == "Expert 2 (70%) and Expert 1 (30%) act most."


def test_a_robot_at_rest_is_said_to_be():
    assert gait_sentence({"periodic": False, "at_rest": True}, 0.05) == "It comes to rest."
    assert gait_sentence({"periodic": False}, 0.05) == "Nothing in its behaviour is periodic."


def test_the_push_sentence_tells_falls_and_recovery():
    sizes = [{"size": s, "falls": 0.0, "back_after": 10} for s in (0.01, 0.1, 0.3, 1.0)]
    pushes = {"moments": 3, "sizes": [0.01, 0.1, 0.3, 1.0], "falls": [0, 0, 0, 0], "worst": 0, "horizon": 60}
    pushes |= {"pushes": [{"name": "angle of the torso", "sizes": sizes}], "curves": []}
    calm = push_sentence(pushes, 5.0)
    assert calm.startswith("No push of up to 100%") and calm.endswith("back in its gait within 2.0 cycles.")
    rough = push_sentence(pushes | {"falls": [0, 0, 0.25, 1.0]}, 5.0)
    assert rough.startswith("Pushes of 30% of a coordinate's spread topple it in 25% of cases (worst: the angle of the")
    assert "none of 10% does" in rough
    late = push_sentence(pushes | {"falls": [0, 0, 0, 0.5]}, 5.0)
    assert "none of 30% does; after any of 30% it is back in its gait within 2.0 cycles." in late
    sizes[2]["back_after"] = 0
    firm = push_sentence(pushes | {"falls": [0, 0, 0, 0.5]}, 5.0)
    assert firm.endswith("(worst: the angle of the torso), those of 30% do not even lead it out of its gait.")
    sizes[2]["back_after"] = None
    assert "keeps it out of its gait for over 60 steps" in push_sentence(pushes, 5.0)


@pytest.mark.parametrize(
    "first, last, says",
    [
        (0.2, 0.05, "60 steps after one of 30%, 25% of its first effect is left."),
        (0.2, 3.8, "60 steps after one of 30%, its effect is 19 times the first."),
        (0.2, None, "60 steps after one of 30%, a fallen robot is left."),
    ],
)
def test_without_a_gait_the_push_sentence_tells_what_is_left_or_how_it_grew(first, last, says):
    curve, size = {"difference": [None, [first, 1.0, last]]}, {"back_after": None}
    pushes = {"moments": 5, "sizes": [0.01, 0.1, 0.3, 1.0], "falls": [0, 0, 0, 0], "worst": 0, "horizon": 60}
    pushes |= {"pushes": [{"name": "speed", "sizes": [size] * 4}], "curves": [curve] * 4}
    assert push_sentence(pushes, 0).endswith(says)
