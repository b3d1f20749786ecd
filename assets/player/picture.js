// The current step as a file, SVG or PNG: the same drawing with dark ink on white.

import { download, downloadSvg } from "../lib/download.js";
import { Scene, paragraph } from "../lib/scene.js";
import { SVG, setAttributes } from "../lib/svg.js";
import { drawDetail } from "./detail.js";
import { paperInk } from "./ink.js";
import { story } from "./story.js";
import { COLUMN, drawStrip } from "./strip.js";

// The SVG text of the current step, with its width and height.
function picture(player) {
  const paper = paperInk(player.data.colours);
  const { round } = player;
  const frame = round.frames[player.at.frame];
  const s = story(round, player.at.frame, player.t);
  const margin = 24;
  const inner = Math.max(1000, (round.slots.length + 2) * COLUMN);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("xmlns", SVG);
  const scene = (y) => {
    const group = document.createElementNS(SVG, "g");
    group.setAttribute("transform", `translate(${margin} ${y})`);
    svg.append(group);
    return new Scene(group, paper);
  };
  const head = scene(margin);
  const facts = [...(player.data.recorded ? [["", player.data.recorded]] : []), ...player.data.meta]
    .map(([name, value]) => `${name} ${value}`.trim()).join(" · ");
  head.text("title", 0, 18, `Round ${player.at.round + 1} of ${player.rounds.length} · ${frame.title}`,
    { "font-size": 18, "font-weight": 700 });
  paragraph(head, "words", 0, 44, inner * 0.86, frame.words, { "font-size": 15, fill: paper.ink });
  head.commit();
  const strip = scene(margin + 78);
  const size = drawStrip(strip, inner, round, s, null);
  strip.commit();
  const detail = scene(margin + 78 + size.height + 8);
  const high = drawDetail(detail, inner, round, player.focus, s);
  detail.commit();
  const foot = scene(margin + 78 + size.height + 8 + high + 12);
  const low = paragraph(foot, "facts", 0, 12, inner, `SpecViz · ${facts}`, { "font-size": 12 });
  foot.commit();
  const height = margin * 2 + 78 + size.height + 8 + high + 12 + low;
  const width = inner + 2 * margin;
  setAttributes(svg, { width, height, viewBox: `0 0 ${width} ${height}` });
  const ground = document.createElementNS(SVG, "rect");
  setAttributes(ground, { width, height, fill: paper.paper });
  svg.prepend(ground);
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

const fileName = (player) => `specviz-round-${player.at.round + 1}-step-${player.at.frame + 1}`;

/** Saves the current step as an SVG file. */
export function saveSvg(player) {
  downloadSvg(picture(player).text, `${fileName(player)}.svg`);
}

/** Saves the current step as a PNG file of twice the size. */
export function savePng(player) {
  const { text, width, height } = picture(player);
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = width * 2;
    canvas.height = height * 2;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(blob, `${fileName(player)}.png`), "image/png");
    URL.revokeObjectURL(image.src);
  };
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
}
