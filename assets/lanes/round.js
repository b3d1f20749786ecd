// The round under way: a chip a token, and a button that opens the round.

import { roundState } from "./clock.js";

/** A new element with a class. */
export function element(tag, name) {
  const made = document.createElement(tag);
  made.className = name;
  return made;
}

/** Shows the drafts of round `at` as far as they have got. */
export function drawRound(board, row, at, done) {
  const { lane } = row;
  const r = lane.rounds[at];
  if (!r) return;
  const { doing, chips } = roundState(lane, r, board.t, done);
  const mark = `${at}|${doing}|${chips.map((chip) => chip.join("~")).join("|")}`;
  if (row.shown === mark) return;
  row.shown = mark;
  const label = element("span", "round");
  label.textContent = `Round ${at + 1}: ${doing}`;
  const items = chips.map(([state, text, was]) => {
    const chip = element("span", `chip ${state}`);
    if (was !== null) {
      const old = document.createElement("s");
      old.textContent = was;
      chip.append(old);
    }
    chip.append(state === "bonus" ? `★ ${text}` : state === "ghost" ? "…" : text);
    chip.title = state === "rough" ? "first guess" : state || "drafted";
    return chip;
  });
  const open = row.now.querySelector("button") ?? document.createElement("button");
  open.type = "button";
  open.textContent = "Open";
  open.setAttribute("aria-label", `Open round ${at + 1} of ${lane.name}`);
  open.onclick = () => board.pick(lane.name, at);
  const old = [...row.now.children].filter((child) => child !== open);
  for (const child of old) child.remove();
  if (!open.parentElement) row.now.append(open);
  open.before(label, ...items);
}
