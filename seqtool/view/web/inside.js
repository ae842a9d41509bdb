// Inside a model: the states, gates and attention heads of an example, and what each of its tokens depends on.

import { choice, fill, fixed, h, label, shown } from "./elements.js";
import { colourBar, heatMap } from "./heat.js";
import { joinedNumbers, joinedPieces, singly } from "./joining.js";
import { looking } from "./pictures.js";
import { saveButton } from "./saving.js";
import { percent } from "./tokens.js";

export const METHODS = { attention: "attention", gradient: "gradient × input", integrated: "integrated gradients", occlusion: "occlusion" };

/**
 * What a model computed for an example, from the record of `seqtool.predict.trace.Trace`. `written`: the tokens that it
 * predicts, one after each token that it reads; `groups(pieces)`: the indices of the pieces that are shown together;
 * `kept` stores the choice.
 */
export function states({ labels, arrays }, { written = [], groups = singly, kept = null } = {}) {
  const shownArrays = named(arrays.filter(({ axes }) => axes.at(-1) !== "location"));
  if (!shownArrays.length) return h("p", { class: "empty" }, "This model has no states or attention to show.");
  const place = h("div", {});
  const find = (name) => shownArrays.find((one) => one.name === name) ?? shownArrays[0];
  const chosen = find(kept?.get("array", ""));
  const option = ({ name, title }) => h("option", { value: name, selected: name === chosen.name }, title === name ? name : `${title} (${name})`);
  const select = h("select", { "aria-label": "What to show", onchange: () => show(select.value) }, shownArrays.map(option));
  function show(name) {
    kept?.set("array", name);
    const array = find(name);
    fill(place, array.units ? units(array, labels[array.axes[0]], groups) : heads(array, labels, written, groups));
  }
  show(chosen.name);
  return h("div", { class: "inside" }, h("div", { class: "controls" }, select, saveButton(() => place.querySelector("svg"), "inside")), place);
}

/** The arrays with titles: attention by head has the title that figures give it, which counts layers from 1. */
function named(arrays) {
  const layers = {};
  return arrays.map((array) => {
    if (!array.axes.includes("head")) return { ...array, title: array.name };
    const side = array.axes[0] === "source" ? "encoder" : "decoder";
    const kind = array.axes.at(-1) === "key" ? `${side} self-attention` : "cross-attention";
    layers[kind] = (layers[kind] ?? 0) + 1;
    return { ...array, title: `${kind}, layer ${layers[kind]}` };
  });
}

/** The units of a cell, or of one of its gates, at each token; the text is coloured by the chosen unit. */
function units({ name, units: numbers, gate, values: ofPieces }, pieces, groups) {
  const places = groups(pieces);
  const tokens = joinedPieces(pieces, places);
  const values = places.map((group) => ofPieces[group.at(-1)]); // a word's state is that after its last piece
  const largest = gate ? 1 : Math.max(...values.flat().map(Math.abs), 1e-9);
  const text = h("p", { class: "coloured", dir: "auto" });
  const unit = (u) => `${name}[${numbers[u]}]`;
  const colour = (u) => fill(text, h("span", { class: "status" }, `${unit(u)}: `), tokens.map((token, t) => coloured(token, values[t][u], largest)));
  const [mean, closed, open] = (gate ?? []).map((ofStep) => (t) => ofStep[places[t].at(-1)]);
  const rate = (t) => (gate ? `. All units: mean ${fixed(mean(t))}, ${percent(closed(t))} closed (under 0.1), ${percent(open(t))} open (over 0.9)` : "");
  const read = (u, t) => `${unit(u)} after “${label(tokens[t])}”: ${fixed(values[t][u], 3)}${rate(t)}`;
  const rows = numbers.map(String);
  const map = heatMap({ rows, columns: tokens, values: rows.map((_, u) => values.map((ofToken) => ofToken[u])), largest, read, onrow: colour, name: `${name}: rows are units, columns tokens` });
  map.go(0, tokens.length - 1);
  const bar = gate ? colourBar("0 closed", "weights", "1 open") : colourBar(`−${fixed(largest)}`, "signed", fixed(largest));
  return [h("p", { class: "note" }, `The ${rows.length} units that vary most. The text is coloured by the chosen unit.${joins(places) ? " A word has the values at its last piece." : ""}`), bar, text, map.element];
}

