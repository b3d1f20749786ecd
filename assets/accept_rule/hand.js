// One position in the reader's hands: p, q, the draft and u, and what is reported to Python.

import { namedElements } from "../lib/controls.js";
import { clamp } from "../lib/motion.js";
import { setText } from "../lib/svg.js";
import { buildPanels } from "./build.js";
import { drawCame, drawParts, drawThink } from "./panels.js";
import { isAccepted, leftoverOf, setProbability, thresholdOf } from "./probabilities.js";
import { buildRuler, drawRuler } from "./ruler.js";
import { sentenceParts } from "./sentence.js";

/** The accept rule in one mounted component. */
export class Hand {
  constructor(root) {
    this.el = namedElements(root);
    this.root = root.querySelector(".rule");
    this.rows = { think: [], parts: [], came: [] };
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.root);
    buildRuler(this);
  }

  close() {
    this.watch.disconnect();
    clearTimeout(this.later);
  }

  update(data) {
    this.data = data;
    for (const [role, colour] of Object.entries(data.colours)) this.root.style.setProperty(`--sv-${role}`, colour);
    if (data.case.id !== this.id) {
      this.id = data.case.id;
      this.take(data.case);
      buildPanels(this);
    }
    if (data.set && data.set.id !== this.obeyed) {
      this.obeyed = data.set.id;
      this.take({ ...data.case, p: data.set.p ?? this.p, q: data.set.q ?? this.q, drafted: data.set.token,
        u: data.set.u });
      this.reportHand();
    }
    this.draw();
  }

  take({ p, q, drafted, u }) {
    this.p = [...p];
    this.q = [...q];
    this.token = drafted ?? 0;
    this.u = u ?? 0.5;
  }

  // ---- what the reader does

  // Sets one probability; the others keep their proportions, so that the sum stays 1.
  move(name, i, value) {
    const { tokens, sums } = this.data.case;
    this[name] = setProbability(this[name], i, value, tokens.length - sums);
    this.draw();
  }

  moveU(value) {
    this.u = clamp(value, 0, 0.9999);
    this.draw();
  }

  choose(i) {
    this.token = i;
    this.draw();
    this.reportHand();
  }

  // Python hears of it when the hand rests.
  reportHand() {
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      setText(this.el.live, this.el.words.textContent);
      this.report("hand", { case: this.id, p: this.p, q: this.q, token: this.token, u: this.u });
    }, 250);
  }

  // ---- drawing

  get threshold() {
    return thresholdOf(this.p[this.token], this.q[this.token]);
  }

  get accepted() {
    return isAccepted(this.p[this.token], this.q[this.token], this.u);
  }

  draw() {
    if (!this.data || !this.p) return;
    this.drawWords();
    drawRuler(this);
    drawThink(this);
    drawParts(this, leftoverOf(this.p, this.q));
    drawCame(this);
  }

  drawWords() {
    const { parts, verdict } = sentenceParts(this.p, this.q, this.u, this.token);
    const { tokens } = this.data.case;
    this.el.words.className = verdict ? `words ${verdict}` : "words";
    this.el.words.replaceChildren(...parts.map(([kind, value]) => {
      if (!kind) return value;
      const box = document.createElement(kind === "token" ? "b" : "span");
      if (kind === "verdict") box.className = "verdict";
      box.textContent = kind === "token" ? tokens[value] : value;
      return box;
    }));
  }
}
