// Draws a report: a page of sections in the form that seqtool/view/report.py writes.

import { alignment } from "./alignment.js";
import { intervals, lines, plain } from "./charts.js";
import { differing } from "./difference.js";
import { choice, counted, facts, fill, fixed, h, inert } from "./elements.js";
import { METHODS, attribution, states } from "./inside.js";
import { looking, places } from "./pictures.js";
import { table } from "./table.js";
import { tokens } from "./tokens.js";
import { samples } from "./watching.js";

/** The JSON value in a block of the file, packed by seqtool/view/report.py. */
function read(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const SECTIONS = {
  facts: ({ rows }) => facts(rows),
  table: ({ columns, rows }) => plain(columns, rows),
  text: ({ lines }) => h("div", {}, lines.map((line) => h("p", {}, line))),
  curves: ({ panels }) => h("div", { class: "panels" }, panels.map((panel) => lines(panel))),
  intervals: (section) => intervals(section),
  samples,
  sentences,
  pictures,
  states: ({ trace }) => states(trace, { written: report.sections.find(({ kind }) => kind === "attributions")?.records[0]?.tokens }),
  attributions,
};

/** The table of sentences and their scores. A row opens to show the details of its sentence. */
function sentences({ systems, scores, sources, names, references, hypotheses, values, flags, details }) {
  const rows = hypotheses[0].map((_, i) => i);
  const source = (i) => (sources ? sources[i] : "");
  const columns = [{ label: "#", value: (i) => i + 1, number: true }];
  if (names) columns.push({ label: "Image", value: (i) => names[i] });
  if (sources) columns.push({ label: "Source", value: source });
  systems.forEach((name, k) =>
    columns.push({ label: name, value: (i) => hypotheses[k][i], cell: (i) => (k ? differing(hypotheses[k][i], hypotheses[0][i]) : hypotheses[0][i]) }),
  );
  scores.forEach(({ label, digits, lower }, j) => {
    const note = lower ? "lower is better" : null;
    const column = (name, value) => columns.push({ label: name, note, value, cell: (i) => fixed(value(i), digits), number: true, down: lower });
    systems.forEach((name, k) => column(k ? `${label} ${name}` : label, (i) => values[k][j][i]));
    systems.slice(1).forEach((name, k) => {
      column(systems.length > 2 ? `Δ ${label} ${name}` : `Δ ${label}`, (i) => difference(values[0][j][i], values[k + 1][j][i]));
    });
  });
  return table({
    label: names ? "captions" : "sentences",
    columns,
    rows,
    sort: scores.length ? columns.findIndex((column) => column.label === scores[0].label) : 0,
    search: (i) => [names ? names[i] : "", source(i), ...references[i], ...hypotheses.map((one) => one[i])].join("\n"),
    flags: (i) => flags[i],
    open: (i) => sentence({ source: source(i), references: references[i], systems, hypotheses: hypotheses.map((one) => one[i]), flags: flags[i], more: details ? opened(i, details) : null }),
  });
}

function difference(first, second) {
  return typeof first === "number" && typeof second === "number" ? first - second : null;
}

function sentence({ source, references, systems, hypotheses, flags, more }) {
  const facts = [["Source", source], ...references.map((one, i) => [references.length > 1 ? `Reference ${i + 1}` : "Reference", one])].filter(([, text]) => text !== "");
  const written = hypotheses.map((text, k) => h("div", {}, h("dt", {}, systems[k]), h("dd", { dir: "auto" }, references.length ? differing(text, references[0]) : text)));
  return h(
    "div",
    { class: "sentence" },
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { dir: "auto" }, value))), written),
    references.length ? h("p", { class: "note" }, "Marked words are not in the reference, struck out ones only there.") : null,
    flags.length ? h("p", { class: "flags" }, `Flags: ${flags.join(", ")}`) : null,
    more,
  );
}

/** What each token of an example depends on, by a method that is chosen. */
function attributions({ records, picture }) {
  const place = h("div", {});
  const show = (i) => fill(place, attribution(records[i], { picture }));
  show(0);
  return h("div", {}, h("div", { class: "controls" }, choice("Method", records.map(({ method }, i) => [i, METHODS[method]]), 0, show)), place);
}

const chunks = new Map();

/** The details of a sentence. They are stored in chunks, each of which is unpacked when it is first needed. */
function opened(i, { size }) {
  const place = h("div", { "aria-busy": "true" });
  const number = Math.floor(i / size);
  if (!chunks.has(number)) chunks.set(number, read(`details-${number}`));
  chunks.get(number).then((sentences) => {
    const { predicted, ...looked } = sentences[i % size];
    fill(place, looked.weights ? alignment(looked).element : null, predicted ? tokens(predicted).element : null);
    place.removeAttribute("aria-busy");
  });
  return place;
}

/** Pictures with their captions: in a chosen order, or those whose captions have a word, with its attention shown. */
function pictures({ pictures: all, orders, scores, systems }) {
  const state = { order: Object.keys(orders)[0], word: "" };
  const place = h("div", { class: "gallery" });
  const status = h("p", { class: "status", "aria-live": "polite" });
  function draw() {
    const chosen = state.word ? all.map((_, i) => i).filter((i) => all[i].captions.some((one) => places(one.words, state.word).length)) : orders[state.order];
    status.textContent = `${counted(chosen.length)} of ${counted(all.length, "picture")}`;
    fill(place, chosen.map((i) => card(all[i], { scores, systems, word: state.word })));
  }
  const word = h("input", { type: "search", "aria-label": "Single out a word", placeholder: "Single out a word: dog", oninput: () => { state.word = word.value.trim().toLowerCase(); draw(); } });
  draw();
  const order = choice("Which", Object.keys(orders).map((name) => [name, name]), state.order, (name) => { state.order = name; draw(); });
  return h("div", {}, h("div", { class: "controls" }, order, word, status), place);
}

function card({ name, picture, captions, references, values }, { scores, systems, word }) {
  const each = captions.map((one, k) => {
    const view = looking({ picture, name: `${name}: ${one.text}`, words: one.words, attention: one.weights ?? null, grid: one.grid ?? null, chosen: one.chosen ?? null });
    const [first] = word ? places(one.words, word) : [];
    if (first !== undefined) view.look(first);
    const own = scores.map(({ label, digits }, j) => `${label} ${fixed(values[k][j], digits)}`).join(", ");
    return h("div", {}, systems.length > 1 ? h("h4", {}, systems[k]) : null, view.element, h("p", { class: "status" }, own));
  });
  return h("article", { class: "card" }, h("h3", {}, name), each, h("details", {}, h("summary", {}, "References"), h("ul", {}, references.map((one) => h("li", { dir: "auto" }, one)))));
}

if (!window.DecompressionStream) document.body.append(h("p", {}, "This browser cannot show the report: use one of 2023 or later."));
const report = await read("report");
document.title = inert(report.title);
document.body.append(
  h("header", {}, h("h1", {}, report.title), h("p", {}, report.subtitle)),
  h("nav", { "aria-label": "Sections" }, h("ul", {}, report.sections.map((section, i) => h("li", {}, h("a", { href: `#section-${i}` }, section.title))))),
  h("main", {}, report.sections.map((section, i) => h("section", { id: `section-${i}`, "aria-labelledby": `title-${i}` }, h("h2", { id: `title-${i}` }, section.title), section.note ? h("p", { class: "note" }, section.note) : null, SECTIONS[section.kind](section)))),
);
