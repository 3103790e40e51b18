// The page of two recordings: a signed flame graph, a table of functions, and what was compared.
import { Recording, unpackedOf } from "./data.js";
import { byId, make, percent, time } from "./dom.js";
import { Flame } from "./flame.js";
import { allColors, dark, dress, ink, setDark, usePalette } from "./look.js";
import { started, takeKey, wentBack } from "./shell.js";
import { table } from "./table.js";
import { change, onChange, readAddress, TABS, useChoices, view } from "./view.js";

const TAB_NAMES = { flame: "Flame", table: "Functions", quality: "Quality" };
const MODE_NAMES = { both: "Both", before: "Before", after: "After" };
const KEYS = [
  ["/", "search"], ["n, N", "next and previous match"], ["1 to 3", "tabs"], ["arrows, Enter", "walk the flame graph, zoom"], ["f", "root at the top or at the bottom"],
  ["c", "copy the name of the frame"], ["Esc", "one step back: search, zoom, side"], ["?", "this help"],
];
const LOOK_NAMES = { more: "▲ more time than before", less: "▼ less", "maybe-more": "▲ more, as may be by chance", "maybe-less": "▼ less, as may be by chance", same: "the same" };

// The tree of both; nodes have looks of their own.
class Changes extends Recording {
  readTimes() {
    this.kinds = [];
  }

  labelOf(node) {
    return node ? super.labelOf(node) : "all";
  }

  changeOf(node) {
    return this.change_looks[this.change[node]];
  }
}

// Times of nodes: before, after, or the mean of both.
class BothSums {
  constructor(recording) {
    this.recording = recording;
    this.value = new Float64Array(recording.nodeParent.length);
  }

  fill(mode) {
    const { before, after } = this.recording;
    for (let node = 0; node < this.value.length; node++) {
      this.value[node] = mode === "before" ? before[node] : mode === "after" ? after[node] : (before[node] + after[node]) / 2;
    }
  }

  timeOf(node) {
    return this.value[node];
  }

  ownOf(node) {
    const { firstChild, childCount } = this.recording;
    let ns = this.value[node];
    for (let child = firstChild[node]; child < firstChild[node] + childCount[node]; child++) ns -= this.value[child];
    return ns > this.value[node] * 1e-3 ? ns : 0;
  }
}

const LEAST_NS = 50; // less is from sums of rounded times
const signed = (ns) => (Math.abs(ns) > LEAST_NS ? `${ns > 0 ? "+" : "−"}${time(Math.abs(ns))}` : "0");
const part = (before, after) => (Math.abs(after - before) * 1e4 < before ? "the same" : before ? `${after < before ? "−" : "+"}${percent(Math.abs(after - before), before) || "0%"}` : "new");

class ChangesPage {
  constructor(recording) {
    this.recording = recording;
    this.sums = new BothSums(recording);
    this.flame = new Flame(recording, this.sums, (node) => this.details(node));
    for (const id of ["timeline", "badge"]) byId(id).hidden = true;
    byId("panel-waits").id = "panel-table";
    byId("panel-table").setAttribute("aria-labelledby", "tab-table");
    this.head();
    this.listen();
    readAddress();
    onChange((what) => this.changed(what));
    this.changed({ changed: Object.keys(view), isDone: true });
    this.details(this.flame.root);
  }

