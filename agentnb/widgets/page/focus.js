// The focus, where what had it goes away: it stays in the panel, and with the panel gone it goes to the cell around it.
// Otherwise it falls to the page, where no key does anything, and whoever works by keyboard is nowhere.

const SUPPRESS = "data-lm-suppress-shortcuts"; // JupyterLab's: an Enter would begin to edit the cell
/** @param {Element} node */
const isGone = (node) => !node.isConnected || !node.getClientRects().length;

/**
 * Whether keys are text there. The next of them must neither press a button nor be a command of the notebook's.
 * @param {Element} node
 */
const isTyping = (node) => node.matches("textarea, select, input:not([type=checkbox])");

/** @param {HTMLElement} root */
export function keepFocus(root) {
  let around = /** @type {HTMLElement[]} */ ([]); // what can have the focus outside, the innermost first
  root.addEventListener("focusin", () => {
    around = [];
    for (let node = root.parentElement; node; node = node.parentElement) if (node.hasAttribute("tabindex")) around.push(node);
  });
  // It comes before an element is taken away, and after one was hidden. What can still be seen was left by a person; and
  // where a part of the panel knows a better place, it has moved the focus there by the time this looks.
  root.addEventListener("focusout", (event) => {
    const target = /** @type {Element} */ (event.target);
    for (const name of ["tabindex", SUPPRESS]) root.removeAttribute(name); // for a click beside the controls, as everywhere in a cell
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
