"""Train environments x seeds x algorithms with Ray: on this machine, on a cluster, or in a SLURM allocation.

    python scripts/sweep.py                                              # the paper's study: 6 environments, 10 seeds
    python scripts/sweep.py --env-ids Hopper-v4 Reacher-v4 --seeds 0 1 2 --algos smose sac-m --jobs 2
    python scripts/sweep.py --address auto --runs-dir /shared/smose/runs # a running Ray cluster
    python scripts/sweep.py --dry-run                                    # the commands, one per line, nothing started
    python scripts/sweep.py --seeds 0 -- --total-timesteps 100000        # what follows `--` goes to every trainer

Runs that are done are skipped and those that are not are resumed, so the same command goes on after Ctrl-C, a crash or
a lost node. Every run writes its output to runs/logs/. `scripts/sweep.sh` does the same without Ray.
"""

import ast
import contextlib
import ctypes
import fcntl
import glob
import json
import math
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Optional, TextIO

from command_line import UserError, end_on_mistakes, parse_args

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ("Walker2d-v4", "Hopper-v4", "Ant-v4", "HalfCheetah-v4", "Reacher-v4", "Swimmer-v4")
ALGOS = {  # what follows the trainer, and the name its runs get
    "smose": ("smose_sac.py", (), "smose_sac"),
    "sac-s": ("sac_baseline.py", ("--size", "S"), "sac_s"),
    "sac-m": ("sac_baseline.py", ("--size", "M"), "sac_m"),
    "sac-l": ("sac_baseline.py", ("--size", "L"), "sac_l"),
}
FORMATS = {"smose_sac.py": "smose-run", "sac_baseline.py": "sac-run"}
SWEPT = ("env_id", "seed", "size", "hidden_sizes", "resume")  # set by the sweep, never by the flags after `--`
# flags in which two runs of the same weights may differ; total_timesteps and exp_name are compared on their own
HARMLESS = {
    "exp_name",
    "total_timesteps",
    "resume",
    "checkpoint_every",
    "keep_replay",
    "num_threads",
    "cuda",
    "compile",
}
HARMLESS |= {"track", "wandb_project_name", "wandb_entity", "capture_video"}
# steps done and planned, speed, time left, return; in warm-up a line has no speed and no time left
PROGRESS = re.compile(
    r"step ([\d,]+)/([\d,]+)(?:[^\r\n]*? ([\d.,]+) steps/s)?(?: +(\S[^\r\n]*?) left)?(?:[^\r\n]*?return (\S+))?"
)
LOCK_PATIENCE = 120  # seconds a retried run waits for what is left of its last attempt to let go of the folder
STOP_PATIENCE = 60  # seconds a trainer gets to write its last checkpoint


@dataclass
class Args:
    env_ids: tuple[str, ...] = ENVIRONMENTS
    """environments"""
    seeds: tuple[str, ...] = tuple(str(seed) for seed in range(10))
    """seeds"""
    algos: tuple[str, ...] = tuple(ALGOS)
    """any of smose, sac-s, sac-m, sac-l"""
    jobs: Optional[int] = None
    """runs at a time on this machine (default: as many as its CPUs allow); a cluster's CPUs decide for themselves"""
    python: str = sys.executable
    """the Python that runs the trainers, at the same path on every node"""
    runs_dir: str = "runs"
    """folder of the runs, named `runs`; on a cluster it and this project lie on storage that all nodes share"""
    dry_run: bool = False
    """print the commands and start nothing"""
    address: Optional[str] = None
    """a running Ray cluster: `auto`, host:port or ray://host:10001 (default: start Ray on this machine)"""
    cpus_per_run: int = 1
    """CPUs that Ray sets aside for each run"""
    gpus_per_run: float = 0.0
    """GPUs that Ray sets aside for each run; 0.25 lets four runs share one, 0 leaves the choice to the trainer"""
    retries: int = 3
    """times a run is tried again after its worker, its node or its trainer died"""
    interval: float = 30.0
    """seconds between the reports when the output is not a terminal"""


@dataclass(frozen=True)
class Run:
    """One training to be done: which trainer, with which flags, and what tells it from other runs of that name."""

    env_id: str
    algo: str
    seed: int
    trainer: str
    flags: tuple[str, ...]
    exp_name: str
    total_timesteps: int
    settings: dict[str, Any]  # a flag's words as given on the command line (a tuple), or its default

    @property
    def name(self) -> str:
        """How the trainers begin the name of the run's folder."""
        return re.sub(r"[^\w.+-]+", "-", f"{self.env_id}__{self.exp_name}__{self.seed}", flags=re.ASCII)

    @property
    def title(self) -> str:
        return f"{self.env_id} {self.algo} {self.seed}"


