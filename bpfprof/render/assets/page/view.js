// What is chosen: tab, kinds of time, part of the time, threads, zoom and search. The address holds it, so links and the
// back button work.

export let TABS = ["flame", "waits", "source", "threads", "gil", "tree", "quality"];
export let MODES = { all: [0, 1, 2, 3, 4, 5, 6, 7], cpu: [0], waits: [1, 2, 3, 4, 5, 6], gil: [2] };
const FIRST = {
  tab: "flame", mode: "all", window: null, group: "", zoom: [], query: "", idle: false, flip: false, all: false, file: "", invert: false, merge: "",
};
const FILTERS = ["window", "group", "idle", "invert", "merge"]; // spans have to be added up again
const TIMES = [...FILTERS, "mode"]; // and nodes, too

export const view = { ...FIRST };

// Other tabs, and other kinds of time, of which the first is shown first.
export function useChoices(tabs, modes) {
  TABS = tabs;
  MODES = Object.fromEntries(modes.map((mode) => [mode, []]));
  view.mode = FIRST.mode = modes[0];
}

const listeners = [];

export const onChange = (listener) => listeners.push(listener);

const REST_MS = 200;
const unwritten = new Set(); // what was changed since the address was written
let going = ""; // how
let resting = 0;

// how: "step", one for the back button; "typing" goes on until it rests, and then the address has it; "drag" goes on
// until a step ends it. Browsers let a page write its address some times a second only.
export function change(patch, how = "step") {
  if (how === "step" && going === "typing") wrote(false);
  const changed = differing(patch);
  Object.assign(view, patch);
  const all = new Set([...changed, ...unwritten]);
  if (!all.size) return;
  if (how === "step") {
    wrote(true);
    tell([...all]);
  } else if (changed.length) {
    for (const key of changed) unwritten.add(key);
    going = how;
    clearTimeout(resting);
    resting = setTimeout(rested, REST_MS);
    tell(changed, false);
  }
}

const differing = (patch) => Object.keys(patch).filter((key) => JSON.stringify(view[key]) !== JSON.stringify(patch[key]));

function rested() {
  const changed = [...unwritten];
  if (going === "typing") wrote(false);
  tell(changed);
}

function wrote(isStep) {
  clearTimeout(resting);
  unwritten.clear();
  going = "";
  write(isStep);
}

function tell(changed, isDone = true) {
  const filtered = changed.some((key) => FILTERS.includes(key));
  const timed = changed.some((key) => TIMES.includes(key));
  for (const listener of listeners) listener({ changed, filtered, timed, isDone });
}

function write(isStep) {
  if (location.protocol === "about:") return; // in a frame of a notebook it has no address of its own
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(view)) {
    if (JSON.stringify(value) === JSON.stringify(FIRST[key])) continue;
    if (key === "window") words.set("time", value.map((ns) => +(ns / 1e9).toFixed(6)).join("-"));
    else if (key === "zoom") words.set("zoom", value.map(encodeURIComponent).join("/"));
    else words.set(key, value === true ? "1" : value);
  }
  const hash = words.size ? `#${words}` : " ";
  const address = words.size ? hash : location.pathname + location.search;
  history[isStep ? "pushState" : "replaceState"](null, "", address);
}

export function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const found = { ...FIRST };
  if (TABS.includes(words.get("tab"))) found.tab = words.get("tab");
  if (Object.hasOwn(MODES, words.get("mode") ?? "")) found.mode = words.get("mode");
  const times = (words.get("time") ?? "").split("-").map((text) => parseFloat(text) * 1e9);
  if (times.length === 2 && times.every(Number.isFinite) && times[0] < times[1]) found.window = times;
  if (words.get("zoom")) found.zoom = words.get("zoom").split("/").map(decoded);
  for (const key of ["group", "query", "file", "merge"]) found[key] = words.get(key) ?? "";
  for (const key of ["idle", "flip", "all", "invert"]) found[key] = words.get(key) === "1";
  const changed = differing(found);
  clearTimeout(resting);
  unwritten.clear();
  going = "";
  Object.assign(view, found);
  if (changed.length) tell(changed);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
