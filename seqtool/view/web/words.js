// Translating: type, see the alignment, force a word, look at the search, ask why one's own translation lost.

import { alignment } from "./alignment.js";
import { newest, post, settings } from "./asking.js";
import { fill, h, label, said } from "./elements.js";
import { tokens } from "./tokens.js";
import { searchTree } from "./tree.js";

const EXAMPLE = "I have a big cat but a small house.";
const END = "<end>";

export function wordsView(models) {
  const own = models[0].settings;
  const source = h("textarea", { rows: 3, "aria-label": "Text to translate", dir: "auto" }, EXAMPLE);
  const fields = {
    beam: { label: "Beam", kind: "number", value: own.beam, min: 1, max: 50 },
    n_best: { label: "n best", kind: "number", value: own.n_best, min: 1, max: 50 },
    length_penalty: { label: "Length penalty", kind: "choice", value: own.length_penalty, options: ["average", "none", "gnmt"] },
    length_alpha: { label: "α (gnmt)", kind: "number", value: own.length_alpha, min: 0, max: 10, step: 0.1 },
    sample: { label: "Sample", kind: "checkbox", value: own.sample },
    temperature: { label: "Temperature", kind: "number", value: own.temperature, min: 0.1, max: 10, step: 0.1 },
    seed: { label: "Seed", kind: "number", value: own.seed, min: 0 },
  };
  const columns = models.map((model, place) => column(model, place));
  const controls = settings(fields, () => all());
  const all = () => columns.forEach((one) => one.translate(source.value, controls.read()));
  const form = h(
    "form",
    {
      class: "asking",
      onsubmit: (event) => {
        event.preventDefault();
        columns.forEach((one) => one.forget());
        all();
      },
    },
    source,
    h("button", { class: "primary" }, "Translate"),
    controls.element,
  );
  source.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  all();
  return h("div", {}, form, h("div", { class: "columns" }, columns.map((one) => one.element)));
}

/** One model's translation of the text. */
function column(model, place) {
  const found = h("div", { class: "found", "aria-live": "polite" });
  let prefix = "";
  let last = ["", {}];

  const ask = newest(found, async (text, chosen) => {
    const sampling = Boolean(chosen.sample);
    const request = { sentences: [text], prefixes: prefix ? [prefix] : null, likeliest: 5, weights: model.attends, tree: !sampling, model: place, settings: chosen };
    const answer = await post("/api/translate", request);
    show(text, chosen, answer.translations[0].translations, answer.tree ?? null);
  });

  function translate(text, chosen) {
    last = [text, chosen];
    ask(text, chosen);
  }

  function force(predicted, at, token) {
    prefix = [...predicted.slice(0, at).map((one) => one.token), token].join("").replaceAll("▁", " ").trim();
    ask(...last);
  }

  function show(text, chosen, nBest, tree) {
    const best = nBest[0];
    const ends = best.ended ? [END] : [];
    const look = model.attends && best.attention && best.attention.length ? { source: best.source_tokens, target: [...best.tokens, ...ends], weights: best.attention } : null;
    const predicted = best.predicted ?? [];
    fill(
      found,
      prefix ? h("p", { class: "prefix" }, `Begins with “${prefix}” `, h("button", { type: "button", onclick: forgetAndAsk }, "Let it begin freely")) : null,
      h("p", { class: "translation", dir: "auto" }, best.text || "(nothing)"),
      h("p", { class: "status" }, `log-probability ${said(best.log_probability, 3)}, score ${said(best.score, 3)}${best.ended ? "" : ", cut off"}`),
      h("h3", {}, "Each token, and what else was expected: choose one to force it"),
      tokens(predicted, { onforce: (at, token) => (token === END ? null : force(predicted, at, token)) }),
      predicted.length ? forcing(predicted) : null,
      look ? h("h3", {}, "Where it looked") : null,
      look ? alignment(look) : null,
      nBest.length > 1 ? h("h3", {}, "The n best") : null,
      nBest.length > 1 ? h("ol", {}, nBest.map((one) => h("li", { dir: "auto" }, `${one.text} `, h("span", { class: "status" }, said(one.score, 3))))) : null,
      tree ? h("details", { class: "search" }, h("summary", {}, "The search"), searchTree(tree)) : null,
      tree ? mine(text, chosen, best) : null,
    );
  }

  /** A word of one's own in the place of another. */
  function forcing(predicted) {
    const word = h("input", { type: "text", "aria-label": "A word of your own", placeholder: "or type another word" });
    const at = h("select", { "aria-label": "In the place of" }, predicted.map((one, i) => h("option", { value: i }, `${i + 1}: ${label(one.token)}`)));
    const submit = (event) => {
      event.preventDefault();
      if (word.value.trim()) force(predicted, Number(at.value), `▁${word.value.trim()}`);
    };
    return h("form", { class: "controls", onsubmit: submit }, word, "instead of", at, h("button", {}, "Force it"));
  }

  /** Why not mine? */
  function mine(text, chosen, best) {
    const own = h("input", { type: "text", "aria-label": "Your translation", dir: "auto", value: best.text });
    const answer = h("div", { "aria-live": "polite" });
    const compare = newest(answer, async () => {
      const { translation, left } = await post("/api/why", { source: text, translation: own.value, model: place, settings: chosen });
      fill(answer, h("p", {}, `log-probability ${said(translation.log_probability, 3)}, score ${said(translation.score, 3)}; the best has ${said(best.log_probability, 3)} and ${said(best.score, 3)}.`), gone(left));
    });
    const submit = (event) => {
      event.preventDefault();
      compare();
    };
    return h("details", { class: "why" }, h("summary", {}, "Why not mine?"), h("form", { class: "controls", onsubmit: submit }, own, h("button", {}, "Compare")), answer);
  }

  function gone(left) {
    if (!left) return h("p", {}, "It stayed in the beam to its end.");
    if (left.over) return h("p", {}, `It was still in the beam when the search ended, after ${left.step} steps.`);
    const kept = left.beaten_by.map((one) => `${label(one.token)} (${said(one.log_probability, 3)})`).join(", ");
    return h("p", {}, `It left the beam at step ${left.step + 1}, at “${label(left.token)}”. Kept there: ${kept || "nothing"}.`);
  }

  function forget() {
    prefix = "";
  }

  function forgetAndAsk() {
    forget();
    ask(...last);
  }

  return { element: h("section", { class: "column", "aria-label": model.name }, h("h2", {}, model.name), found), translate, forget };
}
