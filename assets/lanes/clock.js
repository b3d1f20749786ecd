// The common clock as pure functions of the lanes' rounds; times in seconds.

import { clamp } from "../lib/motion.js";
import { fixed } from "../lib/numbers.js";

const NEAR = 0.001;  // a lookup's draft takes microseconds: moments nearer than this are one step

/** All moments at which a block of a lane begins or ends, in order. */
export function eventsOf(lanes) {
  const moments = lanes.flatMap((lane) => lane.rounds.flatMap((r) => [
    r.start, r.start + r.draft, r.start + r.draft + r.verify, r.start + r.draft + r.verify + r.other]));
  const kept = [];
  for (const moment of [...new Set(moments)].sort((a, b) => a - b)) {
    if (!kept.length || moment - kept.at(-1) >= NEAR) kept.push(moment);
  }
  return kept;
}

/** A time on the clock in steps that do not jump while it runs: whole milliseconds, or seconds with two decimals. */
export const clockText = (t) => (t < 0.9995 ? `${fixed(1e3 * t, 0)} ms` : `${fixed(t, 2)} s`);

/** When the last lane is finished. */
export const endOf = (lanes) => Math.max(0.001, ...lanes.map((lane) => lane.seconds));

/** The first event after t, or undefined. */
export const eventAfter = (events, t) => events.find((e) => e > t + 1e-6);

/** The last event before t, or undefined. */
export const eventBefore = (events, t) => events.findLast((e) => e < t - 1e-6);

/** The index of the round that is under way at t; the last one once the lane is finished. */
export function roundAt(lane, t) {
  let at = 0;
  while (at + 1 < lane.rounds.length && lane.rounds[at + 1].start <= t + 1e-9) at += 1;
  return at;
}

/** What of the clock is on screen, [from, to]: all of it, or an eighth around t. */
export function clockWindow(t, end, all) {
  if (all) return [0, end];
  const span = Math.min(end, Math.max(0.15, end / 8));
  const from = clamp(t - span / 2, 0, end - span);
  return [from, from + span];
}

/** Tokens that a round emitted. */
export const emittedBy = (round) => round.accepted + (round.bonus !== null ? 1 : 0);

/**
 * The state of a round at t: what it is doing, and a chip for each draft and the bonus token, [state, text, first
 * guess].
 * The order inside a draft block is the drafter's own; only the whole block was timed, so its parts come evenly.
 */
export function roundState(lane, round, t, done) {
  const since = t - round.start;
  const drafting = round.draft > 0 ? clamp(since / round.draft, 0, 1) : 1;
  const judged = done || since >= round.draft + round.verify - 1e-9;
  const n = round.drafts.length;
  const chips = round.drafts.map((draft, i) => draftChip(lane.builds, draft, { drafting, judged, i, n }));
  if (judged && round.bonus !== null) {
    const refused = round.accepted < n && round.drafts[round.accepted].verdict === "rejected";
    chips.splice(round.accepted + (refused ? 1 : 0), 0, ["bonus", round.bonus, null]);
  }
  const doing = n ? (judged ? "judged" : drafting < 1 ? "drafting" : "verifying") : "no draft";
  return { doing, chips };
}

function draftChip(builds, draft, { drafting, judged, i, n }) {
  const old = draft.guess || null;
  if (judged) return [draft.verdict, draft.text, old];
  const shown = (from) => (drafting >= from - 1e-9 ? ["", draft.text, old] : ["ghost", draft.text, null]);
  if (builds === "serial") return shown((i + 1) / n);
  if (builds !== "hybrid") return shown(1);
  if (drafting >= 0.5 + (0.5 * (i + 1)) / n - 1e-9) return ["", draft.text, old];
  return [drafting < 0.5 ? "ghost" : "rough", draft.guess ?? draft.text, null];
}