def words(values: tuple[str, ...]) -> list[str]:
    """`--env-ids "A B" C` means the same as `--env-ids A B C`, in the shell sweep too; repeated words count once."""
    return list(dict.fromkeys(word for value in values for word in value.split()))


def trainer_defaults(script: Path) -> dict[str, Any]:
    """The trainer's flags with their defaults, read from its source: `...` where the default is computed."""
    if not script.exists():
        raise UserError(f"{script} is missing; run the sweep from a complete copy of the project")
    body = next(n.body for n in ast.parse(script.read_text()).body if isinstance(n, ast.ClassDef) and n.name == "Args")
    defaults = {}
    for field in body:
        if isinstance(field, ast.AnnAssign):
            try:
                defaults[field.target.id] = ast.literal_eval(field.value)
            except (ValueError, TypeError):
                defaults[field.target.id] = ...
    return defaults


def parse_flags(flags: list[str], known: dict[str, Any], script: str) -> dict[str, tuple[str, ...]]:
    """What each flag was given, as words: `--x 1` and `--x=1` are ("1",), `--x` is ("True",), `--no-x` ("False",)."""
    given: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in flags:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            given_words = (value,) if equals else ()
            if name not in known and name.removeprefix("no_") in known:
                name, given_words = name.removeprefix("no_"), ("False",)
            if name not in known:
                raise UserError(f"{script} has no flag {word}; sweep the algorithms that have it alone (--algos)")
            given[name] = given_words
        elif not name:
            raise UserError(f"{word!r} after `--` is no flag; trainers take flags such as --total-timesteps 100000")
        else:
            given[name] += (word,)
    return {name: value or ("True",) for name, value in given.items()}


def parse_steps(text: str) -> int:
    """As the trainers read it: 1_000_000, not 1e6."""
    try:
        steps = int(text)
    except ValueError:
        steps = 0
    if steps < 1:
        raise UserError(f"--total-timesteps {text} is not a number of steps; write e.g. --total-timesteps 100000")
    return steps


def list_runs(args: Args, extra: list[str]) -> list[Run]:
    """All runs of the sweep, seed by seed, so that every environment has a first result early."""
    if unknown := [algo for algo in words(args.algos) if algo not in ALGOS]:
        raise UserError(f"unknown algorithm {unknown[0]!r}; choose from {', '.join(ALGOS)}")
    if wrong := [seed for seed in words(args.seeds) if not re.fullmatch("[0-9]{1,12}", seed)]:
        raise UserError(f"seed {wrong[0]!r} is not a whole number; write e.g. --seeds 0 1 2")
    if wrong := [env_id for env_id in words(args.env_ids) if not re.fullmatch(r"[\w.:/-]+", env_id)]:
        raise UserError(f"{wrong[0]!r} is no environment's name; write e.g. --env-ids Hopper-v4 Reacher-v4")
    if not (args.env_ids and args.seeds and args.algos):
        raise UserError("nothing to train; --env-ids, --seeds and --algos each need at least one word")
    defaults = {script: trainer_defaults(ROOT / script) for script in {ALGOS[algo][0] for algo in words(args.algos)}}
    runs = []
    for seed in words(args.seeds):
        for env_id in words(args.env_ids):
            for algo in words(args.algos):
                script, size, exp_name = ALGOS[algo]
                given = parse_flags(extra, defaults[script], script)
                if clash := [name for name in given if name in SWEPT]:
                    raise UserError(f"--{clash[0].replace('_', '-')} is set by the sweep; leave it out after `--`")
                exp_name = given.get("exp_name", (exp_name,))[0]
                total = parse_steps(given.get("total_timesteps", (str(defaults[script]["total_timesteps"]),))[0])
                settings = defaults[script] | given | {"env_id": (env_id,), "seed": (seed,)}
                settings |= {"size": (size[1],)} if size else {}
                settings = {k: v for k, v in settings.items() if k not in HARMLESS and v is not ...}
                runs.append(Run(env_id, algo, int(seed), script, (*size, *extra), exp_name, total, settings))
    return runs


