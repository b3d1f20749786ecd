// The stage: puts strip, position, busy times and roofline on the page for the current step.

import { setAttributes } from "../lib/svg.js";
import { drawBusy } from "./busy.js";
import { drawDetail } from "./detail.js";
import { drawRoof } from "./roofline.js";
import { positionLabel, story } from "./story.js";
import { drawStrip, stripWidth } from "./strip.js";

/** Scrolls the strip so that the slot of the step is seen. */
export function scrollToFocus(player) {
  const { strip } = player.el;
  if (strip.scrollWidth <= strip.clientWidth) return;
  const column = player.column * (player.focus + 1);
  const frame = player.round.frames[player.at.frame];
  if (frame.kind === "verify" || frame.slots.length > 1) return;
  if (column < strip.scrollLeft || column + player.column > strip.scrollLeft + strip.clientWidth) {
    strip.scrollTo({ left: column - strip.clientWidth / 2, behavior: player.still.matches ? "auto" : "smooth" });
  }
}


/** Draws the current step. aside: also what stands beside the stage, which changes only from step to step. */
export function draw(player, aside = true) {
  if (!player.rounds.length || player.el.body.hidden) return;
  const { round, data } = player;
  const s = story(round, player.at.frame, player.t);
  const focus = player.focus;
  const room = player.el.strip.clientWidth;
  if (!room) return;
  const strip = player.scenes.strip;
  const size = drawStrip(strip, stripWidth(round, room), round, s, focus);
  player.column = size.column;
  putTargets(player, strip, size, round, s);
  show(player, "strip", size.width, size.height, `Round ${player.at.round + 1}: tokens and verdicts`);
  const detailRoom = player.el.detail.clientWidth;
  show(player, "detail", detailRoom, drawDetail(player.scenes.detail, detailRoom, round, focus, s),
    positionLabel(round, s, focus));
  if (!aside) return;
  const sideRoom = player.el.busy.clientWidth;
  show(player, "busy", sideRoom, drawBusy(player.scenes.busy, sideRoom, round, s),
    round.texts.busy.label);
  show(player, "roof", sideRoom, drawRoof(player.scenes.roof, sideRoom, round, player.rounds, data.ceilings, s),
    round.texts.roof.label);
}


// Invisible fields over the columns, so that each token can be pointed at and reached by keyboard.
function putTargets(player, scene, size, round, s) {
  for (let i = 0; i <= round.slots.length; i++) {
    scene.put(`hit:${i}`, "rect", { x: size.column * (i + 1), y: 0, width: size.column, height: size.height, rx: 10,
      fill: "transparent", tabindex: "0",
      role: "img", "data-slot": String(i), "aria-label": positionLabel(round, s, i) });
  }
}

function show(player, name, width, height, label) {
  const scene = player.scenes[name];
  scene.commit();
  const svg = scene.root;
  setAttributes(svg, { width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": label });
}
