// Looks at modules of the pages that need no browser.
//
// node parts.mjs PART [CASES]: a name of PARTS; JSON. Prints "ok" and exits with 0, or fails with what is wrong.
import assert from "node:assert/strict";

globalThis.matchMedia = () => ({ matches: false });
const assets = new URL("../../bpfprof/render/assets/", import.meta.url);
const module = (path) => import(new URL(path, assets).href);

// As data.js has it: spans are [thread, start, duration, flags], by thread and time.
async function recordingOf(threads, spans, more = {}) {
  const { Recording } = await module("page/data.js");
  const column = (place) => Float64Array.from(spans, (span) => span[place]);
  const begin = [0, ...threads.map((_, thread) => spans.filter(([of]) => of <= thread).length)];
  const made = { threads, groups: ["one", "other"], duration_ns: 100, begin, start: column(1), duration: column(2), flags: column(3), weight: column(2), ...more };
  return Object.assign(Object.create(Recording.prototype), made);
}

// A chain of frames, the last of which takes all the time; at some of them a third goes to a frame of its own.
async function graphOf(looks, branches) {
  const parent = looks.map((_, i) => i - 1);
  const value = [900];
  for (let i = 1; i < looks.length; i++) value.push(branches.includes(i - 1) ? (value[i - 1] * 2) / 3 : value[i - 1]);
  looks = [...looks];
  for (const at of branches) {
    parent.push(at);
    value.push(value[at] / 3);
    looks.push("library");
  }
  const zeros = () => new Uint8Array(parent.length);
  globalThis.document = { getElementById: () => ({ textContent: JSON.stringify({ kind: "times", parent: [-1], plumbing: [0] }) }) };
  const { Graph } = await module("svg/graph.js");
  const made = { parent, value, looks, count: parent.length, own: value.map(() => 0), left: Array(parent.length).fill(0), level: new Int32Array(parent.length) };
  for (const name of ["inside", "hidden", "folded", "visible", "hit"]) made[name] = zeros();
  return Object.assign(Object.create(Graph.prototype), made, { runs: new Uint32Array(parent.length), runOf: new Int32Array(parent.length) });
}

const HELD = 2;
const PROCESSES = [[7, 0], [7, 1], [8, 0], [9, 1]].map(([pid, group]) => ({ pid, process: "python", group }));
// Two processes hold theirs at the same time; of the third no thread holds one.
const HOLDS = [[0, 0, 10, HELD], [0, 10, 10, 0], [0, 20, 10, HELD], [0, 30, 5, HELD], [1, 10, 10, HELD], [2, 0, 90, HELD], [3, 0, 100, 0]];

