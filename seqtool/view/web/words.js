// Translation: the alignment, forced words, the beam search, and why the user's own translation was not chosen.

import { alignment } from "./alignment.js";
import { modelColumn, newest, post, settings } from "./asking.js";
import { differing } from "./difference.js";
import { choice, fill, fixed, h, label, later } from "./elements.js";
import { explaining } from "./explaining.js";
import { END, joinedNumbers, joinedPieces, singly, wordGroups } from "./joining.js";
import { forceable, notes } from "./tokens.js";
import { searchTree } from "./tree.js";

const PAUSE = 500; // milliseconds without a keystroke before the text is translated
const EXAMPLE = "I have a big cat but a small house.";
const SETTINGS = ["beam", "n_best", "length_penalty", "length_alpha", "sample", "temperature", "seed"];

export function wordsView(models, kept) {
  const source = h("textarea", { rows: 3, "aria-label": "Text to translate", dir: "auto" }, kept.get("text", EXAMPLE));
  const columns = models.map((model) => column(model, kept));
  let timer = null;
  const controls = settings(models[0], SETTINGS, kept, () => all());
  const chosen = () => {
    const { temperature, ...others } = controls.read();
    return others.sample && temperature !== undefined ? { ...others, temperature } : others;
  };
  const all = () => {
    clearTimeout(timer);
    columns.forEach((column) => column.ask(source.value, chosen()));
  };
  const units = choice("Alignment and tokens", [["pieces", "Pieces"], ["words", "Words"]], kept.get("unit", "pieces"), (unit) => {
    kept.set("unit", unit === "pieces" ? null : unit);
    columns.forEach((column) => column.redraw());
  });
  const submit = (event) => {
    event.preventDefault();
    columns.forEach((column) => column.forget());
    all();
  };
  const button = h("button", { class: "primary" }, "Translate");
  const form = h("form", { class: "asking", onsubmit: submit }, source, button, controls.element, h("div", { class: "controls" }, "Show", units));
  source.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  source.addEventListener("input", () => {
    kept.set("text", source.value);
    kept.set("mine", null);
    clearTimeout(timer);
    timer = setTimeout(all, PAUSE);
  });
  all();
  return h("div", {}, form, h("div", { class: "columns" }, columns.map(({ element }) => element)));
}

/** The column of one model, with its translation of the text. */
function column(model, kept) {
  return modelColumn(model, kept, async (text, settings, prefix) => {
    const request = { sentences: [text], prefixes: prefix ? [prefix] : null, likeliest: 5, weights: model.attends, tree: !settings.sample, model: model.place, settings };
    const { translations, tree } = await post("/api/translate", request);
    const [{ source_cut: cut, source_unknown: unknown, translations: nBest }] = translations;
    const merged = text.trim().includes("\n") ? h("p", { class: "note" }, "The lines were read as one sentence.") : null;
    const why = tree ? mine({ text, best: nBest[0].text, model: model.place, settings }, kept) : null;
    const example = ({ tokens, ended }) => {
      const ask = (fields) => post("/api/inside", { source: text, text: tokens, model: model.place, ...fields });
      return { ask, tokens: [...tokens, ...(ended ? [END] : [])], attends: model.attends };
    };
    let rank = 0; // the rank of the translation that is shown
    const draw = (force, redraw) => {
      const choose = (next) => {
        rank = next;
        redraw();
      };
      const search = "The search" + (prefix ? " for what follows the forced beginning, with its numbers" : "");
      return [
        ...notes(cut, unknown),
        merged,
        ...translation(nBest, rank, force, kept),
        nBest.length > 1 ? list(nBest, rank, choose) : null,
        tree?.steps.length ? open("tree", kept, later(search, () => searchTree(tree, kept, rank), { class: "search", open: kept.get("tree", false) })) : null,
        why,
        ...explaining(example(nBest[rank]), kept),
      ];
    };
    return { text: nBest[0].text, draw };
  });
}

