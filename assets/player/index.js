// The player of a run: entry point for Streamlit. It owns the playhead and draws what Python computed
// (specviz/views/frames.py and specviz/views/captions.py). Token text is untrusted: it only ever goes into textContent.

import { mount } from "../lib/instances.js";
import { Player } from "./player.js";

const players = new WeakMap();

export default function (call) {
  return mount(players, Player, call);
}
