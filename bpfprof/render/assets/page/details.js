// The panel on one frame, one span or one wait: its time by kind, callers and callees, the lines around it.
import { byId, make, percent, time } from "./dom.js";
import { dress, KIND_NAMES } from "./look.js";
import { change, view } from "./view.js";

const MOST = 6;
const AROUND = 5; // lines of source

// The number of the lock that a wait is for, by its name; 0: there is none, or it is no wait.
export const waitedLock = (name) => Number(/^waiting: [\w-]+ #(\d+)/.exec(name)?.[1] ?? 0);

// For editors that take such addresses: VS Code and those made of it. "" of what is no path of this system: one that begins
// with two slashes may be of a share on another host.
export function editorAddress({ path, exact }, line) {
  if (!exact || !/^\/[^/\\]/.test(path)) return "";
  return `vscode://file${path.split("/").map(encodeURIComponent).join("/")}:${line || 1}`;
}

export class Details {
  constructor(recording, sums, flame) {
    this.recording = recording;
    this.sums = sums;
    this.flame = flame;
    this.box = byId("details");
  }

  // What is shown of a node, or of a frame wherever it is, again, after other time was chosen.
  refresh() {
    if (this.shownNode >= 0) this.node(this.shownNode);
    else if (this.copied >= 0) this.frame(0, this.copied);
  }

  // Where they stand below all else, as on a phone.
  scrollTo() {
    if (matchMedia("(max-width: 900px)").matches) this.box.scrollIntoView();
  }

  show(...parts) {
    this.copied = -1; // the frame whose name `c` copies, where it is not the one of the flame graph
    this.shownNode = -1;
    this.box.replaceChildren(...parts.filter(Boolean));
  }

  node(node) {
    const frame = this.recording.frameOf(node);
    if (frame < 0) this.group(node);
    else this.frame(node, frame);
    this.shownNode = node;
  }

  frame(node, frame) {
    const { recording, sums } = this;
    const { nodeParent } = recording;
    const wanted = recording.functionOf[frame];
    const below = new Uint8Array(nodeParent.length);
    const outermost = [];
    const callers = new Map();
    const callees = new Map();
    const at = (other) => recording.functionAt(other);
    const add = (map, other, ns) => map.set(other, (map.get(other) ?? 0) + ns);
    let own = 0;
    for (let other = 1; other < nodeParent.length; other++) {
      const ns = sums.timeOf(other);
      if (ns <= 0) continue;
      const parent = nodeParent[other];
      const isIt = at(other) === wanted;
      below[other] = isIt || below[parent] ? 1 : 0;
      if (isIt && !below[parent]) {
        outermost.push(other);
        add(callers, at(parent) < 0 ? -1 - parent : at(parent), ns);
      }
      if (at(parent) === wanted && !isIt) add(callees, at(other), ns);
      if (isIt) own += sums.ownOf(other);
    }
    // In an inverted tree a caller stands below what it calls.
    const isInverted = recording.shown === "inverted";
    if (isInverted) own = this.ownOf(wanted);
    const total = [...callers.values()].reduce((sum, ns) => sum + ns, 0);
    this.show(
      this.heading(frame),
      this.figures(total, own),
      this.kinds(sums.byKind(outermost)),
      this.holders(frame),
      this.list("Callers", isInverted ? callees : callers, total),
      this.list("Callees", isInverted ? callers : callees, total),
      this.source(frame),
      this.copyButtons(node, frame),
    );
    this.copied = frame;
  }

  ownOf(wanted) {
    const { firstChild, childCount } = this.recording;
    let ns = 0;
    for (let node = firstChild[0]; node < firstChild[0] + childCount[0]; node++) if (this.recording.functionAt(node) === wanted) ns += this.sums.timeOf(node);
    return ns;
  }

  group(node) {
    this.show(make("h2", {}, this.recording.labelOf(node)), this.figures(this.sums.timeOf(node), 0), this.kinds(this.sums.byKind([node])), node ? null : make("p", { class: "aside hint" }, "Choose a frame, a wait or a moment: its callers, its waits and its source stand here."));
  }

  heading(frame) {
    const { frames } = this.recording;
    return make("div", {}, make("h2", {}, frames.name[frame]), make("p", { class: "where" }, this.recording.whereOf(frame)));
  }

  figures(total, own) {
    const whole = this.sums.timeOf(0);
    if (!whole) return make("p", { class: "figures" }, "No time of this kind in what is chosen");
    const line = [`${time(total)}, ${percent(total, whole)} of all`];
    if (own) line.push(`${time(own)} of its own`);
    return make("p", { class: "figures" }, line.join(" · "));
  }

  kinds(ofKind) {
    const whole = ofKind.reduce((sum, ns) => sum + ns, 0);
    return bars(this.recording.kinds.map((kind, i) => [kind, ofKind[i]]).filter(([, ns]) => ns > 0), whole);
  }

  list(title, map, whole) {
    const rows = [...map].filter(([, ns]) => ns > 0).sort((one, other) => other[1] - one[1]);
    if (!rows.length) return null;
    const name = (key) => (key < 0 ? this.recording.labelOf(-1 - key) : this.recording.frames.name[key]);
    const items = rows.slice(0, MOST).map(([key, ns]) => make("li", {}, make("span", { class: "name" }, name(key)), make("span", { class: "number" }, percent(ns, whole))));
    return make("section", {}, make("h3", {}, title), make("ul", { class: "pairs" }, ...items));
  }

  // Of a wait for a lock who held that meanwhile, in the whole recording.
  holders(frame) {
    const { frames, labels, locks } = this.recording;
    const number = frames.mark[frame] >= 0 && waitedLock(frames.name[frame]);
    const lock = number && locks.find((known) => known.number === number);
    if (!lock || !lock.holders.length) return null;
    const rows = lock.holders.map(([who, at, ns]) => make("li", {}, make("span", { class: "name" }, at >= 0 ? `${who} in ${labels[at]}` : who), make("span", { class: "number" }, percent(ns, lock.ns))));
    return make("section", {}, make("h3", {}, `Held meanwhile by${isFiltered() ? ", in the whole recording" : ""}`), make("ul", { class: "pairs" }, ...rows));
  }

  source(frame) {
    const { frames, files } = this.recording;
    const file = files.find((known) => known.file === frames.file[frame]);
    const line = frames.line[frame];
    if (!file?.lines.length || !line || line > file.lines.length) return null;
    const first = Math.max(1, line - AROUND);
    const lines = file.lines.slice(first - 1, line + AROUND);
    const rows = lines.map((text, i) => make("div", { class: first + i === line ? "here" : undefined }, `${String(first + i).padStart(5)}  ${text}`));
    const go = make("button", { type: "button", class: "link", onclick: () => change({ tab: "source", file: file.path }) }, "whole file");
    return make("section", {}, make("h3", {}, "Source ", go), make("pre", { tabindex: "0", "aria-label": "Source" }, ...rows));
  }

  copyButtons(node, frame) {
    const button = (name, what) => make("button", { type: "button", onclick: () => this.copy(what()) }, name);
    const path = () => this.recording.pathOf(node).join("\n");
    const stack = node ? button("Copy stack", path) : null;
    return make("section", { class: "copy" }, button("Copy name", () => this.recording.labels[frame]), stack, button("Copy link", () => location.href), this.editorLink(frame));
  }

  editorLink(frame) {
    const { files, frames } = this.recording;
    const file = files.find((known) => known.file === frames.file[frame]);
    const address = file && editorAddress(file, frames.line[frame]);
    return address ? make("a", { href: address }, "Open in editor") : null;
  }

  copyCurrent() {
    const { labels } = this.recording;
    this.copy(this.copied >= 0 ? labels[this.copied] : this.recording.labelOf(this.flame.current));
  }

  copy(text) {
    const say = (words) => (byId("found").textContent = words);
    navigator.clipboard?.writeText(text).then(() => say("copied"), () => say("the browser does not let the page copy"));
  }

  span(thread, span) {
    const { recording } = this;
    if (span < 0) return;
    const node = recording.nodeOfSpan(span);
    const kind = recording.kinds[recording.kind[span]];
    const who = recording.threads[thread];
    const whole = recording.pathOf(node).slice(recording.baseCount ? 1 : 0);
    const path = (recording.shown === "inverted" ? whole : whole.reverse()).slice(0, 40);
    const holder = recording.holder[span] ? recording.threads[recording.holder[span] - 1]?.name : "";
    this.show(
      make("h2", {}, `${KIND_NAMES[kind]}, ${time(recording.duration[span])}`),
      make("p", { class: "where" }, `${who.name} (${who.tid}) at ${time(recording.start[span])}`),
      holder && make("p", {}, `the GIL was held by ${holder}`),
      make("h3", {}, "Stack, innermost first"),
      make("ol", { class: "stack" }, ...path.map((name) => make("li", {}, name))),
      make("section", { class: "copy" }, make("button", { type: "button", onclick: () => change({ tab: "flame", zoom: recording.pathOf(node) }) }, "Show in the flame graph")),
    );
  }

  wait(row) {
    const lengths = row.lengths ? `median ${time(row.lengths[0])}, p99 ${time(row.lengths[1])}, longest ${time(row.lengths[2])}` : "";
    this.show(
      make("h2", {}, row.name),
      make("p", { class: "figures" }, `${time(row.ns)} in ${row.count.toLocaleString("en")} waits`),
      make("p", {}, lengths),
      make("ul", { class: "lines" }, ...row.lines.map((line) => make("li", {}, line))),
    );
  }
}

// A bar for each of [kind, nanoseconds].
export function bars(parts, whole) {
  const lines = parts.map(([kind, ns]) => {
    const bar = make("span", { class: "fill" });
    dress(bar, kind);
    bar.style.width = `${(100 * ns) / whole}%`;
    return make("li", {}, make("span", { class: "name" }, KIND_NAMES[kind]), make("span", { class: "track" }, bar), make("span", { class: "number" }, time(ns)));
  });
  return make("ul", { class: "bars" }, ...lines);
}

export const isFiltered = () => Boolean(view.window || view.group);
