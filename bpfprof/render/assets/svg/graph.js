// The frames of the SVG: reads their numbers, places them for a width, a zoom and a choice of time, and writes labels.
// Names only ever reach the page as textContent. The numbers come from #frame-data, one element a frame, parents first.
import { byId, time } from "../page/dom.js";

export const SVG = "http://www.w3.org/2000/svg";
export const MARGIN = 12;
const ROW = 18;
const LEAST_ROW = 13; // rows are lower before anything is folded
const LEAST_PX = 0.1;
const LEAST_CHARS = 3;
const THIN_PX = 3;
const PLUMBING_PART = 0.1; // code that starts and runs others is left out, unless so much of its time is its own
const CHAIN_PARTS = [0.99, 0.9, 0.5, 0]; // of the time of a frame that is in one of those it calls: first it does nothing else
// Looks of frames that are folded when there is no room for all levels, one group after the other: first of those that do
// nothing else, as who calls whom is seen without them.
const FOLDED_FIRST = [["native", "inlined", "kernel", "base"], ["stdlib", "library"], ["own"]];
const SHOWS = {
  times: { both: (d, i) => d.cpu[i] + d.wait[i], cpu: (d, i) => d.cpu[i], waits: (d, i) => d.wait[i] },
  changes: { both: (d, i) => (d.before[i] + d.after[i]) / 2, before: (d, i) => d.before[i], after: (d, i) => d.after[i] },
};

export const data = JSON.parse(byId("frame-data").textContent);
export const shows = SHOWS[data.kind];

export class Graph {
  constructor() {
    this.frames = byId("frames");
    this.groups = [...this.frames.children];
    this.rects = this.groups.map((group) => group.querySelector("rect"));
    this.labels = this.groups.map((group) => group.querySelector("title").textContent.split("\n")[0]);
    this.texts = this.groups.map((group) => group.querySelector("text"));
    this.grounds = this.groups.map((group) => group.querySelector(".ground"));
    this.looks = this.groups.map((group) => group.classList[0]);
    this.parent = data.parent;
    this.count = this.parent.length;
    this.value = new Float64Array(this.count);
    this.own = new Float64Array(this.count);
    this.left = new Float64Array(this.count);
    this.level = new Int32Array(this.count);
    this.inside = new Uint8Array(this.count);
    this.hidden = new Uint8Array(this.count);
    this.folded = new Uint8Array(this.count);
    this.visible = new Uint8Array(this.count);
    this.runs = new Uint32Array(this.count); // of the first of folded frames how many there are
    this.runOf = new Int32Array(this.count); // the first of the folded frames that one is of
    this.hit = new Uint8Array(this.count);
    this.charWidth = this.measureChar();
  }

  measureChar() {
    const probe = this.groups[0].appendChild(document.createElementNS(SVG, "text"));
    probe.textContent = "m".repeat(100);
    const width = probe.getComputedTextLength() / 100;
    probe.remove();
    return width || 6.65;
  }

  // Times of all frames; those of threads that have nothing to do only when they are asked for.
  choose({ show, idle }) {
    const { value, own, parent } = this;
    const of = shows[show];
    const withIdle = idle && show !== "cpu" && data.idle;
    for (let i = 0; i < this.count; i++) own[i] = value[i] = of(data, i) + (withIdle ? data.idle[i] : 0);
    for (let i = this.count - 1; i > 0; i--) own[parent[i]] -= value[i];
  }

  // Where each frame is: `avail` px are there for all levels, `inner` for the widest frame.
  layOut({ zoom, all, open, flip }, avail, inner) {
    const { parent, value, own } = this;
    const least = (value[zoom] * LEAST_PX) / Math.max(inner, 1);
    for (let i = 0; i < this.count; i++) {
      this.inside[i] = i === zoom || (i > 0 && this.inside[parent[i]]) ? 1 : 0;
      this.hidden[i] = !all && i !== zoom && data.plumbing[i] && own[i] < PLUMBING_PART * value[i] ? 1 : 0;
    }
    this.folded.fill(0);
    let depth = this.placeAll(zoom, least);
    const most = Math.max(Math.floor(avail / LEAST_ROW), 4);
    for (let step = 0; step < FOLDED_FIRST.length * CHAIN_PARTS.length && depth > most && !open; step++) {
      const group = step % FOLDED_FIRST.length;
      this.fold(zoom, new Set(FOLDED_FIRST.slice(0, group + 1).flat()), CHAIN_PARTS[Math.floor(step / FOLDED_FIRST.length)]);
      depth = this.placeAll(zoom, least);
    }
    if (this.folded.includes(1)) {
      this.foldLess(zoom, least, most);
      depth = this.placeAll(zoom, least);
    }
    this.depth = depth;
    this.row = Math.min(ROW, Math.max(LEAST_ROW, Math.floor(avail / depth)));
    this.flip = flip;
    this.zoom = zoom;
  }

