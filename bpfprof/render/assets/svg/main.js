// What a person does with the SVG: controls above the frames, what is known of one below them, keys, and the address.
import { byId, counted, make, onMenu, percent, time } from "../page/dom.js";
import { data, Graph, MARGIN, shows, SVG } from "./graph.js";

const root = document.documentElement;
const NAMES = { both: { times: "All", changes: "Both" }, cpu: "CPU", waits: "Waits", before: "Before", after: "After" };
const HINT = "Click a frame to zoom; ? shows the keys";
const KEYS = [
  ["click, Enter", "zoom; the frames above stand in the row of links"], ["arrows", "from frame to frame"], ["/", "search by regular expression"],
  ["n, N", "next and previous match"], ["c, right click", "copy the name of the frame"], ["C, Shift + right click", "copy its stack (in Firefox C alone)"], ["i", "idle time in or out"],
  ["a", "also code that starts and runs the program"], ["f", "root at the top or at the bottom"], ["Esc", "one step back: search, zoom, kind of time"],
];
const FIRST = { zoom: 0, open: false, show: "both", idle: false, all: false, flip: false, query: "" };

const graph = new Graph();
const state = { ...FIRST };
const ns = (value) => value * data.unit;
let current = 0; // the frame that the keyboard is on
let found = { ns: 0, found: [] };

// An HTML element in the SVG, as wide as the window.
function box(id, attributes) {
  const outer = document.createElementNS(SVG, "foreignObject");
  outer.setAttribute("id", id);
  const inner = make("div", attributes);
  outer.append(inner);
  root.append(outer);
  return { outer, inner };
}

const button = (id, name, title, act) => make("button", { type: "button", id, title, onclick: act }, name);

function makeTop() {
  const { outer, inner } = box("top", { class: "panel" });
  const input = make("input", { type: "search", id: "search", placeholder: "Search  /", spellcheck: "false", autocomplete: "off", "aria-label": "Search frames by regular expression" });
  const results = make("span", { class: "found", id: "found", role: "status" });
  const choice = make("span", { class: "choice", role: "group", "aria-label": "Time shown" });
  for (const show of Object.keys(shows)) {
    choice.append(button(`show-${show}`, NAMES[show][data.kind] ?? NAMES[show], "", () => change({ show })));
  }
  const idle = data.idle?.[0] > 0 && button("idle", `Idle ${time(ns(data.idle[0]))}`, "Waits of threads that have nothing to do", () => change({ idle: !state.idle }));
  const all = data.plumbing.includes(1) && button("all", "All frames", "Also code that starts and runs the program", () => change({ all: !state.all }));
  const flip = button("flip", "Flip", "Root at the bottom", () => change({ flip: !state.flip }));
  const info = button("info-open", "?", "Keys, colours, what was recorded", () => toggleInfo());
  info.setAttribute("aria-label", "About");
  const tools = make("div", { class: "row tools", role: "toolbar", "aria-label": "Flame graph" }, input, results, choice, idle, all, flip, info);
  const verdict = make("p", { class: "verdict", title: data.verdict }, data.verdict);
  const crumbs = make("nav", { class: "crumbs", "aria-label": "Frames above" });
  inner.append(make("div", { class: "row top" }, make("h1", { title: data.title }, data.title), tools), verdict, crumbs);
  input.addEventListener("input", () => change({ query: input.value }, true));
  return { outer, inner, input, results, verdict, crumbs };
}

function legend() {
  const chips = data.legend.map(([look, meaning]) => {
    const swatch = document.createElementNS(SVG, "svg");
    swatch.setAttribute("class", "swatch");
    const mark = swatch.appendChild(document.createElementNS(SVG, "rect"));
    for (const [name, value] of Object.entries({ width: 16, height: 12, class: look })) mark.setAttribute(name, value);
    return make("li", {}, swatch, meaning);
  });
  return make("ul", { class: "keys", "aria-label": "Colours and patterns" }, ...chips);
}

function makeBottom() {
  const { outer, inner } = box("bottom", { class: "panel bottom" });
  const told = make("p", { id: "told", role: "status" });
  const copies = [button("copy-name", "Copy name", "c", () => copy(false)), button("copy-stack", "Copy stack", "C", () => copy(true))];
  inner.append(legend(), make("div", { class: "row told" }, told, ...copies));
  return { outer, inner, told };
}