/** A token on the colour of a number; that of `largest` is the strongest. */
function coloured(token, value, largest) {
  const span = h("span", { class: value < 0 ? "against" : "for", title: fixed(value) }, shown(token));
  span.style.setProperty("--strength", (Math.abs(value) / largest).toFixed(3));
  return span;
}

/**
 * Attention by head, which a row of buttons chooses, or without heads. Attention to a source helps to write the token
 * after the one that is read, so its rows name both. Words have sums over the pieces that are looked at, and means over
 * those that look.
 */
function heads({ name, title, axes, values }, labels, written, groups) {
  const [pieces, looked] = [labels[axes[0]], axes.at(-1) === "key" ? labels[axes[0]] : labels[axes.at(-1)]];
  const crosses = axes[0] === "target" && axes.at(-1) !== "key";
  const following = pieces.map((_, t) => written[t] ?? pieces[t + 1] ?? "▁…");
  const [places, across] = [groups(crosses ? following : pieces), groups(looked)];
  const words = groups(pieces);
  const wordAt = (t) => label(joinedPieces(pieces, words.filter((group) => group.includes(t)))[0]);
  const rows = crosses ? joinedPieces(following, places).map((next, i) => `${wordAt(places[i][0])} → ${label(next)}`) : joinedPieces(pieces, places);
  const columns = joinedPieces(looked, across);
  const place = h("div", {});
  function show(head) {
    const weights = joinedNumbers(values.map((row) => (axes.length === 3 ? row[head] : row)), places, across, true);
    const read = (t, i) => `${label(rows[t])} looks at ${label(columns[i])}: ${fixed(weights[t][i], 3)}`;
    const heading = axes.length === 3 ? `${title}, head ${head + 1}` : title;
    fill(place, h("h4", {}, heading, title === name ? null : h("small", {}, ` ${name}[:, ${head}]`)), heatMap({ rows, columns, values: weights, read, name: `${heading}: rows look at columns` }).element);
  }
  show(0);
  const buttons = axes.length === 3 ? choice("Head", values[0].map((_, head) => [head, `Head ${head + 1}`]), 0, show) : null;
  const note = crosses ? "Rows: the token that was read → the one written next. Columns: what was looked at." : "Rows: the token that was read. Columns: what it looked at.";
  const sums = joins(places) || joins(across) ? " Words have the sums over the pieces that are looked at, and the means over those that look." : "";
  return [h("p", { class: "note" }, note, sums), colourBar("Weights from 0", "weights", "to 1."), buttons, place];
}

/**
 * An attribution: `record` is that of `seqtool.predict.attribution.Attribution`; `groups` as in `states`; `position`:
 * the token that is chosen at first, or null. Words have sums over the pieces of both sides, since log-probabilities
 * add up, and means of attention over those of a predicted word.
 */
