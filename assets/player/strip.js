// The strip of a round: one column a position, from the anchor to the kept tokens.

import { between, ease } from "../lib/motion.js";
import { fit } from "../lib/text.js";
import { keptTokens, verdictSoFar } from "./story.js";

const STRIP_HEIGHT = 262;
/** Least width of a column, in pixels. */
export const COLUMN = 92;

/** Width of the strip of a round where `room` pixels are there. */
export function stripWidth(round, room) {
  return Math.max(room, (round.slots.length + 2) * COLUMN);
}

/** Draws anchor, drafts, the verify pass, verdicts and what is kept, one column a position; `lit` is a slot or null. */
export function drawStrip(scene, width, round, s, lit) {
  const n = round.slots.length;
  const column = Math.min(width / (n + 2), 150);
  const place = { column, x0: (i) => i * column, chip: chipIn(scene, column) };
  drawHeadings(scene, round, lit, place);
  drawDrafts(scene, round, s, place);
  drawVerify(scene, round, s, place);
  drawVerdicts(scene, round, s, place);
  drawKept(scene, round, s, place);
  return { width: Math.max(width, (n + 2) * column), height: STRIP_HEIGHT, column };
}

// A function that draws a token's box with its text in column i.
function chipIn(scene, column) {
  const x0 = (i) => i * column;
  return (key, i, y, text, look) => {
    const shown = fit(text, Math.floor((column - (look.icon ? 32 : 18)) / 8.5));
    scene.put(`${key}:box`, "rect", { x: x0(i) + 4, y, width: column - 8, height: 36, rx: 8, fill: look.color,
      "fill-opacity": look.fill ?? 0.14, stroke: look.stroke ?? look.color, "stroke-width": look.line ?? 2,
      "stroke-dasharray": look.dash ?? "none", opacity: look.opacity ?? 1 });
    const shift = look.icon ? 9 : 0;
    scene.mono(`${key}:text`, x0(i) + column / 2 + shift, y + 23, shown, { "text-anchor": "middle", "font-size": 14,
      opacity: look.opacity ?? 1, "text-decoration": look.strike ? "line-through" : "none" });
    if (look.icon) scene.icon(`${key}:icon`, look.icon, x0(i) + 11, y + 11, 14, { opacity: look.opacity ?? 1 });
  };
}

function drawHeadings(scene, round, lit, { column, x0, chip }) {
  const { ink } = scene;
  const n = round.slots.length;
  for (let i = 0; i <= n + 1; i++) {
    if (lit !== null && i === lit + 1) {
      scene.put("lit", "rect", { x: x0(i) + 1, y: 1, width: column - 2, height: STRIP_HEIGHT - 4, rx: 10, fill: ink.ink,
        "fill-opacity": 0.05, stroke: ink.ink, "stroke-opacity": 0.35, "stroke-width": 1 });
    }
  }
  for (let i = 0; i <= n + 1; i++) {
    scene.text(`head:${i}`, x0(i) + column / 2, 18, fit(round.texts.headings[i], Math.floor(column / 6)),
      { "text-anchor": "middle", "font-size": 12, fill: ink.muted });
  }
  chip("anchor", 0, 26, round.anchor.text, { color: ink.ink, fill: 0.06, stroke: ink.ink, line: 1.5 });
}

function drawDrafts(scene, round, s, { column, x0, chip }) {
  const { ink } = scene;
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
      scene.text(`q:${i}`, x0(i + 1) + column / 2, replaced ? 90 : 80, slot.texts.q,
        { "text-anchor": "middle", "font-size": 12, opacity: look.opacity });
    } else {
      scene.text(`q:${i}`, x0(i + 1) + column / 2, 80, "first guess",
        { "text-anchor": "middle", "font-size": 12, fill: ink.muted });
    }
    if (corrected && slot.confidence !== null) {
      scene.text(`sure:${i}`, x0(i + 1) + column / 2, 169, slot.texts.confidence,
        { "text-anchor": "middle", "font-size": 12, fill: ink.muted, opacity: look.opacity });
    }
  });
}

// The verify pass: one lane over all K + 1 positions, crossed by one band.
function drawVerify(scene, round, s, { column, x0 }) {
  const { ink } = scene;
  const n = round.slots.length;
  const top = 94;
  const high = 38;
  const wide = (n + 1) * column - 8;
  scene.text("verify:label", x0(0) + column / 2, top + 17, round.texts.verify[0],
    { "text-anchor": "middle", "font-size": 13, "font-weight": 600, opacity: s.verify ? 1 : 0.55 });
  scene.text("verify:count", x0(0) + column / 2, top + 33, round.texts.verify[1],
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
      const label = i < n ? round.slots[i].texts.p : "no draft";
      scene.text(`p:${i}`, x0(i + 1) + column / 2, top + 24, label,
        { "text-anchor": "middle", "font-size": 12, opacity: known * (i < n ? 1 - 0.5 * s.dropped[i] : 1) });
    }
  }
}

function drawVerdicts(scene, round, s, { column, x0 }) {
  round.slots.forEach((slot, i) => {
    const verdict = verdictSoFar(round, s, i);
    if (!verdict) return;
    const span = verdict.length * 6.2 + 18;
    const x = x0(i + 1) + (column - span) / 2;
    const opacity = verdict === "dropped" ? s.dropped[i] : between(s.judged[i], 0.75, 1);
    scene.icon(`verdict:${i}:icon`, verdict, x, 143, 13, { opacity });
    scene.text(`verdict:${i}`, x + 18, 154, verdict, { "font-size": 13, opacity });
  });
}

// The kept tokens: accepted drafts come down, the bonus token joins them.
function drawKept(scene, round, s, { column, x0, chip }) {
  const { ink } = scene;
  const n = round.slots.length;
  const floor = 196;
  scene.put("kept:line", "path", { d: `M${x0(0) + 4} ${floor - 22} H${x0(n + 2) - 4}`, stroke: ink.grid });
  scene.text("kept:label", x0(0) + column / 2, floor + 16, "kept",
    { "text-anchor": "middle", "font-size": 13, "font-weight": 600 });
  const count = keptTokens(round, s, 0.75, 0.6);
  scene.text("kept:count", x0(0) + column / 2, floor + 32, round.texts.kept[count],
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
      round.texts.bonus_origin,
      { "text-anchor": "middle", "font-size": 12, fill: ink.muted, opacity: t });
  }
}
