// Captioning: drop a picture or edit a built-in one, see where each word looked, force a word.

import { busy, get, newest, post, settings } from "./asking.js";
import { fill, h } from "./elements.js";
import { looking } from "./pictures.js";
import { sceneEditor } from "./scene.js";
import { begun, forcing, probabilities, tokens, written } from "./tokens.js";

const END = "<end>";

export async function captionsView(models) {
  const own = models[0].settings;
  let picture = null; // a File, or null for the scene
  const status = h("p", { class: "status", "aria-live": "polite" });
  const columns = models.map((model, place) => column(model, place));
  const fields = {
    beam: { label: "Beam", kind: "number", value: own.beam, min: 1, max: 50 },
    length_penalty: { label: "Length penalty", kind: "choice", value: own.length_penalty, options: ["average", "none", "gnmt"] },
    hard_attention: { label: "Attention", kind: "choice", value: own.hard_attention, options: ["expected", "argmax", "sample"] },
    seed: { label: "Seed", kind: "number", value: own.seed, min: 0 },
  };
  const controls = settings(fields, () => all());
  const editor = sceneEditor(await get("/api/scenes"), () => {
    picture = null;
    status.textContent = "";
    anew();
  });
  const all = () => columns.forEach((one) => one.describe(picture ?? editor.scene(), controls.read()));
  const anew = () => {
    columns.forEach((one) => one.forget());
    all();
  };
  const take = (files) => {
    if (!files.length) return;
    [picture] = files;
    fill(status, `Chosen: ${picture.name}`);
    anew();
  };
  const choose = () => {
    take(input.files);
    input.value = ""; // so that the same file can be chosen again
  };
  const input = h("input", { type: "file", accept: "image/*", onchange: choose });
  const drop = h(
    "label",
    {
      class: "drop",
      ondragover: (event) => event.preventDefault(),
      ondrop: (event) => {
        event.preventDefault();
        take(event.dataTransfer.files);
      },
    },
    "Drop a picture here, or choose one: ",
    input,
  );
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault()); // elsewhere
  all();
  return h("div", {}, h("div", { class: "columns" }, h("section", { class: "column", "aria-label": "Picture" }, h("h2", {}, "Picture"), drop, status, h("h3", {}, "Or a built-in one"), editor.element, controls.element), columns.map((one) => one.element)));
}

function column(model, place) {
  const found = h("div", { class: "found" });
  const spoken = h("p", { class: "spoken", "aria-live": "polite" });
  let last = [null, {}, ""]; // the picture, the settings and the prefix (text or tokens) that were asked for

  const run = newest(
    found,
    async (picture, chosen, prefix) => {
      const fields = { prefix, likeliest: 5, weights: model.attends, picture: true, model: place, settings: chosen };
      let body = { scene: picture, ...fields };
      if (picture instanceof File) {
        body = new FormData();
        body.append("request", JSON.stringify(fields));
        body.append("images", picture);
      }
      const answer = await post("/api/caption", body);
      show(picture, chosen, prefix, answer.captions[0].captions[0], answer.pictures[0]);
    },
    (picture, chosen, prefix) => (prefix ? freely(picture, chosen) : null),
  );

  function ask(...given) {
    last = given;
    run(...given);
  }

  const freely = (picture, chosen) => h("button", { type: "button", onclick: () => ask(picture, chosen, "") }, "Remove the prefix");

  function show(given, settled, prefix, best, picture) {
    const words = [...best.words, ...(best.ended && best.attention ? [END] : [])];
    const columns = best.grid ? best.grid[1] : 1;
    const chosen = best.hard ? best.attended.map(([row, column]) => row * columns + column) : null;
    const predicted = best.predicted ?? [];
    const force = (beginning) => busy(found) || ask(given, settled, beginning);
    const pieces = predicted.map((one) => one.token);
    const typed = forcing(pieces, force);
    const expected = tokens(predicted, { onforce: (at, token) => force(begun(pieces, at, token)), onchosen: typed.replace });
    const onword = (word) => word < predicted.length && expected.choose(word); // a word is a piece
    fill(spoken, best.text || "(nothing)");
    fill(
      found,
      prefix ? h("p", { class: "prefix" }, "Begins with “", h("bdi", {}, written(prefix)), typeof prefix === "string" ? "”, whose last word may go on " : "” ", freely(given, settled)) : null,
      looking({ picture, name: `the picture: ${best.text}`, words, attention: best.attention ?? null, grid: best.grid ?? null, chosen, onword }).element,
      h("p", { class: "translation", dir: "auto" }, best.text || "(nothing)"),
      probabilities(best),
      h("h3", {}, "Each token, and what else was expected: choose one to force it"),
      expected.element,
      predicted.length ? typed.element : null,
    );
  }

  /** A prefix stays until the picture is another. */
  function describe(picture, chosen) {
    ask(picture, chosen, last[2]);
  }

  function forget() {
    last = [null, {}, ""];
  }

  return { element: h("section", { class: "column", "aria-label": model.name }, h("h2", {}, model.name), spoken, found), describe, forget };
}
