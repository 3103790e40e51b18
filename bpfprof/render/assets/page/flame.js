// The icicle: a box a frame, its width the time. What is drawn is bounded by the pixels, not by the recording.
import { byId, onMenu, percent, time } from "./dom.js";
import { hitColor, ink, isPhone, kindColors, lookColor, paper, patternOf } from "./look.js";
import { change, view } from "./view.js";

const MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace';
const LEAST_PX = 0.6; // narrower boxes are drawn as one
const TEXT_PX = 28;
const ZOOM_MS = 150;
const PLUMBING_PART = 0.1; // code that starts and runs others is left out, unless so much of its time is its own

// A canvas of another size is made anew, which takes time.
function sized(canvas, width, height, scale) {
  const [columns, rows] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width === columns && canvas.height === rows) return;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = columns;
  canvas.height = rows;
}

export class Flame {
  constructor(recording, sums, onFrame) {
    this.recording = recording;
    this.sums = sums;
    this.onFrame = onFrame;
    this.canvas = byId("flame-canvas");
    this.box = byId("flame");
    this.space = byId("flame-space");
    this.root = 0;
    this.current = 0;
    this.children = new Map();
    this.hits = null;
    this.levels = [];
    this.level = 19; // px
    this.listen();
  }

  get isNarrow() {
    return isPhone();
  }

  get font() {
    return this.isNarrow ? 12 : 11;
  }

  timesChanged() {
    this.children.clear();
    this.depth = 0;
  }

  // The children of a node, most first, without those that took no time; marks last.
  childrenOf(node) {
    let found = this.children.get(node);
    if (!found) {
      const [calls, marks] = [[], []];
      this.collect(node, calls, marks);
      for (const list of [calls, marks]) if (list.length > 1) list.sort((one, other) => this.sums.timeOf(other) - this.sums.timeOf(one));
      found = marks.length ? [...calls, ...marks] : calls;
      found.marksFrom = calls.length;
      found.callsTime = calls.reduce((sum, child) => sum + this.sums.timeOf(child), 0);
      this.children.set(node, found);
    }
    return found;
  }

  collect(node, calls, marks) {
    const { firstChild, childCount, frames } = this.recording;
    const { sums } = this;
    for (let child = firstChild[node]; child < firstChild[node] + childCount[node]; child++) {
      if (sums.timeOf(child) <= 0) continue;
      const frame = this.recording.frameOf(child);
      const isPlumbing = frame >= 0 && frames.plumbing[frame] && !view.all;
      if (isPlumbing && (view.invert ? node !== 0 : sums.ownOf(child) < PLUMBING_PART * sums.timeOf(child))) this.collect(child, calls, marks);
      else (!view.invert && frame >= 0 && frames.mark[frame] >= 0 ? marks : calls).push(child);
    }
  }

  // Levels below the zoomed node whose boxes can be seen at all.
  measure() {
    let level = [this.root];
    let depth = 0;
    const least = (this.sums.timeOf(this.root) * LEAST_PX) / Math.max(this.width, 1);
    while (level.length) {
      depth++;
      const next = [];
      for (const node of level) {
        for (const child of this.childrenOf(node)) if (this.sums.timeOf(child) >= least) next.push(child);
      }
      level = next;
    }
    this.depth = depth;
  }

  render() {
    const scale = window.devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.level = this.isNarrow ? 22 : 19;
    this.height = this.box.clientHeight;
    if (!this.width) return;
    this.measure();
    this.space.style.height = `${Math.max(this.depth * this.level - this.height, 0)}px`;
    sized(this.canvas, this.width, this.height, scale);
    this.draw();
  }

  draw(moved = { x: 0, scale: 1, y: 0 }) {
    const context = this.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = paper();
    context.fillRect(0, 0, this.width, this.height);
    context.textBaseline = "middle";
    context.font = `${this.font}px ${MONO}`;
    this.charWidth = context.measureText("mmmmmmmmmm").width / 10;
    this.levels = [];
    this.patterns = new Map();
    this.moved = moved;
    this.top = this.box.scrollTop;
    if (this.sums.timeOf(this.root) <= 0) {
      context.fillStyle = ink();
      context.fillText("No time of this kind in what is chosen", 12, 24);
      return;
    }
    const px = (this.width * moved.scale) / this.sums.timeOf(this.root);
    this.drawNode(context, this.root, moved.x, px);
  }

  yOf(level) {
    const whole = Math.max(this.depth * this.level, this.height);
    return (view.flip ? whole - (level + 1) * this.level : level * this.level) - this.top + this.moved.y;
  }

