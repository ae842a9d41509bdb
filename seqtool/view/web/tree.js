// The tree of a beam search: what was kept, what ended, what was pruned.

import { choice, fill, h, label, moved, s, said } from "./elements.js";

const ACROSS = 118; // pixels from step to step
const DOWN = 40;
const FATES = { kept: "kept in the beam", ended: "ended", pruned: "pruned" };

/** tree: {steps: [[{parent, token, log_probability, score, fate, rank}, …], …]}. */
export function searchTree({ steps }) {
  const nodes = steps.flatMap((step, t) => step.map((one, i) => ({ ...one, t, i })));
  const at = (t, i) => ({ x: 60 + ACROSS * t, y: 22 + DOWN * i });
  const index = new Map(nodes.map((node, n) => [`${node.t} ${node.i}`, n]));
  const best = ancestors(nodes, index, nodes.find((node) => node.rank === 0));
  const width = 60 + ACROSS * steps.length;
  const height = 8 + DOWN * Math.max(...steps.map((step) => step.length), 1);
  let place = -1;
  const reading = h("p", { class: "reading", "aria-live": "polite" }, "Arrow keys or pointer: each continuation’s fate and score.");
  const start = { x: 8, y: 22 };
  const edges = nodes.map((node, n) => {
    const from = node.parent < 0 ? start : at(node.t - 1, node.parent);
    const to = at(node.t, node.i);
    const bend = node.parent < 0 ? 0 : 28;
    const begin = from.x + (node.parent < 0 ? 0 : 42);
    return s("path", {
      class: `edge ${node.fate} ${best.has(n) ? "best" : ""}`,
      d: `M${begin},${from.y} C${begin + bend},${from.y} ${to.x - 42 - bend},${to.y} ${to.x - 42},${to.y}`,
    });
  });
  const labels = nodes.map((node, n) => {
    const { x, y } = at(node.t, node.i);
    return s("g", { class: `node ${node.fate} ${best.has(n) ? "best" : ""}`, onpointermove: () => n === place || look(n), onpointerdown: () => look(n) }, s("rect", { x: x - 42, y: y - 17, width: 84, height: 34, rx: 5 }), s("text", { x, y: y - 2 }, cut(node.token)), s("text", { class: "tick", x, y: y + 12 }));
  });
  const number = (name) => nodes.forEach((node, n) => (labels[n].lastChild.textContent = said(node[name], 2)));
  number("score");
  function look(n, scroll = false) {
    if (place >= 0) labels[place].classList.remove("on");
    place = n;
    labels[n].classList.add("on");
    if (scroll) labels[n].scrollIntoView({ block: "nearest", inline: "nearest" });
    const node = nodes[n];
    const rank = node.rank === undefined ? "" : `, number ${node.rank + 1} of the n best`;
    fill(reading, `step ${node.t + 1}: “${label(node.token)}” ${FATES[node.fate]}, score ${said(node.score, 3)}, log-probability ${said(node.log_probability, 3)}${rank}`);
  }
  const svg = s(
    "svg",
    {
      class: "tree",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "application",
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
  const which = choice("Score shown", [["score", "With length penalty"], ["log_probability", "Without"]], "score", number);
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
