// The elements of the three panels.

import { appendSvg, setAttributes } from "../lib/svg.js";
import { along, makeHandle } from "./handle.js";

/** Makes the elements of the three panels, once per case, so that focus stays where it is while bars move. */
export function buildPanels(hand) {
  const { tokens, sums } = hand.data.case;
  for (const name of ["think", "parts", "came"]) {
    hand.el[name].replaceChildren();
    hand.rows[name] = tokens.map((token, i) => {
      const row = { group: appendSvg(hand.el[name], "g") };
      const add = (key, tag, attributes) => (row[key] = appendSvg(row.group, tag, attributes));
      add("line", "line", { class: "line" });
      if (name !== "think") {
        add("token", "text", { class: "token" });
        add("track", "rect", { class: "track", height: 18, rx: 3 });
      }
      if (name === "think") buildThink(hand, row, add, token, i, i >= tokens.length - sums);
      if (name === "parts") {
        add("lost", "rect", { class: "lost", height: 18, rx: 3 });
        add("kept", "rect", { class: "kept", height: 18, rx: 2 });
        add("left", "rect", { class: "left", height: 18, rx: 2 });
        add("share", "rect", { class: "share", height: 8, rx: 2 });
      }
      if (name === "came") {
        add("kept", "rect", { class: "kept", height: 18, rx: 2 });
        add("left", "rect", { class: "left", height: 18, rx: 2 });
        add("below", "text", { class: "muted" });
      }
      if (name !== "think") {
        add("edge", "rect", { class: "mark-edge", width: 6, height: 26 });
        add("mark", "rect", { class: "mark", width: 3, height: 26 });
        add("value", "text", {});
      }
      if (name === "parts") add("below", "text", { class: "muted" });
      return row;
    });
  }
  hand.el.think.setAttribute("role", "radiogroup");
  hand.el.think.setAttribute("aria-label", "Drafted token, and p and q of each token");
}

function buildThink(hand, row, add, token, i, isSum) {
  row.pick = appendSvg(row.group, "g", { class: "pick" });
  for (const [key, tag, attributes] of [["frame", "rect", { class: "frame", rx: 8 }],
    ["hit", "rect", { class: "hit", rx: 8 }], ["ring", "circle", { class: "ring", r: 6 }],
    ["dot", "circle", { class: "dot", r: 3.2 }], ["token", "text", { class: "token" }]]) {
    row[key] = appendSvg(row.pick, tag, attributes);
  }
  if (isSum) {
    row.ring.remove();
    row.dot.remove();
  } else {
    setAttributes(row.pick, { role: "radio", tabindex: "0", "aria-label": `draft ${token}` });
    row.pick.onclick = () => hand.choose(i);
    row.pick.onkeydown = (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      hand.choose(i);
    };
  }
  for (const name of ["p", "q"]) {
    add(`${name}Track`, "rect", { class: "track", height: 15, rx: 3 });
    add(`${name}Bar`, "rect", { class: `bar-${name}`, height: 15, rx: 3 });
    add(`${name}Value`, "text", {});
    if (isSum) continue;
    const group = appendSvg(row.group, "g", { class: `handle ${name}`, role: "slider", tabindex: "0",
      "aria-valuemin": "0", "aria-valuemax": "1", "aria-label": `${name} of ${token}` });
    appendSvg(group, "rect", { class: "hit", x: -18, y: -4, width: 36, height: 24 });
    appendSvg(group, "rect", { class: "grip", x: -4.5, y: -2.5, width: 9, height: 20, rx: 4.5 });
    row[`${name}Handle`] = group;
    makeHandle(hand, group, (event) => along(event, hand.el.think, hand.think.x, hand.think.span),
      () => hand[name][i], (value) => hand.move(name, i, value));
  }
}
