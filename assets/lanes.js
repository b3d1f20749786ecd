// Lanes on a common clock: draws the rounds that Python sent, each block to measured time. Decides nothing.
// The browser owns the playhead; a click on a round is reported as `picked`.

const SVG = "http://www.w3.org/2000/svg";
const boards = new WeakMap();

export default function ({ data, parentElement, setStateValue }) {
  const host = parentElement;
  let board = boards.get(host);
  if (!board) boards.set(host, (board = new Board(host)));
  board.report = setStateValue;
  board.take(data);
  return () => {
    board.close();
    boards.delete(host);
  };
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const number = (x) => (x === null || x === undefined ? "n/a" : Number(x.toPrecision(3)).toString());
const seconds = (x) => (x < 0.9995 ? `${Math.round(1e3 * x)} ms` : `${x.toFixed(2)} s`);
const HEIGHT = 46;
const SHAPES = {
  first: "M4 3 V13 M13 3 L6 8 L13 13 Z", previous: "M11 3 L4.5 8 L11 13 Z", play: "M4 2.5 L13 8 L4 13.5 Z",
  pause: "M4.5 3 V13 M11.5 3 V13", next: "M5 3 L11.5 8 L5 13 Z", last: "M12 3 V13 M3 3 L10 8 L3 13 Z",
};
const BUTTONS = [["first", "To the start", "Home"], ["previous", "Previous event", "ArrowLeft"],
  ["play", "Play", "Space"], ["next", "Next event", "ArrowRight"], ["last", "To the end", "End"]];
const BLOCKS = [["draft", "draft"], ["verify", "verify"], ["other", "sampling and bookkeeping"]];
let serial = 0;

class Board {
  constructor(host) {
    this.host = host;
    this.el = {};
    for (const element of host.querySelectorAll("[data-el]")) this.el[element.dataset.el] = element;
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
    this.el.svg.onclick = () => this.save();
    this.buttons = {};
    for (const [name, label, key] of BUTTONS) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(glyph(SHAPES[name]));
      button.setAttribute("aria-label", label);
      button.setAttribute("aria-keyshortcuts", key);
      button.title = `${label} (${key.replace("Arrow", "")})`;
      if (name === "play") button.className = "play";
      button.onclick = () => this.act(name);
      this.buttons[name] = button;
      this.el.buttons.append(button);
    }
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

  take(data) {
    const fresh = !this.data || this.data.id !== data.id;
    this.data = data;
    for (const role of ["draft", "accepted", "rejected", "bonus", "dropped"]) {
      this.box.style.setProperty(`--${role}`, data.colours[role]);
    }
    if (fresh) {
      this.pause();
      this.end = Math.max(0.001, ...data.lanes.map((lane) => lane.seconds));
      this.events = [...new Set(data.lanes.flatMap((lane) => lane.rounds.flatMap((r) => [
        r.start, r.start + r.draft, r.start + r.draft + r.verify, r.start + r.draft + r.verify + r.other])))]
        .sort((a, b) => a - b)
        // a lookup's draft takes microseconds: moments nearer than a millisecond are one step
        .reduce((kept, e) => (kept.length && e - kept.at(-1) < 0.001 ? kept : [...kept, e]), []);
      this.el.scrub.max = String(this.end);
      this.build();
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
    if (name === "next") this.go(this.events.find((e) => e > this.t + 1e-6) ?? this.end);
    if (name === "previous") this.go([...this.events].reverse().find((e) => e < this.t - 1e-6) ?? 0);
  }

  key(event) {
    if (event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const name = { ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last", " ": "play" }[event.key];
    if (!name || (event.key === " " && event.target.matches("button"))) return;
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
    const next = this.events.find((e) => e > this.t + 1e-6);
    if (next === undefined) return this.pause();
    this.go(next);
    this.timer = setTimeout(() => this.hop(), 1000);
  }

  go(t) {
    this.t = clamp(t, 0, this.end);
    this.draw();
  }

  // ---- drawing

  build() {
    this.rows = this.data.lanes.map((lane, index) => {
      const row = { lane, box: node("article", "lane"), drawn: null };
      row.box.setAttribute("aria-label", `Lane ${lane.name}`);
      const title = node("div", "title");
      const name = document.createElement("b");
      name.textContent = lane.name;
      name.title = lane.label;
      const builds = node("span", "builds");
      builds.textContent = this.data.builds[lane.builds];
      row.figures = node("span", "figures");
      title.append(name, builds, row.figures);
      const track = node("div", "track");
      row.svg = document.createElementNS(SVG, "svg");
      row.svg.setAttribute("height", HEIGHT);
      row.svg.setAttribute("role", "img");
      row.svg.setAttribute("aria-label", `${lane.name}: ${lane.rounds.length} rounds, ${lane.tokens} tokens in `
        + `${seconds(lane.seconds)}`);
      row.svg.onclick = (event) => this.click(index, event);
      track.append(row.svg);
      row.now = node("div", "now");
      row.text = node("p", "text");
      row.inner = document.createElement("span");
      row.text.append(row.inner);
      row.box.append(title, track, row.now, row.text);
      return row;
    });
    this.el.list.replaceChildren(...this.rows.map((row) => row.box));
    const c = this.data.colours;
    const marks = [["draft", c.draft], ["verify, one target pass", c.target], ["sampling and bookkeeping", c.dropped],
      ["figure above a pass: tokens that it emitted", null], ["click a round to open it below", null]];
    this.el.legend.replaceChildren(...marks.map(([words, colour]) => {
      const item = document.createElement("span");
      if (colour) {
        const box = document.createElement("i");
        box.style.background = colour;
        item.append(box);
      }
      item.append(words);
      return item;
    }));
  }

  // What of the clock is on screen: [from, to] in seconds.
  window() {
    if (this.el.zoom.value === "all") return [0, this.end];
    const span = Math.min(this.end, Math.max(0.15, this.end / 8));
    const from = clamp(this.t - span / 2, 0, this.end - span);
    return [from, from + span];
  }

  draw() {
    if (!this.rows || !this.data) return;
    const width = Math.max(120, this.el.list.clientWidth || 320);
    const [from, to] = this.window();
    this.el.scrub.value = String(this.t);
    this.el.scrub.setAttribute("aria-valuetext", seconds(this.t));
    this.el.clock.textContent = seconds(this.t);
    const label = this.playing ? "Pause" : "Play";
    if (this.buttons.play.getAttribute("aria-label") !== label) {
      this.buttons.play.setAttribute("aria-label", label);
      this.buttons.play.replaceChildren(glyph(SHAPES[this.playing ? "pause" : "play"]));
    }
    for (const row of this.rows) this.drawLane(row, width, from, to);
  }

  drawLane(row, width, from, to) {
    const { lane } = row;
    const x = (t) => ((t - from) / (to - from)) * width;
    const at = this.roundAt(lane);
    const done = this.t >= lane.seconds - 1e-9;
    const emitted = lane.rounds.slice(0, at + (done ? 1 : 0)).reduce((n, r) => n + r.accepted + (r.bonus !== null), 0);
    const words = done
      ? [["strong", `${lane.tokens} tokens`], ["", ` in ${seconds(lane.seconds)} (measured), `],
         ["strong", `${number(lane.tokens_per_second)} tokens/s`], ["", `, ${number(lane.tokens_per_pass)} per pass`]]
      : [["strong", `${emitted} of ${lane.tokens} tokens`], ["", `, pass ${at + 1} of ${lane.rounds.length}`]];
    this.fill(row.figures, words);
    const mark = `${width}|${from}|${to}`;
    if (row.drawn !== mark) {
      row.drawn = mark;
      this.drawBlocks(row, width, from, to, x);
    }
    row.head.setAttribute("x1", x(this.t));
    row.head.setAttribute("x2", x(this.t));
    row.veil.setAttribute("x", clamp(x(this.t), 0, width));
    row.veil.setAttribute("width", Math.max(0, width - clamp(x(this.t), 0, width)));
    this.drawNow(row, lane, at, done);
    const text = lane.rounds.slice(0, at + (done ? 1 : 0)).map((r) => r.text).join("").replaceAll("\n", "↵");
    const tail = text.slice(-220);
    if (row.inner.textContent !== tail) {
      row.inner.textContent = tail;
      row.text.classList.toggle("fits", row.inner.offsetWidth <= row.text.clientWidth);
    }
  }

  fill(box, words) {
    const plain = words.map(([, w]) => w).join("");
    if (box.textContent === plain) return;
    box.replaceChildren(...words.map(([tag, w]) => {
      if (!tag) return w;
      const element = document.createElement(tag);
      element.textContent = w;
      return element;
    }));
  }

  drawBlocks(row, width, from, to, x) {
    const { lane } = row;
    const c = this.data.colours;
    row.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    row.svg.replaceChildren();
    const put = (tag, attributes, text) => {
      const element = document.createElementNS(SVG, tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      if (text !== undefined) element.textContent = text;
      row.svg.append(element);
      return element;
    };
    const style = getComputedStyle(this.box);
    const ink = style.color;
    put("line", { x1: 0, x2: width, y1: 40.5, y2: 40.5, stroke: ink, "stroke-opacity": 0.2 });
    lane.rounds.forEach((r, i) => {
      const length = r.draft + r.verify + r.other;
      if (r.start + length < from || r.start > to) return;
      let t = r.start;
      for (const [name, words] of BLOCKS) {
        const left = x(t);
        const wide = x(t + r[name]) - left;
        t += r[name];
        if (wide < 0.15) continue;
        const colour = { draft: c.draft, verify: c.target, other: c.dropped }[name];
        const block = put("rect", { x: left, y: 16, width: Math.max(0.6, wide - 0.4), height: 24, fill: colour,
          "fill-opacity": name === "other" ? 0.55 : 0.9, "data-round": i });
        const title = document.createElementNS(SVG, "title");
        title.textContent = `${lane.name}, round ${i + 1}: ${words} ${seconds(r[name])}`;
        block.append(title);
      }
      const wide = x(r.start + length) - x(r.start);
      const count = r.accepted + (r.bonus !== null);
      if (wide > 15) {
        put("text", { x: x(r.start + length) - wide / 2, y: 11, "text-anchor": "middle", "font-size": 12, fill: ink,
          "font-family": style.fontFamily }, String(count));
      }
    });
    row.veil = put("rect", { y: 0, height: HEIGHT, fill: getComputedStyle(this.box).getPropertyValue("--sv-paper"),
      "fill-opacity": 0.62, "pointer-events": "none" });
    row.head = put("line", { y1: 0, y2: HEIGHT, stroke: ink, "stroke-width": 1.5, "pointer-events": "none" });
  }

  // The round that is under way at the playhead; the last one once the lane is finished.
  roundAt(lane) {
    let at = 0;
    while (at + 1 < lane.rounds.length && lane.rounds[at + 1].start <= this.t + 1e-9) at += 1;
    return at;
  }

  // The drafts of the round under way, as far as they have got: the order is the drafter's, the pace inside the block even.
  drawNow(row, lane, at, done) {
    const r = lane.rounds[at];
    if (!r) return;
    const since = this.t - r.start;
    const drafting = r.draft > 0 ? clamp(since / r.draft, 0, 1) : 1;
    const judged = done || since >= r.draft + r.verify - 1e-9;
    const n = r.drafts.length;
    const chips = r.drafts.map((d, i) => {
      let state = "", text = d.text, was = null;
      if (judged) state = d.verdict;
      else if (lane.builds === "serial") state = drafting >= (i + 1) / n - 1e-9 ? "" : "ghost";
      else if (lane.builds === "hybrid") {
        const mended = drafting >= 0.5 + (0.5 * (i + 1)) / n - 1e-9;
        state = drafting < 0.5 ? "ghost" : mended ? "" : "rough";
        if (!mended) text = d.guess ?? d.text;
      } else state = drafting >= 1 - 1e-9 ? "" : "ghost";
      if (state !== "ghost" && state !== "rough" && d.guess) was = d.guess;
      return [state, text, was];
    });
    if (judged && r.bonus !== null) {
      const refused = r.accepted < n && r.drafts[r.accepted].verdict === "rejected";
      chips.splice(r.accepted + (refused ? 1 : 0), 0, ["bonus", r.bonus, null]);
    }
    const words = n ? (judged ? "judged" : drafting < 1 ? "drafting" : "verifying") : "no draft";
    const mark = `${at}|${words}|${chips.map((chip) => chip.join("~")).join("|")}`;
    if (row.shown === mark) return;
    row.shown = mark;
    const label = node("span", "round");
    label.textContent = `Round ${at + 1}: ${words}`;
    const items = chips.map(([state, text, was]) => {
      const chip = node("span", `chip ${state}`);
      if (was !== null) {
        const old = document.createElement("s");
        old.textContent = was;
        chip.append(old);
      }
      chip.append(state === "bonus" ? `★ ${text}` : state === "ghost" ? "…" : text);
      chip.title = state === "rough" ? "first guess" : state || "drafted";
      return chip;
    });
    const open = row.now.querySelector("button") ?? document.createElement("button");
    open.type = "button";
    open.textContent = "Open";
    open.setAttribute("aria-label", `Open round ${at + 1} of ${lane.name}`);
    open.onclick = () => this.pick(lane.name, at);
    const old = [...row.now.children].filter((child) => child !== open);
    for (const child of old) child.remove();
    if (!open.parentElement) row.now.append(open);
    open.before(label, ...items);
  }

  click(index, event) {
    const row = this.rows[index];
    const hit = event.target.closest("[data-round]");
    const box = row.svg.getBoundingClientRect();
    const [from, to] = this.window();
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
    this.report("picked", { id: `${this.data.id}-${this.id}-${this.count}-${Date.now()}`, set: this.data.id, lane, round });
  }

  // ---- saving: all lanes under each other, as they stand
  save() {
    const width = this.el.list.clientWidth;
    const root = document.createElementNS(SVG, "svg");
    const style = getComputedStyle(this.box);
    const tall = 20 + HEIGHT + 14;
    root.setAttribute("xmlns", SVG);
    root.setAttribute("viewBox", `0 0 ${width} ${tall * this.rows.length + 10}`);
    root.setAttribute("width", width);
    const paper = document.createElementNS(SVG, "rect");
    paper.setAttribute("width", "100%");
    paper.setAttribute("height", "100%");
    paper.setAttribute("fill", style.getPropertyValue("--sv-paper"));
    root.append(paper);
    this.rows.forEach((row, i) => {
      const group = document.createElementNS(SVG, "g");
      group.setAttribute("transform", `translate(0 ${tall * i + 8})`);
      const text = document.createElementNS(SVG, "text");
      for (const [name, value] of Object.entries({ x: 2, y: 14, fill: style.color, "font-size": 13,
        "font-family": "Helvetica, Arial, sans-serif" })) text.setAttribute(name, value);
      text.textContent = `${row.lane.name}: ${row.figures.textContent}`;
      const inner = document.createElementNS(SVG, "g");
      inner.setAttribute("transform", "translate(0 20)");
      inner.append(...[...row.svg.childNodes].map((child) => child.cloneNode(true)));
      group.append(text, inner);
      root.append(group);
    });
    const blob = new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = "specviz-lanes.svg";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}

function node(tag, name) {
  const element = document.createElement(tag);
  element.className = name;
  return element;
}

function glyph(d) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("width", "16");
  svg.setAttribute("height", "16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  for (const [name, value] of Object.entries({ d, fill: "currentColor", stroke: "currentColor", "stroke-width": 1.6,
    "stroke-linejoin": "round", "stroke-linecap": "round" })) path.setAttribute(name, value);
  svg.append(path);
  return svg;
}
