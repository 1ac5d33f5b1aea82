// The icons: paths in a box of 16, of which some are solid. They say nothing to a screen reader: their button has a name.

import { el } from "./text.js";

const SVG_NAMES = "http://www.w3.org/2000/svg";
/** @type {Record<string, [outline: string, solid?: string]>} */
const PATHS = {
  step: ["M12 3.5v9", "M3 3.5v9l6.5-4.5z"],
  play: ["", "M4.5 3v10l8-5z"],
  pause: ["", "M4 3h3v10H4zM9 3h3v10H9z"],
  more: ["", "M1.6 8a1.4 1.4 0 1 0 2.8 0a1.4 1.4 0 1 0-2.8 0M6.6 8a1.4 1.4 0 1 0 2.8 0a1.4 1.4 0 1 0-2.8 0M11.6 8a1.4 1.4 0 1 0 2.8 0a1.4 1.4 0 1 0-2.8 0"],
  down: ["M4 6l4 4 4-4"],
  up: ["M4 10l4-4 4 4"],
  back: ["M10 4L6 8l4 4"],
  next: ["M6 4l4 4-4 4"],
  check: ["M3 8.5l3.2 3.2L13 5"],
  past: ["M6.5 4L3 7.5 6.5 11M3 7.5h6a4 4 0 0 1 4 4"],
  cross: ["M4 4l8 8M12 4l-8 8"],
  find: ["M3 7a4 4 0 1 0 8 0a4 4 0 1 0-8 0M10 10l3 3"],
  fork: ["M2.3 3.5a1.7 1.7 0 1 0 3.4 0a1.7 1.7 0 1 0-3.4 0M2.3 12.5a1.7 1.7 0 1 0 3.4 0a1.7 1.7 0 1 0-3.4 0M10.3 5.5a1.7 1.7 0 1 0 3.4 0a1.7 1.7 0 1 0-3.4 0M4 5.2v5.6M12 7.2c0 2.6-3 2.6-8 3.4"],
  ribbon: ["M4.5 3h7v10l-3.5-3-3.5 3z"],
  stop: ["", "M3.5 8a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0"],
  dock: ["M9 3h4v4M13 3L8 8M7 4H3v9h9V9"],
  save: ["M8 2.5v7M5 7l3 3 3-3M3 12.5h10"],
  square: ["", "M4 4h8v8H4z"],
  ring: ["M4 8a4 4 0 1 0 8 0a4 4 0 1 0-8 0"],
};

/**
 * Draw an icon.
 * @param {string} name
 */
export function icon(name) {
  const node = document.createElementNS(SVG_NAMES, "svg"),
    [outline, solid] = PATHS[name];
  node.setAttribute("class", "agentnb-icon");
  node.setAttribute("viewBox", "0 0 16 16");
  node.setAttribute("aria-hidden", "true");
  for (const [path, isSolid] of /** @type {[string | undefined, boolean][]} */ ([[outline, false], [solid, true]])) {
    if (!path) continue;
    const drawn = document.createElementNS(SVG_NAMES, "path");
    drawn.setAttribute("d", path);
    if (isSolid) drawn.dataset.solid = "";
    node.append(drawn);
  }
  return node;
}

/**
 * Make a button with an icon before its name. In a narrow panel only the icon is seen; the name stays for screen readers.
 * @param {string} drawn the icon
 * @param {string} name
 * @param {(event: MouseEvent & { currentTarget: HTMLButtonElement }) => void} onclick
 * @param {Record<string, any>} [extra] attributes
 */
export const iconButton = (drawn, name, onclick, extra = {}) =>
  el(
    "button",
    { type: "button", class: "agentnb-button", onclick, ...extra },
    icon(drawn),
    el("span", { class: "agentnb-button-name", text: name }),
  );

/**
 * Make a button that is only an icon, with a name for screen readers.
 * @param {string} drawn
 * @param {string} name
 * @param {(event: MouseEvent & { currentTarget: HTMLButtonElement }) => void} onclick
 * @param {Record<string, any>} [extra]
 */
export const iconOnly = (drawn, name, onclick, extra = {}) =>
  el(
    "button",
    { type: "button", class: "agentnb-button agentnb-ghost agentnb-square", "aria-label": name, onclick, ...extra },
    icon(drawn),
  );
