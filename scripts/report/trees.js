/* The trees that distill_trees.py left. */

function drawTree(nodes, colour) {
  const gap = 27, step = 128, box = 92, items = [], lines = [];
  let leaves = 0, deepest = 0;
  const place = (id, depth) => {
    const node = nodes[id];
    deepest = Math.max(deepest, depth);
    let y = leaves * gap + 16;
    if (node.left === undefined) leaves += 1;
    else {
      const a = place(node.left, depth + 1), b = place(node.right, depth + 1);
      y = (a + b) / 2;
      lines.push([depth * step, y, a, "yes"], [depth * step, y, b, "no"]);
    }
    items.push({ node, x: depth * step, y });
    return y;
  };
  place(0, 0);
  const width = deepest * step + 104, height = leaves * gap + 6;
  const svg = sv("svg", {
    viewBox: `0 0 ${width} ${height}`, style: { "max-width": width + "px" }, role: "img",
    "aria-label": "Decision tree",
  });
  for (const [x, y, to, word] of lines) {
    const end = x + step;
    svg.append(
      sv("path", { d: `M${x + box},${y} C${x + box + 20},${y} ${end - 22},${to} ${end - 4},${to}`, class: "branch" }),
      sv("text", { class: "tiny", x: end - 7, y: to - 4, "text-anchor": "end" }, word));
  }
  for (const { node, x, y } of items) {
    if (node.left !== undefined) {
      const name = OBS[node.feature], label = symSvg(name, { x: x + 5, y: y + 4 });
      label.append(sv("tspan",
          { dy: SHAPE.test(name.text) ? -3 : 0, style: { font: "11.5px var(--sans)" } },
          ` \u2264 ${nice(node.threshold)}`));
      svg.append(sv("rect", { x, y: y - 11, width: box, height: 22, rx: 5, class: "node" }), label);
      continue;
    }
    svg.append(sv("rect", { x, y: y - 9, width: 60, height: 18, rx: 4, fill: "var(--well)" }),
      sv("rect", {
        x, y: y - 9, width: Math.max(0, 60 * node.probability), height: 18, rx: 4, fill: COLOUR[colour].c,
      }),
      sv("text", { x: x + 66, y: y + 4, class: "leaf" }, node.probability.toFixed(2)));
  }
  return svg;
}
function depthCurve(F) {
  const w = 420, h = 150, left = 38, bottom = 30, curve = F.curve;
  const x = (d) => left + ((w - left - 12) * (d - 1)) / Math.max(1, curve.length - 1),
    y = (v) => 8 + (h - 8 - bottom) * (1 - v);
  const path = (key) => curve.map((r) => `${x(r.depth)},${y(r[key])}`).join(" ");
  return sv("svg",
    { class: "plot", viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": "Fidelity over the depth of the trees" },
    [0, 0.5, 1]
      .map((v) => [sv("line", { x1: left, x2: w - 12, y1: y(v), y2: y(v), class: "gridline" }),
        sv("text", { class: "tiny", x: left - 6, y: y(v) + 3, "text-anchor": "end" }, `${100 * v} %`)])
      .flat(),
    sv("line", { x1: left, x2: w - 12, y1: y(F.majority_fidelity), y2: y(F.majority_fidelity), class: "level" }),
    sv("polyline", {
      points: path("multiclass_fidelity"), fill: "none", stroke: "var(--soft)", "stroke-dasharray": "5 3",
    }),
    sv("polyline", { points: path("joint_fidelity"), fill: "none", stroke: "var(--accent)", "stroke-width": 2.2 }),
    curve
      .map((r) => [sv("circle",
          { cx: x(r.depth), cy: y(r.joint_fidelity), r: r.depth === F.max_depth ? 5 : 2.6, fill: "var(--accent)" },
          sv("title", {}, `depth ${r.depth}: ${percent(r.joint_fidelity)}`)),
        sv("text", { class: "tiny", x: x(r.depth), y: h - bottom + 14, "text-anchor": "middle" }, String(r.depth))])
      .flat(),
    sv("text", { class: "tiny", x: (left + w) / 2, y: h - 3, "text-anchor": "middle" }, "depth"));
}
function treesSection() {
  const T = R.trees, title = el("h2", { id: "h-trees" }, "Trees");
  if (!T) {
    return el("section", { id: "trees", "aria-labelledby": "h-trees" }, title,
      el("p", { class: "lede" }, "No distilled trees lie beside this actor. ",
        el("code", {}, "python distill_trees.py PATH"), " makes them."));
  }
  const F = T.fidelity, loop = F && F.closed_loop, cost = loop && loop.difference;
  const list = F
    ? [["Agree with the router", percent(F.joint_fidelity), `of held-out states at depth ${F.max_depth}`],
        loop
          ? ["Return, trees as router",
              `${nice(loop.trees.mean)} \u00b1 ${nice(loop.trees.std)}`, `over ${loop.episodes} episodes`]
          : null,
        loop
          ? ["Return, linear router",
              `${nice(loop.router.mean)} \u00b1 ${nice(loop.router.std)}`, "the same episode seeds"]
          : null,
        loop
          ? ["Difference",
              signedNice(cost.mean),
              cost.interval_95 ? `95 %: ${nice(cost.interval_95[0])} to ${nice(cost.interval_95[1])}` : "paired"]
          : null,
      ].filter(Boolean)
    : [];
  const shown = byShare.map((m) => T.experts.find((t) => t.expert === m + 1)).filter((t) => t && !t.never);
  const dead = T.experts.filter((t) => t.never).map((t) => String(t.expert));
  const card = (t) => {
    const f = F && F.experts.find((e) => e.expert === t.expert);
    return el("div", { class: "card" },
      el("h3", {}, expert(t.expert - 1),
        el("span", { class: "small soft" }, ` ${percent(t.share)} of the states` +
            (f && f.f1 !== null && f.f1 !== undefined ? `, F1 ${f.f1.toFixed(2)}` : ""))),
      el("div", { class: "scroll" }, drawTree(t.nodes, t.expert - 1)));
  };
  const trees = el("details", { id: "alltrees" }, el("summary", {}, `The ${shown.length} trees`));
  trees.addEventListener("toggle", () => {
    if (trees.children.length === 1) trees.append(el("div", { class: "grid even tree" }, shown.map(card)));
  });
  return el("section", { id: "trees", "aria-labelledby": "h-trees" }, title,
    el("p", { class: "lede" },
      "One small decision tree for each expert, distilled from the router; the expert whose leaf says most acts. " +
        "Unlike everything above, trees are approximations.",
      T.stale ? el("strong", {}, " These were distilled from another actor than the one shown here.") : null,
      dead.length ? ` Without a state to learn from: Expert ${dead.join(", ")}.` : null),
    el("div", { class: "grid treetop" }, F ? facts(list) : null, F && F.curve && F.curve.length > 1
        ? el("div",
            { class: "card" }, depthCurve(F),
            el("p", { class: "small soft tight" },
              `Agreement with the router. Solid: the ${M} trees; dashed: one tree for all; ` +
                "dotted: always the commonest expert."))
        : null),
    trees);
}
