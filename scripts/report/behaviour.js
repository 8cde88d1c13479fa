/* The gait as one cycle, and what pushes do. */

/* ---------- the gait ---------- */
function gaitSection() {
  const G = R.gait, title = el("h2", { id: "h-gait" }, "One cycle");
  if (!G.periodic) {
    return el("section", { id: "gait", "aria-labelledby": "h-gait" }, title,
      el("p", { class: "lede" },
        G.at_rest
          ? "There is none: the robot comes to rest, and its observations hardly move any more."
          : "Nothing is periodic here: the observations do not repeat themselves (their autocorrelation has no peak " +
            "above one half).",
      ));
  }
  const cycle = SECONDS
    ? `${fixed(G.period, 1)} steps or ${nice(G.period * SECONDS)} s`
    : `${fixed(G.period, 1)} steps`;
  const poses = figure
    ? el("div",
        { class: "poses" },
        G.poses.map((p) =>
          el("div", {}, stillBody(figure, p.episode, p.step, colourAt(p.episode, p.step)),
            el("button",
              {
                type: "button", class: "link small", "aria-label": `Show phase ${fixed(p.phase)} above`,
                onclick: () => {
                  moveTo(p.episode, p.step);
                  document.getElementById("watch").scrollIntoView();
                },
              },
              fixed(p.phase)))))
    : null;
  const shown = byMatter.slice(0, Math.max(4, Math.min(8, 12 - A)));
  return el("section", { id: "gait", "aria-labelledby": "h-gait" }, title,
    el("p", { class: "lede" },
      `One cycle takes ${cycle}; its length varies by ${fixed(G.cycle_length_spread, 2)} steps over ` +
        `${group(G.cycles)} cycles, and ${fixed(G.switches_per_cycle, 1)} switches fall into each. ` +
        "At equal phase two cycles " +
        `differ by ${fixed(G.variation)} spreads. Autocorrelation at the period: ${fixed(G.strength)}.`),
    el("div", { class: "card" }, poses, el("div", { class: "cyclebox" }, cycleBand(G, COLOUR), cycleLabels(G, chip)),
      el("p", { class: "small soft tight" }, `Phase of the cycle from left to right (that of `, sym(OBS[G.reference]),
        "); height: in how many of the cycles an expert acts there."),
      el("div", { class: "curves" }, ACT.map((a, k) => cycleCurve(a, G.actions, k, "var(--accent)")),
        shown.map((k) => cycleCurve(OBS[k], G.observations, k, "var(--soft)"))),
      el("p", { class: "small soft tight" },
        "Commands (blue) and the observations that matter most: median over the cycles, and the " +
          "middle 80 % of them.")));
}

