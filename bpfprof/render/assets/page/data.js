// The recording's numbers, unpacked.
import { Nodes, treeOf } from "./tree.js";

export const BITS = { idle: 1, holdsGil: 2, inTable: 4, inIdle: 8 };
const TYPES = { u1: Uint8Array, u4: Uint32Array, i4: Int32Array, f8: Float64Array };
const HIGH = 2 ** 32;

// What the page shows in place of numbers where it cannot unpack them.
export class CannotShow extends Error {}

export async function unpack(text) {
  const { head, columns } = await unpackedOf(text);
  return new Recording(head, columns);
}

export async function unpackedOf(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new CannotShow(
      "This browser has no DecompressionStream, so the page cannot unpack its data. Chrome 80, Firefox 113, Safari 16.4 and later have it.",
    );
  }
  const packed = bytesOf(text.trim());
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = {};
  for (const [name, [type, offset, count]] of Object.entries(head.columns)) {
    columns[name] = new TYPES[type](buffer, 4 + length + offset, count);
  }
  return { head, columns };
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// Spans of each thread in the order of time, and the tree of all stacks; a node comes after its parent.
export class Recording {
  constructor(head, columns) {
    Object.assign(this, head);
    this.begin = columns.begin;
    this.place = columns.place;
    this.holder = columns.holder;
    this.kind = columns.kind;
    this.flags = columns.flags;
    this.count = columns.count;
    this.placeOwner = columns.place_owner;
    this.placeFunction = columns.place_function;
    this.readTimes(columns);
    this.readFrames();
    const { node_parent: nodeParent, node_frame: nodeFrame, place_node: placeNode } = columns;
    this.trees = { groups: { ...treeOf(nodeParent, nodeFrame, placeNode, this.place), placeNode, bases: head.groups } };
    this.show("groups");
  }

  // Another tree of the same stacks: "groups" of threads, each of the "threads", "all" as one, or "inverted", in which
  // each frame stands above its callers.
  show(kind) {
    this.trees[kind] ??= this.made(kind);
    this.shown = kind;
    Object.assign(this, this.trees[kind]);
    this.baseCount = this.bases.length;
  }

  made(kind) {
    const { nodeParent, nodeFrame, placeNode, bases } = this.trees.groups;
    if (kind === "threads") return this.ofEachThread();
    const nodes = new Nodes();
    const frameOf = (node) => nodeFrame[node] - bases.length;
    const ends = new Uint32Array(kind === "all" ? nodeParent.length : 0); // the new node of an old one
    for (let node = bases.length + 1; node < ends.length; node++) ends[node] = nodes.child(ends[nodeParent[node]], frameOf(node));
    const inverted = (last) => {
      let end = 0;
      for (let node = last; node > bases.length; node = nodeParent[node]) end = nodes.child(end, frameOf(node));
      return end;
    };
    return { ...nodes.tree(placeNode.map(kind === "all" ? (node) => ends[node] : inverted), this.place), bases: [] };
  }

  // Of each thread the part of its group's tree that it has.
  ofEachThread() {
    const { nodeParent, nodeFrame, placeNode, bases } = this.trees.groups;
    const nodes = new Nodes();
    this.threads.forEach((_thread, i) => nodes.add(0, i + 1));
    const more = this.threads.length - bases.length;
    const [knownTo, known] = [new Uint32Array(nodeParent.length), new Uint32Array(nodeParent.length)];
    const [metIn, number] = [new Uint32Array(placeNode.length), new Uint32Array(placeNode.length)];
    const [ends, path, placeOf] = [[], [], new Uint32Array(this.place.length)];
    for (let thread = 1; thread < this.begin.length; thread++) {
      for (let i = this.begin[thread - 1]; i < this.begin[thread]; i++) {
        const place = this.place[i];
        if (metIn[place] !== thread) {
          metIn[place] = thread;
          path.length = 0;
          let node = placeNode[place];
          for (; node > bases.length && knownTo[node] !== thread; node = nodeParent[node]) path.push(node);
          let end = node > bases.length ? known[node] : thread;
          while (path.length) {
            node = path.pop();
            knownTo[node] = thread;
            known[node] = end = nodes.add(end, nodeFrame[node] + more);
          }
          number[place] = ends.push(end) - 1;
        }
        placeOf[i] = number[place];
      }
    }
    return { ...nodes.tree(ends, placeOf), bases: this.threads.map((thread) => `${thread.name} (${thread.tid})`) };
  }

