// One position in the reader's hands: p, q and u can be moved, and everything that follows from them redraws at once.
// Only the display is computed here (min, difference, one division); what is counted and tested comes from Python.
// Token text is untrusted: it only ever goes into textContent.

const SVG = "http://www.w3.org/2000/svg";
const hands = new WeakMap();

export default function ({ data, parentElement, setStateValue }) {
  let hand = hands.get(parentElement);
  if (!hand) hands.set(parentElement, (hand = new Hand(parentElement)));
  hand.report = setStateValue;
  hand.update(data);
  return () => {
    hand.close();
    hands.delete(parentElement);
  };
}

const ROW = 54;
const TALL = 78; // where panels stand under each other, bars are further apart, for fingers
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

function number(x) {
  if (x === 0 || x === 1) return String(x);
  if (x < 0.001) return "<0.001";
  if (x > 0.999 && x < 1) return ">0.999";
  return x.toFixed(3);
}

const equals = (x) => (x > 0 && x < 0.001 ? "< 0.001" : x > 0.999 && x < 1 ? "> 0.999" : `= ${number(x)}`);

function fit(text, room) {
  const letters = [...text];
  return letters.length <= room ? text : `${letters.slice(0, room - 1).join("")}…`;
}

function make(parent, tag, attributes = {}, text) {
  const element = document.createElementNS(SVG, tag);
  set(element, attributes);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const string = typeof value === "number" ? String(Math.round(value * 100) / 100) : value;
    if (element.getAttribute(name) !== string) element.setAttribute(name, string);
  }
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

