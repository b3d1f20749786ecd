// One position in full: bars, accept test and draw side by side, or under each other where it is narrow.

import { fit } from "../lib/text.js";
import { drawAcceptTest } from "./accept_test.js";
import { BARS_HEIGHT, drawBars } from "./bars.js";
import { DRAW_HEIGHT, drawBonus } from "./bonus_draw.js";

const DETAIL_TOP = 30;
const TEST_HEIGHT = 132;

/** Draws position `at` of a round: paired bars, the accept test, the draw. Returns the height in pixels. */
export function drawDetail(scene, width, round, at, s) {
  const place = round.slots[at] ?? round.past;
  const wide = width >= 640;
  const left = wide ? Math.round(width * 0.53) : width;
  const [before, token, after] = place.texts.title;
  scene.text("title", 0, 16, `${before}${fit(token, wide ? 30 : 14)}${after}`, { "font-size": 15, "font-weight": 600 });
  drawBars(scene, 0, DETAIL_TOP, left - (wide ? 28 : 0), round, place, at, s);
  const x = wide ? left : 0;
  const room = (wide ? width - left : width) - 1;
  const y = wide ? DETAIL_TOP : DETAIL_TOP + BARS_HEIGHT + 14;
  drawAcceptTest(scene, x, y, room, round, place, at, s);
  drawBonus(scene, x, y + TEST_HEIGHT + 18, room, round, s);
  return wide ? DETAIL_TOP + BARS_HEIGHT : y + TEST_HEIGHT + 18 + DRAW_HEIGHT;
}
