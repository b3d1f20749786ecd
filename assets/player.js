// The player of a run. It owns the playhead and draws what Python computed (specviz/frames.py); it decides
// nothing. Every picture is a pure function of (rounds, playhead, t in 0..1), so that stepping back and
// scrubbing cost nothing. Token text is untrusted: it only ever goes into textContent.

const SVG = "http://www.w3.org/2000/svg";
const players = new WeakMap();

export default function ({ data, parentElement, setStateValue }) {
  let player = players.get(parentElement);
  if (!player) players.set(parentElement, (player = new Player(parentElement)));
  player.report = setStateValue;
  player.update(data);
  return () => {
    player.close();
    players.delete(parentElement);
  };
}

// ------------------------------------------------------------------------------------------- numbers, text

function number(x) {
  if (x === null || x === undefined) return "–";
  if (x === 0) return "0";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x);
  if (Math.abs(x) < 0.001) return "<0.001";
  const rounded = Number(x.toPrecision(3));
  return rounded.toFixed(Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded)))));
}

function si(x, unit) {
  if (x === null || x === undefined) return "–";
  if (x === 0) return `0 ${unit}`;
  const rounded = Number(x.toPrecision(3));
  const power = Math.max(-4, Math.min(6, Math.floor(Math.log10(Math.abs(rounded)) / 3)));
  const prefix = ["p", "n", "µ", "m", "", "k", "M", "G", "T", "P", "E"][power + 4];
  return `${(rounded / 1000 ** power).toPrecision(3)} ${prefix}${unit}`;
}

function percent(x) {
  if (x === null || x === undefined) return "–";
  const value = 100 * x;
  if (value > 0 && value < 0.1) return "<0.1 %";
  return value >= 10 || value === 0 ? `${value.toFixed(0)} %` : `${value.toFixed(1)} %`;
}

const equals = (x) => (x > 0 && x < 0.001 ? "< 0.001" : `= ${number(x)}`);
const sure = (slot) => (slot.confidence === null ? "" : ` (${percent(slot.confidence)} sure)`);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const ease = (t) => 1 - (1 - t) ** 3;
const between = (t, from, to) => clamp((t - from) / (to - from), 0, 1);

function cells(text) {
  // width in character cells: wide scripts and pictographs take two
  let n = 0;
  for (const char of text) n += char.codePointAt(0) > 0x1100 && !/[\u2000-\u2BFF]/.test(char) ? 2 : 1;
  return n;
}

function fit(text, room) {
  if (cells(text) <= room) return text;
  let out = "";
  for (const char of text) {
    if (cells(out + char) > room - 1) break;
    out += char;
  }
  return `${out}…`;
}

function wrap(text, room) {
  const lines = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line && cells(`${line} ${word}`) > room) {
      lines.push(line);
      line = word;
    } else line = line ? `${line} ${word}` : word;
  }
  return line ? [...lines, line] : lines;
}

// ------------------------------------------------------------------------------------------- drawing

function attribute(element, values) {
  for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
}

// A picture as a list of shapes with keys. Shapes that stay keep their element, so focus survives a redraw.
class Scene {
  constructor(root, ink) {
    this.root = root;
    this.ink = ink;
    this.elements = new Map();
    this.list = [];
  }

  put(key, tag, attributes, text) {
    this.list.push({ key, tag, attributes, text });
  }

  text(key, x, y, text, extra = {}) {
    this.put(key, "text", { x, y, fill: this.ink.ink, "font-size": 13, "font-family": this.ink.font, ...extra }, text);
  }

  mono(key, x, y, text, extra = {}) {
    this.text(key, x, y, text, { "font-family": this.ink.mono, ...extra });
  }

  icon(key, kind, x, y, size = 14, extra = {}) {
    const { d, color } = icon(kind, this.ink);
    const filled = kind === "bonus";
    this.put(key, "path", {
      d, transform: `translate(${x} ${y}) scale(${size / 16})`, fill: filled ? color : "none",
      stroke: filled ? this.ink.ink : color, "stroke-width": filled ? 1 : 2.6, "stroke-linecap": "round",
      "stroke-linejoin": "round", ...extra,
    });
  }

  commit() {
    const keep = new Set(this.list.map((shape) => shape.key));
    for (const [key, element] of this.elements) {
      if (!keep.has(key)) {
        element.remove();
        this.elements.delete(key);
      }
    }
    this.list.forEach(({ key, tag, attributes, text }, i) => {
      let element = this.elements.get(key);
      if (!element) this.elements.set(key, (element = document.createElementNS(SVG, tag)));
      for (const name of element.getAttributeNames()) if (!(name in attributes)) element.removeAttribute(name);
      for (const [name, value] of Object.entries(attributes)) {
        const string = typeof value === "number" ? String(Math.round(value * 100) / 100) : value;
        if (element.getAttribute(name) !== string) element.setAttribute(name, string);
      }
      if (text !== undefined && element.textContent !== text) element.textContent = text;
      if (this.root.childNodes[i] !== element) this.root.insertBefore(element, this.root.childNodes[i] ?? null);
    });
    this.list = [];
  }
}

function icon(kind, ink) {
  switch (kind) {
    case "accepted": return { d: "M2.5 8.5 L6.5 12.5 L13.5 4", color: ink.accepted };
    case "rejected": return { d: "M3.5 3.5 L12.5 12.5 M12.5 3.5 L3.5 12.5", color: ink.rejected };
    case "dropped": return { d: "M3 8 H13", color: ink.dropped };
    default: return { d: "M8 1 L10.1 5.7 L15.2 6.2 L11.4 9.6 L12.5 14.6 L8 12 L3.5 14.6 L4.6 9.6 L0.8 6.2 L5.9 5.7 Z",
                      color: ink.bonus };
  }
}

// What has happened in a round once its frames before `at` are over and frame `at` has run to `t`.
function story(round, at, t) {
  const n = round.slots.length;
  const s = { drafted: Array(n).fill(0), corrected: Array(n).fill(0), verify: 0, judged: Array(n).fill(0),
              dropped: Array(n).fill(0), leftover: 0, bonus: 0, ended: 0, now: round.frames[at] };
  round.frames.slice(0, at + 1).forEach((frame, i) => {
    const amount = i < at ? 1 : t;
    const list = { draft: "drafted", correct: "corrected", judge: "judged", dropped: "dropped" }[frame.kind];
    if (list) for (const slot of frame.slots) s[list][slot] = amount;
    else s[frame.kind === "end" ? "ended" : frame.kind] = amount;
  });
  // the serial pass has gone by what it kept as soon as it is at a later slot, or at its end
  const mended = round.slots.reduce((last, slot, i) => (s.corrected[i] > 0 ? i : last), -1);
  round.slots.forEach((slot, i) => {
    const kept = slot.first_guess && slot.first_guess.id === slot.id;
    if (kept && (i < mended || s.verify > 0)) s.corrected[i] = 1;
  });
  return s;
}

// The verdict on a slot that the reader has seen so far, or null.
function verdictSoFar(round, s, slot) {
  if (s.judged[slot] >= 0.75) return round.slots[slot].verdict;
  return s.dropped[slot] > 0.3 ? "dropped" : null;
}

const STRIP_HEIGHT = 262;
const COLUMN = 92;

function stripWidth(round, room) {
  return Math.max(room, (round.slots.length + 2) * COLUMN);
}

