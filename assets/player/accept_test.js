// The accept test of a position: u against min(1, p/q), or the target's first choice against the draft.

import { between, clamp, ease } from "../lib/motion.js";
import { paragraph } from "../lib/scene.js";
import { fit } from "../lib/text.js";
import { drawUniform } from "./uniform.js";

/** Draws how position `at` meets the accept rule, as far as the story `s` has got. */
export function drawAcceptTest(scene, x, y, width, round, place, at, s) {
  scene.text("test", x, y + 13, "Accept test", { "font-weight": 600 });
  const say = (text) => paragraph(scene, "test:say", x, y + 38, width, text);
  if (at >= round.slots.length) say(place.texts.test);
  else if (s.verify < 1) say(place.texts.test[s.drafted[at] ? 1 : 0]);
  else if (s.dropped[at] > 0.3) say(place.texts.test[2]);
  else if (round.greedy) drawGreedyTest(scene, x, y, width, place, s.judged[at]);
  else drawThreshold(scene, x, y, width, place, s.judged[at]);
}

function drawGreedyTest(scene, x, y, width, place, judged) {
  const { ink } = scene;
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
    scene.text("test:verdict", x + 20, y + 118, place.texts.verdict);
  }
}

function drawThreshold(scene, x, y, width, place, judged) {
  const { ink } = scene;
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
  const label = place.texts.threshold;
  const half = label.length * 3.3;
  scene.text("test:label", clamp(x + threshold * width, x + half + 12, x + width - half - 12), line + 40, label,
    { "text-anchor": "middle", "font-size": 12, "font-weight": 600 });
  if (judged > 0 && place.u !== null) drawUniform(scene, "test:u", x, width, line, 20, place.u,
    ease(between(judged, 0, 0.75)));
  if (judged >= 0.75) {
    scene.icon("test:icon", place.verdict, x, y + 119, 13);
    scene.text("test:verdict", x + 20, y + 130, place.texts.verdict);
  }
}
