"""What experts do, in sentences that were counted on the visited states before they are said."""

from typing import Any

import numpy as np
from names import Names
from saved_actor import Actor

FAVOURED, SIGNED = 0.7, 0.9  # share of states from which on a sentence is worth saying
SLIGHT = 0.05  # of the largest effect on a score: less does not favour anybody
SATURATED = 0.95  # a tanh beyond this barely reacts to its input
MOST = 3  # observations named for one expert


def sentences_of(actor: Actor, states: np.ndarray, acting: np.ndarray, names: Names) -> list[dict[str, Any]]:
    """Each as text with its counts, the share of states in which it holds, the number of states, and whose it is."""
    said = []
    for m in range(actor.n_experts):
        mine, text = states[acting == m], f"Expert {m + 1} acts in {counted(acting == m, '')}."
        said.append({"text": text, "share": len(mine) / len(states), "n": len(states), "expert": m + 1})
        if len(mine):
            own = favoured(actor, m, mine, states, names) + commanded(actor, m, mine, names)
            said += [sentence | {"n": len(mine), "expert": m + 1} for sentence in own]
    return said


def counted(holds: np.ndarray, whose: str = "its ") -> str:
    return f"{holds.sum()} of {whose}{len(holds)} states ({100 * holds.mean():.0f}%)"


def favoured(actor: Actor, m: int, mine: np.ndarray, states: np.ndarray, names: Names) -> list[dict[str, Any]]:
    """Observations that lift this score above the average expert's and do lie on that side where the expert acts."""
    if actor.n_experts < 2:
        return []
    router = actor.weights["router.weight"].astype(np.float64)
    lift, middle = router[m] - router.mean(axis=0), np.median(states, axis=0)
    effect = np.abs(lift) * states.std(axis=0)
    holds = np.where(lift > 0, mine > middle, mine < middle) & (effect > SLIGHT * effect.max())
    share = holds.mean(axis=0)
    order = [i for i in np.argsort(-share, kind="stable")[:MOST] if share[i] >= FAVOURED]
    if not order:
        best = int(share.argmax())
        text = "No single observation tells when it acts: none that favours it lies on that side of its middle in more"
        return [{"text": f"{text} than {counted(holds[:, best])}.", "share": share[best]}]
    said = []
    for i in order:
        level, side = ("high", "above") if lift[i] > 0 else ("low", "below")
        text = f"It is favoured when {names['obs'][i]['text']} is {level}: {side} {middle[i]:.3g}, the middle of all"
        said.append({"text": f"{text} states, in {counted(holds[:, i])}.", "share": share[i]})
    return said


def commanded(actor: Actor, m: int, mine: np.ndarray, names: Names) -> list[dict[str, Any]]:
    """For each command that is nearly always so: on one side, of an observation's sign, or saturated."""
    command = mine @ actor.weights["experts.mean.weight"][m].T + actor.weights["experts.mean.bias"][m]
    said = []
    for a, name in enumerate(names["action"]):
        u = command[:, a]
        sides = {"positive": u > 0, "negative": u < 0}
        side = max(sides, key=lambda word: sides[word].mean())
        agree = {
            (i, word): np.sign(mine[:, i]) == sign * np.sign(u)
            for i in np.flatnonzero(actor.weights["experts.mean.weight"][m, a])
            for word, sign in (("the sign", 1), ("the opposite sign", -1))
        }
        found = []
        if sides[side].mean() >= SIGNED:
            found.append((f"is {side}", sides[side]))
        elif agree:
            i, word = max(agree, key=lambda key: agree[key].mean())
            if agree[i, word].mean() >= SIGNED:
                found.append((f"has {word} of {names['obs'][i]['text']}", agree[i, word]))
        full = np.abs(np.tanh(u)) > SATURATED
        if full.mean() >= 0.5:
            found.append((f"is beyond {100 * SATURATED:.0f}% of its limit", full))
        texts = [(f"Its {name['text']} {what} in {counted(holds)}.", holds.mean()) for what, holds in found]
        said += [{"text": text, "share": share} for text, share in texts]
    return said
