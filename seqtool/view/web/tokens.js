// What a model expected at each token: its probability as a colour, and for a chosen one the likeliest others.

import { buttonRow, counted, fill, fixed, h, label, mark, shown } from "./elements.js";

export const END = "<end>"; // how the end of a text is shown
const NAMED = 12; // unknown pieces that are named
const LEVELS = [0.5, 0.2, 0.05, 0.01]; // probabilities below which a token has another colour

/**
 * predicted: {token, probability, entropy, likeliest: [[token, probability], …]} for each token. `groups`, the places of
 * the tokens of each button, make words of them. `onforce`, if given, is called with the place of a token and another one
 * that is chosen in its stead, `onlook` with a button's place, or -1, while the pointer is on it, and `onchosen` with that
 * of a button that is chosen. `choose(place)` shows a token as a click on it does.
 */
export function tokens(predicted, { groups = singly(predicted), onforce = null, onlook = null, onchosen = null } = {}) {
  if (!predicted || predicted.length === 0) return { element: h("p", { class: "empty" }, "No tokens."), choose: () => {} };
  const detail = h("div", { class: "expected", "aria-live": "polite" }, h("p", { class: "note" }, "Choose one to see what else was expected."));
  const buttons = groups.map((group, place) => {
    const text = group.map((i) => predicted[i].token).join("");
    const probability = group.reduce((product, i) => product * predicted[i].probability, 1);
    return h(
      "button",
      {
        type: "button",
        class: `token level-${level(probability)}`,
        title: `${shown(text)} ${percent(probability)}`,
        tabindex: place === 0 ? 0 : -1,
        onclick: () => choose(place),
        onpointerenter: () => onlook?.(place),
      },
      shown(text).trim() ? shown(text) : label(text),
    );
  });
  function choose(place) {
    mark(buttons, place);
    buttons[place].focus({ preventScroll: true });
    onchosen?.(place);
    fill(detail, groups[place].map((i) => expected(predicted[i], onforce && ((token) => onforce(i, token)))));
  }
  const list = buttonRow({ move: choose, "aria-label": "Tokens: the arrow keys move through them", onpointerleave: () => onlook?.(-1) }, buttons);
  return { element: h("div", { class: "predicted" }, list, legend(), detail), choose };
}

/** The places of each piece by itself. */
export function singly(pieces) {
  return (pieces ?? []).map((_, i) => [i]);
}

/** The places of the pieces of each word: a word begins with the mark for a space. */
export function wordGroups(pieces) {
  const groups = [];
  pieces.forEach((piece, i) => (i === 0 || piece.startsWith("▁") || piece === END ? groups.push([i]) : groups.at(-1).push(i)));
  return groups;
}

/** What the colours of tokens mean. */
function legend() {
  const levels = ["50 % or more", ...LEVELS.map((bound) => `under ${100 * bound} %`)];
  return h("ul", { class: "legend levels", "aria-label": "Probability of a token" }, levels.map((text, i) => h("li", { class: `level-${i}` }, text)));
}

function expected(one, onforce) {
  return h("div", {}, h("p", {}, "“", h("bdi", {}, label(one.token)), `” ${percent(one.probability)}, entropy ${fixed(one.entropy)} nats. Expected here:`), likeliest(one.likeliest, onforce));
}

/** A table of tokens and their probabilities; `choose`, if given, is called with a token that is chosen. */
export function likeliest(pairs, choose) {
  const row = ([token, probability]) => {
    const name = label(token);
    const bar = h("meter", { min: 0, max: 1, value: probability, "aria-label": `${name}: ${percent(probability)}` });
    const choosable = choose && token !== END ? h("button", { type: "button", class: "force", onclick: () => choose(token) }, name) : name;
    return h("tr", {}, h("th", { scope: "row" }, choosable), h("td", {}, bar), h("td", { class: "number" }, percent(probability)));
  };
  return h("table", { class: "likeliest" }, h("tbody", {}, pairs.map(row)));
}

