// A picture and its caption: where each word looked, under the pointer or by the arrow keys.

import { buttonRow, h, mark, s, shown } from "./elements.js";

const SIDE = 224; // of a picture, in the drawing's own units
const VEIL = 0.82; // how dark a place is that a word did not look at

/**
 * picture: its address; words of the caption; attention words × locations, or null without attention; grid, the rows
 * and columns of the locations; chosen, for each word the location that hard attention chose, or null. `onword`, if
 * given, is called with the place of a word that is pressed. `name` describes the picture to those who do not see it.
 */
export function looking({ picture, name, words, attention, grid, chosen = null, onword = null }) {
  const image = s("image", { href: picture, width: SIDE, height: SIDE, preserveAspectRatio: "none" });
  const buttons = words.map((word, place) =>
    h("button", { type: "button", class: "token", tabindex: place ? -1 : 0, onpointerenter: () => look(place), onfocus: () => look(place), onclick: () => onword?.(place) }, shown(word)),
  );
  const text = buttonRow({ move: (place) => buttons[place].focus(), "aria-label": attention ? "Words: the arrow keys show where each looked" : "Words", onpointerleave: () => look(-1) }, buttons);
  const [rows, columns] = grid ?? [1, 1];
  const [height, width] = [SIDE / rows, SIDE / columns];
  const frame = s("rect", { class: "frame", width, height, visibility: "hidden" });
  const cells = attention
    ? Array.from({ length: rows * columns }, (_, i) =>
        s("rect", { x: (i % columns) * width, y: Math.floor(i / columns) * height, width, height }),
      )
    : [];
  const veil = s("g", { class: "veil" }, cells);

  function look(place) {
    mark(buttons, place);
    if (!attention) return;
    const weights = place < 0 ? null : attention[place];
    const most = weights ? Math.max(...weights, 1e-9) : 1;
    cells.forEach((cell, i) => cell.setAttribute("fill-opacity", weights ? (VEIL * (1 - weights[i] / most)).toFixed(3) : 0));
    const where = (weights && chosen?.[place]) ?? null;
    frame.setAttribute("visibility", where === null ? "hidden" : "visible");
    frame.setAttribute("x", (where % columns) * width);
    frame.setAttribute("y", Math.floor(where / columns) * height);
  }

  look(-1);
  const drawing = s("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, class: "picture", role: "img", "aria-label": name }, image, veil, frame);
  return { element: h("div", { class: "looking" }, drawing, text), look };
}

/** The places of a word among the words of several captions, to single it out in all of them. */
export function places(words, word) {
  return words.flatMap((one, i) => (shown(one).trim().toLowerCase() === word ? [i] : []));
}
