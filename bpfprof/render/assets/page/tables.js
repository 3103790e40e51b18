// The tabs that are tables: waits, threads, GIL, tree of calls, quality. Made when they are looked at.
import { BITS } from "./data.js";
import { bars, isFiltered } from "./details.js";
import { counted, make, percent, time } from "./dom.js";
import { holdLengths } from "./gil.js";
import { dress, KIND_NAMES } from "./look.js";
import { table } from "./table.js";
import { change } from "./view.js";

const TREE_PART = 0.01;
const TREE_MOST = 300;
const MATRIX = 12;

export const chip = (kind, text = KIND_NAMES[kind]) => {
  const box = make("span", { class: "swatch" });
  dress(box, kind);
  return make("span", { class: "chip" }, box, text);
};

const amount = (name, value, whole) => ({
  name, number: true, value, text: (row) => (value(row) ? time(value(row)) : "–"), title: whole,
});

export function waitsPanel(recording, filter, details) {
  const found = waitsIn(recording, filter);
  const part = (row) => found.get(row.function * 2 + +row.idle) ?? { ns: 0, count: 0 };
  const rows = recording.waits.map((row) => ({ ...row, ...(isFiltered() ? part(row) : {}) })).filter((row) => row.ns > 0);
  const whole = rows.reduce((sum, row) => sum + (row.idle ? 0 : row.ns), 0);
  const columns = [
    { name: "Where", wide: true, value: (row) => row.name, text: (row) => row.name },
    { name: "Mostly", node: (row) => chip(recording.kinds[row.kind], row.reasons[0][0]) },
    amount("Total", (row) => row.ns),
    { name: "Share", number: true, text: (row) => percent(row.ns, whole) },
    { name: "Waits", number: true, value: (row) => row.count, text: (row) => row.count.toLocaleString("en") },
    amount("Median", (row) => row.lengths?.[0] ?? 0, "Half of the waits are shorter"),
    amount("p99", (row) => row.lengths?.[1] ?? 0, "99% of the waits are shorter"),
    amount("Longest", (row) => row.lengths?.[2] ?? 0),
    { name: "Durations", node: (row) => histogram(row.buckets) },
  ];
  const list = (caption, chosen) =>
    chosen.length ? table({ caption, columns, rows: chosen, sort: 2, onRow: (row) => details.wait(row), rowLabel: (row) => `Details of ${row.name}` }) : null;
  const note = isFiltered() && make("p", { class: "aside" }, "Total and count are of the chosen part; durations are of the whole recording.");
  return [
    note,
    list("Waits by the function that waited", rows.filter((row) => !row.idle)) ?? make("p", {}, "No waits in what is chosen."),
    locksTable(recording),
    list("Idle: threads with nothing to do", rows.filter((row) => row.idle)),
  ];
}

// Of each function nanoseconds and number of waits in what is chosen, those that the table is of.
function waitsIn(recording, filter) {
  const found = new Map();
  if (!isFiltered()) return found;
  const { flags, place, placeFunction, count, start } = recording;
  recording.eachSpan(filter.window, filter.threads, (i, _thread, ns) => {
    if (!(flags[i] & BITS.inTable)) return;
    const key = placeFunction[place[i]] * 2 + +Boolean(flags[i] & BITS.inIdle);
    if (!found.has(key)) found.set(key, { ns: 0, count: 0 });
    const sum = found.get(key);
    sum.ns += ns;
    if (!filter.window || start[i] >= filter.window[0]) sum.count += count[i];
  });
  return found;
}

function locksTable(recording) {
  if (!recording.locks.length) return null;
  const where = (frame) => (frame >= 0 ? recording.labels[frame] : "not known");
  const columns = [
    { name: "Lock", value: (row) => row.number, text: (row) => `lock #${row.number}` },
    { name: "Wanted in", wide: true, text: (row) => where(row.frame) },
    amount("Waited", (row) => row.ns),
    { name: "Waits", number: true, value: (row) => row.count, text: (row) => row.count.toLocaleString("en") },
    { name: "Waiting threads", wide: true, text: (row) => row.waiters },
    {
      name: "Held by", wide: true,
      text: (row) => row.holders.slice(0, 2).map(([who, frame, ns]) => `${who}${frame >= 0 ? ` in ${where(frame)}` : ""} ${percent(ns, row.ns)}`).join("; "),
    },
  ];
  return table({ caption: `Locks${isFiltered() ? " (of the whole recording)" : ""}`, columns, rows: recording.locks, sort: 2 });
}

