// Colours and patterns, told once: for canvases, legends and bars. Each kind of time has a pattern, not only a hue.

export const KIND_NAMES = {
  cpu: "on CPU", ready: "ready, no CPU", gil: "GIL", lock: "lock, child", io: "disk, net, device",
  sleep: "sleep, poll", other: "other waits", lost: "not known", hidden: "not asked for",
};

// As Python has them (palette.py): each colour light, then dark; of kinds what is behind, then the marks on it.
let palette = { paper: ["#ffffff", "#16181b"], ink: ["#1b1f24", "#f0f2f4"], hit: ["", ""], frames: {}, kinds: {}, changes: {} };

export const usePalette = (colors) => (palette = colors);
const marked = (kind) => palette.kinds[kind] ?? palette.changes[kind];
const PATTERNS = {
  cpu: () => false,
  ready: (x, y) => (x % 4 < 1 && y % 4 < 1) || ((x + 2) % 4 < 1 && (y + 2) % 4 < 1),
  gil: (x, y) => (x - y + 64) % 6 < 1.5,
  lock: (x, y) => (x + y) % 6 < 1.5,
  io: (_x, y) => y % 4 < 1,
  sleep: (x, y) => x % 6 < 1 && y % 6 < 1,
  other: (x, y) => (x + y) % 6 < 1 || (x - y + 64) % 6 < 1,
  lost: (x) => x % 6 < 1,
  hidden: () => false,
  more: (x, y) => (x + y) % 6 < 1.5,
  less: (_x, y) => y % 4 < 1,
};
const TILE = 12;

// By the window's width, as in page.css: text is larger there. A window that is not shown yet may have none.
const phone = matchMedia("(min-width: 1px) and (max-width: 600px)");
let isDark = matchMedia("(prefers-color-scheme: dark)").matches;
let tiles = new Map();

export function setDark(dark) {
  isDark = dark;
  tiles = new Map();
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

export const isPhone = () => phone.matches;
export const dark = () => isDark;
export const ink = () => palette.ink[+isDark];
export const hitColor = () => palette.hit[+isDark];
export const paper = () => palette.paper[+isDark];
export const lookColor = (look) => palette.frames[look][+isDark];
export const kindColors = (kind) => marked(kind).map((color) => color[+isDark]);
export const isInked = (kind, x, y) => PATTERNS[kind](x, y);

// A tile of a kind's pattern, as a canvas; soft: the marks lie lightly, below text.
function tile(kind, soft) {
  const key = `${kind} ${soft}`;
  if (!tiles.has(key)) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = TILE;
    const context = canvas.getContext("2d");
    const [back, mark] = kindColors(kind);
    context.fillStyle = soft && kind === "cpu" ? lookColor("own") : back;
    context.fillRect(0, 0, TILE, TILE);
    context.globalAlpha = soft ? 0.45 : 1;
    context.fillStyle = mark;
    for (let x = 0; x < TILE; x++) {
      for (let y = 0; y < TILE; y++) if (PATTERNS[kind]?.(x, y)) context.fillRect(x, y, 1, 1);
    }
    tiles.set(key, canvas);
  }
  return tiles.get(key);
}

export const patternOf = (context, kind, soft = false) => context.createPattern(tile(kind, soft), "repeat");

// Gives an element the pattern of a kind.
export function dress(element, kind) {
  element.style.backgroundImage = `url(${tile(kind, false).toDataURL()})`;
}

export function rgb(color) {
  const number = parseInt(color.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

// What text stands on.
export function allColors() {
  const backs = [...Object.entries(palette.frames), ...Object.entries({ ...palette.kinds, ...palette.changes }).map(([kind, [back]]) => [kind, back])];
  return { ink: ink(), backs: Object.fromEntries(backs.map(([name, colors]) => [name, colors[+isDark]])) };
}
