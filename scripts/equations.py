"""A policy as equations: every number of it printed, read back from the print, and driven.

What a page, a text or a picture shows as an equation is a policy of its own: rounded, perhaps shortened. So its numbers
are parsed from the printed text again, put into an actor, and that actor plays: its return stands beside the equations.
"""

import re
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import gymnasium as gym
import numpy as np
from command_line import UserError, printable
from names import Names
from saved_actor import FIRST_EVAL_SEED, Actor, make_policy, play

Equation = dict[str, Any]
READ = ("router.weight", "router.bias", "experts.mean.weight", "experts.mean.bias")  # the numbers that are printed
LATEX_GAP, LATEX_BREAK = r" \, ", " \\\\\n        &\\quad "
TERMS_A_LINE = 5  # in LaTeX, where a line has an end


def coefficient(weight: float) -> str:
    """The size of a number as it is printed: one decimal, below 1 two digits."""
    size = Decimal(f"{abs(float(weight)):.6g}")  # without float32's tail, so that what was printed prints alike again
    digits = Decimal("0.1") if size >= 1 or size == 0 else Decimal(1).scaleb(size.adjusted() - 1)
    rounded = size.quantize(digits, ROUND_HALF_UP)
    return f"{rounded:.1f}" if rounded >= 1 else f"{rounded:f}"


def as_it_prints(weights: np.ndarray) -> np.ndarray:
    """The same numbers after print and read: float32 of the printed decimals."""
    printed = [float(coefficient(w)) * (-1 if w < 0 else 1) for w in np.ravel(weights)]
    return np.array(printed, np.float32).reshape(np.shape(weights))


def rounded_actor(actor: Actor) -> Actor:
    return replace(actor, weights=actor.weights | {key: as_it_prints(actor.weights[key]) for key in READ})


def equation_of(weights: np.ndarray, bias: float, spread: np.ndarray, rank: str) -> Equation:
    """All terms that are not zero, in their order, and last the constant (obs is None), which varies with nothing."""
    terms = [
        {"obs": i, "weight": float(str(w)), "effect": float(w * spread[i])} for i, w in enumerate(weights) if w != 0
    ]
    if rank != "order":
        terms.sort(key=lambda term: -abs(term[rank]))
    if bias != 0:
        terms.append({"obs": None, "weight": float(str(bias)), "effect": 0.0})
    return {"terms": terms}


def equations_of(actor: Actor, spread: np.ndarray, rank: str) -> list[dict[str, Any]]:
    """For each expert the equations of its score and its commands, with the numbers as they are printed."""
    router, router_bias, mean, mean_bias = (as_it_prints(actor.weights[key]) for key in READ)
    return [
        {
            "expert": m + 1,
            "score": equation_of(router[m], router_bias[m], spread, rank),
            "torques": [equation_of(w, b, spread, rank) for w, b in zip(mean[m], mean_bias[m], strict=True)],
        }
        for m in range(actor.n_experts)
    ]


def written(equation: Equation, symbols: list[str], space: str = " ") -> str:
    text = ""
    for term in equation["terms"]:
        negative = term["weight"] < 0
        text += (" - " if negative else " + ") if text else ("-" if negative else "")
        text += coefficient(term["weight"]) + ("" if term["obs"] is None else space + symbols[term["obs"]])
    return text or "0"


def effects_written(equation: Equation, symbols: list[str], mark: str = "") -> str:
    varying = [(mark + symbols[t["obs"]] + mark, t["effect"]) for t in equation["terms"] if t["obs"] is not None]
    return ", ".join(f"{symbol} {'-' if effect < 0 else ''}{coefficient(effect)}" for symbol, effect in varying)


def read_equation(text: str, symbols: list[str]) -> tuple[np.ndarray, np.float32]:
    """The weights and the constant that a printed equation says; ValueError where it says none."""
    weights, bias, at = np.zeros(len(symbols), np.float32), np.float32(0), 0
    symbol = "|".join(re.escape(s) for s in sorted(symbols, key=len, reverse=True))
    term = re.compile(rf" ([+-]) (\d+(?:\.\d+)?)(?: ({symbol}))?(?= [+-] |$)")
    text = f" - {text[1:]}" if text.startswith("-") else f" + {text}"
    while at < len(text):
        found = term.match(text, at)
        if not found:
            raise ValueError(f"{text[at:]!r} is no term")
        value = np.float32(found[1] + found[2])
        if found[3] is None:
            bias = value
        else:
            weights[symbols.index(found[3])] = value
        at = found.end()
    return weights, bias


