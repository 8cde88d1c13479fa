"use strict";
/* What the report and the comparison share: elements, numbers, colours, symbols, the body and the cycle. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

/* ---------- elements ---------- */
const present = (children) => children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false);

function put(node, attributes, children = []) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style" && typeof value === "object") {
      for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    } else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
}
const el = (tag, attributes, ...children) => put(document.createElement(tag), attributes, children);
const sv = (tag, attributes, ...children) => put(document.createElementNS(SVG, tag), attributes, children);
function clear(node, ...children) {
  node.replaceChildren(...present(children));
  return node;
}

/* ---------- numbers ---------- */
const minus = (text) => text.replace(/-/g, "\u2212");
function fixed(x, digits = 2) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "\u2014";
  return minus((Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits));
}
const signed = (x, digits = 2) => (x > 0 && Number(x.toFixed(digits)) > 0 ? "+" : "") + fixed(x, digits);
const signedNice = (x) => (x > 0 ? "+" : "") + nice(x);
function nice(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "\u2014";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e6) return minus(String(x));
  if (size >= 100) return fixed(x, 0);
  if (size >= 10) return fixed(x, 1);
  if (size >= 0.1) return fixed(x, 2);
  return size >= 0.001 ? fixed(x, 4).replace(/0+$/, "") : minus(x.toExponential(1));
}
const group = (x) => Number(x).toLocaleString("en-US").replace(/,/g, "\u202f");
function percent(x) {
  if (x === 0) return "0\u202f%";
  return x < 0.001 ? "<\u202f0.1\u202f%" : (100 * x).toFixed(x < 0.0995 ? 1 : 0) + "\u202f%";
}
const set = (x) => nice(Number((100 * x).toPrecision(3))) + "\u202f%"; // a share that was chosen, not measured
const many = (n, word) => `${group(n)} ${word}${n === 1 ? "" : /ch$/.test(word) ? "es" : "s"}`;
const listed = (items) => items.flatMap((x, i) => (i === 0 ? [x] : [i === items.length - 1 ? " and " : ", ", x]));
const largest = (list) => list.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
const sum = (list) => list.reduce((a, b) => a + b, 0);
function quantile(list, q) {
  const sorted = list.map(Math.abs).sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] || 1e-9;
}
function niceStep(span) {
  const power = 10 ** Math.floor(Math.log10(span));
  return power * [1, 2, 5, 10].find((f) => f * power >= span);
}

/* ---------- colours and symbols ---------- */
// Okabe and Ito's colours; further rounds of eight are darker, lighter, darkest. Numbers always accompany them.
const SHADES = [[0, 0], [0, 0.42], [255, 0.52], [0, 0.68]];
function coloursOf(palette, n) {
  return Array.from({ length: Math.max(n, 1) }, (_, m) => {
    const rgb = [1, 3, 5].map((k) => parseInt(palette[m % 8].slice(k, k + 2), 16));
    const [to, share] = SHADES[Math.floor(m / 8) % 4];
    const mixed = rgb.map((c) => Math.round(c + (to - c) * share));
    const light = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2];
    return { c: `rgb(${mixed.join(" ")})`, t: light > 128 ? "#111" : "#fff" };
  });
}
function expertsDrawn(colours) {
  const paint = (m) => ({ "--c": colours[m].c, "--t": colours[m].t });
  return {
    paint, chip: (m) =>
      el("span", { class: "chip", style: paint(m), role: "img", "aria-label": `Expert ${m + 1}` }, String(m + 1)),
    expert: (m) => el("span", { class: "chip long", style: paint(m) }, `Expert ${m + 1}`),
  };
}