  // Frames below the zoomed one. A hidden one has no level; of folded ones only the first. Returns how many levels.
  placeAll(zoom, least) {
    const { parent, value, left, level, inside, hidden, folded, visible, runs, runOf } = this;
    const next = new Float64Array(this.count);
    const below = new Int32Array(this.count); // the level of what a frame calls
    runOf.fill(-1);
    let depth = 1;
    visible.fill(0);
    runs.fill(0);
    for (let i = zoom; i < this.count; i++) {
      if (!inside[i]) continue;
      const above = parent[i];
      left[i] = next[i] = i === zoom ? 0 : next[above];
      if (i !== zoom) next[above] += value[i];
      level[i] = i === zoom ? 0 : below[above];
      const follows = i !== zoom && folded[i] && runOf[above] >= 0;
      if (hidden[i] || follows) {
        below[i] = below[above];
        runOf[i] = runOf[above];
        if (follows) runs[runOf[i]]++;
        continue;
      }
      below[i] = level[i] + 1;
      if (folded[i]) runs[(runOf[i] = i)] = 1;
      visible[i] = value[i] > 0 && value[i] >= least ? 1 : 0;
      if (visible[i]) depth = Math.max(depth, below[i]);
    }
    return depth;
  }

  // Marks frames of these looks that are called by one that does little else, and do little but call one themselves: this
  // part of the time and more is in it.
  fold(zoom, chosen, part) {
    const { parent, value, inside, hidden, folded, hit } = this;
    const only = new Int32Array(this.count).fill(-1); // the frame that the time of another is in
    const shownParent = new Int32Array(this.count);
    for (let i = zoom + 1; i < this.count; i++) {
      if (!inside[i]) continue;
      const above = parent[i];
      shownParent[i] = hidden[above] && above !== zoom ? shownParent[above] : above;
      const before = only[shownParent[i]];
      const isIn = !hidden[i] && value[i] > 0 && value[i] >= part * value[shownParent[i]];
      if (isIn && (before < 0 || value[i] > value[before])) only[shownParent[i]] = i;
    }
    const can = (i) => i > zoom && chosen.has(this.looks[i]) && !hit[i] && only[i] > 0 && only[shownParent[i]] === i;
    for (let i = zoom + 1; i < this.count; i++) {
      if (inside[i]) folded[i] = !hidden[i] && can(i) && (can(shownParent[i]) || can(only[i])) ? 1 : 0;
    }
  }

  // Of what is folded as much is shown again as there is room for: first all of short runs, then of each run the inner frames.
  foldLess(zoom, least, most) {
    const { parent, level, inside, hidden, folded, visible, runs, runOf } = this;
    const runOfAll = runOf.map((first, i) => (folded[i] ? first : -1));
    const lengthOf = runs.slice();
    const isRun = (i) => runOfAll[i] >= 0;
    for (const length of [...new Set(lengthOf)].sort((one, other) => other - one)) {
      for (let i = 0; i < this.count; i++) folded[i] = isRun(i) && lengthOf[runOfAll[i]] >= length ? 1 : 0;
      if (this.placeAll(zoom, least) <= most) break;
    }
    const members = new Map();
    for (let i = zoom + 1; i < this.count; i++) {
      if (!folded[i]) continue;
      if (runOf[i] === i) members.set(i, []);
      members.get(runOf[i]).push(i);
    }
    const height = new Int32Array(this.count); // levels of a frame and of what is below it
    for (let i = this.count - 1; i > zoom; i--) {
      if (!inside[i]) continue;
      const isDrawn = visible[i] && !hidden[i] && (!folded[i] || runOf[i] === i);
      if (isDrawn) height[i]++;
      if (members.has(i)) height[i] += this.unfold(members.get(i), most - level[i] - height[i]);
      height[parent[i]] = Math.max(height[parent[i]], height[i]);
    }
  }

  // Shows so many of the folded frames of a run, the inner ones; returns how many levels that makes.
  unfold(run, room) {
    const count = Math.min(Math.max(room, 0), run.length - 1);
    for (const i of run.slice(count === run.length - 1 ? 0 : run.length - count)) this.folded[i] = 0;
    return count;
  }

  draw(inner) {
    const { value, left, groups, rects, zoom } = this;
    const whole = value[zoom];
    for (let i = 0; i < this.count; i++) {
      const isShown = this.visible[i] && this.inside[i] && whole > 0;
      const { classList } = groups[i];
      if (!isShown) {
        classList.add("gone");
        continue;
      }
      const share = value[i] / whole;
      const y = this.yOf(i);
      classList.remove("gone");
      classList.toggle("thin", share * inner < THIN_PX);
      classList.toggle("fold", this.runs[i] > 0);
      const x = `${((100 * left[i]) / whole).toFixed(4)}%`;
      rects[i].setAttribute("x", x);
      rects[i].setAttribute("y", y);
      rects[i].setAttribute("width", `${(100 * share).toFixed(4)}%`);
      rects[i].setAttribute("height", this.row - 1);
      this.write(i, x, y, share * inner - 8);
    }
  }

