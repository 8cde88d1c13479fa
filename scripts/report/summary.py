"""What a person asks first, from facts that were counted: what matters, who acts, how it fails, what it withstands."""

import json
from typing import Any, Optional

import numpy as np
from command_line import UserError
from saved_actor import Actor

FAITHFUL = 0.9  # share of choices that observations must keep when all others are held, to be called decisive
MOSTLY = 0.8  # share of the commands' variance that is kept, to be called most of it
MAIN = 0.01  # experts that act less often stay in the background
CARD = {"noise": (0.05, 0.1, 0.2), "delay": (1, 2), "mass": (0.8, 1.2), "friction": (0.5, 2.0)}
CARD_EPISODES = 10
IN_WORDS = 4  # observations that a sentence describes; more of them are symbols
SLIGHT = 0.2  # of its limit: an action that stays below is small


def decisive(actor: Actor, states: np.ndarray) -> dict[str, Any]:
    """The fewest observations that choose the same expert nearly always while all others are held at their means."""
    router, bias = (actor.weights[key].astype(np.float64) for key in ("router.weight", "router.bias"))
    mean, spread = states.mean(axis=0), states.std(axis=0)
    commands = actor.weights["experts.mean.weight"].astype(np.float64)
    chosen = (states @ router.T + bias).argmax(axis=1)
    sizes = ((router - router.mean(axis=0)) * spread) ** 2
    order = np.argsort(-sizes.sum(axis=0), kind="stable")
    for n in range(1, len(order) + 1):
        kept = order[:n]
        held = np.tile(mean, (len(states), 1))
        held[:, kept] = states[:, kept]
        agreement = float(((held @ router.T + bias).argmax(axis=1) == chosen).mean())
        if agreement >= FAITHFUL:
            break
    exact, rough = (np.einsum("tai,ti->ta", commands[chosen], s - mean) for s in (states, held))
    total = float(exact.var(axis=0).sum())
    kept_variance = 1 - float((exact - rough).var(axis=0).sum()) / total if total > 0 else 1.0
    return {"observations": kept.tolist(), "agreement": agreement, "commands": max(0.0, kept_variance)}


def failures_of(episodes: list[Any], evaluation: Optional[dict[str, Any]]) -> dict[str, Any]:
    """Episodes that the environment ended early: when, who acted, and which observations were farthest from usual."""
    states = np.concatenate([e.observations for e in episodes]).astype(np.float64)
    mean, spread = states.mean(axis=0), states.std(axis=0)
    ended = []
    for number, episode in enumerate(episodes):
        if episode.ended != "terminated":
            continue
        last = episode.observations[-1].astype(np.float64)
        away = np.divide(last - mean, spread, out=np.zeros_like(last), where=spread > 0)
        far = np.argsort(-np.abs(away), kind="stable")[:3]
        ended.append(
            {"episode": number + 1, "seed": episode.seed, "step": len(episode.rewards)}
            | {"expert": int(episode.experts[-1]) + 1}
            | {"seen": [{"obs": int(k), "value": last[k], "spreads_away": away[k]} for k in far]}
        )
    result = {"episodes": len(episodes), "ended": ended, "share": len(ended) / len(episodes)}
    if evaluation and "ended_early" in evaluation:
        result |= {"evaluated_share": evaluation["ended_early"], "evaluated_episodes": evaluation["episodes"]}
    return result


def read_card(actor: Actor, env_id: str) -> Optional[list[dict[str, Any]]]:
    """The rows that `evaluate.py --output RUN/robustness.json` left beside this very actor."""
    path = actor.path.parent / "robustness.json"
    if not path.is_file():
        return None
    try:
        rows = [row for row in json.loads(path.read_text(encoding="utf-8")) if row["router"] != "trees"]
        mine = [row for row in rows if row["actor"] == actor.identity and row["env_id"] == env_id]
        return card_of(mine) if mine else None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); make it again or move it away") from error


def make_card(actor: Actor, env_id: Optional[str]) -> list[dict[str, Any]]:
    """The robustness card of evaluate.py, with its usual conditions."""
    import evaluate

    args = evaluate.Args(paths=(str(actor.path),), episodes=CARD_EPISODES, env_id=env_id, **CARD)
    return card_of(evaluate.evaluate(str(actor.path), args))


def card_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ("condition", "value", "episodes", "mean", "std", "ended_early", "difference", "difference_se")
    return [{key: row[key] for key in keys if key in row} for row in rows]


def percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.1 or share == 0 else f"{100 * share:.1f}%"


def listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def summary_of(report: dict[str, Any]) -> list[str]:
    """Sentences for the top of the page; every number in them is counted in this report."""
    gait, several = report["gait"], len(report["usage"]["share"]) > 1
    sentences = [decisive_sentence(report["decisive"], report["names"]["obs"])] if several else []
    sentences += [experts_sentence(report)] if several else []
    sentences += [gait_sentence(gait, report["seconds_per_step"])]
    sentences += [failure_sentence(report["failures"], report["names"]["obs"])]
    sentences += [push_sentence(report["pushes"], gait.get("period", 0.0))] if report["pushes"] else []
    return sentences


def in_words(name: dict[str, str]) -> str:
    """What a name stands for, else the name itself."""
    return name["text"] if name["description"] == name["text"] else f"the {name['description']}"


def few_of(names: list[dict[str, str]]) -> str:
    """In words while that can be read in one go, else as symbols."""
    return listed([in_words(n) for n in names] if len(names) <= IN_WORDS else [n["text"] for n in names])


def decisive_sentence(matter: dict[str, Any], names: list[dict[str, str]]) -> str:
    kept = matter["observations"]
    others = [k for k in range(len(names)) if k not in kept]
    if not others:
        return f"All {len(names)} observations decide who acts: none of them can be held at its mean."
    result = f"the same expert is chosen in {percent(matter['agreement'])} of the visited states"
    if matter["commands"] >= MOSTLY:
        result += f", and its commands keep {percent(matter['commands'])} of their variance"
    else:  # what hardly matters for who acts may be what the one who acts goes by
        kept_share = percent(matter["commands"]) if matter["commands"] else "none"
        result += f", but its commands keep {kept_share} of their variance"
    if len(kept) <= max(4, len(others)):
        few = few_of([names[k] for k in kept])
        decide = f"{len(kept)} of {len(names)} observations decide who acts, {few}"
        return f"{decide}: with all others held at their means, {result}."
    few = few_of([names[k] for k in others])
    few = few[0].upper() + few[1:] if few.startswith("the ") else few
    if len(others) == 1:
        return f"{few} hardly matters for who acts: with it held at its mean, {result}."
    return f"{few} hardly matter for who acts: with them held at their means, {result}."


def experts_sentence(report: dict[str, Any]) -> str:
    """When the experts that act most act and what they then do, as far as it was counted; else who acts most."""
    share, told = report["usage"]["share"], []
    main = [m for m in sorted(range(len(share)), key=lambda m: -share[m]) if share[m] >= MAIN]
    for m in main[:3]:
        mine = [s for s in report["sentences"] if s["expert"] == m + 1]
        for s in [s for s in mine if "when" in s]:
            when = listed([condition(c, report["names"]["obs"]) for c in s["when"]])
            counted = f"{percent(s['share'])} of its states, {percent(s['others'])} of others"
            does = deeds(report["at_work"][m], mine, report["policy"], report["names"]["action"])
            told.append(f"Expert {m + 1} ({percent(share[m])} of steps) acts mostly when {when} ({counted}); {does}")
    if told:
        return "; ".join(told) + "."
    told = listed([f"Expert {m + 1} ({percent(share[m])})" for m in main[:4]])
    left = f", {len(main) - 4} more now and then" if len(main) > 4 else ""
    rare = f"; {len(share) - len(main)} of {len(share)} in under 1% of steps or never" if len(main) < len(share) else ""
    return f"{told} {'acts' if len(main) == 1 else 'act most'}{left}{rare}."


def condition(one: dict[str, Any], names: list[dict[str, str]]) -> str:
    name = names[one["obs"]]
    return f"{in_words(name)} is {one['side']} {one['value']:.3g} {name['unit']}".rstrip()


def deeds(work: dict[str, Any], said: list[dict[str, Any]], policy: dict[str, Any], names: list[dict[str, str]]) -> str:
    """What an expert does where it acts: the two strongest actions that keep to one side, else the widest swing."""
    mean, low, high = (
        (np.asarray(work[f"torque_{key}"]) - policy["action_bias"]) / policy["action_scale"]
        for key in ("mean", "low", "high")
    )
    sided = [s for s in said if s.get("claim") in ("is positive", "is negative")]
    sided.sort(key=lambda s: -abs(mean[s["action"]]))
    if sided:
        return "then " + listed([f"{in_words(names[s['action']])} {s['claim']} ({percent(s['share'])})"
                                 for s in sided[:2]])  # fmt: skip
    widest = int((high - low).argmax())
    limit = float(max(np.abs(low).max(), np.abs(high).max()))
    if limit < SLIGHT:
        return f"then all actions stay below {max(1, np.ceil(100 * limit)):.0f}% of their limits (the middle 80%)"
    swing = f"from {work['torque_low'][widest]:.2g} to {work['torque_high'][widest]:.2g}"
    return f"then {in_words(names[widest])} swings {swing} (the middle 80%)"


