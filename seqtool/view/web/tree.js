// The tree of a beam search: what was kept, what ended, what was pruned.

import { choice, explorable, fill, fixed, h, label, s } from "./elements.js";

const ACROSS = 118; // pixels from step to step
const DOWN = 40;
const FATES = { kept: "kept in the beam", ended: "ended", pruned: "pruned" };

/** tree: {steps: [[{parent, token, log_probability, score, fate, rank}, …], …]}. */
export function searchTree({ steps }) {
  const nodes = steps.flatMap((step, t) => step.map((candidate, i) => ({ ...candidate, t, i, x: 60 + ACROSS * t, y: 22 + DOWN * i })));
  const index = new Map(nodes.map((node, n) => [`${node.t} ${node.i}`, n]));
  const parent = (node) => nodes[index.get(`${node.t - 1} ${node.parent}`)];
  const best = new Set();
  for (let node = nodes.find(({ rank }) => rank === 0); node; node = parent(node)) best.add(node);
  const kind = (node) => `${node.fate} ${best.has(node) ? "best" : ""}`;
  const root = { x: 8, y: 22 };
  const edges = nodes.map((node) => {
    const from = parent(node) ? { x: parent(node).x + 42, y: parent(node).y, bend: 28 } : { ...root, bend: 0 };
    return s("path", { class: `edge ${kind(node)}`, d: `M${from.x},${from.y} C${from.x + from.bend},${from.y} ${node.x - 42 - from.bend},${node.y} ${node.x - 42},${node.y}` });
  });
  const labels = nodes.map((node, n) => {
    const { x, y } = node;
    const texts = [s("text", { x, y: y - 2 }, cut(node.token)), s("text", { class: "tick", x, y: y + 12 })];
    const isOn = () => labels[n].classList.contains("on");
    return s("g", { class: `node ${kind(node)}`, onpointermove: () => isOn() || go(n), onpointerdown: () => go(n) }, s("rect", { x: x - 42, y: y - 17, width: 84, height: 34, rx: 5 }), texts);
  });
  const number = (name) => nodes.forEach((node, n) => (labels[n].lastChild.textContent = fixed(node[name], 2)));
  number("score");
  const reading = h("p", { class: "reading", "aria-live": "polite" }, "Arrow keys or pointer: each continuation’s fate and score.");
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
      ...{ class: "tree", width: 60 + ACROSS * steps.length, height: 8 + DOWN * Math.max(...steps.map((step) => step.length), 1), count: nodes.length, show },
      "aria-label": "Tree of the beam search: the arrow keys move through its continuations",
    },
    edges,
    s("circle", { class: "root", cx: root.x, cy: root.y, r: 4 }),
    labels,
  );
  const which = choice("Score shown", [["score", "With length penalty"], ["log_probability", "Without"]], "score", number);
  const legend = h("ul", { class: "legend fates" }, Object.entries(FATES).map(([fate, text]) => h("li", { class: fate }, text)));
  return h("div", {}, which, legend, h("div", { class: "scroll" }, svg), reading);
}

function cut(token) {
  const text = label(token);
  return text.length > 11 ? `${text.slice(0, 10)}…` : text;
}
