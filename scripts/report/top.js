/* What a person asks first: sentences, facts, failures, robustness, shares. */

function header() {
  const used = M - R.usage.dead.length, r = R.returns, digits = Math.abs(r.mean) < 100 ? 2 : 0;
  const from =
    r.source === "evaluation.json"
      ? `over ${r.returns.length} episodes of its evaluation`
      : `over ${many(r.returns.length, "episode")} played now`;
  const list = [["Return", `${fixed(r.mean, digits)} \u00b1 ${fixed(r.spread, digits)}`, from],
    ["Numbers to read", group(R.actor.n_read), `${group(R.actor.n_active)} act (${group(R.actor.n_total)} trained)`],
    ["Experts in use", `${used} of ${M}`, R.usage.dead.length ? `never: ${R.usage.dead.join(", ")}` : "none is dead"],
    ["Switches", M > 1 ? fixed(R.usage.switches_per_100_steps, 1) : "none", M > 1 ? "per 100 steps" : "one expert"],
    ["Training", R.actor.steps ? group(R.actor.steps) : "\u2014", `steps, seed ${R.actor.seed ?? "unknown"}`]];
  const how =
    M === 1
      ? "One linear expert: one matrix, one tanh, nothing to choose."
      : `${M} linear experts and a linear router; ${
          mixes
            ? `the best ${P.top_k === 1 ? "one acts, damped by its probability" : `${P.top_k} act together`}`
            : "the one with the highest score acts alone"
        }.`;
  return el("header", { class: "top wrap" }, el("p", { class: "eyebrow" }, "SMoSE policy report"),
    el("h1", {}, R.env_id), el("p", { class: "lede" }, how),
    el("ul", { class: "summary", id: "summary" }, R.summary.map((s) =>
      // each expert on a line of its own
      el("li", {}, s.split(/(?<=;) (?=Expert \d)/).map((part) => el("div", {}, rich(part, R.names, expert)))))),
    facts(list), el("div", { class: "grid three trust" }, failCard(), cardCard(), whoCard()));
}
function failCard() {
  const f = R.failures;
  if (!f.ended.length) {
    const calm = f.evaluated_share ? "None of the episodes looked at here ended early." : null;
    return el("div", { class: "card" }, el("h3", {}, "Returns"), returnDots(),
      calm ? el("p", { class: "small soft tight" }, calm) : null);
  }
  const rows = f.ended.slice(0, 5).map((e) =>
    el("tr", {}, el("td", { class: "num" }, group(e.step)), el("td", {}, chip(e.expert - 1)),
      el("td", {}, e.seen
          .slice(0, 2)
          .map((s, k) => [k ? ", " : "", sym(OBS[s.obs]), " ", el("span", { class: "num" }, `${nice(s.value)}`),
            el("span", { class: "soft num" }, ` (${signed(s.spreads_away, 1)})`)]))));
  return el("div", { class: "card" }, el("h3", {}, "How it fails"),
    el("table", {}, head(["step", "acting", "seen last (spreads from usual)"], 9), el("tbody", {}, rows)),
    f.ended.length > 5 ? el("p", { class: "small soft" }, `and ${f.ended.length - 5} more`) : null, returnDots());
}
function returnDots() {
  const list = R.returns.returns, low = Math.min(...list), high = Math.max(...list), BINS = 40, piles = [];
  const bin = (v) => Math.min(BINS - 1, Math.floor((BINS * (v - low)) / (high - low || 1)));
  const pile = list.map((v) => (piles[bin(v)] = (piles[bin(v)] || 0) + 1)), highest = Math.max(...pile);
  const gap = Math.min(7, 110 / highest), floor = 6 + highest * gap, text = (x, anchor, words) =>
    sv("text", { class: "tiny", x, y: floor + 13, "text-anchor": anchor }, words);
  const x = (v) => 8 + (284 * (bin(v) + 0.5)) / BINS, y = (i) => floor - gap * (pile[i] - 0.5);
  const dots = list.map((v, i) => sv("circle", { cx: x(v), cy: y(i), r: Math.min(3, gap / 2) }));
  return sv("svg",
    {
      class: "dots", viewBox: `0 0 300 ${floor + 17}`, role: "img",
      "aria-label": `Returns from ${nice(low)} to ${nice(high)}`,
    },
    sv("line", { x1: 8, x2: 292, y1: floor, y2: floor, class: "gridline" }), dots, text(8, "start", nice(low)),
    text(292, "end", nice(high)), text(150, "middle", "return of each episode"));
}
const CONDITIONS = {
  noise: (v) => `sensor noise ${set(v)}`, delay: (v) => `action ${many(v, "step")} late`,
  mass: (v) => `mass \u00d7 ${nice(v)}`, friction: (v) => `friction \u00d7 ${nice(v)}`,
};
function cardCard() {
  if (!R.card) {
    return el("div", { class: "card" }, el("h3", {}, "Robustness"),
      el("p", { class: "small soft" }, "Noise, delay, mass and friction were not tried. ",
        el("code", {}, "python interpret.py PATH --card"), " plays them."));
  }
  const nominal = R.card.find((r) => r.condition === "nominal"), rows = R.card.filter((r) => r !== nominal);
  const means = R.card.map((r) => r.mean), low = Math.min(0, ...means), high = Math.max(0, ...means);
  const left = 104, wide = 300, gap = 19, x = (v) => left + ((wide - left - 46) * (v - low)) / (high - low || 1);
  const lines = rows.map((r, k) => {
    const y = 10 + k * gap, [from, to] = [x(nominal.mean), x(r.mean)].sort((a, b) => a - b);
    const bad = -r.difference > Math.max(2 * (r.difference_se || 0), 0.01 * Math.abs(nominal.mean));
    const early = r.ended_early ? `, ${percent(r.ended_early)} end early` : "";
    const title =
      `${CONDITIONS[r.condition](r.value)}: ${nice(r.mean)} (${signed(r.difference)} \u00b1 ` +
      `${fixed(r.difference_se)})${early}`;
    return sv("g", { class: bad ? "bad" : "" }, sv("title", {}, title),
      sv("text", { class: "tiny", x: left - 6, y: y + 3.5, "text-anchor": "end" }, CONDITIONS[r.condition](r.value)),
      sv("line", { x1: from, x2: to, y1: y, y2: y, class: "span" }), sv("circle", { cx: x(r.mean), cy: y, r: 3.6 }),
      sv("text", { class: "tiny", x: wide, y: y + 3.5, "text-anchor": "end" }, nice(r.mean)));
  });
  const tall = 10 + rows.length * gap;
  return el("div", { class: "card", id: "card" }, el("h3", {}, "Robustness"),
    sv("svg",
      {
        class: "robust", viewBox: `0 0 ${wide} ${tall}`, role: "img",
        "aria-label": "Return under noise, delay, other mass and friction",
      },
      sv("line", { x1: x(nominal.mean), x2: x(nominal.mean), y1: 0, y2: tall - 8, class: "nominal" }), lines),
    el("p", { class: "small soft tight" },
      `Mean return of ${nominal.episodes} episodes each; the line is the unchanged ` +
        `environment (${nice(nominal.mean)}). Red: worse by over 1\u202f% and two standard errors.`));
}
function whoCard() {
  const main = byShare.filter((m) => R.usage.share[m] >= RARE);
  const top = R.usage.share[byShare[0]],
    rows = main.slice(0, 8).map((m) =>
      el("div", { class: "who-row", style: paint(m) }, chip(m),
        el("div", { class: "share" }, el("i", { style: { width: (100 * R.usage.share[m]) / top + "%" } })),
        el("span", { class: "num r" }, percent(R.usage.share[m]))));
  return el("div", { class: "card" }, el("h3", {}, "Who acts how often"), rows, main.length < M
      ? el("p", { class: "small soft tight" }, `The other ${M - main.length} act in under 1 % of steps or never.`)
      : null);
}
