"""README.md, followed by somebody who has just cloned the project: every block is run, long ones with fewer steps.

Blocks follow one another in one clone: later ones need runs that earlier ones leave.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from equations import READ, read_equations, returns_of
from safetensors.numpy import load_file
from saved_actor import load_actor, make_env, make_policy

TRAINING = "--total-timesteps 400 --learning-starts 100 --batch-size 32 --buffer-size 1000 --no-compile "
TRAINING += "--eval-every 200 --eval-episodes 1 --final-eval-episodes 1"
# what is added to a command to make it short
FLAGS = {
    "smose_sac.py": TRAINING,
    "sac_baseline.py": TRAINING,
    "interpret.py": "--no-pushes",
    "interpret.py.* --shorten": "--keep-return 0.01",
    "distill_trees.py": "--rollout-steps 300 --episodes 1 --fits 2",
    "evaluate.py": "--episodes 1",
    "sweep.sh": "--dry-run",
    "sweep.py": "--dry-run",
    "-m pytest": "--collect-only",
}
# --shorten has no flag for fewer states: constants of scripts/shorten.py, and what they are in the clone
STATES = "FIT_STATES, ROUND_STATES, JUDGED_STATES = 10_000, 5_000, 60_000"
FEWER_STATES = "FIT_STATES, ROUND_STATES, JUDGED_STATES = 500, 500, 500"
# nothing is downloaded: what the requirements name is there, since this test runs in that environment
INSTALL = re.compile(r"python3 -m venv \.venv && \.venv/bin/pip install -r (\S+) && ")
# blocks that are not for this machine, and why
NOT_RUN = {
    "ray start --head": "needs two hosts; tests/test_sweep.py runs it on two network namespaces",
    "#SBATCH": "needs SLURM",
}

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(*languages: str) -> list:
    """The fenced blocks in these languages, named by their heading and their number under it."""
    found, heading, count = [], "top", 0
    for match in re.finditer(r"^#+ ([^\n]*)$|^```(\w+)\n(.*?)^```$", README, re.M | re.S):
        if match[1] and match[1] != "SMoSE: controllers you can read":
            heading, count = re.sub(r"\W+", "-", match[1].lower()).strip("-"), 0
        elif match[2]:
            count += 1
            if match[2] in languages:
                found.append(pytest.param(match[3], id=f"{heading}-{count}"))
    return found


def shortened(command: str, folder: Path) -> str:
    """A command of the README as it is run here."""
    installs = INSTALL.match(command)
    if installs:
        assert (folder / installs[1]).is_file()
    command = INSTALL.sub("", command).replace(".venv/bin/", "")  # PATH begins with this very environment
    command = re.sub(r"runs/(\S+)__\d{10}\b", lambda match: earlier_run(folder, match[1]), command)
    before, separator, after = re.sub(r"\s+# .*", "", command).partition(" -- ")
    for script, flags in FLAGS.items():
        if re.search(rf"(?<!\w){script}\b", before):
            before += f" {flags}"
    return before + separator + after


def earlier_run(folder: Path, name: str) -> str:
    """The run of this name that an earlier command left."""
    runs = sorted(folder.glob(f"runs/{name}__*"))
    assert runs, f"no command of the README that ran before this one leaves a run {name}"
    return str(runs[0].relative_to(folder))


def run(command: str, folder: Path) -> str:
    """What a command prints, as typed in a shell there."""
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """a fresh clone, with what is not yet committed here"""
    folder = tmp_path_factory.mktemp("readme") / "smose"
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git repository, so it can't be cloned")
    (folder.parent / "gitconfig").write_text("[safe]\n\tdirectory = *\n")  # CI's checkout may be another user's
    git = "export GIT_CONFIG_GLOBAL=$PWD/gitconfig; git"
    run(f"{git} clone --quiet '{ROOT}' '{folder}' && git -C '{ROOT}' diff --binary HEAD > changes", folder.parent)
    if (folder.parent / "changes").stat().st_size:
        run("git apply ../changes", folder)
    shorten = folder / "scripts/shorten.py"
    assert STATES in shorten.read_text()
    shorten.write_text(shorten.read_text().replace(STATES, FEWER_STATES))
    write_environment(folder)
    return folder


def write_environment(folder: Path) -> None:
    """The README's environment of one's own, in the file that it names."""
    (block,) = [param.values[0] for param in blocks("python") if "gym.register" in param.values[0]]
    assert f"A file `cart.py` where you start the training:\n\n```python\n{block}```\n" in README
    (folder / "cart.py").write_text(block)


@pytest.mark.parametrize("block", blocks("bash"))
def test_every_command_works_on_a_fresh_clone(clone, block):
    for command in block.splitlines():
        run(shortened(command, clone), clone)


def test_what_is_not_run_has_a_reason():
    for block in [param.values[0] for param in blocks("sh")]:
        assert sum(words in block for words in NOT_RUN) == 1, block
    languages = set(re.findall(r"^```(\w+)$", README, re.M))
    assert languages <= {"bash", "python", "diff", "sh", "bibtex"}, "a language that no test here knows"


def test_quoted_report_is_what_interpret_writes(clone):
    """Counts and returns may differ a little on another machine; the words and the equations may not."""
    run("python interpret.py results/policies/Reacher-v4/smose --no-pushes --output quoted", clone)
    summary = json.loads((clone / "quoted/report.json").read_text())["summary"]
    written = (clone / "quoted/equations.txt").read_text()
    sentence, *equations = re.findall(r"^> (.+)$", README, re.M)
    number = r"-?\d+(?:\.\d+)?"
    (found,) = [text for text in summary if re.sub(number, "N", text) == re.sub(number, "N", sentence)]
    measured, said = (np.array(re.findall(number, text), float) for text in (found, sentence))
    np.testing.assert_allclose(measured, said, rtol=0.1, atol=0.02)

    assert len(equations) == 3 and all(f"  {equation}\n" in written for equation in equations)
    (row,) = re.findall(r"<!-- short table -->.*?^\| Reacher-v4 \| (.*?) \|$", README, re.M | re.S)
    _, numbers, real, printed, nothing, episodes = map(float, row.replace("*", "").split(" | "))
    (line,) = re.findall("^as printed: .*", written, re.M)
    words = re.fullmatch(rf"as printed: ({number}) of ({number}) \(doing nothing: ({number})\); (.*)", line)
    np.testing.assert_allclose([float(words[i]) for i in (1, 2, 3)], [printed, real, nothing], atol=0.2)
    assert f"of {episodes:.0f} episodes" in words[4] and f"; {numbers:.0f} numbers" in words[4]


def test_the_whole_controller_that_is_shown_is_the_committed_one_and_drives():
    (table,) = re.findall(r"Swimmer's whole controller is 36 numbers.*?\|\n\|[-|]+\|\n(.*?)\n\n", README, re.S)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")]
    assert [row[0].split()[0] for row in rows] == list("12345678")
    folder = ROOT / "results" / "policies" / "Swimmer-v4" / "smose"
    short = load_actor(folder / "actor_short.safetensors")
    names = json.loads((folder / "report.json").read_text())["names"]
    shown = read_equations("\n".join(f"  _ ≈ {cell}" for row in rows for cell in row[1:]), short, names)
    assert all((shown.weights[key] == short.weights[key]).all() for key in READ) and shown.n_read == 36
    (said,) = re.findall(r"^It returns (\d+); the trained policy", README, re.M)
    assert returns_of(make_env(short), shown, range(100_000, 100_002)).mean() == pytest.approx(float(said), rel=0.05)


def test_five_lines_are_the_deployed_policy(clone):
    (lines,) = [param.values[0] for param in blocks("python") if "load_file" in param.values[0]]
    (path,) = re.findall(r'load_file\("(.*?)"\)', lines)
    policy = make_policy(load_actor(clone / path))
    states = np.random.default_rng(0).normal(size=(20, 11)).astype(np.float32)
    np.save(clone / "states.npy", states)
    body = "\n".join(line for line in lines.splitlines() if not line.startswith(("import", "from", "w =", "s =")))
    program = f"import sys\nbefore = set(sys.modules)\n{lines}\n"
    program += "print(*{name.partition('.')[0] for name in set(sys.modules) - before})\n"
    program += f"for s in np.load('states.npy'):\n    {body.strip().replace(chr(10), chr(10) + '    ')}\n"
    program += "    print(*map(float, action))\n"
    (clone / "five_lines.py").write_text(program)
    imported, *actions = run("python five_lines.py", clone).splitlines()
    assert {name for name in imported.split() if name not in sys.stdlib_module_names} == {"numpy", "safetensors"}
    assert len(actions) == len(states)
    for state, action in zip(states, actions, strict=True):
        assert np.array_equal(np.array(action.split(), np.float64).astype(np.float32), policy(state)[0])


@pytest.mark.parametrize("block", blocks("diff"))
def test_changes_of_the_method_apply_and_train(clone, block):
    before = "".join(f"{line[1:]}\n" for line in block.splitlines() if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in block.splitlines() if line[0] in " +")
    source = (clone / "smose_sac.py").read_text()
    assert source.count(before) == 1, f"not in smose_sac.py:\n{before}"
    (clone / "changed.py").write_text(source.replace(before, after))
    command = "python changed.py --env-id Reacher-v4 --exp-name changed"
    assert "return" in run(f"{command} {TRAINING}", clone)


def test_what_a_newcomer_needs_comes_first():
    headings = re.findall(r"^## (.*)$", README, re.M)
    assert headings[:4] == ["Read a policy", "Train", "Use a policy: five lines of Python", "Your own environment"]
    assert headings.index("Results") == 4 and headings[-1] == "Licence, credit, citing"
    top = README.partition("\n## ")[0]
    assert top.index("![") < top.index("```bash\n") and len(blocks("bash")[0].values[0].splitlines()) == 2


def test_the_workflow_on_github_runs_the_same_script_as_anybody_can():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r"- run: (.*)", workflow) == [".ci/run"] and os.access(ROOT / ".ci/run", os.X_OK)
    script = (ROOT / ".ci/run").read_text()
    (block,) = [param.values[0] for param in blocks("bash") if "pytest" in param.values[0]]
    for command in ("requirements-dev.txt", "-m pytest -n 2", "ruff", "format --check ."):
        assert command in script and command in block
    assert (ROOT / "CHANGELOG.md").read_text().startswith("# Changelog\n\n## ")


def test_files_that_are_named_are_there(clone):
    """Of the project; what runs and reports consist of is made by the commands above."""
    named = set(re.findall(r"(?:results|scripts|tests|\.ci)/[\w./-]*\w", README))
    named |= set(re.findall(r"\]\(([\w./-]+)\)", README))
    assert not {path for path in named if not any(clone.glob(path.replace("ENV", "*")))}  # ENV is any of them


def test_files_that_a_run_is_said_to_leave_are_there(clone):
    """The table of 'What a run leaves', and the keys that it names."""
    (table,) = re.findall(r"### What a run leaves\n.*?\n\n(\|.*?)\n\n", README, re.S)
    run(f"python smose_sac.py --env-id Reacher-v4 --exp-name leaves {TRAINING}", clone)
    folder = clone / earlier_run(clone, "Reacher-v4__leaves__0")
    rows = dict(re.findall(r"^\| `(\S+)` \| (.*) \|$", table, re.M))
    assert len(rows) == table.count("\n") - 1
    videos = rows.pop("videos/STEP.mp4")
    assert "--capture-video" in videos
    left = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    events = {name for name in left if name.startswith("events.out.tfevents.")}
    assert events and left - events == rows.keys() - {"events.out.tfevents.*"}
    for name in ("config.json", "evaluation.json"):
        keys = set(re.findall(r"`([a-z_\d]+)`", rows[name]))
        assert len(keys) >= 5 and keys <= json.loads((folder / name).read_text()).keys()
    tensors = load_file(folder / "actor.safetensors")
    for tensor in re.findall(r"`([a-z_.]+)`", rows["actor.safetensors"]):
        assert any(key.startswith(tensor) for key in tensors), tensor


def rows_of(text: str) -> list[list[str]]:
    """The cells of the first table in Markdown, without bold."""
    (table,) = re.findall(r"\A.*?^\|.*?\n\|[-| ]+\|\n(.*?)\n(?!\|)", text, re.M | re.S)
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_results_table_is_what_the_runs_give():
    """Every row of 1,000,000 steps that scripts/table.py prints, and no other."""
    (command,) = re.findall(r"^Made by `(python scripts/table\.py .*?)`", README, re.M)
    given = {(env, n, ours, over.replace("-", "–"), seeds, hours)
             for env, _, _, n, _, _, ours, over, _, seeds, _, hours in rows_of(run(command, ROOT))}  # fmt: skip
    rows = rows_of(README.split("\n## Results\n")[1])
    shown = [(env.split(",")[0], n, ours, *ends) for env, n, _, _, ours, *ends in rows if "not run" not in ours]
    assert len(shown) == len(given) > 10 and set(shown) == given


def test_flags_that_are_named_exist():
    """Every --flag in the text and in the blocks that are run is some script's."""
    text = re.sub(r"```(?:sh|bibtex)\n.*?```", "", README, flags=re.S)
    known = {"--help", "--logdir", "--check"}  # tensorboard's and ruff's
    for script in (*ROOT.glob("*.py"), *ROOT.glob("scripts/*.py")):
        for field in re.findall(r"^    (\w+): ", script.read_text(), re.M):
            known |= {f"--{field.replace('_', '-')}", f"--no-{field.replace('_', '-')}"}
    assert not set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text)) - known