// Anchor, drafts, the verify pass, verdicts and what is kept: one column a position.
function drawStrip(scene, width, round, s, lit) {
  const { ink } = scene;
  const n = round.slots.length;
  const column = Math.min(width / (n + 2), 150);
  const x0 = (i) => i * column;
  const chip = (key, i, y, text, look) => {
    const shown = fit(text, Math.floor((column - (look.icon ? 32 : 18)) / 8.5));
    scene.put(`${key}:box`, "rect", { x: x0(i) + 4, y, width: column - 8, height: 36, rx: 8, fill: look.color,
      "fill-opacity": look.fill ?? 0.14, stroke: look.stroke ?? look.color, "stroke-width": look.line ?? 2,
      "stroke-dasharray": look.dash ?? "none", opacity: look.opacity ?? 1 });
    const shift = look.icon ? 9 : 0;
    scene.mono(`${key}:text`, x0(i) + column / 2 + shift, y + 23, shown, { "text-anchor": "middle", "font-size": 14,
      opacity: look.opacity ?? 1, "text-decoration": look.strike ? "line-through" : "none" });
    if (look.icon) scene.icon(`${key}:icon`, look.icon, x0(i) + 11, y + 11, 14, { opacity: look.opacity ?? 1 });
  };

  for (let i = 0; i <= n + 1; i++) {
    if (lit !== null && i === lit + 1) {
      scene.put("lit", "rect", { x: x0(i) + 1, y: 1, width: column - 2, height: STRIP_HEIGHT - 4, rx: 10, fill: ink.ink,
        "fill-opacity": 0.05, stroke: ink.ink, "stroke-opacity": 0.35, "stroke-width": 1 });
    }
  }
  const heading = (i) => (i === 0 ? "anchor" : i <= n ? `draft ${i}` : n ? "past the drafts" : "next token");
  for (let i = 0; i <= n + 1; i++) {
    scene.text(`head:${i}`, x0(i) + column / 2, 18, fit(heading(i), Math.floor(column / 6)),
      { "text-anchor": "middle", "font-size": 12, fill: ink.muted });
  }
  chip("anchor", 0, 26, round.anchor.text, { color: ink.ink, fill: 0.06, stroke: ink.ink, line: 1.5 });

  round.slots.forEach((slot, i) => {
    const shown = s.drafted[i];
    if (!shown) {
      scene.put(`ghost:${i}`, "rect", { x: x0(i + 1) + 4, y: 26, width: column - 8, height: 36, rx: 8, fill: "none",
        stroke: ink.grid, "stroke-width": 1, "stroke-dasharray": "2 4" });
      return;
    }
    const corrected = s.corrected[i] >= 0.5 || !slot.first_guess;
    const text = corrected ? slot.text : slot.first_guess.text;
    const verdict = verdictSoFar(round, s, i);
    const dropped = s.dropped[i];
    const look = { color: ink.draft, dash: "6 4", opacity: ease(shown) * (1 - 0.5 * dropped) };
    if (verdict === "accepted") Object.assign(look, { color: ink.accepted, dash: "none" });
    if (verdict === "rejected") Object.assign(look, { color: ink.rejected, dash: "none", strike: true });
    if (dropped > 0.3) Object.assign(look, { color: ink.dropped });
    if (verdict === null && dropped <= 0.3) look.stroke = ink.draftLine;
    chip(`draft:${i}`, i + 1, 26 + 10 * (1 - ease(shown)), text, look);
    if (corrected) {
      const replaced = slot.first_guess && slot.first_guess.id !== slot.id;
      if (replaced) {
        scene.mono(`was:${i}`, x0(i + 1) + column / 2, 75, fit(slot.first_guess.text, Math.floor((column - 12) / 7)),
          { "text-anchor": "middle", "font-size": 12, fill: ink.muted, "text-decoration": "line-through",
            opacity: look.opacity });
      }
      scene.text(`q:${i}`, x0(i + 1) + column / 2, replaced ? 90 : 80, `q ${equals(slot.q)}`,
        { "text-anchor": "middle", "font-size": 12, opacity: look.opacity });
    } else {
      scene.text(`q:${i}`, x0(i + 1) + column / 2, 80, "first guess",
        { "text-anchor": "middle", "font-size": 12, fill: ink.muted });
    }
    if (corrected && slot.confidence !== null) {
      scene.text(`sure:${i}`, x0(i + 1) + column / 2, 169, `${percent(slot.confidence)} sure`,
        { "text-anchor": "middle", "font-size": 12, fill: ink.muted, opacity: look.opacity });
    }
  });

  // the verify pass: one lane over all K + 1 positions, crossed by one band
  const top = 94;
  const high = 38;
  const wide = (n + 1) * column - 8;
  scene.text("verify:label", x0(0) + column / 2, top + 17, n ? "verify" : "plain step",
    { "text-anchor": "middle", "font-size": 13, "font-weight": 600, opacity: s.verify ? 1 : 0.55 });
  scene.text("verify:count", x0(0) + column / 2, top + 33, n ? `${n + 1} at once` : "1 position",
    { "text-anchor": "middle", "font-size": 12, fill: ink.muted });
  scene.put("verify:lane", "rect", { x: x0(1) + 4, y: top, width: wide, height: high, rx: 8, fill: ink.target,
    "fill-opacity": 0.16 * s.verify, stroke: s.verify ? ink.target : ink.grid, "stroke-width": s.verify ? 2 : 1,
    "stroke-dasharray": s.verify ? "none" : "2 4" });
  if (s.verify > 0 && s.verify < 1) {
    const y = top - 8 + (high + 4) * s.verify;
    scene.put("verify:band", "rect", { x: x0(1) + 4, y, width: wide, height: 12, rx: 4, fill: ink.target,
      "fill-opacity": 0.8 });
  }
  const known = between(s.verify, 0.6, 1);
  for (let i = 0; i <= n; i++) {
    if (i) scene.put(`cell:${i}`, "path", { d: `M${x0(i + 1)} ${top + 6} V${top + high - 6}`, stroke: ink.grid });
    if (known > 0) {
      const label = i < n ? `p ${equals(round.slots[i].p)}` : "no draft";
      scene.text(`p:${i}`, x0(i + 1) + column / 2, top + 24, label,
        { "text-anchor": "middle", "font-size": 12, opacity: known * (i < n ? 1 - 0.5 * s.dropped[i] : 1) });
    }
  }

  // verdicts
  round.slots.forEach((slot, i) => {
    const verdict = verdictSoFar(round, s, i);
    if (!verdict) return;
    const span = verdict.length * 6.2 + 18;
    const x = x0(i + 1) + (column - span) / 2;
    const opacity = verdict === "dropped" ? s.dropped[i] : between(s.judged[i], 0.75, 1);
    scene.icon(`verdict:${i}:icon`, verdict, x, 143, 13, { opacity });
    scene.text(`verdict:${i}`, x + 18, 154, verdict, { "font-size": 13, opacity });
  });

  // what stays: accepted drafts come down, the bonus token joins them
  const floor = 196;
  scene.put("kept:line", "path", { d: `M${x0(0) + 4} ${floor - 22} H${x0(n + 2) - 4}`, stroke: ink.grid });
  scene.text("kept:label", x0(0) + column / 2, floor + 16, "kept",
    { "text-anchor": "middle", "font-size": 13, "font-weight": 600 });
  const count = round.emitted.filter((_, i) => (i < round.accepted ? s.judged[i] >= 0.75 : s.bonus > 0.6)).length;
  scene.text("kept:count", x0(0) + column / 2, floor + 32, `${count} token${count === 1 ? "" : "s"}`,
    { "text-anchor": "middle", "font-size": 12, fill: ink.muted });
  round.slots.forEach((slot, i) => {
    if (slot.verdict !== "accepted" || s.judged[i] < 0.75) return;
    const t = ease(between(s.judged[i], 0.75, 1));
    chip(`kept:${i}`, i + 1, floor - 28 * (1 - t), slot.text, { color: ink.accepted, fill: 0.2, opacity: t });
  });
  if (round.bonus && s.bonus > 0.6) {
    const t = ease(between(s.bonus, 0.6, 1));
    chip("bonus", round.bonus.slot + 1, floor - 28 * (1 - t), round.bonus.text,
      { color: ink.bonus, fill: 0.22, icon: "bonus", opacity: t });
    scene.text("bonus:origin", x0(round.bonus.slot + 1) + column / 2, floor + 52,
      n ? (round.bonus.kind === "leftover" ? "bonus, leftover" : "bonus, from p") : "drawn from p",
      { "text-anchor": "middle", "font-size": 12, fill: ink.muted, opacity: t });
  }
  return { width: Math.max(width, (n + 2) * column), height: STRIP_HEIGHT, column };
}

const ROW = 30;
const BAR_ROWS = 10;
const DETAIL_TOP = 30;
const BARS_HEIGHT = 46 + BAR_ROWS * ROW;
const RULER_HEIGHT = 132;
const LINE_HEIGHT = 176;

// One position in full: paired bars, the accept test, the draw.
function drawDetail(scene, width, round, at, s) {
  const place = round.slots[at] ?? round.past;
  const drafted = at < round.slots.length;
  const wide = width >= 640;
  const left = wide ? Math.round(width * 0.53) : width;
  const title = drafted
    ? `Position ${at + 1}: draft “${fit(place.text, wide ? 30 : 14)}”`
    : round.slots.length ? `Position ${at + 1}: past the last draft` : "The next token";
  scene.text("title", 0, 16, title, { "font-size": 15, "font-weight": 600 });
  drawBars(scene, 0, DETAIL_TOP, left - (wide ? 28 : 0), round, place, at, s);
  const x = wide ? left : 0;
  const room = (wide ? width - left : width) - 1;
  const y = wide ? DETAIL_TOP : DETAIL_TOP + BARS_HEIGHT + 14;
  drawRuler(scene, x, y, room, round, place, at, s);
  drawLine(scene, x, y + RULER_HEIGHT + 18, room, round, s);
  return wide ? DETAIL_TOP + BARS_HEIGHT : y + RULER_HEIGHT + 18 + LINE_HEIGHT;
}

