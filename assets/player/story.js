// The story of a round as a pure function of its frames: what has happened at a point of it.

/**
 * What has happened in a round once its frames before `at` are over and frame `at` has run to `t` in 0..1:
 * per slot drafted, corrected, judged, dropped, and verify, leftover, bonus, ended, each in 0..1.
 */
export function story(round, at, t) {
  const n = round.slots.length;
  const s = { drafted: Array(n).fill(0), corrected: Array(n).fill(0), verify: 0, judged: Array(n).fill(0),
              dropped: Array(n).fill(0), leftover: 0, bonus: 0, ended: 0, now: round.frames[at] };
  round.frames.slice(0, at + 1).forEach((frame, i) => {
    const amount = i < at ? 1 : t;
    const list = { draft: "drafted", correct: "corrected", judge: "judged", dropped: "dropped" }[frame.kind];
    if (list) for (const slot of frame.slots) s[list][slot] = amount;
    else s[frame.kind === "end" ? "ended" : frame.kind] = amount;
  });
  // the serial pass has gone by what it kept as soon as it is at a later slot, or at its end
  const refined = round.slots.reduce((last, slot, i) => (s.corrected[i] > 0 ? i : last), -1);
  round.slots.forEach((slot, i) => {
    const kept = slot.first_guess && slot.first_guess.id === slot.id;
    if (kept && (i < refined || s.verify > 0)) s.corrected[i] = 1;
  });
  return s;
}

/** The verdict on a slot as far as the story has got, or null. */
export function verdictSoFar(round, s, slot) {
  if (s.judged[slot] >= 0.75) return round.slots[slot].verdict;
  return s.dropped[slot] > 0.3 ? "dropped" : null;
}

/** How many of a round's tokens are kept at a point of its story; `judged` and `bonus` say from which amount on. */
export function keptTokens(round, s, judged, bonus) {
  return round.emitted.filter((_, i) => (i < round.accepted ? s.judged[i] >= judged : s.bonus > bonus)).length;
}

/** The slot whose bars belong to a frame of the story. */
export function slotOfFrame(round, frame) {
  if (["leftover", "bonus"].includes(frame.kind)) return frame.slots[0];
  if (frame.kind === "dropped" || frame.kind === "end") return Math.min(round.accepted, round.slots.length);
  if (frame.kind === "verify") return 0;
  return frame.slots.length > 1 ? 0 : frame.slots[0] ?? 0;
}

/** The label of position `i` for a screen reader, at this point of the story. */
export function positionLabel(round, s, i) {
  const slot = round.slots[i];
  if (!slot) return round.past.texts.label[s.bonus ? 1 : 0];
  if (!s.drafted[i]) return slot.texts.label[0];
  return slot.texts.label[verdictSoFar(round, s, i) ? (s.verify ? 3 : 1) : s.verify ? 2 : 1];
}
