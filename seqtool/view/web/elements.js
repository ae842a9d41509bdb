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

/** A number with so many digits after the point; "–" for none. */
export function said(value, digits = 2) {
  return value === null || value === undefined || Number.isNaN(value) ? "–" : value.toFixed(digits);
}

/** 12,345 */
export function counted(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
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

/** Moves through `count` places with the arrow keys, Home and End; gives the new place, or null for another key. */
export function moved(event, place, count, across = 1) {
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