function drawBars(scene, x, y, width, round, place, at, s) {
  const { ink } = scene;
  const drafted = at < round.slots.length;
  const raw = round.greedy;
  const grownQ = drafted ? ease(s.drafted[at]) : 0;
  const grownP = ease(between(s.verify, 0.5, 1));
  const value = (bar, name) => (raw ? bar[`raw_${name}`] : bar[name]);
  const all = [...place.bars, { ...place.tail, text: "all others", tail: true }];
  const labels = clamp(width * 0.27, 84, 150);
  const start = x + labels + 10;
  const span = width - labels - 10 - 50;
  const largest = Math.max(...all.flatMap((b) => [value(b, "p") ?? 0, value(b, "q") ?? 0]));
  const limit = [0.1, 0.2, 0.4, 0.6, 0.8, 1].find((m) => largest <= m) ?? 1;
  const sx = (v) => (span * v) / limit;

  // legend
  let lx = x;
  const entry = (key, text, look) => {
    scene.put(`legend:${key}`, "rect", { x: lx, y: y + 3, width: 12, height: 10, rx: 2, "stroke-width": 1, ...look });
    scene.text(`legend:${key}:text`, lx + 17, y + 13, text, { "font-size": 12, fill: ink.muted });
    lx += 17 + text.length * 6.1 + 14;
  };
  entry("p", "p target", { fill: ink.target, stroke: ink.target });
  if (drafted) entry("q", "q draft", { fill: ink.draft, stroke: ink.fillLine });
  if (drafted && !raw) entry("min", "min(p, q)", { fill: ink.accepted, stroke: ink.accepted });
  const forming = round.kind === "leftover" && at === round.accepted ? ease(s.leftover) : 0;
  if (forming > 0 && !raw) entry("left", "left over", { fill: ink.bonus, stroke: ink.fillLine });
  if (raw) scene.text("legend:raw", lx, y + 13, "raw softmax, T = 1", { "font-size": 12, fill: ink.muted });

  // axis
  for (const tick of [0, limit / 2, limit]) {
    scene.put(`axis:${tick === 0 ? 0 : tick / limit}`, "path",
      { d: `M${start + sx(tick)} ${y + 40} V${y + 46 + BAR_ROWS * ROW - 2}`,
      stroke: ink.grid });
    scene.text(`axis:${tick === 0 ? 0 : tick / limit}:text`, start + sx(tick), y + 34, String(tick),
      { "font-size": 12, fill: ink.muted, "text-anchor": "middle" });
  }
  all.forEach((bar, i) => {
    const top = y + 44 + i * ROW;
    const p = value(bar, "p");
    const q = value(bar, "q");
    const isDraft = bar.drafted && drafted && s.drafted[at] > 0;
    const isDrawn = bar.drawn && s.bonus > 0.6;
    const label = bar.tail ? bar.text : fit(bar.text, Math.floor((labels - (isDrawn ? 30 : 14)) / 7.9));
    if (isDraft) {
      scene.put(`bar:${i}:draft`, "rect", { x: x + 1, y: top + 2, width: labels, height: 24, rx: 6, fill: ink.draft,
        "fill-opacity": 0.14, stroke: ink.draftLine, "stroke-width": 1.5, "stroke-dasharray": "5 3" });
    }
    if (isDrawn) scene.icon(`bar:${i}:star`, "bonus", x + 6, top + 7, 13);
    scene.text(`bar:${i}:label`, x + labels - 6, top + 19, label, { "text-anchor": "end",
      "font-family": bar.tail ? ink.font : ink.mono, "font-size": 13, fill: bar.tail ? ink.muted : ink.ink,
      "font-weight": isDraft || isDrawn ? 700 : 400 });
    if (!raw && grownP > 0 && drafted) {
      scene.put(`bar:${i}:shade`, "rect", { x: start, y: top, width: sx(bar.min) * grownP, height: 28,
        fill: ink.accepted,
        "fill-opacity": 0.22 });
      scene.put(`bar:${i}:min`, "rect", { x: start, y: top + 12, width: sx(bar.min) * grownP, height: 4,
        fill: ink.accepted });
    }
    if (p !== null && grownP > 0) {
      scene.put(`bar:${i}:p`, "rect", { x: start, y: top + 1, width: Math.max(sx(p) * grownP, p > 0 ? 1 : 0),
        height: 10,
        fill: ink.target, opacity: 1 - 0.45 * forming });
      if (forming > 0 && !raw && bar.left > 0) {
        scene.put(`bar:${i}:left`, "rect", { x: start + sx(bar.min), y: top,
          width: Math.max(1.5, sx(bar.left) * forming),
          height: 12, fill: ink.bonus, stroke: ink.fillLine, "stroke-width": 1 });
      }
      scene.text(`bar:${i}:pv`, start + span + 6, top + 12, number(p), { "font-size": 12, opacity: grownP });
    }
    if (q !== null && grownQ > 0) {
      scene.put(`bar:${i}:q`, "rect", { x: start, y: top + 17, width: Math.max(sx(q) * grownQ, q > 0 ? 1 : 0),
        height: 10,
        fill: ink.draft, stroke: ink.fillLine, "stroke-width": q > 0 ? 1 : 0 });
      scene.text(`bar:${i}:qv`, start + span + 6, top + 25, number(q),
        { "font-size": 12, fill: ink.muted, opacity: grownQ });
    }
  });
}

function paragraph(scene, key, x, y, width, text, extra = {}) {
  const size = extra["font-size"] ?? 13;
  const lines = wrap(text, Math.floor(width / (size * scene.ink.pitch)));
  lines.forEach((line, i) => scene.text(`${key}:${i}`, x, y + i * (size + 4), line,
    { fill: scene.ink.muted, ...extra }));
  return lines.length * (size + 4);
}

// A pointer that falls on the line 0..1.
function drawUniform(scene, key, x, width, y, height, u, fall) {
  const at = x + u * width;
  const tip = y - 30 * (1 - fall);
  scene.put(`${key}:tip`, "path", { d: `M${at} ${tip} l-6 -11 h12 Z`, fill: scene.ink.ink });
  scene.put(`${key}:line`, "path", { d: `M${at} ${tip} V${y + 6 * fall} M${at} ${y + height} v${6 * fall}`,
    stroke: scene.ink.ink,
    "stroke-width": 2 });
  const label = `u ${equals(u)}`;
  const half = label.length * 3.6;
  scene.text(`${key}:label`, clamp(at, x + half, x + width - half), tip - 16, label,
    { "text-anchor": "middle", "font-size": 13, "font-weight": 600 });
}

function drawRuler(scene, x, y, width, round, place, at, s) {
  const { ink } = scene;
  scene.text("test", x, y + 13, "Accept test", { "font-weight": 600 });
  const say = (text) => paragraph(scene, "test:say", x, y + 38, width, text);
  if (at >= round.slots.length) {
    return say(round.slots.length
      ? "Nothing was drafted here, so nothing is tested: q = 0, and the leftover of p is p itself."
      : "K = 0: nothing was drafted, so nothing is tested.");
  }
  if (s.verify < 1) return say(s.drafted[at] ? "p is not known before the verify pass." : "Not drafted yet.");
  if (s.dropped[at] > 0.3) return say(place.words);
  const judged = s.judged[at];
  if (round.greedy) {
    const rows = [["target's first choice", place.first_choice.text, ink.target, ink.target],
      ["draft", place.text, ink.draft, ink.draftLine]];
    rows.forEach(([name, text, color, line], i) => {
      const top = y + 26 + i * 34;
      scene.text(`greedy:${i}:name`, x, top + 19, name, { "font-size": 12, fill: ink.muted });
      scene.put(`greedy:${i}:box`, "rect", { x: x + 124, y: top, width: Math.min(width - 128, 190), height: 28, rx: 7,
        fill: color,
        "fill-opacity": 0.14, stroke: line, "stroke-width": 1.5, "stroke-dasharray": i ? "5 3" : "none" });
      scene.mono(`greedy:${i}:text`, x + 134, top + 19, fit(text, Math.floor((Math.min(width - 128, 190) - 20) / 8)),
        { "font-size": 13 });
    });
    if (judged >= 0.5) {
      scene.icon("test:icon", place.verdict, x, y + 106, 14);
      scene.text("test:verdict", x + 20, y + 118, place.verdict === "accepted" ? "the same: accepted"
        : "they differ: rejected");
    }
    return undefined;
  }
  const threshold = place.threshold;
  const line = y + 66;
  scene.put("test:yes", "rect", { x, y: line, width: threshold * width, height: 20, fill: ink.accepted,
    "fill-opacity": 0.35 });
  scene.put("test:no", "rect", { x: x + threshold * width, y: line, width: (1 - threshold) * width, height: 20,
    fill: ink.rejected,
    "fill-opacity": 0.28 });
  scene.put("test:frame", "rect", { x, y: line, width, height: 20, fill: "none", stroke: ink.ink,
    "stroke-opacity": 0.5 });
  scene.put("test:threshold", "path", { d: `M${x + threshold * width} ${line - 5} V${line + 26}`, stroke: ink.ink,
    "stroke-width": 2,
    "stroke-dasharray": "4 2" });
  if (threshold * width > 58) scene.text("test:yes:text", x + (threshold * width) / 2, line + 15, "accept",
    { "text-anchor": "middle", "font-size": 12 });
  if ((1 - threshold) * width > 50) {
    scene.text("test:no:text", x + (width * (1 + threshold)) / 2, line + 15, "reject",
      { "text-anchor": "middle", "font-size": 12 });
  }
  scene.text("test:0", x, line + 36, "0", { "font-size": 12, fill: ink.muted });
  scene.text("test:1", x + width, line + 36, "1", { "font-size": 12, fill: ink.muted, "text-anchor": "end" });
  const label = `min(1, p/q) ${equals(threshold)}`;
  const half = label.length * 3.3;
  scene.text("test:label", clamp(x + threshold * width, x + half + 12, x + width - half - 12), line + 40, label,
    { "text-anchor": "middle", "font-size": 12, "font-weight": 600 });
  if (judged > 0 && place.u !== null) drawUniform(scene, "test:u", x, width, line, 20, place.u,
    ease(between(judged, 0, 0.75)));
  if (judged >= 0.75) {
    scene.icon("test:icon", place.verdict, x, y + 119, 13);
    scene.text("test:verdict", x + 20, y + 130, place.verdict === "accepted" ? "accepted: u is below the mark"
      : "rejected: u is beyond the mark");
  }
  return undefined;
}

