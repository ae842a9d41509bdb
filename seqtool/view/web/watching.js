// What a model wrote, and where it looked, at each validation of its training.

import { alignment } from "./alignment.js";
import { counted, facts, fill, h, unique } from "./elements.js";
import { looking } from "./pictures.js";

/** The samples of a run's validations, with a slider that chooses the validation. It keeps the chosen form and words. */
export function samples({ steps, pictures }) {
  const place = h("div", {});
  const chosen = { form: "map", words: [] };
  const id = unique("validation");
  const slider = h("input", { id, type: "range", min: 0, max: steps.length - 1, value: steps.length - 1, oninput: () => show(Number(slider.value)) });
  const status = h("output", { class: "status", for: id });
  function show(i) {
    status.textContent = `after ${counted(steps[i].step, "step")} (validation ${i + 1} of ${steps.length})`;
    slider.setAttribute("aria-valuetext", status.textContent);
    fill(place, steps[i].samples.map((sample, k) => shownSample(sample, pictures, chosen, k)));
  }
  show(steps.length - 1);
  return h("div", { class: "samples" }, h("div", { class: "controls" }, h("label", { for: id }, "Validation"), slider, status), place);
}

/** A sample and where the model looked. `chosen`: the form of alignments, and the word held in each sample `k`. */
function shownSample({ attention, ...texts }, pictures, chosen, k) {
  const told = facts(Object.entries(texts));
  if (!attention) return told;
  const { source, target, weights, grid } = attention;
  if (source) return h("div", {}, told, alignment({ source, target, weights, form: chosen.form, onform: (form) => { chosen.form = form; } }).element);
  const held = (word) => { chosen.words[k] = word; };
  const view = looking({ picture: pictures[texts.image], name: texts.image, words: target, attention: weights, grid, scrub: true, onhold: held });
  view.hold(chosen.words[k] ?? -1);
  return h("div", {}, told, view.element);
}
