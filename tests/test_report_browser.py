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

ROOT = Path(interpret.__file__).parent
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
    interpret.interpret(interpret.Args(path=str(folder), episodes=episodes, pushes=False))
    return folder


@pytest.fixture(scope="module")
def cheetah(tmp_path_factory) -> Path:
    """report of a HalfCheetah policy of the project's, two of whose experts hardly ever act, pushes and all"""
    folder = tmp_path_factory.mktemp("cheetah") / "run"
    shutil.copytree(ROOT / "results" / "policies" / "HalfCheetah-v4" / "smose_keep0.4", folder)
    interpret.interpret(interpret.Args(path=str(folder)))
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
    trees["actor"] = load_actor(folder).identity
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
    page.evaluate("window.smose.moveTo(0, 0)")
    page.locator("#scrubber").focus()
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


def test_tiny_values_fit_into_their_boxes(trained, open_page):
    page, box = open_page(trained), ".obs input[type=number] >> nth=0"
    for value, shown in (3.331e-5, "3.3e-5"), (-0.0123456, "-0.01235"), (0, "0"):
        page.evaluate("v => window.smose.setState(window.smose.live.state.map((x, k) => (k ? x : v)))", value)
        assert page.locator(box).input_value() == shown
        assert page.locator(box).evaluate("e => e.scrollWidth <= e.clientWidth")


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
    tex = tex.replace(" \\\\\n        &\\quad", "").replace(" &\\approx", " \\approx")  # lines end there
    cases = [line.strip() for line in latex.splitlines() if line.startswith("$\\tau")]
    assert len(cases) == 16 and all(line.split("$")[1] in tex for line in cases)


def test_trees_appear(trained, open_page):
    page = open_page(trained)
    page.locator("#alltrees summary").click()
    page.wait_for_selector("#alltrees svg")
    assert page.locator("#alltrees svg").count() == 7  # one expert has no state to learn from
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
    page.locator("#weights summary").click()
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


def step_shown(page) -> int:
    return page.evaluate("window.smose.live.step")


def test_drawn_joints_are_the_simulators(tmp_path, open_page):
    import mujoco
    from report.body import simulator
    from saved_actor import FIRST_EVAL_SEED, make_env, make_policy

    folder = make_report(tmp_path, "Hopper-v4", 3, 3, 11)
    actor = load_actor(folder)
    env, policy = make_env(actor), make_policy(actor)
    obs, _ = env.reset(seed=FIRST_EVAL_SEED)
    model, data = simulator(env)
    still, page = mujoco.MjData(model), open_page(folder)
    for step in range(8):
        page.evaluate("step => window.smose.moveTo(0, step)", step)
        drawn = page.evaluate(
            """[...document.querySelectorAll('.now line[data-shape]')].map((line) =>
            [line.dataset.shape, ...['x1', 'y1', 'x2', 'y2'].map((a) => line.getAttribute(a))].map(Number))"""
        )
        assert [shape[0] for shape in drawn] == [0, 1, 2, 3]  # torso, thigh, leg, foot
        still.qpos[:] = data.qpos
        mujoco.mj_kinematics(model, still)
        for joint, shape in ("thigh_joint", 1), ("leg_joint", 2):  # hip and knee: the upper ends of thigh and leg
            ends = np.array(drawn[shape][1:]).reshape(2, 2) * (1, -1)  # in an SVG y points down
            anchor = still.joint(joint).xanchor[[0, 2]]
            assert np.abs(ends - anchor).max(axis=1).min() < 2e-4
        obs = env.step(policy(obs)[0])[0]


def test_real_time_is_real_time(cheetah, open_page):
    page = open_page(cheetah)
    page.evaluate("window.smose.moveTo(0, 10)")
    page.locator("#speed").select_option("4")  # 80 steps a second: faster than a step per frame
    samples = page.evaluate(
        """new Promise((done) => {
          const samples = [], began = performance.now();
          document.getElementById('play').click();
          const look = (now) => {
            samples.push([now - began, window.smose.live.step]);
            if (now - began < 1500) requestAnimationFrame(look);
            else done(samples);
          };
          requestAnimationFrame(look);
        })"""
    )
    for milliseconds, step in samples:  # however few frames a busy machine draws, each shows the step of its time
        assert step - 10 == pytest.approx(4 * milliseconds / 1000 / 0.05, abs=2)
    assert samples[-1][1] > 100
    page.keyboard.press("Space")
    held = step_shown(page)
    page.wait_for_timeout(200)
    assert step_shown(page) == held