// Where the bonus token comes from: the line 0..1, one interval a token.
function drawLine(scene, x, y, width, round, s) {
  const { ink } = scene;
  const bonus = round.bonus;
  if (!bonus) {
    scene.text("draw", x, y + 13, "Bonus token", { "font-weight": 600 });
    return paragraph(scene, "draw:say", x, y + 38, width, "None: the text ended on an accepted draft.");
  }
  const left = bonus.kind === "leftover";
  const started = left ? s.leftover > 0 : s.bonus > 0 || s.now.kind === "bonus";
  scene.text("draw", x, y + 13, !started ? "Bonus token" : left ? "Leftover max(0, p − q), normalised"
    : round.slots.length ? "Bonus token: p past the last draft" : "The draw from p", { "font-weight": 600 });
  if (!started) {
    return paragraph(scene, "draw:say", x, y + 38, width, round.slots.length
      ? "Drawn by the target after the checks: from the leftover if a draft is rejected, from p if all are accepted."
      : "Drawn by the target from p.");
  }
  const line = y + 66;
  const full = left ? clamp(bonus.sum + (1 - bonus.sum) * ease(between(s.leftover, 0.25, 1)), 0.02, 1) : 1;
  const chosen = s.bonus > 0.6;
  scene.put("draw:frame", "rect", { x, y: line, width, height: 24, fill: "none", stroke: ink.muted,
    "stroke-dasharray": "2 3" });
  bonus.intervals.forEach((cut, i) => {
    const from = x + cut.lo * width * full;
    const size = (cut.hi - cut.lo) * width * full;
    const lit = cut.drawn && chosen;
    const colour = cut.id === null ? ink.dropped : left ? ink.bonus : ink.target;
    scene.put(`cut:${i}`, "rect", { x: from, y: line, width: size, height: 24, fill: colour,
      "fill-opacity": lit ? 0.75 : cut.id === null ? 0.18 : i % 2 ? 0.34 : 0.22,
      stroke: ink.ink, "stroke-opacity": lit ? 1 : 0.35,
      "stroke-width": lit ? 2 : 0.75 });
    const room = Math.floor((size - 6) / 7.6);
    if (room >= Math.min(3, cells(cut.text)) && full === 1) {
      scene.text(`cut:${i}:text`, from + size / 2, line + 17, fit(cut.text, room),
        { "text-anchor": "middle", "font-size": 12,
        "font-family": cut.id === null ? ink.font : ink.mono });
    }
  });
  scene.text("draw:0", x, line + 40, "0", { "font-size": 12, fill: ink.muted });
  scene.text("draw:1", x + width, line + 40, "1", { "font-size": 12, fill: ink.muted, "text-anchor": "end" });
  if (left && full < 1) {
    scene.text("draw:sum", clamp(x + full * width, x + 40, x + width - 60), line + 40,
      `sum ${number(bonus.sum)}, stretched to 1`,
      { "font-size": 12, "text-anchor": full > 0.5 ? "end" : "start" });
  }
  if (s.bonus > 0 && bonus.u !== null && !round.greedy) {
    drawUniform(scene, "draw:u", x, width, line, 24, bonus.u, ease(between(s.bonus, 0, 0.6)));
  }
  if (chosen) {
    const cut = bonus.intervals.find((c) => c.drawn);
    scene.icon("draw:star", "bonus", x, line + 47, 14);
    scene.mono("draw:token", x + 20, line + 59, fit(bonus.text, 16), { "font-weight": 700 });
    const after = x + 20 + cells(fit(bonus.text, 16)) * 8 + 8;
    scene.text("draw:where", after, line + 59, round.greedy ? "all of the mass"
      : `${number(cut.lo)} to ${number(cut.hi)}`, { fill: ink.muted });
    if (!round.greedy) {
      paragraph(scene, "draw:note", x, line + 79, width, bonus.exact
        ? "Intervals in the order of token ids, as in the draw."
        : "Intervals in the order of token ids; “others” are kept as one sum.", { "font-size": 12 });
    }
  }
  return undefined;
}

const STEPS = [["draft", "draft"], ["verify", "verify"], ["plain", "plain step"]];
const ACTIVE = { draft: "draft", correct: "draft", verify: "verify" };

// Time drawn to length; inside it, how long the arithmetic and the memory reads would take at full rate.
function drawBusy(scene, width, round, plain, ceilings, s) {
  const { ink } = scene;
  const seconds = { ...round.seconds, plain: round.seconds.plain ?? plain?.step_seconds ?? null };
  const longest = Math.max(...STEPS.map(([kind]) => seconds[kind] ?? 0), 1e-9);
  let y = 0;
  for (const [kind, name] of STEPS) {
    const time = seconds[kind];
    const point = pointOf(round, plain, kind);
    const active = ACTIVE[s.now.kind] === kind;
    if (active) scene.put(`${kind}:lit`, "rect", { x: 0, y: y + 20, width: 3, height: 27, fill: ink.ink });
    scene.text(`${kind}:name`, 0, y + 13, name, { "font-weight": active ? 700 : 600 });
    scene.text(`${kind}:time`, width, y + 13, time === null ? "not measured" : kind === "draft" && !round.k ? "none"
      : si(time, "s"),
      { "text-anchor": "end" });
    const none = time === null || (kind === "draft" && !round.k);
    const x = 6;
    const long = time && !none ? Math.max(2, ((width - x - 1) * time) / longest) : 0;
    const share = (row, fraction, label, opacity) => {
      const top = y + 20 + row * 14;
      scene.put(`${kind}:${row}:idle`, "rect", { x, y: top, width: long, height: 13, fill: ink.dropped,
        "fill-opacity": 0.16, stroke: ink.fillLine,
        "stroke-width": 0.75 });
      if (fraction !== null && fraction !== undefined) {
        scene.put(`${kind}:${row}:busy`, "rect", { x, y: top, width: long * clamp(fraction, 0, 1), height: 13,
          fill: ink[kind], "fill-opacity": opacity,
          stroke: ink.fillLine, "stroke-width": 0.75 });
      }
    };
    if (long) {
      share(0, point?.busy_fraction, "compute", 1);
      share(1, point?.stream_fraction, "memory", 0.5);
    }
    const shares = point?.flagged ? "faster than a measured roof allows: measure the roofs again"
      : point ? [["compute", "busy"], ["memory", "stream"], ["neither", "overhead"]]
        .map(([label, share]) => `${label} ${percent(point[`${share}_fraction`])}`).join(" · ")
        : none ? "" : ceilings ? "no counted work (a lookup)" : "shares need measured ceilings";
    scene.text(`${kind}:share`, 0, y + 63, shares, { "font-size": 12, fill: ink.muted });
    y += 74;
  }
  return y + 8 + paragraph(scene, "note", 0, y + 8, width, ceilings
    ? "Time measured. Upper bar: counted FLOPs at the machine's measured peak. Lower: counted bytes at its bandwidth."
    : "Time measured. Ceilings not measured yet, so busy shares are unknown.", { "font-size": 12 });
}

const pointOf = (round, plain, kind) => round.points[kind] ?? (kind === "plain" ? plain?.point ?? null : null);

