// Translating: type, see the alignment, force a word, look at the search, ask why one's own translation lost.

import { alignment } from "./alignment.js";
import { busy, newest, post, settings } from "./asking.js";
import { fill, h, label, said } from "./elements.js";
import { begun, forcing, notes, probabilities, tokens, written } from "./tokens.js";
import { searchTree } from "./tree.js";

const END = "<end>";
const PAUSE = 500; // milliseconds without a key before the text is translated
const EXAMPLE = "I have a big cat but a small house.";

export function wordsView(models) {
  const own = models[0].settings;
  const source = h("textarea", { rows: 3, "aria-label": "Text to translate", dir: "auto" }, EXAMPLE);
  const fields = {
    beam: { label: "Beam", kind: "number", value: own.beam, min: 1, max: 50 },
    n_best: { label: "n best", kind: "number", value: own.n_best, min: 1, max: 50 },
    length_penalty: { label: "Length penalty", kind: "choice", value: own.length_penalty, options: ["average", "none", "gnmt"] },
    length_alpha: { label: "α (gnmt)", kind: "number", value: own.length_alpha, min: 0, max: 10, step: "any" },
    sample: { label: "Sample", kind: "checkbox", value: own.sample },
    temperature: { label: "Temperature", kind: "number", value: own.temperature, min: 0.1, max: 10, step: "any" },
    seed: { label: "Seed", kind: "number", value: own.seed, min: 0 },
  };
  const columns = models.map((model, place) => column(model, place));
  let timer = null;
  const controls = settings(fields, () => all());
  const chosen = () => {
    const { temperature, ...others } = controls.read();
    return others.sample && temperature !== undefined ? { ...others, temperature } : others;
  };
  const all = () => columns.forEach((one) => one.translate(source.value, chosen()));
  const form = h(
    "form",
    {
      class: "asking",
      onsubmit: (event) => {
        event.preventDefault();
        clearTimeout(timer);
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
  source.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(all, PAUSE);
  });
  all();
  return h("div", {}, form, h("div", { class: "columns" }, columns.map((one) => one.element)));
}

/** One model's translation of the text. */
function column(model, place) {
  const found = h("div", { class: "found" });
  const spoken = h("p", { class: "spoken", "aria-live": "polite" });
  let last = ["", {}, ""]; // the text, the settings and the prefix (text or tokens) that were asked for

  const run = newest(
    found,
    async (text, chosen, prefix) => {
      const sampling = Boolean(chosen.sample);
      const request = { sentences: [text], prefixes: prefix ? [prefix] : null, likeliest: 5, weights: model.attends, tree: !sampling, model: place, settings: chosen };
      const answer = await post("/api/translate", request);
      show(text, chosen, prefix, answer.translations[0], answer.tree ?? null);
    },
    (text, chosen, prefix) => (prefix ? freely(text, chosen) : null),
  );

  function ask(...given) {
    last = given;
    run(...given);
  }

  /** A prefix stays as long as the text does. */
  function translate(text, chosen) {
    ask(text, chosen, text === last[0] ? last[2] : "");
  }

  const freely = (text, chosen) => h("button", { type: "button", onclick: () => ask(text, chosen, "") }, "Remove the prefix");

  function show(text, chosen, prefix, line, tree) {
    const nBest = line.translations;
    const force = (beginning) => busy(found) || ask(text, chosen, beginning);
    const best = nBest[0];
    const ends = best.ended ? [END] : [];
    const look = model.attends && best.attention && best.attention.length ? { source: best.source_tokens, target: [...best.tokens, ...ends], weights: best.attention } : null;
    const predicted = best.predicted ?? [];
    const typed = forcing([...best.tokens, ...ends], force);
    const expected = tokens(predicted, { onforce: (at, token) => force(begun(best.tokens, at, token)), onchosen: typed.replace });
    fill(spoken, best.text || "(nothing)");
    fill(
      found,
      notes(line.source_cut, line.source_unknown),
      text.trim().includes("\n") ? h("p", { class: "note" }, "The lines were read as one sentence.") : null,
      prefix ? h("p", { class: "prefix" }, "Begins with “", h("bdi", {}, written(prefix)), typeof prefix === "string" ? "”, whose last word may go on " : "” ", freely(text, chosen)) : null,
      h("p", { class: "translation", dir: "auto" }, best.text || "(nothing)"),
      probabilities(best),
      h("h3", {}, "Each token, and what else was expected: choose one to force it"),
      expected.element,
      predicted.length ? typed.element : null,
      look ? h("h3", {}, "Where it looked") : null,
      look ? alignment({ ...look, onword: predicted.length ? expected.choose : null }) : null,
      nBest.length > 1 ? h("h3", {}, "The n best") : null,
      nBest.length > 1 ? h("ol", {}, nBest.map((one) => h("li", {}, h("bdi", {}, one.text), " ", h("span", { class: "status" }, said(one.score, 3))))) : null,
      tree?.steps.length ? search(tree, Boolean(prefix)) : null,
      tree ? mine(text, chosen, best.text) : null,
    );
  }

  /** Drawn when it is opened: a wide beam has thousands of continuations. */
  function search(tree, forced) {
    const name = forced ? "The search for what follows the forced beginning, with its numbers" : "The search";
    const details = h("details", { class: "search", ontoggle: () => details.children.length === 1 && details.append(searchTree(tree)) }, h("summary", {}, name));
    return details;
  }

  /** Why not mine? */
  function mine(text, chosen, found) {
    const own = h("input", { type: "text", "aria-label": "Your translation", dir: "auto", value: found });
    const answer = h("div", { "aria-live": "polite" });
    const compare = newest(answer, async () => {
      const { translation, best, left } = await post("/api/why", { source: text, translation: own.value, model: place, settings: chosen });
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
    last = ["", {}, ""];
  }

  return { element: h("section", { class: "column", "aria-label": model.name }, h("h2", {}, model.name), spoken, found), translate, forget };
}
