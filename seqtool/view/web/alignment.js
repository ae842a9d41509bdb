// Attention between the words of a source and those of a target: as lines between two rows of words, or as a heat map.

import { choice, explorable, fill, fixed, h, label, s, shown } from "./elements.js";
import { cut, heatMap, wide } from "./heat.js";
import { saveButton } from "./saving.js";

const MIN_WEIGHT = 0.02; // smaller weights have no line
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/; // letters of Hebrew, Arabic and related scripts

/**
 * Attention as lines or as a heat map. `source`, `target`: the words; `weights`: target × source; `form`: the form that
 * is shown first; `onform(form)`: called when a form is chosen; `onword(index)`: called when a target word is chosen.
 * The result's `look(index)` shows the attention of a target word, -1 that of the word chosen last.
 */
export function alignment({ source, target, weights, onword = null, form = "lines", onform = null }) {
  if (!weights || weights.length === 0) return { element: h("p", { class: "empty" }, "No attention to show."), look: () => {} };
  const place = h("div", {});
  const forms = { lines: () => links({ source, target, weights, onword }), map };
  function map() {
    const read = (t, i) => `${label(target[t])} ← ${label(source[i])}: ${fixed(weights[t][i], 3)}`;
    const drawn = heatMap({ rows: target, columns: source, values: weights, read, name: "Heat map of attention: rows are the target’s words, columns the source’s" });
    return { ...drawn, look: (t, holding) => t >= 0 && holding && drawn.go(t, weights[t].indexOf(Math.max(...weights[t]))) };
  }
  let drawing = null;
  const show = (next) => {
    drawing = forms[next]();
    fill(place, drawing.element);
  };
  const begin = form in forms ? form : "lines";
  show(begin);
  const press = (next) => {
    show(next);
    onform?.(next);
  };
  const controls = h("div", { class: "controls" }, choice("Form", [["lines", "Lines"], ["map", "Heat map"]], begin, press), saveButton(() => place.querySelector("svg"), "alignment"));
  return { element: h("div", { class: "alignment" }, controls, place), look: (word, held) => drawing.look?.(word, held) };
}

/**
 * The source words above the target words, joined by lines that are stronger for larger weights. Only the lines of the
 * word under the pointer are shown. A click on a word keeps this state until another click on it or Escape.
 */
function links({ source, target, weights, onword }) {
  const above = row(source);
  const below = row(target);
  const width = Math.max(above.width, below.width, 80);
  for (const words of [above, below]) if (words.leftwards) words.middles = words.middles.map((x) => width - x);
  const height = 150;
  const line = (weight, t, i) => s("line", { class: "link", "data-target": t, "data-source": i, x1: above.middles[i], x2: below.middles[t], y1: 26, y2: height - 26, "stroke-opacity": weight.toFixed(3), "stroke-width": (0.5 + 3 * weight).toFixed(2) });
  const lines = weights.flatMap((ofWord, t) => ofWord.map((weight, i) => (weight < MIN_WEIGHT ? null : line(weight, t, i))));
  const hint = "Choose a word of the lower row to see where it looked.";
  const reading = h("p", { class: "reading", "aria-live": "polite" }, hint);
  const words = [
    ...source.map((word, i) => s("text", { class: "word", "data-source": i, x: above.middles[i], y: 18 }, cut(word))),
    ...target.map((word, t) => s("text", { class: "word", "data-target": t, x: below.middles[t], y: height - 10, onpointerenter: () => look(t), onclick: () => hold(t) }, cut(word))),
  ];
  let held = -1;
  function hold(t) {
    held = held === t ? -1 : t;
    look(held);
    if (held >= 0) onword?.(t);
  }
  /** Show the attention of a word, or for -1 of the held word. With `holding`, hold the word. */
  function look(t, holding = false) {
    if (holding) held = t;
    go(t < 0 ? held : t);
  }
  function show(t, byKey) {
    if (byKey) held = t;
    const mark = (selector, name, holds) => svg.querySelectorAll(selector).forEach((element) => element.classList.toggle(name, holds(element.dataset)));
    const most = t < 0 || !weights[t] ? null : Math.max(...weights[t]);
    mark(".link", "off", (data) => most !== null && Number(data.target) !== t);
    mark(".word[data-target]", "on", (data) => Number(data.target) === t);
    mark(".word[data-source]", "on", (data) => most !== null && weights[t][Number(data.source)] === most);
    fill(reading, most === null ? hint : looked(target[t], source, weights[t]));
    if (byKey) svg.querySelector(`.word[data-target="${t}"]`).scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const { svg, go } = explorable(
    {
      onpointerleave: () => look(-1),
      onkeyup: (event) => event.key === "Escape" && look(-1, true),
      ...{ class: `links ${onword ? "choosing" : ""}`, direction: below.leftwards ? "rtl" : null, width, height, count: target.length, show, enter: onword },
      "aria-label": `Alignment of “${source.map(shown).join(" ")}” and “${target.map(shown).join(" ")}”: the arrow keys move through its words${onword ? ", Enter chooses one" : ""}`,
    },
    lines.filter(Boolean),
    words,
  );
  return { element: h("div", {}, h("div", { class: "scroll" }, svg), reading), look };
}

function looked(word, source, weights) {
  const order = weights.map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0]);
  const best = order.slice(0, 3).filter(([weight], i) => i === 0 || weight >= MIN_WEIGHT);
  return `${label(word)} ← ${best.map(([weight, i]) => `${label(source[i])} ${fixed(weight)}`).join(", ")}`;
}

/** The centres of a row's words from where reading starts; `leftwards` if they are read from right to left. */
function row(words) {
  let x = 4;
  const middles = words.map((word) => {
    const width = wide(word) + 14;
    x += width;
    return x - width / 2;
  });
  return { middles, width: x + 4, leftwards: words.filter((word) => RIGHT_TO_LEFT.test(word)).length > words.filter((word) => /^[^<]*\p{L}/u.test(word)).length / 2 };
}
