// Charts in SVG, whose values can be read: under the pointer, with the arrow keys, and in a table below.

import { fill, h, moved, s, said, unique } from "./elements.js";

const COLOURS = 6; // --colour-0 … in style.css; more series begin again, with other dashes
const DASHES = ["", "7 4", "2 3"];
const WIDTH = 640;
const HEIGHT = 240;
const LEFT = 62;
const RIGHT = 24;
const TOP = 10;
const BOTTOM = 52;

/** Colour and dashes of the i-th series. */
function look(i) {
  return { class: `series colour-${i % COLOURS}`, "stroke-dasharray": DASHES[Math.floor(i / COLOURS) % DASHES.length] };
}

/**
 * Lines through points: series are {name, x, y}, x rising. `log`: the y axis is logarithmic, and values that are not
 * above 0 are left out. `digits` of the values that are read.
 */
export function lines({ title, label, xLabel, series, log = false, digits = 3 }) {
  const usable = series.map(({ name, x, y }) => ({
    name,
    points: x.map((value, i) => [value, y[i]]).filter((point) => point[1] !== null && (!log || point[1] > 0)),
  }));
  const all = usable.flatMap((one) => one.points);
  if (all.length === 0) return h("p", { class: "empty" }, `${title}: no values.`);
  const xs = scale(extent(all.map((point) => point[0])), LEFT, WIDTH - RIGHT);
  const ys = scale(padded(extent(all.map((point) => point[1])), log), HEIGHT - BOTTOM, TOP, log);
  const places = [...new Set(all.map((point) => point[0]))].sort((a, b) => a - b);
  const drawn = usable.map(({ points }, i) =>
    points.length === 1
      ? s("circle", { ...look(i), cx: xs(points[0][0]), cy: ys(points[0][1]), r: 3.5 })
      : s("polyline", { ...look(i), points: points.map(([x, y]) => `${xs(x).toFixed(1)},${ys(y).toFixed(1)}`).join(" ") }),
  );
  const cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const parts = [...axes(xs, ys, { xLabel, label, digits }), ...drawn, cursor];
  const values = usable.map(({ points }) => new Map(points));
  const value = (i, x) => precise(values[i].get(x), digits);
  const read = (place) => {
    const x = places[place];
    const known = usable.flatMap(({ name }, i) => (values[i].has(x) ? [`${name} ${value(i, x)}`] : []));
    return `${xLabel} ${x}: ${known.join(", ")}`;
  };
  const at = (place) => {
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, xs(places[place]));
    cursor.setAttribute("visibility", "visible");
  };
  const nearest = (x) => {
    const value = xs.back(x);
    return places.reduce((best, one, i) => (Math.abs(one - value) < Math.abs(places[best] - value) ? i : best), 0);
  };
  const table = {
    columns: [xLabel, ...usable.map((one) => one.name)],
    rows: () => places.map((x) => [x, ...usable.map((_, i) => value(i, x))]),
  };
  return figure({ title, parts, names: usable.map((one) => one.name), count: places.length, read, at, nearest, table });
}

/** Points with intervals over named bins: series are {name, points}, a point {value, low, high} or null. */
export function intervals({ title, label, xLabel, bins, series, digits = 1 }) {
  const known = series.flatMap((one) => one.points).filter(Boolean);
  if (known.length === 0) return h("p", { class: "empty" }, `${title}: no values.`);
  const ys = scale([0, 1.05 * Math.max(...known.map((one) => one.high ?? one.value))], HEIGHT - BOTTOM, TOP);
  const step = (WIDTH - LEFT - RIGHT) / bins.length;
  const middle = (bin) => LEFT + (bin + 0.5) * step;
  const parts = [...valueAxis(ys, label, digits)];
  bins.forEach((name, bin) => {
    const [range, count] = name.split(" "); // how many there are stands below
    parts.push(s("text", { class: "tick", x: middle(bin), y: HEIGHT - BOTTOM + 14 }, range));
    if (count) parts.push(s("text", { class: "tick", x: middle(bin), y: HEIGHT - BOTTOM + 28 }, count));
  });
  parts.push(s("text", { class: "label", x: (LEFT + WIDTH) / 2, y: HEIGHT - 6 }, xLabel));
  series.forEach(({ points }, i) => {
    const x = (bin) => middle(bin) + 9 * (i - (series.length - 1) / 2);
    const path = points.map((point, bin) => (point ? `${x(bin).toFixed(1)},${ys(point.value).toFixed(1)}` : null));
    parts.push(s("polyline", { ...look(i), points: path.filter(Boolean).join(" ") }));
    points.forEach((point, bin) => {
      if (!point) return;
      const place = { x1: x(bin), x2: x(bin), y1: ys(point.low ?? point.value), y2: ys(point.high ?? point.value) };
      parts.push(s("line", { class: `series colour-${i % COLOURS}`, ...place }));
      parts.push(s("circle", { class: `dot colour-${i % COLOURS}`, cx: x(bin), cy: ys(point.value), r: 3.5 }));
    });
  });
  const band = s("rect", { class: "band", y: TOP, width: step, height: HEIGHT - BOTTOM - TOP, visibility: "hidden" });
  const value = (point) =>
    point ? said(point.value, digits) + (point.low === undefined ? "" : ` [${said(point.low, digits)}, ${said(point.high, digits)}]`) : "–";
  return figure({
    title,
    parts: [band, ...parts],
    names: series.map((one) => one.name),
    count: bins.length,
    read: (bin) => `${bins[bin]} ${xLabel}: ${series.map((one) => `${one.name} ${value(one.points[bin])}`).join(", ")}`,
    at: (bin) => {
      band.setAttribute("x", LEFT + bin * step);
      band.setAttribute("visibility", "visible");
    },
    nearest: (x) => Math.min(Math.max(Math.floor((x - LEFT) / step), 0), bins.length - 1),
    table: { columns: [xLabel, ...series.map((one) => one.name)], rows: () => bins.map((bin, i) => [bin, ...series.map((one) => value(one.points[i]))]) },
  });
}

