"""scripts/export.py on tiny real runs: every format answers as the saved actor does, and a wrong one is found out."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import export
import names
import numpy as np
import pytest
from conftest import Done, assert_one_line_error, train_tiny
from safetensors.numpy import load_file, save_file
from saved_actor import load_actor

ROOT = Path(__file__).resolve().parent.parent
STRICT = "-std=c99 -Wall -Wextra -Werror -pedantic".split()


@pytest.fixture(scope="session")
def mixed_runs(tmp_path_factory) -> dict[str, Path]:
    """a tiny run whose actor mixes experts, and the same weights under the other gate"""
    folder = tmp_path_factory.mktemp("mixed")
    top2 = train_tiny("smose_sac.py", folder, "--top-k", "2")
    softmax = Path(shutil.copytree(top2, folder / "softmax"))
    actor = load_actor(softmax)
    save_file(actor.weights, softmax / "actor.safetensors", actor.metadata | {"gate": "softmax"})
    return {"top2": top2, "softmax": softmax}


@pytest.fixture(params=["smose", "sac", "top2", "softmax"])
def run(request, tmp_path) -> Path:
    """a copy of a run, one of each kind of actor"""
    if request.param in ("smose", "sac"):
        source = request.getfixturevalue(f"{request.param}_run")
    else:
        source = request.getfixturevalue("mixed_runs")[request.param]
    return Path(shutil.copytree(source, tmp_path / "run"))


def expected(run: Path, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions and experts (from 1) by the formula, in double precision, from the file alone."""
    metadata, w = load_actor(run).metadata, load_file(run / "actor.safetensors")
    w = {name: tensor.astype(np.float64) for name, tensor in w.items()}
    if metadata["format"] == "sac-actor":
        hidden = np.maximum(states @ w["hidden.0.weight"].T + w["hidden.0.bias"], 0)
        mean, experts = hidden @ w["mean.weight"].T + w["mean.bias"], np.zeros(len(states))
    else:
        z = states @ w["router.weight"].T + w["router.bias"]
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        kept = np.sort(z, axis=1)[:, -int(metadata["top_k"]), None] <= z
        p = p * kept / ((p * kept).sum(1, keepdims=True) if metadata["gate"] == "one-hot" else 1)
        means = np.einsum("mai,ni->nma", w["experts.mean.weight"], states) + w["experts.mean.bias"]
        mean, experts = np.einsum("nm,nma->na", p, means), z.argmax(1) + 1
    return w["action_scale"] * np.tanh(mean) + w["action_bias"], experts


def some_states(n: int = 300) -> np.ndarray:
    return (2 * np.random.default_rng(7).standard_normal((n, 11))).astype(np.float32)


