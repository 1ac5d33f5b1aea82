// The steps of a resampling: the strip of the run that is drawn, and above it a bar for each of its steps. The height of a bar
// is the share of the samples that differ from the run, or that have a value; its line is the interval of that share.

import { InnerModel } from "./inside.js";
import { placeOf } from "./lanes.js";
import { Store } from "./store.js";
import { Strip } from "./strip.js";
import { drawnInterval, percent } from "./study_arms.js";
import { button, count, el, fit, number, say } from "./text.js";

const FLIP_WIDE = 22, // pixels: the width of a bar at most, and at least
  FLIP_LEAST = 4,
  FLIP_EDGE = 16, // pixels that are free at the right of the axis, as on the strip
  FLIPS = "differs from the run";

export class Steps {
  /**
   * @param {import("./study_store.js").StudyStore} store
   * @param {{ open: (at: number) => void, list: (at: number) => void }} acts open the run at an event; list the samples of a step
   */
  constructor(store, acts) {
    this.store = store;
    this.acts = acts;
    this.chosen = -1; // the event of the step that is shown in full
    this.which = -1; // the value whose share is shown; -1 for the samples that differ
    this.drawn = "";
    this.own = /** @type {Store | null} */ (null); // of the strip
    this.strip = /** @type {Strip | null} */ (null);
    this.frame = 0;
    this.unview = () => {};
    this.verdict = el("p", { class: "agentnb-flip-verdict" });
    this.select = el("select", { class: "agentnb-select agentnb-arms-which", "aria-label": "Share that is shown" });
    this.select.addEventListener("change", () => {
      this.which = Number(this.select.value);
      this.update();
    });
    this.top = el("span", { class: "agentnb-flip-end agentnb-dim", text: "100%", "aria-hidden": "true" });
    this.bottom = el("span", { class: "agentnb-flip-end agentnb-dim", text: "0", "aria-hidden": "true" });
    this.bars = el("div", { class: "agentnb-flip-bars", role: "toolbar", "aria-label": "Steps" });
    this.bars.addEventListener("keydown", (event) => this.key(event));
    this.chart = el("div", { class: "agentnb-flip-chart" }, this.top, this.bottom, this.bars);
    this.lanes = el("div", { class: "agentnb-flip-lanes" });
    this.detail = el("div", { class: "agentnb-flip-detail", role: "region", "aria-label": "Step", tabindex: "0", hidden: true });
    this.el = el("div", { class: "agentnb-flips" }, el("div", { class: "agentnb-flip-head" }, this.verdict, el("span", { class: "agentnb-push" }), this.select), this.chart, this.lanes, this.detail);
    store.ask({ type: "open", id: "strip" }, (answer) => this.opened(answer));
  }

  data() {
    return /** @type {StepsOfRun} */ (this.store.head().steps ?? { run: "", until: "end", values: [], steps: [] });
  }

  /** @param {Opened} answer */
  opened(answer) {
    if (!answer.ok || this.own) return;
    const model = new InnerModel(this.store, answer.inside, answer.state);
    this.store.inner.set(model.id, model);
    this.own = new Store(/** @type {any} */ (model));
    this.strip = new Strip(this.own);
    this.strip.laid = () => this.place();
    this.strip.slider.setAttribute("aria-label", "Position in the run that is drawn");
    this.lanes.replaceChildren(this.strip.el);
    this.unview = this.own.view(() => this.update());
    this.update();
  }