// Fixed log-log axes, so that rounds can be compared.
function drawRoof(scene, width, round, rounds, plain, ceilings, s) {
  const { ink } = scene;
  if (!ceilings) {
    paragraph(scene, "none", 0, 16, width,
      "Ceilings not measured yet: without this machine's measured bandwidth and peak there is no roof to draw.");
    return 60;
  }
  const height = 280;
  const box = { x: 42, y: 8, w: width - 50, h: height - 50 };
  const ridge = ceilings.flops / ceilings.bandwidth;
  // a decade below the memory roof's foot, or lower where a round of this run lies there (tiny models do)
  const rates = rounds.flatMap((r) => Object.values(r.points)).filter((p) => p && p.flops > 0 && p.seconds > 0)
    .map((p) => Math.log10(p.flops / p.seconds));
  const low = { x: -1, y: Math.floor(Math.min(Math.log10(ceilings.bandwidth * 0.1) - 1, ...rates)) };
  const high = { x: Math.max(3, Math.ceil(Math.log10(ridge)) + 1), y: Math.ceil(Math.log10(ceilings.flops * 1.15)) };
  const sx = (v) => box.x + (box.w * clamp(Math.log10(v) - low.x, 0, high.x - low.x)) / (high.x - low.x);
  const sy = (v) => box.y + box.h - (box.h * clamp(Math.log10(v) - low.y, 0, high.y - low.y)) / (high.y - low.y);
  for (let d = low.x; d <= high.x; d++) {
    scene.put(`gx:${d}`, "path", { d: `M${sx(10 ** d)} ${box.y} v${box.h}`, stroke: ink.grid });
    scene.text(`tx:${d}`, sx(10 ** d), box.y + box.h + 16, decade(d),
      { "text-anchor": "middle", "font-size": 12, fill: ink.muted });
  }
  for (let d = low.y; d <= high.y; d++) {
    scene.put(`gy:${d}`, "path", { d: `M${box.x} ${sy(10 ** d)} h${box.w}`, stroke: ink.grid });
    scene.text(`ty:${d}`, box.x - 6, sy(10 ** d) + 4, decade(d),
      { "text-anchor": "end", "font-size": 12, fill: ink.muted });
  }
  scene.text("xlabel", box.x + box.w / 2, height - 6, "FLOP per byte (counted)",
    { "text-anchor": "middle", "font-size": 12, fill: ink.muted });
  const lowest = Math.max(10 ** low.x, 10 ** low.y / ceilings.bandwidth);
  scene.put("roof", "path",
    { d: `M${sx(lowest)} ${sy(lowest * ceilings.bandwidth)} L${sx(ridge)} ${sy(ceilings.flops)} H${box.x + box.w}`,
    fill: "none", stroke: ink.ink, "stroke-width": 2 });
  scene.text("roof:flops", box.x + box.w - 2, sy(ceilings.flops) - 5, si(ceilings.flops, "FLOP/s"),
    { "text-anchor": "end", "font-size": 12 });
  const middle = Math.sqrt(lowest * ridge);
  scene.text("roof:bandwidth", sx(middle) - 8, sy(middle * ceilings.bandwidth) - 6, si(ceilings.bandwidth, "B/s"),
    { "text-anchor": "end", "font-size": 12,
    stroke: ink.paper, "stroke-width": 3, "paint-order": "stroke" });

  const dots = STEPS.map(([kind, name]) => ({ kind, name, point: pointOf(round, plain, kind) }))
    .filter(({ point }) => point && point.flops > 0 && point.seconds > 0)
    .map((dot) => ({ ...dot, x: sx(dot.point.intensity), y: sy(dot.point.flops / dot.point.seconds) }))
    .sort((a, b) => a.y - b.y);
  // labels to the right of their dots (left near the edge), pushed down until none covers another
  let free = -Infinity;
  for (const dot of dots) {
    const active = ACTIVE[s.now.kind] === dot.kind;
    dot.label = Math.max(dot.y + 18, free);
    free = dot.label + 16;
    const right = dot.x + 16 + dot.name.length * 7 < box.x + box.w;
    const lx = right ? dot.x + 14 : dot.x - 14;
    scene.put(`${dot.kind}:lead`, "path", { d: `M${dot.x} ${dot.y} L${right ? lx - 2 : lx + 2} ${dot.label - 4}`,
      stroke: ink.ink, "stroke-opacity": 0.5 });
    scene.text(`${dot.kind}:text`, lx, dot.label, dot.name, { "font-size": 12, "text-anchor": right ? "start" : "end",
      "font-weight": active ? 700 : 400, stroke: ink.paper, "stroke-width": 3, "paint-order": "stroke" });
  }
  // a shape for each kind, the small ones on top, so that dots on one spot can still be told apart
  for (const dot of dots.sort((a, b) => DOTS[b.kind].size - DOTS[a.kind].size)) {
    const active = ACTIVE[s.now.kind] === dot.kind;
    scene.put(`${dot.kind}:dot`, "path", { d: DOTS[dot.kind].d, fill: ink[dot.kind], stroke: ink.ink,
      transform: `translate(${Math.round(dot.x * 10) / 10} ${Math.round(dot.y * 10) / 10})`,
      "stroke-width": active ? 2.5 : 1.25 });
  }
  return height;
}

const DOTS = {
  draft: { size: 10, d: "M0 -10 L10 0 L0 10 L-10 0 Z" },
  verify: { size: 7, d: "M-7 0 A7 7 0 1 1 7 0 A7 7 0 1 1 -7 0 Z" },
  plain: { size: 5, d: "M-5 -5 H5 V5 H-5 Z" },
};

function decade(d) {
  const names = { "-1": "0.1", 0: "1", 1: "10", 2: "100", 3: "1k", 4: "10k", 5: "100k", 6: "1M", 7: "10M", 8: "100M",
    9: "1G", 10: "10G", 11: "100G", 12: "1T", 13: "10T", 14: "100T", 15: "1P", 16: "10P", 17: "100P" };
  return names[d] ?? `1e${d}`;
}

// ------------------------------------------------------------------------------------------- the player

const SHAPES = {
  first: "M4 3 V13 M13 3 L6 8 L13 13 Z", previousRound: "M8 3 L2.5 8 L8 13 Z M14 3 L8.5 8 L14 13 Z",
  previous: "M11 3 L4.5 8 L11 13 Z",
  play: "M4 2.5 L13 8 L4 13.5 Z", pause: "M4.5 3 V13 M11.5 3 V13", next: "M5 3 L11.5 8 L5 13 Z",
  nextRound: "M8 3 L13.5 8 L8 13 Z M2 3 L7.5 8 L2 13 Z", last: "M12 3 V13 M3 3 L10 8 L3 13 Z",
};
const BUTTONS = [
  ["first", "First step", "Home"], ["previousRound", "Previous round", "["], ["previous", "Previous step", "Left"],
  ["play", "Play", "Space"],
  ["next", "Next step", "Right"], ["nextRound", "Next round", "]"], ["last", "Last step", "End"],
];
const PHASES = [["draft", "Draft", ["draft", "correct"]], ["verify", "Verify", ["verify"]],
  ["judge", "Judge", ["judge", "dropped"]],
  ["bonus", "Bonus token", ["leftover", "bonus", "end"]]];
const LASTS = { draft: 650, correct: 900, verify: 1000, judge: 1300, dropped: 800, leftover: 1300, bonus: 1400,
  end: 900 };
const MOVES = 0.62; // the share of a step in which things move; then it rests, to be read

