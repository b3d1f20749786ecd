// Busy and idle: the time of draft, verify and plain step, drawn to length.

import { clamp } from "../lib/motion.js";
import { paragraph } from "../lib/scene.js";

/** The pass that a frame of the story belongs to. */
export const ACTIVE_PASS = { draft: "draft", correct: "draft", verify: "verify" };

/**
 * Draws the time of each pass to length; inside it, how long the arithmetic and the memory reads would take at full
 * rate. Returns the height in pixels.
 */
export function drawBusy(scene, width, round, s) {
  const { ink } = scene;
  const { steps, note } = round.texts.busy;
  const longest = Math.max(...Object.keys(steps).map((kind) => round.seconds[kind] ?? 0), 1e-9);
  let y = 0;
  for (const [kind, { name, time: shown, shares }] of Object.entries(steps)) {
    const time = round.seconds[kind];
    const point = round.points[kind];
    const active = ACTIVE_PASS[s.now.kind] === kind;
    if (active) scene.put(`${kind}:lit`, "rect", { x: 0, y: y + 20, width: 3, height: 27, fill: ink.ink });
    scene.text(`${kind}:name`, 0, y + 13, name, { "font-weight": active ? 700 : 600 });
    scene.text(`${kind}:time`, width, y + 13, shown, { "text-anchor": "end" });
    const x = 6;
    const long = time && !(kind === "draft" && !round.k) ? Math.max(2, ((width - x - 1) * time) / longest) : 0;
    if (long) {
      drawShare(scene, `${kind}:0`, x, y + 20, long, point?.busy_fraction, ink[kind], 1);
      drawShare(scene, `${kind}:1`, x, y + 34, long, point?.stream_fraction, ink[kind], 0.5);
    }
    scene.text(`${kind}:share`, 0, y + 63, shares, { "font-size": 12, fill: ink.muted });
    y += 74;
  }
  return y + 8 + paragraph(scene, "note", 0, y + 8, width, note, { "font-size": 12 });
}

// A bar of the whole time, filled up to the busy fraction where that is known.
function drawShare(scene, key, x, y, width, fraction, fill, opacity) {
  const { ink } = scene;
  scene.put(`${key}:idle`, "rect", { x, y, width, height: 13, fill: ink.dropped, "fill-opacity": 0.16,
    stroke: ink.fillLine, "stroke-width": 0.75 });
  if (fraction === null || fraction === undefined) return;
  scene.put(`${key}:busy`, "rect", { x, y, width: width * clamp(fraction, 0, 1), height: 13, fill,
    "fill-opacity": opacity, stroke: ink.fillLine, "stroke-width": 0.75 });
}
