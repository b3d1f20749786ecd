// One lane: its blocks of measured time, the playhead over them, and its text.

import { clamp } from "../lib/motion.js";
import { number } from "../lib/numbers.js";
import { SVG, appendSvg } from "../lib/svg.js";
import { clockText, emittedBy, roundAt } from "./clock.js";
import { drawRound, element } from "./round.js";

/** Height of a lane's blocks, in pixels. */
export const LANE_HEIGHT = 46;
const BLOCKS = [["draft", "draft"], ["verify", "verify"], ["other", "sampling and bookkeeping"]];

/** Makes the elements of every lane; returns one row object a lane. */
export function buildLanes(board) {
  const rows = board.data.lanes.map((lane, index) => {
    const row = { lane, box: element("article", "lane"), drawn: null };
    row.box.setAttribute("aria-label", `Lane ${lane.name}`);
    const title = element("div", "title");
    const name = document.createElement("b");
    name.textContent = lane.name;
    name.title = lane.label;
    const builds = element("span", "builds");
    builds.textContent = board.data.builds[lane.builds];
    row.figures = element("span", "figures");
    title.append(name, builds, row.figures);
    const track = element("div", "track");
    row.svg = document.createElementNS(SVG, "svg");
    row.svg.setAttribute("height", LANE_HEIGHT);
    row.svg.setAttribute("role", "img");
    row.svg.setAttribute("aria-label", `${lane.name}: ${lane.rounds.length} rounds, ${lane.tokens} tokens in `
      + `${clockText(lane.seconds)}`);
    row.svg.onclick = (event) => board.click(index, event);
    track.append(row.svg);
    row.now = element("div", "now");
    row.text = element("p", "text");
    row.inner = document.createElement("span");
    row.text.append(row.inner);
    row.box.append(title, track, row.now, row.text);
    return row;
  });
  board.el.list.replaceChildren(...rows.map((row) => row.box));
  return rows;
}

/** Shows what the colours mean. */
export function showLegend(box, c) {
  const marks = [["draft", c.draft], ["verify, one target pass", c.target], ["sampling and bookkeeping", c.dropped],
    ["figure above a pass: tokens that it emitted", null], ["click a round to open it below", null]];
  box.replaceChildren(...marks.map(([words, colour]) => {
    const item = document.createElement("span");
    if (colour) {
      const swatch = document.createElement("i");
      swatch.style.background = colour;
      item.append(swatch);
    }
    item.append(words);
    return item;
  }));
}

/** Draws a lane at the board's time; [from, to] is what of the clock is on screen, width in pixels. */
export function drawLane(board, row, width, from, to) {
  const { lane } = row;
  const x = (t) => ((t - from) / (to - from)) * width;
  const at = roundAt(lane, board.t);
  const done = board.t >= lane.seconds - 1e-9;
  const emitted = lane.rounds.slice(0, at + (done ? 1 : 0)).reduce((n, r) => n + emittedBy(r), 0);
  const words = done
    ? [["strong", `${lane.tokens} tokens`], ["", ` in ${clockText(lane.seconds)} (measured), `],
       ["strong", `${number(lane.tokens_per_second)} tokens/s`], ["", `, ${number(lane.tokens_per_pass)} per pass`]]
    : [["strong", `${emitted} of ${lane.tokens} tokens`], ["", `, pass ${at + 1} of ${lane.rounds.length}`]];
  fill(row.figures, words);
  const mark = `${width}|${from}|${to}`;
  if (row.drawn !== mark) {
    row.drawn = mark;
    drawBlocks(board, row, width, from, to, x);
  }
  row.head.setAttribute("x1", x(board.t));
  row.head.setAttribute("x2", x(board.t));
  row.veil.setAttribute("x", clamp(x(board.t), 0, width));
  row.veil.setAttribute("width", Math.max(0, width - clamp(x(board.t), 0, width)));
  drawRound(board, row, at, done);
  const text = lane.rounds.slice(0, at + (done ? 1 : 0)).map((r) => r.text).join("").replaceAll("\n", "↵");
  const tail = text.slice(-220);
  if (row.inner.textContent !== tail) {
    row.inner.textContent = tail;
    row.text.classList.toggle("fits", row.inner.offsetWidth <= row.text.clientWidth);
  }
}

// Sets the words of a box, [tag or "", text], where they differ.
function fill(box, words) {
  const plain = words.map(([, w]) => w).join("");
  if (box.textContent === plain) return;
  box.replaceChildren(...words.map(([tag, w]) => {
    if (!tag) return w;
    const part = document.createElement(tag);
    part.textContent = w;
    return part;
  }));
}

function drawBlocks(board, row, width, from, to, x) {
  const { lane } = row;
  const c = board.data.colours;
  row.svg.setAttribute("viewBox", `0 0 ${width} ${LANE_HEIGHT}`);
  row.svg.replaceChildren();
  const put = (tag, attributes, text) => appendSvg(row.svg, tag, attributes, text);
  const style = getComputedStyle(board.box);
  const ink = style.color;
  put("line", { x1: 0, x2: width, y1: 40.5, y2: 40.5, stroke: ink, "stroke-opacity": 0.2 });
  lane.rounds.forEach((r, i) => {
    const length = r.draft + r.verify + r.other;
    if (r.start + length < from || r.start > to) return;
    let t = r.start;
    for (const [name, words] of BLOCKS) {
      const left = x(t);
      const wide = x(t + r[name]) - left;
      t += r[name];
      if (wide < 0.15) continue;
      const colour = { draft: c.draft, verify: c.target, other: c.dropped }[name];
      const block = put("rect", { x: left, y: 16, width: Math.max(0.6, wide - 0.4), height: 24, fill: colour,
        "fill-opacity": name === "other" ? 0.55 : 0.9, "data-round": i });
      const title = document.createElementNS(SVG, "title");
      title.textContent = `${lane.name}, round ${i + 1}: ${words} ${clockText(r[name])}`;
      block.append(title);
    }
    const wide = x(r.start + length) - x(r.start);
    const count = emittedBy(r);
    if (wide > 15) {
      put("text", { x: x(r.start + length) - wide / 2, y: 11, "text-anchor": "middle", "font-size": 12, fill: ink,
        "font-family": style.fontFamily }, String(count));
    }
  });
  row.veil = put("rect", { y: 0, height: LANE_HEIGHT, fill: getComputedStyle(board.box).getPropertyValue("--sv-paper"),
    "fill-opacity": 0.62, "pointer-events": "none" });
  row.head = put("line", { y1: 0, y2: LANE_HEIGHT, stroke: ink, "stroke-width": 1.5, "pointer-events": "none" });
}
