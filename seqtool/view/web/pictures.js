// A picture and its caption: where each word looked, under the pointer or by the arrow keys.

import { buttonRow, h, mark, s, shown } from "./elements.js";

const SIDE = 224; // of a picture, in the drawing's own units
const VEIL = 0.82; // how dark a place is that a word did not look at

/** Darkens a picture of side × side units where a word did not look; a frame marks the location that was chosen. */
export function gaze(side, grid) {
  const [rows, columns] = grid;
  const [height, width] = [side / rows, side / columns];
  const frame = s("rect", { class: "frame", width, height, visibility: "hidden" });
  const cells = Array.from({ length: rows * columns }, (_, i) => s("rect", { x: (i % columns) * width, y: Math.floor(i / columns) * height, width, height }));
  /** weights of the locations, or null for a clear picture; where: the location that was chosen, or null. */
  function show(weights, where = null) {
    const most = weights ? Math.max(...weights, 1e-9) : 1;
    cells.forEach((cell, i) => cell.setAttribute("fill-opacity", weights ? (VEIL * (1 - weights[i] / most)).toFixed(3) : 0));
    frame.setAttribute("visibility", where === null ? "hidden" : "visible");
    frame.setAttribute("x", (where % columns) * width);
    frame.setAttribute("y", Math.floor(where / columns) * height);
  }
  return { elements: [s("g", { class: "veil" }, cells), frame], show };
}

/**
 * picture: its address; words of the caption; attention words × locations, or null without attention; grid, the rows
 * and columns of the locations; chosen, for each word the location that hard attention chose, or null. A word that is
 * pressed holds the gaze while the pointer goes on, until it is pressed again or Escape is; `onword`, if given, is called
 * with its place, and `onlook` with the weights and the chosen location of each word that is looked at. `name` describes
 * the picture to those who do not see it. With `scrub` a slider goes through the words.
 */
export function looking({ picture, name, words, attention, grid, chosen = null, onword = null, onlook = null, scrub = false }) {
  const image = s("image", { href: picture, width: SIDE, height: SIDE, preserveAspectRatio: "none" });
  let held = -1;
  function hold(place) {
    held = place;
    look(place);
  }
  const press = (place) => {
    hold(place === held ? -1 : place);
    if (held >= 0) onword?.(place);
  };
  const buttons = words.map((word, place) =>
    h("button", { type: "button", class: "token", tabindex: place ? -1 : 0, onpointerenter: () => look(place), onfocus: () => look(place), onclick: () => press(place) }, shown(word)),
  );
  const escape = (event) => event.key === "Escape" && hold(-1);
  const text = buttonRow({ move: (place) => buttons[place].focus(), "aria-label": attention ? "Words: the arrow keys show where each looked" : "Words", onpointerleave: () => look(held), onkeyup: escape }, buttons);
  const view = attention ? gaze(SIDE, grid ?? [1, 1]) : null;
  const slider = h("input", { type: "range", min: -1, max: words.length - 1, value: -1, "aria-label": "Go through the words", oninput: () => hold(Number(slider.value)) });

  function look(place) {
    mark(buttons, place);
    slider.value = place;
    slider.setAttribute("aria-valuetext", place < 0 ? "no word" : shown(words[place]));
    if (!attention) return;
    const shownNow = [place < 0 ? null : attention[place], place < 0 ? null : (chosen?.[place] ?? null)];
    view.show(...shownNow);
    onlook?.(...shownNow);
  }

  look(-1);
  const drawing = s("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, class: "picture", role: "img", "aria-label": name }, image, view?.elements ?? []);
  return { element: h("div", { class: "looking" }, drawing, text, scrub && attention && words.length ? slider : null), look: (place) => look(place < 0 ? held : place), hold };
}

/** The places of a word among the words of several captions, to single it out in all of them. */
export function places(words, word) {
  return words.flatMap((one, i) => (shown(one).trim().toLowerCase() === word ? [i] : []));
}
