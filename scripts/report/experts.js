/* The experts' equations, their switches and all weights. */

/* ---------- the experts ---------- */
const sizes = (w) => (Math.abs(w) >= 1 || w === 0 ? Math.abs(w).toFixed(1) : Math.abs(w).toPrecision(2));
// the equations are those of report.json, which have been driven as they are printed
function ranked(equation, rank) {
  const varying = equation.terms.filter((t) => t.obs !== null),
    constant = equation.terms.filter((t) => t.obs === null);
  const order = (a, b) => (rank === "order" ? a.obs - b.obs : Math.abs(b[rank]) - Math.abs(a[rank]));
  return [...varying.sort(order), ...constant];
}
function spelled(terms, form, space) {
  if (!terms.length) return "0";
  const sign = (t, i) => (i ? (t.weight < 0 ? " - " : " + ") : t.weight < 0 ? "-" : "");
  return terms
    .map((t, i) => sign(t, i) + sizes(t.weight) + (t.obs === null ? "" : space + OBS[t.obs][form]))
    .join("");
}
function drivenText() {
  const d = R.as_printed, short = (v) => v.toFixed(Math.abs(v) >= 100 ? 0 : 1);
  return (
    `as printed: ${short(d.printed)} of ${short(d.real)} (doing nothing: ${short(d.nothing)}); mean return of ` +
    `${d.episodes} episodes, seeds ${d.first_seed} to ${d.first_seed + d.episodes - 1}; ` +
    `${d.numbers} numbers, those of ${d.source}`);
}
function allEquations(form, rank) {
  const plain = form === "text", name = plain ? "text" : "latex", space = plain ? " " : " \\, ";
  const near = plain ? " \u2248 " : " \\approx ", dollar = plain ? "" : "$", comment = form === "latex" ? "% " : "";
  const end = { text: "", markdown: "  ", latex: " \\\\" }[form];
  const top = [drivenText(), R.how_it_acts[1]].map((l) => comment + l).join("\n");
  return (
    top +
    "\n" +
    R.equations
      .map((e, m) => {
        const lines = [[plain ? `S_${m + 1}` : `S_{${m + 1}}`, e.score],
          ...ACT.map((a, i) => [a[name], e.torques[i]])];
        const titles = {
          text: `Expert ${m + 1}`, markdown: `### Expert ${m + 1}\n`, latex: `\\paragraph{Expert ${m + 1}}`,
        };
        return (
          titles[form] +
          "\n" +
          lines
            .map(([s, eq]) =>
                `${plain ? "  " : ""}${dollar}${s}${near}${spelled(ranked(eq, rank), name, space)}${dollar}${end}`)
            .join("\n"));
      })
      .join("\n\n") +
    "\n");
}
const score = (m) => ({ text: `S_${m + 1}`, description: `score of Expert ${m + 1}` });

