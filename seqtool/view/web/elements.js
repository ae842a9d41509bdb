// Elements of a page. Text goes in as text: nothing that a model or a file says is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; `on…` attributes are listeners, and those that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "aria-label" || name === "title") element.setAttribute(name, inert(value));
    else element.setAttribute(name, value === true ? "" : value);
  }
  return added(element, children);
}

/** One by one: there may be more than can be given to one call. */
function added(element, children) {
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(typeof child === "string" ? inert(child) : child);
  return element;
}

/** Puts other children in an element's place. */
export function fill(element, ...children) {
  element.replaceChildren();
  return added(element, children);
}

const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g; // characters that change the direction of text

/** A text in which characters that change its direction are written as their codes: it is read as it is stored. */
export function inert(text) {
  return text.replace(DIRECTIONS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

let numbers = 0;

/** A name that no other element has. */
export function unique(prefix) {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

/** Details whose content is made when they are opened first. */
export function later(title, make, attributes = {}) {
  const details = h("details", { ...attributes, ontoggle: () => details.children.length === 1 && details.append(make()) }, h("summary", {}, title));
  return details;
}

/** A number with so many digits after the point; "–" for none. */
export function fixed(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value.toFixed(digits).replace(/^-(?=[0.]*$)/, ""); // never -0.000
}

/** 12,345; with a noun, which gets an s: 12,345 steps, 1 step. */
export function counted(value, noun = "") {
  const number = String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return noun ? `${number} ${noun}${value === 1 ? "" : "s"}` : number;
}

/** A piece of text as it is shown: the mark for a space is a space, and what cannot be seen has a sign. */
export function shown(piece) {
  return inert(piece.replaceAll("▁", " ").replaceAll("\n", "⏎").replaceAll("\t", "⇥"));
}

/** The same where it stands alone: a space too has a sign. */
export function label(piece) {
  return shown(piece).trim() || "␣";
}

/** Buttons of which one is pressed; `choose` is called with the value of a pressed one. */
export function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => press(value) }, text),
  );
  function press(value) {
    options.forEach(([one], i) => buttons[i].setAttribute("aria-pressed", String(one === value)));
    choose(value);
  }
  return h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

/**
 * A drawing of `count` places, with `width` and `height`. The arrow keys go through them, and `go(place)` to any; `show`
 * is called with the new place and whether a key chose it, `enter` with the place at which Enter is pressed. `width` and
 * `height` are pixels where type is 16 pixels high, and grow with it.
 */
export function explorable({ count, across = 1, width, height, show, enter = null, ...attributes }, ...children) {
  let place = -1;
  function go(next, byKey = false) {
    place = next;
    show(next, byKey);
  }
  const onkeydown = (event) => {
    if (event.key === "Enter" && place >= 0) enter?.(place);
    const next = moved(event, place, count, across);
    if (next !== null) go(next, true);
  };
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width: `${width / 16}em`, height: `${height / 16}em`, role: "application", tabindex: 0, onkeydown, ...attributes }, ...children);
  return { svg, go };
}

/** Buttons of which the Tab key reaches one; the arrow keys go from it to others, by `move(place)`. */
export function buttonRow({ move, ...attributes }, buttons) {
  const onkeydown = (event) => {
    const place = buttons.indexOf(event.target);
    const next = place < 0 ? null : moved(event, place, buttons.length);
    if (next !== null) move(next);
  };
  return h("div", { class: "tokens", dir: "auto", role: "group", onkeydown, ...attributes }, buttons);
}

/** Marks one of the buttons of a row, or none for -1. */
export function mark(buttons, place) {
  buttons.forEach((button, i) => {
    button.classList.toggle("on", i === place);
    if (place >= 0) button.tabIndex = i === place ? 0 : -1;
  });
}

/** Moves through `count` places with the arrow keys, Home and End; gives the new place, or null for another key. */
function moved(event, place, count, across = 1) {
  const on = getComputedStyle(event.currentTarget).direction === "rtl" ? -1 : 1;
  const steps = { ArrowLeft: -on, ArrowRight: on, ArrowUp: -across, ArrowDown: across };
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  let next = place;
  if (event.key in steps) next = place + steps[event.key];
  else if (event.key === "Home") next = 0;
  else if (event.key === "End") next = count - 1;
  else return null;
  event.preventDefault();
  return Math.min(Math.max(next, 0), count - 1);
}