def gait_sentence(gait: dict[str, Any], seconds: float) -> str:
    if not gait["periodic"]:
        return "It comes to rest." if gait.get("at_rest") else "Nothing in its behaviour is periodic."
    time = f" ({gait['period'] * seconds:.2g} s)" if seconds else ""
    leading = np.asarray(gait["experts"]).argmax(axis=0)
    turns = leading[np.flatnonzero(np.diff(leading, append=leading[0]))]
    order = " → ".join(str(m + 1) for m in turns)
    who = f"; in each cycle the experts mostly follow one another as {order}" if 1 < len(turns) <= 10 else ""
    return f"Its behaviour repeats every {gait['period']:.3g} steps{time}{who}."


def failure_sentence(failures: dict[str, Any], names: list[dict[str, str]]) -> str:
    ended, n = failures["ended"], failures["episodes"]
    many = f"{len(ended)} of {n} episodes end early" if ended else f"None of {n} episodes ends early"
    if "evaluated_share" in failures:
        share, n = percent(failures["evaluated_share"]), failures["evaluated_episodes"]
        many = f"{share if failures['evaluated_share'] else 'None'} of the {n} episodes of its evaluation ended early"
    if not ended:
        return f"{many}."
    steps = [e["step"] for e in ended]
    at = f"at step {steps[0]}" if len(steps) == 1 else f"between steps {min(steps)} and {max(steps)}"
    experts = [e["expert"] for e in ended]
    common = max(set(experts), key=lambda m: (experts.count(m), -m))
    who = f"{'' if experts.count(common) == len(experts) else 'mostly '}while Expert {common} acted"
    seen = [e["seen"][0]["obs"] for e in ended]
    obs = max(set(seen), key=lambda k: (seen.count(k), -k))
    away = np.mean([abs(s["spreads_away"]) for e in ended for s in e["seen"] if s["obs"] == obs])
    far = f"the {names[obs]['description']} farthest from usual ({away:.1f} spreads)"
    return f"{many}{'; here' if 'evaluated_share' in failures else ','} {at}, {who}, with {far}."


def push_sentence(pushes: dict[str, Any], period: float) -> str:
    """What pushes do, in one sentence: falls first, then recovery."""
    if not pushes["moments"]:
        return f"Pushes were not tried: {pushes['reason']}."
    worst, sizes = pushes["pushes"][pushes["worst"]], pushes["sizes"]
    falling = next((i for i, share in enumerate(pushes["falls"]) if share > 0), None)
    back = [push["sizes"][2]["back_after"] for push in pushes["pushes"]]
    if falling is None:
        falls = f"No push of up to {percent(sizes[-1])} of a coordinate's spread ends an episode"
    else:
        share = percent(pushes["falls"][falling])
        falls = f"Pushes of {percent(sizes[falling])} of a coordinate's spread topple it in {share} of cases"
        falls += f" (worst: the {worst['name']})"
        if falling == 3 and period and None not in back and not max(back):
            return f"{falls}, those of 30% do not even lead it out of its gait."
        falls += f", none of {percent(sizes[falling - 1])} does" if falling else ""
    if not period:
        first, last = (pushes["curves"][2]["difference"][1][t] for t in (0, -1))
        left = f"{percent(last / first)} of its first effect is left" if last is not None else "a fallen robot is left"
        if last is not None and last > first:
            left = f"its effect is {last / first:.2g} times the first"
        return f"{falls}; {pushes['horizon']} steps after one of 30%, {left}."
    if None in back:
        n, still = pushes["horizon"], back.count(None)
        return (
            f"{falls}; in {still} of {len(back)} coordinates a push of 30% keeps it out of its gait for over {n} steps."
        )
    if not max(back):
        return f"{falls}; none of 30% leads it out of its gait."
    return f"{falls}; after any of 30% it is back in its gait within {max(back) / period:.1f} cycles."