/** A beginning, tokens or text, as text. */
export function written(prefix) {
  return typeof prefix === "string" ? prefix : prefix.join("").replaceAll("▁", " ").trim();
}

/**
 * A text with its probabilities and its tokens, in whose place others can be forced: `force` is called with how the text
 * then begins. `title` shows the text, `beside` stands beside the tokens; the others are as in `tokens`. `choose(place)`
 * shows what else was expected at a token, or a word.
 */
export function forceable(best, force, { title = best.text || "(nothing)", beside = null, groups, onlook, onchosen } = {}) {
  const predicted = best.predicted ?? [];
  const pieces = predicted.map(({ token }) => token);
  const places = groups ?? singly(pieces);
  const begun = (at, token) => [...pieces.slice(0, at), token];
  const word = h("input", { type: "text", "aria-label": "A word of your own", placeholder: "or type another word" });
  const name = (group) => label(group.map((i) => pieces[i]).join(""));
  const at = h("select", { "aria-label": "Replace" }, places.map((group, i) => h("option", { value: i }, `${i + 1}: ${name(group)}`)));
  const submit = (event) => {
    event.preventDefault();
    if (word.value.trim()) force(written(begun(places[Number(at.value)][0], `▁${word.value.trim()}`)));
  };
  const chosen = (place) => {
    at.value = place;
    onchosen?.(place);
  };
  const expected = tokens(predicted, { groups: places, onforce: (place, token) => force(begun(place, token)), onlook, onchosen: chosen });
  const row = [
    h("h3", {}, "Each token, and what else was expected: choose one to force it"),
    expected.element,
    pieces.length ? h("form", { class: "controls", onsubmit: submit }, word, "replaces", at, h("button", {}, "Force it")) : null,
  ];
  const elements = [h("p", { class: "translation", dir: "auto" }, title), ...probabilities(best), h("div", { class: "beside" }, beside, h("div", {}, row))];
  return { elements, choose: (place) => place < places.length && expected.choose(place) };
}

/** The log-probability and the score of a text: of the whole, and of what follows a forced beginning. */
function probabilities(one) {
  const text = (begin, logProbability, score) => h("p", { class: "status" }, `${begin}log-probability ${fixed(logProbability, 3)}, score ${fixed(score, 3)}${one.ended ? "" : ", cut off"}`);
  if (one.prefix_tokens === undefined) return [text("", one.log_probability, one.score)];
  return [
    text("Of the whole: ", one.log_probability_with_prefix, one.score_with_prefix),
    text("Of what follows the forced beginning: ", one.log_probability, one.score),
    one.prefix_unknown.length ? note(`The model does not know ${counted(one.prefix_unknown.length)} of the forced tokens.`) : null,
  ];
}

/** Says how many tokens of a text were not read, and which pieces the model does not know. */
export function notes(cut, unknown) {
  const pieces = [...new Set(unknown)];
  const more = pieces.length > NAMED ? ` and ${counted(pieces.length - NAMED)} more` : "";
  return [
    cut ? note(`The text is too long: its last ${counted(cut)} tokens were not read.`) : null,
    pieces.length ? note("The model does not know ", pieces.slice(0, NAMED).flatMap((one, i) => [i ? ", “" : "“", h("bdi", {}, label(one)), "”"]), more, ".") : null,
  ];
}

function note(...text) {
  return h("p", { class: "note" }, ...text);
}

function percent(probability) {
  const value = 100 * probability;
  if (value > 0 && value < 1e-4) return "under 0.0001 %";
  return `${value >= 10 || value === 0 ? value.toFixed(0) : value.toPrecision(2).replace(/e.*/, "")} %`;
}

/** 0 (sure) to 4 (surprised). */
function level(probability) {
  return LEVELS.filter((bound) => probability < bound).length;
}