function makeInfo() {
  const { outer, inner } = box("info", { class: "panel info", role: "dialog", "aria-label": "About this picture", tabindex: "-1" });
  const keys = KEYS.flatMap(([key, what]) => [make("dt", {}, key), make("dd", {}, what)]);
  const list = (lines) => make("ul", {}, ...lines.map((line) => make("li", {}, line)));
  inner.append(
    make("h2", {}, "Keys"), make("dl", { class: "shortcuts" }, ...keys), make("h2", {}, "Colours and patterns"), legend(),
    make("h2", {}, "The recording"), list(data.about), button("info-close", "Close", "Esc", () => toggleInfo()),
  );
  outer.style.display = "none";
  return { outer, inner };
}

function toggleInfo() {
  const isOpen = info.outer.style.display === "none";
  info.outer.style.display = isOpen ? "" : "none";
  if (isOpen) {
    fit();
    info.inner.focus();
  }
}

const pageWidth = () => Math.max(root.clientWidth || window.innerWidth, 320);

// Where the frames begin, and how much room they have: above and below them stand two boxes that stay in the window.
function fit() {
  const width = pageWidth();
  root.setAttribute("width", width);
  for (const { outer, inner } of [top_, bottom]) {
    outer.setAttribute("width", width);
    outer.setAttribute("height", inner.offsetHeight || 64);
  }
  const wide = Math.min(width - 24, 620);
  info.outer.setAttribute("width", wide);
  info.outer.setAttribute("height", Math.max(window.innerHeight - 40, 100));
  info.outer.setAttribute("x", (width - wide) / 2);
  stick();
}

function stick() {
  const y = window.scrollY;
  top_.outer.setAttribute("y", y);
  bottom.outer.setAttribute("y", y + window.innerHeight - bottom.inner.offsetHeight);
  info.outer.setAttribute("y", y + 20);
}

function draw() {
  const margin = pageWidth() < 500 ? 4 : MARGIN;
  const inner = pageWidth() - 2 * margin;
  crumbs();
  fit();
  const [above, below] = [top_.inner.offsetHeight, bottom.inner.offsetHeight];
  const room = window.innerHeight - above - below - 4;
  graph.layOut(state, room, inner);
  const height = Math.max(graph.depth * graph.row, state.flip ? room : 0);
  graph.frames.setAttribute("x", margin);
  graph.frames.setAttribute("y", above + (state.flip ? height - graph.depth * graph.row : 0));
  graph.frames.setAttribute("width", inner);
  graph.frames.setAttribute("height", graph.depth * graph.row);
  root.setAttribute("height", Math.max(above + height + below + 4, window.innerHeight));
  graph.draw(inner);
  fit();
}

// The zoomed frame is the first below the links to those that are above it; without a zoom the verdict stands there.
function crumbs() {
  const isZoomed = state.zoom > 0;
  top_.verdict.hidden = isZoomed;
  top_.verdict.style.display = isZoomed ? "none" : "";
  top_.crumbs.style.display = isZoomed ? "" : "none";
  const path = graph.pathOf(state.zoom).filter((i) => i === state.zoom || state.all || !data.plumbing[i]);
  const link = (i) => {
    const made = button(i ? undefined : "reset", graph.labels[i].split(" (")[0], graph.labels[i], () => change({ zoom: i, open: false }));
    if (i === state.zoom) made.setAttribute("aria-current", "true");
    return made;
  };
  top_.crumbs.replaceChildren(...[0, ...path].map(link));
  top_.crumbs.scrollLeft = top_.crumbs.scrollWidth;
}

function details(i) {
  const { value, parent, zoom } = graph;
  const facts = [time(ns(value[i])), `${percent(value[i], value[0]) || "0%"} of all`];
  if (zoom && i !== zoom) facts.push(`${percent(value[i], value[zoom])} of the zoomed`);
  else if (i) facts.push(`${percent(value[i], value[parent[i]])} of its caller`);
  if (data.kind === "changes") {
    const more = data.after[i] - data.before[i];
    const part = data.before[i] ? `${more < 0 ? "−" : "+"}${percent(Math.abs(more), data.before[i])}` : "new";
    facts.push(`before ${time(ns(data.before[i]))}, after ${time(ns(data.after[i]))}`, more ? `${more < 0 ? "−" : "+"}${time(ns(Math.abs(more)))}, ${part}` : "the same");
    if (data.found[i]) facts.push("beyond noise");
  } else {
    if (state.show === "both") facts.push(`CPU ${time(ns(data.cpu[i]))}, waits ${time(ns(data.wait[i]))}`);
    if (data.samples[i] && state.show !== "waits") facts.push(counted(data.samples[i], "sample"));
    if (data.intervals[i] && state.show !== "cpu") facts.push(counted(data.intervals[i], "wait"));
  }
  if (graph.own[i] > 0.001 * value[i] && graph.own[i] < value[i]) facts.push(`${time(ns(graph.own[i]))} of its own`);
  return facts.join(" · ");
}

