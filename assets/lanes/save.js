// The lanes as an SVG file.

import { downloadSvg } from "../lib/download.js";
import { SVG } from "../lib/svg.js";
import { LANE_HEIGHT } from "./lane.js";

/** Saves all lanes under each other, as they stand, as an SVG file. */
export function saveLanes(board) {
  const width = board.el.list.clientWidth;
  const root = document.createElementNS(SVG, "svg");
  const style = getComputedStyle(board.box);
  const tall = 20 + LANE_HEIGHT + 14;
  root.setAttribute("xmlns", SVG);
  root.setAttribute("viewBox", `0 0 ${width} ${tall * board.rows.length + 10}`);
  root.setAttribute("width", width);
  const paper = document.createElementNS(SVG, "rect");
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute("fill", style.getPropertyValue("--sv-paper"));
  root.append(paper);
  board.rows.forEach((row, i) => {
    const group = document.createElementNS(SVG, "g");
    group.setAttribute("transform", `translate(0 ${tall * i + 8})`);
    const text = document.createElementNS(SVG, "text");
    for (const [name, value] of Object.entries({ x: 2, y: 14, fill: style.color, "font-size": 13,
      "font-family": "Helvetica, Arial, sans-serif" })) text.setAttribute(name, value);
    text.textContent = `${row.lane.name}: ${row.figures.textContent}`;
    const inner = document.createElementNS(SVG, "g");
    inner.setAttribute("transform", "translate(0 20)");
    inner.append(...[...row.svg.childNodes].map((child) => child.cloneNode(true)));
    group.append(text, inner);
    root.append(group);
  });
  downloadSvg(new XMLSerializer().serializeToString(root), "specviz-lanes.svg");
}
