// Charts in SVG. Their values can be read with the pointer, with the arrow keys, and in a table below.

import { explorable, fill, fixed, h, later, s, unique } from "./elements.js";

const COLOURS = 6; // --colour-0 … in style.css; further series reuse them with other dashes
const DASHES = ["", "7 4", "2 3", "9 3 2 3"]; // of the first and the second curve of a run, and of further runs
const WIDTH = 640;
const HEIGHT = 240;
const LEFT = 62;
const RIGHT = 24;
const TOP = 10;
const BOTTOM = 52;
const INTERVAL_GAP = 9; // pixels between the intervals of two series in one bin

/**
 * A chart of lines. `series`: a list of {name, x, y, colour, dash, opacity} with increasing x; a colour defaults to the
 * index. `log`: the y axis is logarithmic; values that are not above 0 are left out. `digits`: the decimals of values.
 */
export function lines({ series, log = false, digits = 3, ...labels }) {
  const shown = (value) => value !== null && (!log || value > 0);
  const points = ({ x, y }) => x.map((place, i) => ({ x: place, value: y[i] })).filter(({ value }) => shown(value));
  const text = ({ value }) => precise(value, digits);
  return chart({ ...labels, log, text, series: series.map((one) => ({ ...one, points: points(one) })) });
}

/** A chart of intervals over named bins. `series`: a list of {name, points}, a point {value, low, high} or null. */
export function intervals({ series, digits = 1, ...labels }) {
  const points = (one) => one.points.flatMap((point, bin) => (point ? [{ x: bin, ...point }] : []));
  const text = ({ value, low, high }) => fixed(value, digits) + (low === null ? "" : ` [${fixed(low, digits)}, ${fixed(high, digits)}]`);
  return chart({ ...labels, text, series: series.map((one) => ({ name: one.name, points: points(one) })) });
}

/**
 * A chart with its legend, a line that shows values, and a table. `series`: a list of {name, points}, where points are
 * {x, value} or {x, value, low, high}; `bins`: if given, the labels that x indexes; `text(point)`: the text of a
 * point's value.
 */
function chart({ title, label, xLabel, series, text, log = false, bins = null }) {
  const all = series.flatMap((one) => one.points);
  if (all.length === 0) return h("p", { class: "empty" }, `${title}: no values.`);
  const places = bins ? bins.map((_, bin) => bin) : [...new Set(all.map(({ x }) => x))].sort((a, b) => a - b);
  const xs = scale(bins ? [-0.5, bins.length - 0.5] : extent(places), LEFT, WIDTH - RIGHT);
  const ys = scale(padded(extent(all.flatMap(({ value, high }) => [value, high ?? value])), log), HEIGHT - BOTTOM, TOP, log);
  const values = series.map(({ points }) => new Map(points.map((point) => [point.x, text(point)])));
  const value = (i, x) => values[i].get(x) ?? "–";

  const caption = unique("chart");
  const reading = h("p", { class: "reading", "aria-live": "polite" }, "Arrow keys or pointer: read the values.");
  const step = xs(1) - xs(0);
  const cursor = bins
    ? s("rect", { class: "band", x: -step / 2, y: TOP, width: step, height: HEIGHT - BOTTOM - TOP, visibility: "hidden" })
    : s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  function show(place) {
    const x = places[place];
    cursor.setAttribute("transform", `translate(${xs(x)})`);
    cursor.setAttribute("visibility", "visible");
    const read = series.flatMap(({ name }, i) => (bins || values[i].has(x) ? [`${name} ${value(i, x)}`] : []));
    fill(reading, `${bins ? `${bins[x]} ${xLabel}` : `${xLabel} ${x}`}: ${read.join(", ")}`);
  }
  const distance = (i, x) => Math.abs(places[i] - x);
  const nearest = (x) => places.reduce((best, _, i) => (distance(i, x) < distance(best, x) ? i : best), 0);
  const { svg, go } = explorable(
    {
      ...{ class: "chart", width: WIDTH, height: HEIGHT, count: places.length, show, "aria-labelledby": caption },
      onpointermove: (event) => {
        const box = svg.getBoundingClientRect();
        go(nearest(xs.back(((event.clientX - box.left) / box.width) * WIDTH)));
      },
    },
    cursor,
    axes(xs, ys, { bins, xLabel, label }),
    series.flatMap((one, i) => curve(one, i, xs, ys, bins ? INTERVAL_GAP * (i - (series.length - 1) / 2) : null)),
  );
  const key = (i) => s("svg", { viewBox: "0 0 24 8", class: "key", "aria-hidden": "true" }, s("line", { ...look(i, series[i]), x1: 0, x2: 24, y1: 4, y2: 4 }));
  const legend = h("ul", { class: "legend" }, series.map(({ name }, i) => h("li", {}, key(i), name)));
  const rows = () => places.map((x) => [bins ? bins[x] : x, ...series.map((_, i) => value(i, x))]);
  const table = () => plain([xLabel, ...series.map(({ name }) => name)], rows());
  return h("figure", { class: "plot" }, h("figcaption", { id: caption }, title), series.length > 1 ? legend : null, svg, reading, later("Values", table));
}

