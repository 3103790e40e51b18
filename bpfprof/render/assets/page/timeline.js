// The timeline: a row a thread, or a group of threads that can be opened; drag to choose a part of the time.
import { byId, counted, time } from "./dom.js";
import { gilsOf, holderAt, holderColumns, tint } from "./gil.js";
import { dark, ink, isInked, isPhone, kindColors, rgb } from "./look.js";
import { change, view } from "./view.js";

const ROW = 16;
const BAND = 13; // of a row, the rest is a gap
const LEAST_DRAG = 3; // px
const AXIS = 16;
const MOST_ROWS = 200; // rows of a group that is open

export class Timeline {
  constructor(recording, onSpan) {
    this.recording = recording;
    this.onSpan = onSpan;
    this.canvas = byId("timeline-canvas");
    this.box = byId("timeline-box");
    this.open = new Set();
    this.picture = document.createElement("canvas");
    this.members = recording.groups.map(() => []);
    recording.threads.forEach((thread, i) => this.members[thread.group].push(i));
    this.gils = gilsOf(recording);
    this.holding = new Set(this.gils.flatMap(({ groups }) => [...groups]));
    this.listen();
  }

  // Names stand in a column of their own, less wide on a phone.
  get left() {
    return isPhone() ? 84 : 150;
  }

  rows() {
    const found = this.gils.map((gil) => ({ name: gil.name, threads: [], group: -1, gil }));
    this.members.forEach((threads, group) => {
      const isOpen = threads.length > 1 && this.open.has(group);
      found.push({ name: this.recording.groups[group], threads, group, folded: threads.length > 1, isOpen });
      if (!isOpen) return;
      for (const thread of threads.slice(0, MOST_ROWS)) found.push({ name: this.recording.threads[thread].name, threads: [thread], group });
      if (threads.length > MOST_ROWS) found.push({ name: `and ${threads.length - MOST_ROWS} more`, threads: threads.slice(MOST_ROWS), group });
    });
    return found;
  }

  // Everything again: for another width, other colours, or rows that were opened.
  render() {
    this.shown = this.rows();
    const scale = window.devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.height = this.shown.length * ROW + AXIS;
    this.box.style.height = `${Math.min(this.height, this.box.ownerDocument.defaultView.innerHeight * 0.3, 230)}px`;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.paint(scale);
    this.draw();
  }

  paint(scale) {
    const columns = Math.max(1, Math.round((this.width - this.left) * scale));
    const band = Math.round(BAND * scale);
    this.picture.width = columns;
    this.picture.height = this.canvas.height;
    const context = this.picture.getContext("2d");
    const colors = this.recording.kinds.map((kind) => kindColors(kind).map(rgb));
    this.shown.forEach((row, number) => {
      const top = Math.round((number * ROW + 1) * scale);
      if (row.gil) return this.paintHolders(context, row.gil, columns, band, top);
      const shares = this.shares(row.threads, columns);
      const image = context.createImageData(columns, band);
      this.paintRow(image, shares, row.threads.length, colors, scale);
      context.putImageData(image, 0, top);
    });
  }

  // The colours of those that held a GIL stand beside their names, too.
  paintHolders(context, gil, columns, band, top) {
    holderColumns(this.recording, gil.threads, columns).forEach((group, x) => {
      if (group < 0) return;
      context.fillStyle = tint(group);
      context.fillRect(x, top, 1, band);
    });
  }

  // Nanoseconds by pixel column and kind.
  shares(threads, columns) {
    const { kinds, begin, start, duration, kind, duration_ns: whole } = this.recording;
    const count = kinds.length;
    const found = new Float64Array(columns * count);
    const perColumn = Math.max(whole, 1) / columns;
    for (const thread of threads) {
      for (let i = begin[thread]; i < begin[thread + 1]; i++) {
        const from = start[i];
        const to = from + duration[i];
        const first = Math.min(Math.floor(from / perColumn), columns - 1);
        const last = Math.min(Math.floor(to / perColumn), columns - 1);
        if (first === last) {
          found[first * count + kind[i]] += duration[i];
          continue;
        }
        found[first * count + kind[i]] += (first + 1) * perColumn - from;
        for (let column = first + 1; column < last; column++) found[column * count + kind[i]] += perColumn;
        found[last * count + kind[i]] += to - last * perColumn;
      }
    }
    return found;
  }