function outputBar(m, a) {
  const w = R.at_work[m];
  if (!w) return el("span", {});
  const at = (v) => 50 + (50 * (v - P.action_bias[a])) / P.action_scale[a];
  const text =
    `${ACT[a].text}: mean ${nice(w.torque_mean[a])}, middle 80 % from ${nice(w.torque_low[a])} to ` +
    `${nice(w.torque_high[a])}, at its limit in ${percent(w.saturated[a])} of these states`;
  const wide = Math.max(1.5, at(w.torque_high[a]) - at(w.torque_low[a]));
  return el("div", { class: "track out", role: "img", "aria-label": text, title: text }, el("u"),
    el("i", { style: { left: at(w.torque_low[a]) + "%", width: wide + "%" } }),
    el("b", { style: { left: at(w.torque_mean[a]) + "%" } }));
}
function expertsSection() {
  let rank = R.rank;
  let printing = false;
  const redraws = [], FOLDED = 3;
  const line = (name, equation, m, row) => {
    const terms = el("div", { class: "terms" });
    let open = false;
    const draw = () => {
      const all = ranked(equation, rank), varying = all.filter((t) => t.obs !== null);
      const top = largest(varying.map((t) => t.effect)),
        folded = open || printing || varying.length < FOLDED + 2 ? 0 : varying.length - FOLDED;
      const shown = folded ? [...varying.slice(0, FOLDED), ...all.filter((t) => t.obs === null)] : all;
      const sign = (t, i) => (i ? (t.weight < 0 ? "\u2212\u2009" : "+\u2009") : t.weight < 0 ? "\u2212" : "");
      clear(terms,
        shown.map((t, i) =>
          el("span",
            {
              class: "term" + (top && Math.abs(t.effect) >= 0.5 * top ? " big" : ""),
              title: t.obs === null ? "constant" : `${OBS[t.obs].description}; effect size ${signed(t.effect)}`,
            },
            el("span", { class: "num" }, sign(t, i) + sizes(t.weight),
              t.obs === null ? null : ["\u2009", sym(OBS[t.obs])]),
            el("small", {}, t.obs === null ? "const." : signed(t.effect)))),
        all.length ? null : el("span", {}, "0"), folded
          ? el("button",
              {
                type: "button", class: "link small", "aria-label": `Show ${folded} smaller terms`,
                onclick: () => {
                  open = true;
                  draw();
                },
              },
              `+\u2009${folded}`)
          : null);
    };
    redraws.push(draw);
    draw();
    return el("div", { class: "eq", "data-eq": `${m} ${row}` }, sym(name), "\u2248", terms,
      row ? outputBar(m, row - 1) : el("span"));
  };
  // the counts of a sentence in short; the whole of it where the pointer rests
  const short = (text) => text.replace(/\d+ of (?:its|the other) \d+ states \((\d+%)\)/g, "$1")
    .replace(/so in (\d+%), and in (\d+%)/, "so in $1 of its states and in $2 of the others");
  // what stands on top of the page is not said again here
  const onTop = (m) => R.summary.some((s) => new RegExp(`Expert ${m + 1} \\([^)]*\\) acts mostly`).test(s));
  const said = (m) => {
    const mine = R.sentences.filter((s) => s.expert === m + 1), signs = mine.filter((s) => /sign of/.test(s.text));
    const shown = [...(onTop(m) ? [] : mine.slice(0, 1)), ...signs.slice(0, 2)];
    return shown.length
      ? el("p", { class: "small tight", title: shown.map((s) => s.text).join(" ") },
          rich(shown.map((s) => short(s.text)).join(" "), R.names, expert))
      : null;
  };
  const inside = (m) => [said(m), line(score(m), R.equations[m].score, m, 0),
    ACT.map((a, i) => line(a, R.equations[m].torques[i], m, i + 1))];
  const usage = (m) => {
    const dwell = R.usage.dwell[m], printed = R.as_printed.share[m];
    return (dwell ? `${percent(R.usage.share[m])} of steps, ${nice(dwell.mean)} at a time` : "never active") +
      (R.as_printed.source === R.actor.file ? "" : `; as printed ${printed ? percent(printed) : "never"}`);
  };
  const card = (m) =>
    el("article", { class: "card expert", style: paint(m), id: `expert-${m + 1}` },
      el("header", {}, el("h3", {}, expert(m)), el("span", { class: "small soft" }, usage(m)), R.at_work[m]
          ? el("button", { type: "button", class: "link small", onclick: () => showTypical(m) }, "show it")
          : null),
      inside(m));
  const rare = (m) => {
    const box = el("details", { class: "card expert", style: paint(m), id: `expert-${m + 1}` },
      el("summary", {}, expert(m), el("span", { class: "small soft" }, ` ${usage(m)}`)));
    box.addEventListener("toggle", () => {
      if (box.open && box.children.length === 1) put(box, {}, inside(m));
    });
    return box;
  };
  const main = byShare.filter((m, k) => R.usage.share[m] >= RARE && k < 8),
    others = byShare.filter((m) => !main.includes(m));
  const same = (list) => (list.every((s) => s === list[0]) ? nice(list[0]) : `(${list.map(nice).join(", ")})`);
  const ranks = [["effect", "by effect size"], ["weight", "by weight"], ["order", "as observed"]];
  for (const when of ["beforeprint", "afterprint"])  // paper can't be clicked: all terms
    addEventListener(when, () => {
      printing = when === "beforeprint";
      for (const f of redraws) f();
    });
  return el("section", { id: "experts", "aria-labelledby": "h-experts" },
    el("h2", { id: "h-experts" }, "The experts"),
    el("p", { class: "lede" }, el("strong", { id: "driven" }, minus(drivenText().replace(/^a/, "A")) + ". "),
      `Every command passes a tanh: action = ${same(P.action_scale)} \u00b7 tanh(command) + ${same(P.action_bias)}. ` +
        "Under each term its effect size, weight times spread; the bar is the middle 80 % of the output where the " +
        "expert acts, its mark the mean.",
    ),
    el("div", { class: "controls" },
      segmented("Order of terms", ranks, rank, (k) => {
        rank = k;
        for (const f of redraws) f();
      }),
      copyButton("Copy text", () => allEquations("text", rank)),
      copyButton("Copy LaTeX", () => allEquations("latex", rank)),
      copyButton("Copy Markdown", () => allEquations("markdown", rank))),
    el("div", { class: "grid even experts" }, main.map(card)),
    el("div", { class: "grid even rare" }, others.map(rare)));
}