def test_opens_at_a_typical_state_of_the_most_used_expert_and_obeys_arrows_at_once(cheetah, open_page):
    page = open_page(cheetah)
    share = json.loads((cheetah / "report.json").read_text())["usage"]["share"]
    assert winner_shown(page) == int(np.argmax(share))
    first = step_shown(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert step_shown(page) == first + 1
    page.keyboard.press("Shift+ArrowLeft")
    assert step_shown(page) == first - 9
    assert "step" in page.locator("#watch").inner_text() and "space plays" in page.locator("#watch").inner_text()


def test_the_page_is_half_as_long_as_it_was_and_prints_on_eight_pages(cheetah, open_page):
    page = open_page(cheetah)
    # episodes come out otherwise on another processor: an expert may act in more than 1% of their steps there, and a
    # sentence may take a line more
    more = max(0, page.locator("#experts article.expert:visible").count() - 6)
    assert page.evaluate("document.documentElement.scrollHeight") <= 11_719 / 2 + 400 * more + 50  # pixels, 1280 wide
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4", print_background=True))) <= 8
    assert (cheetah / "report.html").stat().st_size < 1_000_000


def test_nothing_is_said_twice(cheetah, open_page):
    page = open_page(cheetah)
    said = page.locator("#page").inner_text()
    assert len(re.findall("ends? early|ended early", said)) == 1
    assert len(re.findall("return of each episode", said)) == 1
    # who acts when stands on top for the three that act most, and with the equations for the others
    top = [int(m) for m in re.findall(r"Expert (\d+) \([^)]*\) acts mostly", page.locator("#summary").inner_text())]
    assert len(top) == 3
    cards = page.locator("#experts article.expert").all()
    favoured = [card.get_attribute("id") for card in cards if "is favoured when" in card.inner_text()]
    assert len(favoured) == len(cards) - 3 and not {f"expert-{m}" for m in top} & set(favoured)


def test_small_print_of_the_drawing_can_be_read_on_a_phone_too(cheetah, open_page):
    measure = """() => { const text = document.querySelector('.floor text'), svg = document.querySelector('svg.body');
      return text.getAttribute('font-size') * svg.clientWidth / svg.viewBox.baseVal.width; }"""
    for width in (390, 1440):
        assert 9 < open_page(cheetah, width).evaluate(measure) < 14


def test_small_print_of_a_plot_can_be_read_on_a_phone_too(trained, open_page):  # of a robot without a gait
    measure = "svg => svg.clientWidth / svg.viewBox.baseVal.width"
    for width in (390, 1440):
        assert 0.8 < open_page(trained, width).locator("#pushes .plot").evaluate(measure) < 1.5


def test_paper_leaves_out_what_only_a_click_would_open(cheetah, open_page):
    page = open_page(cheetah)
    folded = page.locator("details:not([open]):not(.expert)")
    assert folded.count() >= 3 and folded.first.is_visible()
    page.emulate_media(media="print")
    assert not any(box.is_visible() for box in folded.all())
    assert page.locator("details.expert").first.is_visible()  # one line that says how rarely it acts


def test_paper_shows_every_term_of_an_equation(cheetah, open_page):
    page, report = open_page(cheetah), json.loads((cheetah / "report.json").read_text())
    shown = [e for m, e in enumerate(report["equations"]) if report["usage"]["share"][m] >= 0.01]
    count = sum(len(row["terms"]) for e in shown for row in [e["score"], *e["torques"]])
    page.evaluate("addEventListener('beforeprint', () => (printed = document.querySelectorAll('.term').length))")
    assert page.locator(".term").count() < count
    page.pdf()
    assert page.evaluate("printed") == count
    assert page.locator(".term").count() < count


def test_the_cheetah_explains_itself(cheetah, open_page):
    page, report = open_page(cheetah), json.loads((cheetah / "report.json").read_text())
    summary = page.locator("#summary li").all_inner_texts()
    assert len(summary) == 5
    assert f"repeats every {report['gait']['period']:.3g} steps" in summary[2]
    assert report["gait"]["periodic"] and page.locator("#gait .poses svg").count() == 8
    assert page.locator("#gait .curve").count() >= 10
    assert page.locator("#pushes polyline").count() == 8  # four sizes, two measures
    assert page.locator("#experts article.expert").count() == sum(s >= 0.01 for s in report["usage"]["share"])
    rare = page.locator("#experts details.expert")
    assert rare.count() == sum(s < 0.01 for s in report["usage"]["share"])
    assert rare.first.locator(".eq").count() == 0
    rare.first.locator("summary").click()
    rare.first.locator(".eq").first.wait_for()
    assert rare.first.locator(".eq").count() == 7
    worst = max(report["jumps"]["pairs"], key=lambda p: p["count"] * p["mean"])
    assert f"{100 * worst['mean']:.0f}" in page.locator("#jumps tbody tr").nth(2).inner_text()


def test_what_is_not_there_is_said_or_left_out(trained, tmp_path, open_page):
    page = open_page(trained)
    assert "Nothing is periodic here" in page.locator("#gait").inner_text()
    assert "--card" in page.locator("header.top").inner_text()
    folder = make_report(tmp_path, "Pendulum-v1", 2, 1, 3)
    page = open_page(folder)
    assert page.locator("#pushes").count() == 0
    assert "no MuJoCo body" in page.locator("#watch").inner_text()


def test_the_robustness_card_is_drawn(smose_run, tmp_path, open_page):
    import evaluate

    folder = tmp_path / smose_run.name
    shutil.copytree(smose_run, folder)
    output = folder / "robustness.json"
    evaluate.main(evaluate.Args(paths=(str(folder),), episodes=2, noise=(0.1,), mass=(1.5,), output=str(output)))
    interpret.interpret(interpret.Args(path=str(folder), episodes=2, pushes=False))
    page, rows = open_page(folder), json.loads(output.read_text())
    texts = page.evaluate("[...document.querySelectorAll('#card svg g title')].map((t) => t.textContent)")
    assert len(texts) == 2 and "sensor noise 10" in texts[0] and "mass \u00d7 1.5" in texts[1].lower()
    assert f"{rows[1]['mean']:.2f}".replace("-", "\u2212")[:5] in texts[0]
    # red is what is worse beyond doubt and matters: by two standard errors and by a hundredth of the return
    for row, share in (rows[1], 0.5), (rows[2], 0.005):
        row |= {"difference": -share * abs(rows[0]["mean"]), "difference_se": 1e-6}
    output.write_text(json.dumps(rows))
    interpret.interpret(interpret.Args(path=str(folder), episodes=2, pushes=False))
    classes = open_page(folder).evaluate("[...document.querySelectorAll('#card svg g')].map((g) => g.classList.value)")
    assert classes == ["bad", ""]