  paintRow(image, shares, threadCount, colors, scale) {
    const { width, height, data } = image;
    const { kinds } = this.recording;
    // Of several threads the height is as many as there were at once.
    let perColumn = Math.max(this.recording.duration_ns, 1) / width;
    for (let x = 0; x < width && threadCount > 1; x++) {
      let sum = 0;
      for (let kind = 0; kind < kinds.length; kind++) sum += shares[x * kinds.length + kind];
      perColumn = Math.max(perColumn, sum);
    }
    for (let x = 0; x < width; x++) {
      let top = height;
      let sum = 0;
      for (let kind = 0; kind < kinds.length - 1; kind++) {
        sum += shares[x * kinds.length + kind];
        const bottom = Math.round(height * (1 - Math.min(sum / perColumn, 1)));
        for (let y = bottom; y < top; y++) {
          const mark = isInked(kinds[kind], Math.floor(x / scale), Math.floor(y / scale));
          const [red, green, blue] = colors[kind][+mark];
          const at = (y * width + x) * 4;
          data[at] = red;
          data[at + 1] = green;
          data[at + 2] = blue;
          data[at + 3] = 255;
        }
        top = bottom;
      }
    }
  }

  xOf(ns) {
    return this.left + (ns / Math.max(this.recording.duration_ns, 1)) * (this.width - this.left);
  }

  nsOf(x) {
    const part = (x - this.left) / (this.width - this.left);
    return Math.min(Math.max(part, 0), 1) * this.recording.duration_ns;
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.picture, Math.round(this.left * scale), 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawNames(context);
    this.drawAxis(context);
    const window_ = this.dragged ?? view.window;
    if (window_) this.drawWindow(context, window_);
  }

  drawNames(context) {
    context.textBaseline = "middle";
    this.shown.forEach((row, i) => {
      context.fillStyle = tint(row.group);
      if (this.holding.has(row.group)) context.fillRect(this.left - 7, i * ROW + 2, 4, ROW - 5);
      context.fillStyle = ink();
      const isMember = !row.folded && this.members[row.group]?.length > 1;
      const sign = row.folded ? (row.isOpen ? "▾ " : "▸ ") : isMember ? "    " : "";
      const isChosen = view.group && view.group === this.recording.groups[row.group];
      context.font = `${isChosen ? "600 " : ""}${this.left < 100 ? 12 : 11.5}px ${FONT}`;
      const count = row.folded ? ` ×${row.threads.length}` : "";
      const room = this.left - 10 - context.measureText(sign + count).width;
      context.fillText(sign + cut(context, row.name, room - 6) + count, 0, i * ROW + ROW / 2);
    });
  }

  drawAxis(context) {
    const whole = this.recording.duration_ns / 1e9;
    const step = niceStep(whole / Math.max(2, Math.floor((this.width - this.left) / 110)));
    context.font = `${this.left < 100 ? 12 : 10.5}px ${FONT}`;
    context.fillStyle = ink();
    context.textBaseline = "middle";
    context.globalAlpha = 0.75;
    for (let at = 0; at <= whole; at += step) {
      const x = this.xOf(at * 1e9);
      const text = `${+at.toFixed(6)} s`;
      const room = context.measureText(text).width;
      context.fillText(text, Math.min(x, this.width - room), this.height - AXIS / 2);
      context.fillRect(Math.min(x, this.width - 1), this.height - AXIS, 1, 3);
    }
    context.globalAlpha = 1;
  }

  drawWindow(context, [from, to]) {
    const [x, end] = [this.xOf(from), this.xOf(to)];
    const height = this.height - AXIS;
    context.fillStyle = dark() ? "rgba(16,18,20,.66)" : "rgba(255,255,255,.7)";
    context.fillRect(this.left, 0, x - this.left, height);
    context.fillRect(end, 0, this.width - end, height);
    context.strokeStyle = dark() ? "#79b8ff" : "#0860ca";
    context.lineWidth = 2;
    context.strokeRect(x, 1, Math.max(end - x, 1), height - 2);
  }

