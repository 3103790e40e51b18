// What every page has around its views: the keys, and what is said where its data cannot be read.
import { CannotShow } from "./data.js";
import { byId, make } from "./dom.js";
import { dark, setDark } from "./look.js";
import { change, TABS, view } from "./view.js";

// own: keys of this page -> what they do; back(isTyping): Escape.
export function takeKey(event, flame, own, back) {
  const isTyping = event.target.id === "search";
  if (event.key === "Escape" && !byId("help").open) return back(isTyping);
  if (isTyping && event.key === "Enter") return flame.next(event.shiftKey ? -1 : 1);
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = {
    "/": () => byId("search").select(), "?": () => byId("help").showModal(), n: () => flame.next(1), N: () => flame.next(-1),
    f: () => change({ flip: !view.flip }), ...own,
  };
  const tab = TABS[Number(event.key) - 1];
  const act = tab ? () => change({ tab }) : keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// What Escape undoes first; true if there was anything.
export function wentBack(isTyping) {
  if (isTyping || view.query) {
    byId("search").value = "";
    byId("search").blur();
    change({ query: "" });
  } else if (view.zoom.length) change({ zoom: [] });
  else return false;
  return true;
}

export async function started(build) {
  setDark(dark());
  try {
    window.bpfprof = await build();
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    const words = error instanceof CannotShow ? error.message : `The data of this page is damaged: ${error.message}`;
    byId("verdict").replaceChildren(make("p", { class: "alarm", role: "alert" }, words));
    document.documentElement.dataset.ready = "failed";
  }
}
