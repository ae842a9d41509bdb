// Inside a model: the states, gates and attention heads of an example, and what each of its tokens depends on.

import { choice, fill, fixed, h, label, shown } from "./elements.js";
import { heatMap } from "./heat.js";
import { looking } from "./pictures.js";
import { saveButton } from "./saving.js";
import { percent } from "./tokens.js";

export const METHODS = { attention: "attention", gradient: "gradient × input", integrated: "integrated gradients", occlusion: "occlusion" };

/** What a model computed for an example, from the record of `seqtool.predict.trace.Trace`. `kept` stores the choice. */
export function states({ labels, arrays }, kept = null) {
  const shownArrays = arrays.filter(({ axes }) => axes.at(-1) !== "location");
  if (!shownArrays.length) return h("p", { class: "empty" }, "This model has no states or attention to show.");
  const place = h("div", {});
  const named = (name) => shownArrays.find((one) => one.name === name) ?? shownArrays[0];
  const chosen = named(kept?.get("array", ""));
  const select = h("select", { "aria-label": "What to show", onchange: () => show(select.value) }, shownArrays.map((one) => h("option", { value: one.name, selected: one.name === chosen.name }, titled(one, shownArrays))));
  function show(name) {
    kept?.set("array", name);
    const array = named(name);
    fill(place, array.units ? units(array, labels[array.axes[0]]) : heads(array, labels));
  }
  show(chosen.name);
  return h("div", { class: "inside" }, h("div", { class: "controls" }, select, saveButton(() => place.querySelector("svg"), "inside")), place);
}

/** The name of an array; for one with heads, its kind and its layer, counted from 1. */
function titled(array, arrays) {
  if (array.axes.length < 3) return array.name;
  const kind = ({ axes }) => (axes.at(-1) === "key" ? `${axes[0] === "source" ? "encoder" : "decoder"} self-attention` : "cross-attention");
  const layer = arrays.filter((one) => one.axes.length === 3 && kind(one) === kind(array)).indexOf(array) + 1;
  return `${kind(array)}, layer ${layer} (${array.name})`;
}

/** The units of a cell, or of one of its gates, at each token; the text is coloured by the chosen unit. */
function units({ name, units: numbers, gate, values }, tokens) {
  const largest = gate ? 1 : Math.max(...values.flat().map(Math.abs), 1e-9);
  const text = h("p", { class: "coloured", dir: "auto" });
  const unit = (u) => `${name}[${numbers[u]}]`;
  const colour = (u) => fill(text, h("span", { class: "status" }, `${unit(u)}: `), tokens.map((token, t) => coloured(token, values[t][u], largest)));
  const rate = (t) => (gate ? `. All units: mean ${fixed(gate[0][t])}, ${percent(gate[1][t])} closed (under 0.1), ${percent(gate[2][t])} open (over 0.9)` : "");
  const read = (u, t) => `${unit(u)} after “${label(tokens[t])}”: ${fixed(values[t][u], 3)}${rate(t)}`;
  const rows = numbers.map(String);
  const map = heatMap({ rows, columns: tokens, values: rows.map((_, u) => values.map((ofToken) => ofToken[u])), largest, read, onrow: colour, name: `${name}: rows are units, columns tokens` });
  colour(0);
  const mean = (i) => gate[i].reduce((sum, one) => sum + one, 0) / tokens.length;
  const scale = gate ? "from 0 (white: closed) to 1 (blue: open)" : `from −${fixed(largest)} (orange) to ${fixed(largest)} (blue)`;
  const whole = gate ? ` All units at all tokens: mean ${fixed(mean(0))}, ${percent(mean(1))} closed (under 0.1), ${percent(mean(2))} open (over 0.9).` : "";
  const note = `The ${rows.length} units that vary most, ${scale}. The text is coloured by the chosen unit.${whole}`;
  return [h("p", { class: "note" }, note), text, map.element];
}

/** A token on the colour of a number; that of `largest` is the strongest. */
function coloured(token, value, largest) {
  const span = h("span", { class: value < 0 ? "against" : "for", title: fixed(value) }, shown(token));
  span.style.setProperty("--strength", (Math.abs(value) / largest).toFixed(3));
  return span;
}

/** Attention by head, which a row of buttons chooses, or without heads. A row of attention to a source is the step that
 * reads a token and writes the next.
 */
function heads({ name, axes, values }, labels) {
  const tokens = labels[axes[0]];
  const isCross = axes.at(-1) !== "key";
  const rows = isCross ? tokens.map((token, t) => `${shown(token).trim()} → ${t + 1 < tokens.length ? shown(tokens[t + 1]).trim() : "…"}`) : tokens;
  const columns = isCross ? labels[axes.at(-1)] : tokens;
  const place = h("div", {});
  const ofHead = (head) => values.map((row) => (axes.length === 3 ? row[head] : row));
  function show(head) {
    const weights = ofHead(head);
    const read = (t, i) => `${label(rows[t])} ← ${label(columns[i])}: ${fixed(weights[t][i], 3)}`;
    fill(place, heatMap({ rows, columns, values: weights, read, name: `${name}: rows look at columns` }).element);
  }
  show(0);
  const buttons = axes.length === 3 ? choice("Head", values[0].map((_, head) => [head, `Head ${head + 1}`]), 0, show) : null;
  return [buttons, place];
}

/** An attribution: `record` is that of `seqtool.predict.attribution.Attribution`; `word` is shown on the picture. */
export function attribution(record, picture = null, word = -1) {
  const { method, tokens, read, contrast = [], explained, source = null, source_tokens: sourceTokens, prefix = null, grid = null } = record;
  const rows = tokens.map((token, t) => (contrast[t] ? `${shown(token).trim()}, not ${shown(contrast[t]).trim()}` : token));
  const unit = method === "attention" ? "" : " nats";
  const elements = [];
  if (grid && source && picture) {
    const largest = method === "attention" ? null : Math.max(...source.flat().map((value) => Math.abs(value ?? 0)), 1e-9);
    const name = largest ? `the picture, blue where it speaks for a word and orange against it (${METHODS[method]})` : "the picture, bright where a word looked";
    const view = looking({ picture, name, words: rows, attention: source.map((ofToken) => ofToken.map((value) => value ?? 0)), grid, largest });
    view.hold(word);
    elements.push(view.element, h("p", { class: "note" }, `Choose a word.${largest ? ` The full colour is ${fixed(largest, 3)} nats.` : ""}`));
  }
  const sides = [[grid ? null : source, sourceTokens], [prefix, read]].filter(([values]) => values);
  if (sides.length) {
    const columns = sides.flatMap(([, labels]) => labels);
    const values = rows.map((_, t) => sides.flatMap(([ofSide]) => ofSide[t]));
    const largest = method === "attention" ? 1 : Math.max(...values.flat().map((value) => Math.abs(value ?? 0)), 1e-9);
    const told = (t) => (method === "attention" ? "" : ` of ${fixed(explained[t], 3)}`);
    const reading = (t, i) => `${label(rows[t])} ← ${label(columns[i])}: ${values[t][i] === null ? "not defined" : fixed(values[t][i], 3) + told(t) + unit}`;
    elements.push(heatMap({ rows, columns, values, largest, read: reading, name: `Attributions (${METHODS[method]}): rows are predicted tokens, columns what they depend on` }).element);
  }
  const note = method === "attention" ? "Weights from 0 to 1." : "In nats: blue speaks for a token, orange against it.";
  return [h("p", { class: "note" }, note), ...elements];
}