def same_setting(wanted: Any, recorded: Any) -> bool:
    """Compares a flag's words, or its default, with the value in config.json, whose type tells how to read words."""
    if not isinstance(wanted, tuple) or not all(isinstance(word, str) for word in wanted):
        return json.loads(json.dumps(wanted)) == recorded
    if isinstance(recorded, list):
        return len(wanted) == len(recorded) and all(map(same_setting, ((word,) for word in wanted), recorded))
    if recorded is None or isinstance(recorded, (bool, str)):
        return wanted == (str(recorded),)
    try:
        return len(wanted) == 1 and float(wanted[0]) == recorded
    except ValueError:
        return False


def read_json(path: Path) -> dict[str, Any]:
    """A file that is missing or cut short by a crash counts as empty."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def is_done(folder: Path, run: Run) -> bool:
    steps = read_json(folder / "evaluation.json").get("steps")
    return isinstance(steps, int) and steps >= run.total_timesteps


def matches(folder: Path, run: Run) -> bool:
    """Whether the folder holds this very run: same settings, and no more steps than wanted unless they are all done."""
    config = read_json(folder / "config.json")
    recorded = config.get("args")
    if config.get("format") != FORMATS[run.trainer] or not isinstance(recorded, dict):
        return False
    if not isinstance(recorded.get("total_timesteps"), int):
        return False
    if not all(same_setting(wanted, recorded.get(name)) for name, wanted in run.settings.items()):
        return False
    return is_done(folder, run) or recorded["total_timesteps"] <= run.total_timesteps


def find_folder(runs_dir: Path, run: Run) -> Optional[Path]:
    """The folder that holds this run: the finished one, else the one in training, the longest planned, the newest."""

    def rank(folder: Path) -> tuple[bool, bool, int, int]:
        planned = read_json(folder / "config.json")["args"]["total_timesteps"]
        return is_done(folder, run), is_locked(folder), planned, int(folder.name[len(run.name) + 2 :])

    folders = runs_dir.glob(f"{glob.escape(run.name)}__*")
    named = (folder for folder in folders if re.fullmatch("[0-9]{1,18}", folder.name[len(run.name) + 2 :]))
    return max((folder for folder in named if matches(folder, run)), key=rank, default=None)


def is_locked(folder: Path) -> bool:
    """A trainer holds an flock on its folder for as long as it lives, on whichever node."""
    try:
        with open(folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def find_state(runs_dir: Path, run: Run) -> tuple[str, Optional[Path]]:
    folder = find_folder(runs_dir, run)
    if folder is None:
        return "new", None
    if is_locked(folder):
        return "busy", folder
    return ("done" if is_done(folder, run) else "resume"), folder


def final_return(folder: Path) -> str:
    """The mean of the final evaluation; empty while shared storage is slow to show the file."""
    mean = read_json(folder / "evaluation.json").get("mean")
    return f"{mean:.1f}" if isinstance(mean, (int, float)) else ""


def make_command(run: Run, folder: Optional[Path], python: str, root: Path) -> list[str]:
    """The trainer's command line; a resumed run takes all its flags from its folder, save for a later end."""
    command = [python, str(root / run.trainer)]
    if folder is None:
        return [*command, "--env-id", run.env_id, "--seed", str(run.seed), *run.flags]
    command += ["--resume", str(folder), *(["--env-id", run.env_id] if ":" in run.env_id else [])]
    if run.total_timesteps > read_json(folder / "config.json")["args"]["total_timesteps"]:
        command += ["--total-timesteps", str(run.total_timesteps)]
    return command


def print_commands(runs: list[Run], runs_dir: Path, python: str, logs: str) -> None:
    """One line per run that a shell can read: its command and where its output goes, or a comment why not."""
    for run in runs:
        state, folder = find_state(runs_dir, run)
        if state == "done":
            print(f"# {run.title} is done: return {final_return(folder)}, {folder}")
        elif state == "busy":
            print(f"# {run.title} is being trained by another process: {folder}")
        else:
            command = shlex.join(make_command(run, folder, python, ROOT))
            print(f"{command}  # {run.title} > {logs}/{run.name}.log")


