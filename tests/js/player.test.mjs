// The player's playhead and story as pure functions of the rounds.
import assert from "node:assert/strict";
import test from "node:test";

import { decade, roofAxes } from "../../assets/player/roofline.js";
import { keptTokens, slotOfFrame, story, verdictSoFar } from "../../assets/player/story.js";
import { tableRows } from "../../assets/player/table.js";
import { lastPlace, mergeRounds, placeAfter, placeOfStep, stepOfPlace, validPlace }
  from "../../assets/player/timeline.js";

const frame = (kind, slots = []) => ({ kind, slots });
const slot = (i, verdict, guess = null) => ({ slot: i, id: i, verdict, text: `t${i}`,
  first_guess: guess && { id: guess.id, text: guess.text },
  texts: { row: [String(i + 1), `t${i}`, "0.5", "0.4", "0.8", "0.1", verdict] } });
const round = {
  slots: [slot(0, "accepted"), slot(1, "rejected"), slot(2, "dropped")], accepted: 1, kind: "leftover",
  bonus: { slot: 1 }, emitted: [{ id: 0 }, { id: 9 }],
  texts: { bonus_row: ["2", "b", "0.1", "0.2", "", "0.3", "bonus, from the leftover"] },
  frames: [frame("draft", [0, 1, 2]), frame("verify", [0, 1, 2, 3]), frame("judge", [0]), frame("judge", [1]),
    frame("dropped", [2]), frame("leftover", [1]), frame("bonus", [1])],
};
const rounds = [{ frames: Array(3).fill(frame("draft")) }, { frames: [frame("verify")] },
  { frames: Array(2).fill(frame("judge")) }];

test("every step has one place and every place its step", () => {
  for (let step = 0; step < 6; step++) assert.equal(stepOfPlace(rounds, placeOfStep(rounds, step)), step);
  assert.deepEqual(placeOfStep(rounds, 99), lastPlace(rounds));
  assert.deepEqual(lastPlace(rounds), { round: 2, frame: 1 });
});

test("the controls move by steps and by rounds and stop at both ends", () => {
  assert.deepEqual(placeAfter(rounds, { round: 0, frame: 2 }, "next"), { round: 1, frame: 0 });
  assert.deepEqual(placeAfter(rounds, { round: 1, frame: 0 }, "previous"), { round: 0, frame: 2 });
  assert.deepEqual(placeAfter(rounds, { round: 0, frame: 0 }, "previous"), { round: 0, frame: 0 });
  assert.deepEqual(placeAfter(rounds, { round: 2, frame: 1 }, "next"), { round: 2, frame: 1 });
  assert.deepEqual(placeAfter(rounds, { round: 2, frame: 1 }, "previousRound"), { round: 2, frame: 0 });
  assert.deepEqual(placeAfter(rounds, { round: 2, frame: 0 }, "previousRound"), { round: 1, frame: 0 });
  assert.deepEqual(placeAfter(rounds, { round: 2, frame: 0 }, "nextRound"), { round: 2, frame: 1 });
  assert.deepEqual(validPlace(rounds, { round: 7, frame: 7 }), { round: 2, frame: 1 });
});

test("rounds from Python are added once, replaced when sent again, and a gap is ignored", () => {
  const first = mergeRounds([], 0, 0, ["a", "b"]);
  assert.deepEqual(first, { rounds: ["a", "b"], known: 2 });
  assert.deepEqual(mergeRounds(first.rounds, 2, 1, ["B", "c"]), { rounds: ["a", "B", "c"], known: 3 });
  assert.deepEqual(mergeRounds(first.rounds, 2, 3, ["d"]), { rounds: ["a", "b"], known: 2 });
  assert.deepEqual(first.rounds, ["a", "b"], "the list that was there is not changed");
});

test("nothing has happened that a later frame tells", () => {
  const s = story(round, 2, 0.5);
  assert.deepEqual(s.drafted, [1, 1, 1]);
  assert.deepEqual(s.judged, [0.5, 0, 0]);
  assert.equal(s.bonus, 0);
  assert.equal(verdictSoFar(round, s, 0), null, "the verdict is not shown before u has fallen");
  assert.equal(verdictSoFar(round, story(round, 2, 1), 0), "accepted");
  assert.equal(verdictSoFar(round, story(round, 4, 1), 2), "dropped");
});

test("kept tokens are counted as the story gives them", () => {
  assert.equal(keptTokens(round, story(round, 1, 1), 0.75, 0.6), 0);
  assert.equal(keptTokens(round, story(round, 2, 1), 0.75, 0.6), 1);
  assert.equal(keptTokens(round, story(round, 6, 1), 0.75, 0.6), 2);
});

test("the table shows no number before the story reaches it", () => {
  const before = tableRows(round, story(round, 0, 1));
  assert.deepEqual(before[0].cells, ["1", "t0", "0.5", "", "", "", ""]);
  assert.deepEqual(before.at(-1).cells, Array(7).fill(""));
  const after = tableRows(round, story(round, 6, 1));
  assert.deepEqual(after[0].cells, ["1", "t0", "0.5", "0.4", "0.8", "0.1", "accepted"]);
  assert.deepEqual(after.at(-1), { slot: 1, verdict: "bonus", cells: round.texts.bonus_row });
});

test("a first guess stands in the table until the serial pass has replaced it", () => {
  const rough = { ...round, slots: [slot(0, "accepted", { id: 7, text: "guess" })],
    frames: [frame("draft", [0]), frame("correct", [0]), frame("verify", [0, 1])] };
  assert.equal(tableRows(rough, story(rough, 0, 1))[0].cells[1], "guess");
  assert.equal(tableRows(rough, story(rough, 1, 1))[0].cells[1], "t0");
});

test("each frame points at the slot whose bars belong to it", () => {
  assert.deepEqual(round.frames.map((f) => slotOfFrame(round, f)), [0, 0, 0, 1, 1, 1, 1]);
});

test("the roof's axes hold the ceilings and the slowest pass", () => {
  const ceilings = { flops: 1e12, bandwidth: 1e10, ridge: 100 };
  const axes = roofAxes([{ points: { draft: { rate: 3e5 }, plain: null } }], ceilings);
  assert.ok(axes.low.y <= Math.log10(3e5) && axes.high.y >= 12 && axes.high.x >= 3);
  assert.equal(decade(4), "10k");
  assert.equal(decade(-1), "0.1");
});
