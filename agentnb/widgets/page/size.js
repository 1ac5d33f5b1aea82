// The height of the panel. It is always the same, whatever happens in the run, until a person changes it by the handle at
// its foot. Each notebook has a height of its own.

import { el } from "./text.js";

export const BAR_HEIGHT = 47, // pixels, of the bar at the foot of a notebook's window
  SCROLLER = ".jp-WindowedPanel-outer, .jp-Notebook, .jp-CodeConsole-content";
const DEFAULT_HEIGHT = 560,
  LEAST_HEIGHT = 320,
  MOST_HEIGHT = 1200,
  LOW_HEIGHT = 430; // of a lower panel, all of it is for the question while a person is asked
const BY_KEY = 20, // pixels a key
  ROOM_AROUND = 12; // pixels around a panel
const KEPT_AS = `agentnb-height:${location.pathname}`;

/**
 * Give a panel its height, and return the handle.
 * @param {HTMLElement} root
 */
export function resizable(root) {
  const handle = el("div", {
    class: "agentnb-handle",
    role: "separator",
    tabindex: "0",
    "aria-label": "Height of the panel",
    "aria-orientation": "horizontal",
    "aria-valuemin": LEAST_HEIGHT,
    "aria-valuemax": MOST_HEIGHT,
    "data-lm-suppress-shortcuts": "true",
    title: "Drag, or use the arrow keys; a double click resets it",
  });
  let height = DEFAULT_HEIGHT;
  // A panel whose height nobody has chosen is not higher than the window of its notebook.
  const fit = () => {
    if (!root.isConnected) return;
    const room = (root.closest(SCROLLER)?.clientHeight || window.innerHeight) - BAR_HEIGHT - ROOM_AROUND,
      most = height === DEFAULT_HEIGHT ? `${Math.max(LEAST_HEIGHT, room)}px` : "";
    if (root.style.maxHeight !== most) root.style.maxHeight = most;
    root.classList.toggle("agentnb-low", root.clientHeight < LOW_HEIGHT);
  };
  new ResizeObserver(fit).observe(root);
  window.addEventListener("resize", fit);
  /** @param {number} wanted */
  const set = (wanted) => {
    height = Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, Math.round(wanted)));
    root.style.height = `${height}px`;
    fit();
    handle.setAttribute("aria-valuenow", String(height));
    handle.setAttribute("aria-valuetext", `${height} pixels`);
  };
  const keep = () => {
    try {
      if (height === DEFAULT_HEIGHT) localStorage.removeItem(KEPT_AS);
      else localStorage.setItem(KEPT_AS, String(height));
    } catch {
      // A page without storage of its own: the height lasts as long as the panel.
    }
  };
  try {
    set(Number(localStorage.getItem(KEPT_AS)) || DEFAULT_HEIGHT);
  } catch {
    set(DEFAULT_HEIGHT);
  }
  handle.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    handle.focus({ preventScroll: true });
    handle.setPointerCapture(event.pointerId);
    const from = height - event.clientY;
    /** @param {PointerEvent} move */
    const drag = (move) => set(from + move.clientY);
    handle.addEventListener("pointermove", drag);
    handle.addEventListener(
      "lostpointercapture",
      () => {
        handle.removeEventListener("pointermove", drag);
        keep();
      },
      { once: true },
    );
  });
  handle.addEventListener("dblclick", () => {
    set(DEFAULT_HEIGHT);
    keep();
  });
  handle.addEventListener("keydown", (event) => {
    /** @type {Record<string, number>} */
    const wanted = { ArrowUp: height - BY_KEY, ArrowDown: height + BY_KEY, PageUp: height - 5 * BY_KEY, PageDown: height + 5 * BY_KEY, Home: LEAST_HEIGHT, End: MOST_HEIGHT };
    if (wanted[event.key] === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    set(wanted[event.key]);
    keep();
  });
  return handle;
}
