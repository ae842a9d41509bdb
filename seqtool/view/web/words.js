// Translating: type, see the alignment, force a word, look at the search, ask why one's own translation lost.

import { alignment } from "./alignment.js";
import { modelColumn, newest, post, settings } from "./asking.js";
import { fill, fixed, h, label, later } from "./elements.js";
import { END, forceable, notes } from "./tokens.js";
import { searchTree } from "./tree.js";

const PAUSE = 500; // milliseconds without a key before the text is translated
const EXAMPLE = "I have a big cat but a small house.";

export function wordsView(models) {
  const source = h("textarea", { rows: 3, "aria-label": "Text to translate", dir: "auto" }, EXAMPLE);
  const columns = models.map(column);
  let timer = null;
  const controls = settings(models[0], ["beam", "n_best", "length_penalty", "length_alpha", "sample", "temperature", "seed"], () => all());
  const chosen = () => {
    const { temperature, ...others } = controls.read();
    return others.sample && temperature !== undefined ? { ...others, temperature } : others;
  };
  const all = () => columns.forEach((column) => column.ask(source.value, chosen()));
  const form = h(
    "form",
    {
      class: "asking",
      onsubmit: (event) => {
        event.preventDefault();
        clearTimeout(timer);
        columns.forEach((column) => column.forget());
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
  return h("div", {}, form, h("div", { class: "columns" }, columns.map(({ element }) => element)));
}

/** One model's translation of the text. */
function column(model, place) {
  return modelColumn(model, async (text, settings, prefix, { force, begins }) => {
    const request = { sentences: [text], prefixes: prefix ? [prefix] : null, likeliest: 5, weights: model.attends, tree: !settings.sample, model: place, settings };
    const { translations, tree } = await post("/api/translate", request);
    const [{ source_cut: cut, source_unknown: unknown, translations: nBest }] = translations;
    const [best] = nBest;
    const target = [...best.tokens, ...(best.ended ? [END] : [])];
    const { elements, choose } = forceable(best, force);
    const elementsBelow = [
      best.attention?.length ? [h("h3", {}, "Where it looked"), alignment({ source: best.source_tokens, target, weights: best.attention, onword: best.predicted ? choose : null })] : [],
      nBest.length > 1 ? [h("h3", {}, "The n best"), h("ol", {}, nBest.map((one) => h("li", {}, h("bdi", {}, one.text), " ", h("span", { class: "status" }, fixed(one.score, 3)))))] : [],
      tree?.steps.length ? later(prefix ? "The search for what follows the forced beginning, with its numbers" : "The search", () => searchTree(tree), { class: "search" }) : null,
      tree ? mine({ text, best: best.text, model: place, settings }) : null,
    ];
    const merged = text.trim().includes("\n") ? h("p", { class: "note" }, "The lines were read as one sentence.") : null;
    return { text: best.text, elements: [...notes(cut, unknown), merged, begins, ...elements, ...elementsBelow.flat()] };
  });
}

/** Why not mine? */
function mine({ text, best: written, model, settings }) {
  const own = h("input", { type: "text", "aria-label": "Your translation", dir: "auto", value: written });
  const answer = h("div", { "aria-live": "polite" });
  const compare = newest(answer, async () => {
    const { translation, best, left } = await post("/api/why", { source: text, translation: own.value, model, settings });
    fill(answer, h("p", {}, `log-probability ${fixed(translation.log_probability, 3)}, score ${fixed(translation.score, 3)}; the best has ${fixed(best.log_probability, 3)} and ${fixed(best.score, 3)}.`), h("p", {}, whereItLeft(left)));
  });
  const submit = (event) => {
    event.preventDefault();
    compare();
  };
  return h("details", { class: "why" }, h("summary", {}, "Why not mine?"), h("form", { class: "controls", onsubmit: submit }, own, h("button", {}, "Compare")), answer);
}

function whereItLeft(left) {
  if (!left) return "It stayed in the beam to its end.";
  if (left.over) return `It was still in the beam when the search ended, after ${left.step} steps.`;
  const kept = left.beaten_by.map((one) => `${label(one.token)} (${fixed(one.log_probability, 3)})`).join(", ");
  return `It left the beam at step ${left.step + 1}, at “${label(left.token)}”. Kept there: ${kept || "nothing"}.`;
}