def read_equations(text: str, actor: Actor, names: Names) -> Actor:
    """The policy that equations.txt says: the actor with the printed numbers in place of its own."""
    symbols, n_a = [name["text"] for name in names["obs"]], actor.action_size
    rows = [line[2:].split(" ≈ ", 1)[1] for line in text.split("\n") if re.match(r"  \S", line) and " ≈ " in line]
    if len(rows) != actor.n_experts * (1 + n_a):
        raise ValueError(f"{len(rows)} equations, not {actor.n_experts * (1 + n_a)}")
    weights, biases = zip(*(read_equation(row, symbols) for row in rows), strict=True)
    w, b = np.array(weights).reshape(-1, 1 + n_a, actor.obs_size), np.array(biases).reshape(-1, 1 + n_a)
    return replace(actor, weights=actor.weights | dict(zip(READ, (w[:, 0], b[:, 0], w[:, 1:], b[:, 1:]), strict=True)))


def returns_of(env: gym.Env, actor: Actor, seeds: range) -> np.ndarray:
    policy = make_policy(actor)
    return np.array([sum(step.reward for step in play(env, policy, seed)) for seed in seeds])


def idle(actor: Actor) -> Actor:
    """Does nothing: every action is the middle of its range."""
    return replace(actor, weights=actor.weights | {key: 0 * actor.weights[key] for key in READ[2:]})


def drive_printed(env: gym.Env, text: str, shown: Actor, real: Actor, names: Names, episodes: int) -> dict[str, Any]:
    """Plays what the text says, the real policy and nothing at all on the same seeds; `share`: who acts as printed."""
    try:
        printed = read_equations(text, shown, names)
        faithful = all((printed.weights[key] == as_it_prints(shown.weights[key])).all() for key in READ)
    except ValueError:
        faithful = False
    if not faithful:
        raise UserError("the printed equations do not say the policy again: give other --names, each of them once")
    seeds = range(FIRST_EVAL_SEED, FIRST_EVAL_SEED + episodes)
    played = [list(play(env, make_policy(printed), seed)) for seed in seeds]
    acting = [step.expert for steps in played for step in steps]
    return {
        "printed": float(np.mean([sum(step.reward for step in steps) for steps in played])),
        "real": float(returns_of(env, real, seeds).mean()),
        "nothing": float(returns_of(env, idle(real), seeds).mean()),
        "share": (np.bincount(acting, minlength=shown.n_experts) / len(acting)).tolist(),
        "episodes": episodes,
        "first_seed": FIRST_EVAL_SEED,
        "source": shown.path.name,
        "numbers": printed.n_read,
    }


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


def as_printed(driven: dict[str, Any]) -> str:
    """The line that stands beside equations."""
    printed, real, nothing = (number(driven[key]) for key in ("printed", "real", "nothing"))
    last = driven["first_seed"] + driven["episodes"] - 1
    return (
        f"as printed: {printed} of {real} (doing nothing: {nothing}); mean return of {driven['episodes']} episodes, "
        f"seeds {driven['first_seed']} to {last}; {driven['numbers']} numbers, those of {printable(driven['source'])}"
    )


def latex_text(text: str) -> str:
    return re.sub(r"([_%&#${}])", r"\\\1", re.sub(r"[\\^~]", "", printable(text)))


def vector(values: np.ndarray) -> str:
    return f"{values[0]:g}" if np.ptp(values) == 0 else "(" + ", ".join(f"{v:g}" for v in values) + ")"


def how_it_acts(actor: Actor) -> list[str]:
    mix = "The expert with the largest score S_m acts."
    if actor.top_k > 1 or actor.gate == "softmax":
        share = "its softmax probability" + (", renormalised over these" if actor.gate == "one-hot" else "")
        mix = f"The {actor.top_k} expert(s) with the largest scores S_m act, each weighted by {share}."
    squash = f"scale {vector(actor.weights['action_scale'])} and bias {vector(actor.weights['action_bias'])}"
    notes = [
        mix,
        f"Each tau below is the argument of a tanh: action = scale * tanh(tau) + bias with {squash}.",
        "All terms that are not zero are here, constants too; who acts how often is counted in the policy as printed.",
        "Effect size: weight times the spread (standard deviation) of the observation over the visited states.",
    ]
    if "made_from" in actor.metadata:
        notes.append(
            f"These are the numbers of {printable(actor.path.name)}, a shorter policy fitted to the trained one."
        )
    return notes