  listen() {
    this.box.addEventListener("pointerdown", (event) => this.press(event));
    this.box.addEventListener("pointermove", (event) => this.move(event));
    this.box.addEventListener("pointerup", (event) => this.release(event));
    this.box.addEventListener("pointercancel", () => {
      this.pressed = this.dragged = null;
      change({});
      this.draw();
    });
    this.box.addEventListener("dblclick", () => change({ window: null }));
    this.box.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  press(event) {
    if (event.button !== 0) return;
    this.pressed = this.at(event);
    if (this.pressed[0] >= this.left) this.box.setPointerCapture(event.pointerId);
  }

  move(event) {
    const [x, y] = this.at(event);
    if (!this.pressed || this.pressed[0] < this.left || Math.abs(x - this.pressed[0]) < LEAST_DRAG) {
      if (!this.pressed) this.hover(x, y);
      return;
    }
    this.dragged = [this.nsOf(Math.min(x, this.pressed[0])), this.nsOf(Math.max(x, this.pressed[0]))];
    this.later(() => change({ window: this.dragged }, "drag"));
  }

  // At most once a frame.
  later(act) {
    this.waiting = act;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.dragged) this.waiting();
      this.draw();
    });
  }

  release(event) {
    const [x, y] = this.at(event);
    const { pressed, dragged } = this;
    this.pressed = this.dragged = null;
    if (dragged) change({ window: dragged });
    else if (pressed) this.click(x, y);
  }

  click(x, y) {
    const row = this.shown[Math.floor(y / ROW)];
    if (!row || (row.gil && x < this.left)) return;
    if (x < this.left) {
      if (row.folded && x < 16) {
        this.open.has(row.group) ? this.open.delete(row.group) : this.open.add(row.group);
        this.render();
      } else {
        const name = this.recording.groups[row.group];
        change({ group: view.group === name ? "" : name });
      }
    } else {
      this.onSpan(...this.momentAt(row, x), true);
    }
  }

  // [thread, span] of a row at x; of several threads none.
  momentAt(row, x) {
    if (row.gil) return holderAt(this.recording, row.gil.threads, this.nsOf(x)) ?? [-1, -1];
    const [thread] = row.threads;
    return row.threads.length === 1 ? [thread, this.spanAt(thread, x)] : [-1, -1];
  }

  spanAt(thread, x) {
    const span = this.recording.firstAfter(thread, this.nsOf(x));
    return span < this.recording.begin[thread + 1] ? span : -1;
  }

  hover(x, y) {
    const row = this.shown[Math.floor(y / ROW)];
    this.box.style.cursor = x < this.left ? "pointer" : "crosshair";
    if (row && x >= this.left) this.onSpan(...this.momentAt(row, x), false);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const at = this.nsOf(this.at(event)[0]);
    const [from, to] = view.window ?? [0, this.recording.duration_ns];
    const by = event.deltaY > 0 ? 1.25 : 0.8;
    this.choose(at - (at - from) * by, at + (to - at) * by, "typing");
  }

  key(event) {
    const whole = this.recording.duration_ns;
    const [from, to] = view.window ?? [0, whole];
    const step = (to - from) / 10;
    const moves = { ArrowLeft: [-step, -step], ArrowRight: [step, step], ArrowUp: [step, -step], ArrowDown: [-step, step] };
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const [before, after] = from + move[0] < 0 && event.key === "ArrowLeft" ? [0, 0] : move;
    this.choose(from + before, to + after, event.repeat ? "typing" : "step");
  }

  choose(from, to, how) {
    const whole = this.recording.duration_ns;
    const window_ = [Math.max(0, from), Math.min(whole, to)];
    if (window_[1] - window_[0] < 1000) return;
    change({ window: window_[0] <= 0 && window_[1] >= whole ? null : window_ }, how);
  }

  // What the part of the time is, in words.
  told() {
    const parts = [];
    if (view.window) parts.push(`${time(view.window[1] - view.window[0])} from ${time(view.window[0])}`);
    if (view.group) parts.push(`${view.group} (${counted(this.groupThreads().length, "thread")})`);
    return parts.join(" · ");
  }

  groupThreads() {
    return this.members[this.recording.groups.indexOf(view.group)] ?? [];
  }
}

export const FONT = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

export function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}

function niceStep(least) {
  const size = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return [1, 2, 5, 10].map((factor) => factor * size).find((step) => step >= least);
}
