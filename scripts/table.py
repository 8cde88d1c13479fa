"""The paper's Tables 1, 2 and 5 rebuilt from finished runs: ours beside the paper's.

    python scripts/table.py                                   # all runs below runs/ and results/policies/
    python scripts/table.py runs --format latex --output tables.tex
    python scripts/table.py runs /scratch/other_runs --format csv --output tables.csv

Table 1 compares SMoSE with interpretable methods, Table 2 with networks, Table 5 numbers of experts. A run counts once
it has its final evaluation (evaluation.json); a seed that was trained twice counts once, by its latest run. Runs are
put into one row only if all settings that matter to learning and the number of steps are the same: the paper's number
stands beside runs with the paper's settings and 1,000,000 steps, and any other setting has a row of its own that says
what differs. What nobody has trained says 'not run'.

  mean            over seeds, of each seed's mean return over its evaluation episodes
  over episodes   the standard deviation over the episodes of one seed, averaged over seeds (the paper's +/-)
  over seeds      the standard deviation of the seeds' means
  IQM             interquartile mean of the seeds' means, with its 95% interval from a stratified bootstrap: seeds are
                  drawn again within their environment

Over all six environments the IQM is of normalised means: 0 is a uniformly random policy, 1 the paper's SMoSE.
"""

import csv
import io
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Optional

import numpy as np
import tyro
from command_line import UserError, end_on_mistakes, parse_args
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
PAPER = ROOT / "results" / "paper"
ENVIRONMENTS = ["Walker2d-v4", "Hopper-v4", "Ant-v4", "HalfCheetah-v4", "Reacher-v4", "Swimmer-v4"]
TABLE_1 = ["CGP", "LGP", "Metric-40", "SMoSE"]
TABLE_2 = ["SAC-L", "SAC-M", "SAC-S", "PPO", "SMoSE"]
PAPER_STEPS = 1_000_000

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
    "log_std_min": -5.0,
    "log_std_max": 2.0,
}
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
    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUNS_DIR...")] = ()
    """folders with runs in them, at any depth (default: runs and results/policies)"""
    format: Literal["markdown", "csv", "latex"] = "markdown"
    """how to write the tables"""
    output: Optional[str] = None
    """write to this file instead of the terminal"""
    resamples: int = 10_000
    """bootstrap resamples of an interval"""


@dataclass(frozen=True)
class Run:
    """A finished run, as far as a table needs it."""

    path: Path
    env_id: str
    algorithm: str
    n_experts: Optional[int]
    seed: int
    steps: int
    differs: str
    """the settings that are not the paper's, empty if all are"""
    n_active: int
    n_total: int
    returns: tuple[float, ...]
    mujoco: str


Cells = dict[tuple, list[Run]]


def algorithm_of(config: dict) -> str:
    if config["format"] == "smose-run":
        return "SMoSE"
    size = config["args"].get("size", "custom")
    hidden = config["args"].get("hidden_sizes")
    return f"SAC-{size}" if size != "custom" and not hidden else f"SAC {'-'.join(map(str, hidden or []))}"


def differences(settings: dict) -> str:
    """What is not as in the paper, 'gamma 0.999' for example; a flag this script doesn't know is always named."""
    named = []
    for key, value in sorted(settings.items()):
        if key not in NOT_SETTINGS and (key not in PAPER_SETTINGS or value != PAPER_SETTINGS[key]):
            if not (key == "alpha" and settings.get("autotune")):  # it is only used if it isn't tuned
                named.append(f"{key.replace('_', '-')} {value}")
    return ", ".join(named)


