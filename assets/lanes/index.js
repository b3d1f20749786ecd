// Lanes on a common clock: entry point for Streamlit. Draws the rounds that Python sent, each block to measured time.
// The browser owns the playhead; a click on a round is reported as `picked`.

import { mount } from "../lib/instances.js";
import { Board } from "./board.js";

const boards = new WeakMap();

export default function (call) {
  return mount(boards, Board, call);
}
