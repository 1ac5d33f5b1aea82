// Keys: which of them confirms, and what none of them may do in a panel.

/**
 * Enter, unless it ends what an input method composes; Safari tells that by the code alone.
 * @param {KeyboardEvent} event
 */
export const isEnter = (event) => event.key === "Enter" && !event.isComposing && event.keyCode !== 229;

/** @param {HTMLElement} root */
export function keepKeys(root) {
  /**
   * What comes next may have the focus within milliseconds: a key that is held down must not decide what nobody has read.
   * @param {KeyboardEvent} event
   */
  const ignoreHeld = (event) => {
    const target = /** @type {Element} */ (event.target);
    if (!event.repeat || event.key !== "Enter" || !target.matches("button, input")) return;
    event.preventDefault();
    event.stopPropagation();
  };
  /**
   * The notebook has commands on bare letters: d d takes away the cell, and the panel with it.
   * @param {KeyboardEvent} event
   */
  const keepLetters = (event) => {
    if (event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  };
  root.addEventListener("keydown", ignoreHeld, true);
  root.addEventListener("keydown", keepLetters);
}
