// Captioning: upload a picture or edit a built-in scene, see the attention of each word, and force a word.

import { get, modelColumn, post, settings } from "./asking.js";
import { fill, h } from "./elements.js";
import { explaining } from "./explaining.js";
import { END } from "./joining.js";
import { looking } from "./pictures.js";
import { saveButton } from "./saving.js";
import { sceneEditor } from "./scene.js";
import { forceable } from "./tokens.js";

export async function captionsView(models, kept) {
  let picture = null; // a File, or null for the scene
  const status = h("p", { class: "status", "aria-live": "polite" });
  const lines = models.map((model) => [h("dt", {}, model.name), h("dd", {}, "…")]);
  const edited = () => {
    picture = null;
    fill(status);
    anew();
  };
  const editor = sceneEditor(await get("/api/scenes"), kept, edited, h("dl", { class: "captions" }, lines.flat()));
  const said = (i, text, asked, seen) => {
    fill(lines[i][1], text || "(nothing)");
    if (picture && asked === picture) editor.photo(picture.name, seen);
  };
  let looked = null; // the model whose gaze is on the picture: the answer of another one, which arrives later, leaves it
  const look = (i, grid, weights, where) => {
    if (!weights && looked !== i) return;
    looked = i;
    editor.look(grid, weights, where);
  };
  const columns = models.map((model, i) => column(model, kept, { said: (...answer) => said(i, ...answer), look: (...gaze) => look(i, ...gaze) }));
  const hard = models.find((model) => model.hard);
  const names = ["beam", "length_penalty", ...(hard ? ["hard_attention", "seed"] : [])];
  const controls = settings(hard ?? models[0], names, kept, () => all());
  const all = () => columns.forEach((column, i) => {
    const { hard_attention, ...others } = controls.read();
    column.ask(picture ?? editor.scene(), models[i].hard && hard_attention ? { ...others, hard_attention } : others);
  });
  const anew = () => {
    columns.forEach((column) => column.forget());
    all();
  };
  const take = (files) => {
    if (!files.length) return;
    [picture] = files;
    editor.photo(picture.name);
    fill(status, `Chosen: ${picture.name}`);
    anew();
  };
  const choose = () => {
    take(input.files);
    input.value = ""; // so that the same file can be chosen again
  };
  const input = h("input", { type: "file", accept: "image/*", onchange: choose });
  const drop = h("label", { class: "drop", ondrop: (event) => take(event.dataTransfer.files) }, "Or drop a picture here, or choose one: ", input);
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault()); // otherwise the browser would open a dropped file
  all();
  return h("div", {}, h("div", { class: "columns pictures" }, h("section", { class: "column scene", "aria-label": "Picture" }, h("h2", {}, "Picture"), editor.element, drop, status, controls.element), columns.map(({ element }) => element)));
}

/**
 * The column of a model. `said` is called with each caption, the picture that was asked about, and its URL as the model
 * saw it; `look` with the grid, weights and location of a word.
 */
function column(model, kept, { said, look }) {
  return modelColumn(model, kept, async (picture, settings, prefix) => {
    const answer = await post("/api/caption", about(picture, { prefix, likeliest: 5, weights: model.attends, picture: true, model: model.place, settings }));
    const [best] = answer.captions[0].captions;
    const words = [...best.words, ...(best.ended && best.attention ? [END] : [])];
    const chosen = best.hard ? best.attended.map(([row, column]) => row * best.grid[1] + column) : null;
    const draw = (force) => {
      const { elements, choose } = forceable(best, force, { onlook: (place) => looks.look(place), onchosen: (place) => looks.hold(place) }); // each word of a caption is one piece
      const looks = looking({ picture: answer.pictures[0], name: `the picture: ${best.text}`, words, attention: best.attention ?? null, grid: best.grid ?? null, chosen, onword: choose, onlook: (...seen) => look(best.grid, ...seen), scrub: true });
      const escape = (event) => event.key === "Escape" && looks.hold(-1);
      const pieces = best.predicted.map(({ token }) => token).filter((token) => token !== END);
      const ask = (more) => post("/api/inside", about(picture, { text: pieces, model: model.place, ...more }));
      const example = { ask, tokens: [...pieces, END], attends: model.attends, picture: answer.pictures[0] };
      return [h("div", { onkeyup: escape }, looks.element, saveButton(() => looks.element.querySelector("svg"), "caption"), elements), ...explaining(example, kept)];
    };
    said(best.text, picture, answer.pictures[0]);
    return { text: best.text, draw };
  });
}

/** The body of a request about a picture, which is a file or a scene. */
function about(picture, fields) {
  if (!(picture instanceof File)) return { scene: picture, ...fields };
  const body = new FormData();
  body.append("request", JSON.stringify(fields));
  body.append("images", picture);
  return body;
}