class Player {
  constructor(host) {
    this.host = host;
    this.el = {};
    for (const element of host.querySelectorAll("[data-el]")) this.el[element.dataset.el] = element;
    this.box = host.querySelector(".player");
    this.rounds = [];
    this.at = { round: 0, frame: 0 };
    this.t = 1;
    this.playing = false;
    this.following = true;
    this.pinned = null;
    this.hovered = null;
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.buildControls();
    this.scenes = {};
    for (const name of ["strip", "detail", "busy", "roof"]) {
      const svg = document.createElementNS(SVG, "svg");
      svg.setAttribute("role", name === "strip" ? "group" : "img");
      this.el[name].replaceChildren(svg);
      this.scenes[name] = new Scene(svg, null);
    }
    this.listen();
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.box);
  }

  close() {
    cancelAnimationFrame(this.raf);
    this.playing = false;
    this.resize.disconnect();
  }

  buildControls() {
    this.buttons = {};
    for (const [name, label, key] of BUTTONS) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(glyph(SHAPES[name]));
      button.setAttribute("aria-label", label);
      button.setAttribute("aria-keyshortcuts", { Left: "ArrowLeft", Right: "ArrowRight" }[key] ?? key);
      button.title = `${label} (${key})`;
      if (name === "play") button.className = "play";
      button.onclick = () => this.act(name);
      this.buttons[name] = button;
      this.el.buttons.append(button);
    }
    for (const [name, label] of PHASES) {
      const item = document.createElement("li");
      item.textContent = label;
      item.dataset.phase = name;
      this.el.phases.append(item);
    }
    const swatches = [["draft", "accepted draft"], ["leftover", "bonus token, from the leftover"],
      ["all_accepted", "bonus token, all drafts accepted"]];
    for (const [origin, label] of swatches) {
      const item = document.createElement("span");
      const sample = document.createElement("span");
      sample.className = `tok ${origin}`;
      sample.textContent = "abc";
      item.append(sample, label);
      this.el.legend.append(item);
    }
  }

  listen() {
    this.box.onkeydown = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select")) return;
      const name = { ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last", "[": "previousRound",
        "]": "nextRound", " ": "play" }[event.key];
      const token = event.target.closest(".tok");
      if (token && (event.key === "Enter" || event.key === " ")) {
        event.preventDefault();
        token.click();
        return;
      }
      if (!name || (event.key === " " && event.target.closest("button"))) return;
      event.preventDefault();
      this.act(name);
    };
    this.el.scrub.oninput = () => {
      this.stop();
      this.goTo(this.unflatten(Number(this.el.scrub.value)), false);
    };
    this.el.scrub.onchange = () => this.tell();
    this.el.row.onchange = () => {
      this.stop();
      this.report("row", Number(this.el.row.value));
    };
    this.el.speed.onchange = () => this.hush();
    this.el.follow.onclick = () => {
      this.following = !this.following;
      if (this.following) this.goTo(this.end());
      else this.renderControls();
    };
    this.el.svg.onclick = () => this.saveSvg();
    this.el.png.onclick = () => this.savePng();
    const slotOf = (event) => {
      const holder = event.target.closest("[data-slot]");
      return holder && !(holder.dataset.round && Number(holder.dataset.round) !== this.at.round)
        ? Number(holder.dataset.slot) : null;
    };
    for (const name of ["strip", "text", "rows"]) {
      const area = this.el[name];
      area.onpointerover = (event) => this.light("hovered", slotOf(event));
      area.onpointerleave = () => this.light("hovered", null);
      area.addEventListener("focusin", (event) => this.light("pinned", slotOf(event)));
      area.addEventListener("focusout", () => this.light("pinned", null));
    }
    this.el.text.onclick = (event) => {
      const token = event.target.closest(".tok");
      if (!token || Number(token.dataset.round) === this.at.round) return;
      this.stop();
      const round = Number(token.dataset.round);
      this.goTo({ round, frame: this.rounds[round].frames.length - 1 });
      this.tell();
    };
  }

  // ---- data from Python

  update(data) {
    this.data = data;
    this.setColours(data.colours);
    if (data.run !== this.run || data.row !== this.row) {
      this.stop();
      Object.assign(this, { run: data.run, row: data.row, stamp: data.stamp, rounds: [], acked: 0,
        at: { round: 0, frame: 0 }, t: 1, told: null,
                            following: data.streaming, started: false });
    } else if (data.stamp !== this.stamp) {
      // Python knows more about rounds that are already here: it sends them all again
      this.stamp = data.stamp;
      this.acked = 0;
    }
    if (data.start <= this.acked && data.rounds.length) {
      this.rounds.splice(data.start, data.rounds.length, ...data.rounds);
      this.acked = Math.max(this.acked, data.start + data.rounds.length);
    }
    this.acknowledge(data.start > this.acked);
    const sought = data.seek && data.seek.id !== this.sought && (data.seek.round ?? 0) < this.rounds.length;
    if (this.rounds.length && sought) {
      this.sought = data.seek.id;
      this.stop();
      this.following = false;
      const round = clamp(data.seek.round ?? 0, 0, this.rounds.length - 1);
      this.at = { round, frame: clamp(data.seek.frame ?? 0, 0, this.rounds[round].frames.length - 1) };
      this.t = 1;
      this.started = true;
    } else if ((data.streaming || this.wasStreaming) && this.following && this.rounds.length && !this.playing) {
      this.at = this.end();
      this.t = 1;
    }
    this.wasStreaming = data.streaming;
    this.hush();
    this.renderHead();
    this.renderStep();
    if (this.rounds.length && !this.started) {
      this.started = true;
      if (data.autoplay && !data.streaming && !this.still.matches) this.play();
    }
  }

  acknowledge(again) {
    const mark = `${this.run}|${this.row}|${this.stamp}|${this.acked}`;
    if (mark === this.acknowledged && !again) return;
    if (again && this.asked === mark) return;
    this.asked = again ? mark : null;
    this.acknowledged = mark;
    this.report("have", { run: this.run, row: this.row, stamp: this.stamp, count: this.acked });
  }

  setColours(colours) {
    for (const [name, value] of Object.entries(colours.roles)) this.box.style.setProperty(`--sv-${name}`, value);
    const live = {
      ink: "var(--sv-ink)", muted: "var(--sv-muted)", grid: "var(--sv-grid)", paper: "var(--sv-paper)",
      font: "var(--sv-font)", mono: "var(--sv-mono)",
      fillLine: "color-mix(in srgb, var(--sv-ink) 60%, transparent)",
      draftLine: "color-mix(in srgb, var(--sv-draft) 70%, var(--sv-ink))",
      pitch: 0.455, // mean width of a character in ems: Source Sans is narrow
      ...colours.roles,
    };
    for (const scene of Object.values(this.scenes)) scene.ink = live;
  }

  // ---- the playhead

  get round() {
    return this.rounds[this.at.round];
  }

  end() {
    const round = this.rounds.length - 1;
    return { round, frame: this.rounds[round].frames.length - 1 };
  }

  flatten({ round, frame }) {
    return this.rounds.slice(0, round).reduce((sum, r) => sum + r.frames.length, 0) + frame;
  }

  unflatten(index) {
    let round = 0;
    while (round < this.rounds.length - 1 && index >= this.rounds[round].frames.length)
      index -= this.rounds[round++].frames.length;
    return { round, frame: clamp(index, 0, this.rounds[round].frames.length - 1) };
  }

  act(name) {
    if (!this.rounds.length) return;
    if (name === "play") {
      if (this.playing) {
        this.stop();
        this.t = 1;
        this.renderStep();
        this.tell();
      } else this.play();
      return;
    }
    this.stop();
    this.following = false;
    const { round, frame } = this.at;
    const index = this.flatten(this.at);
    const target = {
      first: () => ({ round: 0, frame: 0 }),
      last: () => this.end(),
      previous: () => this.unflatten(Math.max(0, index - 1)),
      next: () => this.unflatten(Math.min(this.flatten(this.end()), index + 1)),
      previousRound: () => ({ round: frame > 0 ? round : Math.max(0, round - 1), frame: 0 }),
      nextRound: () => (round + 1 < this.rounds.length ? { round: round + 1, frame: 0 } : this.end()),
    }[name]();
    const forward = name === "next" && this.flatten(target) === index + 1;
    this.goTo(target, forward);
    this.tell();
  }

  goTo(at, animate = false) {
    this.at = at;
    this.pinned = this.hovered = null;
    if (animate && !this.still.matches) this.animate(false);
    else {
      cancelAnimationFrame(this.raf);
      this.t = 1;
    }
    this.renderStep();
  }

  play() {
    const end = this.end();
    if (this.at.round === end.round && this.at.frame === end.frame) this.at = { round: 0, frame: 0 };
    this.playing = true;
    this.following = false;
    this.hush();
    this.animate(true);
    this.renderStep();
  }

  stop() {
    cancelAnimationFrame(this.raf);
    this.playing = false;
    this.hush();
  }

  // Runs t from 0 to 1 in the current step; when playing, goes on to the next one.
  animate(on) {
    cancelAnimationFrame(this.raf);
    const begun = performance.now();
    this.t = this.still.matches ? 1 : 0;
    const tick = (now) => {
      const lasts = LASTS[this.round.frames[this.at.frame].kind] / Number(this.el.speed.value);
      const passed = (now - begun) / lasts;
      if (!this.still.matches) {
        this.t = clamp(passed / MOVES, 0, 1);
        this.draw(false);
      }
      if (passed < (on ? 1 : MOVES)) {
        this.raf = requestAnimationFrame(tick);
      } else if (on) {
        const next = this.flatten(this.at) + 1;
        if (next > this.flatten(this.end())) {
          this.stop();
          this.renderStep();
          this.tell();
          return;
        }
        this.at = this.unflatten(next);
        this.pinned = this.hovered = null;
        this.animate(true);
        this.renderStep();
      }
    };
    this.raf = requestAnimationFrame(tick);
  }

  // The sentence is read out at the reader's pace, not at the player's.
  hush() {
    const fast = this.playing && Number(this.el.speed.value) >= 2;
    const chased = this.data?.streaming && this.following;
    this.el.words.setAttribute("aria-live", fast || chased ? "off" : "polite");
  }

  tell() {
    const mark = `${this.run}|${this.row}|${this.at.round}|${this.at.frame}`;
    if (mark === this.told) return;
    this.told = mark;
    this.report("step", { run: this.run, row: this.row, round: this.at.round, frame: this.at.frame });
  }

  light(how, slot) {
    if (this[how] === slot) return;
    this[how] = slot;
    this.draw();
    this.renderLit();
  }

  // The position whose bars are shown: the one pointed at, or the one the story is at.
  get focus() {
    const chosen = this.hovered ?? this.pinned;
    if (chosen !== null && chosen <= this.round.slots.length) return chosen;
    const frame = this.round.frames[this.at.frame];
    if (["leftover", "bonus"].includes(frame.kind)) return frame.slots[0];
    if (frame.kind === "dropped" || frame.kind === "end") return Math.min(this.round.accepted, this.round.slots.length);
    if (frame.kind === "verify") return 0;
    return frame.slots.length > 1 ? 0 : frame.slots[0] ?? 0;
  }

  // ---- showing

  renderHead() {
    const { data, el } = this;
    el.badge.hidden = !data.recorded && !data.streaming;
    el.badge.textContent = data.streaming ? "live" : data.recorded ? "recorded" : "";
    el.meta.replaceChildren();
    const facts = data.recorded ? [["", data.recorded], ...data.meta] : data.meta;
    facts.forEach(([name, value], i) => {
      if (i) el.meta.append(" · ");
      if (name) el.meta.append(`${name} `);
      const strong = document.createElement(name ? "b" : "span");
      strong.textContent = value;
      el.meta.append(strong);
    });
    el.rowField.hidden = data.rows <= 1;
    if (el.row.options.length !== data.rows) {
      el.row.replaceChildren(...Array.from({ length: data.rows }, (_, i) => new Option(String(i + 1), String(i))));
    }
    el.row.value = String(data.row);
    el.follow.hidden = !data.streaming;
    el.empty.hidden = this.rounds.length > 0;
    el.empty.textContent = data.streaming ? "Waiting for the first round." : "No rounds yet.";
    el.body.hidden = !this.rounds.length;
  }

  renderStep() {
    if (!this.rounds.length) return;
    this.at.round = Math.min(this.at.round, this.rounds.length - 1);
    const { el, round } = this;
    const frame = round.frames[this.at.frame];
    if (el.words.textContent !== frame.words) el.words.textContent = frame.words;
    el.where.textContent = `Round ${this.at.round + 1} of ${this.rounds.length} · ${frame.title}`;
    const phase = PHASES.findIndex(([, , kinds]) => kinds.includes(frame.kind));
    [...el.phases.children].forEach((item, i) => (item.className = i === phase ? "now" : i < phase ? "past" : ""));
    this.renderControls();
    this.renderCounters();
    this.renderText();
    this.renderTable();
    this.draw();
    this.renderLit();
    // once per step, lest a tick of the server takes a scrolled strip out of the reader's hand
    const place = `${this.run}|${this.row}|${this.at.round}|${this.at.frame}`;
    if (place !== this.place) {
      this.place = place;
      this.scrollToFocus();
      el.text.scrollTop = el.text.scrollHeight;
    }
  }

  renderControls() {
    const { el, buttons } = this;
    const index = this.flatten(this.at);
    const last = this.flatten(this.end());
    el.scrub.max = String(last);
    el.scrub.value = String(index);
    el.scrub.setAttribute("aria-valuetext",
      `round ${this.at.round + 1} of ${this.rounds.length}, step ${this.at.frame + 1} of ${this.round.frames.length}`);
    el.follow.setAttribute("aria-pressed", String(this.following));
    for (const name of ["first", "previous", "previousRound"]) mute(buttons[name], index === 0);
    for (const name of ["last", "next", "nextRound"]) mute(buttons[name], index === last);
    const label = this.playing ? "Pause" : "Play";
    if (buttons.play.getAttribute("aria-label") !== label) {
      buttons.play.setAttribute("aria-label", label);
      buttons.play.title = `${label} (Space)`;
      buttons.play.replaceChildren(glyph(SHAPES[this.playing ? "pause" : "play"]));
    }
  }

  renderCounters() {
    const c = this.round.counters;
    const plain = { tokens_per_second: this.data.plain?.tokens_per_second ?? c.plain_tokens_per_second,
                    flops_per_token: this.data.plain?.flops_per_token ?? c.plain_flops_per_token };
    const times = (a, b) => (a && b ? `${number(a / b)}× plain` : "");
    const items = [
      ["Tokens per target pass", number(c.tokens_per_pass),
        `${c.tokens} tokens in ${c.rounds} pass${c.rounds === 1 ? "" : "es"}, bonus included`],
      ["Acceptance rate", c.acceptance_rate === null ? "none drafted" : percent(c.acceptance_rate),
        `${c.accepted} of ${c.proposed} drafts (counted)`],
      [this.data.rows > 1 ? "Tokens per second, all rows" : "Tokens per second", number(c.tokens_per_second),
        plain.tokens_per_second
          ? `${times(c.tokens_per_second, plain.tokens_per_second)}: ${number(plain.tokens_per_second)} tokens/s`
            + " in the same run (measured)" : "plain not measured in this run"],
      ["FLOPs per token", si(c.flops_per_token, "FLOP"), plain.flops_per_token
        ? `${times(c.flops_per_token, plain.flops_per_token)}: ${si(plain.flops_per_token, "FLOP")} (counted)`
          : "plain not counted in this run"],
    ];
    this.el.counters.replaceChildren(...items.map(([name, value, note]) => {
      const box = document.createElement("div");
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      const small = document.createElement("span");
      dt.textContent = name;
      small.className = "note";
      small.textContent = note;
      dd.append(value, small);
      box.append(dt, dd);
      return box;
    }));
  }

  // How many of the current round's tokens have been emitted at this step.
  emittedSoFar() {
    const s = story(this.round, this.at.frame, 1);
    return this.round.emitted.filter((_, i) => (i < this.round.accepted ? s.judged[i] : s.bonus)).length;
  }

  renderText() {
    const { text } = this.el;
    const wanted = [];
    for (let r = 0; r <= this.at.round; r++) {
      const tokens = r < this.at.round ? this.rounds[r].emitted : this.round.emitted.slice(0, this.emittedSoFar());
      tokens.forEach((token, i) => wanted.push([`${r}.${i}`, token, r, i]));
    }
    const mark = `${this.run}|${this.row}`;
    if (text.dataset.mark !== mark) {
      text.replaceChildren();
      text.dataset.mark = mark;
    }
    while (text.children.length > wanted.length) text.lastChild.remove();
    wanted.forEach(([key, token, r, i], n) => {
      let button = text.children[n];
      if (!button) {
        // a span, since a button never lets a line end inside it
        button = document.createElement("span");
        button.setAttribute("role", "button");
        text.append(button);
      }
      if (button.dataset.key !== `${key}:${token.id}`) {
        button.dataset.key = `${key}:${token.id}`;
        button.dataset.round = String(r);
        button.dataset.slot = String(i);
        fillToken(button, token);
        const origin = { draft: "accepted draft", leftover: "bonus token from the leftover",
          all_accepted: "bonus token" }[token.origin];
        button.title = `${token.text}: ${origin}, round ${r + 1}`;
      }
      button.className = `tok ${token.origin}${r === this.at.round ? " current" : ""}`;
      button.tabIndex = r === this.at.round ? 0 : -1;
    });
  }

  renderTable() {
    const { round, el } = this;
    const s = story(round, this.at.frame, 1);
    const what = round.slots.length ? "what was drafted and what the target said" : "a plain step";
    el.caption.textContent = `Round ${this.at.round + 1}: ${what} (context ${round.context} tokens)`;
    const rows = round.slots.map((slot, i) => {
      const seen = s.drafted[i] > 0;
      const verdict = verdictSoFar(round, s, i);
      const rough = slot.first_guess && s.corrected[i] < 0.5;  // not mended yet: the token that it will be is not known
      const text = rough ? slot.first_guess.text : slot.text;
      return { slot: i, verdict, cells: [String(i + 1), seen ? text : "",
        seen ? (rough ? "first guess" : number(slot.q) + sure(slot)) : "",
        s.verify ? number(slot.p) : "", s.verify ? number(slot.threshold) : "",
        s.judged[i] ? number(slot.u) : "", verdict ?? ""] };
    });
    const bonus = s.bonus ? round.bonus : null;
    const drawn = bonus ? (round.slots[bonus.slot] ?? round.past).bars.find((bar) => bar.drawn) : null;
    rows.push({ slot: bonus ? bonus.slot : round.slots.length, verdict: bonus ? "bonus" : null, cells: bonus ? [
      String(bonus.slot + 1), bonus.text, bonus.kind === "leftover" ? number(drawn.q) : "", number(drawn.p), "",
      round.greedy ? "" : number(bonus.u), bonus.kind === "leftover" ? "bonus, from the leftover" : "bonus, from p",
    ] : Array(7).fill("") });
    while (el.rows.children.length > rows.length) el.rows.lastChild.remove();
    rows.forEach(({ slot, verdict, cells: values }, i) => {
      let row = el.rows.children[i];
      if (!row) {
        row = document.createElement("tr");
        row.append(...values.map(() => document.createElement("td")));
        row.tabIndex = 0;
        el.rows.append(row);
      }
      row.dataset.slot = String(slot);
      row.className = verdict ?? "";
      values.forEach((value, c) => {
        const cell = row.children[c];
        if (c === 1) cell.className = "token";
        if (c < 6) cell.textContent = value;
        else if (cell.dataset.value !== value) {
          cell.dataset.value = value;
          const holder = document.createElement("span");
          holder.className = "verdict";
          if (verdict) holder.append(glyph(icon(verdict, this.scenes.strip.ink).d, verdict, this.scenes.strip.ink));
          holder.append(value);
          cell.replaceChildren(holder);
        }
      });
    });
  }

  renderLit() {
    const chosen = this.hovered ?? this.pinned;
    const lit = (element) => chosen !== null && Number(element.dataset.slot) === chosen;
    for (const row of this.el.rows.children) row.classList.toggle("lit", lit(row));
    for (const token of this.el.text.children) {
      token.classList.toggle("lit", lit(token) && Number(token.dataset.round) === this.at.round);
    }
  }

  scrollToFocus() {
    const { strip } = this.el;
    if (strip.scrollWidth <= strip.clientWidth) return;
    const column = this.column * (this.focus + 1);
    const frame = this.round.frames[this.at.frame];
    if (frame.kind === "verify" || frame.slots.length > 1) return;
    if (column < strip.scrollLeft || column + this.column > strip.scrollLeft + strip.clientWidth) {
      strip.scrollTo({ left: column - strip.clientWidth / 2, behavior: this.still.matches ? "auto" : "smooth" });
    }
  }

  // aside: also what stands beside the stage, which changes only from step to step.
  draw(aside = true) {
    if (!this.rounds.length || this.el.body.hidden) return;
    const { round, data } = this;
    const s = story(round, this.at.frame, this.t);
    const focus = this.focus;
    const room = this.el.strip.clientWidth;
    if (!room) return;
    const strip = this.scenes.strip;
    const size = drawStrip(strip, stripWidth(round, room), round, s, focus);
    this.column = size.column;
    this.putTargets(strip, size, round, s);
    this.show("strip", size.width, size.height, `Round ${this.at.round + 1}: tokens and verdicts`);
    const detailRoom = this.el.detail.clientWidth;
    this.show("detail", detailRoom, drawDetail(this.scenes.detail, detailRoom, round, focus, s),
      this.describe(focus, s));
    if (!aside) return;
    const sideRoom = this.el.busy.clientWidth;
    this.show("busy", sideRoom, drawBusy(this.scenes.busy, sideRoom, round, data.plain, data.ceilings, s),
      this.describeBusy());
    this.show("roof", sideRoom, drawRoof(this.scenes.roof, sideRoom, round, this.rounds, data.plain, data.ceilings, s),
      this.describeRoof());
  }

  // Invisible fields over the columns, so that each token can be pointed at and reached by keyboard.
  putTargets(scene, size, round, s) {
    for (let i = 0; i <= round.slots.length; i++) {
      scene.put(`hit:${i}`, "rect", { x: size.column * (i + 1), y: 0, width: size.column, height: size.height, rx: 10,
        fill: "transparent", tabindex: "0",
        role: "img", "data-slot": String(i), "aria-label": this.describe(i, s) });
    }
  }

  describe(i, s) {
    const { round } = this;
    const slot = round.slots[i];
    if (!slot) {
      const drawn = round.bonus && round.bonus.slot === i && s.bonus;
      return drawn ? `Position ${i + 1}. ${round.bonus.words}` : `Position ${i + 1}: past the last draft`;
    }
    if (!s.drafted[i]) return `Draft ${i + 1}: not drafted yet`;
    const parts = [`Draft ${i + 1}: ${slot.text}`, `q ${equals(slot.q)}`];
    if (s.verify) parts.push(`p ${equals(slot.p)}`);
    const verdict = verdictSoFar(round, s, i);
    return verdict ? `${parts.join(", ")}. ${slot.words}` : parts.join(", ");
  }

  describeBusy() {
    return STEPS.map(([kind, name]) => {
      const point = pointOf(this.round, this.data.plain, kind);
      const time = this.round.seconds[kind];
      const busy = point ? `, compute busy ${percent(point.busy_fraction)}` : "";
      return `${name}: ${time === null ? "not measured" : si(time, "s")}${busy}`;
    }).join("; ");
  }

  describeRoof() {
    if (!this.data.ceilings) return "Ceilings not measured yet";
    return STEPS.map(([kind, name]) => [name, pointOf(this.round, this.data.plain, kind)]).filter(([, point]) => point)
      .map(([name, point]) => `${name}: ${number(point.intensity)} FLOP per byte, `
        + si(point.flops / point.seconds, "FLOP/s")).join("; ");
  }

  show(name, width, height, label) {
    const scene = this.scenes[name];
    scene.commit();
    const svg = scene.root;
    attribute(svg, { width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": label });
  }

  // ---- export: the same drawing with dark ink on white, and no style sheet to lose

  picture() {
    const { colours } = this.data;
    const paper = { ...colours.paper, ...colours.roles, font: "Helvetica, Arial, sans-serif",
      mono: "Menlo, Consolas, 'DejaVu Sans Mono', monospace",
                    fillLine: colours.paper.ink, draftLine: "#8A5F00", pitch: 0.5 };
    const { round } = this;
    const frame = round.frames[this.at.frame];
    const s = story(round, this.at.frame, this.t);
    const margin = 24;
    const inner = Math.max(1000, (round.slots.length + 2) * COLUMN);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("xmlns", SVG);
    const scene = (y) => {
      const group = document.createElementNS(SVG, "g");
      group.setAttribute("transform", `translate(${margin} ${y})`);
      svg.append(group);
      return new Scene(group, paper);
    };
    const head = scene(margin);
    const facts = [...(this.data.recorded ? [["", this.data.recorded]] : []), ...this.data.meta]
      .map(([name, value]) => `${name} ${value}`.trim()).join(" · ");
    head.text("title", 0, 18, `Round ${this.at.round + 1} of ${this.rounds.length} · ${frame.title}`,
      { "font-size": 18, "font-weight": 700 });
    paragraph(head, "words", 0, 44, inner * 0.86, frame.words, { "font-size": 15, fill: paper.ink });
    head.commit();
    const strip = scene(margin + 78);
    const size = drawStrip(strip, inner, round, s, null);
    strip.commit();
    const detail = scene(margin + 78 + size.height + 8);
    const high = drawDetail(detail, inner, round, this.focus, s);
    detail.commit();
    const foot = scene(margin + 78 + size.height + 8 + high + 12);
    const low = paragraph(foot, "facts", 0, 12, inner, `SpecViz · ${facts}`, { "font-size": 12 });
    foot.commit();
    const height = margin * 2 + 78 + size.height + 8 + high + 12 + low;
    const width = inner + 2 * margin;
    attribute(svg, { width, height, viewBox: `0 0 ${width} ${height}` });
    const ground = document.createElementNS(SVG, "rect");
    attribute(ground, { width, height, fill: paper.paper });
    svg.prepend(ground);
    return { text: new XMLSerializer().serializeToString(svg), width, height };
  }

  get fileName() {
    return `specviz-round-${this.at.round + 1}-step-${this.at.frame + 1}`;
  }

  saveSvg() {
    save(new Blob([this.picture().text], { type: "image/svg+xml" }), `${this.fileName}.svg`);
  }

  savePng() {
    const { text, width, height } = this.picture();
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = width * 2;
      canvas.height = height * 2;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(blob, `${this.fileName}.png`), "image/png");
      URL.revokeObjectURL(image.src);
    };
    image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  }
}