/** One of the n best translations: its text, its alignment and its predictions, by pieces or by words. */
function translation(nBest, rank, force, kept) {
  const one = nBest[rank];
  const target = [...one.tokens, ...(one.ended ? [END] : [])];
  const groups = kept.get("unit", "pieces") === "words" ? wordGroups : singly;
  const [rows, columns] = [groups(target), groups(one.source_tokens ?? [])];
  let looked = null;
  const beside = h("div", {});
  const title = rank ? differing(one.text, nBest[0].text) : one.text || "(nothing)";
  const { elements, choose } = forceable(one, force, { title, beside, groups: one.predicted ? groups(one.predicted.map(({ token }) => token)) : undefined, onlook: (place) => looked?.look(place), onchosen: (place) => looked?.look(place, true) });
  if (one.attention?.length) {
    const attention = target.map((_, t) => one.attention[t] ?? one.source_tokens.map(() => 0));
    const weights = joinedNumbers(attention, rows, columns, true);
    looked = alignment({ source: joinedPieces(one.source_tokens, columns), target: joinedPieces(target, rows), weights, onword: one.predicted ? choose : null, form: kept.get("form", "lines"), onform: (form) => kept.set("form", form === "lines" ? null : form) });
    fill(beside, h("h3", {}, "Where it looked"), looked.element);
  }
  return elements;
}

/** The list of the n best translations, with their scores and differences from the best. A click shows one. */
function list(nBest, rank, choose) {
  const [best] = nBest;
  const entry = (one, i) => {
    const behind = i ? `, ${fixed(best.score - one.score, 3)} behind the best` : "";
    return h("li", {}, h("button", { type: "button", class: "hypothesis", "aria-pressed": String(i === rank), onclick: () => choose(i) }, h("bdi", {}, i && i !== rank ? differing(one.text, best.text) : one.text || "(nothing)")), " ", h("span", { class: "status" }, fixed(one.score, 3), behind));
  };
  return h("div", {}, h("h3", {}, "The n best: choose one to see its tokens and its place in the tree"), h("ol", { class: "hypotheses" }, nBest.map(entry)));
}

/** Make a details element store in `kept` whether it is open. */
function open(name, kept, details) {
  details.addEventListener("toggle", () => details.isConnected && kept.set(name, details.open || null));
  return details;
}

/** The form that compares the user's own translation with the best one. */
function mine({ text, best: written, model, settings }, kept) {
  const own = h("input", { type: "text", "aria-label": "Your translation", dir: "auto", value: kept.get("mine", written), oninput: () => kept.set("mine", own.value === written ? null : own.value) });
  const answer = h("div", { "aria-live": "polite" });
  const compare = newest(answer, async () => {
    const { translation, best, left } = await post("/api/why", { source: text, translation: own.value, model, settings });
    fill(answer, h("p", {}, `log-probability ${fixed(translation.log_probability, 3)}, score ${fixed(translation.score, 3)}; the best has ${fixed(best.log_probability, 3)} and ${fixed(best.score, 3)}.`), h("p", {}, whereItLeft(left)));
  });
  const submit = (event) => {
    event.preventDefault();
    compare();
  };
  return open("why", kept, h("details", { class: "why", open: kept.get("why", false) }, h("summary", {}, "Why not mine?"), h("form", { class: "controls", onsubmit: submit }, own, h("button", {}, "Compare")), answer));
}

function whereItLeft(left) {
  if (!left) return "It stayed in the beam to its end.";
  if (left.over) return `It was still in the beam when the search ended, after ${left.step} steps.`;
  const kept = left.beaten_by.map((one) => `${label(one.token)} (${fixed(one.log_probability, 3)})`).join(", ");
  return `It left the beam at step ${left.step + 1}, at “${label(left.token)}”. Kept there: ${kept || "nothing"}.`;
}
