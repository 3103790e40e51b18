// Puts the page together: what is chosen goes to the parts that show it.
import { unpack } from "./data.js";
import { Details } from "./details.js";
import { byId, counted, make, percent, time } from "./dom.js";
import { Flame } from "./flame.js";
import { allColors, dark, ink, KIND_NAMES, lookColor, setDark, usePalette } from "./look.js";
import { started, takeKey, wentBack } from "./shell.js";
import { sourcePanel } from "./source.js";
import { Sums } from "./sums.js";
import { chip, gilPanel, qualityPanel, threadsPanel, treePanel, waitsPanel } from "./tables.js";
import { Timeline } from "./timeline.js";
import { change, MODES, onChange, readAddress, TABS, view } from "./view.js";

const TAB_NAMES = { flame: "Flame", waits: "Waits", source: "Source", threads: "Threads", gil: "GIL", tree: "Tree", quality: "Quality" };
const MODE_NAMES = { all: "All", cpu: "CPU", waits: "Waits", gil: "GIL" };
const KEYS = [
  ["/", "search"], ["n, N", "next and previous match"], ["1 to 7", "tabs"], ["arrows, Enter", "walk the flame graph, zoom; in the timeline move the chosen part"],
  ["f", "root at the top or at the bottom"], ["c", "copy the name of the frame"], ["right click", "the details of a frame, without a zoom"], ["i", "idle time in or out"], ["v", "inverted: from what ran or waited to its callers"], ["Esc", "one step back: search, zoom, threads, time, kind"], ["?", "this help"],
];

class Page {
  constructor(recording) {
    this.recording = recording;
    this.sums = new Sums(recording);
    this.flame = new Flame(recording, this.sums, (node) => this.details.node(node));
    this.details = new Details(recording, this.sums, this.flame);
    this.timeline = new Timeline(recording, (thread, span, isClick) => this.span(thread, span, isClick));
    this.details.shownNode = 0;
    this.drawn = new Set(); // tabs that show what is chosen
    this.head();
    this.verdict();
    this.tabs();
    this.flameOptions();
    this.help();
    this.legend();
    this.listen();
    readAddress();
    // On a phone one thread at a time, first the one that worked most.
    if (this.flame.isNarrow && !location.hash && recording.groups.length > 1) {
      view.zoom = recording.groups.slice(0, 1);
      this.details.shownNode = recording.nodeOfPath(view.zoom);
    }
    onChange((what) => this.changed(what));
    this.changed({ changed: Object.keys(view), filtered: true, timed: true, isDone: true });
  }

  filter() {
    const threads = view.group ? new Set(this.timeline.groupThreads()) : null;
    return { window: view.window, threads, withIdle: view.idle };
  }

  shownTree() {
    const kind = view.invert ? "inverted" : view.merge === "none" ? "threads" : view.merge === "all" ? "all" : "groups";
    if (kind === this.recording.shown) return;
    this.recording.show(kind);
    this.sums.treeChanged();
    this.flame.root = this.flame.current = 0;
    this.details.node(0);
  }

  // isDone: nothing that goes on, like a drag; what takes time waits for it.
  changed({ changed, filtered, timed, isDone }) {
    if (filtered) this.shownTree();
    if (filtered) this.sums.choose(this.filter());
    if (timed) {
      this.sums.fill(MODES[view.mode]);
      this.flame.timesChanged();
      this.drawn.clear();
      this.isStale = true;
    }
    if (changed.includes("all")) this.flame.timesChanged();
    if (changed.includes("file")) this.drawn.delete("source");
    this.controls();
    if (isDone || changed.includes("tab")) this.showTab();
    if (this.timeline.shown) this.timeline.draw();
    else this.timeline.render();
    const root = this.recording.nodeOfPath(view.zoom);
    if (root !== this.flame.root || changed.includes("zoom")) this.flame.setRoot(root);
    else if (view.tab === "flame") this.flame.render();
    if (isDone) this.crumbs();
    if (this.isStale && isDone) {
      this.isStale = false;
      this.details.refresh();
    }
    if ((timed && isDone) || changed.includes("query") || changed.includes("zoom")) this.search();
  }

