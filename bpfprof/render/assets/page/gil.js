// Who held the GIL: at each moment, and how long at a time.
import { BITS } from "./data.js";
import { dark } from "./look.js";

export const tint = (group) => `hsl(${(group * 137 + 25) % 360} 50% ${dark() ? 52 : 58}%)`;
const isHeld = ({ flags, duration }, span) => (flags[span] & BITS.holdsGil) !== 0 && duration[span] > 0;

// The groups of threads that held it.
export function holdingGroups(recording) {
  const found = new Set();
  recording.eachSpan(null, null, (span, thread) => isHeld(recording, span) && found.add(recording.threads[thread].group));
  return found;
}

// Of each pixel column the group that held it longest; -1: nobody did.
export function holderColumns(recording, columns) {
  const { start, duration, duration_ns: whole, threads } = recording;
  const count = recording.groups.length;
  const perColumn = Math.max(whole, 1) / columns;
  const sums = new Float64Array(columns * count);
  recording.eachSpan(null, null, (span, thread) => {
    if (!isHeld(recording, span)) return;
    const [from, to] = [start[span], start[span] + duration[span]];
    for (let column = Math.floor(from / perColumn); column < columns && column * perColumn < to; column++) {
      sums[column * count + threads[thread].group] += Math.min(to, (column + 1) * perColumn) - Math.max(from, column * perColumn);
    }
  });
  return Array.from({ length: columns }, (_, column) => {
    const own = sums.subarray(column * count, (column + 1) * count);
    const most = Math.max(...own);
    return most > 0 ? own.indexOf(most) : -1;
  });
}

// [thread, span] that held it at a moment; null: nobody did.
export function holderAt(recording, time) {
  for (let thread = 0; thread < recording.threads.length; thread++) {
    const span = recording.firstAfter(thread, time);
    if (span < recording.begin[thread + 1] && recording.start[span] <= time && isHeld(recording, span)) return [thread, span];
  }
  return null;
}

// Nanoseconds of each time that it was held without a break, in no order.
export function holdLengths(recording, { window, threads }) {
  const { start, duration } = recording;
  const found = [];
  let [holder, end] = [-1, 0];
  recording.eachSpan(window, threads, (span, thread) => {
    if (!isHeld(recording, span)) return;
    if (thread === holder && start[span] === end) found[found.length - 1] += duration[span];
    else found.push(duration[span]);
    [holder, end] = [thread, start[span] + duration[span]];
  });
  return found;
}
