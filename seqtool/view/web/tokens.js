// What a model expected at each token: its probability as a colour, and for a chosen one the likeliest others.

import { fill, h, label, moved, said, shown } from "./elements.js";

/**
 * predicted: {token, probability, entropy, likeliest: [[token, probability], …]} for each token. `onforce`, if given, is
 * called with the place of a token and another one that is chosen in its stead.
 */
export function tokens(predicted, { onforce = null } = {}) {
  if (!predicted || predicted.length === 0) return h("p", { class: "empty" }, "No tokens.");
  const detail = h("div", { class: "expected", "aria-live": "polite" });
  const buttons = predicted.map((one, place) =>
    h(
      "button",
      {
        type: "button",
        class: `token level-${level(one.probability)}`,
        title: `${shown(one.token)} ${percent(one.probability)}`,
        tabindex: place === 0 ? 0 : -1,
        onclick: () => choose(place),
        onpointerenter: () => choose(place, false),
      },
      shown(one.token).trim() ? shown(one.token) : label(one.token),
    ),
  );
  function choose(place, focus = true) {
    buttons.forEach((button, i) => {
      button.classList.toggle("on", i === place);
      button.tabIndex = i === place ? 0 : -1;
    });
    if (focus) buttons[place].focus();
    fill(detail, expected(predicted[place], onforce && ((token) => onforce(place, token))));
  }
  const list = h(
    "div",
    {
      class: "tokens",
      role: "group",
      "aria-label": "Tokens: the arrow keys move through them",
      onkeydown: (event) => {
        const place = buttons.indexOf(event.target);
        const next = place < 0 ? null : moved(event, place, buttons.length);
        if (next !== null) choose(next);
      },
    },
    buttons,
  );
  return h("div", {}, list, detail);
}

function expected(one, onforce) {
  const others = one.likeliest.map(([token, probability]) => {
    const name = label(token);
    const bar = h("meter", { min: 0, max: 1, value: probability, "aria-label": `${name}: ${percent(probability)}` });
    const said = onforce && token !== END ? h("button", { type: "button", class: "force", onclick: () => onforce(token) }, name) : name;
    return h("tr", {}, h("th", { scope: "row" }, said), h("td", {}, bar), h("td", { class: "number" }, percent(probability)));
  });
  return [
    h("p", {}, "“", h("bdi", {}, shown(one.token)), `” ${percent(one.probability)}, entropy ${said(one.entropy)} nats. Expected here:`),
    h("table", { class: "likeliest" }, h("tbody", {}, others)),
  ];
}

const END = "<end>";

/** How a text begins whose token at a place is another one. */
export function begun(predicted, at, token) {
  return [...predicted.slice(0, at).map((one) => one.token), token].join("").replaceAll("▁", " ").trim();
}

export function percent(probability) {
  const value = 100 * probability;
  return `${value >= 10 || value === 0 ? value.toFixed(0) : value.toPrecision(2).replace(/e.*/, "")} %`;
}

/** 0 (sure) to 4 (surprised). */
function level(probability) {
  return [0.5, 0.2, 0.05, 0.01].filter((bound) => probability < bound).length;
}
