// The playhead as a pure function of the rounds: steps count from 0 over all frames of all rounds.

import { clamp } from "../lib/motion.js";

const DURATIONS = { draft: 650, correct: 900, verify: 1000, judge: 1300, dropped: 800, leftover: 1300, bonus: 1400,
  end: 900 };
/** The share of a step in which things move; then it rests, to be read. */
export const MOVING_SHARE = 0.62;

/** How long a frame lasts at a playback speed, in milliseconds. */
export const durationOf = (frame, speed) => DURATIONS[frame.kind] / speed;

/** The last place of the run. */
export function lastPlace(rounds) {
  const round = rounds.length - 1;
  return { round, frame: rounds[round].frames.length - 1 };
}

/** The step of a place (round and frame in it). */
export function stepOfPlace(rounds, { round, frame }) {
  return rounds.slice(0, round).reduce((sum, r) => sum + r.frames.length, 0) + frame;
}

/** The place of a step; steps past the end give the last place. */
export function placeOfStep(rounds, step) {
  let round = 0;
  let left = step;
  while (round < rounds.length - 1 && left >= rounds[round].frames.length) left -= rounds[round++].frames.length;
  return { round, frame: clamp(left, 0, rounds[round].frames.length - 1) };
}

/** A place moved into the rounds that there are. */
export function validPlace(rounds, { round = 0, frame = 0 }) {
  const inside = clamp(round, 0, rounds.length - 1);
  return { round: inside, frame: clamp(frame, 0, rounds[inside].frames.length - 1) };
}

/** Where an action of the playback controls leads from a place. */
export function placeAfter(rounds, { round, frame }, action) {
  const step = stepOfPlace(rounds, { round, frame });
  switch (action) {
    case "first": return { round: 0, frame: 0 };
    case "previous": return placeOfStep(rounds, Math.max(0, step - 1));
    case "next": return placeOfStep(rounds, step + 1);
    case "previousRound": return { round: frame > 0 ? round : Math.max(0, round - 1), frame: 0 };
    case "nextRound": return round + 1 < rounds.length ? { round: round + 1, frame: 0 } : lastPlace(rounds);
    default: return lastPlace(rounds);
  }
}

/**
 * The rounds after a message from Python, and how many of them are known to be current. A message whose start lies past
 * what is known is ignored: Python sends the missing rounds when it hears the count.
 */
export function mergeRounds(rounds, known, start, sent) {
  if (start > known || !sent.length) return { rounds, known };
  const merged = [...rounds];
  merged.splice(start, sent.length, ...sent);
  return { rounds: merged, known: Math.max(known, start + sent.length) };
}