/* ---------- switches ---------- */
function matrix() {
  const T = R.usage.transitions, shown = T.map((_, m) => m).filter((m) => R.usage.share[m] > 0), n = shown.length;
  if (n < 2) return el("p", { class: "small soft" }, "One expert acts throughout, so there are no switches.");
  const cell = Math.max(17, Math.min(40, Math.floor(360 / n))), pad = 34, size = pad + n * cell + 2;
  const svg = sv("svg", {
    class: "matrix", viewBox: `0 0 ${size} ${size}`, width: size, height: size, role: "img",
    "aria-label": "Switches between experts: rows are left, columns entered. The counts are in report.json.",
  });
  const jump = (i, j) => R.jumps.pairs.find((p) => p.from === i + 1 && p.to === j + 1);
  shown.forEach((i, r) => {
    const away = sum(T[i]) - T[i][i];
    for (const [x, y] of [[pad + r * cell + cell / 2, pad - 12], [pad - 16, pad + r * cell + cell / 2],
    ]) {
      svg.append(sv("rect", { x: x - 9, y: y - 8, width: 18, height: 16, rx: 3, fill: COLOUR[i].c }),
        sv("text",
          { x, y: y + 4, "text-anchor": "middle", style: { font: "650 11px var(--sans)", fill: COLOUR[i].t } },
          String(i + 1)));
    }
    shown.forEach((j, c) => {
      const share = i === j || !away ? 0 : T[i][j] / away, x = pad + c * cell, y = pad + r * cell, found = jump(i, j);
      const title =
        i === j
          ? `Expert ${i + 1} stays: ${T[i][i]} steps`
          : `Expert ${i + 1} to ${j + 1}: ${T[i][j]} of ${away} switches` +
            (found
              ? `; the action jumps by ${percent(found.mean)} of its range, at most ${percent(found.largest)}`
              : "");
      const fill =
        i === j ? "transparent" : `color-mix(in oklab, var(--accent) ${(100 * share).toFixed(0)}%, var(--well))`;
      svg.append(sv("rect", { x, y, width: cell - 1, height: cell - 1, style: { fill } }, sv("title", {}, title)));
      if (i === j)
        svg.append(sv("line", { x1: x + 4, y1: y + cell - 5, x2: x + cell - 5, y2: y + 4, stroke: "var(--rule)" }));
      else if (cell >= 26 && share >= 0.005) {
        const style = {
          font: "11px var(--sans)", fill: share > 0.55 ? "var(--card)" : "var(--ink)", "pointer-events": "none",
        };
        svg.append(sv("text",
            { x: x + cell / 2 - 0.5, y: y + cell / 2 + 4, "text-anchor": "middle", style }, (100 * share).toFixed(0)),
        );
      }
    });
  });
  return svg;
}
function usageSection() {
  if (M < 2) return null;
  const J = R.jumps,
    kinds = [["at switches", J.switching], ["without a switch", J.staying],
    ].filter((k) => k[1]);
  const rows = [...J.pairs].sort((a, b) => b.count * b.mean - a.count * a.mean).slice(0, 7);
  const jumpRow = (label, p) =>
    el("tr", {}, el("td", {}, label), el("td", { class: "r num" }, group(p.count)),
      el("td", { class: "r num" }, percent(p.mean)), el("td", { class: "r num" }, percent(p.largest)));
  return el("section", { id: "usage", "aria-labelledby": "h-usage" }, el("h2", { id: "h-usage" }, "Switches"),
    el("div", { class: "grid even" },
      el("div", { class: "card" }, el("h3", {}, "Where a switch leads"), matrix(),
        el("p", { class: "small soft tight" },
          `From the row\u2019s expert to the column\u2019s, in per cent of the row\u2019s switches.`)),
      el("div", { class: "card" }, el("h3", {}, "How hard the action jumps"),
        el("div", { class: "scroll" },
          el("table", { id: "jumps" }, head(["", "count", "mean jump", "largest"]),
            el("tbody", {}, kinds.map(([k, p]) => jumpRow(k, p)),
              rows.map((p) => jumpRow([chip(p.from - 1), " \u2192 ", chip(p.to - 1)], p))))),
        el("p", { class: "small soft tight" },
          "Change of the action from one step to the next, of the actuator that moves most, in " +
            "per cent of its whole range. Single pairs by their part in all jumps."))));
}

