/* The report of one policy: its data, its arithmetic, and the state that is shown. */

const R = DATA;
const OBS = R.names.obs, ACT = R.names.action, N = OBS.length, A = ACT.length, M = R.policy.n_experts;
// The saved numbers are float32: rounding to it undoes the decimal spelling, so the page computes with the same bits.
const exact = (x) => (Array.isArray(x) ? x.map(exact) : Math.fround(x));
const P = { ...R.policy };
for (const key of ["router_weight", "router_bias", "mean_weight", "mean_bias", "action_scale", "action_bias"]) {
  P[key] = exact(P[key]);
}
const SPREAD = R.states.obs_spread, ONES = SPREAD.map(() => 1), SECONDS = R.seconds_per_step;
const mixes = P.top_k > 1 || P.gate === "softmax";
const ACTS = mixes ? "leads" : "acts";
const replay = R.episodes.filter((e) => e.observations);
for (const e of replay) e.observations = e.observations.map(exact);
const COLOUR = coloursOf(R.colours, M);
const { paint, chip, expert } = expertsDrawn(COLOUR);
const MANY = 30, FEW = 20, RARE = 0.01;
const byShare = R.usage.share.map((_, m) => m).sort((a, b) => R.usage.share[b] - R.usage.share[a] || a - b);
const torqueWord = ACT.every((a) => a.text.startsWith("\u03c4")) ? "Torques" : "Actions";

/* ---------- the policy ---------- */
function dot(a, b) {
  let s = 0;
  for (let i = 0; i < a.length; i++) s += a[i] * b[i];
  return s;
}
function think(state) {
  const scores = P.router_weight.map((w, m) => dot(w, state) + P.router_bias[m]);
  const order = scores.map((_, m) => m).sort((a, b) => scores[b] - scores[a] || a - b);
  const odds = scores.map((z) => Math.exp(z - scores[order[0]])), total = sum(odds);
  const gates = scores.map(() => 0), chosen = order.slice(0, P.top_k);
  for (const m of chosen) gates[m] = odds[m] / total;
  if (P.gate === "one-hot") {
    const all = sum(chosen.map((m) => gates[m]));
    for (const m of chosen) gates[m] /= all;
  }
  const commands = ACT.map((_, a) =>
    sum(chosen.map((m) => gates[m] * (dot(P.mean_weight[m][a], state) + P.mean_bias[m][a]))));
  const torques = commands.map((u, a) => P.action_scale[a] * Math.tanh(u) + P.action_bias[a]);
  return { scores, order, winner: order[0], gates, commands, torques };
}
// The tie of experts i and j is a hyperplane: its nearest point is a projection, in the metric that unit sets.
function smallestChange(state, i, j, unit) {
  const row = P.router_weight[i].map((w, k) => (w - P.router_weight[j][k]) * unit[k]);
  const squared = dot(row, row);
  const parts = P.router_weight[i].map((w, k) => (w - P.router_weight[j][k]) * state[k]);
  const margin = sum(parts) + P.router_bias[i] - P.router_bias[j];
  if (squared === 0) return { distance: Infinity, change: null, margin };
  const change = row.map((r, k) => (-margin / squared) * r * unit[k]);
  return { distance: Math.abs(margin) / Math.sqrt(squared), change, margin };
}
function switches(state, winner, unit) {
  const all = [];
  for (let j = 0; j < M; j++) if (j !== winner) all.push({ other: j, ...smallestChange(state, winner, j, unit) });
  return all.sort((a, b) => a.distance - b.distance || a.other - b.other);
}
// Which expert wins as one observation moves and all others stay: the upper envelope of M lines, exact.
function envelope(scores, k, value, low, high) {
  const slope = (m) => P.router_weight[m][k], at = (m, v) => scores[m] + slope(m) * (v - value);
  let v = low, now = 0;
  for (let m = 1; m < M; m++) {
    const d = at(m, v) - at(now, v);
    if (d > 1e-12 || (Math.abs(d) <= 1e-12 && slope(m) > slope(now))) now = m;
  }
  const parts = [];
  for (let guard = 0; guard < M; guard++) {
    let end = high, next = -1;
    for (let m = 0; m < M; m++) {
      const steeper = slope(m) - slope(now);
      if (steeper <= 0) continue;
      const cross = v + (at(now, v) - at(m, v)) / steeper;
      if (cross < end || (cross === end && next >= 0 && slope(m) > slope(next))) {
        end = Math.max(v, cross);
        next = m;
      }
    }
    parts.push({ expert: now, from: v, to: end });
    if (next < 0) break;
    now = next;
    v = end;
  }
  return parts.filter((p) => p.to > p.from);
}
// How much an observation matters at all: its largest effect on a score (against the average expert) or a command.
const average = OBS.map((_, k) => sum(P.router_weight.map((w) => w[k])) / M);
const matter = OBS.map((_, k) =>
    SPREAD[k] *
    (largest(P.router_weight.map((w) => w[k] - average[k])) + 0.5 * largest(P.mean_weight.flat().map((w) => w[k]))));
const byMatter = OBS.map((_, k) => k).sort((a, b) => matter[b] - matter[a] || a - b);

/* ---------- the state that is shown ---------- */
const live = { episode: 0, step: 0, metric: "spread", rival: null, moved: false, playing: false };
const listeners = [], whatIf = [];
const unit = () => (live.metric === "spread" ? SPREAD : ONES);
function update() {
  live.now = think(live.state);
  live.pairs = switches(live.state, live.now.winner, unit());
  for (const f of listeners) f();
  // while a recording plays, what nobody looks at need not follow
  const box = live.playing ? document.getElementById("answers").getBoundingClientRect() : null;
  if (!box || (box.top < innerHeight && box.bottom > 0)) for (const f of whatIf) f();
}
function setState(values) {
  live.state = Array.from(values);
  live.moved = live.state.some((v, k) => v !== live.origin[k]);
  update();
}
function moveTo(episode, step) {
  live.episode = episode;
  live.step = Math.max(0, Math.min(step, replay[episode].observations.length - 1));
  live.origin = replay[episode].observations[live.step].slice();
  live.state = live.origin.slice();
  live.moved = false;
  update();
}
// The recorded step nearest to what an expert typically sees, among those in which it acts if there are any.
function typical(m) {
  const wanted = R.at_work[m] ? exact(R.at_work[m].state) : replay[0].observations[0];
  let best = { score: Infinity, episode: 0, step: 0 };
  replay.forEach((e, episode) =>
    e.observations.forEach((s, step) => {
      const far = sum(s.map((v, k) => (SPREAD[k] ? ((v - wanted[k]) / SPREAD[k]) ** 2 : 0)));
      const score = far + (e.experts[step] === m + 1 ? 0 : 1e6);
      if (score < best.score) best = { score, episode, step };
    }));
  return best;
}
function showTypical(m) {
  const { episode, step } = typical(m);
  moveTo(episode, step);
  document.getElementById("watch").scrollIntoView();
}
