// Playback controls shared by the player and the lanes: icons, buttons and keys.

import { glyph } from "./svg.js";

const SHAPES = {
  first: "M4 3 V13 M13 3 L6 8 L13 13 Z", previousRound: "M8 3 L2.5 8 L8 13 Z M14 3 L8.5 8 L14 13 Z",
  previous: "M11 3 L4.5 8 L11 13 Z",
  play: "M4 2.5 L13 8 L4 13.5 Z", pause: "M4.5 3 V13 M11.5 3 V13", next: "M5 3 L11.5 8 L5 13 Z",
  nextRound: "M8 3 L13.5 8 L8 13 Z M2 3 L7.5 8 L2 13 Z", last: "M12 3 V13 M3 3 L10 8 L3 13 Z",
};
const ACTIONS = { ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last", "[": "previousRound",
  "]": "nextRound", " ": "play" };

/** The action of a key, or undefined. */
export const actionOfKey = (key) => ACTIONS[key];

/** The elements of a component by their data-el. */
export function namedElements(host) {
  return Object.fromEntries([...host.querySelectorAll("[data-el]")].map((element) => [element.dataset.el, element]));
}

/** Makes playback buttons in `parent` from [name, label, key]; a click calls onAction(name). Returns them by name. */
export function playbackButtons(parent, wanted, onAction) {
  const buttons = {};
  for (const [name, label, key] of wanted) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(glyph(SHAPES[name]));
    button.setAttribute("aria-label", label);
    button.setAttribute("aria-keyshortcuts", key);
    button.title = `${label} (${key.replace("Arrow", "")})`;
    if (name === "play") button.className = "play";
    button.onclick = () => onAction(name);
    buttons[name] = button;
    parent.append(button);
  }
  return buttons;
}

/** Shows the play button as Play or Pause. */
export function showPlaying(button, playing) {
  const label = playing ? "Pause" : "Play";
  if (button.getAttribute("aria-label") === label) return;
  button.setAttribute("aria-label", label);
  button.title = `${label} (Space)`;
  button.replaceChildren(glyph(SHAPES[playing ? "pause" : "play"]));
}

/** Marks a button as having no effect. Not `disabled`: that would drop the keyboard focus of whoever pressed it. */
export function setInactive(button, inactive) {
  button.setAttribute("aria-disabled", String(inactive));
}