def die_with_parent() -> None:
    """The kernel kills the trainer when its Ray worker dies, so that it never trains on beside its own retry."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


def train(run: Run, runs_dir: Path, python: str, root: Path, sweep_id: str) -> tuple[str, str]:
    """The Ray task: starts or resumes one run and waits for it. An exception makes Ray try again, here or elsewhere."""
    log_path = runs_dir / "logs" / f"{run.name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    attempt = 1 + (log_path.read_text(errors="replace").count(f"# sweep {sweep_id} ") if log_path.exists() else 0)
    state, folder = find_state(runs_dir, run)
    patience = time.monotonic() + LOCK_PATIENCE
    while state == "busy" and attempt > 1 and time.monotonic() < patience:
        time.sleep(1)
        state, folder = find_state(runs_dir, run)
    if state == "busy" and attempt > 1:
        raise RuntimeError(f"the last attempt still trains {folder}")
    if state in ("done", "busy"):
        return state, str(folder)
    command = make_command(run, folder, python, root)
    import ray

    node = f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:8]}"
    with open(log_path, "a") as log:
        print(f"# sweep {sweep_id} attempt {attempt} on {node}: {shlex.join(command)}", file=log, flush=True)
        trainer = subprocess.Popen(
            command, cwd=runs_dir.parent, stdout=log, stderr=log, preexec_fn=die_with_parent, start_new_session=True
        )
        try:
            while trainer.poll() is None:
                time.sleep(0.2)  # short, because a cancelled task hears of it between two sleeps
        finally:
            if trainer.poll() is None:
                trainer.terminate()
                try:
                    trainer.wait(STOP_PATIENCE)
                except subprocess.TimeoutExpired:
                    trainer.kill()
    state, folder = find_state(runs_dir, run)
    if state == "done":
        return "done", str(folder)
    if trainer.returncode == 2:  # a user's mistake stays one however often it is tried
        return "failed", last_line(log_path)
    raise RuntimeError(f"exit code {trainer.returncode}: {last_line(log_path)}")


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else ""


def read_progress(runs_dir: Path, run: Run, sweep_id: str) -> Optional[dict[str, str]]:
    """Where a run is, from the last lines of its log; None before this sweep has started it."""
    try:
        text = (runs_dir / "logs" / f"{run.name}.log").read_text(errors="replace")
    except OSError:
        return None
    header = text.rfind(f"# sweep {sweep_id} attempt ")
    if header < 0:
        return None
    attempt, node = re.match(r"# sweep \S+ attempt (\d+) on (\S+):", text[header:]).groups()
    found = PROGRESS.findall(text[header:]) or PROGRESS.findall(text) or [("0", "", "0", "", "")]
    step, _, speed, left, mean = found[-1]
    return {"step": step, "speed": speed, "left": left, "return": mean, "where": node, "attempt": attempt}


def table_row(run: Run, state: str, progress: Optional[dict[str, str]], outcome: str) -> tuple[str, ...]:
    """One run as run, state, steps, return, time left, and a note: where it runs or what became of it."""
    total = f"{run.total_timesteps:,}"
    if state == "done":
        steps = read_json(Path(outcome) / "evaluation.json").get("steps", run.total_timesteps)
        return run.title, state, f"{steps:,}/{total}", final_return(Path(outcome)), "", outcome
    if state == "busy":
        return run.title, state, "", "", "", f"another process trains {outcome}"
    if state == "running" and progress:
        again = f" (attempt {progress['attempt']})" if progress["attempt"] != "1" else ""
        steps = f"{progress['step']}/{total}"
        return run.title, state, steps, progress["return"], progress["left"], progress["where"] + again
    return run.title, state, f"{progress['step'] if progress else 0}/{total}", "", "", outcome


def format_table(rows: list[tuple[str, ...]], width: int) -> list[str]:
    rows = [("run", "state", "steps", "return", "left", ""), *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    sides = [str.ljust, str.ljust, str.rjust, str.rjust, str.rjust]
    lines = [[align(cell, w) for align, cell, w in zip(sides, row[:5], widths, strict=True)] + [row[5]] for row in rows]
    return ["  ".join(line)[:width].rstrip() for line in lines]


def format_summary(runs: list[Run], states: list[str], progress: list[Optional[dict[str, str]]]) -> str:
    """The counts, and the time left if all that is still to do goes at the speed of what runs now."""
    count = {s: states.count(s) for s in ("done", "running", "waiting", "failed", "busy")}
    text = "  ".join(f"{n} {state}" for state, n in count.items() if n or state != "busy")
    steps_left, speed = 0, 0.0
    for run, state, at in zip(runs, states, progress, strict=True):
        if state in ("running", "waiting"):
            steps_left += run.total_timesteps - (int(at["step"].replace(",", "")) if at else 0)
        if state == "running" and at:
            speed += float(at["speed"].replace(",", "") or 0)
    if steps_left and speed:
        text += f"  about {timedelta(seconds=int(steps_left / speed))} left"
    return text


class Display:
    """A table redrawn in place on a terminal; elsewhere a plain report now and then, and a line for every ending."""

    def __init__(self, screen: TextIO, interval: float) -> None:
        self.screen = screen
        self.live = screen.isatty()
        self.interval = 2.0 if self.live else interval
        self.drawn = 0
        self.told: set[int] = set()

    def say(self, text: str) -> None:
        try:
            print(text, file=self.screen, flush=True)
        except BrokenPipeError:  # `| head -1`: training goes on unseen
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.screen.fileno())

    def show(self, runs: list[Run], states: list[str], progress: list, outcomes: list[str]) -> None:
        size = shutil.get_terminal_size()
        order = {"failed": 0, "running": 1, "waiting": 2, "busy": 3, "done": 4}
        shown = sorted(range(len(runs)), key=lambda i: order[states[i]])
        if not self.live:
            shown = [i for i in shown if states[i] == "running"]
        hidden = max(0, len(shown) - (size.lines - 4)) if self.live else 0
        rows = [table_row(runs[i], states[i], progress[i], outcomes[i]) for i in shown[: len(shown) - hidden]]
        lines = format_table(rows, size.columns - 1 if self.live else 200) if rows else []
        lines += [f"... and {hidden} more"] if hidden else []
        lines.append(format_summary(runs, states, progress)[: size.columns - 1 if self.live else 200])
        rewind = f"\x1b[{self.drawn}F\x1b[J" if self.live and self.drawn else ""
        self.say(rewind + "\n".join(lines))
        self.drawn = len(lines)

    def tell_endings(self, runs: list[Run], states: list[str], outcomes: list[str]) -> None:
        for i, run in enumerate(runs):
            if not self.live and i not in self.told and states[i] in ("done", "failed", "busy"):
                self.say("  ".join(cell for cell in table_row(run, states[i], None, outcomes[i]) if cell))
                self.told.add(i)


def first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0].rstrip(".")


def connect(args: Args) -> Any:
    """Joins the cluster at --address (or where RAY_ADDRESS says), or starts Ray on this machine for the sweep alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = args.address or os.environ.get("RAY_ADDRESS")
    local = address in (None, "local")
    if local and "RAY_AUTH_MODE" not in os.environ:  # else Ray leaves a token file, and later clusters ask for it
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed; pip install -r requirements-dev.txt, or use scripts/sweep.sh") from None
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    if local:
        cpus = args.jobs * args.cpus_per_run if args.jobs else max(os.cpu_count() or 1, args.cpus_per_run)
        for patience in (1, 0):
            try:
                ray.init("local", num_cpus=cpus, include_dashboard=False, object_store_memory=100 * 2**20, **quiet)
                return ray
            except Exception as problem:  # a busy machine may be too slow for Ray, which raises nothing narrower
                ray.shutdown()
                if not patience:
                    text = f"Ray did not start ({first_line(problem)}); try again later, or use scripts/sweep.sh"
                    raise UserError(text) from None
    if args.jobs:
        raise UserError("--jobs is for this machine alone; on a cluster --cpus-per-run decides how many run at a time")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with tempfile.TemporaryFile("w+") as said:
        try:
            if host and port.isdecimal():  # Ray itself would knock for a minute
                socket.create_connection((host, int(port)), timeout=10).close()
            with hush_ray(said):
                ray.init(address, **quiet)
        except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as problem:
            said.seek(0)
            if re.search("InvalidAuthToken|authentication token", f"{problem} {said.read()}"):
                raise UserError(
                    f"the Ray cluster at {address} asks for a token that this shell doesn't have; give all its nodes "
                    "and this shell the same RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, as in the README"
                ) from None
            text = f"no Ray cluster at {address} ({first_line(problem)}); start one: ray start --head"
            raise UserError(text) from None
    return ray


