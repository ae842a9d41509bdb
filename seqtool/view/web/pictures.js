// A picture and its caption, with the attention of the word that the pointer or the arrow keys choose.

import { buttonRow, h, mark, s, shown } from "./elements.js";

const SIDE = 224; // the side of a picture, in the drawing's units
const VEIL = 0.82; // the opacity of the veil over a location without attention
const TINT = 0.8; // the opacity of the strongest colour over a picture, which stays visible

/**
 * A veil over a picture of side × side units, dark where attention is low, and a frame around the chosen location. With
 * `largest`, weights have signs: the veil is blue for positive ones and orange for negative ones, most at `largest`.
 */
export function gaze(side, grid, largest = null) {
  const [rows, columns] = grid;
  const [height, width] = [side / rows, side / columns];
  const frame = s("rect", { class: "frame", width, height, visibility: "hidden" });
  const cells = Array.from({ length: rows * columns }, (_, i) => s("rect", { x: (i % columns) * width, y: Math.floor(i / columns) * height, width, height }));
  /** weights: the attention to each location, or null for no veil; where: the chosen location, or null. */
  function show(weights, where = null) {
    const most = weights ? Math.max(...weights, 1e-9) : 1;
    const opacity = (weight) => (largest ? (TINT * Math.abs(weight)) / largest : VEIL * (1 - weight / most));
    cells.forEach((cell, i) => {
      cell.setAttribute("fill-opacity", weights ? opacity(weights[i]).toFixed(3) : 0);
      cell.classList.toggle("against", weights?.[i] < 0);
    });
    frame.setAttribute("visibility", where === null ? "hidden" : "visible");
    frame.setAttribute("x", (where % columns) * width);
    frame.setAttribute("y", Math.floor(where / columns) * height);
  }
  return { elements: [s("g", { class: largest ? "veil tinted" : "veil" }, cells), frame], show };
}

/**
 * A picture with the words of its caption. `picture`: its URL; `name`: its description for screen readers; `attention`:
 * words × locations, or null; `grid`: the numbers of rows and columns of locations; `chosen`: the location that hard
 * attention chose for each word, or null; `largest`: if the weights have signs, the number with the full colour;
 * `scrub`: whether a slider moves through the words. The attention of the word
 * under the pointer is shown; a click on a word holds it until another click or Escape. `onword(index)` is called on a
 * click, `onhold(index)` when a word is held (-1: none), and `onlook(weights, location)` when another word is shown.
 */
export function looking({ picture, name, words, attention, grid, chosen = null, largest = null, onword = null, onhold = null, onlook = null, scrub = false }) {
  const image = s("image", { href: picture, width: SIDE, height: SIDE, preserveAspectRatio: "none" });
  let held = -1;
  function hold(place) {
    held = place;
    onhold?.(place);
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
  const view = attention ? gaze(SIDE, grid ?? [1, 1], largest) : null;
  const slider = h("input", { type: "range", min: -1, max: words.length - 1, value: -1, "aria-label": "Go through the words", oninput: () => hold(Number(slider.value)) });

  function look(place) {
    if (place >= words.length) place = -1; // the end, without attention
    mark(buttons, place);
    slider.value = place;
    slider.setAttribute("aria-valuetext", place < 0 ? "no word" : shown(words[place]));
    if (!attention) return;
    const shownNow = [place < 0 ? null : attention[place], place < 0 ? null : (chosen?.[place] ?? null)];
    view.show(...shownNow);
    onlook?.(...shownNow);
  }

  look(-1);
  const drawing = s("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, class: largest ? "picture grey" : "picture", role: "img", "aria-label": name }, image, view?.elements ?? []);
  return { element: h("div", { class: "looking" }, drawing, text, scrub && attention && words.length ? slider : null), look: (place) => look(place < 0 ? held : place), hold };
}

/** The indices at which a word occurs in a list of words. */
export function places(words, word) {
  return words.flatMap((one, i) => (shown(one).trim().toLowerCase() === word ? [i] : []));
}
