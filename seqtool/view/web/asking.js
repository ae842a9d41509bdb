// Sends requests to the server and shows its answers.

import { fill, h, label } from "./elements.js";
import { written } from "./tokens.js";

const RETRY = 2000; // milliseconds before another attempt to reach a server that did not answer

/** Return the answer to a JSON request or a form. Throws an Error with the server's message if it refuses. */
export async function post(path, body) {
  const form = body instanceof FormData;
  return answered(path, { method: "POST", body: form ? body : JSON.stringify(body), headers: form ? {} : { "content-type": "application/json" } });
}

export async function get(path) {
  return answered(path);
}

/** Return the server's answer. Errors name settings as the page does; `offline` is true if there was no answer. */
async function answered(path, request) {
  const response = await fetch(path, request).catch(() => {
    throw Object.assign(new Error("The server does not answer. If it was stopped, start seqtool demo again with the same port: this page then continues."), { offline: true });
  });
  if (response.ok) return response.json();
  const text = (await response.text()).trim() || `The server answered ${response.status}.`;
  throw new Error(text.replace(/\b[a-z]+(_[a-z]+)+\b/g, (name) => (FIELDS[name] ? `“${FIELDS[name].label}”` : name)));
}

/**
 * Returns a function that runs `work`, one request at a time; of the requests that arrive meanwhile, only the newest is
 * run. An error is shown above `place`, which keeps the last answer, with the elements that `rescue` returns. If the
 * server does not answer, the request is sent again.
 */
export function newest(place, work, rescue = () => null) {
  const trouble = h("div", { class: "trouble" });
  let running = false;
  let waiting = null;
  let timer = null;
  async function run(...question) {
    clearTimeout(timer);
    if (running) {
      waiting = question;
      return;
    }
    running = true;
    const focused = place.parentElement?.contains(document.activeElement);
    place.setAttribute("aria-busy", "true");
    try {
      await work(...question);
      trouble.remove();
    } catch (error) {
      fill(trouble, h("p", { class: "error", role: "alert" }, error.message), rescue(...question));
      place.before(trouble);
      if (error.offline) timer = setTimeout(run, RETRY, ...question);
    }
    place.classList.toggle("stale", trouble.isConnected);
    place.setAttribute("aria-busy", "false");
    running = false;
    const next = place.querySelector(".force") ?? place.querySelector(".predicted button") ?? place.querySelector("button");
    if (focused && document.activeElement === document.body) next?.focus(); // the element that had the focus was removed
    const newer = waiting;
    waiting = null;
    if (newer) run(...newer);
  }
  return run;
}

/** Whether a value is a string or a list of tokens, none of them empty. */
function isPrefix(value) {
  return typeof value === "string" || (Array.isArray(value) && value.every((token) => token && typeof token === "string"));
}

/**
 * The column of a model, which shows its latest answer. `answer(question, settings, prefix)` asks for it: the question
 * is a text or a picture, and the prefix (a string or tokens) is forced at the beginning. It returns {text, draw};
 * `draw(force, redraw)` returns the elements to show, and `force(prefix)` asks again with another prefix. The prefixes
 * that were forced one after another are stored in `kept`, and each can be taken back.
 */
export function modelColumn(model, kept, answer) {
  const place = h("div", { class: "answer" });
  const begun = h("div", { class: "begun" });
  const spoken = h("p", { class: "spoken", "aria-live": "polite" });
  const name = `begins.${model.place}`;
  let last = { question: null, settings: {}, begins: kept.get(name, []).filter(isPrefix) };
  let drawn = null; // the answer that is shown, with its question and prefixes

  function ask(question, settings, begins) {
    last = { question, settings, begins };
    kept.set(name, begins.length ? begins : null);
    run(question, settings, begins);
  }

  const again = (begins) => ask(last.question, last.settings, begins);
  const removal = (begins) => (begins.length ? h("button", { type: "button", onclick: () => again([]) }, "Remove the prefix") : null);

  function force(prefix) {
    if (last.question !== drawn.question || last.begins !== drawn.begins) return false; // the tokens shown are about to change
    again([...last.begins.filter((before) => written(before) !== written(prefix) && written(prefix).startsWith(written(before))), prefix]);
    return true;
  }

  /** The prefix, and for each forced word a button that takes back this word and all later ones. */
  function beginning(begins) {
    if (!begins.length) return null;
    const prefix = begins.at(-1);
    const word = (one) => (typeof one === "string" ? one.trim().split(/\s+/).at(-1) : label(one.at(-1) ?? ""));
    const takeBack = begins.map((one, i) => h("button", { type: "button", class: "taken", "aria-label": `Take back ${word(one)}`, onclick: () => again(begins.slice(0, i)) }, `✕ ${word(one)}`));
    return h("div", { class: "controls" }, h("p", { class: "prefix" }, "Begins with “", h("bdi", {}, written(prefix)), typeof prefix === "string" ? "”; the last word may be completed" : "”"), takeBack, removal(begins));
  }

  async function show(question, settings, begins) {
    try {
      const shown = await answer(question, settings, begins.at(-1) ?? "");
      drawn = { ...shown, question, begins };
    } catch (error) {
      if (!error.offline && drawn?.question === question && last.begins === begins) {
        last.begins = drawn.begins; // the prefixes of the answer that is still shown
        kept.set(name, drawn.begins.length ? drawn.begins : null);
      }
      throw error;
    }
    fill(spoken, drawn.text || "(nothing)");
    fill(begun, beginning(begins));
    redraw();
  }

  function redraw() {
    const focused = document.activeElement?.closest(".hypothesis");
    const typed = place.querySelector(".own");
    const typing = typed && typed === document.activeElement;
    if (drawn) fill(place, drawn.draw(force, redraw));
    const own = place.querySelector(".own");
    if (own && typed) own.value = typed.value; // an answer does not remove a word that is being typed
    if (typing) own?.focus();
    if (focused) place.querySelector('.hypothesis[aria-pressed="true"]')?.focus();
  }

  const run = newest(place, show, () => (drawn?.question === last.question ? null : removal(last.begins)));

  return {
    element: h("section", { class: "column", "aria-label": model.name }, h("h2", {}, model.name), spoken, begun, place),
    ask: (question, settings) => ask(question, settings, last.question === null || question === last.question ? last.begins : []), // a prefix is dropped when the question changes
    redraw,
    forget: () => {
      last.begins = [];
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
  hard_attention: { label: "Hard attention", options: ["expected", "argmax", "sample"] },
  seed: { label: "Seed", min: 0 },
};

/** Inputs for some of a model's settings, stored in `kept`. The result's `read()` returns those that were changed. */
export function settings(model, names, kept, changed = () => {}) {
  const fields = names.map((name) => {
    const { label, options, type = "number", ...range } = FIELDS[name];
    const value = model.settings[name];
    const begin = kept.get(name, value);
    const now = () => (options ? input.value : type === "number" ? Number(input.value) : input.checked);
    const onchange = () => {
      kept.set(name, now() === value ? null : now());
      changed();
    };
    const choice = () => h("select", { onchange }, options.map((option) => h("option", { value: option, selected: option === begin }, option)));
    const input = options ? choice() : h("input", { type, ...(type === "number" ? { value: begin } : { checked: begin }), onchange, ...range });
    return { name, value, now, element: h("label", { class: "setting" }, label, input) };
  });
  const read = () => Object.fromEntries(fields.filter(({ value, now }) => now() !== value).map(({ name, now }) => [name, now()]));
  return { element: h("div", { class: "controls" }, fields.map(({ element }) => element)), read };
}
