"""scripts/names.json says of every observation and action what MuJoCo's own joints and actuators say."""

import itertools
import json
import re

import gymnasium as gym
import numpy as np
import pytest
from command_line import UserError
from conftest import ROOT
from names import complete, is_plain_latex, read_names, with_identifiers

NAMES = json.loads((ROOT / "scripts" / "names.json").read_text(encoding="utf-8"))
GREEK = {"theta": "θ", "omega": "ω", "psi": "ψ", "tau": "τ", "Delta": "Δ", "delta": "Δ"}
SIDES = {"f": "front", "b": "back", "l": "left", "r": "right"}
ANT_LEGS = {"front_left_leg": "fl", "front_right_leg": "fr", "back_leg": "bl", "right_back_leg": "br"}
TORSO = {"rootx": ("x", "torso"), "rootz": ("z", "torso"), "rooty": ("t", "torso")}
# of every joint in MuJoCo's model the paper's subscript, and what the joint moves
JOINTS = {
    "Walker2d": TORSO
    | {f"{part}_joint": (f"r{part[0]}", f"right {part}") for part in ("thigh", "leg", "foot")}
    | {f"{part}_left_joint": (f"l{part[0]}", f"left {part}") for part in ("thigh", "leg", "foot")},
    "Hopper": TORSO | {"thigh_joint": ("th", "thigh"), "leg_joint": ("l", "leg"), "foot_joint": ("f", "foot")},
    "Swimmer": {"slider1": ("fx", "front tip"), "slider2": ("fy", "front tip"), "free_body_rot": ("f", "front tip")}
    | {"motor1_rot": ("1", "first rotor"), "motor2_rot": ("2", "second rotor")},
    "HalfCheetah": {"rootx": ("xt", "torso"), "rootz": ("zt", "torso"), "rooty": ("t", "torso")}
    | {
        f"{end[0]}{part}": (f"{end[0]}{part[0]}", f"{end} {part}")
        for end in ("back", "front")
        for part in ("thigh", "shin", "foot")
    },
    "Reacher": {"joint0": ("fa", "first arm"), "joint1": ("sa", "second arm")},
}


def ant_joints(model) -> dict[str, tuple[str, str]]:
    """As JOINTS, from the legs that Ant's joints move, because the joints' own names are numbers."""
    found = {}
    for joint in map(model.joint, range(1, model.njnt)):
        hip, body = joint.name.startswith("hip"), model.body(joint.bodyid[0])
        for _ in range(1 if hip else 2):
            body = model.body(body.parentid[0])
        leg = ANT_LEGS[body.name]
        link = "between torso and first link" if hip else "between the two links"
        found[joint.name] = leg + "2" * (not hip), f"{link}, {SIDES[leg[0]]} {SIDES[leg[1]]}"
    return found


def coordinates(name: str, model, data) -> list[tuple[float, str, str]]:
    """All that an environment could observe: its value, the paper's symbol, and the words for it."""
    known, joints = [], ant_joints(model) if name == "Ant" else JOINTS[name]
    for joint in map(model.joint, range(model.njnt)):
        kind, where, speed = joint.type[0], data.qpos[joint.qposadr[0]], data.qvel[joint.dofadr[0]]
        sub, part = joints.get(joint.name, ("", ""))
        of = part if part.startswith("between") else f"of the {part}"
        if kind == 0:  # Ant's torso moves freely: position, quaternion, velocities
            symbols = "z_t ω_t ψ_tx ψ_ty ψ_tz v_x v_y v_z ω_x ω_y ω_z".split()
            words = ["z-coordinate of the torso", "real term of the torso's orientation"]
            words += [f"{axis}-orientation of the torso" for axis in "xyz"]
            words += [f"{axis}-velocity of the torso" for axis in "xyz"]
            words += [f"angular velocity of the torso about {axis}" for axis in "xyz"]
            known += zip([*data.qpos[2:7], *data.qvel[:6]], symbols, words, strict=True)
        elif name == "Reacher" and kind == 2:
            known.append((where, f"{joint.name[-1]}_T", f"{joint.name[-1]}-coordinate of the target"))
        elif name == "Reacher":
            known.append((np.cos(where), f"cos θ_{sub}", f"cosine of the angle {of}"))
            known.append((np.sin(where), f"sin θ_{sub}", f"sine of the angle {of}"))
            known.append((speed, f"ω_{sub}", f"angular velocity {of}"))
        elif kind == 2:  # a slide along one axis
            axis = "xyz"[int(np.argmax(joint.axis))]
            known.append((where, f"{axis}_t", f"{axis}-coordinate {of}"))
            known.append((speed, f"v_{sub}", f"{axis}-velocity {of}"))
        else:
            known += [(where, f"θ_{sub}", f"angle {of}"), (speed, f"ω_{sub}", f"angular velocity {of}")]
    if name == "Reacher":
        apart = data.body("fingertip").xpos - data.body("target").xpos
        words = [f"{axis} of the fingertip minus {axis} of the target" for axis in "xyz"]
        known += zip(apart, ("Δ_x", "Δ_y", "Δ_z"), words, strict=True)
    return known


