"""The report in a real browser: Debian's chromium, headless, driven with Playwright."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from saved_actor import load_actor
from test_interpret import random_actor, save_actor

import interpret

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run"
).split()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is missing; .ci/run installs it")
        pytest.skip("chromium is not installed: apt-get install chromium")
    if os.environ.get("CI") != "true":
        pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


def make_report(folder: Path, env_id: str, m: int, n_a: int, n_s: int, episodes: int = 2, **kwargs) -> Path:
    save_actor(folder / "actor.safetensors", random_actor(m, n_a, n_s, **kwargs), env_id)
    interpret.interpret(interpret.Args(path=str(folder), episodes=episodes))
    return folder


@pytest.fixture(scope="module")
def trained(smose_run, tmp_path_factory) -> Path:
    """report of the tiny training run, with a tree beside it"""
    folder = tmp_path_factory.mktemp("browser") / smose_run.name
    shutil.copytree(smose_run, folder)
    split = [{"feature": 8, "threshold": 0.05, "left": 1, "right": 2}]
    leaves = [{"probability": 0.125, "samples": 30}, {"probability": 0.75, "samples": 20}]
    experts = [{"expert": m + 1, "share": 0.125, "never": m == 7, "nodes": split + leaves} for m in range(8)]
    trees = {"format": "smose-trees", "env_id": "Reacher-v4", "max_depth": 1, "experts": experts}
    (folder / "trees").mkdir()
    (folder / "trees" / "trees.json").write_text(json.dumps(trees))
    interpret.interpret(interpret.Args(path=str(folder), episodes=3))
    return folder


@pytest.fixture
def open_page(browser):
    """opens a report and, at the end of the test, holds it to a clean console and no network"""
    contexts, complaints, requests = [], [], []

    def opened(folder: Path, width: int = 1280, **kwargs):
        context = browser.new_context(viewport={"width": width, "height": 900}, **kwargs)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((folder / "report.html").as_uri())
        page.wait_for_function("window.smose !== undefined")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def winner_shown(page) -> int:
    return int(re.search(r"Expert (\d+)", page.locator("#winner").inner_text()).group(1)) - 1


def states_of(folder: Path, n: int = 100) -> np.ndarray:
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    states = np.concatenate([np.float32(e["observations"]) for e in report["episodes"] if "observations" in e])
    return states[np.linspace(0, len(states) - 1, n).astype(int)].astype(np.float64)


@pytest.mark.parametrize("kind", ["trained", "top-2", "softmax", "single"])
def test_page_agrees_with_numpy_on_100_recorded_states(kind, trained, tmp_path, open_page):
    folder = trained
    if kind == "top-2":
        folder = make_report(tmp_path, "Reacher-v4", 5, 2, 11, top_k="2")
    elif kind == "softmax":
        folder = make_report(tmp_path, "Reacher-v4", 12, 2, 11, gate="softmax")
    elif kind == "single":
        folder = make_report(tmp_path, "Pendulum-v1", 1, 1, 3)
    page = open_page(folder)
    policy = load_actor(folder)
    states = states_of(folder)
    answers = page.evaluate("states => states.map((s) => window.smose.think(s.map(Math.fround)))", states.tolist())
    z = interpret.scores(policy, states)
    assert np.array([a["scores"] for a in answers]) == pytest.approx(z, abs=1e-5)
    assert [a["winner"] for a in answers] == z.argmax(axis=1).tolist()
    assert np.array([a["torques"] for a in answers]) == pytest.approx(interpret.torques(policy, states), abs=1e-5)
    if kind == "single":
        assert "no switch" in page.locator("#answers").inner_text()


def test_page_shows_the_recorded_steps(trained, open_page):
    page = open_page(trained)
    policy = load_actor(trained)
    report = json.loads((trained / "report.json").read_text(encoding="utf-8"))
    scrubber = page.locator("#scrubber")
    scrubber.focus()
    for step in range(1, 6):
        page.keyboard.press("ArrowRight")
        state = np.float64(np.float32(report["episodes"][0]["observations"][step]))
        z = interpret.scores(policy, state[None])[0]
        assert winner_shown(page) == z.argmax()
        shown = [text.replace("\u2212", "-") for text in page.locator("[data-score]").all_inner_texts()]
        assert np.array(shown, dtype=float) == pytest.approx(z, abs=0.00501)
        torques = [text.replace("\u2212", "-") for text in page.locator("[data-torque]").all_inner_texts()]
        assert np.array(torques, dtype=float) == pytest.approx(interpret.torques(policy, state[None])[0], abs=0.00501)
        unit = np.array(report["states"]["obs_spread"])
        distance, other = interpret.nearest_switch(policy, state[None], unit)
        said = page.locator("#nearest").inner_text().replace("\u00a0", " ")
        assert said.endswith(f"Expert {other[0] + 1}")
        assert float(said.split()[0]) == pytest.approx(distance[0], rel=0.06)


def test_a_slider_changes_the_winner_as_numpy_says(trained, open_page):
    page = open_page(trained)
    policy = load_actor(trained)
    start = np.array(page.evaluate("window.smose.live.state"))
    ranges = page.evaluate("window.smose.ranges")
    before = interpret.scores(policy, start[None])[0].argmax()
    assert winner_shown(page) == before
    changes = []
    for k, ends in enumerate(ranges):
        for key, value in zip(("Home", "End"), ends, strict=True):
            state = start.copy()
            state[k] = value
            if interpret.scores(policy, state[None])[0].argmax() != before:
                changes.append((k, key, state))
    assert changes, "no slider of this run reaches another expert"
    for k, key, state in changes[:3]:
        page.locator(f"#obs-{k}").focus()
        page.keyboard.press(key)
        assert winner_shown(page) == interpret.scores(policy, state[None])[0].argmax() != before
        page.locator("#reset").click()
        assert winner_shown(page) == before


def test_bands_under_the_sliders_are_the_exact_winners(trained, open_page):
    page = open_page(trained)
    policy = load_actor(trained)
    state = states_of(trained)[37]
    for k, (low, high) in enumerate(page.evaluate("window.smose.ranges")):
        bands = page.evaluate(
            "([s, k, low, high]) => window.smose.envelope(window.smose.think(s).scores, k, s[k], low, high)",
            [state.tolist(), k, low, high],
        )
        assert (bands[0]["from"], bands[-1]["to"]) == (low, high)
        for band in bands:
            moved = np.repeat(state[None], 3, axis=0)
            moved[:, k] = band["from"] + (band["to"] - band["from"]) * np.array([1e-6, 0.5, 1 - 1e-6])
            assert interpret.scores(policy, moved).argmax(axis=1).tolist() == [band["expert"]] * 3


def test_the_smallest_change_switches_in_the_page(trained, open_page):
    page = open_page(trained)
    for metric in ("in spreads", "raw units"):
        page.get_by_role("button", name=metric).click()
        before = winner_shown(page)
        named = int(re.search(r"Expert\s(\d+)$", page.locator("#nearest").inner_text()).group(1)) - 1
        page.locator("#apply").click()
        assert winner_shown(page) == named != before
        page.locator("#reset").click()
        assert winner_shown(page) == before


def test_equations_are_those_of_the_files(trained, open_page):
    page = open_page(trained)
    lines = (trained / "equations.txt").read_text(encoding="utf-8").splitlines()
    expected = [line.strip() for line in lines if " ≈ " in line]
    text = page.evaluate("window.smose.allEquations('text', 'effect')")
    assert "tanh" in text
    assert [line.strip() for line in text.splitlines() if " ≈ " in line] == expected
    latex = page.evaluate("window.smose.allEquations('latex', 'effect')")
    tex = (trained / "equations.tex").read_text(encoding="utf-8")
    cases = [line.strip() for line in latex.splitlines() if line.startswith("$\\tau")]
    assert len(cases) == 16 and all(line.removeprefix("$").replace("$", "") in tex for line in cases)


def test_trees_appear(trained, open_page):
    page = open_page(trained)
    assert page.locator("#trees svg").count() == 7  # one expert has no state to learn from
    assert "0.75" in page.locator("#trees").inner_text()


@pytest.mark.parametrize(
    "width, scheme, media",
    [
        (375, "light", "screen"),
        (375, "dark", "screen"),
        (1280, "light", "screen"),
        (700, "light", "print"),
    ],  # 700 is A4
)
def test_nothing_sticks_out(width, scheme, media, trained, open_page):
    page = open_page(trained, width, color_scheme=scheme)
    page.emulate_media(media=media)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_large_policies_stay_readable(tmp_path, open_page):
    folder = make_report(tmp_path, "Ant-v5", 32, 8, 105, episodes=1)
    assert (folder / "report.html").stat().st_size < 5_000_000
    page = open_page(folder, 375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    visible = page.locator(".obs:visible")
    assert visible.count() == 20
    page.get_by_role("button", name="Show all 105 observations").click()
    assert visible.count() == 105
    assert page.locator("#weights .panel").count() <= 12
    page.get_by_role("button", name="all 32").click()
    assert page.locator("#weights .panel").count() == 32


def test_every_control_has_a_name(trained, open_page):
    page = open_page(trained)
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, select, input')]
        .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)))
        .map((e) => e.outerHTML)"""
    )
    assert nameless == []