@contextlib.contextmanager
def hush_ray(log: TextIO) -> Iterator[TextIO]:
    """Ray's remarks on lost nodes, pages long, go to a file; what is yielded still writes to the terminal."""
    with os.fdopen(os.dup(1), "w") as screen:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield screen
        finally:
            sys.stdout.flush()
            os.dup2(screen.fileno(), 1)
            os.dup2(stderr, 2)
            os.close(stderr)


def follow(
    ray: Any, args: Args, runs: list[Run], runs_dir: Path, states: list[str], outcomes: list[str], display: Display
) -> int:
    """Hands the waiting runs to Ray and shows them until the last one has ended."""
    sweep_id = uuid.uuid4().hex[:8]
    options = {"num_cpus": args.cpus_per_run, "num_gpus": args.gpus_per_run}
    task = ray.remote(max_retries=args.retries, retry_exceptions=True, **options)(train)
    waiting = [i for i, state in enumerate(states) if state == "waiting"]
    open_tasks = {task.remote(runs[i], runs_dir, args.python, ROOT, sweep_id): i for i in waiting}
    shown = -display.interval

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)  # SLURM's word for Ctrl-C
    try:
        while open_tasks:
            ready, _ = ray.wait(list(open_tasks), num_returns=1, timeout=min(1.0, display.interval))
            for ref in ready:
                i = open_tasks.pop(ref)
                try:
                    states[i], outcomes[i] = ray.get(ref)
                except ray.exceptions.RayError as problem:
                    lines = str(problem).strip().splitlines() or [type(problem).__name__]
                    states[i], outcomes[i] = "failed", lines[-1].strip()
            progress = [read_progress(runs_dir, run, sweep_id) for run in runs]
            alive = {node["NodeID"][:8] for node in ray.nodes() if node["Alive"]}
            for i in open_tasks.values():
                lost = progress[i] and progress[i]["where"][-8:] not in alive
                states[i] = "running" if progress[i] and not lost else "waiting"
                outcomes[i] = f"lost its node {progress[i]['where']}" if lost else ""
            display.tell_endings(runs, states, outcomes)
            if not open_tasks or time.monotonic() - shown >= display.interval:
                display.show(runs, states, progress, outcomes)
                shown = time.monotonic()
    except KeyboardInterrupt:
        display.say("stopping: every running trainer writes a checkpoint first")
        for ref in open_tasks:
            ray.cancel(ref)
        ray.wait(list(open_tasks), num_returns=len(open_tasks), timeout=STOP_PATIENCE + 10)
        display.say(f"stopped with {len(open_tasks)} of {len(runs)} runs to do; the same command goes on from here")
        return 130
    finally:
        ray.shutdown()
    return 1 if "failed" in states else 0


