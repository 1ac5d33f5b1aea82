// Keys: the one that confirms, and those that the panel ignores.

/**
 * Whether a key confirms: Enter, unless it ends an input method's composition. Safari reports that by `keyCode` alone.
 * @param {KeyboardEvent} event
 */
export const isEnter = (event) => event.key === "Enter" && !event.isComposing && event.keyCode !== 229;

/**
 * Keep a key that is held down from deciding, and letters from reaching the notebook.
 * @param {HTMLElement} root
 */
export function keepKeys(root) {
  /**
   * The next question may get the focus within milliseconds: a key that is held down must not decide it unread.
   * @param {KeyboardEvent} event
   */
  const ignoreHeld = (event) => {
    const target = /** @type {Element} */ (event.target);
    if (!event.repeat || event.key !== "Enter" || !target.matches("button, input")) return;
    event.preventDefault();
    event.stopPropagation();
  };
  /**
   * The notebook has commands on bare letters: d d deletes the cell, and the panel with it.
   * @param {KeyboardEvent} event
   */
  const keepLetters = (event) => {
    if (event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  };
  root.addEventListener("keydown", ignoreHeld, true);
  root.addEventListener("keydown", keepLetters);
}

/** @typedef {{ play: () => void, step: () => void, live: () => void, find: () => void, tab: (at: number) => void, help: () => void, whatIf: () => void, breakHere: () => void, close: () => boolean }} Acts */

/**
 * Do what a person asks for by a key while the panel has the focus, but not while a field has it. A part of the panel that
 * has a use for a key of its own prevents its default.
 * @param {HTMLElement} root
 * @param {Acts} acts
 */
export function actByKey(root, acts) {
  root.addEventListener("keydown", (event) => {
    const target = /** @type {Element} */ (event.target),
      presses = target.matches("button, summary, [role=tab]") && event.key === " ";
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || presses) return;
    if (event.key === "Escape") {
      if (acts.close()) event.preventDefault();
      else if (target !== root) {
        if (target instanceof HTMLElement) target.blur(); // first: leaving an element takes the tabindex of the panel (focus.js)
        root.tabIndex = -1;
        root.focus({ preventScroll: true });
      } else return; // the notebook's own Escape
      event.stopPropagation();
      return;
    }
    if (target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
    /** @type {Record<string, () => void>} */
    const does = { " ": acts.play, s: acts.step, l: acts.live, "/": acts.find, "?": acts.help, w: acts.whatIf, b: acts.breakHere };
    const act = does[event.key.toLowerCase()] ?? (/^[1-9]$/.test(event.key) ? () => acts.tab(Number(event.key) - 1) : undefined);
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    if (!event.repeat) act();
  });
}
