// The heat map of source lines: time of the innermost Python frame of each stack, by file and line.
import { BITS } from "./data.js";
import { make, percent, time } from "./dom.js";
import { change, view } from "./view.js";

const FILES = 60;

// Of each file its lines: [CPU, ready and waits, holding the GIL] in nanoseconds, and of its frames the one with most time.
export function lineTimes(recording, filter) {
  const { place, placeOwner, kind, flags, frames } = recording;
  const found = new Map();
  const ofFrame = new Float64Array(frames.line.length);
  recording.eachSpan(filter.window, filter.threads, (i, _thread, ns) => {
    const frame = placeOwner[place[i]] - 1;
    if (frame < 0 || flags[i] & BITS.idle || !ns) return;
    const file = frames.file[frame];
    if (!found.has(file)) found.set(file, { lines: new Map(), all: 0, cpu: 0 });
    const of = found.get(file);
    const line = frames.line[frame];
    if (!of.lines.has(line)) of.lines.set(line, [0, 0, 0, frame]);
    const times = of.lines.get(line);
    times[kind[i] === 0 ? 0 : 1] += ns;
    ofFrame[frame] += ns;
    if (ofFrame[frame] > ofFrame[times[3]]) times[3] = frame;
    if (kind[i] === 0 && flags[i] & BITS.holdsGil) times[2] += ns;
    of.all += ns;
  });
  return found;
}

export function sourcePanel(recording, filter, details) {
  const times = lineTimes(recording, filter);
  const known = recording.files.filter((file) => times.has(file.file)).map((file) => ({ ...file, ...times.get(file.file), stored: file.lines }));
  for (const file of known) file.times = times.get(file.file).lines;
  known.sort((one, other) => other.all - one.all);
  if (!known.length) return [make("p", {}, "No Python code in what is chosen.")];
  const whole = known.reduce((sum, file) => sum + file.all, 0);
  const chosen = known.find((file) => file.path === view.file) ?? known.find((file) => file.own && file.stored.length) ?? known.find((file) => file.stored.length) ?? known[0];
  const buttons = known.slice(0, FILES).map((file) => {
    const name = recording.frames.files[file.file];
    const bar = make("span", { class: "heatbar" });
    bar.style.width = `${(100 * file.all) / known[0].all}%`;
    return make(
      "li", {},
      make("button", { type: "button", "aria-pressed": String(file === chosen), title: file.path, onclick: () => change({ file: file.path }) },
        make("span", { class: "name" }, name), make("span", { class: "number" }, percent(file.all, whole)), bar),
    );
  });
  return [make("div", { class: "source" }, make("nav", { "aria-label": "Files by time" }, make("ul", { class: "files" }, ...buttons)), page(recording, chosen, details))];
}

function page(recording, file, details) {
  const most = Math.max(...[...file.times.values()].map((times) => times[0] + times[1]), 1);
  const head = make("div", { class: "line head" }, ...["CPU", "waits", "GIL held", "line", ""].map((name, i) => make("span", { class: i < 3 ? "number" : i === 3 ? "at" : "text" }, name)));
  const numbers = file.stored.length ? file.stored.map((_text, i) => i + 1) : [...file.times.keys()].sort((a, b) => a - b);
  const lines = numbers.map((number) => sourceLine(file, number, most, details));
  const why = file.stored.length ? null : make("p", { class: "aside" }, `The lines are not in this page: ${file.why}.`);
  const first = [...file.times].sort((one, other) => other[1][0] + other[1][1] - one[1][0] - one[1][1])[0][0];
  const text = make("div", { class: "lines-of-code", tabindex: "0", role: "region", "aria-label": `Source of ${recording.frames.files[file.file]}` }, head, ...lines);
  queueMicrotask(() => {
    const hot = lines[numbers.indexOf(first)];
    if (hot) text.scrollTop = Math.max(0, hot.offsetTop - text.clientHeight / 3);
  });
  return make("div", { class: "file" }, make("p", { class: "where" }, file.path), why, make("div", { class: "with-map" }, text, minimap(file, numbers, most, text, lines)));
}

// The number of a line that took time leads to the callers and callees of its function.
function sourceLine(file, number, most, details) {
  const times = file.times.get(number);
  const shown = (ns) => make("span", { class: "number" }, ns ? time(ns) : "");
  const show = () => {
    details.frame(0, times[3]);
    details.scrollTo();
  };
  const at = () => make("button", { type: "button", class: "link", title: "Callers and callees", onclick: show }, number ? String(number) : "?");
  const line = make("div", { class: times ? "line hot" : "line" }, ...(times ?? [0, 0, 0]).slice(0, 3).map(shown), make("span", { class: "at" }, times ? at() : String(number)), make("span", { class: "text" }, file.stored[number - 1] ?? ""));
  if (times) line.style.setProperty("--heat", `${Math.max(4, Math.round((50 * (times[0] + times[1])) / most))}%`);
  return line;
}

// Where in the file the time is; a click goes there.
function minimap(file, numbers, most, text, lines) {
  const map = make("div", { class: "minimap", "aria-hidden": "true" });
  for (const [number, times] of file.times) {
    const at = numbers.indexOf(number);
    if (at < 0) continue;
    const mark = make("i");
    mark.style.top = `${(100 * at) / numbers.length}%`;
    mark.style.opacity = Math.max(0.25, (times[0] + times[1]) / most);
    map.append(mark);
  }
  map.addEventListener("click", (event) => {
    const box = map.getBoundingClientRect();
    const line = lines[Math.floor(((event.clientY - box.top) / box.height) * lines.length)];
    if (line) text.scrollTop = line.offsetTop - text.clientHeight / 2;
  });
  return map;
}