def sweep(args: Args, runs: list[Run], runs_dir: Path) -> int:
    """Trains what is not done yet; returns the exit code."""
    states, outcomes = ["waiting"] * len(runs), [""] * len(runs)
    for i, run in enumerate(runs):
        state, folder = find_state(runs_dir, run)
        if state in ("done", "busy"):
            states[i], outcomes[i] = state, str(folder)
    if "waiting" not in states:
        display = Display(sys.stdout, args.interval)
        display.tell_endings(runs, states, outcomes)
        display.show(runs, states, [None] * len(runs), outcomes)
        return 0
    ray = connect(args)
    (runs_dir / "logs").mkdir(parents=True, exist_ok=True)
    with open(runs_dir / "logs" / "ray.log", "a") as log, hush_ray(log) as screen:
        code = follow(ray, args, runs, runs_dir, states, outcomes, Display(screen, args.interval))
    for run, state, outcome in zip(runs, states, outcomes, strict=True):
        if state == "failed":
            print(f"failed: {run.title}: {outcome} (see {runs_dir / 'logs' / run.name}.log)", file=sys.stderr)
    return code


def main() -> None:
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)  # the trainers' flags follow it
    args, extra = parse_args(Args, __doc__, given[:cut]), given[cut + 1 :]
    runs_dir = Path(args.runs_dir).absolute()
    if runs_dir.name != "runs":
        raise UserError(f"--runs-dir {args.runs_dir} is not named `runs`, as the trainers' folder always is")
    if args.cpus_per_run < 1 or args.retries < 0 or args.jobs is not None and args.jobs < 1:
        raise UserError("--jobs and --cpus-per-run start at 1, --retries at 0")
    for flag, value in (("--gpus-per-run", args.gpus_per_run), ("--interval", args.interval)):
        if not 0 <= value < math.inf:
            raise UserError(f"{flag} {value} is neither 0 nor a positive number; write e.g. {flag} 0.5")
    if shutil.which(args.python) is None:
        raise UserError(f"--python {args.python} is not a program; give the path of a Python with PyTorch")
    runs = list_runs(args, extra)
    if args.dry_run:
        print_commands(runs, runs_dir, args.python, f"{args.runs_dir}/logs")
        return
    sys.exit(sweep(args, runs, runs_dir))


if __name__ == "__main__":
    end_on_mistakes(main)