function tell(i) {
  if (i === undefined) {
    bottom.told.textContent = graph.value[0] > 0 ? HINT : "No time of this kind was recorded";
    return;
  }
  const facts = details(i);
  bottom.told.textContent = `${graph.labels[i]} — ${facts}`;
  bottom.told.title = bottom.told.textContent;
  graph.groups[i].querySelector("title").textContent = `${graph.labels[i]}\n${facts}`;
}

function search() {
  let pattern = null;
  let problem = "";
  try {
    pattern = state.query ? new RegExp(state.query, "i") : null;
  } catch {
    problem = "not a regular expression";
  }
  found = graph.search(pattern);
  top_.input.setAttribute("aria-invalid", String(problem !== ""));
  const of = state.zoom ? " of the zoomed" : "";
  const share = `${percent(found.ns, graph.value[state.zoom]) || "0%"}${of} · ${time(ns(found.ns))} · ${counted(found.found.length, "frame")}`;
  top_.results.textContent = problem || (pattern ? share : "");
}

function update() {
  graph.choose(state);
  if (!(graph.value[state.zoom] > 0)) state.zoom = 0;
  search();
  if (top_.input.value !== state.query) top_.input.value = state.query;
  for (const show of Object.keys(shows)) byId(`show-${show}`).setAttribute("aria-pressed", String(state.show === show));
  for (const key of ["idle", "all", "flip"]) byId(key)?.setAttribute("aria-pressed", String(state[key]));
  draw();
  point(graph.visible[current] ? current : state.zoom);
  tell(state.zoom || undefined);
}

// A change of the view; the address keeps it by the names of frames, so a view can be sent, and Back undoes a zoom.
function change(changes, isStep) {
  Object.assign(state, changes);
  const kept = new URLSearchParams();
  if (state.zoom) kept.set("zoom", graph.pathOf(state.zoom).map((i) => encodeURIComponent(graph.labels[i])).join("/"));
  for (const [key, first] of Object.entries(FIRST)) {
    if (key !== "zoom" && state[key] !== first) kept.set(key, state[key] === true ? "1" : state[key] === false ? "0" : state[key]);
  }
  history[isStep ? "replaceState" : "pushState"](null, "", `#${kept}`);
  update();
  if ("zoom" in changes || "flip" in changes) showRoot();
}

