// SVG elements: making them, and writing only what changed.

/** The SVG name space. */
export const SVG = "http://www.w3.org/2000/svg";

/** Sets attributes, numbers to two decimals; leaves alone what is as it should be. */
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const string = typeof value === "number" ? String(Math.round(value * 100) / 100) : value;
    if (element.getAttribute(name) !== string) element.setAttribute(name, string);
  }
}

/** A new SVG element at the end of `parent`, or on its own where parent is null. */
export function appendSvg(parent, tag, attributes = {}, text = undefined) {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

/** Sets an element's text where it differs. Token text is untrusted: it only ever goes through textContent. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** An icon of 16 x 16 units in the colour of the text around it. */
export function glyph(d) {
  const svg = appendSvg(null, "svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" });
  appendSvg(svg, "path", { d, fill: "currentColor", stroke: "currentColor", "stroke-width": 1.6,
    "stroke-linejoin": "round", "stroke-linecap": "round" });
  return svg;
}
