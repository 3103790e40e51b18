// Draws the frames of the SVG again for the width of the window, a zoom, a search or a filter.
// Names only ever reach the page as textContent. The numbers come from #frame-data, one element a frame, parents first.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const HTML = "http://www.w3.org/1999/xhtml";
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const MARGIN = Number(root.dataset.margin);
  const ROW = Number(root.dataset.row);
  const HEADER = Number(root.dataset.header);
  const DETAILS = Number(root.dataset.details);
  const LEAST_WIDTH = 1060; // the header's lines need it; a narrower window scrolls
  const LEAST_CHARS = 3;
  const THIN_PX = 3;
  const HINT = "Click a frame to zoom · arrow keys to walk, Enter to zoom, Esc to reset · Ctrl-F or / to search";

  const { parent, cpu, wait, samples, intervals } = JSON.parse(byId("frame-data").textContent);
  const count = parent.length;
  const frames = byId("frames");
  const levels = [...frames.children];
  const groups = levels.flatMap((level) => [...level.children]);
  const rects = groups.map((group) => group.querySelector("rect"));
  const labels = groups.map((group) => group.querySelector("title").textContent.split("\n")[0]);
  const indexOf = new Map(groups.map((group, index) => [group, index]));
  const depth = new Uint32Array(count);
  for (let i = 1; i < count; i++) depth[i] = depth[parent[i]] + 1;

  const SHOW = { both: (i) => cpu[i] + wait[i], cpu: (i) => cpu[i], waits: (i) => wait[i] };
  const state = { zoom: 0, show: "both", icicle: false, query: "" };
  const value = new Float64Array(count);
  const left = new Float64Array(count);
  const visible = new Uint8Array(count);
  let current = 0; // the frame that the keyboard is on

  function layOut() {
    const next = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      value[i] = SHOW[state.show](i);
      left[i] = i ? next[parent[i]] : 0;
      next[i] = left[i];
      if (i) next[parent[i]] += value[i];
    }
  }

  function draw() {
    const width = Math.max(root.clientWidth || window.innerWidth, LEAST_WIDTH);
    const inner = width - 2 * MARGIN;
    root.setAttribute("width", width);
    frames.setAttribute("width", inner);
    levels.forEach((level, i) => {
      level.setAttribute("transform", `translate(0,${(state.icicle ? i : levels.length - 1 - i) * ROW})`);
    });
    const under = new Set();
    for (let i = state.zoom; i > 0; i = parent[i]) under.add(parent[i]);
    const inside = new Uint8Array(count);
    const from = left[state.zoom];
    const whole = value[state.zoom];
    for (let i = 0; i < count; i++) {
      const isUnder = under.has(i);
      inside[i] = i === state.zoom || (i > 0 && inside[parent[i]]) ? 1 : 0;
      visible[i] = whole > 0 && value[i] > 0 && (isUnder || inside[i]) ? 1 : 0;
      const share = isUnder ? 1 : value[i] / whole;
      place(i, isUnder ? 0 : (left[i] - from) / whole, share, share * inner, isUnder);
    }
    fitPage();
  }

  function place(i, start, share, px, isUnder) {
    const classes = groups[i].classList;
    classes.toggle("gone", !visible[i]);
    if (!visible[i]) return;
    classes.toggle("up", isUnder);
    classes.toggle("thin", px < THIN_PX);
    rects[i].setAttribute("x", `${(100 * start).toFixed(4)}%`);
    rects[i].setAttribute("width", `${(100 * share).toFixed(4)}%`);
    write(i, `${(100 * start).toFixed(4)}%`, Math.floor((px - 8) / charWidth));
  }

  // The label of a frame, cut to `room` characters; what follows the name of a function is drawn lighter.
  function write(i, x, room) {
    let text = groups[i].querySelector("text");
    if (room < LEAST_CHARS) {
      if (text) text.remove();
      return;
    }
    if (!text) {
      text = groups[i].appendChild(document.createElementNS(SVG, "text"));
      text.setAttribute("dx", 4);
      text.setAttribute("y", 12);
    }
    text.setAttribute("x", x);
    const label = labels[i];
    const shown = label.length <= room ? label : `${label.slice(0, room - 1)}…`;
    const cut = label.lastIndexOf(" (");
    text.textContent = cut > 0 ? shown.slice(0, cut) : shown;
    if (cut > 0 && shown.length > cut) {
      const place = text.appendChild(document.createElementNS(SVG, "tspan"));
      place.setAttribute("class", "place");
      place.textContent = shown.slice(cut);
    }
  }

  function measureChar() {
    const probe = frames.firstElementChild.appendChild(document.createElementNS(SVG, "text"));
    probe.textContent = "m".repeat(100);
    const width = probe.getComputedTextLength() / 100;
    probe.remove();
    return width || 6.65;
  }

  // The page is as high as the graph; header and details stay in the window while the graph scrolls under them.
  function fitPage() {
    root.setAttribute("height", Math.max(HEADER + levels.length * ROW + DETAILS, window.innerHeight));
    stick();
  }

  function stick() {
    byId("header").setAttribute("transform", `translate(0,${window.scrollY})`);
    byId("details").setAttribute("transform", `translate(0,${window.scrollY + window.innerHeight - DETAILS})`);
  }

  function time(us) {
    if (us >= 1e6) return `${(us / 1e6).toFixed(us < 1e8 ? 3 : 1)} s`;
    return us >= 1e3 ? `${(us / 1e3).toFixed(2)} ms` : `${us} µs`;
  }

  function percent(part, whole) {
    return whole > 0 ? `${((100 * part) / whole).toFixed(2)}%` : "-";
  }

  function counted(number, noun) {
    return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  }

  function details(i) {
    const facts = [time(value[i]), `${percent(value[i], value[0])} of all`];
    if (i) facts.push(`${percent(value[i], value[parent[i]])} of parent`);
    if (state.show === "both") facts.push(`CPU ${time(cpu[i])}, waits ${time(wait[i])}`);
    if (state.show !== "waits" && samples[i]) facts.push(counted(samples[i], "sample"));
    if (state.show !== "cpu" && intervals[i]) facts.push(counted(intervals[i], "wait"));
    return facts.join(" · ");
  }

  function tell(i) {
    const line = byId("details").querySelector("text");
    if (i === undefined) {
      line.textContent = value[0] > 0 ? HINT : "No time of this kind was recorded";
      line.setAttribute("class", "hint");
      return;
    }
    line.removeAttribute("class");
    const facts = details(i);
    const room = Math.max(20, Math.floor((root.clientWidth - 2 * MARGIN) / (charWidth * 1.1)) - facts.length - 3);
    line.textContent = `${labels[i].length > room ? `${labels[i].slice(0, room - 1)}…` : labels[i]} — ${facts}`;
    groups[i].querySelector("title").textContent = `${labels[i]}\n${facts}`;
  }

  function search() {
    let pattern = null;
    let problem = "";
    try {
      pattern = state.query ? new RegExp(state.query, "i") : null;
    } catch {
      problem = "not a regular expression";
    }
    const covered = new Uint8Array(count);
    let found = 0;
    let matched = 0;
    for (let i = 0; i < count; i++) {
      const hit = pattern !== null && value[i] > 0 && pattern.test(labels[i]);
      const above = i > 0 && covered[parent[i]];
      if (hit) found++;
      if (hit && !above) matched += value[i];
      covered[i] = hit || above ? 1 : 0;
      groups[i].classList.toggle("hit", hit);
    }
    frames.classList.toggle("searching", pattern !== null);
    controls.input.setAttribute("aria-invalid", problem !== "");
    const share = `${percent(matched, value[0])} matched · ${time(matched)} · ${counted(found, "frame")}`;
    controls.found.textContent = problem || (pattern ? share : "");
  }

  function element(name, attributes, text) {
    const made = document.createElementNS(HTML, name);
    for (const [key, given] of Object.entries(attributes)) made.setAttribute(key, given);
    made.textContent = text ?? "";
    return made;
  }

  function makeControls() {
    const row = document.createElementNS(SVG, "foreignObject");
    row.setAttribute("x", MARGIN);
    row.setAttribute("y", byId("controls").dataset.y);
    row.setAttribute("width", "100%");
    row.setAttribute("height", 30);
    const panel = element("div", { class: "panel", role: "toolbar", "aria-label": "Flame graph" });
    const input = element("input", {
      type: "search", id: "search", placeholder: "Search (regular expression)", spellcheck: "false",
      autocomplete: "off", "aria-label": "Search frames by regular expression",
    });
    const reset = element("button", { type: "button", id: "reset" }, "Reset zoom");
    const flip = element("button", { type: "button", id: "icicle", title: "Root at the top" }, "Icicle");
    const choice = element("span", { class: "choice", role: "group", "aria-label": "Time shown" });
    const names = { both: "CPU + waits", cpu: "CPU", waits: "Waits" };
    const shows = Object.entries(names).map(([show, name]) => [
      show, choice.appendChild(element("button", { type: "button", id: `show-${show}` }, name)),
    ]);
    const found = element("span", { class: "found", id: "found", role: "status" });
    panel.append(input, reset, choice, flip, found);
    row.append(panel);
    byId("controls").append(row);
    input.addEventListener("input", () => change({ query: input.value }, true));
    reset.addEventListener("click", () => change({ zoom: 0 }));
    flip.addEventListener("click", () => change({ icicle: !state.icicle }));
    for (const [show, button] of shows) button.addEventListener("click", () => change({ show }));
    return { input, reset, flip, shows, found };
  }

  function update() {
    layOut();
    if (!(value[state.zoom] > 0)) state.zoom = 0;
    draw();
    search();
    if (controls.input.value !== state.query) controls.input.value = state.query;
    controls.reset.disabled = state.zoom === 0;
    controls.flip.setAttribute("aria-pressed", state.icicle);
    for (const [show, button] of controls.shows) button.setAttribute("aria-pressed", state.show === show);
    point(visible[current] ? current : state.zoom);
    tell();
  }

  // A change of the view; the address keeps it, so a view can be sent to somebody and Back undoes a zoom.
  function change(changes, replace) {
    const flipped = "icicle" in changes;
    Object.assign(state, changes);
    const kept = new URLSearchParams();
    if (state.zoom) kept.set("zoom", state.zoom);
    if (state.show !== "both") kept.set("show", state.show);
    if (state.icicle) kept.set("icicle", "1");
    if (state.query) kept.set("q", state.query);
    const address = `#${kept}`;
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    update();
    if (flipped) showRoot();
  }

  function readAddress() {
    const kept = new URLSearchParams(location.hash.slice(1));
    const zoom = Number(kept.get("zoom"));
    state.zoom = Number.isInteger(zoom) && zoom > 0 && zoom < count ? zoom : 0;
    state.show = Object.hasOwn(SHOW, kept.get("show") ?? "") ? kept.get("show") : "both";
    state.icicle = kept.get("icicle") === "1";
    state.query = kept.get("q") ?? "";
    update();
  }

  function showRoot() {
    window.scrollTo(0, state.icicle ? 0 : root.getBoundingClientRect().height);
    stick();
  }

  // One frame at a time can be reached by Tab; arrow keys move from there.
  function point(i) {
    groups[current].removeAttribute("tabindex");
    current = i;
    groups[i].setAttribute("tabindex", "0");
    groups[i].setAttribute("role", "button");
  }

  function neighbour(key) {
    const away = state.icicle ? "ArrowDown" : "ArrowUp";
    if (key === away) return parent.findIndex((above, i) => above === current && visible[i]);
    if (key === "ArrowUp" || key === "ArrowDown") return parent[current];
    const step = key === "ArrowRight" ? 1 : -1;
    for (let i = current + step; i > 0 && i < count && depth[i] === depth[current]; i += step) if (visible[i]) return i;
    return -1;
  }

  function onKey(event) {
    const typing = document.activeElement === controls.input;
    const wantsSearch = ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f") || event.key === "/";
    if (wantsSearch && !typing) {
      event.preventDefault();
      controls.input.focus();
      controls.input.select();
    } else if (event.key === "Escape") {
      if (typing && state.query) change({ query: "" }, true);
      else if (typing) controls.input.blur();
      else if (state.zoom) change({ zoom: 0 });
    } else if (groups[current] === document.activeElement) {
      onFrameKey(event);
    }
  }

  function onFrameKey(event) {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      change({ zoom: current });
      groups[current].focus();
    } else if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      const next = neighbour(event.key);
      if (next < 0) return;
      point(next);
      groups[next].focus();
      tell(next);
    }
  }

  const frameAt = (event) => indexOf.get(event.target.closest?.("#frames g[class]"));

  root.setAttribute("data-scripted", "");
  const charWidth = measureChar();
  const controls = makeControls();
  frames.addEventListener("click", (event) => {
    const i = frameAt(event);
    if (i === undefined) return;
    change({ zoom: i });
    point(i);
    groups[i].focus({ preventScroll: true });
  });
  frames.addEventListener("mouseover", (event) => tell(frameAt(event)));
  frames.addEventListener("focusin", (event) => tell(frameAt(event)));
  frames.addEventListener("mouseleave", () => tell());
  document.addEventListener("keydown", onKey);
  window.addEventListener("scroll", stick);
  window.addEventListener("resize", draw);
  window.addEventListener("popstate", readAddress);
  readAddress();
  showRoot();
})();