def assert_reported(done: Done, run: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert "checked on 400 recorded and 9600 random states" in done.stdout
    assert "max difference of actions" in done.stdout and "us (PyTorch)" in done.stdout
    assert ("same expert in 100.00% of the states" in done.stdout) == ("sac" not in load_actor(run).format)


def test_c_compiles_strictly_and_agrees(run_main, run, tmp_path):
    done = run_main(export, run, "--format", "c", "--output", tmp_path / "policy.c")
    assert_reported(done, run)
    source = (tmp_path / "policy.c").read_text()
    assert source.isascii() and "alloc" not in source.replace("no allocation", "")
    assert [line for line in source.splitlines() if line.startswith("#include")] == ["#include <math.h>"]
    subprocess.run(["cc", *STRICT, "-shared", "-fPIC", "policy.c", "-o", "policy.so", "-lm"], cwd=tmp_path, check=True)
    sac = load_actor(run).format == "sac-actor"
    act = getattr(ctypes.CDLL(str(tmp_path / "policy.so")), "sac_act" if sac else "smose_act")
    states = some_states()
    actions, experts = expected(run, states)
    for state, action, expert in zip(states, actions, experts, strict=True):
        out = (ctypes.c_float * 2)()
        returned = act((ctypes.c_float * 11)(*state), out)
        np.testing.assert_allclose(out[:], action, atol=1e-5)
        assert sac or returned == expert
    prefix = "SAC" if sac else "SMOSE"
    assert f"{prefix}_OBS_cos_theta_fa = 0, /* cosine of the angle of the first arm */" in source
    assert f"{prefix}_ACTION_tau_2 = 1" in source


def test_python_needs_only_the_standard_library(run_main, run, tmp_path):
    assert_reported(run_main(export, run, "--format", "python", "--output", tmp_path / "policy.py"), run)
    states = some_states(50)
    program = "import json, sys; sys.path.insert(0, '.'); import policy; "
    program += "print(json.dumps([policy.act(s) for s in json.load(sys.stdin)]), policy.OBSERVATIONS[4])"
    # -S leaves site-packages out: NumPy and PyTorch cannot be imported there
    command = [sys.executable, "-S", "-E", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, input=json.dumps(states.tolist()), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text, name = done.stdout.rsplit(" ", 1)
    answers = json.loads(text)
    actions, experts = expected(run, states)
    if load_actor(run).format == "smose-actor":
        assert [expert for _, expert in answers] == experts.tolist()
        answers = [action for action, _ in answers]
    np.testing.assert_allclose(answers, actions, atol=1e-6)
    assert name.strip() == "x_T"


def test_onnx_runs_in_batches(run_main, run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert_reported(run_main(export, run, "--format", "onnx", "--output", tmp_path / "policy.onnx"), run)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    states = some_states()
    actions, experts = expected(run, states)
    answers = session.run(None, {"obs": states})
    np.testing.assert_allclose(answers[0], actions, atol=1e-5)
    if len(answers) > 1:
        assert answers[1].tolist() == experts.tolist()
    properties = session.get_modelmeta().custom_metadata_map
    assert properties["env_id"] == "Reacher-v4" and json.loads(properties["actions"]) == ["tau_1", "tau_2"]


def test_json_describes_itself(run_main, run):
    assert_reported(run_main(export, run, "--format", "json"), run)
    policy = json.loads((run / "policy.json").read_text())
    example = policy["example"]
    action, expert = expected(run, np.array([example["observation"]]))
    np.testing.assert_allclose(example["action"], action[0], atol=1e-6)
    assert example.get("expert", 0) == expert[0]
    assert [entry["name"] for entry in policy["actions"]] == ["tau_1", "tau_2"] and len(policy["observations"]) == 11
    assert "tanh" in policy["formula"]
    w = load_file(run / "actor.safetensors")
    if policy["format"] == "smose-policy":
        for m, entry in enumerate(policy["experts"]):
            assert entry["expert"] == m + 1
            np.testing.assert_array_equal(np.array(entry["mean_weight"], np.float32), w["experts.mean.weight"][m])
            np.testing.assert_array_equal(np.array(entry["router_weight"], np.float32), w["router.weight"][m])


@pytest.mark.parametrize("format", ["c", "python", "onnx", "json"])
def test_an_export_of_another_actor_is_found_out(format, smose_run, tmp_path):
    actor = load_actor(smose_run)
    states, recorded = export.verification_states(actor)
    assert states.shape == (10_000, 11) and recorded == 400
    content = export.WRITERS[format](actor, names.read_names(None, actor.env_id, 11, 2))
    file = tmp_path / f"policy{export.SUFFIX[format]}"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert "max difference" in export.verify(file, format, actor, states)
    for name, change in (("experts.mean.bias", 1e-3), ("router.bias", 1e-2)):
        shift = np.zeros_like(actor.weights[name])
        shift.flat[0] = change
        other = replace(actor, weights=actor.weights | {name: actor.weights[name] + shift})
        with pytest.raises(export.VerificationError, match="differ"):
            export.verify(file, format, other, states)


def test_tied_experts_are_reported_not_failed(run_main, smose_run, tmp_path):
    actor = load_actor(smose_run)
    actor.weights["router.weight"][1] = actor.weights["router.weight"][0]
    actor.weights["router.bias"][:2] = 100  # experts 1 and 2 always share the highest score
    save_file(actor.weights, tmp_path / "actor.safetensors", actor.metadata)
    done = run_main(export, tmp_path, "--format", "c")
    assert done.returncode == 0, done.stderr
    assert "in 10000 the scores are tied within float32 rounding, 0 of these chose another expert" in done.stdout
    assert "checked on 0 recorded and 10000 random states" in done.stdout


def test_a_large_router_bias_leaves_no_gap_in_the_weights(run_main, mixed_runs, tmp_path):
    """Scores far apart underflow in the softmax; the chosen experts must stay the chosen ones."""
    actor = load_actor(mixed_runs["top2"])
    actor.weights["router.bias"][:] = [0, 300, 150, 0, 0, 0, 0, 0]
    save_file(actor.weights, tmp_path / "actor.safetensors", actor.metadata)
    for format in ("c", "python", "json"):
        done = run_main(export, tmp_path, "--format", format)
        assert done.returncode == 0, done.stderr


def test_own_names_become_identifiers(run_main, smose_run, tmp_path):
    names = {
        "obs": ["angle (left)", "angle (left)", "2nd", "θ", {"text": "a", "description": "x */ y"}],
        "action": ["a", "b"],
    }
    names["obs"] += [f"o{i}" for i in range(6)]
    (tmp_path / "names.json").write_text(json.dumps(names))
    done = run_main(
        export, smose_run, "--format", "c", "--names", tmp_path / "names.json", "--output", tmp_path / "policy.c"
    )
    assert done.returncode == 0, done.stderr
    source = (tmp_path / "policy.c").read_text()
    for name in ("SMOSE_OBS_angle_left = 0", "SMOSE_OBS_angle_left_1 = 1", "SMOSE_OBS__2nd = 2", "SMOSE_OBS_obs_3 = 3"):
        assert name in source
    names["obs"].pop()
    (tmp_path / "names.json").write_text(json.dumps(names))
    assert_one_line_error(
        run_main(export, smose_run, "--format", "c", "--names", tmp_path / "names.json"), "names.json", "11"
    )


def test_mistakes_are_one_line_and_leave_nothing(run_main, smose_run, tmp_path):
    out = tmp_path / "policy.c"
    assert_one_line_error(run_main(export, tmp_path / "nothing", "--format", "c"), "not found")
    assert_one_line_error(
        run_main(export, smose_run, "--format", "c", "--output", tmp_path / "no" / "x.c"), "does not exist"
    )
    assert_one_line_error(
        run_main(export, smose_run, "--format", "c", "--output", out, CC="no-such-cc"), "no-such-cc", "install"
    )
    # a compiler that refuses everything: the export is then not verified, and not written
    assert_one_line_error(run_main(export, smose_run, "--format", "c", "--output", out, CC="false"), "does not compile")
    assert_one_line_error(run_main(export, smose_run, "--format", "c", "--output", out, CC="'"), "CC=' is no command")
    assert_one_line_error(run_main(export, smose_run, "--format", "c", "--output", out, CC="/"), "no C compiler '/'")
    assert_one_line_error(run_main(export, smose_run, "--format", "c", "--output", tmp_path), "is a folder")
    assert not list(tmp_path.iterdir())
    run = Path(shutil.copytree(smose_run, tmp_path / "run"))
    table = np.load(run / "replay.npy")
    hole = np.where(np.arange(table.shape[1]) == 3, np.float32(np.nan), table)
    for damaged in (np.zeros((5, 3), np.float32), hole, table[0], table[:, :, None], np.array({}), None):
        np.save(run / "replay.npy", damaged, allow_pickle=True)
        assert_one_line_error(run_main(export, run, "--format", "json", "--output", out), "replay.npy", "does not fit")
    np.save(run / "replay.npy", table)
    for damaged in ("{", "[]", "null", '{"replay_columns": {"obs": 3}}', '{"replay_columns": {"episode": ["a"]}}'):
        (run / "config.json").write_text(damaged)
        assert_one_line_error(run_main(export, run, "--format", "json", "--output", out), "config.json", "does not fit")
    assert not out.exists()


def test_names_that_are_none_are_one_line(run_main, smose_run, tmp_path):
    file, flags = tmp_path / "names.json", [smose_run, "--format", "json", "--output", tmp_path / "policy.json"]
    eleven = ["x"] * 11
    for content, words in (
        (json.dumps({"obs": [1] * 11, "action": ["a", "b"]}), ["must be a string", "names.json: 1"]),
        (json.dumps({"obs": eleven, "action": ["a", " \n"]}), ["must not be blank"]),
        (json.dumps({"obs": eleven, "action": ["a", {"text": "b", "unit": None}]}), ["object of strings"]),
        (json.dumps({"obs": eleven, "action": ["a", {"latex": "b"}]}), ["must not be blank"]),
        (json.dumps({"obs": eleven, "action": {"a": 1}}), ["no list under"]),
        (json.dumps(eleven), ["no list under"]),
        ('{"obs": ["Winkel \xe4"]}'.encode("latin-1"), ["is not JSON", "--names wants"]),
        ("[" * 100_000, ["is not JSON"]),
        ("", ["is not JSON"]),
    ):
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        assert_one_line_error(run_main(export, *flags, "--names", file), *words)
    assert_one_line_error(run_main(export, *flags, "--names", tmp_path / "none.json"), "cannot read", "none.json")
    assert_one_line_error(run_main(export, *flags, "--names", tmp_path), "cannot read", "Is a directory")
    assert [path.name for path in tmp_path.iterdir()] == ["names.json"]


PYTHON = "import pathlib; pathlib.Path('OWNED').touch()"
C = (
    "extern int system(const char *); static void __attribute__((constructor)) own(void) "
    '{ if (system("touch OWNED")) {} }'
)
HOSTILE = {  # what would run in the generated file's docstring, comments and lists if it stood there as it is
    "python": [f'"""\n{PYTHON}\n"""', f"x\n{PYTHON}\n#", f"',)\n{PYTHON}\nX = ('", f"x\r{PYTHON}\r#"],
    "c": [f"{end} {C} /*" for end in ("*/", "**//", "x\n*/")]
    + [f"{end} a }}; {C} enum {{ /*" for end in ("*/", "**//", "x\n*/")],
}


@pytest.mark.parametrize("format", ["python", "c"])
@pytest.mark.parametrize("key", ["env_id", "seed", "steps", "size"])
def test_hostile_metadata_is_refused(run_main, sac_run, tmp_path, format, key, monkeypatch):
    actor = load_actor(sac_run)
    for payload in HOSTILE[format]:
        payload = payload.replace("OWNED", str(tmp_path / "owned"))
        save_file(actor.weights, tmp_path / "actor.safetensors", actor.metadata | {key: actor.metadata[key] + payload})
        assert_one_line_error(run_main(export, tmp_path / "actor.safetensors", "--format", format), key)
    assert [path.name for path in tmp_path.iterdir()] == ["actor.safetensors"]


@pytest.mark.parametrize("format", ["python", "c"])
def test_hostile_metadata_would_be_inert_even_if_it_were_not_refused(sac_run, tmp_path, format):
    actor = load_actor(sac_run)
    file, names_of_it = tmp_path / f"policy{export.SUFFIX[format]}", names.read_names(None, actor.env_id, 11, 2)
    for payload in HOSTILE[format]:
        payload = payload.replace("OWNED", str(tmp_path / "owned"))
        hostile = replace(actor, metadata=actor.metadata | {"env_id": payload, "size": payload})
        file.write_text(export.WRITERS[format](hostile, names_of_it))
        export.verify(file, format, actor, some_states(100))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("format", ["python", "c", "onnx", "json"])
def test_hostile_names_are_inert(run_main, smose_run, tmp_path, format):
    payloads = [payload.replace("OWNED", str(tmp_path / "owned")) for payload in HOSTILE.get(format, HOSTILE["c"])]
    entries = [*payloads]
    entries += [{"text": "angle", key: payload} for key in ("description", "ascii", "unit") for payload in payloads]
    for start in range(0, len(entries), 11):
        some = (entries[start:] + entries)[:11]
        (tmp_path / "names.json").write_text(json.dumps({"obs": some, "action": some[:2]}))
        output = tmp_path / f"policy{export.SUFFIX[format]}"
        done = run_main(export, smose_run, "--format", format, "--names", tmp_path / "names.json", "--output", output)
        assert done.returncode == 0, done.stderr
        assert {path.name for path in tmp_path.iterdir()} == {"names.json", output.name}
        if format in ("c", "python"):
            assert output.read_text().isascii() and b"\r" not in output.read_bytes()


def test_text_from_files_is_made_inert_character_by_character():
    kept = "angle of the first arm, (x - y) [m/s] = 2.5: A_1; B^2 + C"
    assert export.inert(kept) == kept
    every = "".join(map(chr, [*range(0x250), 0x2028, 0x2029, 0xFEFF, 0x1F600]))
    left = set(export.inert(every))
    assert not left & set("\n\r\t\x0b\x0c\"'`\\*?#%{}<>&$|@!~\x00\x1b") and all(
        c.isascii() and c.isprintable() for c in left
    )
    assert export.inert("a\n\n**// b") == "a // b"


def short_actor(run: Path, folder: Path, **metadata: str) -> Path:
    """A copy of a run's actor with nine tenths of its weights exactly zero, and two equations without any."""
    actor, rng = load_actor(run), np.random.default_rng(3)
    weights = dict(actor.weights)
    for name in ("router.weight", "experts.mean.weight"):
        weights[name] = np.where(rng.random(weights[name].shape) < 0.1, weights[name], np.float32(0))
    weights["router.weight"][2] = 0
    weights["experts.mean.weight"][5] = 0
    weights["experts.mean.bias"][5, 1] = 0
    folder.mkdir()
    save_file(weights, folder / "actor.safetensors", actor.metadata | metadata)
    return folder


@pytest.mark.parametrize(("top_k", "gate"), [("1", "one-hot"), ("2", "one-hot"), ("2", "softmax")])
def test_c_leaves_zero_terms_out(run_main, smose_run, tmp_path, top_k, gate):
    run = short_actor(smose_run, tmp_path / "short", top_k=top_k, gate=gate)
    done = run_main(export, run, "--format", "c")  # compiles it with warnings as errors, and compares
    assert done.returncode == 0, done.stderr
    actor, source = load_actor(run), (run / "policy.c").read_text()
    w = actor.weights
    terms = np.count_nonzero(w["router.weight"]) + np.count_nonzero(w["experts.mean.weight"])
    assert source.count("f * obs[SMOSE_OBS_") == terms < 40
    assert f"{actor.n_read} numbers that are not zero" in source and max(map(len, source.splitlines())) <= 120
    assert "/* expert 6, tau_2 */\n        return 0.0f;" in source
    for x in w["experts.mean.weight"][w["experts.mean.weight"] != 0]:
        assert f"{str(abs(x))}f * obs[SMOSE_OBS_" in source


def test_a_policy_of_constants_compiles(run_main, smose_run, tmp_path):
    actor = load_actor(smose_run)
    save_file(
        {k: 0 * v if "weight" in k else v for k, v in actor.weights.items()},
        tmp_path / "actor.safetensors",
        actor.metadata,
    )
    done = run_main(export, tmp_path, "--format", "c")
    assert done.returncode == 0, done.stderr
    assert "* obs[" not in (tmp_path / "policy.c").read_text()


def test_exports_count_the_numbers_that_are_read(run_main, smose_run, tmp_path):
    onnx = pytest.importorskip("onnx")
    run = short_actor(smose_run, tmp_path / "short")
    n_read = sum(
        np.count_nonzero(tensor)
        for name, tensor in load_file(run / "actor.safetensors").items()
        if name.startswith(("router", "experts.mean"))
    )
    for format in ("json", "onnx", "python"):
        assert run_main(export, run, "--format", format).returncode == 0
    assert json.loads((run / "policy.json").read_text())["n_read"] == n_read
    assert {p.key: p.value for p in onnx.load(run / "policy.onnx").metadata_props}["n_read"] == str(n_read)
    assert f" {n_read} numbers that are not zero" in (run / "policy.py").read_text()


def test_a_terminated_export_leaves_nothing(smose_run, tmp_path):
    compiler, temporary, out = tmp_path / "slow-cc", tmp_path / "tmp", tmp_path / "out"
    compiler.write_text(f"#!/bin/sh\ntouch {tmp_path}/compiling\nexec sleep 60\n")
    compiler.chmod(0o755)
    temporary.mkdir()
    out.mkdir()
    command = [sys.executable, ROOT / "scripts" / "export.py", smose_run, "--format", "c", "--output", out / "policy.c"]
    environment = os.environ | {"CC": str(compiler), "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "compiling").exists() and process.poll() is None:
            time.sleep(0.05)
        assert list(temporary.glob("*/policy.c"))  # it is in the middle of its work
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM and process.stderr.read() == b""
    assert not list(temporary.iterdir()) and not list(out.iterdir())


def test_the_command_itself(smose_run, tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "export.py"), str(smose_run), "--format", "python"]
    done = subprocess.run(
        [*command, "--output", "policy.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("policy.py: checked on 400 recorded") and (tmp_path / "policy.py").is_file()


def test_onnx_says_what_to_install(run_main, smose_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it were not installed
    done = run_main(export, smose_run, "--format", "onnx", "--output", tmp_path / "policy.onnx")
    assert_one_line_error(done, "needs onnx", "requirements-dev.txt")
    assert not list(tmp_path.iterdir())
