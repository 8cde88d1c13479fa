"""The names of observations and actions: the user's, else the paper's symbols for its environments, else obs[i]."""

import json
import re
from pathlib import Path
from typing import Any, Optional

from command_line import UserError, printable, read_json

Names = dict[str, list[dict[str, str]]]
KEYS = ("text", "latex", "ascii", "description", "unit")
# a name in LaTeX can't read a file or change the page: letters, digits, sub- and superscripts, and these commands
LATEX_COMMANDS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega varepsilon vartheta varphi ell cos sin tan exp "
    "log rm mathrm mathit mathbf mathsf text dot ddot hat bar tilde vec left right prime cdot times circ parallel perp"
).split()
LATEX = rf"(?:[\w .,:;()\[\]|+\-*/=<>'!{{}}]|\^(?!\^)|\\(?:{'|'.join(LATEX_COMMANDS)})(?![A-Za-z])|\\[ ,;_])*"


def read_names(path: Optional[str], env_id: str, n_s: int, n_a: int) -> Names:
    """{"obs": [...], "action": [...]}, each with text, latex, ascii, description and unit, all of them strings.

    None of them has a line break or another control character, and ascii is an identifier in C and Python.
    """
    sizes, file = {"obs": n_s, "action": n_a}, Path(path or Path(__file__).with_name("names.json"))
    names = read_json(file, '--names wants {"obs": [...], "action": [...]}')
    if path is None:
        names = names.get(re.sub(r"-v\d+$", "", env_id), {})
        if any(len(names.get(kind, [])) != n for kind, n in sizes.items()):
            names = {kind: [f"{kind}[{i}]" for i in range(n)] for kind, n in sizes.items()}
    for kind, n in sizes.items():
        entries = names.get(kind) if isinstance(names, dict) else None
        if not isinstance(entries, list) or len(entries) != n:
            found = f"{len(entries)} names" if isinstance(entries, list) else "no list"
            raise UserError(f'{file} has {found} under "{kind}"; {env_id} needs {n} there')
    return {kind: with_identifiers([complete(e, file) for e in names[kind]], kind) for kind in sizes}


def complete(entry: Any, file: Path) -> dict[str, str]:
    """A name with all its spellings."""
    given = {"text": entry} if isinstance(entry, str) else entry
    if not isinstance(given, dict) or not all(isinstance(given.get(key, ""), str) for key in KEYS):
        raise UserError(f'a name must be a string, or an object of strings with "text", in {file}: {shown(entry)}')
    name = {key: printable(given[key]).strip() for key in KEYS if key in given}
    text = name.get("text", "")
    if not text:
        raise UserError(f'a name must not be blank in {file}: {shown(entry)}; give it a "text"')
    escaped = re.sub(r"([_%&#${}])", r"\\\1", re.sub(r"[\\^~]", "", text))
    name = {"latex": rf"\text{{{escaped}}}", "ascii": text, "description": text, "unit": ""} | name
    if "latex" in given and not is_plain_latex(name["latex"]):
        raise UserError(f"the latex of a name must be symbols alone in {file}: {shown(entry)}")
    return name


def is_plain_latex(text: str) -> bool:
    depth = 0
    for brace in re.findall(r"[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0 and re.fullmatch(LATEX, text) is not None


def shown(entry: Any) -> str:
    return json.dumps(entry)[:60]


def with_identifiers(entries: list[dict[str, str]], kind: str) -> list[dict[str, str]]:
    """The names, their `ascii` made into an identifier that no other name has."""
    result, taken = [], {"SIZE"}  # SMOSE_OBS_SIZE is the exports' own
    for i, entry in enumerate(entries):
        name = re.sub(r"\W+", "_", entry["ascii"], flags=re.ASCII).strip("_") or f"{kind}_{i}"
        name = f"_{name}" if name[0].isdigit() else name
        while name in taken:
            name = f"{name}_{i}"
        taken.add(name)
        result.append(entry | {"ascii": name})
    return result
