// Keeps the focus when the element that has it is removed: the focus stays in the panel, or goes to the cell around it if
// the panel is gone. Otherwise the page would get it, where no key does anything for a person who works by keyboard.

const SUPPRESS = "data-lm-suppress-shortcuts"; // JupyterLab's: an Enter would begin to edit the cell
/** @param {Element} node */
const isGone = (node) => !node.isConnected || !node.getClientRects().length;

/**
 * Whether an element takes typed text. The next key must then neither press a button nor be a command of the notebook.
 * @param {Element} node
 */
export const isTyping = (node) => node.matches("textarea, select, input:not([type=checkbox])");

/**
 * Keep the focus in the panel when the element that has it is taken away.
 * @param {HTMLElement} root
 */
export function keepFocus(root) {
  let around = /** @type {HTMLElement[]} */ ([]); // the elements around the panel that can have the focus, the innermost first
  root.addEventListener("focusin", () => {
    around = [];
    for (let node = root.parentElement; node; node = node.parentElement) if (node.hasAttribute("tabindex")) around.push(node);
  });
  // `focusout` comes before an element is removed, and after one is hidden. An element that is still visible was left by a
  // person. If a part of the panel knows a better target, it has moved the focus there before the microtask runs.
  root.addEventListener("focusout", (event) => {
    const target = /** @type {Element} */ (event.target);
    for (const name of ["tabindex", SUPPRESS]) root.removeAttribute(name); // so a click next to the controls does what it does everywhere in a cell
    queueMicrotask(() => {
      const { activeElement } = document;
      if (!isGone(target) || (activeElement && activeElement !== document.body)) return;
      if (!isGone(root)) {
        root.tabIndex = -1;
        root.toggleAttribute(SUPPRESS, isTyping(target));
        root.focus({ preventScroll: true });
      } else if (!isTyping(target)) around.find((node) => !isGone(node))?.focus({ preventScroll: true });
    });
  });
}
