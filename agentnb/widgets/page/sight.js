// Where a panel is on the page, and whether its question is in sight: for the bar (bar.js), which is at the foot of the
// window of the notebook and says less while the question is in sight.

export const SETTLES = 100, // milliseconds from a change to the drawing of it
  BAR_HEIGHT = 47, // pixels
  SCROLLER = ".jp-WindowedPanel-outer, .jp-Notebook, .jp-CodeConsole-content";
const ENOUGH = 110, // pixels of a question, or half of it, that make it be in sight
  WINDOWS = ".jp-NotebookPanel, .jp-ConsolePanel";

/** One panel on the page: where it is, and whether its question is in sight. */
export class View {
  /**
   * @param {Store} store
   * @param {HTMLElement} root
   * @param {{ dress: (host: HTMLElement) => void, open: (branch: BranchState) => void }} acts add the style sheet, and open a branch
   */
  constructor(store, root, { dress, open }) {
    this.store = store;
    this.root = root;
    this.dress = dress;
    this.openBranch = open;
    this.place = /** @type {HTMLElement | null} */ (null); // the window that it was in last: a notebook takes cells off the page
    this.scrolled = 0; // how far that window was scrolled then, when the panel was at its top
    this.isSeen = /** @type {boolean | null} */ (null); // null until the browser tells
    this.asksInSight = /** @type {boolean | null} */ (null);
    this.target = /** @type {Element | null} */ (null);
    this.changed = () => {};
    this.sight = new IntersectionObserver((marks) => this.look(marks), { threshold: [0, 0.25, 0.5, 0.75, 1], rootMargin: `0px 0px -${BAR_HEIGHT}px 0px` });
    this.sight.observe(root);
  }

  /** @param {IntersectionObserverEntry[]} marks */
  look(marks) {
    for (const { target, isIntersecting, intersectionRatio, intersectionRect } of marks) {
      if (target === this.root) this.isSeen = isIntersecting && intersectionRect.height >= BAR_HEIGHT;
      else if (target === this.target) this.asksInSight = isIntersecting && (intersectionRatio >= 0.5 || intersectionRect.height >= ENOUGH);
    }
    this.changed();
  }

  // Find its window, and what asks in it.
  find() {
    const { root } = this;
    if (root.isConnected) {
      this.place = windowOf(root);
      const scroller = root.closest(SCROLLER);
      if (scroller) this.scrolled = scroller.scrollTop + root.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
    }
    if (!root.isConnected) this.isSeen = this.asksInSight = false;
    const target = root.querySelector(".agentnb-waiting");
    if (target === this.target) return;
    if (this.target) this.sight.unobserve(this.target);
    this.target = target;
    if (target) this.sight.observe(target);
    else this.asksInSight = false;
  }

  // Bring it back onto the page: a notebook takes off what is far away.
  bringBack() {
    const scroller = this.place?.querySelector(SCROLLER);
    if (!this.root.isConnected && scroller) scroller.scrollTop = Math.max(0, this.scrolled - BAR_HEIGHT);
  }

  /**
   * Show a branch of its run in its place.
   * @param {BranchState} branch
   */
  open(branch) {
    this.bringBack();
    const show = () => {
      this.root.scrollIntoView({ block: "start" });
      this.openBranch(branch);
    };
    if (this.root.isConnected) show();
    else setTimeout(() => this.root.isConnected && show(), 2 * SETTLES);
  }

  // Show it at a person's request, so it gets the focus.
  go() {
    const { store } = this,
      [item] = store.model.get("pending") ?? [];
    store.goLive(); // a page that looks back does not show the question
    if (!this.target && item?.event) store.select(store.all[item.event] ?? null);
    this.bringBack();
    const show = () => {
      this.find();
      const at = this.target?.getClientRects().length ? this.target : this.root;
      at.scrollIntoView({ block: this.target === at ? "center" : "start" });
      if (at !== this.root) /** @type {HTMLElement} */ (at).focus({ preventScroll: true });
    };
    if (this.root.isConnected && this.target) show();
    else setTimeout(() => this.root.isConnected && show(), 2 * SETTLES);
  }

  dispose() {
    this.sight.disconnect();
  }
}

/**
 * The element at whose foot the bar of a panel is: the notebook's window, or the page if it is a page of its own.
 * @param {HTMLElement} root
 */
function windowOf(root) {
  const area = root.closest(WINDOWS);
  if (area instanceof HTMLElement) return area;
  const isInside = window.top !== window || root.closest(".jp-MainAreaWidget") || document.body.dataset.vscodeThemeKind;
  return isInside ? null : document.body;
}
