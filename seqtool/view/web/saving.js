// Saves a drawing as an SVG file, with the colours that it has on the page.

import { h, s } from "./elements.js";

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "font-family", "font-size", "font-weight", "text-anchor", "text-decoration", "visibility", "direction", "filter"];

/** A button that saves the SVG element `drawing()` as NAME.svg. */
export function saveButton(drawing, name) {
  return h("button", { type: "button", class: "save", onclick: () => save(drawing(), name) }, "Save as SVG");
}

function save(svg, name) {
  const copy = svg.cloneNode(true);
  const originals = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((element, i) => {
    const style = getComputedStyle(originals[i]);
    for (const property of STYLES) element.setAttribute(property, style.getPropertyValue(property));
    for (const attribute of ["class", "tabindex"]) element.removeAttribute(attribute);
  });
  const { x, y, width, height } = svg.viewBox.baseVal;
  const ground = s("rect", { x, y, width, height, fill: getComputedStyle(document.body).backgroundColor });
  copy.prepend(ground);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  h("a", { href: url, download: `${name}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
