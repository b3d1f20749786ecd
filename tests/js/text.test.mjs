// Text that must fit, and values between two bounds.
import assert from "node:assert/strict";
import test from "node:test";

import { between, clamp, ease } from "../../assets/lib/motion.js";
import { cells, fit, wrap } from "../../assets/lib/text.js";

test("wide characters take two cells, arrows and dots one", () => {
  assert.equal(cells("abc"), 3);
  assert.equal(cells("日本"), 4);
  assert.equal(cells("·↵"), 2);
  assert.equal(cells("😀"), 2);
});

test("a text that is cut never exceeds its room and never splits a character", () => {
  assert.equal(fit("short", 5), "short");
  assert.equal(fit("too long", 5), "too …");
  for (let room = 1; room < 9; room++) assert.ok(cells(fit("a😀b😀c日", room)) <= Math.max(1, room));
  assert.equal(fit("😀😀😀", 4), "😀…");
});

test("wrapping keeps all words in order, each line within its room", () => {
  const text = "the target draws from the leftover after a rejection";
  const lines = wrap(text, 14);
  assert.equal(lines.join(" "), text);
  assert.ok(lines.every((line) => cells(line) <= 14));
  assert.deepEqual(wrap("", 10), []);
});

test("movement starts at 0, ends at 1 and stays between", () => {
  assert.equal(ease(0), 0);
  assert.equal(ease(1), 1);
  assert.equal(clamp(5, 0, 1), 1);
  assert.equal(between(0.5, 0.25, 0.75), 0.5);
  assert.equal(between(0.1, 0.25, 0.75), 0);
});