  drawNode(context, root, left, px) {
    const waiting = [[root, left, 0]];
    const { sums } = this;
    while (waiting.length) {
      const [node, x, level] = waiting.pop();
      const y = this.yOf(level);
      const width = sums.timeOf(node) * px;
      if (y > -this.level && y < this.height) this.drawBox(context, node, x, y, width, level);
      if (view.flip ? y < 0 : y > this.height) continue;
      const children = this.childrenOf(node);
      let at = x;
      for (let place = 0; place < children.length; place++) {
        const isCall = place < children.marksFrom;
        const wide = sums.timeOf(children[place]) * px;
        if (wide < LEAST_PX) {
          // Those that follow are no wider, but marks come after all calls.
          const end = isCall ? x + children.callsTime * px : x + width;
          if (at < this.width) this.drawRest(context, at, this.yOf(level + 1), end - at);
          if (!isCall) break;
          [place, at] = [children.marksFrom - 1, end];
          continue;
        }
        if (at + wide > 0 && at < this.width) waiting.push([children[place], at, level + 1]);
        at += wide;
      }
    }
  }

  // What is too narrow to be told apart; not wider than it is.
  drawRest(context, x, y, room) {
    if (y < -this.level || y > this.height || room < 0.5) return;
    context.fillStyle = lookColor("group");
    context.fillRect(x, y, Math.min(room, 3), this.level - 1);
  }

  drawBox(context, node, x, y, width, level) {
    const frame = this.recording.frameOf(node);
    const from = Math.max(x, 0);
    const seen = Math.min(x + width, this.width) - from;
    (this.levels[level] ??= []).push([from, from + seen, node]);
    const gap = seen > 3 ? 0.8 : 0;
    const { mark, look } = this.recording.frames;
    const kind = frame >= 0 && mark[frame] >= 0 ? this.recording.kinds[mark[frame]] : null;
    const changed = this.recording.changeOf?.(node);
    const isHit = this.hits && frame >= 0 && this.hits[frame];
    context.globalAlpha = this.hits && !isHit ? 0.45 : 1;
    context.fillStyle = kind || changed ? this.pattern(context, changed ?? kind) : lookColor(frame < 0 ? "group" : this.recording.looks[look[frame]]);
    context.fillRect(from, y, seen - gap, this.level - 1);
    context.globalAlpha = 1;
    const isCurrent = node === this.current && node !== this.root;
    if (isHit || isCurrent) {
      context.strokeStyle = isCurrent ? ink() : hitColor();
      context.lineWidth = 2;
      context.strokeRect(from + 1, y + 1, Math.max(seen - gap - 2, 1), this.level - 3);
    }
    if (seen > TEXT_PX) this.drawLabel(context, node, frame, from + 4, y + (this.level - 1) / 2 + 0.5, seen - 8, changed ?? kind);
  }

  pattern(context, kind) {
    if (!this.patterns.has(kind)) this.patterns.set(kind, patternOf(context, kind, true));
    return this.patterns.get(kind);
  }

  drawLabel(context, node, frame, x, y, room, kind) {
    const chars = Math.floor(room / this.charWidth);
    if (chars < 3) return;
    const { frames, looks } = this.recording;
    const isOwn = frame >= 0 && looks[frames.look[frame]] === "own";
    const sign = /more$/.test(kind) ? "▲ " : /less$/.test(kind) ? "▼ " : "";
    const isTime = frame < 0 || frames.mark[frame] >= 0;
    const name = sign + (frame >= 0 && isTime ? frames.name[frame].split(",")[0].replace("waiting: ", "") : this.nameOf(node, frame));
    const shown = name.length <= chars ? name : `${name.slice(0, chars - 1)}…`;
    let rest = isTime ? ` ${time(this.sums.timeOf(node))}` : ` ${this.recording.whereOf(frame)}`;
    const left = chars - shown.length;
    if (rest.length > left) rest = left > 4 ? `${rest.slice(0, left - 1)}…` : "";
    if (kind) {
      context.fillStyle = kindColors(kind)[0]; // no marks behind text
      context.fillRect(x - 1, y - 7, (shown.length + rest.length) * this.charWidth + 2, 14);
    }
    context.fillStyle = ink();
    context.font = `${isOwn || frame < 0 ? "600 " : ""}${this.font}px ${MONO}`;
    context.fillText(shown, x, y);
    if (rest.length < 2) return;
    const at = x + context.measureText(shown).width;
    context.font = `${this.isNarrow ? 12 : 10}px ${MONO}`;
    context.fillText(rest, at + 2, y);
  }

  nameOf(node, frame) {
    return frame >= 0 ? this.recording.frames.name[frame] : this.recording.labelOf(node);
  }

  zoom(node) {
    if (node >= 0) change({ zoom: this.recording.pathOf(node) });
  }

  // Shows a node as wide as the picture; those above it stand in the row above the picture.
  setRoot(node) {
    const box = this.find(node);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches || !box || node === this.root;
    const from = box && { x: box.x, scale: Math.max(box.end - box.x, 1) / this.width, y: box.y };
    this.root = node;
    this.current = node;
    this.box.scrollTop = 0;
    this.render();
    if (view.flip) this.box.scrollTop = this.box.scrollHeight;
    if (!still) this.animate(from, performance.now());
    this.tell(node);
  }

  find(node) {
    for (let level = 0; level < this.levels.length; level++) {
      for (const [x, end, known] of this.levels[level] ?? []) if (known === node) return { x, end, y: this.yOf(level) };
    }
    return null;
  }

