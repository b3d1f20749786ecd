// The ruler from 0 to 1: accept below min(1, p/q), reject beyond it, and the handle of u.

import { equals, probability } from "../lib/numbers.js";
import { appendSvg, setAttributes, setText } from "../lib/svg.js";
import { along, makeHandle } from "./handle.js";

/** Makes the ruler of u, once. */
export function buildRuler(hand) {
  const svg = hand.el.ruler;
  const add = (key, tag, attributes, text) => (hand.ruler[key] = appendSvg(svg, tag, attributes, text));
  hand.ruler = {};
  add("yes", "rect", { class: "zone-yes", y: 30, height: 26, rx: 4 });
  add("no", "rect", { class: "zone-no", y: 30, height: 26, rx: 4 });
  add("yesText", "text", { y: 47 }, "accept");
  add("noText", "text", { y: 47, "text-anchor": "end" }, "reject");
  add("edge", "line", { class: "edge", y1: 24, y2: 62 });
  add("edgeText", "text", { y: 76 });
  add("zero", "text", { class: "muted", y: 76 }, "0");
  add("one", "text", { class: "muted", y: 76, "text-anchor": "end" }, "1");
  const group = add("u", "g", { class: "handle u", role: "slider", tabindex: "0", "aria-valuemin": "0",
    "aria-valuemax": "1", "aria-label": "u, the uniform that decides" });
  appendSvg(group, "rect", { class: "hit", x: -22, y: 0, width: 44, height: 64 });
  appendSvg(group, "path", { class: "grip", d: "M-9 22 A9 9 0 1 1 9 22 L0 62 Z" });
  add("uText", "text", { y: 11, "font-weight": "600" });
  makeHandle(hand, group, (event) => along(event, svg, 12, hand.rulerSpan), () => hand.u, (value) => hand.moveU(value));
}

/** Draws the ruler: the threshold, and u on one side of it. */
export function drawRuler(hand) {
  const width = hand.el.ruler.clientWidth;
  if (!width) return;
  setAttributes(hand.el.ruler, { height: 82, viewBox: `0 0 ${width} 82` });
  const span = (hand.rulerSpan = width - 24);
  const at = hand.threshold;
  const x = 12 + span * at;
  const r = hand.ruler;
  setAttributes(r.yes, { x: 12, width: span * at });
  setAttributes(r.no, { x, width: span * (1 - at) });
  setAttributes(r.yesText, { x: 20, opacity: span * at > 62 ? 1 : 0 });
  setAttributes(r.noText, { x: width - 20, opacity: span * (1 - at) > 62 ? 1 : 0 });
  setAttributes(r.edge, { x1: x, x2: x });
  const anchor = at < 0.3 ? "start" : at > 0.7 ? "end" : "middle";
  setAttributes(r.edgeText, { x: x + (anchor === "start" ? -8 : anchor === "end" ? 8 : 0), "text-anchor": anchor });
  setText(r.edgeText, `min(1, p/q) ${equals(at, probability)}`);
  setAttributes(r.zero, { x: 12, opacity: at < 0.3 ? 0 : 1 });
  setAttributes(r.one, { x: width - 12, opacity: at > 0.7 ? 0 : 1 });
  const ux = 12 + span * hand.u;
  setAttributes(r.u, { transform: `translate(${ux.toFixed(2)} 0)`, "aria-valuenow": String(hand.u.toFixed(3)),
    "aria-valuetext": `${probability(hand.u)}, ${hand.accepted ? "accepted" : "rejected"}` });
  const right = hand.u < 0.8;
  setAttributes(r.uText, { x: ux + (right ? 14 : -14), "text-anchor": right ? "start" : "end", y: 20 });
  setText(r.uText, `u ${equals(hand.u, probability)}`);
}
