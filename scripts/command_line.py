"""The command line of the scripts in this folder: tyro reads it, and a mistake in it is told in one line."""

import contextlib
import io
import re
import sys
from typing import Optional, TypeVar

import tyro

Args = TypeVar("Args")


def parse_args(kind: type[Args], description: Optional[str], words: Optional[list[str]] = None) -> Args:
    """The flags; tyro's framed message about a mistake becomes one line, and the exit code is 2."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=words, description=description)
    except SystemExit as leaving:
        if leaving.code:
            print(f"error: {one_line(said.getvalue())}; see --help", file=sys.stderr)
        raise


def one_line(message: str) -> str:
    """What a framed message says, without its colours, its frame and the helptext of single flags."""
    rows = [row[2:].rstrip(" │") for row in re.sub(r"\x1b\[[\d;]*m", "", message).splitlines()[1:-1]]
    text = "\n".join(row for row in rows if not row.startswith(" " * 8))  # helptext is indented twice
    parts = [" ".join(part.split()).removeprefix("Error parsing ") for part in re.split("(?m)^[─-]{9,}$", text)]
    return "; ".join(part.rstrip(".") for part in parts if not re.match("(Argument|For full) helptext|$", part))
