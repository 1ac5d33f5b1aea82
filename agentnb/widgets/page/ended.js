// Keeps the panel of a run on the page after the run has ended. The kernel then replaces the output by the static panel,
// which is what the notebook saves. The front end removes the widget's view, and the live panel moves next to the static
// one, which is hidden while the live one is there.

const MOVES_WITHIN = 2000; // milliseconds from the removal of the view to the static panel
const MISSING = 10 * 60 * 1000; // milliseconds without a place on the page, after which the live panel is given up

/** @typedef {{ root: HTMLElement, dispose: () => void }} LivePanel */

export class Ended {
  /**
   * @param {Store} store
   * @param {() => LivePanel} make
   * @param {(host: HTMLElement) => void} dress adds the style sheet
   */
  constructor(store, make, dress) {
    this.store = store;
    this.place = `[data-agentnb-ended="${store.model.get("key")}"]`;
    this.make = make;
    this.dress = dress;
    this.panel = /** @type {LivePanel | null} */ (null); // without a view of the widget
    this.host = /** @type {HTMLElement | null} */ (null); // the element around it, next to the static panel
    this.output = /** @type {HTMLElement | null} */ (null); // the static panel
    this.scrolled = /** @type {[Element, number][]} */ ([]);
    this.focused = /** @type {HTMLElement | null} */ (null);
    this.timer = 0;
    this.missing = 0; // since when its place is not on the page
    this.observer = /** @type {MutationObserver | null} */ (null);
    this.follow();
  }

  // Begin to look for the static panel when the run has ended.
  follow() {
    if (this.observer || this.store.replays || !this.store.model.get("status")?.over) return;
    // It is called before the browser draws, so the static panel is never seen.
    this.observer = new MutationObserver(() => this.look());
    this.observer.observe(document.body, { childList: true, subtree: true });
    this.look();
  }

  /**
   * Take the panel of a view that the front end has removed.
   * @param {LivePanel} panel
   * @param {[Element, number][]} scrolled
   * @param {HTMLElement | null} focused
   */
  leave(panel, scrolled, focused) {
    if (!this.observer || this.panel || this.store.views.size > 1) return panel.dispose();
    Object.assign(this, { panel, scrolled, focused });
    this.timer = setTimeout(() => this.host || this.giveUp(), MOVES_WITHIN);
    return this.look();
  }

  look() {
    if (this.host?.isConnected || (!this.panel && this.store.views.size)) return;
    const place = document.querySelector(this.place),
      output = place?.closest(".jp-RenderedHTMLCommon") ?? place;
    if (output instanceof HTMLElement) this.move(output);
  }

  /** @param {HTMLElement} output */
  move(output) {
    this.host?.remove();
    this.host = document.createElement("div");
    this.host.className = "agentnb-place jp-OutputArea-output";
    this.panel ??= this.make();
    this.dress(this.host);
    this.host.append(this.panel.root);
    output.before(this.host);
    output.style.display = "none";
    this.output = output;
    this.missing = 0;
    for (const [node, top] of this.scrolled) node.scrollTop = top;
    const { activeElement } = document;
    if (this.focused && (!activeElement || activeElement === document.body || activeElement.contains(this.host)))
      this.focused.focus({ preventScroll: true });
    this.scrolled = [];
    this.focused = null;
  }

  // Give the panel up when the output was cleared. A notebook also takes cells off the page that are out of sight.
  check() {
    if (!this.host || this.host.isConnected) this.missing = 0;
    else if (!this.missing) this.missing = Date.now();
    else if (Date.now() - this.missing > MISSING) this.giveUp();
  }

  giveUp() {
    clearTimeout(this.timer);
    this.panel?.dispose();
    this.host?.remove();
    if (this.output) this.output.style.display = "";
    this.panel = this.host = this.output = null;
    this.scrolled = [];
    this.focused = null;
    this.missing = 0;
  }

  dispose() {
    this.observer?.disconnect();
    this.giveUp();
  }
}
