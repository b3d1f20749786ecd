// Pictures drawn with keyed shapes, and the icons of verdicts.

import { SVG, setAttributes } from "./svg.js";
import { wrap } from "./text.js";

/** A picture as a list of shapes with keys. Shapes that stay keep their element, so focus survives a redraw. */
export class Scene {
  constructor(root, ink) {
    this.root = root;
    this.ink = ink;
    this.elements = new Map();
    this.list = [];
  }

  put(key, tag, attributes, text) {
    this.list.push({ key, tag, attributes, text });
  }

  text(key, x, y, text, extra = {}) {
    this.put(key, "text", { x, y, fill: this.ink.ink, "font-size": 13, "font-family": this.ink.font, ...extra }, text);
  }

  mono(key, x, y, text, extra = {}) {
    this.text(key, x, y, text, { "font-family": this.ink.mono, ...extra });
  }

  icon(key, kind, x, y, size = 14, extra = {}) {
    const { d, color } = verdictIcon(kind, this.ink);
    const filled = kind === "bonus";
    this.put(key, "path", {
      d, transform: `translate(${x} ${y}) scale(${size / 16})`, fill: filled ? color : "none",
      stroke: filled ? this.ink.ink : color, "stroke-width": filled ? 1 : 2.6, "stroke-linecap": "round",
      "stroke-linejoin": "round", ...extra,
    });
  }

  commit() {
    const keep = new Set(this.list.map((shape) => shape.key));
    for (const [key, element] of this.elements) {
      if (!keep.has(key)) {
        element.remove();
        this.elements.delete(key);
      }
    }
    this.list.forEach(({ key, tag, attributes, text }, i) => {
      let element = this.elements.get(key);
      if (!element) this.elements.set(key, (element = document.createElementNS(SVG, tag)));
      for (const name of element.getAttributeNames()) if (!(name in attributes)) element.removeAttribute(name);
      setAttributes(element, attributes);
      if (text !== undefined && element.textContent !== text) element.textContent = text;
      if (this.root.childNodes[i] !== element) this.root.insertBefore(element, this.root.childNodes[i] ?? null);
    });
    this.list = [];
  }
}

/** Path and colour of the icon of a verdict, or of the bonus token's star. */
export function verdictIcon(kind, ink) {
  switch (kind) {
    case "accepted": return { d: "M2.5 8.5 L6.5 12.5 L13.5 4", color: ink.accepted };
    case "rejected": return { d: "M3.5 3.5 L12.5 12.5 M12.5 3.5 L3.5 12.5", color: ink.rejected };
    case "dropped": return { d: "M3 8 H13", color: ink.dropped };
    default: return { d: "M8 1 L10.1 5.7 L15.2 6.2 L11.4 9.6 L12.5 14.6 L8 12 L3.5 14.6 L4.6 9.6 L0.8 6.2 L5.9 5.7 Z",
                      color: ink.bonus };
  }
}

/** Text wrapped to `width` pixels; returns its height. */
export function paragraph(scene, key, x, y, width, text, extra = {}) {
  const size = extra["font-size"] ?? 13;
  const lines = wrap(text, Math.floor(width / (size * scene.ink.pitch)));
  lines.forEach((line, i) => scene.text(`${key}:${i}`, x, y + i * (size + 4), line,
    { fill: scene.ink.muted, ...extra }));
  return lines.length * (size + 4);
}
