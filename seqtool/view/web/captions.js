// Captioning: drop a picture or edit a built-in one, see where each word looked, force a word.

import { get, modelColumn, post, settings } from "./asking.js";
import { fill, h } from "./elements.js";
import { looking } from "./pictures.js";
import { sceneEditor } from "./scene.js";
import { END, forceable } from "./tokens.js";

export async function captionsView(models) {
  let picture = null; // a File, or null for the scene
  const status = h("p", { class: "status", "aria-live": "polite" });
  const columns = models.map(column);
  const controls = settings(models[0], ["beam", "length_penalty", "hard_attention", "seed"], () => all());
  const editor = sceneEditor(await get("/api/scenes"), () => {
    picture = null;
    status.textContent = "";
    anew();
  });
  const all = () => columns.forEach((column) => column.ask(picture ?? editor.scene(), controls.read()));
  const anew = () => {
    columns.forEach((column) => column.forget());
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
  return h("div", {}, h("div", { class: "columns" }, h("section", { class: "column", "aria-label": "Picture" }, h("h2", {}, "Picture"), drop, status, h("h3", {}, "Or a built-in one"), editor.element, controls.element), columns.map(({ element }) => element)));
}

function column(model, place) {
  return modelColumn(model, async (picture, settings, prefix, { force, begins }) => {
    const fields = { prefix, likeliest: 5, weights: model.attends, picture: true, model: place, settings };
    let body = { scene: picture, ...fields };
    if (picture instanceof File) {
      body = new FormData();
      body.append("request", JSON.stringify(fields));
      body.append("images", picture);
    }
    const answer = await post("/api/caption", body);
    const [best] = answer.captions[0].captions;
    const words = [...best.words, ...(best.ended && best.attention ? [END] : [])];
    const chosen = best.hard ? best.attended.map(([row, column]) => row * best.grid[1] + column) : null;
    const { elements, choose } = forceable(best, force); // a word is a piece
    const looks = looking({ picture: answer.pictures[0], name: `the picture: ${best.text}`, words, attention: best.attention ?? null, grid: best.grid ?? null, chosen, onword: choose });
    return { text: best.text, elements: [begins, looks.element, ...elements] };
  });
}