export function attribution(record, { picture = null, groups = singly, position = null } = {}) {
  const { method, tokens, read, contrast = [], explained, source = null, source_tokens: sourceTokens, prefix = null, grid = null } = record;
  const [places, weighs] = [groups(tokens), method === "attention"];
  const other = (group) => group.map((t) => contrast[t]).find(Boolean);
  const rows = joinedPieces(tokens, places).map((token, t) => (other(places[t]) ? `${label(token)}, not ${label(other(places[t]))}` : token));
  const told = joinedNumbers(explained.map((value) => [value]), places, [[0]]);
  const chosen = position === null ? -1 : places.findIndex((group) => group.includes(position));
  const elements = [];
  if (grid && source && picture) elements.push(...overPicture({ picture, grid, method, words: rows, chosen, values: joinedNumbers(source, places, source[0].map((_, i) => [i]), weighs) }));
  const before = prefix?.map((ofToken, t) => ofToken.map((value, j) => (j > t ? null : value))); // what is read later has no attribution
  const sides = [[grid ? null : source, sourceTokens], [before, read]].filter(([values]) => values);
  if (sides.length) {
    const parts = sides.map(([values, pieces]) => joinedNumbers(values, places, groups(pieces), weighs));
    const columns = sides.flatMap(([, pieces]) => joinedPieces(pieces, groups(pieces)));
    const values = rows.map((_, t) => parts.flatMap((part) => part[t]));
    const largest = weighs ? 1 : strongest(values);
    const reading = (t, i) => `${label(rows[t])} ← ${label(columns[i])}: ${values[t][i] === null ? "not defined" : fixed(values[t][i], 3) + (weighs ? "" : ` of ${fixed(told[t][0], 3)} nats`)}`;
    const map = heatMap({ rows, columns, values, largest, read: reading, name: `Attributions (${METHODS[method]}): rows are predicted tokens, columns what they depend on` });
    if (joins(places)) elements.push(h("p", { class: "note" }, weighs ? "Words have the sums over the pieces of the source, and the means over those of the predicted word." : "Words have the sums over their pieces."));
    if (chosen >= 0) map.go(chosen, values[chosen].indexOf(farthest(values[chosen])));
    elements.push(...meaning(weighs, largest, "signed"), map.element);
  }
  return elements;
}

/** The picture in the colours of what each word depends on, with a scale for all words, or bright where it looked. */
function overPicture({ picture, grid, method, words, chosen, values }) {
  const weighs = method === "attention";
  const largest = weighs ? null : strongest(values);
  const reading = h("p", { class: "reading", "aria-live": "polite" });
  const view = looking({ picture, name: `the picture and what a word depends on (${METHODS[method]})`, words, attention: values, grid, largest, onlook: (ofWord) => fill(reading, told(ofWord)) });
  const at = (ofWord, value) => `row ${Math.floor(ofWord.indexOf(value) / grid[1]) + 1}, column ${(ofWord.indexOf(value) % grid[1]) + 1} (${fixed(value, 3)})`;
  function told(ofWord) {
    if (!ofWord) return "Choose a word to see what it depends on.";
    const [least, most] = [Math.min(...ofWord), Math.max(...ofWord)];
    if (weighs) return `Most at ${at(ofWord, most)}.`;
    return `Most for it: ${most > 0 ? at(ofWord, most) : "nothing"}; most against it: ${least < 0 ? at(ofWord, least) : "nothing"}; in all ${fixed(ofWord.reduce((a, b) => a + b, 0), 3)} nats.`;
  }
  view.hold(Math.max(0, chosen));
  const brightness = h("p", { class: "note" }, "Weights, which add up to 1 over the picture and have no sign: bright where the word looked most, dark where it did not look.");
  return [...(weighs ? [brightness] : meaning(false, largest, "tinted")), view.element, reading];
}

/** What the colours mean: of weights, or of attributions up to `largest` nats for all words. */
function meaning(weighs, largest, kind) {
  if (weighs) return [h("p", { class: "note" }, "Weights from 0 to 1."), colourBar("0", "weights", "1")];
  return [h("p", { class: "note" }, "In nats: blue speaks for a token, orange against it. All tokens have the same scale:"), colourBar(`−${fixed(largest, 3)}`, kind, `${fixed(largest, 3)} nats`)];
}

/** Whether a group has several pieces. */
function joins(groups) {
  return groups.some((group) => group.length > 1);
}

/** The number that is farthest from 0; null counts as 0. */
function farthest(values) {
  return values.reduce((a, b) => (Math.abs(b ?? 0) > Math.abs(a ?? 0) ? b : a));
}

function strongest(values) {
  return Math.max(Math.abs(farthest(values.flat()) ?? 0), 1e-9);
}
