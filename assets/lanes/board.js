// The board of all lanes: data, playback, and what is reported to Python.

import { actionOfKey, namedElements, playbackButtons, showPlaying } from "../lib/controls.js";
import { clamp } from "../lib/motion.js";
import { clockText, clockWindow, endOf, eventAfter, eventBefore, eventsOf } from "./clock.js";
import { buildLanes, drawLane, showLegend } from "./lane.js";
import { saveLanes } from "./save.js";

const BUTTONS = [["first", "To the start", "Home"], ["previous", "Previous event", "ArrowLeft"],
  ["play", "Play", "Space"], ["next", "Next event", "ArrowRight"], ["last", "To the end", "End"]];
let serial = 0;

/** All lanes of one prompt in one mounted component. */
export class Board {
  constructor(host) {
    this.host = host;
    this.el = namedElements(host);
    this.box = host.querySelector(".lanes");
    this.id = ++serial;
    this.t = 0;
    this.playing = false;
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.el.speed.value = "0.05";
    this.el.speed.onchange = () => { this.speed = Number(this.el.speed.value); };
    this.speed = 0.05;
    this.el.zoom.onchange = () => this.draw();
    this.el.scrub.oninput = () => {
      const wanted = Number(this.el.scrub.value);  // read first: a redraw writes it
      this.pause();
      this.go(wanted);
    };
    this.el.svg.onclick = () => saveLanes(this);
    this.buttons = playbackButtons(this.el.buttons, BUTTONS, (name) => this.act(name));
    this.box.onkeydown = (event) => this.key(event);
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.box);
  }

  close() {
    cancelAnimationFrame(this.raf);
    clearTimeout(this.timer);
    this.playing = false;
    this.resize.disconnect();
  }

  update(data) {
    const fresh = !this.data || this.data.id !== data.id;
    this.data = data;
    for (const role of ["draft", "accepted", "rejected", "bonus", "dropped"]) {
      this.box.style.setProperty(`--${role}`, data.colours[role]);
    }
    if (fresh) {
      this.pause();
      this.end = endOf(data.lanes);
      this.events = eventsOf(data.lanes);
      this.el.scrub.max = String(this.end);
      this.rows = buildLanes(this);
      showLegend(this.el.legend, data.colours);
      this.t = this.end;
    }
    this.el.badge.textContent = data.source;
    this.el.badge.hidden = !data.source;
    this.el.meta.textContent = data.meta;
    this.draw();
  }

  // ---- playing

  act(name) {
    if (name === "play") return this.playing ? this.pause() : this.play();
    this.pause();
    if (name === "first") this.go(0);
    if (name === "last") this.go(this.end);
    if (name === "next") this.go(eventAfter(this.events, this.t) ?? this.end);
    if (name === "previous") this.go(eventBefore(this.events, this.t) ?? 0);
  }

  key(event) {
    if (event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const name = actionOfKey(event.key);
    if (!(name in this.buttons) || (event.key === " " && event.target.matches("button"))) return;
    event.preventDefault();
    this.act(name);
  }

  play() {
    if (this.t >= this.end) this.t = 0;
    this.playing = true;
    this.before = performance.now();
    if (this.still.matches) this.hop();
    else this.raf = requestAnimationFrame((now) => this.frame(now));
    this.draw();
  }

  pause() {
    this.playing = false;
    cancelAnimationFrame(this.raf);
    clearTimeout(this.timer);
    this.draw();
  }

  frame(now) {
    if (!this.playing) return;
    this.t = Math.min(this.end, this.t + ((now - this.before) / 1e3) * this.speed);
    this.before = now;
    if (this.t >= this.end) return this.pause();
    this.draw();
    this.raf = requestAnimationFrame((next) => this.frame(next));
  }

  // With reduced motion nothing glides: once a second the next moment at which something happened.
  hop() {
    if (!this.playing) return;
    const next = eventAfter(this.events, this.t);
    if (next === undefined) return this.pause();
    this.go(next);
    this.timer = setTimeout(() => this.hop(), 1000);
  }

  go(t) {
    this.t = clamp(t, 0, this.end);
    this.draw();
  }

  // ---- drawing

  get window() {
    return clockWindow(this.t, this.end, this.el.zoom.value === "all");
  }

  draw() {
    if (!this.rows || !this.data) return;
    const width = Math.max(120, this.el.list.clientWidth || 320);
    const [from, to] = this.window;
    this.el.scrub.value = String(this.t);
    this.el.scrub.setAttribute("aria-valuetext", clockText(this.t));
    this.el.clock.textContent = clockText(this.t);
    showPlaying(this.buttons.play, this.playing);
    for (const row of this.rows) drawLane(this, row, width, from, to);
  }

  // A click on a round opens it; beside the rounds it moves the clock.
  click(index, event) {
    const row = this.rows[index];
    const hit = event.target.closest("[data-round]");
    const box = row.svg.getBoundingClientRect();
    const [from, to] = this.window;
    const t = from + ((event.clientX - box.left) / box.width) * (to - from);
    this.pause();
    if (hit) {
      const at = Number(hit.dataset.round);
      this.go(row.lane.rounds[at].start + row.lane.rounds[at].draft);
      this.pick(row.lane.name, at);
    } else this.go(t);
  }

  pick(lane, round) {
    this.count = (this.count ?? 0) + 1;
    const id = `${this.data.id}-${this.id}-${this.count}-${Date.now()}`;
    this.report("picked", { id, set: this.data.id, lane, round });
  }
}
