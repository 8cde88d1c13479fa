"""What experts do, in sentences that were counted on the visited states before they are said."""

from typing import Any, Optional

import numpy as np
from names import Names
from saved_actor import Actor

FAVOURED, SIGNED = 0.7, 0.9  # share of an expert's states from which on a sentence about them is worth saying
TELLING = 0.05  # how much better a further observation has to tell an expert's states from the others
SLIGHT = 0.05  # of the largest effect on a score: less does not favour anybody
SATURATED = 0.95  # a tanh beyond this barely reacts to its input
MOST = 3  # observations in one sentence
Sentence = tuple[str, np.ndarray, dict[str, Any]]  # the text, where it holds, and what it is made of


def sentences_of(
    actor: Actor, states: np.ndarray, acting: np.ndarray, names: Names, deciding: Optional[list[int]] = None
) -> list[dict[str, Any]]:
    """Each as text with its counts, the share of states in which it holds, the number of states, and whose it is.

    Only observations that decide are said to favour an expert, where it is known which do.
    """
    deciding = list(range(states.shape[1])) if deciding is None else deciding
    said = []
    for m in range(actor.n_experts):
        mine = acting == m
        found: list[Sentence] = [(f"Expert {m + 1} acts in {counted(mine, '')}.", mine, {})]
        if mine.any():
            found = favoured(actor, m, states, mine, names, deciding) + commanded(actor, m, states[mine], names) + found
        said += [
            {"text": text, "share": float(held.mean()), "n": len(held), "expert": m + 1} | parts
            for text, held, parts in found
        ]
    return said


def counted(holds: np.ndarray, whose: str) -> str:
    return f"{holds.sum()} of {whose}{len(holds)} states ({100 * holds.mean():.0f}%)"


def favoured(
    actor: Actor, m: int, states: np.ndarray, mine: np.ndarray, names: Names, deciding: list[int]
) -> list[Sentence]:
    """Observations that lift this score above the average expert's and do lie on that side where the expert acts."""
    if mine.all():
        return []
    router = actor.weights["router.weight"].astype(np.float64)
    lift = router[m] - router.mean(axis=0)
    middle = np.array([float(f"{v:.3g}") for v in np.median(states, axis=0)])  # what is counted is what is said
    effect = np.abs(lift) * states.std(axis=0)
    tells = (effect > SLIGHT * effect.max()) & np.isin(np.arange(len(effect)), deciding)
    holds = np.where(lift > 0, states > middle, states < middle) & tells
    chosen, together, contrast = [], np.ones(len(states), bool), 0.0
    for _ in range(MOST):
        joint = together[:, None] & holds
        own, others = joint[mine].mean(axis=0), joint[~mine].mean(axis=0)
        promise = np.where(own >= FAVOURED, own - others, -1)
        i = int(promise.argmax())
        if promise[i] < contrast + TELLING:
            break
        chosen, together, contrast = [*chosen, i], joint[:, i], promise[i]
    if not chosen:
        best = holds[mine][:, holds[mine].mean(axis=0).argmax()]
        text = (
            f"No observation that favours Expert {m + 1} tells when it acts: each lies on its side of the median in at"
        )
        return [(f"{text} most {counted(best, 'its ')}, or about as often when others act.", best, {})]
    when = [{"obs": i, "side": "above" if lift[i] > 0 else "below", "value": float(middle[i])} for i in chosen]
    sides = [f"{names['obs'][c['obs']]['text']} is {c['side']} {c['value']:.3g}" for c in when]
    listed = ", ".join(sides[:-1]) + (" and " if len(sides) > 1 else "") + sides[-1]
    medians = "the median" if len(sides) == 1 else "the medians"
    own, others = counted(together[mine], "its "), counted(together[~mine], "the other ")
    text = f"Expert {m + 1} is favoured when {listed} ({medians}): so in {own}, and in {others}."
    return [(text, together[mine], {"when": when, "others": float(together[~mine].mean())})]


def commanded(actor: Actor, m: int, mine: np.ndarray, names: Names) -> list[Sentence]:
    """For each command what is nearly always so: one side, an observation's sign, or saturation."""
    weights = actor.weights["experts.mean.weight"][m]
    command, found = mine @ weights.T + actor.weights["experts.mean.bias"][m], []
    for a, name in enumerate(names["action"]):
        u = command[:, a]
        alike = {i: np.sign(mine[:, i]) == np.sign(weights[a, i]) * np.sign(u) for i in np.flatnonzero(weights[a])}
        sides = {"is positive": u > 0, "is negative": u < 0}
        signs = {
            f"has the {'' if weights[a, i] > 0 else 'opposite '}sign of {names['obs'][i]['text']}": held
            for i, held in alike.items()
        }
        for claims in (sides, signs):
            claim = max(claims, key=lambda text: claims[text].mean(), default=None)
            if claim and claims[claim].mean() >= SIGNED:
                text = f"Its {name['text']} {claim} in {counted(claims[claim], 'its ')}."
                found.append((text, claims[claim], {"action": a, "claim": claim}))
                break
        full = np.abs(np.tanh(u)) > SATURATED
        if full.mean() >= 0.5:
            text = f"Its {name['text']} is beyond {100 * SATURATED:.0f}% of its limit in {counted(full, 'its ')}."
            found.append((text, full, {"action": a}))
    return found
