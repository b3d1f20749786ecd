// The roofline of a round: achieved rate over arithmetic intensity, under the machine's measured roof.

import { clamp } from "../lib/motion.js";
import { si } from "../lib/numbers.js";
import { paragraph } from "../lib/scene.js";
import { ACTIVE_PASS } from "./busy.js";

const DOTS = {
  draft: { size: 10, d: "M0 -10 L10 0 L0 10 L-10 0 Z" },
  verify: { size: 7, d: "M-7 0 A7 7 0 1 1 7 0 A7 7 0 1 1 -7 0 Z" },
  plain: { size: 5, d: "M-5 -5 H5 V5 H-5 Z" },
};

/** Fixed log-log axes (decades) that hold the ceilings and every measured rate of the run, so that rounds compare. */
export function roofAxes(rounds, ceilings) {
  const rates = rounds.flatMap((r) => Object.values(r.points)).filter((p) => p && p.rate > 0)
    .map((p) => Math.log10(p.rate));
  // a decade below the memory roof's foot, or lower where a round of this run lies there (tiny models do)
  const foot = Math.log10(ceilings.bandwidth * 0.1) - 1;
  return {
    low: { x: -1, y: Math.floor(Math.min(foot, ...rates)) },
    high: { x: Math.max(3, Math.ceil(Math.log10(ceilings.ridge)) + 1),
            y: Math.ceil(Math.log10(ceilings.flops * 1.15)) },
  };
}

/** Draws the machine's roof and the passes of a round under it. Returns the height in pixels. */
export function drawRoof(scene, width, round, rounds, ceilings, s) {
  if (!ceilings) {
    paragraph(scene, "none", 0, 16, width, round.texts.roof.none);
    return 60;
  }
  const height = 280;
  const box = { x: 42, y: 8, w: width - 50, h: height - 50 };
  const { low, high } = roofAxes(rounds, ceilings);
  const sx = (v) => box.x + (box.w * clamp(Math.log10(v) - low.x, 0, high.x - low.x)) / (high.x - low.x);
  const sy = (v) => box.y + box.h - (box.h * clamp(Math.log10(v) - low.y, 0, high.y - low.y)) / (high.y - low.y);
  const view = { box, low, high, sx, sy, height };
  drawDecades(scene, view);
  drawCeilings(scene, view, ceilings);
  drawDots(scene, view, round, s);
  return height;
}

function drawDecades(scene, { box, low, high, sx, sy, height }) {
  const { ink } = scene;
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
}

function drawCeilings(scene, { box, low, sx, sy }, ceilings) {
  const { ink } = scene;
  const { ridge } = ceilings;
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
}

function drawDots(scene, { box, sx, sy }, round, s) {
  const { ink } = scene;
  const dots = Object.keys(DOTS).map((kind) => ({ kind, point: round.points[kind] }))
    .filter(({ point }) => point && point.rate > 0)
    .map((dot) => ({ ...dot, name: round.texts.busy.steps[dot.kind].name, x: sx(dot.point.intensity),
      y: sy(dot.point.rate) }))
    .sort((a, b) => a.y - b.y);
  // labels to the right of their dots (left near the edge), pushed down until none covers another
  let free = -Infinity;
  for (const dot of dots) {
    const active = ACTIVE_PASS[s.now.kind] === dot.kind;
    dot.label = Math.max(dot.y + 18, free);
    free = dot.label + 16;
    const right = dot.x + 16 + dot.name.length * 7 < box.x + box.w;
    const lx = right ? dot.x + 14 : dot.x - 14;
    scene.put(`${dot.kind}:lead`, "path", { d: `M${dot.x} ${dot.y} L${right ? lx - 2 : lx + 2} ${dot.label - 4}`,
      stroke: ink.ink, "stroke-opacity": 0.5 });
    scene.text(`${dot.kind}:text`, lx, dot.label, dot.name, { "font-size": 12, "text-anchor": right ? "start" : "end",
      "font-weight": active ? 700 : 400, stroke: ink.paper, "stroke-width": 3, "paint-order": "stroke" });
  }
  // a shape for each kind, the small ones on top, so that dots on one spot stay distinct
  for (const dot of dots.sort((a, b) => DOTS[b.kind].size - DOTS[a.kind].size)) {
    const active = ACTIVE_PASS[s.now.kind] === dot.kind;
    scene.put(`${dot.kind}:dot`, "path", { d: DOTS[dot.kind].d, fill: ink[dot.kind], stroke: ink.ink,
      transform: `translate(${Math.round(dot.x * 10) / 10} ${Math.round(dot.y * 10) / 10})`,
      "stroke-width": active ? 2.5 : 1.25 });
  }
}

/** A power of ten as an axis label: decade(4) is "10k". */
export function decade(d) {
  const names = { "-1": "0.1", 0: "1", 1: "10", 2: "100", 3: "1k", 4: "10k", 5: "100k", 6: "1M", 7: "10M", 8: "100M",
    9: "1G", 10: "10G", 11: "100G", 12: "1T", 13: "10T", 14: "100T", 15: "1P", 16: "10P", 17: "100P" };
  return names[d] ?? `1e${d}`;
}
