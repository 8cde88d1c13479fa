"""The names of observations and actions: the user's, else the paper's symbols for its environments, else obs[i]."""

import json
import re
from pathlib import Path
from typing import Any, Optional

from command_line import UserError

Names = dict[str, list[dict[str, str]]]


def read_names(path: Optional[str], env_id: str, n_s: int, n_a: int) -> Names:
    """{"obs": [...], "action": [...]}, each with text, latex, ascii, description and unit, all of them strings."""
    sizes, file = {"obs": n_s, "action": n_a}, Path(path or Path(__file__).with_name("names.json"))
    try:
        names = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} as JSON ({error}); --names wants such a file") from None
    if path is None:
        names = names.get(re.sub(r"-v\d+$", "", env_id), {})
        if any(len(names.get(kind, [])) != n for kind, n in sizes.items()):
            names = {kind: [f"{kind}[{i}]" for i in range(n)] for kind, n in sizes.items()}
    for kind, n in sizes.items():
        entries = names.get(kind) if isinstance(names, dict) else None
        if not isinstance(entries, list) or len(entries) != n:
            found = f"{len(entries)} names" if isinstance(entries, list) else "no list"
            raise UserError(f'{file} has {found} under "{kind}"; {env_id} needs {n} there')
    return {kind: [complete(e, f"{kind}_{i}") for i, e in enumerate(names[kind])] for kind in sizes}


def complete(entry: Any, ascii_name: str) -> dict[str, str]:
    """A name with all its spellings."""
    entry = {"text": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str) or not entry["text"].strip():
        raise UserError(f'a name must be a string or an object with "text", not {json.dumps(entry)[:60]}')
    text = entry["text"]
    escaped = re.sub(r"([_%&#${}])", r"\\\1", re.sub(r"[\\^~]", "", text))
    derived = {"latex": rf"\text{{{escaped}}}", "ascii": ascii_name, "description": text, "unit": ""}
    return {key: str(value) for key, value in {**derived, **entry}.items()}
