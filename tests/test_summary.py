"""The sentences on top of the report, from facts made up by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from report.summary import decisive, experts_sentence, failure_sentence, failures_of, push_sentence
from test_interpret import random_actor

OBS = [{"text": "z", "description": "height"}, {"text": "v", "description": "speed"}]


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


def test_decisive_observations_choose_alone():
    actor = random_actor(4, 2, 6)
    actor.weights["router.weight"][:, [1, 4]] = 0
    states = np.random.default_rng(0).normal(size=(500, 6))
    found = decisive(actor, states)
    assert not {1, 4} & set(found["observations"])
    assert 0.9 <= found["agreement"] <= 1


def test_the_experts_sentence_takes_counted_sentences_only():
    said = (
        "Expert 2 is favoured when z is above 1 (the median): so in 9 of its 10 states (90%), and in 1 of the other 5"
    )
    sentences = [{"text": said + " states (20%).", "expert": 2}]
    assert experts_sentence([0.3, 0.7], sentences) == (
        "Expert 2 (70% of steps) acts mostly when z is above 1 (90% of its states, 20% of others)."
    )
    assert experts_sentence([0.3, 0.7], []) == "Expert 2 (70%) and Expert 1 (30%) act most."


def test_the_push_sentence_tells_falls_and_recovery():
    sizes = [{"size": s, "falls": 0.0, "back_after": 10} for s in (0.01, 0.1, 0.3, 1.0)]
    pushes = {"moments": 3, "sizes": [0.01, 0.1, 0.3, 1.0], "falls": [0, 0, 0, 0], "worst": 0, "horizon": 60}
    pushes |= {"pushes": [{"name": "angle of the torso", "sizes": sizes}], "curves": []}
    calm = push_sentence(pushes, 5.0)
    assert calm.startswith("No push of up to 100%") and calm.endswith("back in its gait within 2.0 cycles.")
    rough = push_sentence(pushes | {"falls": [0, 0, 0.25, 1.0]}, 5.0)
    assert rough.startswith("Pushes of 30% of a coordinate's spread topple it in 25% of cases (worst: the angle of the")
    assert "none of 10% does" in rough
    sizes[2]["back_after"] = None
    assert "keeps it out of its gait for over 60 steps" in push_sentence(pushes, 5.0)
