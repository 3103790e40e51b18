// Adds up the part of the recording that is chosen.
import { BITS } from "./data.js";

// Sums of what is chosen: by slot and kind without idle time, and by thread with it. They are whole nanoseconds, so what
// leaves a window can be taken out: a window that moves costs what enters and leaves it.
export class Sums {
  constructor(recording) {
    this.recording = recording;
    this.kinds = recording.kinds.length;
    this.columns = this.kinds + 1; // of a thread; the last is idle time
    const threads = recording.threads.length;
    this.ofThread = new Float64Array(threads * this.columns);
    this.first = new Uint32Array(threads); // the spans of each thread that are in,
    this.end = new Uint32Array(threads);
    this.leftOut = new Float64Array(threads * 2); // and nanoseconds of the first and the last of them that are not
    this.treeChanged();
  }

  treeChanged() {
    const slots = this.recording.slotNode.length;
    this.ofSlot = new Float64Array(slots * this.kinds);
    this.allOfSlot = new Float64Array(slots);
    this.before = new Float64Array(slots + 1); // of each slot the time of those before it
    this.clear();
  }

  clear() {
    for (const sums of [this.ofSlot, this.allOfSlot, this.ofThread, this.leftOut]) sums.fill(0);
    this.first.set(this.recording.begin.subarray(0, -1));
    this.end.set(this.first);
  }

  choose({ window, threads, withIdle }) {
    const { recording } = this;
    const { begin } = recording;
    const [first, end] = [this.first.slice(), this.end.slice()];
    let [moving, anew] = [0, 0]; // spans to add or take out
    for (let thread = 0; thread < first.length; thread++) {
      const isIn = !threads || threads.has(thread);
      first[thread] = isIn && window ? recording.firstAfter(thread, window[0]) : begin[thread];
      end[thread] = !isIn ? begin[thread] : window ? recording.firstFrom(thread, first[thread], window[1]) : begin[thread + 1];
      anew += end[thread] - first[thread];
      const both = Math.min(end[thread], this.end[thread]) - Math.max(first[thread], this.first[thread]);
      moving += end[thread] - first[thread] + this.end[thread] - this.first[thread] - 2 * Math.max(both, 0);
    }
    if (withIdle !== this.withIdle || moving > anew) this.clear();
    this.withIdle = withIdle;
    for (let thread = 0; thread < first.length; thread++) this.move(thread, first[thread], end[thread], window);
  }

  move(thread, first, end, window) {
    const [oldFirst, oldEnd, edges] = [this.first[thread], this.end[thread], 2 * thread];
    const { leftOut } = this;
    if (leftOut[edges]) this.add(thread, oldFirst, leftOut[edges]);
    if (leftOut[edges + 1]) this.add(thread, oldEnd - 1, leftOut[edges + 1]);
    this.addAll(thread, oldFirst, Math.min(oldEnd, first), -1);
    this.addAll(thread, Math.max(oldFirst, end), oldEnd, -1);
    this.addAll(thread, first, Math.min(end, oldFirst), 1);
    this.addAll(thread, Math.max(first, oldEnd), end, 1);
    this.first[thread] = first;
    this.end[thread] = end;
    leftOut[edges] = leftOut[edges + 1] = 0;
    if (!window || first >= end) return;
    leftOut[edges] = this.leaveOut(thread, first, window);
    if (end - 1 > first) leftOut[edges + 1] = this.leaveOut(thread, end - 1, window);
  }

  leaveOut(thread, span, window) {
    const ns = this.recording.weight[span] - this.recording.partOf(span, window);
    if (ns) this.add(thread, span, -ns);
    return ns;
  }

  addAll(thread, first, end, sign) {
    const { weight } = this.recording;
    for (let span = first; span < end; span++) this.add(thread, span, sign * weight[span]);
  }

  add(thread, span, ns) {
    const { kind, flags, spanSlot } = this.recording;
    const { kinds } = this;
    const isIdle = (flags[span] & BITS.idle) !== 0;
    this.ofThread[thread * this.columns + (isIdle ? kinds : kind[span])] += ns;
    if (isIdle && !this.withIdle) return;
    const slot = spanSlot[span];
    this.ofSlot[slot * kinds + kind[span]] += ns;
    if (kind[span] !== kinds - 1) this.allOfSlot[slot] += ns; // but for what was not asked for
  }

  // Times of these kinds.
  fill(shown) {
    const { ofSlot, allOfSlot, kinds, before } = this;
    const isAll = shown.length === kinds - 1;
    let ns = 0;
    for (let slot = 0; slot < allOfSlot.length; slot++) {
      if (isAll) ns += allOfSlot[slot];
      else for (const kind of shown) ns += ofSlot[slot * kinds + kind];
      before[slot + 1] = ns;
    }
  }

  timeOf(node) {
    const { slotBegin, slotEnd } = this.recording;
    return this.before[slotEnd[node]] - this.before[slotBegin[node]];
  }

  // Time of a node without its calls.
  ownOf(node) {
    const { firstChild, childCount, slotBegin, slotEnd } = this.recording;
    const calls = childCount[node] ? slotEnd[firstChild[node] + childCount[node] - 1] : slotBegin[node];
    return this.before[slotEnd[node]] - this.before[calls];
  }

  // Of each kind, at these nodes and below them.
  byKind(nodes) {
    const found = new Float64Array(this.kinds);
    const { slotBegin, slotEnd } = this.recording;
    for (const node of nodes) {
      for (let slot = slotBegin[node]; slot < slotEnd[node]; slot++) {
        for (let kind = 0; kind < this.kinds; kind++) found[kind] += this.ofSlot[slot * this.kinds + kind];
      }
    }
    return found;
  }

  ofThreads() {
    const found = new Float64Array(this.columns);
    for (let i = 0; i < this.ofThread.length; i++) found[i % this.columns] += this.ofThread[i];
    return found;
  }
}