/* ---------- pushes ---------- */
const SIZE_COLOURS = ["#56B4E9", "#0072B2", "#E69F00", "#D55E00"];
const RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";
const powerOfTen = (v) => "10\u207b" + String(-Math.round(Math.log10(v))).replace(/\d/g, (d) => RAISED[d]);
function pushPlot(key, log, level, said) {
  const X = R.pushes, n = X.horizon, period = R.gait.period || 0;
  const wide = period || innerWidth < 760 ? 270 : 520, tall = 200, left = 36, bottom = 28;
  const all = X.curves.flatMap((c) => c[key][1]).filter((v) => v !== null && v > 0);
  let low = log ? Math.max(1e-5, Math.min(...all)) : 0, high = Math.max(...all, level || 0) * 1.08;
  if (log) [low, high] = [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high))];
  const f = log ? Math.log10 : (v) => v, share = (v) => (f(Math.max(v, low)) - f(low)) / (f(high) - f(low) || 1);
  const y = (v) => 6 + (tall - 6 - bottom) * (1 - share(v)), x = (t) => left + ((wide - left - 6) * t) / (n - 1 || 1);
  const marks = [], ticks = [], gap = period ? Math.max(1, Math.round(n / period / 6)) : niceStep(n / 5);
  if (log) for (let v = low; v <= high * 1.01; v *= 10) marks.push(v);
  else for (let v = 0; v <= high; v += niceStep(high / 3)) marks.push(v);
  for (let c = 0; (period ? c * period : c) < n; c += gap) ticks.push([x(period ? c * period : c), nice(c)]);
  const at = (v, t) => (v === null ? [] : `${x(t).toFixed(1)},${y(v).toFixed(1)}`);
  const points = (values) => values.flatMap(at).join(" ");
  const text = (at, up, anchor, words) => sv("text", { class: "tiny", x: at, y: up, "text-anchor": anchor }, words);
  const tick = (v) => (log && v < 9e-4 ? powerOfTen(v) : nice(Number(v.toPrecision(2))));
  const line = (v, kind) => sv("line", { x1: left, x2: wide - 6, y1: y(v), y2: y(v), class: kind });
  return el("figure", {},
    sv("svg", { class: "plot", viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": said },
      marks.map((v) => [line(v, "gridline"), text(left - 6, y(v) + 3.5, "end", tick(v))]),
      ticks.map(([at, words]) => text(at, tall - bottom + 13, "middle", words)),
      text((left + wide) / 2, tall - 3, "middle", period ? "cycles after the push" : "steps after the push"),
      level ? line(level, "level") : null,
      X.curves.map((c, k) => sv("polyline",
        { points: points(c[key][1]), fill: "none", stroke: SIZE_COLOURS[k], "stroke-width": 1.8 }))),
    el("figcaption", { class: "small soft" }, said));
}
function pushLegend() {
  return el("p", { class: "small soft pushsizes" }, "pushed by ", R.pushes.sizes.map((size, k) =>
    el("span", { style: { "--c": SIZE_COLOURS[k] } }, set(size))), " of the spread");
}
function pushSection() {
  const X = R.pushes, title = el("h2", { id: "h-pushes" }, "What a push does");
  if (!X) return null;
  if (!X.moments) {
    return el("section", { id: "pushes", "aria-labelledby": "h-pushes" }, title,
      el("p", { class: "lede" }, `Not tried: ${X.reason}.`));
  }
  const period = R.gait.period || 0, home = period ? "it is back in its gait" : "a tenth of its effect is left";
  const after = (s) =>
    s.falls >= 0.5
      ? el("strong", { class: "bad" }, "falls")
      : s.back_after === null
        ? s.kept === undefined ? "not yet" : s.kept > 1 ? `grows \u00d7 ${fixed(s.kept, 1)}` : `${percent(s.kept)} left`
        : !s.back_after
          ? "stays"
          : period
            ? `${fixed(s.back_after / period, 1)} cycles`
            : many(s.back_after, "step");
  const order = X.pushes.map((_, k) => k).sort((a, b) => harm(X.pushes[b]) - harm(X.pushes[a]));
  const grow = (p) =>
    p.growth_per_step === null ? "\u2014" : "\u00d7 " + fixed(p.growth_per_step ** (period || 1), 2);
  const topples = X.falls.some((share) => share > 0);
  const row = (k) =>
    el("tr", {}, el("td", {}, X.pushes[k].name),
      X.pushes[k].sizes.slice(1).map((s) => el("td", { class: "r num" }, after(s))),
      topples ? el("td", { class: "r num" }, percent(X.pushes[k].sizes.at(-1).falls)) : null,
      el("td", { class: "r num" }, grow(X.pushes[k])));
  const columns = ["pushed", ...X.sizes.slice(1).map((s) => `by ${set(s)}`),
    topples ? "falls at 100\u202f%" : null, `1\u202f% grows per ${period ? "cycle" : "step"}`].filter(Boolean);
  const table = (list) =>
    el("div", { class: "scroll" }, el("table", {}, head(columns), el("tbody", {}, list.map(row))));
  const rate = X.growth_per_cycle ?? X.growth_per_step, small = X.curves[0];
  const end = (key) => small[key][1].at(-1) ?? Infinity;
  // two runs can be far apart and both in their gait: later or earlier in it
  const whereto = !period || rate <= 1 ? "" : end("difference") <= 1.5 * R.gait.variation
    ? `, up to what two cycles of the gait differ by anyway (${fixed(R.gait.variation)} spreads)`
    : end("off_the_gait") <= X.usual_distance ? ", mostly as a shift in time: the distance to the cycle stays usual"
      : "";
  const lede = [
    `At ${X.moments} random moments each position and velocity was pushed by a share of its own spread, ` +
      `and pushed and unpushed ran on for ${X.horizon} steps under the policy. `,
    rate === null ? "" : "Differences after pushes of 1\u202f% " + (fixed(rate, 2) === "1.00"
      ? "neither grow nor fade in the end."
      : `${rate > 1 ? "grow" : "fade"} by a factor of ${fixed(rate, 2)} per ${period ? "cycle" : "step"}${whereto}.`)];
  const SHOWN = 6;
  return el("section", { id: "pushes", "aria-labelledby": "h-pushes" }, title, el("p", { class: "lede" }, lede),
    el("div", { class: "grid pushgrid" },
      el("div", { class: "card plots" + (period ? "" : " single") }, pushLegend(),
        pushPlot("difference", true, period ? R.gait.variation : null,
          `Difference to the unpushed run, in spreads (median)${period ? "; dashed: two cycles of the gait" : ""}.`),
        period
          ? pushPlot("off_the_gait", false, X.usual_distance,
              "Distance to the nearest point of the cycle, in spreads (median); dashed: what 95 % of unpushed " +
                "steps keep within.")
          : null),
      el("div", { class: "card" }, el("h3", {}, `Until ${home}, worst first`), table(order.slice(0, SHOWN)),
        order.length > SHOWN
          ? el("details",
              { class: "small" }, el("summary", {}, `the other ${order.length - SHOWN}`), table(order.slice(SHOWN)))
          : null,
        X.without_effect.length
          ? el("p", { class: "small soft tight" }, `Without any effect: ${X.without_effect.join(", ")}.`)
          : null)));
}
const harm = (p) =>
  sum(p.sizes.map((s) => (1e3 * s.falls) / s.size)) + sum(p.sizes.slice(1).map((s) => s.largest ?? 50));
