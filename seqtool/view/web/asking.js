// Asking the server, and showing what it answers.

import { fill, h } from "./elements.js";
import { written } from "./tokens.js";

/** The answer to a JSON request or a form; an Error with the server's sentence if it refuses. */
export async function post(path, body) {
  const form = body instanceof FormData;
  return answered(await fetch(path, { method: "POST", body: form ? body : JSON.stringify(body), headers: form ? {} : { "content-type": "application/json" } }));
}

export async function get(path) {
  return answered(await fetch(path));
}

async function answered(response) {
  if (!response.ok) throw new Error((await response.text()).trim() || `The server answered ${response.status}.`);
  return response.json();
}

/**
 * Runs one request after another, only the newest of those that came meanwhile, and shows what goes wrong; `rescue` gives
 * what stands below that.
 */
export function newest(place, work, rescue = () => null) {
  let running = false;
  let waiting = null;
  async function run(...question) {
    if (running) {
      waiting = question;
      return;
    }
    running = true;
    const focused = place.contains(document.activeElement);
    place.setAttribute("aria-busy", "true");
    try {
      await work(...question);
    } catch (error) {
      fill(place, h("p", { class: "error", role: "alert" }, error.message), rescue(...question));
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

/**
 * A model's column, where one answer after another is shown, each to a question (a text or a picture), settings, and a
 * prefix (a text or tokens) with which the answer is forced to begin. `answer` gets these, `force`, to ask again with
 * another prefix, and an element about the prefix; it gives the text and the elements to show.
 */
export function modelColumn(model, answer) {
  const place = h("div", { class: "answer" });
  const spoken = h("p", { class: "spoken", "aria-live": "polite" });
  let last = { question: null, prefix: "" };

  function ask(question, settings, prefix) {
    last = { question, prefix };
    run(question, settings, prefix);
  }

  const removal = (question, settings) => h("button", { type: "button", onclick: () => ask(question, settings, "") }, "Remove the prefix");

  async function show(question, settings, prefix) {
    const force = (beginning) => place.getAttribute("aria-busy") === "true" || ask(question, settings, beginning);
    const begins = prefix ? h("p", { class: "prefix" }, "Begins with “", h("bdi", {}, written(prefix)), typeof prefix === "string" ? "”; the last word may be completed " : "” ", removal(question, settings)) : null;
    const { text, elements } = await answer(question, settings, prefix, { force, begins });
    fill(spoken, text || "(nothing)");
    fill(place, elements);
  }

  const run = newest(place, show, (question, settings, prefix) => (prefix ? removal(question, settings) : null));

  return {
    element: h("section", { class: "column", "aria-label": model.name }, h("h2", {}, model.name), spoken, place),
    ask: (question, settings) => ask(question, settings, question === last.question ? last.prefix : ""), // a prefix stays as long as the question
    forget: () => {
      last = { question: null, prefix: "" };
    },
  };
}

const FIELDS = {
  beam: { label: "Beam", min: 1, max: 50 },
  n_best: { label: "n best", min: 1, max: 50 },
  length_penalty: { label: "Length penalty", options: ["average", "none", "gnmt"] },
  length_alpha: { label: "α (gnmt)", min: 0, max: 10, step: "any" },
  sample: { label: "Sample", type: "checkbox" },
  temperature: { label: "Temperature", min: 0.1, max: 10, step: "any" },
  top_k: { label: "top k (0: all)", min: 0 },
  top_p: { label: "top p", min: 0.05, max: 1, step: "any" },
  max_length: { label: "Tokens", min: 1, max: 500 },
  hard_attention: { label: "Attention", options: ["expected", "argmax", "sample"] },
  seed: { label: "Seed", min: 0 },
};

/** Inputs for some of a model's settings; `read()` gives those that were changed. */
export function settings(model, names, changed = () => {}) {
  const fields = names.map((name) => {
    const { label, options, type = "number", ...range } = FIELDS[name];
    const value = model.settings[name];
    const choice = () => h("select", { onchange: changed }, options.map((option) => h("option", { value: option, selected: option === value }, option)));
    const input = options ? choice() : h("input", { type, ...(type === "number" ? { value } : { checked: value }), onchange: changed, ...range });
    const now = () => (options ? input.value : type === "number" ? Number(input.value) : input.checked);
    return { name, value, now, element: h("label", { class: "setting" }, label, input) };
  });
  const read = () => Object.fromEntries(fields.filter(({ value, now }) => now() !== value).map(({ name, now }) => [name, now()]));
  return { element: h("div", { class: "controls" }, fields.map(({ element }) => element)), read };
}
