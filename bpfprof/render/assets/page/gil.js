// Who held the GIL: at each moment, and how long at a time.
import { BITS } from "./data.js";
import { dark } from "./look.js";

export const tint = (group) => `hsl(${(group * 137 + 25) % 360} 50% ${dark() ? 52 : 58}%)`;
const isHeld = ({ flags, duration }, span) => (flags[span] & BITS.holdsGil) !== 0 && duration[span] > 0;

const MOST_GILS = 4;

// Each process has a GIL of its own. Of those that were held the ones held longest: what to call each, the threads of its
// process, and the groups of those that held it. None where time and what it was spent in are apart: of short times it is
// not known there who held one.
export function gilsOf(recording) {
  if (recording.is_apart) return [];
  const held = new Map();
  recording.eachSpan(null, null, (span, thread) => {
    if (!isHeld(recording, span)) return;
    const { pid, process, group } = recording.threads[thread];
    if (!held.has(pid)) held.set(pid, { pid, process, ns: 0, groups: new Set() });
    const gil = held.get(pid);
    gil.ns += recording.duration[span];
    gil.groups.add(group);
  });
  const threadsOf = (pid) => new Set([...recording.threads.keys()].filter((thread) => recording.threads[thread].pid === pid));
  const gils = [...held.values()].sort((one, other) => other.ns - one.ns).slice(0, MOST_GILS);
  return gils.map(({ pid, process, groups }) => ({ name: held.size > 1 ? `GIL ${process} (${pid})` : "GIL", threads: threadsOf(pid), groups }));
}

// Of each pixel column the group whose threads, of these, held it longest; -1: nobody did.
export function holderColumns(recording, threads, columns) {
  const { start, duration, duration_ns: whole } = recording;
  const count = recording.groups.length;
  const perColumn = Math.max(whole, 1) / columns;
  const sums = new Float64Array(columns * count);
  recording.eachSpan(null, threads, (span, thread) => {
    if (!isHeld(recording, span)) return;
    const [from, to] = [start[span], start[span] + duration[span]];
    for (let column = Math.floor(from / perColumn); column < columns && column * perColumn < to; column++) {
      sums[column * count + recording.threads[thread].group] += Math.min(to, (column + 1) * perColumn) - Math.max(from, column * perColumn);
    }
  });
  return Array.from({ length: columns }, (_, column) => {
    const own = sums.subarray(column * count, (column + 1) * count);
    const most = Math.max(...own);
    return most > 0 ? own.indexOf(most) : -1;
  });
}

// [thread, span] of these threads that held it at a moment; null: none did.
export function holderAt(recording, threads, time) {
  for (const thread of threads) {
    const span = recording.firstAfter(thread, time);
    if (span < recording.begin[thread + 1] && recording.start[span] <= time && isHeld(recording, span)) return [thread, span];
  }
  return null;
}

// Nanoseconds of each time that it was held without a break, in no order, and the processes that have one.
export function holdLengths(recording, { window, threads }) {
  const { start, duration } = recording;
  const [found, processes] = [[], new Set()];
  let [holder, end] = [-1, 0];
  recording.eachSpan(window, threads, (span, thread) => {
    if (!isHeld(recording, span)) return;
    if (thread === holder && start[span] === end) found[found.length - 1] += duration[span];
    else found.push(duration[span]);
    [holder, end] = [thread, start[span] + duration[span]];
    processes.add(recording.threads[thread].pid);
  });
  return { lengths: found, processes };
}