/* ---------- weights ---------- */
const percentOf = (x, limit) => (100 * Math.min(1, Math.abs(x) / limit)).toFixed(1);
const heat = (x, limit) =>
  `color-mix(in oklab, var(${x < 0 ? "--neg" : "--pos"}) ${percentOf(x, limit)}%, var(--mid))`;
function weightsPanel() {
  let measure = R.rank === "weight" ? "weight" : "effect", allObs = N <= MANY, allExperts = M <= 12, mark = null;
  const panels = el("div", {
    class: "panels", tabindex: 0, role: "application", "aria-label": "Weights, cell by cell: arrow keys move",
  });
  const readout = el("p", { class: "readout soft", "aria-live": "polite" },
    "Point at a cell to read it, or walk with the arrow keys.");
  const low = el("span"), high = el("span");
  const weight = (m, c, k) =>
    (c ? P.mean_weight[m][c - 1][k] : P.router_weight[m][k]) * (measure === "weight" ? 1 : SPREAD[k]);
  function draw() {
    const all = P.router_weight.flatMap((_, m) =>
      Array.from({ length: A + 1 }, (_, c) => OBS.map((_, k) => weight(m, c, k))).flat());
    const limit = Math.max(1e-9, quantile(all, 0.99));
    low.textContent = "\u2264 " + nice(-limit);
    high.textContent = "\u2265 " + nice(limit);
    const rows = allObs ? OBS.map((_, k) => k) : byMatter.slice(0, FEW).sort((a, b) => a - b);
    const experts = allExperts ? R.usage.share.map((_, m) => m) : byShare.slice(0, 12).sort((a, b) => a - b);
    const left =
      8 +
      Math.max(...OBS.map((o) => {
          const f = SHAPE.exec(o.text);
          return f ? (f[1] ? 26 : 0) + 12 + 5.5 * f[3].length : 6.5 * o.text.length;
        }));
    const turned = ACT.some((a) => a.text.length > 4) || A > 3, tall = 17;
    const top = turned ? Math.max(...ACT.map((a) => Math.min(70, 6.4 * a.text.length))) + 10 : 18;
    // As few rows of panels as cells of 15 pixels allow; only the first panel of a row carries the names.
    const room = (panels.clientWidth || 1132) - left - 1, need = Math.max(76, 15 * (A + 1) + 3) + 14;
    const perRow = Math.max(1, Math.min(experts.length, Math.floor((room + 14) / need)));
    const columns = Math.ceil(experts.length / Math.ceil(experts.length / perRow));
    const cell = Math.max(15, Math.min(A > 3 ? 26 : 38, Math.floor(((room + 14) / columns - 17) / (A + 1))));
    clear(panels,
      experts.map((m, n) => {
        const names = n % columns === 0, at = names ? left : 0, width = at + Math.max(60, (A + 1) * cell + 3);
        const height = top + rows.length * tall + 1;
        const svg = sv("svg", {
          width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
          "aria-label": `${measure === "weight" ? "Weights" : "Effect sizes"} of Expert ${m + 1}`,
        });
        [score(m), ...ACT].forEach((name, c) => {
          const x = at + c * cell + (c ? 3 : 0) + cell / 2;
          svg.append(symSvg(name,
              turned
                ? { transform: `translate(${x + 4} ${top - 6}) rotate(-90)` }
                : { x, y: top - 6, "text-anchor": "middle" }));
        });
        rows.forEach((k, r) => {
          if (names)
            svg.append(symSvg(OBS[k], { x: left - 6, y: top + r * tall + tall / 2 + 3.5, "text-anchor": "end" }));
          for (let c = 0; c <= A; c++) {
            svg.append(sv("rect", {
                x: at + c * cell + (c ? 3 : 0), y: top + r * tall, width: cell - 1, height: tall - 1,
                style: { fill: heat(weight(m, c, k), limit) }, "data-cell": `${m} ${c} ${k}`,
              }));
          }
        });
        return el("div", { class: "panel" },
          el("h3", { style: { "padding-left": at + "px" } }, chip(m),
            el("span", { class: "soft" }, R.usage.share[m] ? percent(R.usage.share[m]) : "unused")),
          svg);
      }));
  }
  let width = 0;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) > 2 && entry.contentRect.width) {
      width = entry.contentRect.width;
      draw();
    }
  }).observe(panels);
  const read = (rect) => {
    const [m, c, k] = rect.dataset.cell.split(" ").map(Number),
      w = c ? P.mean_weight[m][c - 1][k] : P.router_weight[m][k];
    clear(readout, `Expert ${m + 1}: `, sym(c ? ACT[c - 1] : score(m)), " \u2190 ", sym(OBS[k]),
      ` (${OBS[k].description}): weight ${fixed(w, 3)}, effect size ${fixed(w * SPREAD[k], 3)}`);
    if (mark) mark.classList.remove("mark");
    mark = rect;
    rect.classList.add("mark");
  };
  panels.addEventListener("pointerover", (event) => {
    if (event.target.dataset && event.target.dataset.cell) read(event.target);
  });
  panels.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const [across, down] = moves[event.key] || [0, 0];
    if (!across && !down) return;
    event.preventDefault();
    const cells = [...panels.querySelectorAll("rect")], at = Math.max(0, cells.indexOf(mark));
    const per = (A + 1) * (allObs ? N : FEW),
      column = at % (A + 1), inside = column + across >= 0 && column + across <= A;
    const next = down ? at + down * (A + 1) : inside ? at + across : at + across * per - across * A;
    if (cells[next] && (across || Math.floor(next / per) === Math.floor(at / per))) read(cells[next]);
  });
  const some = [["few", `${FEW} observations that matter most`], ["all", `all ${N}`]];
  const toggles = [N > MANY
      ? segmented("Observations shown", some, "few", (k) => {
          allObs = k === "all";
          draw();
        })
      : null,
    M > 12
      ? segmented("Experts shown",
          [["few", "12 experts used most"], ["all", `all ${M}`]], "few",
          (k) => {
            allExperts = k === "all";
            draw();
          })
      : null];
  draw();
  return el("details", { id: "weights", class: "card" }, el("summary", {}, el("h3", {}, "All weights as a picture")),
    el("div", { class: "controls" },
      segmented("Colour by", [["effect", "effect size"], ["weight", "weight"]], measure,
        (k) => {
          measure = k;
          draw();
        }),
      toggles, el("span", { class: "legend" }, low, el("span", { class: "ramp" }), high)),
    panels, readout);
}
