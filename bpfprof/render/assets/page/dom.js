// Elements and texts. Names from a recording only ever become text, never markup.

export const byId = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/1999/xhtml", name); // in an SVG, too
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// Calls act(event, by) where a menu is asked for: by "mouse", "touch", "pen" or "key", which not all browsers say of the menu.
export function onMenu(target, act) {
  let by = "";
  target.addEventListener("pointerdown", (event) => (by = event.pointerType));
  target.addEventListener("keydown", () => (by = "key"));
  target.addEventListener("contextmenu", (event) => act(event, by));
}

export function time(ns) {
  if (ns === 0) return "0";
  if (ns >= 1e12) return `${Math.round(ns / 1e9).toLocaleString("en")} s`;
  if (ns >= 1e9) return `${(ns / 1e9).toFixed(ns < 1e10 ? 2 : 1)} s`;
  if (ns >= 1e6) return `${(ns / 1e6).toFixed(ns < 1e8 ? 1 : 0)} ms`;
  return `${(ns / 1e3).toFixed(ns < 1e4 ? 1 : 0)} µs`;
}

export function percent(part, whole) {
  if (!(whole > 0)) return "";
  const share = (100 * part) / whole;
  if (share > 0 && share < 0.1) return "<0.1%";
  return `${share.toFixed(share < 10 ? 1 : 0)}%`;
}

export const counted = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
