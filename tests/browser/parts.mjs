// Looks at modules of the pages that need no browser.
//
// node parts.mjs PART: a name of PARTS. Prints "ok" and exits with 0, or fails with what is wrong.
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
};

await PARTS[process.argv[2]]();
console.log("ok");