function histogram([, ...counts]) {
  const most = Math.max(...counts, 1);
  const columns = counts.map((count) => {
    const bar = make("i");
    bar.style.height = `${count ? Math.max(2, Math.round((14 * count) / most)) : 0}px`;
    return bar;
  });
  return make("span", { class: "spark", role: "img", "aria-label": `Histogram of ${counts.length} durations, each twice the one before` }, ...columns);
}

export function threadsPanel(recording, sums) {
  const { kinds, columns } = sums;
  const rows = recording.threads
    .map((thread, i) => ({ ...thread, ns: sums.ofThread.subarray(i * columns, (i + 1) * columns) }))
    .map((row) => ({ ...row, whole: row.ns.reduce((sum, ns) => sum + ns, 0) }))
    .filter((row) => row.whole > 0);
  const used = recording.kinds.map((_kind, i) => i).filter((i) => rows.some((row) => row.ns[i] > 0));
  const share = (name, i) => ({ name, number: true, value: (row) => row.ns[i], text: (row) => (row.ns[i] ? percent(row.ns[i], row.whole) : "–") });
  const several = new Set(rows.map((row) => row.pid)).size > 1;
  const cells = [
    { name: "Thread", wide: true, value: (row) => row.name, text: (row) => row.name },
    { name: "TID", number: true, value: (row) => row.tid, text: (row) => String(row.tid) },
    several && { name: "Process", value: (row) => row.process, text: (row) => `${row.process} (${row.pid})` },
    amount("Time", (row) => row.whole),
    ...used.map((i) => share(KIND_NAMES[recording.kinds[i]], i)),
    rows.some((row) => row.ns[kinds] > 0) && share("idle", kinds),
    { name: "Shares", node: (row) => strip(recording, row) },
  ].filter(Boolean);
  const roles = recording.roles.map((role) => make("li", {}, `${role.name}${role.threads.length > 1 ? ` ×${role.threads.length}` : ""}: ${role.mostly}`));
  return [
    table({ caption: counted(rows.length, "thread"), columns: cells, rows, sort: several ? 3 : 2, onRow: (row) => change({ group: recording.groups[row.group] }), rowLabel: (row) => `Only ${row.name}` }),
    make("h3", {}, "By role, of the whole recording"),
    make("ul", { class: "lines" }, ...roles.slice(0, 40)),
    ...concurrencyTable(recording),
  ];
}

function concurrencyTable({ concurrency }) {
  if (!concurrency) return [];
  const part = (name) => ({ name: "Share", number: true, text: (row) => (row[name] ? percent(row[name], concurrency.wall) : "–") });
  const columns = [
    { name: "Threads", text: (row) => row.name },
    amount("On a CPU", (row) => row.on_cpu), part("on_cpu"),
    amount("Runnable", (row) => row.runnable), part("runnable"),
  ];
  return [
    table({ caption: "How many threads ran at a time, of the whole recording", columns, rows: concurrency.rows }),
    make("ul", { class: "lines" }, ...concurrency.lines.map((line) => make("li", {}, line))),
  ];
}

function strip(recording, row) {
  const parts = [...row.ns].slice(0, recording.kinds.length).map((ns, i) => {
    const part = make("i");
    dress(part, recording.kinds[i]);
    part.style.width = `${(100 * ns) / row.whole}%`;
    return ns > 0 ? part : null;
  });
  return make("span", { class: "strip", "aria-hidden": "true" }, ...parts.filter(Boolean));
}

