// Attention between the words of a source and those of a target: as lines between two rows of words, or as a heat map.

import { choice, explorable, fill, fixed, h, label, s, shown } from "./elements.js";
import { saveButton } from "./saving.js";

const pen = document.createElement("canvas").getContext("2d"); // measures words
const CELL = 22;
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
  const forms = { lines: () => links({ source, target, weights, onword }), map: () => heatMap({ source, target, weights }) };
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

/** A heat map: target words are rows and source words columns; light is 0. A frame marks the chosen cell. */
function heatMap({ source, target, weights }) {
  const left = Math.max(40, ...target.map((word) => wide(word) + 12));
  const top = Math.max(30, ...source.map((word) => 0.82 * wide(word) + 16)); // labels are rotated by 55°
  const [across, down] = [source.length, target.length];
  const right = Math.max(...source.map((word, i) => CELL * (i + 1) + 0.58 * wide(word))) + 6;
  const reading = h("p", { class: "reading", "aria-live": "polite" }, "Arrow keys or pointer: read the weights.");
  const frame = s("rect", { class: "frame", width: CELL, height: CELL, visibility: "hidden" });
  function show(place, byKey) {
    const [t, i] = [Math.floor(place / across), place % across];
    frame.setAttribute("x", left + CELL * i);
    frame.setAttribute("y", top + CELL * t);
    frame.setAttribute("visibility", "visible");
    fill(reading, `${label(target[t])} ← ${label(source[i])}: ${fixed(weights[t][i], 3)}`);
    if (byKey) frame.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const cell = (weight, t, i) => s("rect", { class: "cell", x: left + CELL * i, y: top + CELL * t, width: CELL, height: CELL, "fill-opacity": weight.toFixed(3), onpointerenter: () => go(t * across + i) });
  const { svg, go } = explorable(
    {
      ...{ class: "heat", width: left + Math.max(CELL * across, right) + 2, height: top + CELL * down + 4, count: across * down, across, show },
      "aria-label": "Heat map of attention: rows are the target’s words, columns the source’s; the arrow keys move through the cells",
    },
    s("rect", { class: "ground", x: left, y: top, width: CELL * across, height: CELL * down }),
    weights.flatMap((ofWord, t) => ofWord.map((weight, i) => cell(weight, t, i))),
    source.map((word, i) => {
      const x = left + CELL * (i + 0.65);
      return s("text", { class: "word start", x, y: top - 6, transform: `rotate(-55 ${x} ${top - 6})` }, cut(word));
    }),
    target.map((word, t) => s("text", { class: "word end", x: left - 6, y: top + CELL * (t + 0.7) }, cut(word))),
    frame,
  );
  const look = (t, holding) => t >= 0 && holding && go(t * across + weights[t].indexOf(Math.max(...weights[t])));
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

/** The width of a word in bold type, in pixels. */
function wide(word) {
  pen.font = `700 13px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(cut(word)).width;
}

function cut(word) {
  const text = label(word);
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}
