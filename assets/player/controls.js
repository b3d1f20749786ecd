// The player's controls: what is built once, and what keys, buttons and pointer do.

import { actionOfKey, playbackButtons } from "../lib/controls.js";
import { PHASES, renderControls } from "./panels.js";
import { savePng, saveSvg } from "./picture.js";
import { lastPlace, placeOfStep } from "./timeline.js";

const BUTTONS = [
  ["first", "First step", "Home"], ["previousRound", "Previous round", "["], ["previous", "Previous step", "ArrowLeft"],
  ["play", "Play", "Space"], ["next", "Next step", "ArrowRight"], ["nextRound", "Next round", "]"],
  ["last", "Last step", "End"],
];

/** Makes the buttons, the phases and the legend of the text. */
export function buildControls(player) {
  player.buttons = playbackButtons(player.el.buttons, BUTTONS, (name) => player.act(name));
  for (const [name, label] of PHASES) {
    const item = document.createElement("li");
    item.textContent = label;
    item.dataset.phase = name;
    player.el.phases.append(item);
  }
  const swatches = [["draft", "accepted draft"], ["leftover", "bonus token, from the leftover"],
    ["all_accepted", "bonus token, all drafts accepted"]];
  for (const [origin, label] of swatches) {
    const item = document.createElement("span");
    const sample = document.createElement("span");
    sample.className = `tok ${origin}`;
    sample.textContent = "abc";
    item.append(sample, label);
    player.el.legend.append(item);
  }
}

/** Connects keys, controls and pointer with the player. */
export function listen(player) {
  player.box.onkeydown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select")) return;
    const name = actionOfKey(event.key);
    const token = event.target.closest(".tok");
    if (token && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      token.click();
      return;
    }
    if (!name || (event.key === " " && event.target.closest("button"))) return;
    event.preventDefault();
    player.act(name);
  };
  player.el.scrub.oninput = () => {
    player.stop();
    player.goTo(placeOfStep(player.rounds, Number(player.el.scrub.value)), false);
  };
  player.el.scrub.onchange = () => player.reportStep();
  player.el.row.onchange = () => {
    player.stop();
    player.report("row", Number(player.el.row.value));
  };
  player.el.speed.onchange = () => player.setAnnouncements();
  player.el.follow.onclick = () => {
    player.following = !player.following;
    if (player.following) player.goTo(lastPlace(player.rounds));
    else renderControls(player);
  };
  player.el.svg.onclick = () => saveSvg(player);
  player.el.png.onclick = () => savePng(player);
  listenForTokens(player);
}

// A token that is pointed at, reached by keyboard or clicked.
function listenForTokens(player) {
  const slotOf = (event) => {
    const holder = event.target.closest("[data-slot]");
    return holder && !(holder.dataset.round && Number(holder.dataset.round) !== player.at.round)
      ? Number(holder.dataset.slot) : null;
  };
  for (const name of ["strip", "text", "rows"]) {
    const area = player.el[name];
    area.onpointerover = (event) => player.light("hovered", slotOf(event));
    area.onpointerleave = () => player.light("hovered", null);
    area.addEventListener("focusin", (event) => player.light("pinned", slotOf(event)));
    area.addEventListener("focusout", () => player.light("pinned", null));
  }
  player.el.text.onclick = (event) => {
    const token = event.target.closest(".tok");
    if (!token || Number(token.dataset.round) === player.at.round) return;
    player.stop();
    const round = Number(token.dataset.round);
    player.goTo({ round, frame: player.rounds[round].frames.length - 1 });
    player.reportStep();
  };
}
