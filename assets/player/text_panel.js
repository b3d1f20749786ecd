// The text so far: one element a token, in the characters it stands for.

import { keptTokens, story } from "./story.js";

/** Shows the text so far, token by token, up to the playhead. */
export function renderText(player) {
  const { text } = player.el;
  const kept = keptTokens(player.round, story(player.round, player.at.frame, 1), 1e-9, 0);
  const wanted = [];
  for (let r = 0; r <= player.at.round; r++) {
    const tokens = r < player.at.round ? player.rounds[r].emitted : player.round.emitted.slice(0, kept);
    tokens.forEach((token, i) => wanted.push([`${r}.${i}`, token, r, i]));
  }
  const mark = `${player.run}|${player.row}`;
  if (text.dataset.mark !== mark) {
    text.replaceChildren();
    text.dataset.mark = mark;
  }
  while (text.children.length > wanted.length) text.lastChild.remove();
  wanted.forEach(([key, token, r, i], n) => {
    let button = text.children[n];
    if (!button) {
      // a span, since a button never lets a line end inside it
      button = document.createElement("span");
      button.setAttribute("role", "button");
      text.append(button);
    }
    if (button.dataset.key !== `${key}:${token.id}`) {
      button.dataset.key = `${key}:${token.id}`;
      button.dataset.round = String(r);
      button.dataset.slot = String(i);
      fillToken(button, token);
      button.title = token.title;
    }
    button.className = `tok ${token.origin}${r === player.at.round ? " current" : ""}`;
    button.tabIndex = r === player.at.round ? 0 : -1;
  });
}

function fillToken(box, token) {
  box.replaceChildren();
  const sign = (text) => {
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.textContent = text;
    box.append(mark);
  };
  if (token.text.includes("\\") || (!token.raw.trim() && !token.raw.includes("\n"))) {
    sign(token.text);
    return;
  }
  token.raw.split("\n").forEach((line, i) => {
    if (i) {
      sign("↵");
      box.append("\n");
    }
    box.append(line);
  });
}
