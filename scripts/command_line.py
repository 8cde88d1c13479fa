"""The command line of every script but the trainers: tyro reads it, and a mistake ends in one line and exit code 2."""

import contextlib
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

Args = TypeVar("Args")

# a script imports this first: from here until main begins, Ctrl-C ends it at once and quietly, amid an import too
scripts = Path(__file__).resolve().parent
started = Path(getattr(sys.modules["__main__"], "__file__", None) or "").resolve().parent
if started in (scripts, scripts.parent) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


def parse_args(kind: type[Args], description: Optional[str], words: Optional[list[str]] = None) -> Args:
    """The flags; tyro's framed message about a mistake becomes one line."""
    import tyro

    said, unsaid = (
        io.StringIO(),
        tyro.conf.arg(help_behavior_hint=""),
    )  # its text says what None means
    empty = [(f.name, Annotated[f.type, unsaid], f.default) for f in fields(kind) if f.default in (None, ())]
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(make_dataclass(kind.__name__, empty, bases=(kind,)), args=words, description=description)
    except SystemExit as leaving:
        if not leaving.code:
            raise
        raise UserError(f"{one_line(said.getvalue())}; see --help") from None


def one_line(message: str) -> str:
    """What a framed message says, without its colours, its frame and the helptext of single flags."""
    rows = [row[2:].rstrip(" │") for row in re.sub(r"\x1b\[[\d;]*m", "", message).splitlines()[1:-1]]
    text = "\n".join(row for row in rows if not row.startswith(" " * 8))  # helptext is indented twice
    parts = [" ".join(part.split()).removeprefix("Error parsing ") for part in re.split("(?m)^[─-]{9,}$", text)]
    return "; ".join(part.rstrip(".") for part in parts if not re.match("(Argument|For full) helptext|$", part))


def printable(text: str) -> str:
    """Text from a file for a terminal: no control characters, so no escape sequences, and no second line."""
    return "".join(c if c.isprintable() else " " for c in text)


def read_json(file: str | Path, hint: str) -> Any:
    """What a JSON file holds; `hint` is what to do if it is none."""
    try:
        return json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}); {hint}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON ({error}); {hint}") from None


def output_file(path: str | Path) -> Path:
    """Where a file will be written: what is in the way shows before the work, not after it."""
    path = Path(path)
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: its folder does not exist; make it first")
    if path.is_dir():
        raise UserError(f"--output {path} is a folder; give a file in it")
    return path


def write_whole(path: Path, content: str | bytes) -> None:
    """A file is replaced whole or not at all, and nothing half written is left beside it."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def end_on_mistakes(main: Callable[[], None]) -> None:
    """Run a script's main; what the user can put right is told in one line, without a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by `>&-`
            setattr(sys, name, open(os.devnull, "w"))
        getattr(sys, name).reconfigure(errors="replace")  # an ASCII terminal shows ? for what it lacks
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # also when terminated, what is half written is removed on the way out
    on_sigterm = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main()
        sys.stdout.flush()
    except UserError as error:
        sys.exit(told(str(error)))
    except BrokenPipeError:  # `| head -1`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing left to fail when Python flushes
    except OSError as error:
        sys.exit(told(f"cannot read or write {error.filename or 'the output'} ({error.strerror or error})"))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)


def told(mistake: str) -> int:
    print(f"error: {printable(mistake)}", file=sys.stderr)
    return 2
