// What follows from p, q and u at one position, as pure functions.

import { clamp } from "../lib/motion.js";

/**
 * The distribution after entry i was set to value: the others keep their proportions, so that the sum stays 1.
 * named: entries from the front that are single tokens; they share the rest if all of it lay on entry i.
 */
export function setProbability(list, i, value, named) {
  const after = clamp(value, 0, 1);
  const rest = 1 - list[i];
  return list.map((x, j) => {
    if (j === i) return after;
    if (rest > 1e-9) return (x * (1 - after)) / rest;
    return j < named ? (1 - after) / (named - 1) : 0;
  });
}

/** min(1, p/q); 1 where q is 0. */
export const thresholdOf = (p, q) => (q > 0 ? Math.min(1, p / q) : 1);

/** Whether the accept rule keeps a draft with u. */
export const isAccepted = (p, q, u) => u * q < p;

/** max(0, p - q) of each token, its sum, and each token's share of it. */
export function leftoverOf(p, q) {
  const left = p.map((x, i) => Math.max(0, x - q[i]));
  const total = left.reduce((a, b) => a + b, 0);
  return { left, total, share: left.map((x) => (total > 1e-12 ? x / total : 0)) };
}