  head() {
    const { recording } = this;
    byId("title").textContent = recording.title;
    byId("title").title = recording.command;
    const facts = [...recording.facts.slice(0, 2), recording.filter && `only ${recording.filter}`].filter(Boolean);
    byId("facts").textContent = facts.join(" · ");
    byId("facts").title = recording.facts.join(", ");
    const badge = byId("badge");
    badge.className = recording.quality.level;
    badge.textContent = { whole: "✓ whole", part: `! ${recording.quality.word}`, unfinished: "✗ UNFINISHED" }[recording.quality.level];
    badge.addEventListener("click", () => change({ tab: "quality" }));
    for (const [mode, name] of Object.entries(MODE_NAMES)) {
      byId("modes").append(make("button", { type: "button", id: `mode-${mode}`, onclick: () => change({ mode }) }, name));
    }
    byId("theme").addEventListener("click", () => this.theme(!dark()));
  }

  verdict() {
    const { verdict, places } = this.recording;
    const box = byId("verdict");
    box.append(...verdict.deadlocks.map((line) => make("p", { class: "alarm" }, line)));
    box.append(make("p", { class: "sentence" }, verdict.sentence));
    const row = make("p", { class: "aside" });
    if (verdict.advice) row.append(make("span", {}, `Try: ${verdict.advice}. `));
    row.append(make("span", {}, `Shares are ${verdict.whole}.`));
    box.append(row);
    const links = places.filter((place) => place.frame >= 0).slice(0, 4).map((place) => {
      const label = this.recording.labels[place.frame];
      const ns = place.cpu + place.ready + place.wait;
      return make("button", { type: "button", class: "place", onclick: () => this.goTo(place.frame) }, make("span", { class: "name" }, label), make("span", { class: "number" }, `${time(ns)}${place.mostly ? ` ${place.mostly}` : ""}`));
    });
    if (links.length) box.append(make("div", { class: "places", role: "group", "aria-label": "Where most of the time is" }, ...links));
    box.append(...verdict.unread.map((line) => make("p", { class: "aside" }, line)));
  }

  // Zooms to the node of a function with most time.
  goTo(frame) {
    const { recording, sums } = this;
    const wanted = recording.functionOf[frame];
    let best = -1;
    for (let node = 1; node < recording.nodeParent.length; node++) {
      if (recording.functionAt(node) === wanted && (best < 0 || sums.timeOf(node) > sums.timeOf(best))) best = node;
    }
    if (best < 0 || !sums.timeOf(best)) return;
    change({ tab: "flame", zoom: recording.pathOf(best) });
    this.details.node(best);
  }

  tabs() {
    const list = byId("tabs");
    TABS.forEach((tab, i) => {
      const button = make("button", { type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": `panel-${tab}`, title: `Key ${i + 1}`, onclick: () => change({ tab }) }, TAB_NAMES[tab]);
      list.append(button);
    });
    list.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = TABS[(TABS.indexOf(view.tab) + by + TABS.length) % TABS.length];
      change({ tab: next });
      byId(`tab-${next}`).focus();
      event.preventDefault();
    });
  }

  showTab() {
    for (const tab of TABS) {
      const isChosen = tab === view.tab;
      byId(`tab-${tab}`).setAttribute("aria-selected", String(isChosen));
      byId(`tab-${tab}`).tabIndex = isChosen ? 0 : -1;
      byId(`panel-${tab}`).hidden = !isChosen;
    }
    const chosen = byId(`tab-${view.tab}`);
    byId("tabs").scrollLeft = chosen.offsetLeft - byId("tabs").offsetLeft - 60;
    if (view.tab === "flame" || this.drawn.has(view.tab)) return;
    const { recording, sums } = this;
    const panels = {
      waits: () => waitsPanel(recording, this.filter(), this.details),
      source: () => sourcePanel(recording, this.filter(), this.details),
      threads: () => threadsPanel(recording, sums),
      gil: () => gilPanel(recording, this.filter()),
      tree: () => this.treePanel(),
      quality: () => qualityPanel(recording, sums),
    };
    byId(`panel-${view.tab}`).replaceChildren(...panels[view.tab]().filter(Boolean));
    this.drawn.add(view.tab);
  }

