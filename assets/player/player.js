// The player: keeps the rounds and the playhead, plays, and reports to Python where the reader stands.

import { namedElements } from "../lib/controls.js";
import { clamp } from "../lib/motion.js";
import { Scene } from "../lib/scene.js";
import { SVG } from "../lib/svg.js";
import { buildControls, listen } from "./controls.js";
import { pageInk } from "./ink.js";
import { markLit, renderControls, renderCounters, renderHead, renderPlace } from "./panels.js";
import { draw, scrollToFocus } from "./stage.js";
import { slotOfFrame } from "./story.js";
import { renderTable } from "./table.js";
import { renderText } from "./text_panel.js";
import {
  MOVING_SHARE, durationOf, lastPlace, mergeRounds, placeAfter, placeOfStep, stepOfPlace, validPlace,
} from "./timeline.js";

/** The player in one mounted component. */
export class Player {
  constructor(host) {
    this.host = host;
    this.el = namedElements(host);
    this.box = host.querySelector(".player");
    this.rounds = [];
    this.at = { round: 0, frame: 0 };
    this.t = 1;
    this.playing = false;
    this.following = true;
    this.pinned = null;
    this.hovered = null;
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    buildControls(this);
    this.scenes = {};
    for (const name of ["strip", "detail", "busy", "roof"]) {
      const svg = document.createElementNS(SVG, "svg");
      svg.setAttribute("role", name === "strip" ? "group" : "img");
      this.el[name].replaceChildren(svg);
      this.scenes[name] = new Scene(svg, null);
    }
    listen(this);
    this.resize = new ResizeObserver(() => draw(this));
    this.resize.observe(this.box);
  }

  close() {
    cancelAnimationFrame(this.raf);
    this.playing = false;
    this.resize.disconnect();
  }

  // ---- data from Python

  update(data) {
    this.data = data;
    this.setColours(data.colours);
    if (data.run !== this.run || data.row !== this.row) {
      this.stop();
      Object.assign(this, { run: data.run, row: data.row, stamp: data.stamp, rounds: [], acked: 0,
        at: { round: 0, frame: 0 }, t: 1, reported: null,
        following: data.streaming, started: false });
    } else if (data.stamp !== this.stamp) {
      // Python knows more about rounds that are already here: it sends them all again
      this.stamp = data.stamp;
      this.acked = 0;
    }
    const merged = mergeRounds(this.rounds, this.acked, data.start, data.rounds);
    this.rounds = merged.rounds;
    this.acked = merged.known;
    this.acknowledge(data.start > this.acked);
    const sought = data.seek && data.seek.id !== this.sought && (data.seek.round ?? 0) < this.rounds.length;
    if (this.rounds.length && sought) {
      this.sought = data.seek.id;
      this.stop();
      this.following = false;
      this.at = validPlace(this.rounds, data.seek);
      this.t = 1;
      this.started = true;
    } else if ((data.streaming || this.wasStreaming) && this.following && this.rounds.length && !this.playing) {
      this.at = lastPlace(this.rounds);
      this.t = 1;
    }
    this.wasStreaming = data.streaming;
    this.setAnnouncements();
    renderHead(this);
    this.renderStep();
    if (this.rounds.length && !this.started) {
      this.started = true;
      if (data.autoplay && !data.streaming && !this.still.matches) this.play();
    }
  }

  acknowledge(again) {
    const mark = `${this.run}|${this.row}|${this.stamp}|${this.acked}`;
    if (mark === this.acknowledged && !again) return;
    if (again && this.asked === mark) return;
    this.asked = again ? mark : null;
    this.acknowledged = mark;
    this.report("have", { run: this.run, row: this.row, stamp: this.stamp, count: this.acked });
  }

  setColours(colours) {
    for (const [name, value] of Object.entries(colours.roles)) this.box.style.setProperty(`--sv-${name}`, value);
    for (const scene of Object.values(this.scenes)) scene.ink = pageInk(colours);
  }

  // ---- the playhead

  get round() {
    return this.rounds[this.at.round];
  }

