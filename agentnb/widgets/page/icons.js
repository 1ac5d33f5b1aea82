// The icons of buttons: lines on a ground of 16 by 16, in the colour of the text.

const SVG_SPACE = "http://www.w3.org/2000/svg";
/** @type {Record<string, string>} */
const PATHS = {
  check: "M3 8.5l3.5 3.5L13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  down: "M4 6l4 4 4-4",
  up: "M4 10l4-4 4 4",
};

/**
 * Draw an icon. It has no name: the button around it has one.
 * @param {"check" | "cross" | "down" | "up" | "more"} name
 */
export function icon(name) {
  const svg = document.createElementNS(SVG_SPACE, "svg"),
    path = document.createElementNS(SVG_SPACE, "path");
  svg.setAttribute("class", "agentnb-icon");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", PATHS[name] ?? "M3 8h.01M8 8h.01M13 8h.01");
  if (name === "more") path.setAttribute("stroke-width", "2.4");
  svg.append(path);
  return svg;
}