  head() {
    const { recording } = this;
    byId("title").textContent = recording.title;
    byId("facts").textContent = recording.basis;
    byId("facts").title = recording.basis;
    byId("verdict").append(make("p", { class: "sentence" }, recording.sentence));
    for (const [mode, name] of Object.entries(MODE_NAMES)) byId("modes").append(make("button", { type: "button", id: `mode-${mode}`, onclick: () => change({ mode }) }, name));
    TABS.forEach((tab, i) => {
      byId("tabs").append(make("button", { type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": `panel-${tab}`, title: `Key ${i + 1}`, onclick: () => change({ tab }) }, TAB_NAMES[tab]));
    });
    byId("flame-options").append(
      make("button", { type: "button", id: "option-all", title: "Also code that starts and runs the program", onclick: () => change({ all: !view.all }) }, "All frames"),
      make("button", { type: "button", id: "option-flip", title: "Root at the bottom", onclick: () => change({ flip: !view.flip }) }, "Flip"),
    );
    const keys = KEYS.map(([key, what]) => make("tr", {}, make("th", { scope: "row" }, make("kbd", {}, key)), make("td", {}, what)));
    byId("help").append(make("h2", {}, "Keys"), make("table", {}, make("tbody", {}, ...keys)), make("button", { type: "button", onclick: () => byId("help").close() }, "Close"));
    byId("help-open").addEventListener("click", () => byId("help").showModal());
    byId("theme").addEventListener("click", () => this.theme(!dark()));
    byId("panel-quality").append(make("h2", {}, "What was compared"), make("ul", { class: "lines" }, ...[recording.basis, "The width of a frame is the mean of before and after.", ...recording.quality].map((line) => make("li", {}, line))));
    this.legend();
    this.rows();
  }

  legend() {
    const used = new Set(this.recording.change);
    const chips = this.recording.change_looks.filter((_look, i) => used.has(i)).map((look) => {
      const box = make("span", { class: "swatch" });
      dress(box, look);
      return make("span", { class: "chip" }, box, LOOK_NAMES[look]);
    });
    byId("panel-flame").querySelector(".changes")?.remove();
    byId("panel-flame").prepend(make("div", { class: "changes" }, ...chips));
  }

  rows() {
    const figure = (name, key) => ({ name, number: true, value: (row) => row[key], text: (row) => (row[key] ? time(row[key] * 1e9) : "–") });
    const columns = [
      { name: "Function", wide: true, value: (row) => row.name, text: (row) => row.name },
      { name: "State", value: (row) => row.state, text: (row) => row.state },
      figure("Before", "before"), figure("After", "after"),
      { name: "Difference", number: true, value: (row) => Math.abs(row.difference), text: (row) => `${row.difference > 0 ? "▲ " : "▼ "}${signed(row.difference * 1e9)}` },
      { name: "Error", number: true, value: (row) => row.error, text: (row) => `±${time(row.error * 1e9)}` },
      { name: "Change", number: true, text: (row) => part(row.before, row.after) },
      { name: "Noise", value: (row) => Number(row.is_found) * 1e6 + Math.abs(row.difference), text: (row) => (row.is_found ? "beyond noise" : "") },
    ];
    const { rows } = this.recording;
    byId("panel-table").append(rows.length ? table({ caption: `Own time, ${this.recording.unit}`, columns, rows, sort: rows.some((row) => row.is_found) ? 7 : 4, onRow: (row) => this.goTo(row) }) : make("p", {}, "Nothing takes time enough to tell."));
  }

  goTo(row) {
    const { labels } = this.recording;
    let best = -1;
    for (let node = 1; node < this.sums.value.length; node++) {
      const frame = this.recording.frameOf(node);
      if (frame >= 0 && labels[frame] === row.name && (best < 0 || this.sums.value[node] > this.sums.value[best])) best = node;
    }
    if (best > 0) change({ tab: "flame", zoom: this.recording.pathOf(best) });
  }

  changed({ changed }) {
    if (changed.includes("mode")) {
      this.sums.fill(view.mode);
      this.flame.timesChanged();
    }
    if (changed.includes("all")) this.flame.timesChanged();
    for (const tab of TABS) {
      byId(`tab-${tab}`).setAttribute("aria-selected", String(tab === view.tab));
      byId(`panel-${tab}`).hidden = tab !== view.tab;
    }
    for (const id of ["source", "threads", "gil", "tree"]) byId(`panel-${id}`).hidden = true;
    for (const mode of Object.keys(MODE_NAMES)) byId(`mode-${mode}`).setAttribute("aria-pressed", String(view.mode === mode));
    for (const key of ["all", "flip"]) byId(`option-${key}`).setAttribute("aria-pressed", String(view[key]));
    if (document.activeElement !== byId("search")) byId("search").value = view.query;
    const root = this.recording.nodeOfPath(view.zoom);
    if (root !== this.flame.root || changed.includes("zoom")) {
      this.flame.setRoot(root);
      this.details(root);
    } else if (view.tab === "flame") this.flame.render();
    this.crumbs();
    this.search();
  }

  crumbs() {
    const nodes = [];
    for (let at = this.flame.root; at > 0; at = this.recording.nodeParent[at]) nodes.unshift(at);
    const crumb = (node) => make("button", { type: "button", class: "link", "aria-current": node === this.flame.root ? "true" : undefined, onclick: () => change({ zoom: this.recording.pathOf(node) }) }, node ? this.recording.frames.name[this.recording.frameOf(node)] : "all");
    byId("crumbs").replaceChildren(...[0, ...nodes].map(crumb));
    byId("crumbs").scrollLeft = byId("crumbs").scrollWidth;
  }

  search() {
    let pattern = null;
    let problem = "";
    try {
      pattern = view.query ? new RegExp(view.query, "i") : null;
    } catch {
      problem = "not a regular expression";
    }
    const found = this.flame.search(pattern);
    byId("found").textContent = problem || (found ? `${percent(found.ns, found.whole) || "0%"} · ${found.count} frames` : "");
    if (view.tab === "flame" && this.flame.width) this.flame.draw();
  }

  details(node) {
    const { before, after, frames } = this.recording;
    const frame = this.recording.frameOf(node);
    const row = this.recording.rows.find(({ name }) => frame >= 0 && name === this.recording.labels[frame]);
    byId("details").replaceChildren(
      make("h2", {}, frame >= 0 ? frames.name[frame] : "all"),
      make("p", { class: "where" }, frame >= 0 ? this.recording.whereOf(frame) : this.recording.unit),
      make("p", { class: "figures" }, `${signed(after[node] - before[node])}, ${part(before[node], after[node])}`),
      make("ul", { class: "lines" }, make("li", {}, `before ${time(before[node])}`), make("li", {}, `after ${time(after[node])}`), make("li", {}, LOOK_NAMES[this.recording.changeOf(node)])),
      ...(row ? [make("p", {}, `Its own time ${row.state === "CPU" ? "on a CPU" : "in waits"}, everywhere: ${signed(row.difference * 1e9)} ± ${time(row.error * 1e9)}${row.is_found ? ", beyond noise" : ""}`)] : []),
      make("section", { class: "copy" }, make("button", { type: "button", onclick: () => this.copy(this.recording.labelOf(node)) }, "Copy name"), make("button", { type: "button", onclick: () => this.copy(this.recording.pathOf(node).join("\n")) }, "Copy stack")),
    );
  }

  copy(text) {
    const say = (words) => (byId("found").textContent = words);
    navigator.clipboard?.writeText(text).then(() => say("copied"), () => say("the browser does not let the page copy"));
  }

  theme(isDark) {
    setDark(isDark);
    this.legend();
    this.flame.render();
  }

  listen() {
    window.addEventListener("popstate", () => readAddress());
    window.addEventListener("hashchange", () => readAddress());
    new ResizeObserver(() => view.tab === "flame" && this.flame.render()).observe(byId("flame"));
    byId("search").addEventListener("input", (event) => change({ query: event.target.value }, "typing"));
    document.addEventListener("keydown", (event) => this.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => this.theme(event.matches));
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
  }

  print(isPrinted) {
    if (isPrinted) this.wasDark = dark();
    this.theme(isPrinted ? false : this.wasDark);
  }

  key(event) {
    const own = { c: () => this.copy(this.recording.labelOf(this.flame.current)) };
    takeKey(event, this.flame, own, (isTyping) => {
      if (!wentBack(isTyping) && view.mode !== "both") change({ mode: "both" });
    });
  }
}

started(async () => {
  useChoices(["flame", "table", "quality"], ["both", "before", "after"]);
  const { head, columns } = await unpackedOf(byId("data").textContent);
  usePalette(head.palette);
  const recording = new Changes(head, columns);
  Object.assign(recording, { change: columns.change, before: columns.before, after: columns.after });
  return { page: new ChangesPage(recording), colors: allColors, ink };
});
