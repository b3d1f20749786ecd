// The bars of a position: p beside q for its likeliest tokens.

import { between, clamp, ease } from "../lib/motion.js";
import { number } from "../lib/numbers.js";
import { fit } from "../lib/text.js";

const BAR_ROW = 30;
const BAR_ROWS = 10;
/** Height of the bars of a position, in pixels. */
export const BARS_HEIGHT = 46 + BAR_ROWS * BAR_ROW;

/** Draws p and q of the likeliest tokens of position `at` as paired bars, as far as the story `s` has got. */
export function drawBars(scene, x, y, width, round, place, at, s) {
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

  const forming = round.kind === "leftover" && at === round.accepted ? ease(s.leftover) : 0;
  drawBarLegend(scene, x, y, { drafted, raw, forming });
  drawBarAxis(scene, y, start, limit, sx);
  const view = { x, start, span, labels, drafted, raw, forming, grownP, grownQ, sx };
  all.forEach((bar, i) => drawBar(scene, y + 44 + i * BAR_ROW, bar, i, {
    ...view, p: value(bar, "p"), q: value(bar, "q"), isDraft: bar.drafted && drafted && s.drafted[at] > 0,
    isDrawn: bar.drawn && s.bonus > 0.6 }));
}

function drawBarLegend(scene, x, y, { drafted, raw, forming }) {
  const { ink } = scene;
  let lx = x;
  const entry = (key, text, look) => {
    scene.put(`legend:${key}`, "rect", { x: lx, y: y + 3, width: 12, height: 10, rx: 2, "stroke-width": 1, ...look });
    scene.text(`legend:${key}:text`, lx + 17, y + 13, text, { "font-size": 12, fill: ink.muted });
    lx += 17 + text.length * 6.1 + 14;
  };
  entry("p", "p target", { fill: ink.target, stroke: ink.target });
  if (drafted) entry("q", "q draft", { fill: ink.draft, stroke: ink.fillLine });
  if (drafted && !raw) entry("min", "min(p, q)", { fill: ink.accepted, stroke: ink.accepted });
  if (forming > 0 && !raw) entry("left", "left over", { fill: ink.bonus, stroke: ink.fillLine });
  if (raw) scene.text("legend:raw", lx, y + 13, "raw softmax, T = 1", { "font-size": 12, fill: ink.muted });
}

function drawBarAxis(scene, y, start, limit, sx) {
  const { ink } = scene;
  for (const tick of [0, limit / 2, limit]) {
    scene.put(`axis:${tick === 0 ? 0 : tick / limit}`, "path",
      { d: `M${start + sx(tick)} ${y + 40} V${y + 46 + BAR_ROWS * BAR_ROW - 2}`,
      stroke: ink.grid });
    scene.text(`axis:${tick === 0 ? 0 : tick / limit}:text`, start + sx(tick), y + 34, String(tick),
      { "font-size": 12, fill: ink.muted, "text-anchor": "middle" });
  }
}

function drawBar(scene, top, bar, i, view) {
  const { ink } = scene;
  const { x, start, span, labels, drafted, raw, forming, grownP, grownQ, sx, p, q, isDraft, isDrawn } = view;
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
}