  readTimes(columns) {
    const count = this.kind.length;
    this.start = new Float64Array(count);
    this.duration = new Float64Array(count);
    this.weight = new Float64Array(count);
    for (let thread = 0; thread + 1 < this.begin.length; thread++) {
      let now = 0;
      for (let i = this.begin[thread]; i < this.begin[thread + 1]; i++) {
        now += columns.gap_low[i] + columns.gap_high[i] * HIGH;
        this.start[i] = now;
        this.duration[i] = columns.duration_low[i] + columns.duration_high[i] * HIGH;
        now += this.duration[i];
        this.weight[i] = this.duration[i] + columns.more_low[i] + columns.more_high[i] * HIGH;
      }
    }
  }

  readFrames() {
    const { name, file, line, files } = this.frames;
    const known = new Map();
    this.functionOf = new Uint32Array(name.length); // the first frame that differs in its line only
    this.labels = name.map((text, i) => {
      const key = `${text}\n${file[i]}\n${this.frames.look[i]}`;
      if (!known.has(key)) known.set(key, i);
      this.functionOf[i] = known.get(key);
      return files[file[i]] ? `${text} (${this.whereOf(i)})` : text;
    });
  }

  // The frame of a node, -1 of the root and of groups of threads.
  frameOf(node) {
    return Math.max(this.nodeFrame[node] - 1 - this.baseCount, -1);
  }

  // The function of a node, by its first frame; -1 as above.
  functionAt(node) {
    const frame = this.frameOf(node);
    return frame < 0 ? -1 : this.functionOf[frame];
  }

  nodeOfSpan(span) {
    return this.slotNode[this.spanSlot[span]];
  }

  labelOf(node) {
    if (node === 0) return "all threads";
    return this.frameOf(node) < 0 ? this.bases[this.nodeFrame[node] - 1] : this.labels[this.frameOf(node)];
  }

  whereOf(frame) {
    const file = this.frames.files[this.frames.file[frame]];
    return this.frames.line[frame] && file ? `${file}:${this.frames.line[frame]}` : file;
  }

  pathOf(node) {
    const path = [];
    for (let at = node; at > 0; at = this.nodeParent[at]) path.unshift(this.labelOf(at));
    return path;
  }

  nodeOfPath(path) {
    let node = 0;
    for (const name of path) {
      const first = this.firstChild[node];
      let found = -1;
      for (let child = first; child < first + this.childCount[node]; child++) {
        if (this.labelOf(child) === name) found = child;
      }
      if (found < 0) return 0;
      node = found;
    }
    return node;
  }

  // The first span of a thread that ends after a moment.
  firstAfter(thread, time) {
    let low = this.begin[thread];
    let high = this.begin[thread + 1];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.start[middle] + this.duration[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // The first span of a thread, from one of them on, that begins at a moment or after it.
  firstFrom(thread, least, time) {
    let low = least;
    let high = this.begin[thread + 1];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.start[middle] >= time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // What a span speaks for in a window, in whole nanoseconds.
  partOf(span, [from, to]) {
    const whole = this.duration[span];
    const part = Math.min(this.start[span] + whole, to) - Math.max(this.start[span], from);
    return part >= whole ? this.weight[span] : Math.round((this.weight[span] * part) / whole);
  }

  // Calls see(span, thread, nanoseconds) for all that is in the window; of a span that it cuts for its part.
  eachSpan(window, threads, see) {
    for (let thread = 0; thread + 1 < this.begin.length; thread++) {
      if (threads && !threads.has(thread)) continue;
      const end = this.begin[thread + 1];
      if (!window) {
        for (let i = this.begin[thread]; i < end; i++) see(i, thread, this.weight[i]);
        continue;
      }
      const [from, to] = window;
      for (let i = this.firstAfter(thread, from); i < end && this.start[i] < to; i++) see(i, thread, this.partOf(i, window));
    }
  }
}