def read_run(folder: Path) -> Run:
    """Reads config.json and evaluation.json of a finished run."""
    try:
        config = json.loads((folder / "config.json").read_text())
        evaluation = json.loads((folder / "evaluation.json").read_text())
        settings = config["args"]
        algorithm = algorithm_of(config)
        differs = differences(settings)
        if algorithm in ("SAC-S", "SAC-M") and settings["n_experts"] != 8:  # they are as big as that SMoSE
            differs = ", ".join(filter(None, [differs, f"n-experts {settings['n_experts']}"]))
        return Run(
            path=folder,
            env_id=config["env_id"],
            algorithm=algorithm,
            n_experts=settings["n_experts"] if algorithm == "SMoSE" else None,
            seed=int(evaluation["seed"]),
            steps=int(evaluation["steps"]),
            differs=differs,
            n_active=config["n_active"],
            n_total=config["n_total"],
            returns=tuple(evaluation["returns"]),
            mujoco=config.get("versions", {}).get("mujoco", "unknown"),
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{folder} has a damaged config.json or evaluation.json ({error!r}); move it away") from None


def find_runs(folders: list[Path]) -> tuple[list[Run], list[Path]]:
    """Finished runs and the folders of unfinished ones, at any depth below the folders."""
    configs = sorted({config.resolve() for folder in folders for config in folder.rglob("config.json")})
    run_folders = [c.parent for c in configs if json_format(c) in ("smose-run", "sac-run")]
    done = [folder for folder in run_folders if (folder / "evaluation.json").is_file()]
    return [read_run(folder) for folder in done], [folder for folder in run_folders if folder not in done]


def json_format(file: Path) -> Optional[str]:
    try:
        return json.loads(file.read_text()).get("format")
    except (json.JSONDecodeError, AttributeError):
        return None


def started(run: Run) -> int:
    """The unix time at the end of a run's name."""
    last = run.path.name.rpartition("__")[2]
    return int(last) if last.isdigit() else 0


def group(runs: list[Run]) -> tuple[Cells, list[str]]:
    """Runs by (env_id, algorithm, n_experts, differs, steps), each seed once, and notes on what was left out."""
    latest: dict[tuple, Run] = {}
    repeated = set()
    for run in sorted(runs, key=started):
        key = (run.env_id, run.algorithm, run.n_experts, run.differs, run.steps, run.seed)
        if key in latest and latest[key].returns != run.returns:  # a copy is no second training
            repeated.add(f"{run.env_id} {run.algorithm} seed {run.seed}")
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
    with open(PAPER / "results.csv", newline="") as file:
        results = {(row["env_id"], row["algorithm"]): row for row in csv.DictReader(file)}
    with open(PAPER / "ablation_experts.csv", newline="") as file:
        ablation = {(row["env_id"], int(row["n_experts"])): row for row in csv.DictReader(file)}
    return results, ablation


def parameters(n_experts: int, paper_smose: dict) -> tuple[int, int]:
    """N_act and N_tot for another number of experts, from the paper's counts for 8 (which give n_s and n_a)."""
    active, total = int(paper_smose["n_active"]), int(paper_smose["n_total"])
    heads = (total - active) // 7  # 2 n_a (n_s + 1)
    router = (active - heads) // 8  # n_s + 1
    return n_experts * router + heads, n_experts * router + n_experts * heads


def summary(runs: list[Run], resamples: int) -> dict:
    """The numbers of one row, from the runs of all its seeds."""
    scores = np.array([np.mean(run.returns) for run in runs])
    episodes = sorted({len(run.returns) for run in runs})
    low, high = bootstrap_interval([scores], resamples) or ("one seed", "one seed")
    return {
        "n_active": runs[0].n_active,
        "n_total": runs[0].n_total,
        "mean": float(scores.mean()),
        "std_episodes": float(np.mean([np.std(run.returns) for run in runs])),
        "std_seeds": float(scores.std(ddof=1)) if len(scores) > 1 else "one seed",
        "iqm": float(interquartile_mean(scores)),
        "iqm_low": low,
        "iqm_high": high,
        "seeds": len(scores),
        "episodes": "-".join(str(count) for count in dict.fromkeys((episodes[0], episodes[-1]))),
        "steps": runs[0].steps,
    }


def rows_of(cells: Cells, label: str, key: tuple, paper: Optional[dict], size: tuple, resamples: int) -> list[dict]:
    """The row with the paper's settings, then one for each other setting or number of steps that was run."""
    rows = []
    like_paper = (*key, "", PAPER_STEPS)
    if paper or like_paper in cells:
        row = {"environment": key[0], "algorithm": label, "n_active": size[0], "n_total": size[1]}
        row |= {"paper_mean": float(paper["mean"]), "paper_std": float(paper["std"])} if paper else {}
        rows.append(row | (summary(cells[like_paper], resamples) if like_paper in cells else {}))
    for other in sorted(k for k in cells if k[:3] == key and k != like_paper):
        named = f"{label} ({other[3]})" if other[3] else label
        rows.append({"environment": key[0], "algorithm": named} | summary(cells[other], resamples))
    return rows


def comparison(algorithms: list[str], environments: list[str], cells: Cells, paper: dict, resamples: int) -> list[dict]:
    """The rows of Table 1 or 2."""
    rows = []
    for env_id in environments:
        for algorithm in algorithms:
            theirs = paper.get((env_id, algorithm))
            size = (theirs["n_active"] or None, theirs["n_total"] or None) if theirs else (None, None)
            key = (env_id, algorithm, 8 if algorithm == "SMoSE" else None)
            rows += rows_of(cells, algorithm, key, theirs, size, resamples)
    return rows


def ablation(environments: list[str], cells: Cells, paper: dict, paper_experts: dict, resamples: int) -> list[dict]:
    """The rows of Table 5."""
    rows = []
    for env_id in environments:
        ours = {key[2] for key in cells if key[:2] == (env_id, "SMoSE")}
        theirs = {n for environment, n in paper_experts if environment == env_id}
        for n_experts in sorted(ours | theirs):
            smose = paper.get((env_id, "SMoSE"))
            size = parameters(n_experts, smose) if smose else (None, None)
            key = (env_id, "SMoSE", n_experts)
            rows += rows_of(cells, f"{n_experts} experts", key, paper_experts.get((env_id, n_experts)), size, resamples)
    return rows


def aggregate(cells: Cells, paper: dict, resamples: int) -> list[dict]:
    """Interquartile mean over all six environments of normalised means, stratified by environment."""
    rows = []
    for algorithm in ("SMoSE", "SAC-S", "SAC-M", "SAC-L"):
        samples = []
        for env_id in ENVIRONMENTS:
            runs = cells.get((env_id, algorithm, 8 if algorithm == "SMoSE" else None, "", PAPER_STEPS), [])
            zero, one = RANDOM_RETURN[env_id], float(paper[env_id, "SMoSE"]["mean"])
            samples.append((np.array([np.mean(run.returns) for run in runs]) - zero) / (one - zero))
        row = {"environment": "all six, normalised", "algorithm": algorithm}
        missing = [env_id for env_id, sample in zip(ENVIRONMENTS, samples, strict=True) if not len(sample)]
        if not missing:
            low, high = bootstrap_interval(samples, resamples) or ("one seed", "one seed")
            row |= {"iqm": float(interquartile_mean(*samples)), "iqm_low": low, "iqm_high": high}
            row |= {
                "seeds": "-".join(str(n) for n in sorted({len(sample) for sample in samples})),
                "steps": PAPER_STEPS,
            }
        rows.append(row)
    return rows


FIELDS = ["table", "environment", "algorithm", "n_active", "n_total", "paper_mean", "paper_std", "mean", "std_episodes"]
FIELDS += ["std_seeds", "iqm", "iqm_low", "iqm_high", "seeds", "episodes", "steps"]
OURS = FIELDS[FIELDS.index("mean") :]


def format_csv(tables: dict[str, list[dict]]) -> str:
    """One line per row, one number per column."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    for title, rows in tables.items():
        for row in rows:
            missing = {} if "iqm" in row else dict.fromkeys(OURS, "not run")
            rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
            writer.writerow({"table": title.partition(":")[0]} | missing | rounded)
    return text.getvalue()


HEADER = ["environment", "algorithm", "N_act (N_tot)", "paper", "mean", "over episodes", "over seeds"]
HEADER += ["IQM [95% interval]", "seeds", "episodes", "steps"]


def cells_text(row: dict) -> list[str]:
    """One row as people read it."""

    def number(key: str) -> str:
        value = row.get(key, "-")
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    size = str(row.get("n_active") or "-")
    size += f" ({row['n_total']})" if str(row.get("n_total") or "-") != size else ""
    theirs = f"{number('paper_mean')} ± {number('paper_std')}" if "paper_mean" in row else "-"
    text = [row["environment"], row["algorithm"], size, theirs]
    if "iqm" not in row:
        return text + ["not run"] * 4 + ["-"] * 3
    one_seed = row["iqm_low"] == "one seed"
    interval = "one seed" if one_seed else f"{number('iqm_low')}, {number('iqm_high')}"
    text += [number("mean"), number("std_episodes"), number("std_seeds"), f"{number('iqm')} [{interval}]"]
    return text + [str(row["seeds"]), str(row.get("episodes", "-")), f"{row['steps']:,}"]


def format_markdown(tables: dict[str, list[dict]], notes: list[str]) -> str:
    text = ""
    for title, rows in tables.items():
        lines = [HEADER, *map(cells_text, rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
        lines.insert(1, ["-" * width for width in widths])
        drawn = ("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)
        text += f"### {title}\n\n" + "\n".join(drawn) + "\n\n"
    return text + "".join(f"- {note}\n" for note in notes)


def latex_escape(text: str) -> str:
    for plain, tex in (("_", r"\_"), ("%", r"\%"), ("±", r"$\pm$")):
        text = text.replace(plain, tex)
    return text


def format_latex(tables: dict[str, list[dict]], notes: list[str]) -> str:
    """One table environment per table; needs booktabs."""
    text = "% needs \\usepackage{booktabs}\n"
    for title, rows in tables.items():
        text += (
            f"\\begin{{table}}\n\\centering\n\\caption{{{latex_escape(title)}}}\n\\begin{{tabular}}{{ll{'r' * 9}}}\n"
        )
        text += "\\toprule\n" + " & ".join(map(latex_escape, HEADER)) + " \\\\\n"
        last = None
        for row in rows:
            text += "\\midrule\n" if row["environment"] != last else ""
            last = row["environment"]
            text += " & ".join(map(latex_escape, cells_text(row))) + " \\\\\n"
        text += "\\bottomrule\n\\end{tabular}\n\\end{table}\n\n"
    return text + "".join(f"% {note}\n" for note in notes)


def where(keys: list[tuple[str, str]]) -> str:
    """The algorithms a note is about, and their environment if it is only one."""
    environments = list(dict.fromkeys(env_id for env_id, _ in keys))
    algorithms = ", ".join(dict.fromkeys(algorithm for _, algorithm in keys))
    return f"{algorithms} on {environments[0]}" if len(environments) == 1 else algorithms


def build(folders: list[Path], resamples: int) -> tuple[dict[str, list[dict]], list[str]]:
    """All tables, and the notes below them."""
    runs, unfinished = find_runs(folders)
    cells, notes = group(runs)
    paper, paper_experts = read_paper()
    environments = ENVIRONMENTS + sorted({run.env_id for run in runs} - set(ENVIRONMENTS))
    algorithms = TABLE_2[:-1] + sorted({run.algorithm for run in runs} - set(TABLE_2)) + ["SMoSE"]
    tables = {
        "Table 1: SMoSE and interpretable methods": comparison(TABLE_1, environments, cells, paper, resamples),
        "Table 2: SMoSE and networks": comparison(algorithms, environments, cells, paper, resamples),
        "Table 5: number of experts": ablation(environments, cells, paper, paper_experts, resamples),
        "All environments: IQM with 0 = random policy, 1 = the paper's SMoSE": aggregate(cells, paper, resamples),
    }
    by_note = defaultdict(list)
    for key, row in paper.items():
        if row["note"]:
            by_note[row["note"]].append(key)
    notes = [
        "mean: over seeds, of each seed's mean return; over episodes: standard deviation over the episodes of a seed, "
        "averaged over seeds (the paper's ±); over seeds: standard deviation of the seeds' means",
        f"IQM: interquartile mean of the seeds' means, with a stratified bootstrap over seeds ({resamples:,} draws)",
        f"the paper has 10 seeds of 100 episodes after {PAPER_STEPS:,} steps; rows of ours with other steps or "
        "settings say so and are not beside the paper's number",
        *(f"paper, {where(keys)}: {note}" for note, keys in by_note.items()),
        *notes,
    ]
    if unfinished:
        notes.append(f"not finished, left out: {', '.join(folder.name for folder in unfinished)}")
    return tables, notes


def main(args: Args) -> None:
    folders = [Path(folder) for folder in args.runs]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; give folders that have runs in them")
    if args.output and not Path(args.output).parent.is_dir():
        raise UserError(f"--output {args.output}: its folder does not exist; make it first")
    if args.resamples < 100:
        raise UserError(f"--resamples {args.resamples} is too few for an interval; give 100 or more")
    tables, notes = build(folders or [Path("runs"), ROOT / "results" / "policies"], args.resamples)
    written = {"csv": lambda t, n: format_csv(t), "markdown": format_markdown, "latex": format_latex}
    text = written[args.format](tables, notes)
    if args.output:
        Path(args.output).write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    end_on_mistakes(lambda: main(parse_args(Args, __doc__)))