  // Calls from the outermost to the innermost, also where the flame graph is inverted.
  treePanel() {
    if (!view.invert) return treePanel(this.recording, this.sums, this.details);
    this.recording.show("groups");
    const sums = new Sums(this.recording);
    sums.choose(this.filter());
    sums.fill(MODES[view.mode]);
    const panel = treePanel(this.recording, sums, this.details);
    this.recording.show("inverted");
    return panel;
  }

  flameOptions() {
    const choose = make("select", { id: "option-merge", "aria-label": "Threads in the flame graph" });
    const several = this.recording.threads.length > this.recording.groups.length;
    const names = { "": several ? "Threads by role" : "Each thread", ...(several ? { none: "Each thread" } : {}), all: "All threads as one" };
    choose.append(...Object.entries(names).map(([value, name]) => make("option", { value }, name)));
    choose.addEventListener("change", () => change({ merge: choose.value, invert: false, zoom: [] }));
    const option = (id, name, title, key) => make("button", { type: "button", id, title, onclick: () => change({ [key]: !view[key] }) }, name);
    if (this.recording.threads.length > 1) byId("flame-tools").prepend(choose);
    byId("flame-options").append(
      option("option-idle", "Idle", "Waits of threads that have nothing to do", "idle"),
      option("option-all", "All frames", "Also code that starts and runs the program", "all"),
      make("button", { type: "button", id: "option-invert", title: "From what ran or waited to its callers, all threads as one", onclick: () => this.invert() }, "Inverted"),
      option("option-flip", "Flip", "Root at the bottom", "flip"),
    );
  }

  invert() {
    change({ invert: !view.invert, zoom: [] });
  }

  controls() {
    for (const mode of Object.keys(MODE_NAMES)) byId(`mode-${mode}`).setAttribute("aria-pressed", String(view.mode === mode));
    for (const key of ["idle", "all", "invert", "flip"]) byId(`option-${key}`).setAttribute("aria-pressed", String(view[key]));
    const idle = this.sums.ofThreads()[this.sums.kinds];
    byId("option-idle").textContent = idle > 0 ? `Idle ${time(idle)}` : "Idle";
    byId("option-idle").hidden = !(idle > 0);
    if (byId("option-merge")) byId("option-merge").value = view.invert ? "all" : view.merge;
    const told = this.timeline.told();
    const all = make("button", { type: "button", class: "link", id: "choose-all", onclick: () => change({ window: null, group: "" }) }, "show all");
    byId("chosen").replaceChildren(...(told ? [`only ${told} `, all] : ["drag to choose a part"]));
    byId("chosen").className = told ? "on" : "";
    if (document.activeElement !== byId("search")) byId("search").value = view.query;
  }

  crumbs() {
    const nodes = [];
    for (let at = this.flame.root; at > 0; at = this.recording.nodeParent[at]) nodes.unshift(at);
    const crumb = (node) => {
      const frame = this.recording.frameOf(node);
      const name = frame >= 0 ? this.recording.frames.name[frame] : this.recording.labelOf(node);
      return make("button", { type: "button", class: "link", "aria-current": node === this.flame.root ? "true" : undefined, onclick: () => change({ zoom: this.recording.pathOf(node) }) }, name);
    };
    const shown = nodes.filter((node) => view.all || !this.recording.frames.plumbing[this.recording.frameOf(node)] || node === this.flame.root);
    byId("crumbs").replaceChildren(crumb(0), ...shown.map(crumb));
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
    byId("search").setAttribute("aria-invalid", String(Boolean(problem)));
    const found = this.flame.search(pattern);
    byId("found").textContent = problem || (found ? `${percent(found.ns, found.whole) || "0%"} · ${counted(found.count, "frame")}` : "");
    if ((pattern || this.wasSearched) && view.tab === "flame" && this.flame.width) this.flame.draw();
    this.wasSearched = Boolean(pattern);
  }

