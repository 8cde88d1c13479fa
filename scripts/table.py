"""The paper's Tables 1, 2 and 5 rebuilt from finished runs: ours beside the paper's.

    python scripts/table.py                                   # all runs below runs/ and results/runs/
    python scripts/table.py results/runs --only-run           # one table of what was run, and what was not
    python scripts/table.py results/runs --only-run --env-ids HalfCheetah-v4 Hopper-v4 --algos smose --steps 300000
    python scripts/table.py runs --format latex --output tables.tex

Table 1 compares SMoSE with interpretable methods, Table 2 with networks, Table 5 numbers of experts. A run counts once
it has its final evaluation (evaluation.json); a seed that was trained twice counts once, by its latest run. Runs are
put into one row only if all settings that matter to learning and the number of steps are the same: the paper's number
stands beside runs with the paper's settings and 1,000,000 steps (also beside those as the authors' code has it,
--authors, and those in bfloat16, which are named), and any other setting has a row of its own that says what differs.
What nobody has trained says 'not run'. With --only-run the paper's number stands beside every row of that algorithm.

  numbers read    numbers of the deployed policy that are not zero, mean over seeds
  ours            mean over seeds of each seed's mean return over its evaluation episodes, +/- the standard deviation
                  over the episodes of one seed, averaged over seeds (the paper's +/-)
  over seeds      the standard deviation of the seeds' means
  IQM             interquartile mean of the seeds' means, with its 95% interval from a stratified bootstrap: seeds are
                  drawn again within their environment
  hours           of training, mean over seeds

Over all six environments the IQM is of normalised means: 0 is a uniformly random policy, 1 the paper's SMoSE.
"""

from command_line import UserError, end_on_mistakes, output_file, parse_args, printable, read_json, write_whole

# from here on Ctrl-C is quiet
# isort: split

import csv
import io
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional

import numpy as np
import tyro
from saved_actor import load_actor
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
PAPER = ROOT / "results" / "paper"
ENVIRONMENTS = ["Walker2d-v4", "Hopper-v4", "Ant-v4", "HalfCheetah-v4", "Reacher-v4", "Swimmer-v4"]
TABLE_1 = ["CGP", "LGP", "Metric-40", "SMoSE"]
TABLE_2 = ["SAC-L", "SAC-M", "SAC-S", "PPO", "SMoSE"]
TRAINED = ["SMoSE", "SAC-S", "SAC-M", "SAC-L"]
PAPER_STEPS = 1_000_000
LINES_OF_A_PAGE = 80  # in LaTeX, an environment's own line counted with each of its rows

# the paper's Table 4; a run with any other value gets a row of its own
PAPER_SETTINGS = {
    "top_k": 1,
    "gate": "one-hot",
    "balance_coef": 0.1,
    "buffer_size": 1_000_000,
    "gamma": 0.99,
    "tau": 0.005,
    "batch_size": 256,
    "learning_starts": 10_000,
    "policy_lr": 3e-4,
    "q_lr": 1e-3,
    "alpha_lr": 1e-3,
    "policy_frequency": 2,
    "target_network_frequency": 1,
    "alpha": 0.2,
    "autotune": True,
    "precision": "float32",
    "log_std_min": -5.0,  # these two were flags once
    "log_std_max": 2.0,
}
# what makes another method of SMoSE, and stands in its name
VARIANTS = {"authors", "keep", "router_inputs"}
AUTHORS = "authors' code"
# what a run is named, watched and stored by; the size of the actor and the steps have columns of their own
NOT_SETTINGS = set(
    "env_id seed exp_name resume total_timesteps eval_every eval_episodes final_eval_episodes checkpoint_every "
    "keep_replay capture_video track wandb_project_name wandb_entity cuda num_threads compile "
    "n_experts size hidden_sizes".split()
)

# mean return of uniformly random actions over 100 episodes with seeds 100000 to 100099
RANDOM_RETURN = {
    "Walker2d-v4": 1.95,
    "Hopper-v4": 14.35,
    "Ant-v4": -43.11,
    "HalfCheetah-v4": -280.44,
    "Reacher-v4": -43.35,
    "Swimmer-v4": 1.09,
}


