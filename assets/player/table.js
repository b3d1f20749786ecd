// The table of a round: one row a position, filled as the story goes.

import { verdictIcon } from "../lib/scene.js";
import { appendSvg } from "../lib/svg.js";
import { story, verdictSoFar } from "./story.js";

/** The rows of a round's table at a point of its story: slot, verdict and cells, empty where nothing is known yet. */
export function tableRows(round, s) {
  const rows = round.slots.map((slot, i) => {
    const [position, token, q, p, threshold, u] = slot.texts.row;
    const seen = s.drafted[i] > 0;
    const verdict = verdictSoFar(round, s, i);
    // not refined yet: the token that it will be is not known
    const rough = slot.first_guess && s.corrected[i] < 0.5;
    return { slot: i, verdict, cells: [position, seen ? (rough ? slot.first_guess.text : token) : "",
      seen ? (rough ? "first guess" : q) : "", s.verify ? p : "", s.verify ? threshold : "",
      s.judged[i] ? u : "", verdict ?? ""] };
  });
  const drawn = s.bonus && round.bonus;
  rows.push({ slot: drawn ? round.bonus.slot : round.slots.length, verdict: drawn ? "bonus" : null,
    cells: drawn ? round.texts.bonus_row : Array(7).fill("") });
  return rows;
}

/** Shows the positions of the round as a table, as far as the story has got. */
export function renderTable(player) {
  const { round, el } = player;
  el.caption.textContent = round.texts.caption;
  const rows = tableRows(round, story(round, player.at.frame, 1));
  while (el.rows.children.length > rows.length) el.rows.lastChild.remove();
  rows.forEach(({ slot, verdict, cells: values }, i) => {
    let row = el.rows.children[i];
    if (!row) {
      row = document.createElement("tr");
      row.append(...values.map(() => document.createElement("td")));
      row.tabIndex = 0;
      el.rows.append(row);
    }
    row.dataset.slot = String(slot);
    row.className = verdict ?? "";
    values.forEach((value, c) => {
      const cell = row.children[c];
      if (c === 1) cell.className = "token";
      if (c < 6) cell.textContent = value;
      else if (cell.dataset.value !== value) {
        cell.dataset.value = value;
        const holder = document.createElement("span");
        holder.className = "verdict";
        if (verdict) holder.append(verdictGlyph(verdict, player.scenes.strip.ink));
        holder.append(value);
        cell.replaceChildren(holder);
      }
    });
  });
}

function verdictGlyph(kind, ink) {
  const { d, color } = verdictIcon(kind, ink);
  const star = kind === "bonus";
  const svg = appendSvg(null, "svg", { viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" });
  appendSvg(svg, "path", { d, fill: star ? color : "none", stroke: star ? "currentColor" : color,
    "stroke-width": star ? 1 : 2.6, "stroke-linejoin": "round", "stroke-linecap": "round" });
  return svg;
}
