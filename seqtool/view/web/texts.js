// Language models: predictions of the next token while the user types, and sampled continuations.

import { newest, post, settings } from "./asking.js";
import { fill, fixed, h } from "./elements.js";
import { explaining } from "./explaining.js";
import { likeliest, notes, tokens } from "./tokens.js";

const CONTEXT_CHARACTERS = 400; // the model reads only so many characters at the end of the text
const LOOKED_INSIDE = 40; // the number of tokens at the end of the text whose states and attributions are shown
const PAUSE = 200; // milliseconds without a keystroke before the model is asked

export function textsView(models, kept) {
  const text = h("textarea", { rows: 5, "aria-label": "Text", dir: "auto" }, kept.get("text", "The old"));
  const columns = models.map((model) => column(model, text, kept));
  const controls = settings(models[0], ["temperature", "top_k", "top_p", "max_length", "seed"], kept);
  const look = () => columns.forEach((one) => one.look());
  let timer = null;
  text.addEventListener("input", () => {
    kept.set("text", text.value);
    columns.forEach((one) => one.forget());
    clearTimeout(timer);
    timer = setTimeout(look, PAUSE);
  });
  const submit = (event) => {
    event.preventDefault();
    columns.forEach((one) => one.write(controls.read()));
  };
  look();
  return h("div", {}, h("form", { class: "asking", onsubmit: submit }, text, h("button", { class: "primary" }, "Continue"), controls.element), h("div", { class: "columns" }, columns.map((one) => one.element)));
}

function column(model, text, kept) {
  const expected = h("div", { class: "answer" });
  const written = h("div", { class: "written", "aria-live": "polite" });

  const look = newest(expected, async () => {
    const answer = await post("/api/next", { text: Array.from(text.value).slice(-CONTEXT_CHARACTERS).join(""), likeliest: 10, model: model.place });
    const add = (token) => {
      text.value += token.replaceAll("▁", " ");
      text.dispatchEvent(new Event("input"));
    };
    const end = answer.predicted.slice(-LOOKED_INSIDE).map(({ token }) => token);
    const example = { ask: (fields) => post("/api/inside", { text: end, model: model.place, ...fields }), tokens: end, attends: false };
    fill(
      expected,
      h("h3", {}, `What may come next (entropy ${fixed(answer.entropy)} nats)`),
      likeliest(answer.likeliest, add),
      h("h3", {}, text.value.length > CONTEXT_CHARACTERS ? `How expected each token was, of the last ${CONTEXT_CHARACTERS} characters` : "How expected each token was"),
      tokens(answer.predicted).element,
      ...(end.length ? explaining(example, kept) : []),
    );
  });

  const write = newest(written, async (chosen) => {
    const prompt = text.value;
    const answer = await post("/api/generate", { prompts: [prompt], model: model.place, settings: chosen });
    if (text.value !== prompt) return; // it has been changed meanwhile
    const [{ unknown, texts }] = answer.texts;
    const [one] = texts;
    fill(written, notes(0, unknown), h("h3", {}, "Continuation"), h("p", { class: "continuation", dir: "auto" }, h("span", { class: "status" }, prompt), one.text));
  });

  return { element: h("section", { class: "column", "aria-label": model.name }, h("h2", {}, model.name), written, expected), look: () => look(), write: (chosen) => write(chosen), forget: () => fill(written) };
}