export function gilPanel(recording, filter) {
  const count = recording.groups.length;
  const waited = new Float64Array(count * (count + 1)); // holder 0: not known
  const gil = recording.kinds.indexOf("gil");
  recording.eachSpan(filter.window, filter.threads, (i, thread, ns) => {
    if (recording.kind[i] !== gil) return;
    const holder = recording.holder[i] ? recording.threads[recording.holder[i] - 1].group + 1 : 0;
    waited[recording.threads[thread].group * (count + 1) + holder] += ns;
  });
  const whole = waited.reduce((sum, ns) => sum + ns, 0);
  if (!whole) return [make("p", {}, "Nobody waited for a GIL in what is chosen."), holds(recording, filter)];
  const sumOf = (pick) => (number) => waited.reduce((sum, ns, at) => sum + (pick(at) === number ? ns : 0), 0);
  const best = (numbers, sum) => numbers.map((it) => [it, sum(it)]).filter(([, ns]) => ns > 0).sort((a, b) => b[1] - a[1]);
  const waiters = best([...Array(count).keys()], sumOf((at) => Math.floor(at / (count + 1))));
  const holders = best([...Array(count + 1).keys()], sumOf((at) => at % (count + 1)));
  return [
    make("p", { class: "figures" }, `${time(whole)} of waiting for the GIL. Rows wait, columns held it.`),
    matrix(recording, waited, waiters, holders, whole),
    holdersTable(recording),
    holds(recording, filter),
    recording.gil.convoys.length && make("p", { class: "aside" }, `While one thread waited, so many did on average: ${recording.gil.convoys.join(", ")}`),
  ];
}

// How long the GIL was held at a time; where alike spans are one it is not known.
function holds(recording, filter) {
  if (recording.bucket_ns) return null;
  const { lengths, processes } = holdLengths(recording, filter);
  if (!lengths.length) return null;
  lengths.sort((one, other) => one - other);
  const at = (part) => lengths[Math.floor(part * (lengths.length - 1))];
  const exponents = lengths.map((ns) => Math.floor(Math.log2(ns)));
  const buckets = new Array(exponents.at(-1) - exponents[0] + 1).fill(0);
  for (const exponent of exponents) buckets[exponent - exponents[0]]++;
  const whose = processes.size > 1 ? `The GILs of ${counted(processes.size, "process", "processes")} were` : "The GIL was";
  const told = `${whose} seen held ${counted(lengths.length, "time")}: median ${time(at(0.5))}, p99 ${time(at(0.99))}, longest ${time(at(1))}`;
  return make("p", { class: "holds" }, `${told}  `, histogram([0, ...buckets]));
}

function matrix(recording, waited, waiters, holders, whole) {
  const count = recording.groups.length;
  const name = (holder) => (holder ? recording.groups[holder - 1] : "not known");
  const shown = holders.slice(0, MATRIX);
  const most = Math.max(...waited);
  const head = make("tr", {}, make("th", { scope: "col" }, "Waiting thread"), ...shown.map(([holder]) => make("th", { scope: "col", class: "number" }, name(holder))), make("th", { scope: "col", class: "number" }, "All"));
  const lines = waiters.slice(0, MATRIX).map(([waiter, all]) => {
    const cells = shown.map(([holder]) => {
      const ns = waited[waiter * (count + 1) + holder];
      const cell = make("td", { class: "number heat" }, ns ? time(ns) : "–");
      cell.style.setProperty("--heat", `${Math.round((55 * ns) / most)}%`);
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row" }, recording.groups[waiter]), ...cells, make("td", { class: "number" }, time(all)));
  });
  const left = waiters.slice(MATRIX).reduce((sum, [, ns]) => sum + ns, 0);
  const caption = `Who waited for whom${left ? `; ${time(left)} of others, of ${time(whole)}, is not shown` : ""}`;
  const whole_ = make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...lines));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Who waited for whom" }, whole_);
}

function holdersTable(recording) {
  const columns = [
    { name: "Function", wide: true, text: (row) => (row.frame >= 0 ? recording.labels[row.frame] : "not known") },
    { name: "Thread", text: (row) => (row.group >= 0 ? recording.groups[row.group] : "a holder that is not known") },
    amount("GIL waits", (row) => row.ns),
  ];
  return table({ caption: `Functions that held the GIL while others waited${isFiltered() ? ", in the whole recording" : ""}`, columns, rows: recording.gil.holders, sort: 2 });
}

