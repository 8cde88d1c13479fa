/* What if the state were another: sliders, a slice through the state space, exact answers. */

const ranges = OBS.map((_, k) => {
  const low = R.states.obs_min[k], high = R.states.obs_max[k], pad = high > low ? 0.15 * (high - low) : 1;
  return [low - pad, high + pad];
});
function sliders() {
  const rows = [], box = el("div", {}), shown = new Set(N > MANY ? byMatter.slice(0, FEW) : OBS.map((_, k) => k));
  for (let k = 0; k < N; k++) {
    const [low, high] = ranges[k], id = "obs-" + k;
    const range = el("input", { type: "range", class: "range", id, min: low, max: high, step: "any", "data-obs": k });
    const exactBox = el("input", { type: "number", step: "any", "aria-label": `${OBS[k].description}, exact value` });
    const tick = el("div", { class: "tick", title: "recorded value" }),
      who = el("div", { class: "who", "aria-hidden": "true" });
    const title = OBS[k].description + (OBS[k].unit ? ` (${OBS[k].unit})` : "");
    const row = el("div", { class: SHAPE.test(OBS[k].text) ? "obs" : "obs wordy" },
      el("label", { for: id, title }, sym(OBS[k])), el("div", { class: "slot" }, range, tick, M > 1 ? who : null),
      exactBox);
    const take = (value) => {
      if (Number.isFinite(value)) setState(live.state.map((v, i) => (i === k ? value : v)));
    };
    range.oninput = () => take(range.valueAsNumber);
    exactBox.onchange = () => take(exactBox.valueAsNumber);
    row.hidden = !shown.has(k);
    rows.push(row);
    whatIf.push(() => {
      if (row.hidden) return;
      const value = live.state[k], width = high - low;
      if (range.valueAsNumber !== value) range.value = value;
      range.setAttribute("aria-valuetext", `${nice(value)} ${OBS[k].unit}; Expert ${live.now.winner + 1} ${ACTS}`);
      const tiny = value !== 0 && Math.abs(value) < 1e-3; // in full it would not fit into its box
      if (document.activeElement !== exactBox) exactBox.value = tiny ? value.toExponential(1) : +value.toPrecision(4);
      tick.style.left = `calc(8px + (100% - 16px) * ${Math.max(0, Math.min(1, (live.origin[k] - low) / width))})`;
      if (M > 1) {
        clear(who,
          envelope(live.now.scores, k, value, low, high).map((p) => {
            const w = (100 * (p.to - p.from)) / width, left = (100 * (p.from - low)) / width;
            return el("span", { style: { left: left + "%", width: w + "%", ...paint(p.expert) } },
              w > 5 ? String(p.expert + 1) : "");
          }));
      }
    });
  }
  box.append(...rows);
  const more =
    N > MANY
      ? el("button",
          {
            type: "button", class: "link",
            onclick: () => {
              const all = rows.some((r) => r.hidden);
              rows.forEach((r, k) => {
                r.hidden = !all && !shown.has(k);
              });
              more.textContent = all ? `Show the ${FEW} that matter most` : `Show all ${N} observations`;
              update();
            },
          },
          `Show all ${N} observations`)
      : null;
  const reset = el("button", { type: "button", id: "reset", onclick: () => setState(live.origin) },
    "Back to the recorded state");
  whatIf.push(() => {
    reset.disabled = !live.moved;
  });
  return el("div", { class: "card" }, el("div", { class: "controls spaced" }, el("h3", {}, "The state"), reset),
    el("p", { class: "small soft" }, M > 1
        ? `The band under a slider shows who would ${mixes ? "lead" : "act"} at each of its ` +
            "values, all others held."
        : "Move an observation and watch the torques."),
    box, more);
}

