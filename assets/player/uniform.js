// The uniform u as a pointer above a line from 0 to 1.

import { clamp } from "../lib/motion.js";
import { equals } from "../lib/numbers.js";

/** Draws u as a pointer that falls on the line 0..1: fall 0 is above it, 1 on it. */
export function drawUniform(scene, key, x, width, y, height, u, fall) {
  const at = x + u * width;
  const tip = y - 30 * (1 - fall);
  scene.put(`${key}:tip`, "path", { d: `M${at} ${tip} l-6 -11 h12 Z`, fill: scene.ink.ink });
  scene.put(`${key}:line`, "path", { d: `M${at} ${tip} V${y + 6 * fall} M${at} ${y + height} v${6 * fall}`,
    stroke: scene.ink.ink,
    "stroke-width": 2 });
  const label = `u ${equals(u)}`;
  const half = label.length * 3.6;
  scene.text(`${key}:label`, clamp(at, x + half, x + width - half), tip - 16, label,
    { "text-anchor": "middle", "font-size": 13, "font-weight": 600 });
}