// The user's own code and what it calls first; the rest is folded into it.
export function treePanel(recording, sums, details) {
  const whole = sums.timeOf(0);
  const lines = [];
  const isOwn = (node) => {
    const frame = recording.frameOf(node);
    return frame < 0 || ["own", "mark"].includes(recording.looks[recording.frames.look[frame]]);
  };
  const hasOwn = recording.frames.look.some((look) => recording.looks[look] === "own");
  const collect = (nodes, called, found) => {
    for (const node of nodes) {
      const { firstChild, childCount } = recording;
      for (let child = firstChild[node]; child < firstChild[node] + childCount[node]; child++) {
        if (sums.timeOf(child) <= 0) continue;
        const key = recording.frameOf(child) < 0 ? -child : recording.functionOf[recording.frameOf(child)];
        const plumbing = recording.frameOf(child) >= 0 && recording.frames.plumbing[recording.frameOf(child)];
        if (!isOwn(child) && (hasOwn ? !called || plumbing : plumbing)) collect([child], called, found);
        else found.set(key, [...(found.get(key) ?? []), child]);
      }
    }
    return found;
  };
  const add = (nodes, level) => {
    const ns = nodes.reduce((sum, node) => sum + sums.timeOf(node), 0);
    if (ns < TREE_PART * whole || lines.length >= TREE_MOST || level > 60) return;
    const owned = isOwn(nodes[0]) && recording.frameOf(nodes[0]) >= 0;
    lines.push(treeLine(recording, sums, details, nodes, ns, level, whole));
    // Of library code only what it calls of the user's own.
    const found = [...collect(nodes, owned, new Map()).values()].map((list) => [list, list.reduce((sum, node) => sum + sums.timeOf(node), 0)]);
    for (const [list] of found.sort((one, other) => other[1] - one[1])) add(list, level + 1);
  };
  if (whole > 0) add([0], 0);
  return [
    make("p", { class: "aside" }, "Your own code and what it calls first, with a hundredth of the time or more."),
    make("div", { class: "scroll tree", tabindex: "0", role: "region", "aria-label": "Tree of calls" }, make("ul", {}, ...lines)),
  ];
}

function treeLine(recording, sums, details, nodes, ns, level, whole) {
  const frame = recording.frameOf(nodes[0]);
  const mark = frame >= 0 ? recording.frames.mark[frame] : -1;
  const name = frame >= 0 ? recording.frames.name[frame] : recording.labelOf(nodes[0]);
  const inside = mark >= 0 ? chip(recording.kinds[mark], name) : make("button", { type: "button", class: "link", onclick: () => (recording.shown === "inverted" && frame >= 0 ? details.frame(0, frame) : details.node(nodes[0])) }, name);
  const item = make(
    "li", { class: frame >= 0 && recording.looks[recording.frames.look[frame]] === "own" ? "own" : undefined },
    make("span", { class: "number" }, time(ns)), make("span", { class: "number share" }, percent(ns, whole)),
    make("span", { class: "call" }, inside, make("span", { class: "where" }, frame >= 0 ? recording.whereOf(frame) : "")),
  );
  item.lastChild.style.paddingLeft = `${level * 1.1}em`;
  item.style.setProperty("--level", level);
  return item;
}

export function qualityPanel(recording, sums) {
  const { quality } = recording;
  const alike = `Spans that are alike within ${time(recording.bucket_ns)} are one here, in their order but for that time; no time is lost by it.`;
  const apart = `There are too many stacks to show when each was seen. The timeline has each thread's time by state, in steps of ${time(recording.bucket_ns)}. In a part of the time, a stack with little time counts whole or not at all.`;
  const merged = recording.is_apart ? apart : recording.bucket_ns ? alike : "";
  const of = sums.ofThreads();
  const parts = recording.kinds.map((kind, i) => [kind, of[i]]).filter(([, ns]) => ns > 0);
  return [
    make("h2", {}, { whole: "The recording is whole", part: "A part is missing", unfinished: "The recording is unfinished" }[quality.level]),
    make("ul", { class: "lines" }, ...quality.lines.map((line) => make("li", {}, line))),
    merged && make("p", {}, merged),
    make("h3", {}, `Where the time of ${quality.threads} went${isFiltered() ? ", of the chosen part" : ""}`),
    bars(parts, parts.reduce((sum, [, ns]) => sum + ns, 0) || 1),
    of[sums.kinds] > 0 && make("p", {}, `and ${time(of[sums.kinds])} idle: threads that waited for work`),
    make("h3", {}, "The recording"),
    make("ul", { class: "lines" }, ...[recording.command, ...recording.facts, `made by bpfprof ${recording.version}`].filter(Boolean).map((fact) => make("li", {}, fact))),
  ];
}