const PARTS = {
  async "the GIL of each process"() {
    const { gilsOf, holderAt, holderColumns, holdLengths } = await module("page/gil.js");
    const recording = await recordingOf(PROCESSES, HOLDS);
    const gils = gilsOf(recording);
    assert.deepEqual(gils.map(({ name, threads, groups }) => [name, [...threads], [...groups].sort()]), [
      ["GIL python (8)", [2], [0]],
      ["GIL python (7)", [0, 1], [0, 1]],
    ]);
    assert.deepEqual(gils.map(({ threads }) => holderColumns(recording, threads, 10)), [
      [0, 0, 0, 0, 0, 0, 0, 0, 0, -1],
      [0, 1, 0, 0, -1, -1, -1, -1, -1, -1],
    ]);
    assert.deepEqual(gils.map(({ threads }) => holderAt(recording, threads, 15)), [[2, 5], [1, 4]]);
    assert.equal(holderAt(recording, gils[1].threads, 50), null);
    const { lengths, processes } = holdLengths(recording, { window: null, threads: null });
    assert.deepEqual([lengths.sort((one, other) => one - other), [...processes]], [[10, 10, 15, 90], [7, 8]]);
  },
  async "the GIL of the only process that held one"() {
    const { gilsOf } = await module("page/gil.js");
    const recording = await recordingOf(PROCESSES, HOLDS.filter(([thread]) => thread < 2));
    assert.deepEqual(gilsOf(recording).map(({ name }) => name), ["GIL"]);
  },
  async "no GIL where time and what it was spent in are apart"() {
    const { gilsOf } = await module("page/gil.js");
    assert.deepEqual(gilsOf(await recordingOf(PROCESSES, HOLDS, { is_apart: true })), []);
  },
  async "GILs of many processes"() {
    const { gilsOf } = await module("page/gil.js");
    const many = [...Array(9).keys()];
    const recording = await recordingOf(many.map((pid) => ({ pid, process: "python", group: 0 })), many.map((thread) => [thread, 0, 10 + thread, HELD]));
    assert.deepEqual(gilsOf(recording).map(({ name }) => name), [8, 7, 6, 5].map((pid) => `GIL python (${pid})`));
  },
  async "the lock that a wait is for"() {
    const { waitedLock } = await module("page/details.js");
    const numbers = ["waiting: lock #1, taken in audit (app.py:30)", "waiting: file-lock #12", "waiting: lock", "woken by thread worker #1", "waiting: disk, woken by #3"].map(waitedLock);
    assert.deepEqual(numbers, [1, 12, 0, 0, 0]);
  },
  async "what an editor is asked for"() {
    const { editorAddress } = await module("page/details.js");
    const address = (path, exact = true) => editorAddress({ path, exact }, 7);
    assert.equal(address("/srv/my app/what?#1.py"), "vscode://file/srv/my%20app/what%3F%231.py:7");
    assert.equal(editorAddress({ path: "/a.py", exact: true }, 0), "vscode://file/a.py:1");
    for (const path of ["//host/share/a.py", "/\\host/a.py", "/", "a.py", "<string>", ""]) assert.equal(address(path), "");
    assert.equal(address("/srv/a?b.py", false), "");
  },
  // Each frame of a chain has the look and the share of its caller's time that are given; wanted: how many are drawn.
  async "no more frames are folded than must be"() {
    const folds = async (looks, rows, branches = []) => {
      const graph = await graphOf(looks, branches);
      graph.layOut({ zoom: 0, all: true, open: false, flip: false }, 13 * rows, 1000);
      const found = [...graph.runs].flatMap((count, i) => (count ? [[i, count]] : []));
      return [graph.depth, ...found];
    };
    const library = (count) => Array(count).fill("library");
    assert.deepEqual(await folds(["base", ...library(51)], 52), [52]);
    assert.deepEqual(await folds(["base", ...library(51)], 49), [49, [1, 4]]);
    // Short runs are shown: only as much of the long one is folded as is missing.
    assert.deepEqual(await folds(["base", ...library(4), "wait", ...library(20), "wait", ...library(4), "wait"], 28), [28, [6, 5]]);
    // A frame that calls two that take time keeps them apart as long as there are others to fold.
    assert.deepEqual(await folds(["base", ...library(10), "wait", ...library(10), "wait"], 20, [1, 2, 3, 4, 5, 6, 7, 8, 9]), [20, [12, 4]]);
    // Below a level that has room nothing is folded.
    assert.deepEqual(await folds(["base", ...library(10)], 4), [4, [1, 8]]);
  },
  async "labels are cut by their width"() {
    await graphOf(["base"], []);
    const { cutTo, widthOf } = await module("svg/graph.js");
    // As columns.py has them.
    const cases = JSON.parse(process.argv[3]);
    assert.deepEqual(cases.map(([text]) => widthOf(text)), cases.map(([, width]) => width));
    assert.deepEqual(cases.map(([text]) => cutTo(text, 6)), cases.map(([, , cut]) => cut));
  },
  async "of a line the frame with most time"() {
    const { lineTimes } = await module("page/source.js");
    const frames = { file: [0, 0, 0], line: [5, 5, 6] };
    const spans = [[0, 0, 10, HELD], [0, 10, 30, 0], [0, 40, 15, 0], [0, 55, 5, 0]];
    const recording = await recordingOf(PROCESSES, spans, { frames, place: [0, 1, 0, 2], placeOwner: [1, 2, 3], kind: [0, 1, 1, 0] });
    const { lines, all } = lineTimes(recording, { window: null, threads: null }).get(0);
    assert.deepEqual([[...lines], all], [[[5, [10, 45, 10, 1]], [6, [5, 0, 0, 2]]], 60]);
  },
  async "the axis of a timeline without rows has the colour of text"() {
    const { Timeline } = await module("page/timeline.js");
    const { ink } = await module("page/look.js");
    const colors = [];
    const context = { measureText: () => ({ width: 10 }), fillText: () => colors.push(context.fillStyle), fillRect: () => colors.push(context.fillStyle) };
    const timeline = Object.assign(Object.create(Timeline.prototype), { recording: { duration_ns: 1e9 }, width: 400, height: 16 });
    timeline.drawAxis(context);
    assert.deepEqual([...new Set(colors)], [ink()]);
  },
  async "what a menu is asked for by"() {
    const { onMenu } = await module("page/dom.js");
    const target = new EventTarget();
    const found = [];
    onMenu(target, (event, by) => found.push([event.type, by]));
    for (const pointerType of ["touch", "mouse", ""]) {
      target.dispatchEvent(pointerType ? Object.assign(new Event("pointerdown"), { pointerType }) : new Event("keydown"));
      target.dispatchEvent(new Event("contextmenu"));
    }
    assert.deepEqual(found, [["contextmenu", "touch"], ["contextmenu", "mouse"], ["contextmenu", "key"]]);
  },
};

await PARTS[process.argv[2]]();
console.log("ok");
