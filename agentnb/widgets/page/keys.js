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
