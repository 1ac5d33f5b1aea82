// Views of the same run in tabs: one is visible, and the others are not drawn until they are.

import { button, el, unique } from "./text.js";

export class Tabs {
  /**
   * @param {[name: string, view: Part][]} views in their order
   * @param {(view: Part) => void} chosen called when another is chosen
   */
  constructor(views, chosen) {
    this.views = views; // [name, view] in their order
    this.chosen = chosen;
    this.at = 0;
    const id = unique();
    this.tabs = views.map(([name], i) =>
      button(name, () => this.choose(i), { class: "agentnb-tab", role: "tab", id: `agentnb-tab-${id}-${i}` }),
    );
    this.list = el("div", { class: "agentnb-tabs", role: "tablist", "aria-label": "Views of the run" }, ...this.tabs);
    this.panels = views.map(([, view], i) => {
      const panel = el("div", { class: "agentnb-view", role: "tabpanel", id: `agentnb-view-${id}-${i}` }, view.el);
      panel.setAttribute("aria-labelledby", this.tabs[i].id);
      this.tabs[i].setAttribute("aria-controls", panel.id);
      return panel;
    });
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.show(0);
  }

  /** @param {number} at */
  show(at) {
    this.at = at;
    this.tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === at));
      tab.tabIndex = i === at ? 0 : -1;
      this.panels[i].hidden = i !== at;
    });
  }

  /** @param {number} at */
  choose(at) {
    if (at === this.at) return;
    this.show(at);
    this.chosen(this.views[at][1]);
  }

  /** @param {unknown} part */
  indexOf(part) {
    return this.views.findIndex(([, view]) => view === part);
  }

  /**
   * Offer a view, or not. If it is the visible one, the first takes its place.
   * @param {unknown} part
   * @param {boolean} offered
   */
  offer(part, offered) {
    const at = this.indexOf(part);
    if (at < 0 || this.tabs[at].hidden === !offered) return;
    this.tabs[at].hidden = !offered;
    if (!offered && this.at === at) this.choose(0);
  }

  /** @param {unknown} view */
  isSeen(view) {
    return this.views[this.at][1] === view;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const last = this.tabs.findLastIndex((tab) => !tab.hidden);
    /** @type {Record<string, number>} */
    const targets = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: last };
    const to = targets[event.key];
    if (to === undefined) return;
    this.choose(to < 0 ? last : to > last ? 0 : to);
    this.tabs[this.at].focus();
    event.preventDefault();
    event.stopPropagation();
  }
}