  get frame() {
    return this.round.frames[this.at.frame];
  }

  act(name) {
    if (!this.rounds.length) return;
    if (name === "play") {
      if (this.playing) {
        this.stop();
        this.t = 1;
        this.renderStep();
        this.reportStep();
      } else this.play();
      return;
    }
    this.stop();
    this.following = false;
    const step = stepOfPlace(this.rounds, this.at);
    const target = placeAfter(this.rounds, this.at, name);
    const forward = name === "next" && stepOfPlace(this.rounds, target) === step + 1;
    this.goTo(target, forward);
    this.reportStep();
  }

  goTo(at, animate = false) {
    this.at = at;
    this.pinned = this.hovered = null;
    if (animate && !this.still.matches) this.animate(false);
    else {
      cancelAnimationFrame(this.raf);
      this.t = 1;
    }
    this.renderStep();
  }

  play() {
    const end = lastPlace(this.rounds);
    if (this.at.round === end.round && this.at.frame === end.frame) this.at = { round: 0, frame: 0 };
    this.playing = true;
    this.following = false;
    this.setAnnouncements();
    this.animate(true);
    this.renderStep();
  }

  stop() {
    cancelAnimationFrame(this.raf);
    this.playing = false;
    this.setAnnouncements();
  }

  // Runs t from 0 to 1 in the current step; when playing, goes on to the next one.
  animate(on) {
    cancelAnimationFrame(this.raf);
    const begun = performance.now();
    this.t = this.still.matches ? 1 : 0;
    const tick = (now) => {
      const lasts = durationOf(this.frame, Number(this.el.speed.value));
      const passed = (now - begun) / lasts;
      if (!this.still.matches) {
        this.t = clamp(passed / MOVING_SHARE, 0, 1);
        draw(this, false);
      }
      if (passed < (on ? 1 : MOVING_SHARE)) {
        this.raf = requestAnimationFrame(tick);
      } else if (on) {
        const next = stepOfPlace(this.rounds, this.at) + 1;
        if (next > stepOfPlace(this.rounds, lastPlace(this.rounds))) {
          this.stop();
          this.renderStep();
          this.reportStep();
          return;
        }
        this.at = placeOfStep(this.rounds, next);
        this.pinned = this.hovered = null;
        this.animate(true);
        this.renderStep();
      }
    };
    this.raf = requestAnimationFrame(tick);
  }

  // The sentence is read out at the reader's pace, not at the player's.
  setAnnouncements() {
    const fast = this.playing && Number(this.el.speed.value) >= 2;
    const followed = this.data?.streaming && this.following;
    this.el.words.setAttribute("aria-live", fast || followed ? "off" : "polite");
  }

  reportStep() {
    const mark = `${this.run}|${this.row}|${this.at.round}|${this.at.frame}`;
    if (mark === this.reported) return;
    this.reported = mark;
    this.report("step", { run: this.run, row: this.row, round: this.at.round, frame: this.at.frame });
  }

  // Highlights a slot: `how` is "hovered" or "pinned" (by the keyboard).
  light(how, slot) {
    if (this[how] === slot) return;
    this[how] = slot;
    draw(this);
    markLit(this);
  }

  // The position whose bars are shown: the one pointed at, or the one the story is at.
  get focus() {
    const chosen = this.hovered ?? this.pinned;
    if (chosen !== null && chosen <= this.round.slots.length) return chosen;
    return slotOfFrame(this.round, this.frame);
  }

  renderStep() {
    if (!this.rounds.length) return;
    this.at.round = Math.min(this.at.round, this.rounds.length - 1);
    renderPlace(this);
    renderControls(this);
    renderCounters(this);
    renderText(this);
    renderTable(this);
    draw(this);
    markLit(this);
    // once per step, so that an update from the server does not move a strip that the reader scrolled
    const place = `${this.run}|${this.row}|${this.at.round}|${this.at.frame}`;
    if (place !== this.place) {
      this.place = place;
      scrollToFocus(this);
      this.el.text.scrollTop = this.el.text.scrollHeight;
    }
  }
}