def what_mujoco_says(name: str) -> dict[str, list[tuple[str, str]]]:
    """Symbol and words of every observation and action; after a reset no two coordinates have the same value."""
    env = gym.make(f"{name}-v4", disable_env_checker=True)
    seen, _ = env.reset(seed=7)
    model, data = env.unwrapped.model, env.unwrapped.data
    known = coordinates(name, model, data)
    obs = [[(symbol, words) for value, symbol, words in known if abs(value - x) < 1e-12] for x in seen]
    assert all(len(matches) == 1 for matches in obs)
    actions, joints = [], ant_joints(model) if name == "Ant" else JOINTS[name]
    for actuator in map(model.actuator, range(model.nu)):
        sub, part = joints[model.joint(actuator.trnid[0]).name]
        if name == "Reacher":  # where the paper numbers the torques
            sub, part = {"fa": "1", "sa": "2"}[sub], part.replace("arm", "joint")
        actions.append((f"τ_{sub}", f"torque {part if name == 'Ant' else f'at the {part}'}"))
    env.close()
    return {"obs": [match for (match,) in obs], "action": actions}


def wrong_names(entries: list[dict[str, str]], truth: list[tuple[str, str]]) -> list[str]:
    """The names that say something else than MuJoCo in any of their spellings."""
    wrong = []
    for entry, (symbol, words) in zip(entries, truth, strict=True):
        latex = re.sub(r"\\rm |[{}]", "", entry["latex"])
        latex = re.sub(r"\\([A-Za-z]+)", lambda found: GREEK.get(found[1], f"{found[1]} "), latex)
        ascii = re.sub("^(cos|sin)_", r"\1 ", entry["ascii"])
        ascii = re.sub("|".join(GREEK), lambda found: GREEK[found[0]], ascii)
        if {entry["text"], latex, ascii} != {symbol} or not entry["description"].startswith(words):
            wrong.append(f"{entry} is {symbol}, {words}")
    return wrong


@pytest.fixture(scope="module", params=NAMES)
def env_name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def truth(env_name) -> dict[str, list[tuple[str, str]]]:
    return what_mujoco_says(env_name)


def test_every_name_is_mujocos(env_name, truth):
    for kind in ("obs", "action"):
        assert wrong_names(NAMES[env_name][kind], truth[kind]) == []


def test_no_two_names_can_be_swapped_unnoticed(env_name, truth):
    for kind in ("obs", "action"):
        for i, j in itertools.combinations(range(len(truth[kind])), 2):
            entries = list(NAMES[env_name][kind])
            entries[i], entries[j] = entries[j], entries[i]
            assert len(wrong_names(entries, truth[kind])) == 2
            for key in ("text", "latex", "ascii", "description"):
                entries = [dict(entry) for entry in NAMES[env_name][kind]]
                entries[i][key], entries[j][key] = entries[j][key], entries[i][key]
                assert len(wrong_names(entries, truth[kind])) == 2, (key, i, j)


def test_own_names_are_completed():
    obs = ["left\x1b[31m\nangle", {"text": "θ", "latex": r"\theta_{1}", "unit": "rad"}, "1st", "1st", "SIZE", "a_b%"]
    names = with_identifiers([complete(entry, ROOT) for entry in obs], "obs")
    assert [name["ascii"] for name in names] == ["left_31m_angle", "obs_1", "_1st", "_1st_3", "SIZE_4", "a_b"]
    assert names[0]["text"] == names[0]["description"] == "left [31m angle"
    assert names[1] == {"text": "θ", "latex": r"\theta_{1}", "unit": "rad", "ascii": "obs_1", "description": "θ"}
    assert names[5]["latex"] == r"\text{a\_b\%}"


def test_unknown_environments_have_numbered_names():
    names = read_names(None, "Nowhere-v1", 2, 1)
    assert [name["text"] for name in names["obs"] + names["action"]] == ["obs[0]", "obs[1]", "action[0]"]
    assert read_names(None, "Hopper-v4", 3, 1)["obs"][0]["text"] == "obs[0]"  # a Hopper of another size
    assert read_names(None, "Hopper-v5", 11, 3)["obs"][0]["text"] == "z_t"


def test_our_own_latex_is_plain():
    assert all(is_plain_latex(entry["latex"]) for env in NAMES.values() for kind in env.values() for entry in kind)
    assert is_plain_latex("_" * 10_000) and not is_plain_latex("_" * 10_000 + "%")


@pytest.mark.parametrize(
    "text",
    [
        r"\input{/etc/passwd}",
        r"\immediate\write18{touch owned}",
        r"\thetax",
        "^^5cinput{x}",
        r"\csname input\endcsname",
        "a}b{",
        "{a",
        "50%",
        "$x$",
        "#1",
        "a&b",
        "\\\\",
        r"\def\x{}",
    ],
)
def test_latex_that_could_do_more_than_name_is_refused(text):
    assert not is_plain_latex(text)
    with pytest.raises(UserError, match="symbols alone"):
        complete({"text": "x", "latex": text}, ROOT)