/** The chart with its legend, the values under the pointer or at the place that the arrow keys chose, and a table. */
function figure({ title, parts, names, count, read, at, nearest, table }) {
  const caption = unique("chart");
  const reading = h("p", { class: "reading", "aria-live": "polite" }, "Arrow keys or pointer: read the values.");
  let place = -1;
  const go = (next) => {
    place = next;
    at(place);
    fill(reading, read(place));
  };
  const svg = s(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      class: "chart",
      role: "application",
      tabindex: 0,
      "aria-labelledby": caption,
      onpointermove: (event) => {
        const box = svg.getBoundingClientRect();
        go(nearest(((event.clientX - box.left) / box.width) * WIDTH));
      },
      onkeydown: (event) => {
        const next = moved(event, place, count);
        if (next !== null) go(next);
      },
    },
    parts,
  );
  const legend = names.map((name, i) =>
    h("li", {}, s("svg", { viewBox: "0 0 24 8", class: "key", "aria-hidden": "true" }, s("line", { ...look(i), x1: 0, x2: 24, y1: 4, y2: 4 })), name),
  );
  return h(
    "figure",
    { class: "plot" },
    h("figcaption", { id: caption }, title),
    names.length > 1 ? h("ul", { class: "legend" }, legend) : null,
    svg,
    reading,
    later("Values", () => plain(table.columns, table.rows())),
  );
}

/** Details whose content is made when they are opened first: a long run has many values. */
function later(title, make) {
  const details = h("details", { ontoggle: () => details.children.length === 1 && details.append(make()) }, h("summary", {}, title));
  return details;
}

/** A value with so many digits after the point, or as many as a small one needs. */
function precise(value, digits) {
  const small = typeof value === "number" && value !== 0 && Math.abs(value) < 10 ** (1 - digits);
  return small ? Number(value.toPrecision(3)).toString() : said(value, digits);
}

/** A small table of text. */
export function plain(columns, rows) {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.join(", ") },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, String(cell)))))),
    ),
  );
}

function extent(values) {
  return [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
}

/** From 0, or with room below, and above. */
function padded([low, high], log) {
  if (log) return low === high ? [low / 2, high * 2] : [low, high];
  if (low >= 0) return [0, high === 0 ? 1 : 1.05 * high];
  return [low - 0.05 * (high - low), high + 0.05 * (high - low)];
}

/** Maps values to places; `back` maps places to values, `ticks` are round values; with `log`, powers of ten if two fit. */
function scale([low, high], from, to, log = false) {
  const f = log ? Math.log10 : (value) => value;
  const [a, b] = [f(low), f(high) === f(low) ? f(low) + 1 : f(high)];
  const map = (value) => from + ((f(value) - a) / (b - a)) * (to - from);
  map.back = (place) => {
    const value = a + ((place - from) / (to - from)) * (b - a);
    return log ? 10 ** value : value;
  };
  const powers = log ? powersOfTen(a, b) : [];
  map.powers = powers.length > 1;
  map.ticks = map.powers ? powers : round(low, high === low ? low + 1 : high);
  map.ends = [from, to];
  return map;
}

function round(a, b) {
  const rough = (b - a) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const ticks = [];
  for (let i = Math.ceil(a / step); i * step <= b * (1 + 1e-9); i += 1) ticks.push(i * step);
  return ticks;
}

function powersOfTen(a, b) {
  const every = Math.max(1, Math.ceil((b - a) / 6));
  const ticks = [];
  for (let i = Math.ceil(a); i <= b; i += every) ticks.push(10 ** i);
  return ticks;
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

function valueAxis(ys, label) {
  const parts = ys.ticks.flatMap((tick) => [
    s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: ys(tick), y2: ys(tick) }),
    s("text", { class: "tick end", x: LEFT - 6, y: ys(tick) + 4 }, ys.powers ? tick.toExponential(0) : tickText(tick, ys.ticks)),
  ]);
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  return [...parts, s("text", { class: "label", x: 14, y: middle, transform: `rotate(-90 14 ${middle})` }, label)];
}

function axes(xs, ys, { xLabel, label }) {
  const bottom = HEIGHT - BOTTOM;
  return [
    ...valueAxis(ys, label),
    ...xs.ticks.map((tick) => s("text", { class: "tick", x: xs(tick), y: bottom + 16 }, tickText(tick, xs.ticks))),
    s("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: bottom, y2: bottom }),
    s("text", { class: "label", x: (LEFT + WIDTH) / 2, y: HEIGHT - 6 }, xLabel),
  ];
}