function readAddress() {
  const kept = new URLSearchParams(location.hash.slice(1));
  const names = (kept.get("zoom") ?? "").split("/").filter(Boolean);
  Object.assign(state, FIRST, { zoom: graph.frameOf(names.map(decoded)), query: kept.get("query") ?? "" });
  if (Object.hasOwn(shows, kept.get("show") ?? "")) state.show = kept.get("show");
  for (const key of ["idle", "all", "flip", "open"]) if (kept.has(key)) state[key] = kept.get(key) === "1";
  update();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function showRoot() {
  window.scrollTo(0, state.flip ? root.getBoundingClientRect().height : 0);
  stick();
}

// One frame at a time can be reached by Tab; arrow keys move from there.
function point(i) {
  graph.groups[current].removeAttribute("tabindex");
  current = i;
  graph.groups[i].setAttribute("tabindex", "0");
  graph.groups[i].setAttribute("role", "button");
}

function goTo(i) {
  if (i < 0 || i === undefined) return;
  point(i);
  graph.groups[i].focus({ preventScroll: true });
  const y = Number(graph.frames.getAttribute("y")) + graph.yOf(i);
  const [from, to] = [window.scrollY + top_.inner.offsetHeight, window.scrollY + window.innerHeight - bottom.inner.offsetHeight - graph.row];
  if (y < from || y > to) window.scrollTo(0, y - window.innerHeight / 3);
  tell(i);
}

function neighbour(key) {
  const { visible, level, count } = graph;
  if (key === (state.flip ? "ArrowUp" : "ArrowDown")) return visible.findIndex((is, i) => is && graph.above(i) === current);
  if (key === "ArrowUp" || key === "ArrowDown") return graph.above(current);
  const step = key === "ArrowRight" ? 1 : -1;
  const beside = [...Array(count).keys()].filter((i) => visible[i] && level[i] === level[current]).sort((one, other) => graph.left[one] - graph.left[other]);
  return beside[beside.indexOf(current) + step] ?? -1;
}

function nextMatch(by) {
  const matches = found.found.filter((i) => graph.visible[i]);
  if (matches.length) goTo(matches[(matches.indexOf(current) + by + matches.length + (by < 0 && matches.indexOf(current) < 0 ? 1 : 0)) % matches.length]);
}

function copy(isStack) {
  const path = [0, ...graph.pathOf(current)].map((i) => graph.labels[i]);
  const text = isStack ? path.slice(1).join("\n") : graph.labels[current];
  const say = (words) => (bottom.told.textContent = words);
  if (!navigator.clipboard) return say("The browser does not let the picture copy: select the name in this line");
  navigator.clipboard.writeText(text).then(() => say(`copied: ${text.split("\n").join("; ")}`), () => say("The browser did not let the picture copy"));
}

function back(isTyping) {
  if (info.outer.style.display !== "none") toggleInfo();
  else if (state.query) change({ query: "" }, true);
  else if (isTyping) top_.input.blur();
  else if (state.zoom) change({ zoom: 0, open: false });
  else if (state.show !== "both") change({ show: "both" });
}

function onKey(event) {
  const isTyping = document.activeElement === top_.input;
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    top_.input.focus();
    top_.input.select();
  } else if (event.key === "Escape") back(isTyping);
  else if (isTyping && event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
  else if (!isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) onPlainKey(event);
}

function onPlainKey(event) {
  const acts = {
    n: () => nextMatch(1), N: () => nextMatch(-1), c: () => copy(false), C: () => copy(true), "?": toggleInfo,
    i: () => byId("idle") && change({ idle: !state.idle }), a: () => change({ all: !state.all }), f: () => change({ flip: !state.flip }),
  };
  const isOnFrame = graph.groups[current] === document.activeElement;
  if (isOnFrame && (event.key === "Enter" || event.key === " ")) zoom(current);
  else if (isOnFrame && event.key.startsWith("Arrow")) goTo(neighbour(event.key));
  else if (Object.hasOwn(acts, event.key)) acts[event.key]();
  else return;
  event.preventDefault();
}

// A click on folded frames shows them all.
function zoom(i) {
  const isFold = graph.runs[i] > 0;
  change({ zoom: i, open: isFold });
  point(i);
  graph.groups[i].focus({ preventScroll: true });
}

const indexOf = new Map(graph.groups.map((group, index) => [group, index]));
const frameAt = (event) => indexOf.get(event.target.closest?.("#frames > g"));

root.setAttribute("data-scripted", "");
root.prepend(make("meta", { name: "viewport", content: "width=device-width, initial-scale=1" })); // else phones show it small
if (!(data.cpu ? data.cpu[0] + data.wait[0] : 1) && data.idle?.[0]) FIRST.idle = true; // there is nothing else
const top_ = makeTop();
const bottom = makeBottom();
const info = makeInfo();
graph.frames.addEventListener("click", (event) => {
  const i = frameAt(event);
  if (i !== undefined) zoom(i);
});
onMenu(graph.frames, (event, by) => {
  const i = by === "key" ? current : frameAt(event);
  if (i === undefined) return;
  event.preventDefault();
  point(i);
  if (by === "touch") tell(i); // who only looks keeps what was copied before
  else copy(event.shiftKey && by !== "key"); // Shift + F10 is a key for menus
});
graph.frames.addEventListener("mouseover", (event) => {
  const i = frameAt(event);
  tell(i ?? (state.zoom || undefined));
});
graph.frames.addEventListener("focusin", (event) => tell(frameAt(event)));
graph.frames.addEventListener("mouseleave", () => tell(state.zoom || undefined));
document.addEventListener("keydown", onKey);
window.addEventListener("scroll", stick);
window.addEventListener("resize", draw);
window.addEventListener("popstate", readAddress);
readAddress();
showRoot();