class Hand {
  constructor(root) {
    this.el = {};
    for (const element of root.querySelectorAll("[data-el]")) this.el[element.dataset.el] = element;
    this.root = root.querySelector(".rule");
    this.rows = { think: [], parts: [], came: [] };
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.root);
    this.buildRuler();
  }

  close() {
    this.watch.disconnect();
    clearTimeout(this.later);
  }

  update(data) {
    this.data = data;
    for (const [role, colour] of Object.entries(data.colours)) this.root.style.setProperty(`--sv-${role}`, colour);
    if (data.case.id !== this.id) {
      this.id = data.case.id;
      this.take(data.case);
      this.build();
    }
    if (data.set && data.set.id !== this.obeyed) {
      this.obeyed = data.set.id;
      this.take({ ...data.case, p: data.set.p ?? this.p, q: data.set.q ?? this.q, drafted: data.set.token,
        u: data.set.u });
      this.tell();
    }
    this.draw();
  }

  take({ p, q, drafted, u }) {
    this.p = [...p];
    this.q = [...q];
    this.token = drafted ?? 0;
    this.u = u ?? 0.5;
  }

  // ---- what the reader does

  // Sets one probability; the others keep their proportions, so that the sum stays 1.
  move(name, i, value) {
    const list = this[name];
    const before = list[i];
    const after = clamp(value, 0, 1);
    const rest = 1 - before;
    const named = this.data.case.tokens.length - this.data.case.sums;
    for (let j = 0; j < list.length; j++) {
      if (j === i) continue;
      list[j] = rest > 1e-9 ? (list[j] * (1 - after)) / rest : j < named ? (1 - after) / (named - 1) : 0;
    }
    list[i] = after;
    this.draw();
  }

  moveU(value) {
    this.u = clamp(value, 0, 0.9999);
    this.draw();
  }

  choose(i) {
    this.token = i;
    this.draw();
    this.tell();
  }

  // Python hears of it when the hand rests.
  tell() {
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      write(this.el.live, this.el.words.textContent);
      this.report("hand", { case: this.id, p: this.p, q: this.q, token: this.token, u: this.u });
    }, 250);
  }

  // A handle that a pointer drags and the arrow keys move. place(event) and now() are values from 0 to 1.
  handle(group, place, now, moveTo) {
    group.onpointerdown = (event) => {
      if (event.button) return;
      event.preventDefault();
      group.focus({ focusVisible: false });
      group.setPointerCapture(event.pointerId);
      const shift = place(event) - now();
      group.onpointermove = (moved) => moveTo(place(moved) - shift);
      group.onpointerup = group.onpointercancel = () => {
        group.onpointermove = group.onpointerup = group.onpointercancel = null;
        this.tell();
      };
    };
    group.onkeydown = (event) => {
      const step = event.shiftKey ? 0.001 : 0.01;
      const steps = { ArrowRight: step, ArrowUp: step, ArrowLeft: -step, ArrowDown: -step, PageUp: 0.1, PageDown: -0.1 };
      if (event.key in steps) moveTo(Math.round((now() + steps[event.key]) * 1000) / 1000);
      else if (event.key === "Home") moveTo(0);
      else if (event.key === "End") moveTo(1);
      else return;
      event.preventDefault();
      this.tell();
    };
  }

  // ---- building: once per case, so that focus stays where it is while bars move

  build() {
    const { tokens, sums } = this.data.case;
    for (const name of ["think", "parts", "came"]) {
      this.el[name].replaceChildren();
      this.rows[name] = tokens.map((token, i) => {
        const row = { group: make(this.el[name], "g") };
        const add = (key, tag, attributes) => (row[key] = make(row.group, tag, attributes));
        add("line", "line", { class: "line" });
        if (name !== "think") {
          add("token", "text", { class: "token" });
          add("track", "rect", { class: "track", height: 18, rx: 3 });
        }
        if (name === "think") this.buildThink(row, add, token, i, i >= tokens.length - sums);
        if (name === "parts") {
          add("lost", "rect", { class: "lost", height: 18, rx: 3 });
          add("kept", "rect", { class: "kept", height: 18, rx: 2 });
          add("left", "rect", { class: "left", height: 18, rx: 2 });
          add("share", "rect", { class: "share", height: 8, rx: 2 });
        }
        if (name === "came") {
          add("kept", "rect", { class: "kept", height: 18, rx: 2 });
          add("left", "rect", { class: "left", height: 18, rx: 2 });
          add("below", "text", { class: "muted" });
        }
        if (name !== "think") {
          add("edge", "rect", { class: "mark-edge", width: 6, height: 26 });
          add("mark", "rect", { class: "mark", width: 3, height: 26 });
          add("value", "text", {});
        }
        if (name === "parts") add("below", "text", { class: "muted" });
        return row;
      });
    }
    this.el.think.setAttribute("role", "radiogroup");
    this.el.think.setAttribute("aria-label", "Drafted token, and p and q of each token");
  }

  buildThink(row, add, token, i, isSum) {
    row.pick = make(row.group, "g", { class: "pick" });
    for (const [key, tag, attributes] of [["frame", "rect", { class: "frame", rx: 8 }],
      ["hit", "rect", { class: "hit", rx: 8 }], ["ring", "circle", { class: "ring", r: 6 }],
      ["dot", "circle", { class: "dot", r: 3.2 }], ["token", "text", { class: "token" }]]) {
      row[key] = make(row.pick, tag, attributes);
    }
    if (isSum) {
      row.ring.remove();
      row.dot.remove();
    } else {
      set(row.pick, { role: "radio", tabindex: "0", "aria-label": `draft ${token}` });
      row.pick.onclick = () => this.choose(i);
      row.pick.onkeydown = (event) => {
        if (event.key !== " " && event.key !== "Enter") return;
        event.preventDefault();
        this.choose(i);
      };
    }
    for (const name of ["p", "q"]) {
      add(`${name}Track`, "rect", { class: "track", height: 15, rx: 3 });
      add(`${name}Bar`, "rect", { class: `bar-${name}`, height: 15, rx: 3 });
      add(`${name}Value`, "text", {});
      if (isSum) continue;
      const group = make(row.group, "g", { class: `handle ${name}`, role: "slider", tabindex: "0", "aria-valuemin": "0",
        "aria-valuemax": "1", "aria-label": `${name} of ${token}` });
      make(group, "rect", { class: "hit", x: -18, y: -4, width: 36, height: 24 });
      make(group, "rect", { class: "grip", x: -4.5, y: -2.5, width: 9, height: 20, rx: 4.5 });
      row[`${name}Handle`] = group;
      this.handle(group, (event) => this.along(event, this.el.think, this.think.x, this.think.span),
        () => this[name][i], (value) => this.move(name, i, value));
    }
  }

  buildRuler() {
    const svg = this.el.ruler;
    const add = (key, tag, attributes, text) => (this.ruler[key] = make(svg, tag, attributes, text));
    this.ruler = {};
    add("yes", "rect", { class: "zone-yes", y: 30, height: 26, rx: 4 });
    add("no", "rect", { class: "zone-no", y: 30, height: 26, rx: 4 });
    add("yesText", "text", { y: 47 }, "accept");
    add("noText", "text", { y: 47, "text-anchor": "end" }, "reject");
    add("edge", "line", { class: "edge", y1: 24, y2: 62 });
    add("edgeText", "text", { y: 76 });
    add("zero", "text", { class: "muted", y: 76 }, "0");
    add("one", "text", { class: "muted", y: 76, "text-anchor": "end" }, "1");
    const group = add("u", "g", { class: "handle u", role: "slider", tabindex: "0", "aria-valuemin": "0",
      "aria-valuemax": "1", "aria-label": "u, the uniform that decides" });
    make(group, "rect", { class: "hit", x: -22, y: 0, width: 44, height: 64 });
    make(group, "path", { class: "grip", d: "M-9 22 A9 9 0 1 1 9 22 L0 62 Z" });
    add("uText", "text", { y: 11, "font-weight": "600" });
    this.handle(group, (event) => this.along(event, svg, 12, this.rulerSpan), () => this.u, (value) => this.moveU(value));
  }

  along(event, svg, x, span) {
    return (event.clientX - svg.getBoundingClientRect().left - x) / span;
  }

  // ---- drawing

  get threshold() {
    const [p, q] = [this.p[this.token], this.q[this.token]];
    return q > 0 ? Math.min(1, p / q) : 1;
  }

  get accepted() {
    return this.u * this.q[this.token] < this.p[this.token];
  }

  draw() {
    if (!this.data || !this.p) return;
    const left = this.p.map((p, i) => Math.max(0, p - this.q[i]));
    const total = left.reduce((a, b) => a + b, 0);
    const share = total > 1e-12 ? left.map((x) => x / total) : left.map(() => 0);
    this.drawWords(share);
    this.drawRuler();
    this.drawThink();
    this.drawParts(left, share, total);
    this.drawCame();
  }

  drawWords(share) {
    const { tokens } = this.data.case;
    const [p, q, u, at] = [this.p[this.token], this.q[this.token], this.u, this.threshold];
    const name = (i) => {
      const bold = document.createElement("b");
      bold.textContent = tokens[i];
      return bold;
    };
    const strong = (text) => {
      const span = document.createElement("span");
      span.className = "verdict";
      span.textContent = text;
      return span;
    };
    const parts = ["Draft ", name(this.token), `: p ${equals(p)}, q ${equals(q)}. `];
    if (q === 0) {
      parts.push("The draft model never proposes it, so there is nothing to judge.");
      this.el.words.className = "words";
    } else {
      parts.push(p >= q ? "p is at least q, so min(1, p/q) = 1 and every u accepts. "
        : p < 0.001 || q < 0.001 ? `p/q ${equals(at)}. `
          : `min(1, p/q) = ${number(p)} / ${number(q)} = ${number(at)}. `);
      const limit = at < 0.001 ? "p/q" : number(at);
      if (this.accepted) {
        parts.push(`u ${equals(u)} is below ${limit}: `, strong("accepted"), ", ", name(this.token), " is kept.");
      } else {
        parts.push(`u ${equals(u)} is not below ${limit}: `, strong("rejected"),
          ". The target draws from the leftover");
        const likely = share.map((x, i) => [x, i]).filter(([x]) => x >= 0.0005).sort((a, b) => b[0] - a[0]);
        if (likely.length === 1) parts.push(", where only ", name(likely[0][1]), " is left.");
        else {
          likely.slice(0, 3).forEach(([x, i], n) => parts.push(n ? ", " : ": ", name(i), ` ${number(x)}`));
          parts.push(likely.length > 3 ? ", and others less." : ".");
        }
      }
      this.el.words.className = `words ${this.accepted ? "accepted" : "rejected"}`;
    }
    this.el.words.replaceChildren(...parts);
  }

  drawRuler() {
    const width = this.el.ruler.clientWidth;
    if (!width) return;
    set(this.el.ruler, { height: 82, viewBox: `0 0 ${width} 82` });
    const span = (this.rulerSpan = width - 24);
    const at = this.threshold;
    const x = 12 + span * at;
    const r = this.ruler;
    set(r.yes, { x: 12, width: span * at });
    set(r.no, { x, width: span * (1 - at) });
    set(r.yesText, { x: 20, opacity: span * at > 62 ? 1 : 0 });
    set(r.noText, { x: width - 20, opacity: span * (1 - at) > 62 ? 1 : 0 });
    set(r.edge, { x1: x, x2: x });
    const anchor = at < 0.3 ? "start" : at > 0.7 ? "end" : "middle";
    set(r.edgeText, { x: x + (anchor === "start" ? -8 : anchor === "end" ? 8 : 0), "text-anchor": anchor });
    write(r.edgeText, `min(1, p/q) ${equals(at)}`);
    set(r.zero, { x: 12, opacity: at < 0.3 ? 0 : 1 });
    set(r.one, { x: width - 12, opacity: at > 0.7 ? 0 : 1 });
    const ux = 12 + span * this.u;
    set(r.u, { transform: `translate(${ux.toFixed(2)} 0)`, "aria-valuenow": String(this.u.toFixed(3)),
      "aria-valuetext": `${number(this.u)}, ${this.accepted ? "accepted" : "rejected"}` });
    const right = this.u < 0.8;
    set(r.uText, { x: ux + (right ? 14 : -14), "text-anchor": right ? "start" : "end", y: 20 });
    write(r.uText, `u ${equals(this.u)}`);
  }

  // Where labels end and bars run, for a panel of this width.
  measure(svg, room, high = ROW) {
    const width = svg.clientWidth || 320;
    const labels = clamp(width * 0.3, 84, 150);
    const height = this.p.length * high;
    set(svg, { height, viewBox: `0 0 ${width} ${height}` });
    return { width, labels, x: labels + 8, span: width - labels - 8 - room, letters: Math.floor((labels - 26) / 8) };
  }

  drawThink() {
    const high = this.root.clientWidth > 860 ? ROW : TALL;
    const m = (this.think = this.measure(this.el.think, 52, high));
    const { tokens } = this.data.case;
    const apart = (high - 14) / 2;
    this.rows.think.forEach((row, i) => {
      const y = i * high;
      const isSum = !row.ring.isConnected;
      set(row.line, { x1: 0, x2: m.width, y1: y, y2: y });
      set(row.frame, { x: 1, y: y + 6, width: m.labels - 2, height: high - 12 });
      set(row.hit, { x: 1, y: y + 6, width: m.labels - 2, height: high - 12 });
      set(row.ring, { cx: 14, cy: y + high / 2 });
      set(row.dot, { cx: 14, cy: y + high / 2 });
      if (!isSum) set(row.pick, { "aria-checked": String(i === this.token) });
      set(row.token, { x: isSum ? 6 : 26, y: y + high / 2 + 4 });
      write(row.token, fit(tokens[i], m.letters + (isSum ? 3 : 0)));
      ["p", "q"].forEach((name, n) => {
        const value = this[name][i];
        const top = y + 7 + n * apart + (apart - 15) / 2;
        set(row[`${name}Track`], { x: m.x, y: top, width: m.span });
        set(row[`${name}Bar`], { x: m.x, y: top, width: Math.max(value * m.span, value > 0 ? 1 : 0) });
        set(row[`${name}Value`], { x: m.x + m.span + 12, y: top + 12 });
        write(row[`${name}Value`], number(value));
        const handle = row[`${name}Handle`];
        if (handle) {
          set(handle.firstChild, { y: (15 - apart) / 2, height: apart });
          set(handle, { transform: `translate(${(m.x + value * m.span).toFixed(2)} ${top})`,
            "aria-valuenow": value.toFixed(3), "aria-valuetext": number(value) });
        }
      });
    });
    write(this.el.thinkNote, this.data.case.note);
  }

  drawParts(left, share, total) {
    const m = this.measure(this.el.parts, 56);
    const { tokens } = this.data.case;
    this.rows.parts.forEach((row, i) => {
      const y = i * ROW;
      const kept = Math.min(this.p[i], this.q[i]);
      const lost = Math.max(0, this.q[i] - this.p[i]);
      this.place(row, m, y, tokens[i], this.p[i]);
      set(row.kept, { x: m.x, y: y + 8, width: kept * m.span });
      set(row.left, { x: m.x + kept * m.span, y: y + 8, width: left[i] * m.span });
      set(row.lost, { x: m.x + this.p[i] * m.span, y: y + 8, width: lost * m.span, opacity: lost > 0 ? 1 : 0 });
      set(row.share, { x: m.x, y: y + 33, width: share[i] * m.span, opacity: share[i] > 0 ? 1 : 0 });
      write(row.value, number(this.p[i]));
      set(row.below, { x: m.x + m.span + 10, y: y + 42 });
      write(row.below, share[i] > 0 ? number(share[i]) : "");
    });
    const keep = 1 - total;
    write(this.el.partsNote, total < 5e-4
      ? "p and q agree: nothing is left over and every draft is kept."
      : `A draft is kept with probability ${number(keep)}, the sum of min(p, q). The leftover weighs ${number(total)}; `
        + `divided by that it gives the thin bars, from which the target draws after a rejection.`);
    set(this.el.parts, { "aria-label": tokens.map((t, i) => `${t}: kept ${number(Math.min(this.p[i], this.q[i]))}, `
      + `leftover ${number(left[i])}, normalised ${number(share[i])}`).join("; ") });
  }

  drawCame() {
    const m = this.measure(this.el.came, 56);
    const { tokens } = this.data.case;
    const tally = this.data.tally;
    const n = tally ? tally.trials : 0;
    const goal = tally ? tally.asked : this.p;
    this.rows.came.forEach((row, i) => {
      const y = i * ROW;
      const [kept, drawn] = n ? [tally.accepted[i] / n, tally.drawn[i] / n] : [0, 0];
      this.place(row, m, y, tokens[i], goal[i]);
      set(row.kept, { x: m.x, y: y + 8, width: kept * m.span });
      set(row.left, { x: m.x + kept * m.span, y: y + 8, width: drawn * m.span });
      write(row.value, n ? number(kept + drawn) : "");
      set(row.below, { x: m.x, y: y + 45 });
      write(row.below, n ? `${tally.accepted[i].toLocaleString("en")} kept + ${tally.drawn[i].toLocaleString("en")} drawn` : "");
    });
    write(this.el.cameTitle, n ? `3. What came out ${n.toLocaleString("en")} times` : "3. What comes out");
    write(this.el.cameMark, tally ? tally.goal : "p, where it should end");
    write(this.el.cameNote, this.data.verdict);
    set(this.el.came, { "aria-label": n ? tokens.map((t, i) => `${t}: ${number((tally.accepted[i] + tally.drawn[i]) / n)} `
      + `where ${number(goal[i])} is asked for`).join("; ") : "Nothing drawn yet" });
  }

  place(row, m, y, token, goal) {
    set(row.line, { x1: 0, x2: m.width, y1: y, y2: y });
    set(row.token, { x: 2, y: y + 22 });
    write(row.token, fit(token, m.letters + 3));
    set(row.track, { x: m.x, y: y + 8, width: m.span });
    set(row.edge, { x: m.x + goal * m.span - 3, y: y + 4 });
    set(row.mark, { x: m.x + goal * m.span - 1.5, y: y + 4 });
    set(row.value, { x: m.x + m.span + 10, y: y + 22 });
  }
}
