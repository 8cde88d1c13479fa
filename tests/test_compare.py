"""Two policies side by side: the numbers, the matching and the page."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_one_line_error
from report.compare import aligned, distinct, matched_experts
from report.gait import gait_of
from test_gait import episode
from test_interpret import random_actor, save_actor
from test_report_browser import browser  # noqa: F401

import interpret


def shuffled(actor, order):
    """The same policy with its experts in another order."""
    parts = {name: w[order] for name, w in actor.weights.items() if not name.startswith("action_")}
    return replace(actor, weights=actor.weights | parts)


def test_experts_are_matched_by_what_they_do():
    actor, order = random_actor(5, 2, 11), [3, 0, 4, 1, 2]
    states = np.random.default_rng(0).normal(size=(400, 11)).astype(np.float32)
    matched = matched_experts([actor, shuffled(actor, order)], states)
    assert matched["difference"] == pytest.approx(0, abs=1e-6)
    assert {(p["a"], p["b"]) for p in matched["pairs"]} <= {(m + 1, order.index(m) + 1) for m in range(5)}
    assert all(p["overlap"] == 1 for p in matched["pairs"])
    assert sum(p["states"] for p in matched["pairs"]) == 400


def test_cycles_begin_at_the_same_phase():
    one = gait_of([episode(40.0, noise=0.0)], 2)
    late = one | {"experts": np.roll(one["experts"], 18, axis=1), "poses": one["poses"][-3:] + one["poses"][:-3]}
    for kind in ("observations", "actions"):
        late[kind] = {key: np.roll(curves, 18, axis=1) for key, curves in one[kind].items()}  # by 3 of 8 pictures
    back = aligned(late, one, np.array([3.5, 1.0, 0.0]))
    for kind in ("observations", "actions"):
        np.testing.assert_array_equal(back[kind]["high"], one[kind]["high"])
    np.testing.assert_array_equal(back["experts"], one["experts"])
    assert back["poses"] == one["poses"]
    assert aligned({"periodic": False}, one, np.ones(3)) == {"periodic": False}


def test_labels_are_what_the_paths_do_not_share():
    assert distinct(["runs/one", "runs/two/actor.safetensors"]) == ["runs/one", "runs/two/actor.safetensors"]
    assert distinct(["a/b/run", "a/b/run/actor_short.safetensors"]) == ["run", "run/actor_short.safetensors"]
    assert distinct(["/x/y/run", "here/run"]) == ["/x/y/run", "here/run"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """two policies, the second of them the first without the experts' small weights, and their comparison"""
    folder = tmp_path_factory.mktemp("pair")
    actor = random_actor(4, 2, 8)
    mean = actor.weights["experts.mean.weight"]
    short = replace(actor, weights=actor.weights | {"experts.mean.weight": np.where(np.abs(mean) < 0.5, 0, mean)})
    save_actor(folder / "a" / "actor.safetensors", actor, "Swimmer-v4", steps="1000000")
    save_actor(folder / "b" / "actor.safetensors", short, "Swimmer-v4", steps="1000000")
    args = interpret.Args(path=str(folder / "a"), other=str(folder / "b"), episodes=2, output=str(folder / "out"))
    interpret.main(args)
    return folder


def test_the_comparison_counts_both(pair):
    data = json.loads((pair / "out" / "compare.json").read_text())
    a, b = data["sides"]
    assert a["n_read"] == 4 * 9 + 4 * 2 * 9 and b["n_read"] < a["n_read"]
    assert sum(a["share"]) == pytest.approx(1) == sum(b["share"])
    assert data["difference"]["mean"] == pytest.approx(b["mean"] - a["mean"])
    assert not (pair / "out" / "report.html").exists()


def test_the_page_plays_both(pair, browser):  # noqa: F811
    page, complaints = browser.new_page(), []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:")) else complaints.append(request.url),
    )
    page.goto((pair / "out" / "compare.html").as_uri())
    data = json.loads((pair / "out" / "compare.json").read_text())
    row = page.locator("#facts tbody tr").nth(2).inner_text()
    assert str(data["sides"][0]["n_read"]) in row and str(data["sides"][1]["n_read"]) in row
    before = page.locator(".now line").first.get_attribute("x1")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.comparison.live.step") == 61
    assert page.locator(".now line").first.get_attribute("x1") != before
    assert page.locator("#matched tbody tr").count() == len(data["matched"]["pairs"])
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
    assert complaints == []


def test_policies_of_two_environments_are_refused(smose_run, pair, run_main, tmp_path):
    run = shutil.copytree(smose_run, tmp_path / "run")
    assert_one_line_error(run_main(interpret, run, pair / "a"), "Reacher-v4", "Swimmer-v4")