  // Draw with the next frame: the layout of the page is known there.
  update() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.strip?.update("rows");
      this.draw();
    });
  }

  draw() {
    const { values, steps, until } = this.data(),
      news = JSON.stringify([values, steps, this.which, this.chosen]);
    if (news === this.drawn) return;
    this.drawn = news;
    if (this.which >= values.length) this.which = -1;

    // What is shown.
    const ends = until === "end" ? "ends with" : "is";
    this.select.replaceChildren(...[FLIPS, ...values.map((text) => `${ends} \u201c${text}\u201d`)].map((text, i) => el("option", { value: String(i - 1), text })));
    this.select.value = String(this.which);
    this.tell(steps);

    // The bars.
    const buttons = fit(this.bars, steps.length, () => {
      const made = el("button", { type: "button", class: "agentnb-flip", tabindex: "-1" }, el("span", { class: "agentnb-flip-bar" }), el("span", { class: "agentnb-flip-range" }));
      made.addEventListener("click", () => this.choose(Number(made.dataset.at)));
      return made;
    });
    buttons.forEach((node, i) => {
      const step = steps[i],
        { share, low, high, total } = this.shareOf(step),
        words = `${nameOfStep(step)}: ${this.words(step)}`,
        [bar, range] = /** @type {HTMLCollectionOf<HTMLElement>} */ (node.children);
      node.dataset.at = String(step.at);
      node.title = words;
      node.setAttribute("aria-label", words);
      node.setAttribute("aria-pressed", String(step.at === this.chosen));
      node.classList.toggle("agentnb-flip-none", !total);
      bar.style.height = `${Math.max(total ? 1 : 0, 100 * share)}%`;
      range.style.bottom = `${100 * low}%`;
      range.style.height = `${total ? 100 * (high - low) : 0}%`;
    });
    const focused = steps.findIndex(({ at }) => at === this.chosen);
    buttons.forEach((node, i) => node.setAttribute("tabindex", i === Math.max(0, focused) ? "0" : "-1"));
    this.place();
    this.show(steps[focused]);
  }

  /**
   * The step with the highest bar, in words.
   * @param {StepOfRun[]} steps
   */
  tell(steps) {
    const measured = steps.filter((step) => this.shareOf(step).total);
    if (!measured.length) {
      say(this.verdict, "No sample has ended yet.");
      return;
    }
    const top = measured.reduce((best, step) => (this.shareOf(step).share > this.shareOf(best).share ? step : best)),
      { share } = this.shareOf(top),
      link = button(nameOfStep(top), () => this.choose(top.at), { class: "agentnb-link", title: "Show this step" });
    if (!share) say(this.verdict, this.which < 0 ? "No sample differs from the run." : "No sample has this value.");
    else this.verdict.replaceChildren(this.which < 0 ? "Highest flip rate at " : "Most often at ", link, el("span", { class: "agentnb-dim", text: `: ${this.words(top)}` }));
  }

  /**
   * The share that is shown of a step.
   * @param {StepOfRun} step
   */
  shareOf({ n, total, flips, shares }) {
    const [many, low, high] = (this.which < 0 ? flips : shares[this.which]) ?? [0, 0, 1],
      of = this.which < 0 ? n : total;
    return { many, total: of, share: of ? many / of : 0, low, high };
  }

  /** @param {StepOfRun} step */
  words(step) {
    const { many, total, share, low, high } = this.shareOf(step);
    if (!total) return "no samples yet";
    return `${percent(share)} ${this.which < 0 ? "differ from the run" : `have “${this.data().values[this.which]}”`}, ${number(many)} of ${count(total, "sample")} (95%: ${percent(low)} to ${percent(high)})`;
  }

  // Put the bars above the requests of the strip; without a strip, one after the other.
  place() {
    const { strip, own } = this,
      { steps } = this.data(),
      wide = this.chart.clientWidth,
      isPlaced = Boolean(strip?.width && own && steps.every(({ at }) => own.all[at])),
      gutter = strip?.width ? strip.gutter : 60,
      even = (wide - gutter - FLIP_WIDE) / Math.max(1, steps.length);
    const places = spread(
      steps.map(({ at }, i) => (isPlaced && strip && own ? placeOf(strip.axis, own.all[at].time) : i * even)),
      wide - gutter - FLIP_EDGE,
    );
    this.top.hidden = this.bottom.hidden = gutter < 40;
    this.bars.style.left = `${gutter}px`;
    /** @type {HTMLElement[]} */ ([...this.bars.children]).forEach((node, i) => {
      const next = places[i + 1] ?? wide - gutter - FLIP_EDGE,
        size = Math.max(FLIP_LEAST - 2, Math.min(FLIP_WIDE, next - places[i] - 2));
      node.style.left = `${places[i].toFixed(1)}px`;
      node.style.width = `${size.toFixed(1)}px`;
    });
  }

  /** @param {number} at */
  choose(at) {
    this.chosen = at;
    if (this.own?.all[at]) this.own.goTo(at + 1);
    this.drawn = "";
    this.draw();
  }

  /**
   * Show the values of the samples of a step.
   * @param {StepOfRun | undefined} step
   */
  show(step) {
    this.detail.hidden = !step;
    if (!step) return;
    const { values, until } = this.data(),
      [flips, low, high] = step.flips,
      rows = values.map((text, i) => ({ text, share: step.shares[i] })).filter(({ share }) => share[0]);
    rows.sort((a, b) => b.share[0] - a.share[0]);
    const facts = step.n ? `${number(flips)} of ${count(step.n, "sample")}${step.failed ? " with a value" : ""} differ${flips === 1 ? "s" : ""} (${percent(flips / step.n)}; 95%: ${percent(low)} to ${percent(high)})` : "no samples yet";
    this.detail.replaceChildren(
      el(
        "div",
        { class: "agentnb-flip-facts" },
        el("b", { text: nameOfStep(step) }),
        el("span", { text: facts }),
        step.failed ? el("span", { class: "agentnb-dim", text: `${number(step.failed)} failed` }) : null,
        el("span", { class: "agentnb-push" }),
        button("Its samples", () => this.acts.list(step.at), { class: "agentnb-link", title: "Show the samples of this step in the table" }),
        button("Open the run here", () => this.acts.open(step.at), { class: "agentnb-link", title: "Show the recorded run at this step" }),
      ),
      el(
        "table",
        { class: "agentnb-arms", "aria-label": `Values of ${step.name}` },
        el(
          "tbody",
          {},
          ...rows.map(({ text, share: [many, from, to] }) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, el("span", { class: "agentnb-cut agentnb-isolated agentnb-arms-name", text, title: text })),
              el("td", {}, el("b", { text: percent(many / step.total) })),
              el("td", { class: "agentnb-dim", text: `${number(many)} of ${number(step.total)}` }),
              el("td", { class: "agentnb-arms-axis" }, drawnInterval(many / step.total, from, to)),
              el("td", { class: "agentnb-dim agentnb-flip-same", text: text === step.recorded ? (until === "end" ? "as the run ended" : "as in the run") : "" }),
            ),
          ),
        ),
      ),
    );
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const nodes = /** @type {HTMLButtonElement[]} */ ([...this.bars.children]),
      at = nodes.indexOf(/** @type {HTMLButtonElement} */ (event.target));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, number>} */
    const targets = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: nodes.length - 1 };
    const to = nodes[targets[event.key]];
    if (targets[event.key] === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (!to) return;
    nodes[at].setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
  }

  dispose() {
    this.unview();
    cancelAnimationFrame(this.frame);
    this.strip?.dispose();
    if (!this.own) return;
    clearInterval(this.own.timer);
    this.own.player?.hold();
    this.store.inner.delete(/** @type {any} */ (this.own.model).id);
  }
}

/**
 * Move bars apart that would cover each other: first to the right, then back from the end of the axis.
 * @param {number[]} places in the order of the steps, which is that of time
 * @param {number} end
 */
function spread(places, end) {
  const apart = Math.min(FLIP_LEAST + 6, end / Math.max(1, places.length)),
    moved = [...places];
  for (let i = 1; i < moved.length; i++) moved[i] = Math.max(moved[i], moved[i - 1] + apart);
  for (let i = moved.length - 1, room = end - apart; i >= 0 && moved[i] > room; i--, room -= apart) moved[i] = room;
  return moved;
}

/** @param {StepOfRun} step */
const nameOfStep = ({ name, at }) => `${name}, #${at}`;