  yOf(i) {
    return (this.flip ? this.depth - 1 - this.level[i] : this.level[i]) * this.row;
  }

  // The label of a frame, cut to the room in px; what follows the name of a function is drawn lighter.
  write(i, x, y, px) {
    const room = Math.floor(px / this.charWidth);
    if (room < LEAST_CHARS) {
      for (const drawn of [this.texts, this.grounds]) {
        drawn[i]?.remove();
        drawn[i] = null;
      }
      return;
    }
    this.texts[i] ??= this.groups[i].appendChild(document.createElementNS(SVG, "text"));
    const text = this.texts[i];
    text.setAttribute("dx", 4);
    text.setAttribute("y", y + Math.min(Math.ceil(this.row / 2) + 3.5, this.row - 4)); // in low rows, too, "_" is in it
    text.setAttribute("x", x);
    const label = this.runs[i] ? `… ${this.runs[i]} frames` : this.drawnLabel(i);
    const shown = cutTo(label, room);
    if (byId(this.looks[i])) this.layGround(i, x, y, widthOf(shown));
    const at = label.lastIndexOf(" (");
    text.textContent = at > 0 ? shown.slice(0, at) : shown;
    if (at > 0 && shown.length > at) {
      const place = text.appendChild(document.createElementNS(SVG, "tspan"));
      place.setAttribute("class", "place");
      place.textContent = shown.slice(at);
    }
  }

  // No marks behind text.
  layGround(i, x, y, chars) {
    this.grounds[i] ??= this.groups[i].insertBefore(document.createElementNS(SVG, "rect"), this.texts[i]);
    const size = { class: `ground ${this.looks[i]}-back`, x, y: y + 1, width: chars * this.charWidth + 2, height: this.row - 3 };
    for (const [name, value] of Object.entries(size)) this.grounds[i].setAttribute(name, value);
  }

  // Of a wait what for and how long; what tells more or less time from colour alone.
  drawnLabel(i) {
    const label = this.labels[i];
    const wait = label === "ready, no CPU" ? "ready" : /^waiting: ([^,]*)/.exec(label)?.[1];
    return signOf(this.looks[i]) + (wait ? `${wait} ${time(this.value[i] * data.unit)}` : label);
  }

  // The frame that one is drawn below.
  above(i) {
    let at = this.parent[i];
    while (at > this.zoom && !this.visible[at]) at = this.parent[at];
    return this.inside[at] && i !== this.zoom ? at : -1;
  }

  pathOf(i) {
    const path = [];
    for (let at = i; at > 0; at = this.parent[at]) path.unshift(at);
    return path;
  }

  // The frame of a path of names; the last that there is.
  frameOf(names) {
    let at = 0;
    for (const name of names) {
      const found = this.parent.findIndex((above, i) => above === at && this.labels[i] === name);
      if (found < 0) return at;
      at = found;
    }
    return at;
  }

  // Marks what matches; returns what it takes of the zoomed time and how many there are of it.
  search(pattern) {
    const { hit, inside, value, parent } = this;
    const covered = new Uint8Array(this.count);
    const found = [];
    let ns = 0;
    for (let i = 0; i < this.count; i++) {
      hit[i] = pattern && value[i] > 0 && pattern.test(this.labels[i]) ? 1 : 0;
      this.groups[i].classList.toggle("hit", Boolean(hit[i]));
      if (!inside[i]) continue;
      const isBelow = i > 0 && covered[parent[i]];
      if (hit[i]) found.push(i);
      if (hit[i] && !isBelow) ns += value[i];
      covered[i] = hit[i] || isBelow ? 1 : 0;
    }
    this.frames.classList.toggle("searching", Boolean(pattern));
    return { ns, found };
  }
}

const signOf = (look) => (look.endsWith("more") ? "▲ " : look.endsWith("less") ? "▼ " : "");

// Letters of other scripts may be as wide as two (columns.py).
const isWide = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

export function widthOf(text) {
  let width = 0;
  for (const letter of text) width += isWide.test(letter) ? 2 : 1;
  return width;
}

export function cutTo(text, room) {
  if (widthOf(text) <= room) return text;
  let [shown, width] = ["", 0];
  for (const letter of text) {
    width += widthOf(letter);
    if (width > room - 1) break;
    shown += letter;
  }
  return `${shown}…`;
}
