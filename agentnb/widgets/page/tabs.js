// Views of the same run in tabs: one is visible, and the others are not drawn until they are.

import { button, el, number, say, unique } from "./text.js";

/** @typedef {{ name: string, part: Part, tab: HTMLButtonElement, count: HTMLElement, panel: HTMLElement }} View */

export class Tabs {
  /**
   * @param {[name: string, part: Part][]} views in their order
   * @param {() => void} chosen called when another is chosen
   */
  constructor(views, chosen) {
    this.chosen = chosen;
    this.at = 0;
    const id = unique();
    this.views = views.map(([name, part], i) => {
      const count = el("span", { class: "agentnb-tab-count", "aria-hidden": "true" }),
        tab = button("", () => this.choose(i), { class: "agentnb-tab", role: "tab", id: `agentnb-tab-${id}-${i}`, title: `${i + 1}` });
      const panel = el("div", { class: "agentnb-view", role: "tabpanel", id: `agentnb-view-${id}-${i}`, "aria-labelledby": tab.id }, part.el);
      tab.append(el("span", { text: name }), " ", count);
      tab.setAttribute("aria-controls", panel.id);
      return /** @type {View} */ ({ name, part, tab, count, panel });
    });
    this.list = el("div", { class: "agentnb-tablist", role: "tablist", "aria-label": "Views of the run" }, ...this.views.map(({ tab }) => tab));
    this.el = el("div", { class: "agentnb-tabs" }, this.list);
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.show(0);
  }

  /** @param {number} at */
  show(at) {
    this.at = at;
    this.views.forEach(({ tab, panel }, i) => {
      tab.setAttribute("aria-selected", String(i === at));
      tab.tabIndex = i === at ? 0 : -1;
      panel.hidden = i !== at;
    });
  }

  /** @param {number} at */
  choose(at) {
    if (at === this.at || !this.views[at] || this.views[at].tab.hidden) return;
    this.show(at);
    this.list.scrollLeft += overflow(this.views[at].tab, this.list); // in a narrow panel it may be out of sight
    this.chosen();
  }

  /** @param {unknown} part */
  isSeen(part) {
    return this.views[this.at].part === part;
  }

  /** @param {unknown} part */
  indexOf(part) {
    return this.views.findIndex((view) => view.part === part);
  }

  /**
   * Show how many things a view has. The name of its tab stays.
   * @param {unknown} part
   * @param {number} many
   */
  tell(part, many) {
    const view = this.views[this.indexOf(part)];
    if (view) say(view.count, many ? number(many) : "");
  }

  /**
   * Offer a view, or not. If it is the visible one, the first takes its place.
   * @param {unknown} part
   * @param {boolean} offered
   */
  offer(part, offered) {
    const at = this.indexOf(part);
    if (at < 0 || this.views[at].tab.hidden === !offered) return;
    this.views[at].tab.hidden = !offered;
    if (!offered && this.at === at) this.choose(0);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const tabs = this.views.map((_, i) => i).filter((i) => !this.views[i].tab.hidden),
      at = tabs.indexOf(this.at),
      last = tabs.length - 1;
    /** @type {Record<string, number>} */
    const targets = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at ? at - 1 : last, Home: 0, End: last };
    const to = targets[event.key];
    if (to === undefined) return;
    this.choose(tabs[to]);
    this.views[this.at].tab.focus();
    event.preventDefault();
    event.stopPropagation();
  }
}

/**
 * How many pixels an element is out of sight at the right of another one; negative at the left.
 * @param {HTMLElement} inner
 * @param {HTMLElement} outer
 */
function overflow(inner, outer) {
  const one = inner.getBoundingClientRect(),
    other = outer.getBoundingClientRect();
  return one.left < other.left ? one.left - other.left : Math.max(0, one.right - other.right);
}