/** The i-th series: a line through its points and, with bins, dots and intervals `shift` pixels beside bin centres. */
function curve(one, i, xs, ys, shift) {
  const { points } = one;
  const of = look(i, one);
  const x = (point) => xs(point.x) + (shift ?? 0);
  const line = s("polyline", { ...of, points: points.map((point) => `${x(point).toFixed(1)},${ys(point.value).toFixed(1)}`).join(" ") });
  if (shift === null && points.length > 1) return [line];
  const dot = (point) => s("circle", { class: of.class.replace("series", "dot"), cx: x(point), cy: ys(point.value), r: shift === null ? 4 : 3.5 });
  const bar = ({ low, high, ...point }) => s("line", { class: of.class, x1: x(point), x2: x(point), y1: ys(low ?? point.value), y2: ys(high ?? point.value) });
  return [line, ...points.flatMap((point) => [bar(point), dot(point)])];
}

/** The attributes for the colour and dashes of the i-th series; the colour defaults to i. */
function look(i, { colour = i, dash = 0, opacity = 1 }) {
  return { class: `series colour-${colour % COLOURS}`, "stroke-opacity": opacity, "stroke-dasharray": DASHES[(dash + 2 * Math.floor(colour / COLOURS)) % DASHES.length] };
}

/** A value with this number of decimals; a smaller value has three significant digits. */
function precise(value, digits) {
  const small = value !== 0 && Math.abs(value) < 10 ** (1 - digits);
  return small ? Number(value.toPrecision(3)).toString() : fixed(value, digits);
}

/** A small table of text. The bounds of an interval stay on one line, and a signature may be broken after each bar. */
export function plain(columns, rows) {
  const parts = (text) => text.replace(/(\[\S+,) /, "$1\u00a0").split(/(?<=\|)/).flatMap((part) => [part, h("wbr")]);
  const cell = (value, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, parts(String(value)));
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.join(", ") },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))),
    ),
  );
}

function extent(values) {
  return [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
}

/** The range of an axis: from 0, or with room below negative values, and with room above. */
function padded([low, high], log) {
  if (log) return low === high ? [low / 2, high * 2] : [low, high];
  if (low >= 0) return [0, high === 0 ? 1 : 1.05 * high];
  return [low - 0.05 * (high - low), high + 0.05 * (high - low)];
}

/** Maps values to pixels; `back` is the inverse. `ticks`: round values, or powers of ten if `log` and three fit. */
function scale([low, high], from, to, log = false) {
  const f = log ? Math.log10 : (value) => value;
  const [a, b] = [f(low), f(high) === f(low) ? f(low) + 1 : f(high)];
  const map = (value) => from + ((f(value) - a) / (b - a)) * (to - from);
  map.back = (place) => {
    const value = a + ((place - from) / (to - from)) * (b - a);
    return log ? 10 ** value : value;
  };
  const powers = log ? multiples(Math.max(1, Math.ceil((b - a) / 6)), a, b).map((power) => 10 ** power) : [];
  const isOneTwoFive = log && powers.length < 3 && b - a > 0.7; // a smaller range has evenly spaced ticks
  map.ticks = powers.length > 2 ? powers : isOneTwoFive ? oneTwoFive(low, high) : round(low, high === low ? low + 1 : high);
  map.label = (tick) => (powers.length > 2 ? tick.toExponential(0) : tickText(tick, map.ticks));
  return map;
}

function round(a, b) {
  const rough = (b - a) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  return multiples([1, 2, 5, 10].map((one) => one * power).find((step) => step >= rough), a, b);
}

/** The multiples of a step from a to b. */
function multiples(step, a, b) {
  const first = Math.ceil(a / step - 1e-9);
  const last = Math.floor(b / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
}

/** The ticks 1, 2, 5, 10, 20 … of a logarithmic axis, almost evenly spaced over one or two decades. */
function oneTwoFive(low, high) {
  const powers = multiples(1, Math.floor(Math.log10(low)), Math.log10(high));
  return powers.flatMap((power) => [1, 2, 5].map((one) => Number(`${one}e${power}`))).filter((tick) => tick >= low && tick <= high);
}

function tickText(value, ticks) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : Math.abs(value);
  const most = ticks.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  if (value === 0) return "0";
  if (most < 1e-2 || most >= 1e6) {
    const digits = Math.floor(Math.log10(Math.abs(value)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9);
    return value.toExponential(Math.max(0, Math.min(4, digits)));
  }
  return value.toFixed(Math.max(0, Math.min(4, -Math.floor(Math.log10(step || 1) + 1e-9))));
}

function axes(xs, ys, { bins, xLabel, label }) {
  const bottom = HEIGHT - BOTTOM;
  const middle = (TOP + bottom) / 2;
  const grid = ys.ticks.flatMap((tick) => [
    s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: ys(tick), y2: ys(tick) }),
    s("text", { class: "tick end", x: LEFT - 6, y: ys(tick) + 4 }, ys.label(tick)),
  ]);
  const named = bins?.map((name, bin) => name.split(" ").map((part, line) => s("text", { class: "tick", x: xs(bin), y: bottom + 14 * (line + 1) }, part))); // its range, and below how many there are
  const numbered = () => [...xs.ticks.map((tick) => s("text", { class: "tick", x: xs(tick), y: bottom + 16 }, tickText(tick, xs.ticks))), s("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: bottom, y2: bottom })];
  return [
    ...grid,
    ...(named?.flat() ?? numbered()),
    s("text", { class: "label", x: (LEFT + WIDTH) / 2, y: HEIGHT - (bins ? 6 : 18) }, xLabel),
    s("text", { class: "label", x: 14, y: middle, transform: `rotate(-90 14 ${middle})` }, label),
  ];
}
