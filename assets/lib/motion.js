// Values between two bounds, and the pace of a movement.

/** x, but at least `low` and at most `high`. */
export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

/** Movement that slows down towards its end: t in 0..1 to 0..1. */
export const ease = (t) => 1 - (1 - t) ** 3;

/** How far t has come from `from` to `to`, in 0..1. */
export const between = (t, from, to) => clamp((t - from) / (to - from), 0, 1);
