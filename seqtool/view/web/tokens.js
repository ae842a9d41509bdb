// What a model predicted at each token: a colour for the token's probability, and on a click the likeliest tokens.

import { buttonRow, counted, fill, fixed, h, label, mark, shown } from "./elements.js";
import { END, singly } from "./joining.js";

const MAX_NAMED = 12; // unknown pieces that a note names
const LEVELS = [0.5, 0.2, 0.05, 0.01]; // probabilities below which a token has another colour

/**
 * A row of buttons for the tokens of a text. `predicted`: {token, probability, entropy, likeliest} of each token, where
 * `likeliest` lists [token, probability]; `groups`: the token indices of each button, by default one. Callbacks:
 * `onforce(index, token)` when another token is to replace the one at this index; `onlook(button index or -1)` as the
 * pointer moves; `onchosen(button index)` on a click. The result's `choose(index)` is the same as a click on a button.
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

/** The legend: the range of probabilities that each colour stands for. */
function legend() {
  const levels = ["50 % or more", ...LEVELS.map((bound) => `under ${100 * bound} %`)];
  return h("ul", { class: "legend levels", "aria-label": "Probability of a token" }, levels.map((text, i) => h("li", { class: `level-${i}` }, text)));
}

function expected(one, onforce) {
  return h("div", {}, h("p", {}, "“", h("bdi", {}, label(one.token)), `” ${percent(one.probability)}, entropy ${fixed(one.entropy)} nats. Expected here:`), likeliest(one.likeliest, onforce));
}

/** A table of tokens and their probabilities. With `choose`, each token is a button that calls it with the token. */
export function likeliest(pairs, choose) {
  const row = ([token, probability]) => {
    const name = label(token);
    const bar = h("meter", { min: 0, max: 1, value: probability, "aria-label": `${name}: ${percent(probability)}` });
    const choosable = choose && token !== END ? h("button", { type: "button", class: "force", onclick: () => choose(token) }, name) : name;
    return h("tr", {}, h("th", { scope: "row" }, choosable), h("td", {}, bar), h("td", { class: "number" }, percent(probability)));
  };
  return h("table", { class: "likeliest" }, h("tbody", {}, pairs.map(row)));
}

/** The text of a prefix, which is a string or a list of tokens. */
export function written(prefix) {
  return typeof prefix === "string" ? prefix : prefix.join("").replaceAll("▁", " ").trim();
}

/**
 * A text with its scores and its tokens, each of which can be replaced: `force` is then called with the new prefix, and returns whether it asks.
 * `title`: the element that shows the text; `beside`: an element beside the tokens; `groups`, `onlook` and `onchosen`
 * are as in `tokens`. The result's `choose(index)` shows what else was predicted at that token or word.
 */
export function forceable(best, force, { title = best.text || "(nothing)", beside = null, groups, onlook, onchosen } = {}) {
  const predicted = best.predicted ?? [];
  const pieces = predicted.map(({ token }) => token);
  const places = groups ?? singly(pieces);
  const begun = (at, token) => [...pieces.slice(0, at), token];
  const word = h("input", { type: "text", class: "own", "aria-label": "A word of your own", placeholder: "or type another word" });
  const name = (group) => label(group.map((i) => pieces[i]).join(""));
  const at = h("select", { "aria-label": "Replace" }, places.map((group, i) => h("option", { value: i }, `${i + 1}: ${name(group)}`)));
  const submit = (event) => {
    event.preventDefault();
    if (word.value.trim() && force(written(begun(places[Number(at.value)][0], `▁${word.value.trim()}`)))) word.value = "";
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

/** The log-probability and score of a text; with a forced prefix, those of the whole and of the continuation. */
function probabilities(one) {
  const text = (begin, logProbability, score) => h("p", { class: "status" }, `${begin}log-probability ${fixed(logProbability, 3)}, score ${fixed(score, 3)}${one.ended ? "" : ", cut off"}`);
  if (one.prefix_tokens === undefined) return [text("", one.log_probability, one.score)];
  return [
    text("Of the whole: ", one.log_probability_with_prefix, one.score_with_prefix),
    text("Of what follows the forced beginning: ", one.log_probability, one.score),
    one.prefix_unknown.length ? note(`The model does not know ${counted(one.prefix_unknown.length)} of the forced tokens.`) : null,
  ];
}

/** Notes on the number of tokens that the model did not read and on the pieces that it does not know. */
export function notes(cut, unknown) {
  const pieces = [...new Set(unknown)];
  const more = pieces.length > MAX_NAMED ? ` and ${counted(pieces.length - MAX_NAMED)} more` : "";
  return [
    cut ? note(`The text is too long: its last ${counted(cut)} tokens were not read.`) : null,
    pieces.length ? note("The model does not know ", pieces.slice(0, MAX_NAMED).flatMap((one, i) => [i ? ", “" : "“", h("bdi", {}, label(one)), "”"]), more, ".") : null,
  ];
}

function note(...text) {
  return h("p", { class: "note" }, ...text);
}

export function percent(probability) {
  const value = 100 * probability;
  if (value > 0 && value < 1e-4) return "under 0.0001 %";
  return `${value >= 10 || value === 0 ? value.toFixed(0) : value.toPrecision(2).replace(/e.*/, "")} %`;
}

/** The level of a probability, which chooses its colour: 0 (probable) to 4 (improbable). */
function level(probability) {
  return LEVELS.filter((bound) => probability < bound).length;
}