@dataclass
class Args:
    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH...")] = ()
    """folders with runs in them, at any depth (default: runs and results/runs)"""
    only_run: bool = False
    """one table of what was run, with the paper's number beside every row, instead of the paper's tables"""
    env_ids: tuple[str, ...] = ()
    """only runs of these environments (default: all)"""
    algos: tuple[str, ...] = ()
    """only runs of these, named as in the tables and the legend: smose, sac-m, "smose, keep 0.2" (default: all)"""
    steps: Optional[int] = None
    """only runs of so many steps (default: all)"""
    format: Literal["markdown", "csv", "latex"] = "markdown"
    """how to write the tables"""
    output: Optional[str] = None
    """write to this file instead of the terminal"""
    resamples: int = 10_000
    """bootstrap resamples of an interval"""


class Kind(NamedTuple):
    """What the runs of one row have in common, besides their environment and number of steps."""

    algorithm: str
    n_experts: int
    """0 for SAC"""
    variant: str
    """'keep 0.2' or "authors' code" for example, mostly empty"""
    settings: str
    """what else is not as in the paper, 'gamma 0.999' for example, mostly empty"""

    @property
    def name(self) -> str:
        experts = f"{self.n_experts} experts" if self.n_experts not in (0, 8) else ""
        return ", ".join(filter(None, [self.algorithm, experts, self.variant]))

    @property
    def like_paper(self) -> bool:
        return self.variant in ("", AUTHORS) and self.settings in ("", "precision bfloat16")


@dataclass(frozen=True)
class Run:
    """A finished run, as far as a table needs it."""

    path: Path
    env_id: str
    kind: Kind
    seed: int
    steps: int
    n_active: int
    n_total: int
    n_read: Optional[int]
    hours: Optional[float]
    returns: tuple[float, ...]
    mujoco: str


Cells = dict[tuple[str, Kind, int], list[Run]]


def kind_of(config: dict) -> Kind:
    """What was trained, by a run's config.json; a flag this script doesn't know is always named."""
    given = config["args"]
    smose = config["format"] == "smose-run"
    size, hidden = given.get("size", "custom"), given.get("hidden_sizes")
    named_size = size != "custom" and not hidden
    algorithm = "SMoSE" if smose else f"SAC-{size}" if named_size else f"SAC {'-'.join(map(str, hidden or []))}"
    variant = [AUTHORS] if given.get("authors") else []
    variant += [f"keep {given['keep']}"] if given.get("keep", 1) != 1 else []
    variant += [f"router-inputs {given['router_inputs']}"] if given.get("router_inputs") else []
    known = NOT_SETTINGS | VARIANTS | ({"alpha"} if given.get("autotune") else set())  # alpha counts if it isn't tuned
    known |= {"gate"} if given.get("authors") else set()
    others = {key: value for key, value in sorted(given.items()) if key not in known}
    settings = [
        f"{k.replace('_', '-')} {v}" for k, v in others.items() if k not in PAPER_SETTINGS or v != PAPER_SETTINGS[k]
    ]
    if algorithm in ("SAC-S", "SAC-M") and given["n_experts"] != 8:  # they are as big as that SMoSE
        settings.append(f"n-experts {given['n_experts']}")
    n_experts = whole(given["n_experts"]) if smose else 0
    return Kind(printable(algorithm), n_experts, printable(", ".join(variant)), printable(", ".join(settings)))


def whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**15:
        raise ValueError(f"{value!r} is no count")
    return value


