// The common clock of the lanes as pure functions.
import assert from "node:assert/strict";
import test from "node:test";

import { clockText, clockWindow, endOf, eventAfter, eventBefore, eventsOf, roundAt, roundState }
  from "../../assets/lanes/clock.js";

const drafts = [{ text: "a", guess: "x", verdict: "accepted" }, { text: "b", guess: null, verdict: "rejected" }];
const rounds = [{ start: 0, draft: 0.4, verify: 0.2, other: 0.1, accepted: 1, bonus: "c", drafts },
  { start: 0.7, draft: 0.00001, verify: 0.2, other: 0.1, accepted: 0, bonus: null, drafts: [] }];
const lane = (builds) => ({ builds, rounds, seconds: 1 });

test("events are in order, and moments nearer than a millisecond are one", () => {
  const events = eventsOf([lane("serial")]);
  assert.deepEqual(events, [...events].sort((a, b) => a - b));
  assert.equal(events.filter((e) => Math.abs(e - 0.7) < 0.001).length, 1);
  assert.equal(eventAfter(events, events[1]), events[2]);
  assert.equal(eventBefore(events, events[1]), events[0]);
  assert.equal(eventBefore(events, events[0]), undefined);
  assert.equal(endOf([]), 0.001);
});

test("the clock reads whole milliseconds below a second", () => {
  assert.deepEqual([0, 0.2, 0.9994, 0.9996, 2.345].map(clockText), ["0 ms", "200 ms", "999 ms", "1.00 s", "2.35 s"]);
});

test("the round under way is the last one that has started", () => {
  assert.equal(roundAt(lane("serial"), 0.69), 0);
  assert.equal(roundAt(lane("serial"), 0.7), 1);
});

test("the window around now stays on the clock", () => {
  assert.deepEqual(clockWindow(5, 10, true), [0, 10]);
  for (const t of [0, 5, 10]) {
    const [from, to] = clockWindow(t, 10, false);
    assert.ok(from >= 0 && to <= 10 && from <= t && t <= to);
  }
});

test("drafts come as their drafter makes them, and no verdict is shown before the pass has ended", () => {
  const states = (builds, t) => roundState(lane(builds), rounds[0], t, false).chips.map(([state]) => state);
  assert.deepEqual(states("serial", 0.2), ["", "ghost"]);
  assert.deepEqual(states("parallel", 0.2), ["ghost", "ghost"]);
  assert.deepEqual(states("hybrid", 0.1), ["ghost", "ghost"]);
  assert.deepEqual(states("hybrid", 0.3), ["", "rough"]);
  assert.deepEqual(states("parallel", 0.5), ["", ""]);
  assert.deepEqual(states("serial", 0.6), ["accepted", "rejected", "bonus"]);
  assert.equal(roundState(lane("serial"), rounds[0], 0.5, false).doing, "verifying");
  assert.equal(roundState(lane("serial"), rounds[1], 0.8, false).doing, "no draft");
});
