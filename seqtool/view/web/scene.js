// The editor of built-in scenes: choose a scene and edit its objects, with the pointer or the keyboard.

import { fill, h, inert, s } from "./elements.js";
import { gaze } from "./pictures.js";

const MAX_OBJECTS = 12; // in a scene
const range = (end) => Array.from({ length: Math.floor(end / 4) + 1 }, (_, i) => 4 * i);
const apart = (a, b) => a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];

/**
 * Make the editor. `offered`: the answer of /api/scenes; `kept`: stores the scene; `changed`: called after each edit;
 * `below`: an element shown right below the scene. The result's `look(grid, weights, where)` shows a word's attention,
 * and `photo(name, url)` shows a photo instead of the scene, or nothing without a URL, with a button that goes back.
 */
export function sceneEditor(offered, kept, changed, below) {
  const { side } = offered;
  const remembered = kept.get("scene", {});
  let scene = structuredClone(isScene(remembered, offered) ? remembered : offered.scenes[0]);
  let chosen = 0;
  let view = null; // the attention of a word, drawn over the scene
  let photographed = null; // the name and the URL of the photo that is shown instead of the scene
  const board = s("svg", { viewBox: `0 0 ${side} ${side}`, class: "board" });
  const tools = h("div", { class: "controls" });

  function outline(item) {
    const turn = (item.turned * Math.PI) / 180;
    const points = offered.shapes[item.shape].map(([x, y]) => [Math.cos(turn) * x - Math.sin(turn) * y, Math.sin(turn) * x + Math.cos(turn) * y]);
    const [left, top, right, bottom] = item.box;
    const range = (axis) => [Math.min(...points.map((point) => point[axis])), Math.max(...points.map((point) => point[axis]))];
    const [[x0, x1], [y0, y1]] = [range(0), range(1)];
    return points.map(([x, y]) => `${left + ((x - x0) / (x1 - x0)) * (right - left)},${top + ((y - y0) / (y1 - y0)) * (bottom - top)}`).join(" ");
  }

  function name(item) {
    const size = Math.max(item.box[2] - item.box[0], item.box[3] - item.box[1]) > (offered.sizes.small + offered.sizes.large) / 2 ? "large" : "small";
    return `${size} ${item.colour} ${item.shape}`;
  }

  function pick(label, options, value, set) {
    return h("label", { class: "setting" }, label, h("select", { "data-tool": label, onchange: (event) => edit(() => set(event.target.value)) }, options.map((one) => h("option", { value: one, selected: one === value }, one))));
  }

  function draw() {
    scenes.hidden = photographed !== null;
    board.setAttribute("role", photographed ? "img" : "group");
    board.setAttribute("aria-label", photographed ? inert(`Photo: ${photographed.name}`) : "Scene: choose an object, drag it or move it with the arrow keys");
    if (photographed) {
      const { url } = photographed;
      fill(board, s("rect", { width: side, height: side, class: "paper" }), url ? s("image", { href: url, width: side, height: side }) : null, view?.elements ?? []);
      fill(tools, h("button", { type: "button", onclick: back }, "Back to the scene"));
      return;
    }
    const items = scene.items.map((item, i) =>
      s("polygon", {
        points: outline(item),
        fill: offered.colours[item.colour],
        class: i === chosen ? "item on" : "item",
        tabindex: 0,
        role: "button",
        "aria-label": name(item),
        "aria-pressed": String(i === chosen),
        onfocus: () => choose(i),
        onkeydown: (event) => key(event, i),
        onpointerdown: (event) => drag(event, i),
      }),
    );
    const held = board.contains(document.activeElement);
    fill(board, s("rect", { width: side, height: side, class: "paper" }), items, view?.elements ?? []);
    if (held) items[chosen]?.focus();
    const item = scene.items[chosen];
    const focused = document.activeElement?.dataset.tool;
    fill(
      tools,
      item ? pick("Colour", Object.keys(offered.colours), item.colour, (value) => (item.colour = value)) : null,
      item ? pick("Shape", Object.keys(offered.shapes), item.shape, (value) => (item.shape = value)) : null,
      item ? pick("Size", Object.keys(offered.sizes), name(item).split(" ")[0], (value) => resize(item, offered.sizes[value])) : null,
      item ? h("button", { type: "button", "data-tool": "Remove", onclick: () => edit(() => scene.items.splice(chosen, 1)) }, "Remove") : null,
      h("button", { type: "button", "data-tool": "Add", onclick: add, disabled: scene.items.length >= MAX_OBJECTS }, scene.items.length < MAX_OBJECTS ? "Add an object" : `At most ${MAX_OBJECTS} objects`),
    );
    if (focused) tools.querySelector(`[data-tool="${focused}"]`)?.focus();
  }

  function choose(i) {
    if (i === chosen) return;
    chosen = i;
    draw();
  }

  function edit(change) {
    change();
    photographed = null;
    scene = structuredClone(scene); // another question to the models
    chosen = Math.max(0, Math.min(chosen, scene.items.length - 1));
    view = null;
    draw();
    kept.set("scene", scene);
    changed();
  }

  function look(grid, weights, where) {
    view?.elements.forEach((element) => element.remove());
    view = weights && gaze(side, grid);
    view?.show(weights, where);
    board.append(...(view?.elements ?? []));
  }

  function photo(name, url = null) {
    photographed = { name, url };
    view = null;
    draw();
  }

  function back() {
    edit(() => {});
    tools.querySelector("select, button").focus();
  }

  function add() {
    const length = offered.sizes.small;
    const places = range(side - length).flatMap((y) => range(side - length).map((x) => [x, y, x + length, y + length]));
    const box = places.find((one) => scene.items.every((item) => apart(one, item.box))) ?? places[(7 * scene.items.length) % places.length];
    edit(() => {
      scene.items.push({ shape: "circle", colour: "red", turned: 0, box });
      chosen = scene.items.length - 1;
    });
  }

  function resize(item, length) {
    const [left, top, right, bottom] = item.box;
    const scale = length / Math.max(right - left, bottom - top);
    const [width, height] = [Math.round((right - left) * scale), Math.round((bottom - top) * scale)];
    item.box = [left, top, left + width, top + height];
    move(item, 0, 0);
  }

  function move(item, dx, dy) {
    const [left, top, right, bottom] = item.box;
    const x = Math.max(0, Math.min(side - (right - left), left + dx));
    const y = Math.max(0, Math.min(side - (bottom - top), top + dy));
    item.box = [x, y, x + right - left, y + bottom - top];
  }

  function key(event, i) {
    const steps = { ArrowLeft: [-2, 0], ArrowRight: [2, 0], ArrowUp: [0, -2], ArrowDown: [0, 2] };
    if (!(event.key in steps)) return;
    event.preventDefault();
    edit(() => move(scene.items[i], ...steps[event.key]));
  }

  function drag(event, i) {
    if (event.button !== 0) return;
    event.preventDefault();
    chosen = i;
    draw();
    const box = board.getBoundingClientRect();
    const scale = side / box.width;
    const start = [event.clientX, event.clientY];
    const from = scene.items[i].box.slice();
    const follow = (moving) => {
      scene.items[i].box = from.slice();
      edit(() => move(scene.items[i], Math.round((moving.clientX - start[0]) * scale), Math.round((moving.clientY - start[1]) * scale)));
    };
    const dragging = new AbortController();
    const { signal } = dragging;
    window.addEventListener("pointermove", follow, { signal });
    for (const kind of ["pointerup", "pointercancel"]) window.addEventListener(kind, () => dragging.abort(), { signal });
  }

  const names = offered.scenes.map((_, i) => `number ${i + 1}`);
  const scenes = h("div", { class: "controls" }, pick("Scene", names, names[0], (name) => {
    scene = structuredClone(offered.scenes[names.indexOf(name)]);
    chosen = 0;
  }));
  draw();
  return { element: h("div", { class: "editor" }, scenes, board, below, tools), scene: () => scene, look, photo };
}

/** Whether a scene that was read from the page's address can be drawn. */
function isScene(scene, { shapes, colours }) {
  const drawable = (item) => item && shapes[item.shape] && colours[item.colour] && Number.isFinite(item.turned) && item.box?.length === 4 && item.box.every(Number.isFinite);
  return Array.isArray(scene.items) && scene.items.every(drawable);
}
