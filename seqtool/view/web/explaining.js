// Asks for what a model computes inside, and for what each of its tokens depends on.

import { newest, post } from "./asking.js";
import { choice, fill, h, label, later, shown } from "./elements.js";
import { METHODS, attribution, states } from "./inside.js";
import { saveButton } from "./saving.js";

/**
 * Two details elements, whose content is asked for when they are opened. `ask(fields)` posts a request about the
 * example with further fields; `tokens`: those that the model predicts; `attends`: whether it attends to a source;
 * `picture`: the URL of a captioner's picture, or null.
 */
export function explaining({ ask, tokens, attends, picture = null }, kept) {
  const part = (name, title, make) => {
    const details = later(title, make, { class: "explaining", open: kept.get(name, false) });
    details.addEventListener("toggle", () => details.isConnected && kept.set(name, details.open || null));
    return details;
  };
  const inside = () => {
    const place = h("div", { class: "answer" });
    newest(place, async () => fill(place, states(await ask({}), kept)))();
    return h("div", {}, place);
  };
  const methods = Object.keys(METHODS).filter((name) => attends || name !== "attention");
  return [part("inside", "Inside: states, gates and heads", inside), part("depends", "What each token depends on", () => attributions({ ask, tokens, methods, picture }, kept))];
}

function attributions({ ask, tokens, methods, picture }, kept) {
  const place = h("div", { class: "answer", "aria-live": "polite" });
  let method = methods.includes(kept.get("method", "")) ? kept.get("method", "") : "integrated";
  const position = h("select", { "aria-label": "The token to explain" }, tokens.map((token, t) => h("option", { value: t }, `${t + 1}: ${label(token)}`)));
  const other = h("input", { type: "text", "aria-label": "Another token", placeholder: "another token" });
  const explain = newest(place, async () => {
    const [word, rival] = [Number(position.value), method === "attention" ? "" : other.value.trim()];
    if (rival && rival === shown(tokens[word]).trim()) throw new Error(`The text has “${rival}” there: compare it with another token.`);
    fill(place, attribution(await ask({ method, ...(rival ? { position: word, other: rival } : {}) }), picture, rival ? word : -1));
  });
  const press = (next) => {
    method = next;
    kept.set("method", next);
    explain();
  };
  const submit = (event) => {
    event.preventDefault();
    explain();
  };
  explain();
  return h(
    "div",
    {},
    h("div", { class: "controls" }, choice("Method", methods.map((name) => [name, METHODS[name]]), method, press), saveButton(() => place.querySelector("svg"), "attribution")),
    h("form", { class: "controls", onsubmit: submit }, "Why", position, "rather than", other, h("button", {}, "Explain")),
    place,
  );
}
