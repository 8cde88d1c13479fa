/* The page of the report. */

function footer() {
  const settings = Object.entries(R.actor.args), e = R.episodes;
  const versions = [["gate", P.gate], ["top_k", P.top_k], ...Object.entries(R.actor.versions)];
  const table = (list) =>
    el("table", {},
      el("tbody", {},
        list.map(([k, v]) =>
          el("tr", {}, el("td", {}, el("code", {}, k)),
            el("td", { class: "r" }, el("code", {}, v === null ? "\u2014" : String(v)))))));
  return el("footer", {},
    el("div", { class: "wrap" },
      el("p", {},
        `Looked at ${group(R.states.count)} states of ${many(e.length, "episode")} ` +
          `(seeds ${e[0].seed}\u2013${e.at(-1).seed}) of ` +
          "the deterministic policy in ",
        el("code", {}, R.actor.file), ". Beside this file: report.json (every number here), weights.svg, " +
          "weights.png, equations.txt, equations.md, equations.tex."),
      el("details", { class: "small" }, el("summary", {}, "Settings, versions and how to reproduce"),
        el("pre", {}, R.reproduce.join("\n\n")), el("div", { class: "grid even" }, table(settings), table(versions))),
    ));
}
const sections = [["watch", "Watch it", watchSection()], ["gait", "One cycle", gaitSection()],
  ["pushes", "Pushes", pushSection()], ["answers", "What if", whatIfSection()],
  ["experts", "Experts", expertsSection()], ["usage", "Switches", usageSection()], ["trees", "Trees", treesSection()],
].filter((s) => s[2]);
sections.find((s) => s[0] === "experts")[2].append(weightsPanel());
clear(document.getElementById("page"), header(),
  el("nav", { class: "bar", "aria-label": "Sections" },
    el("div", { class: "wrap" },
      el("ul", {}, sections.map(([id, t]) => el("li", {}, el("a", { href: "#" + id }, t)))))),
  el("main", { class: "wrap" }, sections.map((s) => s[2])), footer());
{
  const { episode, step } = typical(byShare[0]);
  moveTo(episode, step);
}
window.smose = {
  report: R, policy: P, live, figure, think, smallestChange, switches, envelope, setState, moveTo, allEquations,
  ranges,
};