// A slice through the state space: every region is a convex polygon, cut out by the other experts' half planes.
function clipped(polygon, a, b, c) {
  const out = [], side = (p) => a * p[0] + b * p[1] + c;
  polygon.forEach((p, i) => {
    const q = polygon[(i + 1) % polygon.length], fp = side(p), fq = side(q);
    if (fp >= 0) out.push(p);
    if ((fp > 0 && fq < 0) || (fp < 0 && fq > 0)) {
      const t = fp / (fp - fq);
      out.push([p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]);
    }
  });
  return out;
}
function areaOf(p) {
  return (
    Math.abs(sum(p.map(([x, y], i) => {
          const [u, v] = p[(i + 1) % p.length];
          return x * v - u * y;
        })),
    ) / 2);
}
function sliceMap() {
  if (M < 2 || N < 2) return null;
  const size = 300, left = 26, inner = size - left - 6, tall = 230, floor = tall + 6;
  let [ax, ay] = byMatter.slice(0, 2).sort((a, b) => a - b);
  const options = (value) => OBS.map((o, k) => el("option", { value: k, selected: k === value }, o.text));
  const pickX = el("select", { "aria-label": "Horizontal observation" }, options(ax));
  const pickY = el("select", { "aria-label": "Vertical observation" }, options(ay));
  const layer = sv("g"), dots = sv("g"), axes = sv("g");
  const point = sv("circle", { r: 7, fill: "var(--card)", stroke: "var(--ink)", "stroke-width": 2.5 });
  const svg = sv("svg",
    {
      class: "map", viewBox: `0 0 ${size} ${floor + 24}`, tabindex: 0, role: "application",
      "aria-label": "Map of the winning expert over two observations. Arrow keys move the state.",
    },
    layer, dots, point, axes);
  const px = (v, k) => left + (inner * (v - ranges[k][0])) / (ranges[k][1] - ranges[k][0]);
  const py = (v, k) => 6 + tall * (1 - (v - ranges[k][0]) / (ranges[k][1] - ranges[k][0]));
  function still() {
    const all = replay.flatMap((e) => e.observations), every = Math.max(1, Math.floor(all.length / 400));
    clear(dots, all
        .filter((_, t) => t % every === 0)
        .map((s) =>
          sv("circle", {
            cx: px(s[ax], ax).toFixed(1), cy: py(s[ay], ay).toFixed(1), r: 1.6, fill: "#000", "fill-opacity": 0.38,
          })));
    clear(axes, sv("text", { x: left, y: floor + 16 }, nice(ranges[ax][0])),
      sv("text", { x: size - 6, y: floor + 16, "text-anchor": "end" }, nice(ranges[ax][1])),
      symSvg(OBS[ax], { x: left + inner / 2, y: floor + 16, "text-anchor": "middle" }),
      sv("text", { transform: `translate(15 ${floor}) rotate(-90)` }, nice(ranges[ay][0])),
      sv("text", { transform: "translate(15 6) rotate(-90)", "text-anchor": "end" }, nice(ranges[ay][1])),
      symSvg(OBS[ay], { transform: `translate(15 ${6 + tall / 2}) rotate(-90)`, "text-anchor": "middle" }));
  }
  pickX.onchange = () => {
    ax = Number(pickX.value);
    still();
    update();
  };
  pickY.onchange = () => {
    ay = Number(pickY.value);
    still();
    update();
  };
  whatIf.push(() => {
    const z = live.now.scores, W = P.router_weight, [x0, x1] = ranges[ax], [y0, y1] = ranges[ay];
    clear(layer,
      z.map((_, m) => {
        let polygon = [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
        for (let j = 0; j < M && polygon.length; j++) {
          if (j === m) continue;
          const a = W[m][ax] - W[j][ax], b = ax === ay ? 0 : W[m][ay] - W[j][ay];
          polygon = clipped(polygon, a, b, z[m] - z[j] - a * live.state[ax] - b * live.state[ay]);
        }
        const at = polygon.map(([x, y]) => [px(x, ax), py(y, ay)]);
        if (at.length < 3 || areaOf(at) < 4) return null;
        const cx = sum(at.map((p) => p[0])) / at.length, cy = sum(at.map((p) => p[1])) / at.length;
        const points = at.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ");
        const label = {
          x: Math.min(cx, left + inner - 10), y: Math.max(20, Math.min(cy + 5, tall)), "text-anchor": "middle",
          style: { font: "700 15px var(--sans)", fill: COLOUR[m].t },
        };
        return sv("g", {}, sv("polygon", { points, fill: COLOUR[m].c, stroke: "var(--card)", "stroke-width": 1.5 }),
          areaOf(at) > 500 ? sv("text", label, String(m + 1)) : null);
      }));
    put(point, {
      cx: Math.max(left, Math.min(left + inner, px(live.state[ax], ax))),
      cy: Math.max(6, Math.min(6 + tall, py(live.state[ay], ay))),
    });
  });
  const drag = (event) => {
    const box = svg.getBoundingClientRect(), f = size / box.width;
    const u = Math.max(0, Math.min(1, ((event.clientX - box.left) * f - left) / inner));
    const v = Math.max(0, Math.min(1, ((event.clientY - box.top) * f - 6) / tall));
    const next = live.state.slice();
    next[ax] = ranges[ax][0] + u * (ranges[ax][1] - ranges[ax][0]);
    if (ay !== ax) next[ay] = ranges[ay][1] - v * (ranges[ay][1] - ranges[ay][0]);
    setState(next);
  };
  svg.addEventListener("pointerdown", (e) => {
    svg.setPointerCapture(e.pointerId);
    drag(e);
  });
  svg.addEventListener("pointermove", (e) => {
    if (svg.hasPointerCapture(e.pointerId)) drag(e);
  });
  svg.addEventListener("keydown", (e) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const [dx, dy] = moves[e.key] || [0, 0];
    if (!dx && !dy) return;
    e.preventDefault();
    const next = live.state.slice();
    next[ax] += (dx * (ranges[ax][1] - ranges[ax][0])) / 50;
    next[ay] += (dy * (ranges[ay][1] - ranges[ay][0])) / 50;
    setState(next);
  });
  still();
  return el("div", { class: "card" },
    el("div", { class: "controls spaced" }, el("h3", {}, "Who acts where"), el("span", {}, pickX, " \u00d7 ", pickY)),
    svg,
    el("p", { class: "small soft tight" },
      "An exact slice at the current state, all other observations held. Drag the point, or use " +
        "the arrow keys. Small dots are visited states."));
}
function whyPanel() {
  const title = el("h3", {}), rivals = el("select", { id: "rival", "aria-label": "The other expert" });
  const body = el("div", { class: "why" }), SHOWN = 5;
  let all = false;
  const more = el("button", {
    type: "button", class: "link small",
    onclick: () => {
      all = !all;
      update();
    },
  });
  rivals.onchange = () => {
    live.rival = rivals.value === "" ? null : Number(rivals.value);
    update();
  };
  whatIf.push(() => {
    const i = live.now.winner, nearest = live.pairs[0].other;
    if (live.rival === i) live.rival = null;
    const j = live.rival ?? nearest;
    clear(rivals, el("option", { value: "", selected: live.rival === null }, `nearest (Expert ${nearest + 1})`),
      P.router_bias.map((_, m) =>
        m === i ? null : el("option", { value: m, selected: live.rival === m }, `Expert ${m + 1}`)));
    clear(title, "Why ", chip(i), " and not ", chip(j), "?");
    const parts = OBS.map((_, k) => ({ k, value: (P.router_weight[i][k] - P.router_weight[j][k]) * live.state[k] }));
    const bias = P.router_bias[i] - P.router_bias[j], total = sum(parts.map((p) => p.value)) + bias;
    parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const shown = all ? parts : parts.slice(0, SHOWN), rest = sum(parts.slice(shown.length).map((p) => p.value));
    const top = Math.max(1e-12, Math.abs(bias), ...shown.map((p) => Math.abs(p.value)));
    const line = (label, now, value) => {
      const wide = 50 * Math.min(1, Math.abs(value) / top), left = value >= 0 ? 50 : 50 - wide;
      return [label, el("span", { class: "num soft small" }, now),
        el("div", { class: "track" }, el("u"),
          el("i", { style: { ...paint(value >= 0 ? i : j), left: left + "%", width: wide + "%" } })),
        el("span", { class: "r num" }, signed(value))];
    };
    clear(body, shown.map((p) => line(sym(OBS[p.k]), "at " + nice(live.state[p.k]), p.value)),
      line(el("span", { class: "small" }, "constant"), "", bias), shown.length < parts.length
        ? line(el("span", { class: "small" }, `${parts.length - shown.length} others`), "", rest)
        : null,
      el("span", { class: "line" }), el("strong", {}, "sum"), el("span"), el("span"),
      el("strong", { class: "r num", id: "difference" }, signed(total, 3)));
    more.hidden = N <= SHOWN;
    more.textContent = all ? `Show the largest ${SHOWN}` : `Show all ${N}`;
  });
  return el("div", { class: "card" }, el("div", { class: "controls spaced" }, title, rivals), body, more);
}
function switchPanel() {
  const title = el("h3", {}), said = el("p", { class: "small tight" }), table = el("tbody"), SHOWN = 4;
  let all = false, target = null;
  const more = el("button", {
    type: "button", class: "link small",
    onclick: () => {
      all = !all;
      update();
    },
  });
  const apply = el("button",
    {
      type: "button", id: "apply",
      onclick: () => {
        if (target) setState(target);
      },
    },
    "Apply");
  const metric = segmented("Measure of a change", [["spread", "in spreads"], ["raw", "raw units"]], live.metric,
    (key) => {
      live.metric = key;
      update();
    });
  whatIf.push(() => {
    const i = live.now.winner, nearest = live.pairs[0], j = live.rival ?? nearest.other;
    const pair = live.pairs.find((p) => p.other === j), word = live.metric === "spread" ? " spreads" : "";
    clear(title, "The smallest change that brings ", chip(j));
    apply.disabled = !pair.change;
    target = null;
    more.hidden = true;
    if (!pair.change) {
      clear(said, "Both experts score alike but for a constant: no change of the state reorders them.");
      clear(table);
      return;
    }
    for (let extra = 1e-6; extra < 1; extra *= 4) {
      target = live.state.map((v, k) => v + pair.change[k] * (1 + extra));
      if (think(target).scores[j] > think(target).scores[i]) break;
    }
    const then = think(target).winner;
    clear(said, `${nice(pair.distance)}${word} away. `,
      then === j ? "" : `There Expert ${then + 1} is ahead of both. `, j === nearest.other
        ? "No shorter change switches to any expert."
        : `Expert ${nearest.other + 1} is nearer still.`);
    const rows = pair.change
      .map((d, k) => ({ k, d, size: Math.abs(SPREAD[k] && live.metric === "spread" ? d / SPREAD[k] : d) }))
      .filter((r) => r.d !== 0)
      .sort((a, b) => b.size - a.size);
    clear(table,
      (all ? rows : rows.slice(0, SHOWN)).map((r) =>
        el("tr", {}, el("td", {}, sym(OBS[r.k])), el("td", { class: "r num" }, nice(live.state[r.k])),
          el("td", { class: "r num" }, nice(live.state[r.k] + r.d)),
          el("td", { class: "r num soft" }, SPREAD[r.k] ? signed(r.d / SPREAD[r.k]) : "\u2014"))));
    more.hidden = rows.length <= SHOWN;
    more.textContent = all ? `Show the largest ${SHOWN}` : `Show all ${rows.length}`;
  });
  return el("div", { class: "card" }, title, el("div", { class: "controls" }, metric, apply), said,
    el("table", {}, head(["", "now", "at the tie", "in spreads"]), table), more);
}
function watchSection() {
  return el("section", { id: "watch", "aria-labelledby": "h-watch" }, el("h2", { id: "h-watch" }, "Watch it"),
    el("div", { class: "grid watching" }, player(), outcome()));
}
function whatIfSection() {
  const map = sliceMap();
  return el("section", { id: "answers", class: "screen", "aria-labelledby": "h-answers" },
    el("h2", { id: "h-answers" }, "What if the state were another"),
    el("p", { class: "lede" }, M < 2
        ? "There is one expert: no score difference to split and no switch to find."
        : "Exact answers for the state shown, not approximations: scores are linear in the state, and the " +
          "border between two " +
            "experts is a plane. One spread is the standard deviation of an observation over the visited states."),
    el("div", { class: "grid three whatif" }, sliders(), map ? el("div", { class: "grid" }, map) : null,
      M > 1 ? el("div", { class: "grid" }, whyPanel(), switchPanel()) : null),
    mini());
}
function mini() {
  const box = el("div", { class: "mini", "aria-hidden": "true" });
  whatIf.push(() => {
    const n = live.pairs[0], far = n && Number.isFinite(n.distance);
    clear(box, expert(live.now.winner),
      el("span", { class: "soft" }, far
          ? [`${nice(n.distance)}${live.metric === "spread" ? " spreads" : ""} from `, expert(n.other)]
          : "no switch exists"));
  });
  return box;
}
