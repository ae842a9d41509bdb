// Makes the elements of a page. Text is inserted as text: the output of a model or a file is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Make an HTML element. `on…` attributes are listeners; attributes that are null, undefined or false are left out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an SVG element, with attributes as in `h`. */
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

/** Append children one by one, since there may be more than one call can take as arguments. */
function added(element, children) {
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(typeof child === "string" ? inert(child) : child);
  return element;
}

/** Replace all children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return added(element, children);
}

const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g; // characters that change the direction of text

/** The text with escapes for characters that change its direction, so that it is shown in the order it is stored. */
export function inert(text) {
  return text.replace(DIRECTIONS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

let numbers = 0;

/** An id that no other element has. */
export function unique(prefix) {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

/** A list of facts, each a name and a text. */
export function facts(rows) {
  return h("dl", { class: "facts" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A details element whose content is made when it is first opened. */
export function later(title, make, attributes = {}) {
  const details = h("details", { ...attributes, ontoggle: () => details.children.length === 1 && details.append(make()) }, h("summary", {}, title));
  return details;
}

/** A number with this number of decimals; "–" for null, undefined and NaN. */
export function fixed(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value.toFixed(digits).replace(/^-(?=[0.]*$)/, ""); // never -0.000
}

/** A number with commas, such as 12,345; with a noun, which gets an s unless the number is 1: 12,345 steps. */
export function counted(value, noun = "") {
  const number = String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return noun ? `${number} ${noun}${value === 1 ? "" : "s"}` : number;
}

/** The text that is shown for a piece: ▁ becomes a space, and line ends and tabs become visible signs. */
export function shown(piece) {
  return inert(piece.replaceAll("▁", " ").replaceAll("\n", "⏎").replaceAll("\t", "⇥"));
}

/** The text that is shown for a piece that stands alone: as in `shown`, but with a sign for a space. */
export function label(piece) {
  return shown(piece).trim() || "␣";
}

/** A group of buttons of which exactly one is selected; `choose` is called with the value of a button on a click. */
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
 * A drawing with `count` items, in rows of `across`. The arrow keys move through them, and `go(index)` moves to any.
 * `show(index, byKey)` is called after each move, and `enter(index)` when Enter is pressed. `width` and `height` are in
 * pixels at a font size of 16 pixels, and scale with the font size.
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

/** A row of buttons. The Tab key reaches one of them, and the arrow keys call `move` with the index of another. */
export function buttonRow({ move, ...attributes }, buttons) {
  const onkeydown = (event) => {
    const place = buttons.indexOf(event.target);
    const next = place < 0 ? null : moved(event, place, buttons.length);
    if (next !== null) move(next);
  };
  return h("div", { class: "tokens", dir: "auto", role: "group", onkeydown, ...attributes }, buttons);
}

/** Mark the button with this index in a row; -1 marks none. */
export function mark(buttons, place) {
  buttons.forEach((button, i) => {
    button.classList.toggle("on", i === place);
    if (place >= 0) button.tabIndex = i === place ? 0 : -1;
  });
}

/** The index to which an arrow key, Home or End moves among `count` items; null for any other key. */
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
