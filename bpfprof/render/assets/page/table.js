// Tables that are sorted by a click on a heading.
import { counted, make } from "./dom.js";

// columns: [{ name, text(row), node(row), value(row), number, title }]. Rows beyond `most` are told of in a line.
export function table({ caption, columns, rows, sort, most = 200, onRow, rowLabel }) {
  const state = { column: sort ?? 0, down: true };
  const body = make("tbody");
  const heads = columns.map((column, number) => {
    const button = column.value && make("button", { type: "button", class: "sort", title: column.title, onclick: () => order(number) }, column.name);
    return make("th", { scope: "col", class: column.number ? "number" : undefined }, button || column.name);
  });
  function order(number) {
    state.down = number === state.column ? !state.down : Boolean(columns[number].number);
    state.column = number;
    fill();
  }
  function fill() {
    const { value } = columns[state.column];
    const sorted = value ? [...rows].sort((one, other) => (value(one) > value(other) ? 1 : value(one) < value(other) ? -1 : 0)) : rows;
    if (value && state.down) sorted.reverse();
    heads.forEach((head, number) => {
      if (number === state.column && value) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...sorted.slice(0, most).map(line));
  }
  function line(row) {
    const cells = columns.map((column, number) => {
      const content = column.node ? column.node(row) : column.text(row);
      const inside = onRow && number === 0 ? make("button", { type: "button", class: "link", onclick: () => onRow(row), "aria-label": rowLabel?.(row) }, content) : content;
      return make("td", { class: column.number ? "number" : column.wide ? "wide" : undefined }, inside);
    });
    return make("tr", {}, ...cells);
  }
  fill();
  const whole = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), body);
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole);
  const rest = rows.length - most;
  return rest > 0 ? make("div", {}, scroll, make("p", { class: "aside" }, `and ${counted(rest, "more row")}`)) : scroll;
}
