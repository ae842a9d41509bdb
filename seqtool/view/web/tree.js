// The tree of a beam search: what was kept, what ended, what was pruned.

import { choice, h, label, moved, s, said } from "./elements.js";

const ACROSS = 118; // pixels from step to step
const DOWN = 24;
const FATES = { kept: "kept in the beam", ended: "ended", pruned: "pruned" };

/** tree: {steps: [[{parent, token, log_probability, score, fate, rank}, …], …]}. */
export function searchTree({ steps }) {
  const nodes = steps.flatMap((step, t) => step.map((one, i) => ({ ...one, t, i })));
  const at = (t, i) => ({ x: 60 + ACROSS * t, y: 16 + DOWN * i });
  const index = new Map(nodes.map((node, n) => [`${node.t} ${node.i}`, n]));
  const best = ancestors(nodes, index, nodes.find((node) => node.rank === 0));
  const width = 60 + ACROSS * steps.length;
  const height = 20 + DOWN * Math.max(...steps.map((step) => step.length), 1);
  let number = "score";
  let place = -1;
  const reading = h("p", { class: "reading", "aria-live": "polite" }, "Arrow keys or pointer: each continuation’s fate and score.");
  const start = { x: 8, y: 16 };
  const edges = nodes.map((node, n) => {
    const from = node.parent < 0 ? start : at(node.t - 1, node.parent);
    const to = at(node.t, node.i);
    return s("path", {
      class: `edge ${node.fate} ${best.has(n) ? "best" : ""}`,
      d: `M${from.x + (node.parent < 0 ? 0 : 42)},${from.y} C${from.x + 70},${from.y} ${to.x - 70},${to.y} ${to.x - 42},${to.y}`,
    });
  });
  const labels = nodes.map((node, n) => {
    const { x, y } = at(node.t, node.i);
    return s("g", { class: `node ${node.fate} ${best.has(n) ? "best" : ""}`, onpointerenter: () => look(n) }, s("rect", { x: x - 42, y: y - 10, width: 84, height: 20, rx: 5 }), s("text", { x, y: y + 4 }, cut(node.token)));
  });
  function look(n, scroll = false) {
    if (place >= 0) labels[place].classList.remove("on");
    place = n;
    labels[n].classList.add("on");
    if (scroll) labels[n].scrollIntoView({ block: "nearest", inline: "nearest" });
    const node = nodes[n];
    const value = number === "score" ? `score ${said(node.score, 3)}` : `log-probability ${said(node.log_probability, 3)}`;
    const rank = node.rank === undefined ? "" : `, number ${node.rank + 1} of the n best`;
    reading.textContent = `step ${node.t + 1}: “${label(node.token)}” ${FATES[node.fate]}, ${value}${rank}`;
  }
  const svg = s(
    "svg",
    {
      class: "tree",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      tabindex: 0,
      "aria-label": "Tree of the beam search: the arrow keys move through its continuations",
      onkeydown: (event) => {
        const next = moved(event, place, nodes.length);
        if (next !== null) look(next, true);
      },
    },
    edges,
    s("circle", { class: "root", ...{ cx: start.x, cy: start.y, r: 4 } }),
    labels,
  );
  const which = choice("Score shown", [["score", "With length penalty"], ["log", "Without"]], "score", (chosen) => {
    number = chosen;
    if (place >= 0) look(place);
  });
  const legend = h("ul", { class: "legend fates" }, Object.entries(FATES).map(([fate, text]) => h("li", { class: fate }, text)));
  return h("div", {}, which, legend, h("div", { class: "scroll" }, svg), reading);
}

/** The places of a node and of those that it continues. */
function ancestors(nodes, index, node) {
  const found = new Set();
  for (let one = node; one; one = nodes[index.get(`${one.t - 1} ${one.parent}`)]) found.add(index.get(`${one.t} ${one.i}`));
  return found;
}

function cut(token) {
  const text = label(token);
  return text.length > 11 ? `${text.slice(0, 10)}…` : text;
}