  animate(from, begun) {
    const step = (now) => {
      const part = Math.min((now - begun) / ZOOM_MS, 1);
      const left = (1 - part) ** 2;
      this.draw({ x: from.x * left, scale: from.scale * left + (1 - left), y: from.y * left });
      if (part < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const whole = Math.max(this.depth * this.level, this.height);
    const level = Math.floor((view.flip ? whole - (y + this.box.scrollTop) : y + this.box.scrollTop) / this.level);
    return (this.levels[level] ?? []).find(([from, end]) => x >= from && x < end)?.[2] ?? -1;
  }

  listen() {
    this.box.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()));
    this.box.addEventListener("pointermove", (event) => {
      const node = this.at(event);
      this.box.style.cursor = node >= 0 ? "pointer" : "default";
      this.tell(node >= 0 ? node : this.current);
    });
    this.box.addEventListener("click", (event) => {
      const node = this.at(event);
      if (node < 0) return;
      this.onFrame(node);
      this.zoom(node);
    });
    // Where the buttons to copy are, and the link to the editor.
    onMenu(this.box, (event, by) => {
      const node = by === "key" ? this.current : this.at(event);
      if (node < 0) return;
      event.preventDefault();
      this.onFrame((this.current = node));
      this.draw();
    });
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const down = view.flip ? "ArrowUp" : "ArrowDown";
    const up = view.flip ? "ArrowDown" : "ArrowUp";
    const to = {
      [down]: () => this.childrenOf(this.current)[0] ?? -1,
      [up]: () => this.above(this.current),
      ArrowLeft: () => this.beside(-1),
      ArrowRight: () => this.beside(1),
      Home: () => this.root,
    }[event.key];
    if (event.key === "Enter") this.zoom(this.current);
    else if (to) this.walk(to());
    else return;
    event.preventDefault();
  }

  above(node) {
    if (node === this.root) return -1;
    let parent = this.recording.nodeParent[node];
    while (parent !== this.root && !this.childrenOf(this.shownParent(parent)).includes(parent)) parent = this.recording.nodeParent[parent];
    return parent;
  }

  // The node below which another one is drawn.
  shownParent(node) {
    let parent = this.recording.nodeParent[node];
    while (parent > 0 && !this.childrenOf(parent).includes(node)) parent = this.recording.nodeParent[parent];
    return parent;
  }

  beside(by) {
    const parent = this.above(this.current);
    const list = parent < 0 ? [] : this.childrenOf(parent);
    return list[list.indexOf(this.current) + by] ?? -1;
  }

  walk(node) {
    if (node < 0) return;
    this.current = node;
    let level = 0;
    for (let at = node; at !== this.root && at > 0; at = this.above(at)) level++;
    const whole = Math.max(this.depth * this.level, this.height);
    const top = view.flip ? whole - (level + 1) * this.level : level * this.level;
    if (top < this.box.scrollTop || top + this.level > this.box.scrollTop + this.height) this.box.scrollTop = top - this.height / 3;
    this.draw();
    this.tell(node);
    this.onFrame(node);
  }

  tell(node) {
    const { sums } = this;
    const own = view.invert ? 0 : this.sums.ownOf(node);
    const parts = [this.recording.labelOf(node), time(sums.timeOf(node)), `${percent(sums.timeOf(node), sums.timeOf(0))} of all`];
    if (this.root) parts.push(`${percent(sums.timeOf(node), sums.timeOf(this.root))} of the zoomed`);
    if (own > 0) parts.push(`${time(own)} of its own`);
    byId("told").textContent = parts.join("  ·  ");
  }

  // Marks frames; returns what they take of the zoomed time.
  search(pattern) {
    const { labels, nodeParent } = this.recording;
    this.hits = pattern ? Uint8Array.from(labels, (label) => (pattern.test(label) ? 1 : 0)) : null;
    this.found = [];
    if (!pattern) return null;
    const { sums } = this;
    const state = new Uint8Array(nodeParent.length); // 1: in the zoom, 2: below a hit
    let ns = 0;
    for (let node = 0; node < nodeParent.length; node++) {
      const above = node ? state[nodeParent[node]] : 0;
      state[node] = node === this.root ? 1 : above;
      if (!state[node] || sums.timeOf(node) <= 0) continue;
      const frame = this.recording.frameOf(node);
      if (frame < 0 || !this.hits[frame]) continue;
      this.found.push(node);
      if (!(state[node] & 2)) ns += sums.timeOf(node);
      state[node] |= 2;
    }
    this.found.sort((one, other) => sums.timeOf(other) - sums.timeOf(one));
    return { ns, count: this.found.length, whole: sums.timeOf(this.root) };
  }

  next(by) {
    if (!this.found?.length) return;
    this.place = ((this.found.indexOf(this.current) < 0 && by > 0 ? -1 : this.found.indexOf(this.current)) + by + this.found.length) % this.found.length;
    this.walk(this.found[this.place]);
  }
}

