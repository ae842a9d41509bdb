// Asks for what a model computes inside, and for what each of its tokens depends on.

import { newest } from "./asking.js";
import { choice, fill, h, label, later } from "./elements.js";
import { METHODS, attribution, states } from "./inside.js";
import { singly, wordGroups } from "./joining.js";
import { saveButton } from "./saving.js";

/**
 * Two details elements, whose content is asked for when they are opened. `ask(fields)` posts a request about the
 * example with further fields; `tokens`: those that the model predicts; `attends`: whether it attends to a source;
 * `picture`: the URL of a captioner's picture, or null.
 */
export function explaining({ ask, tokens, attends, picture = null }, kept) {
  const groups = kept.get("unit", "pieces") === "words" ? wordGroups : singly;
  const part = (name, title, make) => {
    const details = later(title, make, { class: "explaining", open: kept.get(name, false) });
    details.addEventListener("toggle", () => details.isConnected && kept.set(name, details.open || null));
    return details;
  };
  const inside = () => {
    const place = h("div", { class: "answer" });
    newest(place, async () => fill(place, states(await ask({}), { written: tokens, groups, kept })))();
    return h("div", {}, place);
  };
  const methods = Object.keys(METHODS).filter((name) => attends || name !== "attention");
  return [part("inside", "Inside: states, gates and heads", inside), part("depends", "What each token depends on", () => attributions({ ask, tokens, methods, picture, groups }, kept))];
}

/** Whether a token that is typed is this piece; the space at its beginning may be left out. */
const isSame = (typed, piece) => typed === piece || `▁${typed}` === piece;

function attributions({ ask, tokens, methods, picture, groups }, kept) {
  const place = h("div", { class: "answer", "aria-live": "polite" });
  let method = methods.includes(kept.get("method", "")) ? kept.get("method", "") : "integrated";
  const position = h("select", { "aria-label": "The token to explain" }, tokens.map((token, t) => h("option", { value: t }, `${t + 1}: ${label(token)}`)));
  const other = h("input", { type: "text", "aria-label": "Another token", placeholder: "another token" });
  const refusal = h("p", { class: "error", role: "alert" });
  const explain = newest(place, async (chosen = null) => {
    const typed = other.value.trim();
    const compares = typed && method !== "attention"; // which is the same for every next token
    const token = Number(position.value);
    const same = compares && isSame(typed, tokens[token]);
    fill(refusal, same ? `“${label(tokens[token])}” is the token itself: type another one to compare it with.` : "");
    if (same) return;
    const contrast = compares ? { position: token, other: typed } : {};
    fill(place, attribution(await ask({ method, ...contrast }), { picture, groups, position: compares ? token : chosen }));
  });
  const press = (next) => {
    method = next;
    other.disabled = method === "attention";
    kept.set("method", next);
    explain();
  };
  const submit = (event) => {
    event.preventDefault();
    explain(Number(position.value));
  };
  other.disabled = method === "attention";
  explain();
  return h(
    "div",
    {},
    h("div", { class: "controls" }, choice("Method", methods.map((name) => [name, METHODS[name]]), method, press), saveButton(() => place.querySelector("svg"), "attribution")),
    h("form", { class: "controls", onsubmit: submit }, "Why", position, "rather than", other, h("button", {}, "Explain")),
    refusal,
    place,
  );
}
