/* The robot, the player and what the policy does at the step shown. */

const figure = R.body ? unpackBody(R.body) : null;
const colourAt = (episode, step) => COLOUR[replay[episode].experts[step] - 1].c;

function runsOf(list) {
  const runs = [];
  list.forEach((e, t) => {
    const last = runs.at(-1);
    if (last && last.expert === e) last.to = t + 1;
    else runs.push({ expert: e, from: t, to: t + 1 });
  });
  return runs;
}
function strip(experts, height, pick) {
  const total = experts.length;
  const svg = sv("svg", { class: "strip", height, role: "img", "aria-label": `Active expert over ${total} steps` });
  for (const run of runsOf(experts)) {
    const x = (100 * run.from) / total, w = (100 * (run.to - run.from)) / total, m = run.expert - 1;
    const title = sv("title", {}, `Expert ${m + 1}: steps ${run.from}\u2013${run.to - 1}`);
    svg.append(sv("rect", { x: x + "%", width: w + "%", y: 0, height, fill: COLOUR[m].c }, title));
  }
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    pick(Math.floor(((event.clientX - box.left) / box.width) * total));
  });
  return svg;
}
function sparkline(values) {
  const height = 26, held = values.map((v) => (Number.isFinite(v) ? v : 0)), top = quantile(held, 0.995) || 1;
  const points = held
    .map((v, t) => `${t + 0.5},${(height - Math.min(1, v / top) * (height - 2)).toFixed(2)}`)
    .join(" ");
  return sv("svg",
    {
      height, viewBox: `0 0 ${values.length} ${height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": "Distance to the nearest switch over time",
    },
    sv("polygon", { points: `0,${height} ${points} ${values.length},${height}`, fill: "var(--well)" }),
    sv("polyline", {
      points, fill: "none", stroke: "var(--soft)", "stroke-width": 1, "vector-effect": "non-scaling-stroke",
    }));
}
function picture() {
  if (!R.frames.length) return null;
  const image = el("img", { class: "frame", alt: "" });
  listeners.push(() => {
    let best = R.frames[0];
    for (const f of R.frames) if (f.step <= live.step) best = f;
    image.hidden = live.episode !== 0 || live.step > R.frames.at(-1).step + 10;
    const src = "data:image/jpeg;base64," + best.jpeg;
    if (!image.hidden && image.src !== src) image.src = src;
    image.alt = `Rendered frame of step ${best.step}`;
  });
  return image;
}
function player() {
  const WINDOW = 80,
    close = el("div", { class: "close" }), counter = el("span", { class: "num small soft", id: "counter" });
  const scrub = el("input", {
    type: "range", class: "range", min: 0, step: 1, id: "scrubber", "aria-label": "Step of the recorded episode",
  });
  const holder = el("div", { class: "time inset" }), cursor = el("div", { class: "cursor" });
  const play = el("button", { type: "button", class: "primary", id: "play" }, "Play");
  const speeds = [[0.1, "\u2152 speed"], [0.25, "\u00bc speed"], [1, "Real time"], [4, "4\u00d7"]];
  const speed = el("select", { "aria-label": "Speed", id: "speed" },
    speeds.map(([v, t]) => el("option", { value: v, selected: v === 1 }, t)));
  const choose = el("select", { "aria-label": "Episode", id: "episode" },
    replay.map((e, i) =>
      el("option", { value: i },
        `Episode ${i + 1} (return ${nice(e.return)}${e.ended === "terminated" ? ", ends early" : ""})`)));
  const stop = () => {
    if (!live.playing) return;
    live.playing = false;
    update();
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  };
  // Steps follow the clock, not the frames: a slow machine skips steps, it does not stretch time.
  let began = 0, first = 0;
  const tick = (now) => {
    if (!live.playing) return;
    const wanted = first + Math.floor(((now - began) / 1000) * (speed.value / (SECONDS || 0.05)));
    if (wanted > live.step) moveTo(live.episode, wanted);
    if (live.step + 1 >= replay[live.episode].observations.length) stop();
    else requestAnimationFrame(tick);
  };
  const restart = () => {
    [began, first] = [performance.now(), live.step];
  };
  play.onclick = () => {
    if (live.playing) return stop();
    if (live.step + 1 >= replay[live.episode].observations.length) moveTo(live.episode, 0);
    live.playing = true;
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    restart();
    requestAnimationFrame(tick);
  };
  speed.onchange = restart;
  const go = (step) => {
    stop();
    moveTo(live.episode, step);
  };
  const cut = el("span", {});
  const load = () => {
    const e = replay[live.episode], n = e.observations.length;
    scrub.max = n - 1;
    const near = M > 1 ? e.observations.map((s) => switches(s, think(s).winner, SPREAD)[0].distance) : null;
    clear(holder, strip(e.experts.slice(0, n), n > WINDOW ? 14 : 26, go),
      near ? el("div", { class: "near" }, sparkline(near)) : null, cursor);
    cut.textContent = n < e.length ? `The page holds the first ${group(n)} of ${group(e.length)} steps. ` : "";
  };
  choose.onchange = () => {
    stop();
    moveTo(Number(choose.value), 0);
  };
  scrub.oninput = () => go(Number(scrub.value));
  const robot = figure ? bodyPlayer(figure, colourAt, "The robot, drawn from the simulator's geometry") : null;
  const travelled = el("span", { class: "travel num small" });
  let loaded = -1;
  listeners.push(() => {
    if (loaded !== live.episode) {
      loaded = live.episode;
      choose.value = loaded;
      load();
    }
    const e = replay[live.episode], n = e.observations.length;
    scrub.value = live.step;
    scrub.setAttribute("aria-valuetext", `step ${live.step}, Expert ${e.experts[live.step]}`);
    cursor.style.left = (100 * (live.step + 0.5)) / n + "%";
    // Long episodes switch faster than a pixel: the steps around the cursor get a strip of their own.
    close.hidden = n <= WINDOW;
    if (n > WINDOW) {
      const from = Math.max(0, Math.min(n - WINDOW, live.step - WINDOW / 2));
      clear(close,
        runsOf(e.experts.slice(from, from + WINDOW)).map((r) => {
          const w = (100 * (r.to - r.from)) / WINDOW;
          const style = { left: (100 * r.from) / WINDOW + "%", width: w + "%", ...paint(r.expert - 1) };
          return el("span", { style }, w * close.clientWidth > 1000 ? String(r.expert) : "");
        }),
        el("b", { style: { left: (100 * (live.step - from + 0.5)) / WINDOW + "%" } }));
      close.setAttribute("aria-label", `Active expert in steps ${from} to ${from + WINDOW - 1}`);
    }
    const sofar = sum(e.rewards.slice(0, live.step + 1));
    counter.textContent =
      `step ${live.step} of ${e.length}` +
      (SECONDS ? ` \u00b7 ${(live.step * SECONDS).toFixed(2)} s` : "") +
      ` \u00b7 reward so far ${nice(sofar)}`;
    if (robot) {
      const distance = robot.show(live.episode, live.step);
      robot.svg.classList.toggle("faded", live.moved);
      travelled.textContent =
        (figure.follows ? `${distance.toFixed(1)} m from the start` : "") +
        (live.moved ? " (the drawing shows the recorded state)" : "");
    }
  });
  document.addEventListener("keydown", (event) => {
    const busy = event.target.closest("input, select, textarea, button, summary, [role=application]");
    if (event.altKey || event.ctrlKey || event.metaKey || (busy && busy !== scrub)) return;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: busy ? -1 : 0, ArrowUp: busy ? 1 : 0 }[event.key];
    if (by) go(live.step + by * (event.shiftKey ? 10 : 1));
    else if (event.key === " ") play.click();
    else return;
    event.preventDefault();
  });
  const step = (d) =>
    el("button",
      { type: "button", "aria-label": d < 0 ? "One step back" : "One step on", onclick: () => go(live.step + d) },
      d < 0 ? "\u2039" : "\u203a");
  const jump = el("select",
    {
      "aria-label": "Jump to a typical state of an expert",
      onchange: () => {
        if (jump.value !== "") {
          stop();
          const { episode, step: at } = typical(Number(jump.value));
          moveTo(episode, at);
        }
        jump.value = "";
      },
    },
    el("option", { value: "" }, "a typical state of \u2026"),
    byShare.map((m) =>
      R.at_work[m] ? el("option", { value: m }, `Expert ${m + 1} (${percent(R.usage.share[m])})`) : null));
  const note =
    M > 1
      ? [cut,
          `The band shows who ${ACTS}, the curve how far the nearest switch is.`,
          replay.some((e) => e.observations.length > WINDOW)
            ? el("span", { class: "screen" }, ` The lower band magnifies ${WINDOW} steps.`)
            : ""]
      : [cut];
  const stage = el("div", { class: "stage" },
    robot ? robot.svg : el("p", { class: "small soft" }, "This environment has no MuJoCo body to draw."), travelled,
    picture());
  return el("div", { class: "card player" }, stage,
    el("div", { class: "controls" }, play, step(-1), step(1), speed, choose, jump, counter), holder, scrub, close,
    el("p", { class: "small soft tight" },
      el("strong", { class: "screen" }, "\u2190 \u2192 step, with shift ten; space plays. "), note));
}

function outcome() {
  const badge = el("div", { class: "badge", "aria-hidden": "true" }),
    said = el("b", { id: "winner", "aria-live": "polite" });
  const near = el("span", { class: "small soft", id: "nearest" });
  const scoreRows = P.router_bias.map((_, m) => {
    const bar = el("i", { style: paint(m) }), zero = el("u"), value = el("span", { class: "r num", "data-score": m });
    const behind = el("span", { class: "r num soft small" });
    return { bar, zero, value, behind, cells: [chip(m), el("div", { class: "track" }, bar, zero), value, behind] };
  });
  const torqueRows = ACT.map((name, a) => {
    const bar = el("i"), zero = el("u"), value = el("span", { class: "r num", "data-torque": a });
    const raw = el("span", { class: "r num soft small" });
    return { bar, zero, value, raw, cells: [sym(name), el("div", { class: "track" }, bar, zero), value, raw] };
  });
  const seen = replay.flatMap((e) => e.observations.filter((_, t) => t % 7 === 0).flatMap((s) => think(s).scores));
  seen.sort((a, b) => a - b);
  const low = Math.min(0, seen[Math.floor(0.04 * seen.length)]),
    high = Math.max(0, seen[Math.ceil(0.96 * seen.length) - 1]);
  const width = high - low || 1,
    held = (z) => Math.max(low, Math.min(high, z)), at = (z) => (100 * (held(z) - low)) / width;
  listeners.push(() => {
    const { scores, winner, commands, torques, gates } = live.now, nearest = live.pairs[0];
    put(badge, { style: paint(winner) });
    badge.textContent = winner + 1;
    const text = `Expert ${winner + 1} ${ACTS}`;
    if (said.textContent !== text) {
      said.setAttribute("aria-live", live.playing ? "off" : "polite");
      said.textContent = text;
    }
    near.textContent =
      nearest && Number.isFinite(nearest.distance)
        ? `${nice(nearest.distance)}${live.metric === "spread" ? " spreads" : ""}` +
          ` from Expert\u00a0${nearest.other + 1}`
        : M > 1
          ? "no change of the state switches the expert"
          : "the only expert: no switch exists";
    scoreRows.forEach((row, m) => {
      const [from, to] = [at(0), at(scores[m])].sort((a, b) => a - b);
      row.bar.style.left = from + "%";
      row.bar.style.width = to - from + "%";
      row.zero.style.left = at(0) + "%";
      row.value.textContent = fixed(scores[m]);
      row.value.classList.toggle("lead", m === winner);
      row.behind.textContent = mixes
        ? gates[m]
          ? percent(gates[m])
          : ""
        : m === winner
          ? "highest"
          : signed(scores[m] - scores[winner]);
    });
    torqueRows.forEach((row, a) => {
      const f = 0.5 + 0.5 * Math.tanh(commands[a]);
      row.bar.style.left = 100 * Math.min(f, 0.5) + "%";
      row.bar.style.width = 100 * Math.abs(f - 0.5) + "%";
      row.zero.style.left = "50%";
      row.bar.style.setProperty("--c", COLOUR[winner].c);
      row.value.textContent = fixed(torques[a]);
      row.raw.textContent = `tanh ${fixed(commands[a], 1)}`;
    });
  });
  return el("div", { class: "card outcome" }, el("div", { class: "winner" }, badge, el("div", {}, said, near)), M > 1
      ? [el("div",
            { class: "head4" }, el("span", {}, "Scores"), el("span", {}, mixes ? "weight" : "behind the winner")),
          el("div", { class: "bars" }, scoreRows.map((r) => r.cells))]
      : null,
    el("div", { class: "head4" }, el("span", {}, torqueWord), el("span", {}, "command")),
    el("div", { class: "bars last" }, torqueRows.map((r) => r.cells)));
}