// Not `disabled`: that would throw away the keyboard focus of whoever just pressed the button.
function mute(button, off) {
  button.setAttribute("aria-disabled", String(off));
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A token in running text: its own characters, with a sign where a line ends or nothing would be seen.
function fillToken(box, token) {
  box.replaceChildren();
  const sign = (text) => {
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.textContent = text;
    box.append(mark);
  };
  if (token.text.includes("\\") || (!token.raw.trim() && !token.raw.includes("\n"))) {
    sign(token.text);
    return;
  }
  token.raw.split("\n").forEach((line, i) => {
    if (i) {
      sign("↵");
      box.append("\n");
    }
    box.append(line);
  });
}

function glyph(d, kind, ink) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  const filled = !kind || kind === "bonus";
  const color = kind ? icon(kind, ink).color : "currentColor";
  const attributes = { d, fill: filled ? color : "none", stroke: kind === "bonus" ? "currentColor" : color,
    "stroke-width": kind ? (filled ? 1 : 2.6) : 1.6,
                       "stroke-linejoin": "round", "stroke-linecap": "round" };
  attribute(path, attributes);
  const size = kind ? 14 : 16;
  attribute(svg, { viewBox: "0 0 16 16", width: size, height: size, "aria-hidden": "true" });
  svg.append(path);
  return svg;
}
