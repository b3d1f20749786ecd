// What follows from p, q and u in the reader's hands.
import assert from "node:assert/strict";
import test from "node:test";

import { isAccepted, leftoverOf, setProbability, thresholdOf } from "../../assets/accept_rule/probabilities.js";
import { partsNote, sentenceParts } from "../../assets/accept_rule/sentence.js";

const sum = (list) => list.reduce((a, b) => a + b, 0);
const said = (p, q, u, token) => sentenceParts(p, q, u, token).parts.map(([, x]) => x).join("");

test("a distribution stays one however an entry is moved", () => {
  for (const value of [-1, 0, 0.3, 1, 2]) {
    assert.ok(Math.abs(sum(setProbability([0.2, 0.5, 0.3], 1, value, 3)) - 1) < 1e-12);
  }
  assert.deepEqual(setProbability([0, 1, 0], 1, 0.5, 3), [0.25, 0.5, 0.25]);
  assert.deepEqual(setProbability([1, 0, 0], 0, 0, 2), [0, 1, 0], "a sum of other tokens takes no share");
});

test("kept part and leftover add up to p", () => {
  const [p, q] = [[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]];
  const { left, total, share } = leftoverOf(p, q);
  p.forEach((x, i) => assert.ok(Math.abs(Math.min(x, q[i]) + left[i] - x) < 1e-12));
  assert.ok(Math.abs(total - 0.4) < 1e-12);
  assert.deepEqual(share, [1, 0, 0]);
  assert.deepEqual(leftoverOf(p, p).share, [0, 0, 0]);
});

test("a draft is kept exactly where u is below min(1, p/q)", () => {
  for (const [p, q, u] of [[0.3, 0.6, 0.49], [0.3, 0.6, 0.5], [0.3, 0.6, 0.51], [0.6, 0.3, 0.999], [0, 0.5, 0]]) {
    assert.equal(isAccepted(p, q, u), u < thresholdOf(p, q));
  }
});

test("the sentence names the verdict that the rule gives", () => {
  assert.match(said([0.3, 0.7], [0.6, 0.4], 0.4, 0), /p = 0\.300, q = 0\.600.*u = 0\.400 is below 0\.500: accepted/);
  assert.match(said([0.3, 0.7], [0.6, 0.4], 0.9, 0), /not below 0\.500: rejected.*where only 1 is left\./);
  assert.match(said([0.3, 0.7], [0, 1], 0.9, 0), /never proposes it/);
  assert.match(partsNote(0), /agree/);
  assert.match(partsNote(0.25), /probability 0\.750/);
});
