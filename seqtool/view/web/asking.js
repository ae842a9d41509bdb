// Asking the server, and telling what it answers.

import { fill, h } from "./elements.js";

/** The answer to a JSON request; an Error with the server's sentence if it refuses. */
export async function post(path, body) {
  const form = body instanceof FormData;
  const response = await fetch(path, { method: "POST", body: form ? body : JSON.stringify(body), headers: form ? {} : { "content-type": "application/json" } });
  if (!response.ok) throw new Error((await response.text()).trim() || `The server answered ${response.status}.`);
  return response.json();
}

export async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

/**
 * Runs one request after another, only the newest of those that came meanwhile, and says what goes wrong; `rescue` gives
 * what stands below that.
 */
export function newest(place, work, rescue = () => null) {
  let running = false;
  let waiting = null;
  async function run(...given) {
    if (running) {
      waiting = given;
      return;
    }
    running = true;
    const focused = place.contains(document.activeElement);
    place.setAttribute("aria-busy", "true");
    try {
      await work(...given);
    } catch (error) {
      fill(place, h("p", { class: "error", role: "alert" }, error.message), rescue(...given));
    }
    place.setAttribute("aria-busy", "false");
    running = false;
    if (focused && document.activeElement === document.body) first(place)?.focus(); // what had the focus is gone
    if (waiting) {
      const next = waiting;
      waiting = null;
      run(...next);
    }
  }
  return run;
}

function first(place) {
  return place.querySelector(".force") ?? place.querySelector(".predicted button") ?? place.querySelector("button");
}

/** Whether a place waits for an answer: what stands there is of the question before. */
export function busy(place) {
  return place.getAttribute("aria-busy") === "true";
}

/** Inputs for settings: {name: {label, kind, value, min, max, step, options}}; `read()` gives those that were changed. */
export function settings(fields, changed) {
  const inputs = {};
  const rows = Object.entries(fields).map(([name, { label, kind, value, options, ...rest }]) => {
    inputs[name] =
      kind === "choice"
        ? h("select", { onchange: changed }, options.map((one) => h("option", { value: one, selected: one === value }, one)))
        : h("input", { type: kind, value: kind === "checkbox" ? null : value, checked: kind === "checkbox" && value, onchange: changed, ...rest });
    return h("label", { class: "setting" }, label, inputs[name]);
  });
  const read = () =>
    Object.fromEntries(
      Object.entries(fields)
        .map(([name, { kind, value }]) => {
          const input = inputs[name];
          const now = kind === "checkbox" ? input.checked : kind === "number" ? Number(input.value) : input.value;
          return [name, now, value];
        })
        .filter(([, now, before]) => now !== before)
        .map(([name, now]) => [name, now]),
    );
  return { element: h("div", { class: "controls" }, rows), read };
}
