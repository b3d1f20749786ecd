// The accept rule by hand: entry point for Streamlit. p, q and u can be moved, and everything that follows from them
// redraws at once; so only here the browser computes and words what is shown. What is counted comes from Python.

import { mount } from "../lib/instances.js";
import { Hand } from "./hand.js";

const hands = new WeakMap();

export default function (call) {
  return mount(hands, Hand, call);
}