def rows_of(entry: dict[str, Any], names: Names) -> list[tuple[str, str, Equation]]:
    """The equations of an expert with what stands on their left, in plain text and in LaTeX."""
    m, torques = entry["expert"], zip(names["action"], entry["torques"], strict=True)
    return [(f"S_{m}", f"S_{{{m}}}", entry["score"]), *((a["text"], a["latex"], t) for a, t in torques)]


def headings(equations: list[dict[str, Any]], share: list[float]) -> list[str]:
    used = [f"{100 * s:.1f} % of steps" if s > 0 else "never active" for s in share]
    return [f"Expert {entry['expert']} ({use})" for entry, use in zip(equations, used, strict=True)]


def equations_txt(equations: list[dict[str, Any]], names: Names, share: list[float]) -> str:
    symbols, lines = [name["text"] for name in names["obs"]], []
    for heading, entry in zip(headings(equations, share), equations, strict=True):
        lines += ["", heading]
        for symbol, _, equation in rows_of(entry, names):
            effects = effects_written(equation, symbols) or "none"
            lines += [f"  {symbol} ≈ {written(equation, symbols)}", f"      [effect sizes: {effects}]"]
    return "\n".join(lines) + "\n"


def equations_md(equations: list[dict[str, Any]], names: Names, share: list[float]) -> str:
    symbols, lines = [name["latex"] for name in names["obs"]], []
    for heading, entry in zip(headings(equations, share), equations, strict=True):
        lines += ["", f"## {heading}", "", "| equation | effect sizes |", "|---|---|"]
        for _, latex, equation in rows_of(entry, names):
            cells = (
                f"${latex} \\approx {written(equation, symbols, LATEX_GAP)}$",
                effects_written(equation, symbols, "$"),
            )
            lines += ["| " + " | ".join((cell or "none").replace("|", "\\|") for cell in cells) + " |"]
    return "\n".join(lines) + "\n"


def broken(equation: Equation, symbols: list[str]) -> str:
    """An equation in LaTeX, over several lines if it has many terms."""
    terms = equation["terms"]
    parts = [{"terms": terms[k : k + TERMS_A_LINE]} for k in range(0, len(terms), TERMS_A_LINE)] or [equation]
    lines = [written(part, symbols, LATEX_GAP) for part in parts]
    return LATEX_BREAK.join([lines[0], *(f"- {line[1:]}" if line[0] == "-" else f"+ {line}" for line in lines[1:])])


def equations_tex(equations: list[dict[str, Any]], names: Names, share: list[float]) -> str:
    symbols, lines = [name["latex"] for name in names["obs"]], []
    for heading, entry in zip(headings(equations, share), equations, strict=True):
        rows = [(latex, equation) for _, latex, equation in rows_of(entry, names)]
        effects = [f"  ${latex}$: {effects_written(equation, symbols, '$') or 'none'};" for latex, equation in rows]
        lines += [f"\\paragraph{{{latex_text(heading)}}}", "\\begin{align*}"]
        lines += [" \\\\\n".join(f"    {latex} &\\approx {broken(equation, symbols)}" for latex, equation in rows)]
        lines += ["\\end{align*}", "{\\footnotesize Effect sizes:", *effects, "}", ""]
    return "\n".join(lines)


def equation_files(title: str, actor: Actor, report: dict[str, Any]) -> dict[str, str]:
    equations, names, share = report["equations"], report["names"], report["as_printed"]["share"]
    driven, notes = as_printed(report["as_printed"]), report["how_it_acts"]
    tex = ["% \\input this file; it needs amsmath.", *(f"% {note}" for note in (title, driven, *notes))]
    tex += [f"\\noindent {latex_text(driven[0].upper() + driven[1:])}.", ""]
    tex += ["\\noindent Each $\\tau$ is the argument of a $\\tanh$: $a = c \\tanh(\\tau) + d$ with scale"]
    scale, bias = (vector(actor.weights[key]) for key in ("action_scale", "action_bias"))
    tex += [f"$c = {scale}$ and bias $d = {bias}$.", "", equations_tex(equations, names, share)]
    markdown = "\n".join([f"# {title}", "", f"**{driven}**  ", *(note + "  " for note in notes), ""])
    return {
        "equations.txt": "\n".join([title, driven, "", *notes, ""]) + equations_txt(equations, names, share),
        "equations.md": markdown + equations_md(equations, names, share),
        "equations.tex": "\n".join(tex) + "\n",
    }
