// The three panels: what both models propose, how p is made of two parts, and what came out of trials.

import { clamp } from "../lib/motion.js";
import { probability } from "../lib/numbers.js";
import { setAttributes, setText } from "../lib/svg.js";
import { fit } from "../lib/text.js";
import { count, partsNote } from "./sentence.js";

const ROW = 54;
const TALL = 78;  // where panels stand under each other, bars are further apart, for fingers

// Where labels end and bars run, for a panel of this width.
function measure(hand, svg, room, high = ROW) {
  const width = svg.clientWidth || 320;
  const labels = clamp(width * 0.3, 84, 150);
  const height = hand.p.length * high;
  setAttributes(svg, { height, viewBox: `0 0 ${width} ${height}` });
  return { width, labels, x: labels + 8, span: width - labels - 8 - room, letters: Math.floor((labels - 26) / 8) };
}

/** Draws p and q of each token, with their handles. */
export function drawThink(hand) {
  const high = hand.root.clientWidth > 860 ? ROW : TALL;
  const m = (hand.think = measure(hand, hand.el.think, 52, high));
  const { tokens } = hand.data.case;
  const apart = (high - 14) / 2;
  hand.rows.think.forEach((row, i) => {
    const y = i * high;
    const isSum = !row.ring.isConnected;
    setAttributes(row.line, { x1: 0, x2: m.width, y1: y, y2: y });
    setAttributes(row.frame, { x: 1, y: y + 6, width: m.labels - 2, height: high - 12 });
    setAttributes(row.hit, { x: 1, y: y + 6, width: m.labels - 2, height: high - 12 });
    setAttributes(row.ring, { cx: 14, cy: y + high / 2 });
    setAttributes(row.dot, { cx: 14, cy: y + high / 2 });
    if (!isSum) setAttributes(row.pick, { "aria-checked": String(i === hand.token) });
    setAttributes(row.token, { x: isSum ? 6 : 26, y: y + high / 2 + 4 });
    setText(row.token, fit(tokens[i], m.letters + (isSum ? 3 : 0)));
    ["p", "q"].forEach((name, n) => {
      const value = hand[name][i];
      const top = y + 7 + n * apart + (apart - 15) / 2;
      setAttributes(row[`${name}Track`], { x: m.x, y: top, width: m.span });
      setAttributes(row[`${name}Bar`], { x: m.x, y: top, width: Math.max(value * m.span, value > 0 ? 1 : 0) });
      setAttributes(row[`${name}Value`], { x: m.x + m.span + 12, y: top + 12 });
      setText(row[`${name}Value`], probability(value));
      const handle = row[`${name}Handle`];
      if (handle) {
        setAttributes(handle.firstChild, { y: (15 - apart) / 2, height: apart });
        setAttributes(handle, { transform: `translate(${(m.x + value * m.span).toFixed(2)} ${top})`,
          "aria-valuenow": value.toFixed(3), "aria-valuetext": probability(value) });
      }
    });
  });
  setText(hand.el.thinkNote, hand.data.case.note);
}

/** Draws how the kept part and the leftover add up to p. */
export function drawParts(hand, { left, share, total }) {
  const m = measure(hand, hand.el.parts, 56);
  const { tokens } = hand.data.case;
  hand.rows.parts.forEach((row, i) => {
    const y = i * ROW;
    const kept = Math.min(hand.p[i], hand.q[i]);
    const lost = Math.max(0, hand.q[i] - hand.p[i]);
    place(row, m, y, tokens[i], hand.p[i]);
    setAttributes(row.kept, { x: m.x, y: y + 8, width: kept * m.span });
    setAttributes(row.left, { x: m.x + kept * m.span, y: y + 8, width: left[i] * m.span });
    setAttributes(row.lost, { x: m.x + hand.p[i] * m.span, y: y + 8, width: lost * m.span, opacity: lost > 0 ? 1 : 0 });
    setAttributes(row.share, { x: m.x, y: y + 33, width: share[i] * m.span, opacity: share[i] > 0 ? 1 : 0 });
    setText(row.value, probability(hand.p[i]));
    setAttributes(row.below, { x: m.x + m.span + 10, y: y + 42 });
    setText(row.below, share[i] > 0 ? probability(share[i]) : "");
  });
  setText(hand.el.partsNote, partsNote(total));
  const said = tokens.map((t, i) => `${t}: kept ${probability(Math.min(hand.p[i], hand.q[i]))}, `
    + `leftover ${probability(left[i])}, normalised ${probability(share[i])}`);
  setAttributes(hand.el.parts, { "aria-label": said.join("; ") });
}

/** Draws what the trials gave beside what was asked for. */
export function drawCame(hand) {
  const m = measure(hand, hand.el.came, 56);
  const { tokens } = hand.data.case;
  const tally = hand.data.tally;
  const n = tally ? tally.trials : 0;
  const goal = tally ? tally.asked : hand.p;
  hand.rows.came.forEach((row, i) => {
    const y = i * ROW;
    const [kept, drawn] = n ? [tally.accepted[i] / n, tally.drawn[i] / n] : [0, 0];
    place(row, m, y, tokens[i], goal[i]);
    setAttributes(row.kept, { x: m.x, y: y + 8, width: kept * m.span });
    setAttributes(row.left, { x: m.x + kept * m.span, y: y + 8, width: drawn * m.span });
    setText(row.value, n ? probability(kept + drawn) : "");
    setAttributes(row.below, { x: m.x, y: y + 45 });
    setText(row.below, n ? `${count(tally.accepted[i])} kept + ${count(tally.drawn[i])} drawn` : "");
  });
  setText(hand.el.cameTitle, n ? `3. What came out ${count(n)} times` : "3. What comes out");
  setText(hand.el.cameMark, tally ? tally.goal : "p, where it should end");
  setText(hand.el.cameNote, hand.data.verdict);
  const said = n ? tokens.map((t, i) => `${t}: ${probability((tally.accepted[i] + tally.drawn[i]) / n)} `
    + `where ${probability(goal[i])} is asked for`) : ["Nothing drawn yet"];
  setAttributes(hand.el.came, { "aria-label": said.join("; ") });
}

function place(row, m, y, token, goal) {
  setAttributes(row.line, { x1: 0, x2: m.width, y1: y, y2: y });
  setAttributes(row.token, { x: 2, y: y + 22 });
  setText(row.token, fit(token, m.letters + 3));
  setAttributes(row.track, { x: m.x, y: y + 8, width: m.span });
  setAttributes(row.edge, { x: m.x + goal * m.span - 3, y: y + 4 });
  setAttributes(row.mark, { x: m.x + goal * m.span - 1.5, y: y + 4 });
  setAttributes(row.value, { x: m.x + m.span + 10, y: y + 22 });
}
