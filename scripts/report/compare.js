/* Two policies side by side. */

const SIDES = DATA.sides, NAMES = ["A", "B"], STEP = DATA.seconds_per_step || 0.05;
const drawn = SIDES.map((s) => {
  const colours = coloursOf(DATA.colours, s.n_experts);
  return { colours, ...expertsDrawn(colours), figure: s.body ? unpackBody(s.body) : null };
});
const period = (s) => (s.gait.periodic ? `${fixed(s.gait.period, 1)} steps` : "not periodic");
const inUse = (s) => `${s.share.filter((x) => x > 0).length} of ${s.n_experts}`;

function factsTable() {
  const d = DATA.difference,
    rows = [["return", ...SIDES.map((s) => `${nice(s.mean)} \u00b1 ${nice(s.spread)}`)],
      ["episodes that end early", ...SIDES.map((s) => percent(s.failures.share))],
      ["numbers to read", ...SIDES.map((s) => group(s.n_read))], ["experts in use", ...SIDES.map(inUse)],
      ["switches per 100 steps", ...SIDES.map((s) => fixed(s.switches_per_100_steps, 1))],
      ["one cycle", ...SIDES.map(period)],
      ["trained", ...SIDES.map((s) => `${group(s.steps)} steps, seed ${s.seed}`)]];
  const error = d.standard_error === null ? "" : ` \u00b1 ${nice(d.standard_error)} (standard error)`;
  return el("div", { class: "card" },
    el("table", { id: "facts" }, head(["", ...SIDES.map((s, k) => `${NAMES[k]}: ${s.label}`)]),
      el("tbody", {},
        rows.map(([name, ...cells]) =>
          el("tr", {}, el("td", {}, name), cells.map((c) => el("td", { class: "r num" }, c)))))),
    el("p", { class: "small soft tight" },
      `B against A on the same ${many(d.episodes, "episode")}: ${signedNice(d.mean)}${error}.`));
}
function matchTable() {
  const M = DATA.matched,
    rows = M.pairs.map((p) =>
      el("tr", {}, el("td", { class: "num" }, drawn[0].chip(p.a - 1), " \u2194 ", drawn[1].chip(p.b - 1)),
        el("td", { class: "r num" }, percent(SIDES[0].share[p.a - 1])),
        el("td", { class: "r num" }, percent(SIDES[1].share[p.b - 1])),
        el("td", { class: "r num" }, percent(p.overlap)), el("td", { class: "r num" }, percent(p.difference))));
  return el("section", { id: "matched" }, el("h2", {}, "Experts that do the same work"),
    el("p", { class: "lede" },
      `Matched on ${group(M.states)} states that either policy visits: each expert of A with the ` +
        "one of B that acts in the same states. Overlap: of the states in which either acts, those with both. " +
        "The actions there differ by a share of their range; over all states the policies differ by " +
        `${percent(M.difference)}.`),
    el("div", { class: "card scroll" },
      el("table", {}, head(["A \u2194 B", "share in A", "share in B", "overlap", "actions differ by"]),
        el("tbody", {}, rows))));
}
function watchBoth() {
  const players = SIDES.map((s, k) =>
    drawn[k].figure
      ? bodyPlayer(drawn[k].figure, (_, t) => drawn[k].colours[s.experts[t] - 1].c, `Policy ${NAMES[k]}`)
      : null);
  if (!players[0]) return null;
  const last = Math.max(...SIDES.map((s) => s.experts.length)) - 1, live = { step: 0, playing: false };
  const scrub = el("input", {
    type: "range", class: "range", min: 0, max: last, step: 1, id: "scrubber", "aria-label": "Step",
  });
  const captions = SIDES.map(() => el("p", { class: "small soft tight" }));
  const play = el("button", { type: "button", class: "primary", id: "play" }, "Play");
  let began = 0, first = 0;
  const show = (step) => {
    live.step = Math.max(0, Math.min(last, step));
    scrub.value = live.step;
    SIDES.forEach((s, k) => {
      const t = Math.min(live.step, s.experts.length - 1), far = players[k].show(0, t);
      const over = t < live.step ? ", over" : "", m = s.experts[t];
      captions[k].textContent =
        `${NAMES[k]}: step ${t}${over}, Expert ${m} acts, ${far.toFixed(1)} m from the start, ` +
        `reward so far ${nice(sum(s.rewards.slice(0, t + 1)))}`;
    });
  };
  const stop = () => {
    live.playing = false;
    play.textContent = "Play";
  };
  const tick = (now) => {
    if (!live.playing) return;
    show(first + Math.floor((now - began) / 1000 / STEP));
    if (live.step >= last) stop();
    else requestAnimationFrame(tick);
  };
  play.onclick = () => {
    if (live.playing) return stop();
    [began, first, live.playing] = [performance.now(), live.step >= last ? 0 : live.step, true];
    play.textContent = "Pause";
    requestAnimationFrame(tick);
  };
  scrub.oninput = () => {
    stop();
    show(Number(scrub.value));
  };
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, button") && event.target !== scrub) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      stop();
      show(live.step + by * (event.shiftKey ? 10 : 1));
    } else if (event.key === " ") play.click();
    else return;
    event.preventDefault();
  });
  const node = el("section", { id: "watch" }, el("h2", {}, "Watch both"),
    el("div", { class: "grid pair" },
      players.map((p, k) => el("div", { class: "card" }, el("div", { class: "stage" }, p.svg), captions[k]))),
    el("div", { class: "controls both" }, play, scrub,
      el("span", { class: "small soft" }, "\u2190 \u2192 step, space plays")));
  show(Math.min(last, 60));
  window.comparison = { show, live };
  return node;
}
function cycles() {
  const obs = DATA.names.obs;
  return el("section", { id: "gait" }, el("h2", {}, "One cycle of each"),
    el("div", { class: "grid pair" },
      SIDES.map((s, k) => {
        const G = s.gait, { figure, colours, chip } = drawn[k];
        if (!G.periodic)
          return el("div", { class: "card" }, el("h3", {}, NAMES[k]),
            el("p", { class: "small" }, "Nothing is periodic."));
        const poses = figure
          ? el("div",
              { class: "poses" },
              G.poses.map((p) =>
                p.step < s.experts.length
                  ? stillBody(figure, 0, p.step, colours[s.experts[p.step] - 1].c)
                  : el("span")))
          : null;
        const shown = obs
          .map((_, i) => i)
          .sort((a, b) => spanOf(G, b) - spanOf(G, a))
          .slice(0, 6);
        return el("div", { class: "card" }, el("h3", {}, `${NAMES[k]}: ${period(s)}`), poses,
          el("div", { class: "cyclebox" }, cycleBand(G, colours), cycleLabels(G, chip)),
          el("div", { class: "curves" },
            DATA.names.action.map((a, i) => cycleCurve(a, G.actions, i, "var(--accent)")),
            shown.map((i) => cycleCurve(obs[i], G.observations, i, "var(--soft)"))));
      })));
}
const spanOf = (gait, i) => Math.max(...gait.observations.median[i]) - Math.min(...gait.observations.median[i]);

clear(document.getElementById("page"),
  el("header", { class: "top wrap" }, el("p", { class: "eyebrow" }, "SMoSE policies compared"),
    el("h1", {}, DATA.env_id), factsTable()),
  el("main", { class: "wrap" }, watchBoth(), cycles(), matchTable()),
  el("footer", {},
    el("div", { class: "wrap" }, el("p", {}, "Every number of this page is in compare.json beside it."))));
if (window.comparison) window.comparison.show(window.comparison.live.step); // small print knows its size only now