def finite(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no name")
    return printable(value)


def read_config(file: Path) -> Optional[dict]:
    """A run's config.json; None if it belongs to something else."""
    config = read_json(file, "move it away")
    return config if isinstance(config, dict) and config.get("format") in ("smose-run", "sac-run") else None


def read_run(folder: Path, config: dict) -> Run:
    """A finished run, from its config.json and evaluation.json."""
    evaluation = read_json(folder / "evaluation.json", "move its run away")
    try:
        returns = tuple(finite(value) for value in evaluation["returns"])
        if not returns:
            raise ValueError("there are no returns")
        n_read = evaluation.get("n_read", config.get("n_read"))
        if n_read is None and (folder / "actor.safetensors").is_file():  # a run from before this was counted
            n_read = load_actor(folder).n_read
        hours = config.get("hours")
        return Run(
            path=folder,
            env_id=text(config["env_id"]),
            kind=kind_of(config),
            seed=whole(evaluation["seed"]),
            steps=whole(evaluation["steps"]),
            n_active=whole(config["n_active"]),
            n_total=whole(config["n_total"]),
            n_read=None if n_read is None else whole(n_read),
            hours=None if hours is None else finite(hours),
            returns=returns,
            mujoco=text(config.get("versions", {}).get("mujoco", "unknown")),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UserError(f"{folder} has a damaged config.json or evaluation.json ({error!r}); move it away") from None


def run_folders(named: tuple[str, ...]) -> list[Path]:
    """The folders to look for runs in; `runs` need not be there before the first training."""
    for folder in named:
        if not Path(folder).is_dir() and Path(folder).name != "runs":
            raise UserError(f"{folder} is not a folder; give folders that have runs in them")
    kept = ROOT / "results" / "runs"
    return [Path(folder) for folder in named] or [Path("runs"), kept if kept.is_dir() else ROOT / "results/policies"]


def find_runs(folders: list[Path]) -> tuple[list[Run], list[Path]]:
    """Finished runs and the folders of unfinished ones, at any depth below the folders."""
    files = sorted({file.resolve() for folder in folders for file in folder.rglob("config.json")})
    configs = {file.parent: config for file in files if (config := read_config(file))}
    done = [folder for folder in configs if (folder / "evaluation.json").is_file()]
    return [read_run(folder, configs[folder]) for folder in done], [folder for folder in configs if folder not in done]


def started(run: Run) -> int:
    """The unix time at the end of a run's name."""
    last = run.path.name.rpartition("__")[2]
    return int(last) if last.isdecimal() and len(last) < 20 else 0


def group(runs: list[Run]) -> tuple[Cells, list[str]]:
    """Runs by environment, kind and steps, each seed once, and notes on what was left out."""
    latest: dict[tuple, Run] = {}
    repeated = set()
    for run in sorted(runs, key=started):
        key = (run.env_id, run.kind, run.steps, run.seed)
        if key in latest and latest[key].returns != run.returns:  # a copy is no second training
            repeated.add(f"{run.env_id} {run.kind.name} seed {run.seed}")
        latest[key] = run
    cells: Cells = defaultdict(list)
    for key, run in latest.items():
        cells[key[:-1]].append(run)
    notes = [f"trained more than once, the latest run counts: {', '.join(sorted(repeated))}"] if repeated else []
    versions = sorted({run.mujoco for run in runs})
    if len(versions) > 1:
        notes.append(f"these runs used different versions of MuJoCo: {', '.join(versions)}")
    return dict(cells), notes


def interquartile_mean(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean of the middle half of all scores together, as rliable has it."""
    return stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)


def bootstrap_interval(samples: list[np.ndarray], resamples: int) -> Optional[tuple[float, float]]:
    """95% percentile interval of the interquartile mean; scores are drawn again within each sample (stratum)."""
    if min(len(sample) for sample in samples) < 2:
        return None
    rng = np.random.default_rng(0)
    # SciPy draws again from each of several samples on its own, which is the stratified bootstrap
    result = stats.bootstrap(
        samples, interquartile_mean, n_resamples=resamples, method="percentile", vectorized=True, batch=1000, rng=rng
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def read_paper() -> tuple[dict[tuple[str, str], dict], dict[tuple[str, int], dict]]:
    """The paper's numbers, by (env_id, algorithm) and by (env_id, n_experts)."""
    with open(PAPER / "results.csv", newline="", encoding="utf-8") as file:
        results = {(row["env_id"], row["algorithm"]): row for row in csv.DictReader(file)}
    with open(PAPER / "ablation_experts.csv", newline="", encoding="utf-8") as file:
        ablation = {(row["env_id"], int(row["n_experts"])): row for row in csv.DictReader(file)}
    return results, ablation


def parameters(n_experts: int, paper_smose: dict) -> tuple[int, int]:
    """N_act and N_tot for another number of experts, from the paper's counts for 8 (which give n_s and n_a)."""
    active, total = int(paper_smose["n_active"]), int(paper_smose["n_total"])
    heads = (total - active) // 7  # 2 n_a (n_s + 1)
    router = (active - heads) // 8  # n_s + 1
    return n_experts * router + heads, n_experts * router + n_experts * heads


def summary(runs: list[Run], resamples: int) -> dict:
    """The numbers of one row, from the runs of all its seeds; what can't be told is left out."""
    scores = np.array([np.mean(run.returns) for run in runs])
    row = {
        "settings": runs[0].kind.settings or "the paper's",
        "n_active": runs[0].n_active,
        "n_total": runs[0].n_total,
        "mean": float(scores.mean()),
        "std_episodes": float(np.mean([np.std(run.returns) for run in runs])),
        "iqm": float(interquartile_mean(scores)),
        "seeds": len(scores),
        "episodes": min(len(run.returns) for run in runs),
        "steps": runs[0].steps,
    }
    for name in ("n_read", "hours"):
        known = [getattr(run, name) for run in runs if getattr(run, name) is not None]
        row |= {name: float(np.mean(known))} if known else {}
    if interval := bootstrap_interval([scores], resamples):
        row |= {"std_seeds": float(scores.std(ddof=1)), "iqm_low": interval[0], "iqm_high": interval[1]}
    return row


def paper_part(paper: Optional[dict]) -> dict:
    return {"paper_mean": float(paper["mean"]), "paper_std": float(paper["std"])} if paper else {}


def rows_of(cells: Cells, env_id: str, algorithm: str, n_experts: int, label: str, paper: Optional[dict], size: tuple):
    """The rows with the paper's settings, or one that says 'not run', then those with other settings or steps."""
    kinds = [(k, steps) for e, k, steps in cells if (e, k.algorithm, k.n_experts) == (env_id, algorithm, n_experts)]
    beside = [(kind, steps) for kind, steps in sorted(kinds) if kind.like_paper and steps == PAPER_STEPS]
    rows = []
    if paper and not any(not kind.variant for kind, _ in beside):
        row = {"environment": env_id, "algorithm": label, "n_active": size[0], "n_total": size[1]}
        rows.append(row | paper_part(paper))
    for kind, steps in beside + [other for other in sorted(kinds) if other not in beside]:
        row = {"environment": env_id, "algorithm": ", ".join(filter(None, [label, kind.variant]))}
        row |= paper_part(paper) if (kind, steps) in beside else {}
        rows.append(row | {"runs": cells[env_id, kind, steps]})
    return rows


def comparison(algorithms: list[str], environments: list[str], cells: Cells, paper: dict) -> list[dict]:
    """The rows of Table 1 or 2."""
    rows = []
    for env_id in environments:
        for algorithm in algorithms:
            theirs = paper.get((env_id, algorithm))
            size = (theirs["n_active"] or None, theirs["n_total"] or None) if theirs else (None, None)
            rows += rows_of(cells, env_id, algorithm, 8 if algorithm == "SMoSE" else 0, algorithm, theirs, size)
    return rows


def ablation(environments: list[str], cells: Cells, paper: dict, paper_experts: dict) -> list[dict]:
    """The rows of Table 5."""
    rows = []
    for env_id in environments:
        ours = {kind.n_experts for environment, kind, _ in cells if (environment, kind.algorithm) == (env_id, "SMoSE")}
        theirs = {n for environment, n in paper_experts if environment == env_id}
        for n in sorted(ours | theirs):
            smose = paper.get((env_id, "SMoSE"))
            size = parameters(n, smose) if smose else (None, None)
            rows += rows_of(cells, env_id, "SMoSE", n, f"{n} experts", paper_experts.get((env_id, n)), size)
    return rows


def like_paper(cells: Cells, env_id: str, algorithm: str) -> list[Run]:
    """The runs with the paper's settings and steps, in float32 if there are any, else in bfloat16."""
    kinds = [Kind(algorithm, 8 if algorithm == "SMoSE" else 0, "", settings) for settings in ("", "precision bfloat16")]
    return next((runs for kind in kinds if (runs := cells.get((env_id, kind, PAPER_STEPS)))), [])


def aggregate(cells: Cells, paper: dict, resamples: int) -> list[dict]:
    """Interquartile mean over all six environments of normalised means, stratified by environment."""
    rows = []
    for algorithm in TRAINED:
        samples = []
        for env_id in ENVIRONMENTS:
            zero, one = RANDOM_RETURN[env_id], float(paper[env_id, "SMoSE"]["mean"])
            scores = np.array([np.mean(run.returns) for run in like_paper(cells, env_id, algorithm)])
            samples.append((scores - zero) / (one - zero))
        row = {"environment": "all six, normalised", "algorithm": algorithm}
        if all(len(sample) for sample in samples):
            row |= {"iqm": float(interquartile_mean(*samples)), "steps": PAPER_STEPS}
            row |= {"seeds": min(len(sample) for sample in samples)}
            if interval := bootstrap_interval(samples, resamples):
                row |= {"iqm_low": interval[0], "iqm_high": interval[1]}
        rows.append(row)
    return rows


def only_run(environments: list[str], cells: Cells, paper: dict, paper_experts: dict) -> list[dict]:
    """One row for all that was run, the longest first, with the paper's number of that algorithm beside it."""

    def place(cell: tuple[str, Kind, int]) -> tuple:
        env_id, kind, steps = cell
        algorithm = TRAINED.index(kind.algorithm) if kind.algorithm in TRAINED else len(TRAINED)
        return environments.index(env_id), -steps, algorithm, kind

    rows = []
    for env_id, kind, steps in sorted(cells, key=place):
        smose = kind.algorithm == "SMoSE"
        theirs = paper_experts.get((env_id, kind.n_experts)) if smose else paper.get((env_id, kind.algorithm))
        row = {"environment": env_id, "algorithm": kind.name} | paper_part(theirs)
        rows.append(row | {"runs": cells[env_id, kind, steps]})
    return rows


def not_run(cells: Cells) -> str:
    """What the paper has and nobody has trained with its settings and steps."""
    missing = {a: [e for e in ENVIRONMENTS if not like_paper(cells, e, a)] for a in TRAINED}
    named = {a: ", ".join(e) if len(e) < len(ENVIRONMENTS) else "all six" for a, e in missing.items() if e}
    return "; ".join(f"{algorithm} on {env_ids}" for algorithm, env_ids in named.items())


NUMBERS = "n_active n_total n_read paper_mean paper_std mean std_episodes std_seeds iqm iqm_low iqm_high".split()
FIELDS = ["table", "environment", "algorithm", "settings", *NUMBERS, "seeds", "episodes", "steps", "hours"]


def format_csv(tables: dict[str, list[dict]], notes: list[str]) -> str:
    """One line per row, a number or nothing in every column of numbers."""
    written = io.StringIO()
    writer = csv.DictWriter(written, FIELDS, lineterminator="\n")
    writer.writeheader()
    for title, rows in tables.items():
        for row in rows:
            rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
            writer.writerow({"table": title.partition(":")[0], "settings": "not run"} | rounded)
    return written.getvalue()


def columns_of(row: dict) -> dict[str, str]:
    """One row as people read it."""

    def number(key: str, digits: int = 2) -> str:
        value = row.get(key)
        return "-" if value in (None, "") else f"{value:.{digits}f}" if isinstance(value, float) else f"{value}"

    def pair(first: str, second: str) -> str:
        return f"{number(first)} ± {number(second)}" if first in row else "-"

    size = number("n_active")
    size += f" ({number('n_total')})" if number("n_total") != size else ""
    interval = f" [{number('iqm_low')}, {number('iqm_high')}]" if "iqm_low" in row else ""
    return {
        "environment": row["environment"],
        "algorithm": row["algorithm"],
        "settings": row.get("settings", "-"),
        "N_act (N_tot)": size,
        "numbers read": number("n_read", 0),
        "paper": pair("paper_mean", "paper_std"),
        "ours": pair("mean", "std_episodes") if "iqm" in row else "not run",
        "over seeds": number("std_seeds"),
        "IQM [95% interval]": number("iqm") + interval if interval or "mean" not in row else "-",
        "seeds": number("seeds"),
        "steps": f"{row['steps']:,}" if "steps" in row else "-",
        "hours": number("hours", 1),
    }


def text_table(rows: list[dict]) -> tuple[list[str], list[dict[str, str]]]:
    """The columns that have anything in them, and the rows."""
    lines = [columns_of(row) for row in rows]
    header = columns_of({"environment": "", "algorithm": ""})
    return [name for name in header if not lines or any(line[name] != "-" for line in lines)], lines


def format_markdown(tables: dict[str, list[dict]], notes: list[str]) -> str:
    written = ""
    for title, rows in tables.items():
        header, lines = text_table(rows)
        cells = [header, *([line[name].replace("|", r"\|") for name in header] for line in lines)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
        cells.insert(1, ["-" * width for width in widths])
        drawn = ("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells)
        written += f"### {title}\n\n" + "\n".join(drawn) + "\n\n"
    return written + "".join(f"- {note}\n" for note in notes)


TEX = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {character: f"\\{character}" for character in "_%$&#"} | {"±": r"$\pm$", "<": "$<$", ">": "$>$", "|": "$|$"}


def tex(plain: str) -> str:
    """Text that TeX prints as it is; a character that plain pdflatex has no letter for becomes '?'."""
    return "".join(TEX.get(c, c if c.isascii() else "?") for c in plain)


def latex_rows(lines: list[dict[str, str]], columns: list[str]) -> list[list[str]]:
    """The rows of a table below a line for each environment, page by page."""
    pages, room, environment = [[]], LINES_OF_A_PAGE, None
    for line in lines:
        named = line["settings"] not in ("-", "the paper's")
        label = line["algorithm"] + (f" ({line['settings']})" if named else "")
        room -= 2 + len(label) // 25
        if room < 0:
            pages, room, environment = [*pages, []], LINES_OF_A_PAGE, None
        if line["environment"] != environment:
            environment = line["environment"]
            pages[-1].append(f"\\multicolumn{{{len(columns) + 1}}}{{l}}{{\\textbf{{{tex(environment)}}}}} \\\\")
        pages[-1].append(" & ".join([tex(label), *(tex(line[name]) for name in columns)]) + " \\\\")
    return pages


def format_latex(tables: dict[str, list[dict]], notes: list[str]) -> str:
    """Tables of at most a page, scaled down where they are wider than the text."""
    written = "% needs \\usepackage{array,graphicx}\n"
    for title, rows in tables.items():
        header, lines = text_table(rows)
        columns = [name for name in header if name not in ("environment", "algorithm", "settings")]
        head = " & ".join(["algorithm", *map(tex, columns)])
        for number, page in enumerate(latex_rows(lines, columns)):
            written += "\\begin{table}\n\\centering\\scriptsize\\setlength{\\tabcolsep}{3pt}\n"
            written += f"\\caption{{{tex(title)}{', continued' if number else ''}}}\n"
            written += "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
            written += f"\\begin{{tabular}}{{>{{\\raggedright\\arraybackslash}}p{{42mm}}{'r' * len(columns)}}}\n"
            written += "\n".join(["\\hline", f"{head} \\\\ \\hline", *page, "\\hline"])
            written += "\n\\end{tabular}}\n\\end{table}\n\n"
    return written + "".join(f"% {note}\n" for note in notes)


def where(keys: list[tuple[str, str]]) -> str:
    """The algorithms a note is about, and their environment if it is only one."""
    environments = list(dict.fromkeys(env_id for env_id, _ in keys))
    algorithms = ", ".join(dict.fromkeys(algorithm for _, algorithm in keys))
    return f"{algorithms} on {environments[0]}" if len(environments) == 1 else algorithms


def build(args: Args) -> tuple[dict[str, list[dict]], list[str]]:
    """All tables, and the notes below them."""
    found, unfinished = find_runs(run_folders(args.runs))
    names = [name.lower() for name in args.algos]
    runs = [run for run in found if not args.env_ids or run.env_id in args.env_ids]
    runs = [run for run in runs if not names or run.kind.name.lower() in names]
    runs = [run for run in runs if args.steps in (None, run.steps)]
    if found and not runs:
        known = ", ".join(sorted({f"{run.env_id} {run.kind.name} {run.steps}" for run in found}))
        raise UserError(
            f"none of the {len(found)} runs is asked for by --env-ids, --algos and --steps; there are {known}"
        )
    cells, notes = group(runs)
    paper, experts = read_paper()
    environments = ENVIRONMENTS + sorted({run.env_id for run in runs} - set(ENVIRONMENTS))
    algorithms = TABLE_2[:-1] + sorted({run.kind.algorithm for run in runs} - set(TABLE_2)) + ["SMoSE"]
    if args.only_run:
        tables = {"Ours beside the paper's": only_run(environments, cells, paper, experts)}
    else:
        tables = {
            "Table 1: SMoSE and interpretable methods": comparison(TABLE_1, environments, cells, paper),
            "Table 2: SMoSE and networks": comparison(algorithms, environments, cells, paper),
            "Table 5: number of experts": ablation(environments, cells, paper, experts),
        }
    for rows in tables.values():
        rows[:] = [row | summary(row.pop("runs"), args.resamples) if "runs" in row else row for row in rows]
    if not args.only_run:
        title = "All environments: IQM with 0 = random policy, 1 = the paper's SMoSE"
        tables[title] = aggregate(cells, paper, args.resamples)
    return tables, [*explanations(args, runs, paper), *notes, *left_out(args, cells, unfinished)]


def explanations(args: Args, runs: list[Run], paper: dict) -> list[str]:
    """What the columns are, as far as there is anything in them."""
    notes = []
    if runs:
        episodes = sorted({len(run.returns) for run in runs})
        counts = " to ".join(str(count) for count in dict.fromkeys((episodes[0], episodes[-1])))
        notes = [
            f"ours: mean over seeds of each seed's mean return in {counts} deterministic episodes, ± the standard "
            "deviation over the episodes of a seed (the paper's ±); over seeds: standard deviation of the seeds' means",
            f"IQM: interquartile mean of the seeds' means, with a stratified bootstrap over seeds ({args.resamples:,} "
            "draws)",
            "numbers read: those of the deployed policy that are not zero; hours: of training, on one core unless "
            "--num-threads says otherwise; settings: the precision is float32 where no other is named",
        ]
    notes.append(f"paper: 10 seeds of 100 episodes after {PAPER_STEPS:,} steps")
    if args.only_run:
        return notes
    notes[-1] += "; rows of ours with other steps or settings say so and are not beside the paper's number"
    by_note = defaultdict(list)
    for key, row in paper.items():
        if row["note"]:
            by_note[row["note"]].append(key)
    return notes + [f"paper, {where(keys)}: {note}" for note, keys in by_note.items()]


def left_out(args: Args, cells: Cells, unfinished: list[Path]) -> list[str]:
    notes = []
    if args.only_run and not (args.env_ids or args.algos or args.steps) and (missing := not_run(cells)):
        notes.append(f"not run with the paper's settings and {PAPER_STEPS:,} steps: {missing}")
    if unfinished:
        notes.append(f"not finished, left out: {', '.join(printable(folder.name) for folder in unfinished)}")
    return notes


def main(args: Args) -> None:
    output = output_file(args.output) if args.output else None
    if args.resamples < 100:
        raise UserError(f"--resamples {args.resamples} is too few for an interval; give 100 or more")
    formats = {"csv": format_csv, "markdown": format_markdown, "latex": format_latex}
    written = formats[args.format](*build(args))
    if output:
        write_whole(output, written)
    else:
        print(written, end="")


if __name__ == "__main__":
    end_on_mistakes(lambda: main(parse_args(Args, __doc__)))