const SHAPE = /^(?:(cos|sin|tan|log|exp)\s)?(\S{1,2})_([A-Za-z0-9]+)$/u;
function sym(name) {
  const found = SHAPE.exec(name.text);
  if (!found) {
    return el("span", { class: name.text.length < 3 ? "sym" : "sym raw", title: name.description }, name.text);
  }
  const upright = found[3] === "T" ? { style: { "font-style": "normal" } } : {};
  return el("span", { class: "sym", title: name.description },
    found[1] ? el("span", { class: "fn" }, found[1] + "\u2009") : null, found[2], el("sub", upright, found[3]));
}
function symSvg(name, attributes) {
  const found = SHAPE.exec(name.text), title = sv("title", {}, name.description);
  if (!found) {
    const family = name.text.length < 3 ? "" : "var(--mono)";
    const style = { "font-size": "10.5px", "font-family": family };
    return sv("text", { class: "lab", ...attributes, style }, title, name.text);
  }
  return sv("text", { class: "lab", ...attributes }, title, found[1] ? sv("tspan", {}, found[1] + "\u2009") : null,
    sv("tspan", { "font-style": "italic" }, found[2]),
    sv("tspan", { dy: 3, "font-size": "72%", "font-style": "italic" }, found[3]));
}
// A sentence with its experts as chips and its observations as symbols, and numbers as the page writes them.
function rich(said, names, expert) {
  const text = said.replace(/(?<=^|[\s(])-(?=\d)/g, "\u2212").replace(/(\d)%/g, "$1\u202f%");
  const known = [...names.obs, ...names.action].filter((o) => SHAPE.test(o.text));
  known.sort((a, b) => b.text.length - a.text.length);
  const quoted = known.map((o) => o.text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const parts = ["Expert (\\d+)", ...quoted.map((q) => `(?<![\\w])${q}(?![\\w])`)];
  const pattern = new RegExp(parts.join("|"), "gu"), out = [];
  let at = 0;
  for (const found of text.matchAll(pattern)) {
    out.push(text.slice(at, found.index));
    out.push(found[1] ? expert(Number(found[1]) - 1) : sym(known.find((o) => o.text === found[0])));
    at = found.index + found[0].length;
  }
  return [...out, text.slice(at)];
}

/* ---------- controls ---------- */
function segmented(label, options, value, change) {
  const box = el("span", { class: "seg", role: "group", "aria-label": label });
  for (const [key, text] of options) {
    const choose = () => {
      for (const b of box.children) b.setAttribute("aria-pressed", String(b.dataset.key === key));
      change(key);
    };
    const pressed = String(key === value);
    box.append(el("button", { type: "button", "data-key": key, "aria-pressed": pressed, onclick: choose }, text));
  }
  return box;
}
function copyButton(text, make) {
  const copy = () => {
    const area = el("textarea", { style: { position: "fixed", opacity: 0 } });
    area.value = make();
    document.body.append(area);
    area.select();
    let done = false;
    try {
      done = document.execCommand("copy");
    } catch {
      done = false;
    }
    area.remove();
    button.focus();
    button.textContent = done ? "Copied" : "Copying is blocked";
    setTimeout(() => {
      button.textContent = text;
    }, 1400);
  };
  const button = el("button", { type: "button", onclick: copy }, text);
  return button;
}
const facts = (list, kind = "facts") =>
  el("dl", { class: kind },
    list.map(([term, value, note]) =>
      el("div", {}, el("dt", {}, term), el("dd", {}, value, note ? el("small", {}, note) : null))));
const head = (words, right = 1) =>
  el("thead", {},
    el("tr", {}, words.map((w, k) => el("th", { class: k >= right ? "r" : "", scope: "col" }, w))));

/* ---------- the body ---------- */
// Shapes are points with a radius around them, as body.py packs them; v points up, so SVG gets -v.
function unpackBody(body) {
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  const dims = body.axes.length, count = sum(body.shapes.map((s) => s.points));
  const episodes = body.episodes.map((e) => ({
    frames: e.frames, trunk: new Float32Array(bytes(e.trunk)), offsets: new Int16Array(bytes(e.offsets)),
  }));
  const frameOf = (episode, step) => Math.min(episodes[episode].frames - 1, Math.floor(step / body.every));
  const trunk = (episode, step) => {
    const at = frameOf(episode, step) * dims;
    return Array.from(episodes[episode].trunk.subarray(at, at + dims));
  };
  function shapes(episode, step) {
    const base = trunk(episode, step), { offsets } = episodes[episode];
    let at = frameOf(episode, step) * count * dims;
    return body.shapes.map((shape) =>
      Array.from({ length: shape.points }, () => {
        const point = base.map((b, k) => b + body.unit * offsets[at + k]);
        at += dims;
        return point;
      }));
  }
  // the robot's own size, and the part of the world that all frames cover
  const own = [Infinity, -Infinity, Infinity, -Infinity], world = [...own];
  const widen = (box, u, v, r) => {
    box[0] = Math.min(box[0], u - r);
    box[1] = Math.max(box[1], u + r);
    box[2] = Math.min(box[2], v - r);
    box[3] = Math.max(box[3], v + r);
  };
  episodes.forEach((e, n) => {
    for (let f = 0; f < e.frames; f += Math.max(1, Math.floor(e.frames / 150))) {
      const base = trunk(n, f * body.every);
      shapes(n, f * body.every).forEach((points, k) =>
        points.forEach(([u, v]) => {
          widen(world, u, v, body.shapes[k].radius);
          if (body.shapes[k].robot) widen(own, u - base[0], v - base[1], body.shapes[k].radius);
        }));
    }
  });
  for (const s of body.scene) for (const [u, v] of s.at) if (largest([u, v]) < 1e3) widen(world, u, v, s.radius);
  const size = Math.max(own[1] - own[0], own[3] - own[2]);
  const follows = Math.max(world[1] - world[0], world[3] - world[2]) > 3 * size;
  return { body, dims, episodes, trunk, shapes, own, world, size, follows };
}

function hull(points) {
  const sorted = points.map(([u, v]) => [u, v]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const cross = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const half = (list) => {
    const out = [];
    for (const p of list) {
      while (out.length > 1 && cross(out.at(-2), out.at(-1), p) <= 0) out.pop();
      out.push(p);
    }
    return out.slice(0, -1);
  };
  return [...half(sorted), ...half(sorted.reverse())];
}

// One pose: a group whose children are moved from frame to frame.
function poseLayer(shapes, dims, edge) {
  const group = sv("g", { "stroke-linecap": "round", "stroke-linejoin": "round" });
  const parts = shapes.map((shape, k) => {
    const tag = shape.points > 2 ? "polygon" : "line", thin = Math.max(2 * shape.radius, edge);
    const under = sv(tag, { "stroke-width": thin + 2 * edge, style: { stroke: "var(--outline)", fill: "none" } });
    const over = sv(tag, { "stroke-width": thin, "data-shape": k });
    return sv("g", { class: shape.robot === false ? "thing" : null }, under, over);
  });
  group.append(...parts);
  function move(points, colour, opacity) {
    put(group, { opacity });
    const depth = points.map((p) => (dims > 2 ? sum(p.map((q) => q[2])) / p.length : 0));
    parts.forEach((part, k) => {
      const fill = shapes[k].robot === false ? "var(--soft)" : colour;
      for (const node of part.children) {
        if (shapes[k].points > 2) {
          put(node, {
            points: hull(points[k])
              .map(([u, v]) => `${u.toFixed(5)},${(-v).toFixed(5)}`)
              .join(" "),
          });
        } else {
          const [a, b] = [points[k][0], points[k].at(-1)];
          put(node, { x1: a[0].toFixed(5), y1: (-a[1]).toFixed(5), x2: b[0].toFixed(5), y2: (-b[1]).toFixed(5) });
        }
      }
      part.lastChild.style.stroke = fill;
      part.lastChild.style.fill = fill;
    });
    if (dims > 2)
      group.append(...depth
          .map((d, k) => [d, parts[k]])
          .sort((a, b) => b[0] - a[0])
          .map((x) => x[1]));
  }
  return { group, move };
}

// The floor: a line with metres in the side view, a grid in the others.
function floorLayer(figure) {
  const { body, dims, trunk } = figure, layer = sv("g", { class: "floor" });
  function move(episode, step, [left, top, wide, tall], pixel) {
    const gap = niceStep(wide / 5), parts = [], right = left + wide, low = top + tall;
    const size = Math.min(11.5 * pixel, tall / 9); // as large as other small print, however wide the drawing is
    const firsts = (from, to) => {
      const list = [];
      for (let x = Math.ceil(from / gap) * gap; x <= to; x += gap) list.push(x);
      return list;
    };
    const line = (x1, y1, x2, y2) => parts.push(sv("line", { x1, y1, x2, y2, "stroke-width": tall / 260 }));
    const label = (x, y, value) =>
      parts.push(
        sv("text", { x, y, "font-size": size, "text-anchor": "middle" }, minus(`${Number(value.toPrecision(6))} m`)));
    if (body.view === "side") {
      if (body.ground === null || -body.ground > low) return clear(layer);
      const y = -body.ground;
      parts.push(sv("rect", { x: left, y, width: wide, height: Math.max(0, low - y) }));
      line(left, y, right, y);
      for (const x of firsts(left, right)) {
        line(x, y, x, y + size / 2);
        if (x > left + 2 * size && x < right - 2 * size) label(x, Math.min(y + 1.55 * size, low - size / 4), x);
      }
    } else if (dims === 2) {
      for (const x of firsts(left, right)) line(x, top, x, low);
      for (const y of firsts(top, low)) line(left, y, right, y);
      for (const x of firsts(left + 2 * size, right - 2 * size)) label(x, low - size / 2, x);
    } else if (body.ground !== null) {
      const at = trunk(episode, step), [r, u, a] = body.axes;
      const centre = [0, 1].map((k) => Math.round((at[0] * r[k] + at[1] * u[k] + at[2] * a[k]) / gap) * gap);
      const seen = (x, y) => [x, y, body.ground], far = gap * Math.ceil((1.2 * wide) / gap);
      const flat = (p) => [p[0] * r[0] + p[1] * r[1] + p[2] * r[2], -(p[0] * u[0] + p[1] * u[1] + p[2] * u[2])];
      for (let k = -far; k <= far + 1e-9; k += gap) {
        for (const turned of [false, true]) {
          const ends = [-far, far].map((f) => seen(centre[0] + (turned ? f : k), centre[1] + (turned ? k : f)));
          line(...flat(ends[0]), ...flat(ends[1]));
        }
      }
    }
    return clear(layer, parts);
  }
  return { group: layer, move };
}

// The playing robot: ground, what stands around, the last poses, and the robot in its expert's colour.
function bodyPlayer(figure, colourAt, label) {
  const { body, own, world, size, follows, trunk, shapes, dims } = figure, TRAIL = 4;
  const edge = size / 170, floor = floorLayer(figure),
    scene = poseLayer(body.scene.map((s) => ({ points: s.at.length, radius: s.radius, robot: false })), dims, edge);
  if (body.scene.length)
    scene.move(body.scene.map((s) => s.at), "", 0.35);
  const layers = Array.from({ length: TRAIL }, () => poseLayer(body.shapes, dims, edge));
  layers.forEach((layer, k) => put(layer.group, { class: k === TRAIL - 1 ? "now" : "trail" }));
  let wide = world[1] - world[0], tall = world[3] - world[2];
  const side = body.view === "side";
  if (follows) {
    tall = side ? 1.14 * Math.max(world[3] - world[2], 0.75 * size) : 1.4 * size;
    wide = Math.max(2.4 * tall, Math.min(3.2 * size, 3.4 * tall));
    // on a phone the robot, not its trail
    if (innerWidth < 760) wide = Math.min(wide, Math.max(1.6 * tall, 2.1 * size));
  } else {
    [wide, tall] = [1.12 * wide, 1.16 * tall];
    wide = Math.max(wide, 1.8 * tall);
    tall = Math.max(tall, wide / 3.4);
  }
  const svg = sv("svg", { class: "body", role: "img", "aria-label": label }, floor.group, scene.group,
    layers.map((layer) => layer.group));
  svg.style.aspectRatio = `${wide} / ${tall}`;
  function smooth(episode, step) {
    const from = Math.max(0, step - 12), to = Math.min((figure.episodes[episode].frames - 1) * body.every, step + 12);
    const all = [];
    for (let t = from; t <= to; t += 3) all.push(trunk(episode, t));
    return all.length ? [0, 1].map((k) => sum(all.map((p) => p[k])) / all.length) : trunk(episode, step);
  }
  function trail(episode, step) {
    const steps = [];
    let last = trunk(episode, step), t = step;
    while (steps.length < TRAIL - 1 && t > 0) {
      let back = 0;
      do {
        t -= 1;
        back += 1;
        const now = trunk(episode, t);
        if (Math.hypot(now[0] - last[0], now[1] - last[1]) > 0.4 * size) break;
      } while (t > 0 && back < (follows ? 60 : 3));
      last = trunk(episode, t);
      steps.push(t);
    }
    return steps;
  }
  function show(episode, step) {
    let left = (world[0] + world[1] - wide) / 2, top = -(world[2] + world[3] + tall) / 2;
    if (follows) {
      const [u, v] = smooth(episode, step);
      left = u - 0.62 * wide + 0.5 * (own[1] + own[0]);
      top = side ? -(world[2] - 0.11 * tall) - tall : -v - tall / 2;
    }
    put(svg, { viewBox: [left, top, wide, tall].map((x) => x.toFixed(5)).join(" ") });
    const pixel = Math.max(wide / (svg.clientWidth || 770), tall / (svg.clientHeight || 430));
    floor.move(episode, step, [left, top, wide, tall], pixel);
    const past = trail(episode, step);
    layers.forEach((layer, k) => {
      const t = k === TRAIL - 1 ? step : past[TRAIL - 2 - k];
      layer.group.style.display = t === undefined ? "none" : "";
      if (t !== undefined) {
        layer.move(shapes(episode, t), colourAt(episode, t), k === TRAIL - 1 ? 1 : 0.14 + 0.1 * k);
      }
    });
    const [a, b] = [trunk(episode, 0), trunk(episode, step)];
    return Math.hypot(b[0] - a[0], b[1] - a[1], dims > 2 ? b[2] - a[2] : 0);
  }
  return { svg, show };
}

// A single pose, small.
function stillBody(figure, episode, step, colour) {
  const { body, own, trunk, shapes, dims, size } = figure, layer = poseLayer(body.shapes, dims, size / 90);
  layer.move(shapes(episode, step), colour, 1);
  const [u, v] = trunk(episode, step), pad = 0.05 * size;
  const side = body.view === "side" && body.ground !== null;
  const low = side ? Math.min(body.ground, v + own[2]) : v + own[2], high = v + own[3];
  const box = [u + own[0] - pad, -high - pad, own[1] - own[0] + 2 * pad, high - low + 2 * pad];
  const ground = side
    ? sv("line", {
        class: "ground", x1: box[0], x2: box[0] + box[2], y1: -body.ground, y2: -body.ground,
        "stroke-width": size / 120,
      })
    : null;
  return sv("svg",
    {
      class: "still", viewBox: box.map((x) => x.toFixed(5)).join(" "), role: "img",
      "aria-label": `The body at step ${step}`,
    },
    ground, layer.group);
}

/* ---------- the cycle ---------- */
function cycleBand(gait, colours, height = 46) {
  const n = gait.experts[0].length;
  const svg = sv("svg", {
    class: "cycle", viewBox: `0 0 ${10 * n} ${height}`, height, preserveAspectRatio: "none", role: "img",
    "aria-label": "Who acts at which phase of the cycle",
  });
  for (let k = 0; k < n; k++) {
    let y = 0;
    gait.experts.forEach((line, m) => {
      const tall = line[k] * height;
      if (!tall) return;
      const text = `Expert ${m + 1}: ${percent(line[k])} of the cycles at phase ${fixed(k / n)}`;
      svg.append(sv("rect", { x: 10 * k, width: 10.3, y, height: tall, fill: colours[m].c }, sv("title", {}, text)));
      y += tall;
    });
  }
  return svg;
}
function cycleLabels(gait, chip) {
  const n = gait.experts[0].length, box = el("div", { class: "cyclelabels", "aria-hidden": "true" });
  const leads = Array.from({ length: n }, (_, k) =>
    gait.experts.reduce((b, l, m) => (l[k] > gait.experts[b][k] ? m : b), 0));
  let from = 0;
  for (let k = 1; k <= n; k++) {
    if (k < n && leads[k] === leads[from]) continue;
    if (k - from >= 2) {
      const label = chip(leads[from]);
      label.style.left = (100 * (from + k)) / 2 / n + "%";
      box.append(label);
    }
    from = k;
  }
  return box;
}
function cycleCurve(name, curve, k, colour) {
  const wide = 160, tall = 52, n = curve.median[k].length;
  const low = Math.min(...curve.low[k]), high = Math.max(...curve.high[k]), span = high - low || 1;
  const x = (i) => (wide * i) / (n - 1), y = (v) => 3 + (tall - 6) * (1 - (v - low) / span);
  const path = (list) => list.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`);
  const band = [...path(curve.low[k]), ...path(curve.high[k]).reverse()].join(" ");
  const zero = low < 0 && high > 0 ? sv("line", { x1: 0, x2: wide, y1: y(0), y2: y(0), class: "zero" }) : null;
  const picture = sv("svg",
    {
      viewBox: `0 0 ${wide} ${tall}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${name.description} over the cycle, from ${nice(low)} to ${nice(high)}`,
    },
    sv("polygon", { points: band, fill: colour, "fill-opacity": 0.25 }), zero,
    sv("polyline", {
      points: path(curve.median[k]).join(" "), fill: "none", stroke: colour, "stroke-width": 1.8,
      "vector-effect": "non-scaling-stroke",
    }));
  return el("figure", { class: "curve" },
    el("figcaption", {}, sym(name), el("span", { class: "soft num" }, `${nice(low)} \u2026 ${nice(high)}`)), picture);
}
