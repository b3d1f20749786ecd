// The panels around the stage: head, place, controls, counters and highlights.

import { setInactive, showPlaying } from "../lib/controls.js";
import { setText } from "../lib/svg.js";
import { lastPlace, stepOfPlace } from "./timeline.js";

/** The phases of a round: id, name, kinds of frames. */
export const PHASES = [["draft", "Draft", ["draft", "correct"]], ["verify", "Verify", ["verify"]],
  ["judge", "Judge", ["judge", "dropped"]],
  ["bonus", "Bonus token", ["leftover", "bonus", "end"]]];

/** Shows where the run comes from, and the choice of a row. */
export function renderHead(player) {
  const { data, el } = player;
  el.badge.hidden = !data.recorded && !data.streaming;
  el.badge.textContent = data.streaming ? "live" : data.recorded ? "recorded" : "";
  el.meta.replaceChildren();
  const facts = data.recorded ? [["", data.recorded], ...data.meta] : data.meta;
  facts.forEach(([name, value], i) => {
    if (i) el.meta.append(" · ");
    if (name) el.meta.append(`${name} `);
    const strong = document.createElement(name ? "b" : "span");
    strong.textContent = value;
    el.meta.append(strong);
  });
  el.rowField.hidden = data.rows <= 1;
  if (el.row.options.length !== data.rows) {
    el.row.replaceChildren(...Array.from({ length: data.rows }, (_, i) => new Option(String(i + 1), String(i))));
  }
  el.row.value = String(data.row);
  el.follow.hidden = !data.streaming;
  el.empty.hidden = player.rounds.length > 0;
  el.empty.textContent = data.streaming ? "Waiting for the first round." : "No rounds yet.";
  el.body.hidden = !player.rounds.length;
}

/** Shows the playhead on the scrubber and the buttons. */
export function renderControls(player) {
  const { el, buttons } = player;
  const index = stepOfPlace(player.rounds, player.at);
  const last = stepOfPlace(player.rounds, lastPlace(player.rounds));
  el.scrub.max = String(last);
  el.scrub.value = String(index);
  const { round, frame } = player.at;
  el.scrub.setAttribute("aria-valuetext",
    `round ${round + 1} of ${player.rounds.length}, step ${frame + 1} of ${player.round.frames.length}`);
  el.follow.setAttribute("aria-pressed", String(player.following));
  for (const name of ["first", "previous", "previousRound"]) setInactive(buttons[name], index === 0);
  for (const name of ["last", "next", "nextRound"]) setInactive(buttons[name], index === last);
  showPlaying(buttons.play, player.playing);
}

/** Shows the round, the step, its sentence and its phase. */
export function renderPlace(player) {
  const { el, frame } = player;
  setText(el.words, frame.words);
  el.where.textContent = `Round ${player.at.round + 1} of ${player.rounds.length} · ${frame.title}`;
  const phase = PHASES.findIndex(([, , kinds]) => kinds.includes(frame.kind));
  [...el.phases.children].forEach((item, i) => (item.className = i === phase ? "now" : i < phase ? "past" : ""));
}

/** Shows the figures after this round. */
export function renderCounters(player) {
  player.el.counters.replaceChildren(...player.round.texts.counters.map(([name, value, note]) => {
    const box = document.createElement("div");
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    const small = document.createElement("span");
    dt.textContent = name;
    small.className = "note";
    small.textContent = note;
    dd.append(value, small);
    box.append(dt, dd);
    return box;
  }));
}

/** Highlights the table row and the token of the chosen slot. */
export function markLit(player) {
  const chosen = player.hovered ?? player.pinned;
  const lit = (element) => chosen !== null && Number(element.dataset.slot) === chosen;
  for (const row of player.el.rows.children) row.classList.toggle("lit", lit(row));
  for (const token of player.el.text.children) {
    token.classList.toggle("lit", lit(token) && Number(token.dataset.round) === player.at.round);
  }
}
