// The draw of the bonus token: u on the line 0..1 of the leftover, or of p.

import { between, clamp, ease } from "../lib/motion.js";
import { paragraph } from "../lib/scene.js";
import { cells, fit } from "../lib/text.js";
import { drawUniform } from "./uniform.js";

/** Height of the draw of the bonus token, in pixels. */
export const DRAW_HEIGHT = 176;

/** Draws where the bonus token comes from: the line 0..1, one interval a token. */
export function drawBonus(scene, x, y, width, round, s) {
  const { bonus, texts: { draw: texts } } = round;
  const leftover = bonus?.kind === "leftover";
  const started = bonus && (leftover ? s.leftover > 0 : s.bonus > 0 || s.now.kind === "bonus");
  scene.text("draw", x, y + 13, started ? texts.title : texts.before_title, { "font-weight": 600 });
  if (!started) {
    paragraph(scene, "draw:say", x, y + 38, width, texts.before);
    return;
  }
  const { ink } = scene;
  const line = y + 66;
  const full = leftover ? clamp(bonus.sum + (1 - bonus.sum) * ease(between(s.leftover, 0.25, 1)), 0.02, 1) : 1;
  const chosen = s.bonus > 0.6;
  drawIntervals(scene, x, line, width, round, full, chosen);
  scene.text("draw:0", x, line + 40, "0", { "font-size": 12, fill: ink.muted });
  scene.text("draw:1", x + width, line + 40, "1", { "font-size": 12, fill: ink.muted, "text-anchor": "end" });
  if (leftover && full < 1) {
    scene.text("draw:sum", clamp(x + full * width, x + 40, x + width - 60), line + 40,
      texts.sum,
      { "font-size": 12, "text-anchor": full > 0.5 ? "end" : "start" });
  }
  if (s.bonus > 0 && bonus.u !== null && !round.greedy) {
    drawUniform(scene, "draw:u", x, width, line, 24, bonus.u, ease(between(s.bonus, 0, 0.6)));
  }
  if (chosen) {
    scene.icon("draw:star", "bonus", x, line + 47, 14);
    scene.mono("draw:token", x + 20, line + 59, fit(bonus.text, 16), { "font-weight": 700 });
    const after = x + 20 + cells(fit(bonus.text, 16)) * 8 + 8;
    scene.text("draw:where", after, line + 59, texts.where, { fill: ink.muted });
    if (texts.note) paragraph(scene, "draw:note", x, line + 79, width, texts.note, { "font-size": 12 });
  }
}

function drawIntervals(scene, x, line, width, round, full, chosen) {
  const { ink } = scene;
  const { bonus } = round;
  const leftover = bonus.kind === "leftover";
  scene.put("draw:frame", "rect", { x, y: line, width, height: 24, fill: "none", stroke: ink.muted,
    "stroke-dasharray": "2 3" });
  bonus.intervals.forEach((cut, i) => {
    const from = x + cut.lo * width * full;
    const size = (cut.hi - cut.lo) * width * full;
    const lit = cut.drawn && chosen;
    const colour = cut.id === null ? ink.dropped : leftover ? ink.bonus : ink.target;
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
}
