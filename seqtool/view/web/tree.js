// Draws the tree of a beam search, with the candidates that were kept, ended or pruned.

import { choice, explorable, fill, fixed, h, label, s } from "./elements.js";
import { saveButton } from "./saving.js";

const STEP_WIDTH = [62, 150]; // the minimum and maximum pixels from step to step
const ROW_HEIGHT = 40;
const GAP = 16; // pixels between the boxes of two steps
const LETTER_WIDTH = 8;
const MARGIN = 18;
const FATES = { kept: "kept in the beam", ended: "ended: a whole translation", pruned: "pruned" };
const SCORES = { score: "With length penalty", log_probability: "Without" };

/**
 * The tree of a search, as wide as the page allows. `steps`: [[{parent, token, log_probability, score, fate, rank}, …],
 * …]; `kept`: stores what is shown; `chosen`: the rank of the translation whose path is marked.
 */
export function searchTree({ steps }, kept, chosen = 0) {
  const place = h("div", { class: "scroll" });
  const legend = h("ul", { class: "legend fates" });
  const reading = h("p", { class: "reading", "aria-live": "polite" }, "Arrow keys or pointer: each continuation’s fate and score.");
  let width = 0;

  function draw() {
    if (!width) return;
    const hidden = kept.get("hide", false) ? "pruned" : null;
    const score = kept.get("shown", "score") in SCORES ? kept.get("shown", "score") : "score";
    const shown = steps.map((step) => step.map((candidate, i) => ({ ...candidate, i })).filter(({ fate }) => fate !== hidden));
    const across = Math.min(Math.max((width - MARGIN) / steps.length, STEP_WIDTH[0]), STEP_WIDTH[1]);
    fill(place, drawing({ shown, across, score, chosen, reading }));
    const fates = Object.entries(FATES).filter(([fate]) => shown.flat().some((node) => node.fate === fate));
    const name = chosen ? `on the way to number ${chosen + 1} of the n best` : "on the way to the best";
    fill(legend, [...fates, ["best", name]].map(([fate, text]) => h("li", { class: fate }, text)));
  }

  const change = (name, value) => {
    kept.set(name, value);
    draw();
  };
  const hide = h("label", { class: "setting" }, h("input", { type: "checkbox", checked: kept.get("hide", false), onchange: (event) => change("hide", event.target.checked || null) }), "Hide pruned branches");
  const which = choice("Score shown", Object.entries(SCORES), kept.get("shown", "score"), (name) => change("shown", name === "score" ? null : name));
  const resized = () => {
    const next = place.clientWidth / (parseFloat(getComputedStyle(place).fontSize) / 16); // in the drawing's units
    if (Math.abs(next - width) < 4) return;
    width = next;
    draw();
  };
  new ResizeObserver(resized).observe(place);
  return h("div", {}, h("div", { class: "controls" }, which, hide, saveButton(() => place.querySelector("svg"), "search")), legend, place, reading);
}

function drawing({ shown, across, score, chosen, reading }) {
  const box = across - GAP;
  const nodes = shown.flatMap((step, t) => step.map((node, row) => ({ ...node, t, x: MARGIN + across * t + GAP / 2 + box / 2, y: 22 + ROW_HEIGHT * row })));
  const index = new Map(nodes.map((node) => [`${node.t} ${node.i}`, node]));
  const parent = (node) => index.get(`${node.t - 1} ${node.parent}`);
  const best = new Set();
  for (let node = nodes.find(({ rank }) => rank === chosen); node; node = parent(node)) best.add(node);
  const kind = (node) => `${node.fate} ${best.has(node) ? "best" : ""}`;
  const root = { x: 8, y: 22 };
  const edges = nodes.map((node) => {
    const before = parent(node);
    const [from, to, bend] = [before ? before.x + box / 2 : root.x, node.x - box / 2, before ? GAP / 2 : 0];
    const y = (before ?? root).y;
    return s("path", { class: `edge ${kind(node)}`, d: `M${from},${y} C${from + bend},${y} ${to - bend},${node.y} ${to},${node.y}` });
  });
  const labels = nodes.map((node, n) => {
    const { x, y } = node;
    const texts = [s("text", { x, y: y - 2 }, cutToken(node.token, Math.floor(box / LETTER_WIDTH))), s("text", { class: "tick", x, y: y + 12 }, fixed(node[score], 2))];
    const isOn = () => labels[n].classList.contains("on");
    return s("g", { class: `node ${kind(node)}`, onpointermove: () => isOn() || go(n), onpointerdown: () => go(n) }, s("rect", { x: x - box / 2, y: y - 17, width: box, height: 34, rx: 5 }), texts);
  });
  function show(n, byKey) {
    svg.querySelector(".node.on")?.classList.remove("on");
    labels[n].classList.add("on");
    if (byKey) labels[n].scrollIntoView({ block: "nearest", inline: "nearest" });
    const node = nodes[n];
    const rank = node.rank === undefined ? "" : `, number ${node.rank + 1} of the n best`;
    fill(reading, `step ${node.t + 1}: “${label(node.token)}” ${FATES[node.fate]}, score ${fixed(node.score, 3)}, log-probability ${fixed(node.log_probability, 3)}${rank}`);
  }
  const { svg, go } = explorable(
    {
      ...{ class: "tree", width: MARGIN + across * shown.length, height: 8 + ROW_HEIGHT * Math.max(...shown.map((step) => step.length), 1), count: nodes.length, show },
      "aria-label": "Tree of the beam search: the arrow keys move through its continuations",
    },
    edges,
    s("circle", { class: "root", cx: root.x, cy: root.y, r: 4 }),
    labels,
  );
  return svg;
}

function cutToken(token, letters) {
  const text = label(token);
  return text.length > letters ? `${text.slice(0, letters - 2)}…` : text;
}
