// The sentence about the draft in hand: p, q, u and what follows from them.

import { equals, number, probability } from "../lib/numbers.js";
import { isAccepted, leftoverOf, thresholdOf } from "./probabilities.js";

const is = (x) => equals(x, probability);

/**
 * Parts of the sentence, each ["", text], ["token", index] or ["verdict", text], and the verdict: "accepted",
 * "rejected", or "" where nothing is judged.
 */
export function sentenceParts(allP, allQ, u, token) {
  const [p, q] = [allP[token], allQ[token]];
  const parts = [["", "Draft "], ["token", token], ["", `: p ${is(p)}, q ${is(q)}. `]];
  if (q === 0) {
    return { verdict: "", parts: [...parts, ["", "The draft model never proposes it, so there is nothing to judge."]] };
  }
  const threshold = thresholdOf(p, q);
  if (p >= q) parts.push(["", "p is at least q, so min(1, p/q) = 1 and every u accepts. "]);
  else if (p < 0.001 || q < 0.001) parts.push(["", `p/q ${is(threshold)}. `]);
  else {
    parts.push(["", `min(1, p/q) = ${probability(p)} / ${probability(q)} = ${probability(threshold)}. `]);
  }
  const limit = threshold < 0.001 ? "p/q" : probability(threshold);
  if (isAccepted(p, q, u)) {
    parts.push(["", `u ${is(u)} is below ${limit}: `], ["verdict", "accepted"], ["", ", "], ["token", token],
      ["", " is kept."]);
    return { verdict: "accepted", parts };
  }
  parts.push(["", `u ${is(u)} is not below ${limit}: `], ["verdict", "rejected"],
    ["", ". The target draws from the leftover"], ...likeliest(leftoverOf(allP, allQ).share));
  return { verdict: "rejected", parts };
}

function likeliest(share) {
  const likely = share.map((x, i) => [x, i]).filter(([x]) => x >= 0.0005).sort((a, b) => b[0] - a[0]);
  if (likely.length === 1) return [["", ", where only "], ["token", likely[0][1]], ["", " is left."]];
  const parts = likely.slice(0, 3).flatMap(([x, i], n) => [["", n ? ", " : ": "], ["token", i],
    ["", ` ${probability(x)}`]]);
  return [...parts, ["", likely.length > 3 ? ", and others less." : "."]];
}

/** The note under the two parts of p. */
export function partsNote(total) {
  if (total < 5e-4) return "p and q agree: nothing is left over and every draft is kept.";
  return `A draft is kept with probability ${probability(1 - total)}, the sum of min(p, q). The leftover weighs `
    + `${probability(total)}; divided by that it gives the thin bars, from which the target draws after a rejection.`;
}

/** A count with thousands separators. */
export const count = (n) => (Number.isInteger(n) ? n.toLocaleString("en") : number(n));
