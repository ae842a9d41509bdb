// A table that can be sorted, filtered and paged, and whose rows open.

import { counted, fill, h, unique } from "./elements.js";

const ROWS_PER_PAGE = 50;
const MAX_UPRIGHT_COLUMNS = 10; // wider tables are printed on a sheet in landscape

/**
 * columns: a list of {label, note, value(row), cell(row) or null, number, down}; `down`: first sorted descending;
 * sort: the index of the column that sorts the rows at first; search(row): the text that the filter searches;
 * flags(row): the names of its flags, one of which can be selected; open(row): the content of an opened row.
 */
export function table({ label, columns, rows, sort: first, search, flags = () => [], open }) {
  const state = { sort: first, down: Boolean(columns[first].down), text: "", flag: "", page: 0, printing: false };
  const body = h("tbody", {});
  const status = h("p", { class: "status", "aria-live": "polite" });
  const turns = [
    ["First", () => 0],
    ["Previous", () => Math.max(state.page - 1, 0)],
    ["Next", (last) => Math.min(state.page + 1, last)],
    ["Last", (last) => last],
  ].map(([text, to]) => ({ to, button: h("button", { type: "button", onclick: () => turn(to) }, text) }));
  const pages = h("div", { class: "pages" }, turns.map((one) => one.button));
  const heads = columns.map((column, i) =>
    h("th", { scope: "col", class: column.number ? "number" : null }, h("button", { type: "button", onclick: () => sort(i) }, column.label, h("span", { "aria-hidden": "true" })), column.note ? h("small", {}, column.note) : null),
  );
  const texts = rows.map((row) => search(row).toLowerCase());
  const named = rows.map((row) => flags(row));
  const kinds = [...new Set(named.flat())].sort();
  const lines = new Map();
  const count = (kind) => named.filter((one) => one.includes(kind)).length;

  function sort(i) {
    state.down = state.sort === i ? !state.down : Boolean(columns[i].down);
    state.sort = i;
    state.page = 0;
    draw();
  }

  function chosen() {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.map((_, i) => i).filter((i) => words.every((word) => texts[i].includes(word)) && (!state.flag || named[i].includes(state.flag)));
    const values = rows.map(columns[state.sort].value);
    const sign = state.down ? -1 : 1;
    const missing = (i) => Number(values[i] === null || values[i] === undefined); // missing values are last in either order
    const compared = (a, b) => Number(values[a] > values[b]) - Number(values[a] < values[b]);
    return kept.sort((a, b) => missing(a) - missing(b) || sign * compared(a, b) || a - b);
  }

  const lastPage = (matching) => Math.max(0, Math.ceil(matching.length / ROWS_PER_PAGE) - 1);

  function turn(to) {
    state.page = to(lastPage(chosen()));
    draw();
  }

  function draw() {
    const matching = chosen();
    const last = lastPage(matching);
    state.page = Math.min(state.page, last);
    heads.forEach((head, i) => {
      const order = state.sort === i ? (state.down ? "descending" : "ascending") : "none";
      head.setAttribute("aria-sort", order);
      head.querySelector("span").textContent = { ascending: " ▲", descending: " ▼", none: "" }[order];
    });
    const paged = state.printing ? matching : matching.slice(state.page * ROWS_PER_PAGE, (state.page + 1) * ROWS_PER_PAGE);
    fill(body, paged.flatMap(line));
    const most = Math.min((state.page + 1) * ROWS_PER_PAGE, matching.length);
    status.textContent = matching.length ? `${counted(state.page * ROWS_PER_PAGE + 1)}–${counted(most)} of ${counted(matching.length)}` : "None.";
    pages.hidden = last === 0;
    turns.forEach(({ button, to }) => button.setAttribute("aria-disabled", String(to(last) === state.page)));
  }

  /** A row and the row of its details. They are made once, so that an opened row stays open when rows are reordered. */
  function line(i) {
    if (!lines.has(i)) lines.set(i, made(rows[i]));
    return lines.get(i);
  }

  function made(row) {
    const name = unique("row");
    const opener = h("button", { type: "button", class: "opener", "aria-expanded": "false", "aria-controls": name, onclick: toggle }, "Open");
    const inside = h("tr", { id: name, class: "inside", hidden: true }, h("td", { colspan: columns.length + 1 }));
    function toggle() {
      const closed = inside.hidden;
      inside.hidden = !closed;
      opener.setAttribute("aria-expanded", String(closed));
      opener.textContent = closed ? "Close" : "Open";
      if (closed && !inside.firstChild.firstChild) fill(inside.firstChild, open(row));
    }
    const cells = columns.map((column) => h("td", { class: column.number ? "number" : null, dir: column.number ? null : "auto" }, column.cell ? column.cell(row) : String(column.value(row))));
    return [h("tr", {}, h("td", {}, opener), cells), inside];
  }

  const filter = h("input", { type: "search", "aria-label": `Filter ${label}`, placeholder: "Filter: words that must occur", oninput: (event) => ask({ text: event.target.value }) });
  const flag = h("select", { "aria-label": "Only those that are", onchange: (event) => ask({ flag: event.target.value }) }, h("option", { value: "" }, "all"), kinds.map((kind) => h("option", { value: kind }, `${kind} (${counted(count(kind))})`)));
  function ask(change) {
    Object.assign(state, change, { page: 0 });
    draw();
  }

  // All matching rows are printed, not only the current page.
  for (const [kind, printing] of [["beforeprint", true], ["afterprint", false]])
    window.addEventListener(kind, () => {
      state.printing = printing;
      draw();
    });

  draw();
  return h(
    "div",
    { class: `sentences ${columns.length > MAX_UPRIGHT_COLUMNS ? "wide" : ""}` },
    h("div", { class: "controls" }, filter, kinds.length ? flag : null, status),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, h("td", {}), heads)), body)),
    pages,
  );
}
