// Heat maps of numbers, such as attention, attributions and the states of units.

import { explorable, fill, h, label, s } from "./elements.js";

const pen = document.createElement("canvas").getContext("2d"); // measures words
const CELL = 22;

/**
 * A heat map. `values`: rows × columns; null is unknown, and the colour of a negative number is another one. `largest`:
 * the number with the full colour; `read(row, column)`: the text about a cell; `name`: what the drawing shows;
 * `onrow(row)`: called when another row is chosen. A frame marks the chosen cell, and the result's `go(row, column)`
 * chooses one.
 */
export function heatMap({ rows, columns, values, largest = 1, read, name, onrow = null }) {
  const left = Math.max(40, ...rows.map((word) => wide(word) + 12));
  const top = Math.max(30, ...columns.map((word) => 0.82 * wide(word) + 16)); // labels are rotated by 55°
  const [across, down] = [columns.length, rows.length];
  const right = Math.max(...columns.map((word, i) => CELL * (i + 1) + 0.58 * wide(word))) + 6;
  const reading = h("p", { class: "reading", "aria-live": "polite" }, "Arrow keys or pointer: read the numbers.");
  const frame = s("rect", { class: "frame", width: CELL, height: CELL, visibility: "hidden" });
  let row = -1;
  function show(place, byKey) {
    const [t, i] = [Math.floor(place / across), place % across];
    frame.setAttribute("x", left + CELL * i);
    frame.setAttribute("y", top + CELL * t);
    frame.setAttribute("visibility", "visible");
    fill(reading, read(t, i));
    if (t !== row) onrow?.(t);
    row = t;
    if (byKey) frame.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const cell = (value, t, i) => {
    const kind = value === null ? "unknown" : value < 0 ? "cell against" : "cell";
    const opacity = value === null ? 1 : Math.min(1, Math.abs(value) / largest).toFixed(3);
    return s("rect", { class: kind, x: left + CELL * i, y: top + CELL * t, width: CELL, height: CELL, "fill-opacity": opacity, onpointerenter: () => go(t * across + i) });
  };
  const { svg, go } = explorable(
    {
      ...{ class: "heat", width: left + Math.max(CELL * across, right) + 2, height: top + CELL * down + 4, count: across * down, across, show },
      "aria-label": `${name}; the arrow keys move through the cells`,
    },
    s("rect", { class: "ground", x: left, y: top, width: CELL * across, height: CELL * down }),
    values.flatMap((ofRow, t) => ofRow.map((value, i) => cell(value, t, i))),
    columns.map((word, i) => {
      const x = left + CELL * (i + 0.65);
      return s("text", { class: "word start", x, y: top - 6, transform: `rotate(-55 ${x} ${top - 6})` }, cut(word));
    }),
    rows.map((word, t) => s("text", { class: "word end", x: left - 6, y: top + CELL * (t + 0.7) }, cut(word))),
    frame,
  );
  return { element: h("div", {}, h("div", { class: "scroll" }, svg), reading), go: (t, i) => go(t * across + i) };
}

/** A bar that explains colours, between what its ends stand for. `kind`: weights, signed or, over pictures, tinted. */
export function colourBar(low, kind, high) {
  return h("p", { class: "note" }, low, " ", h("span", { class: `bar ${kind}` }), " ", high);
}

/** The width of a word in bold type, in pixels. */
export function wide(word) {
  pen.font = `700 13px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(cut(word)).width;
}

/** A word for a label, at most 24 characters. */
export function cut(word) {
  const text = label(word);
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}