  span(thread, span, isClick) {
    if (span < 0) return;
    const { recording } = this;
    if (isClick) this.details.span(thread, span);
    const node = recording.nodeOfSpan(span);
    const parts = [recording.threads[thread].name, time(recording.start[span]), `${KIND_NAMES[recording.kinds[recording.kind[span]]]} ${time(recording.duration[span])}`, recording.labelOf(node)];
    byId("told").textContent = parts.join("  ·  ");
  }

  legend() {
    const used = new Set(this.recording.kind);
    const kinds = this.recording.kinds.filter((kind, i) => used.has(i) && kind !== "hidden");
    byId("legend").replaceChildren(...kinds.map((kind) => chip(kind)));
  }

  help() {
    const close = make("button", { type: "button", onclick: () => byId("help").close() }, "Close");
    const keys = KEYS.map(([key, what]) => make("tr", {}, make("th", { scope: "row" }, make("kbd", {}, key)), make("td", {}, what)));
    const looks = this.recording.looks.slice(0, 5).map((look) => dressed(look, make("li", {}, { own: "your own code", library: "libraries", stdlib: "standard library", native: "native", kernel: "kernel" }[look])));
    byId("help").append(make("h2", {}, "Keys"), make("table", {}, make("tbody", {}, ...keys)), make("h2", {}, "Colours of frames"), make("ul", { class: "looks" }, ...looks), make("p", {}, "Shift and the wheel over the timeline zoom its chosen part; a double click chooses all. A click on a name there shows only these threads. The row GIL shows who held it, in the colour that stands beside the name; each process has one of its own, and of many those that were held longest are shown."), close);
    byId("help-open").addEventListener("click", () => byId("help").showModal());
  }

  theme(isDark) {
    setDark(isDark);
    this.redraw();
  }

  redraw() {
    this.legend();
    this.drawn.clear();
    this.timeline.render();
    this.flame.render();
    this.details.refresh();
    this.showTab();
  }

  listen() {
    window.addEventListener("popstate", () => readAddress());
    window.addEventListener("hashchange", () => readAddress());
    new ResizeObserver(() => this.timeline.render()).observe(byId("work"));
    new ResizeObserver(() => view.tab === "flame" && this.flame.render()).observe(byId("flame"));
    byId("search").addEventListener("input", (event) => change({ query: event.target.value }, "typing"));
    document.addEventListener("keydown", (event) => this.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => this.theme(event.matches));
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
  }

  // On paper it is light, and the whole flame graph as far as it fits.
  print(isPrinted) {
    if (isPrinted) this.wasDark = dark();
    setDark(isPrinted ? false : this.wasDark);
    byId("flame").style.height = isPrinted ? `${Math.min(this.flame.depth * this.flame.level + 4, 620)}px` : "";
    this.redraw();
  }

  key(event) {
    const own = { c: () => this.details.copyCurrent(), i: () => change({ idle: !view.idle }), v: () => this.invert() };
    takeKey(event, this.flame, own, (isTyping) => this.back(isTyping));
  }

  back(isTyping) {
    if (wentBack(isTyping)) return;
    if (view.group) change({ group: "" });
    else if (view.window) change({ window: null });
    else if (view.mode !== "all") change({ mode: "all" });
  }
}

function dressed(look, element) {
  element.style.background = lookColor(look);
  element.style.color = ink();
  return element;
}

started(async () => {
  const recording = await unpack(byId("data").textContent);
  usePalette(recording.palette);
  const page = new Page(recording);
  // For tests and for the curious: what the page adds up, in nanoseconds.
  return { page, totals: () => page.sums.ofThreads(), colors: allColors };
});
