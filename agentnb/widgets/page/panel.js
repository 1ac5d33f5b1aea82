// The panel's page side: draws what the kernel tells and sends back what a person does.
//
// All data is set through textContent. All that is parsed are the drawings, which the kernel made, and these as XML with
// everything but shapes and text left out. A front end takes one module only: page.py joins these files.

import { el, say } from "./text.js";
import { Store } from "./store.js";
import { Controls } from "./controls.js";
import { Position } from "./position.js";
import { Approvals } from "./approvals.js";
import { Details } from "./details.js";
import { Events } from "./events.js";
import { Timeline } from "./timeline.js";
import { Messages } from "./messages.js";
import { Live, Progress } from "./live.js";
import { Usage } from "./usage.js";
import { Tabs } from "./tabs.js";
import { Diagram } from "./diagram.js";
import { Graphs } from "./graph.js";
import { keepFocus } from "./focus.js";
import { keepKeys } from "./keys.js";

const ALL = ["controls", "approvals", "graph", "events", "timeline", "messages", "progress", "usage", "diagram"];
/** @type {Record<string, string>} */
const VIEWS = { events: "Events", timeline: "Timeline", messages: "Messages" }; // one is seen, in this order
/**
 * What each part is drawn anew for.
 * @type {Record<string, News[]>}
 */
const WANTS = {
  position: ["position", "rows", "status", "live", "clock"],
  controls: ["status", "rows", "total", "selected", "breakpoints"],
  approvals: ["pending", "tools", "decisions", "position"],
  graph: ["graphs", "drawings", "status"],
  events: ["rows", "tail"],
  timeline: ["rows", "status"],
  messages: ["rows", "status", "live"],
  live: ["live", "status"],
  progress: ["live", "status", "rows"],
  usage: ["rows", "status"],
  diagram: ["status", "diagram", "tables"],
};
const EACH = new Set(["controls", "approvals", "events", "messages", "diagram"]); // told what is new, one by one; others draw once
// By the panel's key: a module is shared by all views of a model, and by some hosts by all models.
const stores = /** @type {Map<string | Model, Store>} */ (new Map());

/** @param {Model} model */
const keyOf = (model) => model.get("key") ?? model;

/** @param {Model} model */
function storeOf(model) {
  const key = keyOf(model);
  const store = stores.get(key) ?? new Store(model);
  stores.set(key, store);
  return store;
}

/** @param {{ model: Model, el: HTMLElement }} given */
function render({ model, el: host }) {
  const store = storeOf(model),
    parts = model.get("parts") ?? ALL;
  /** @param {string} name */
  const has = (name) => parts.includes(name);
  const root = el("div", { class: "agentnb agentnb-panel mathjax_ignore tex2jax_ignore", role: "group", "aria-label": "Panel" });
  keepFocus(root);
  keepKeys(root);
  const kernel = el("p", { class: "agentnb-problem", role: "status", hidden: true });
  // To an event, from any of the parts. A panel without a list of events shows it alone.
  const events = has("events") ? new Events(store) : null;
  /** @type {Details | null} */
  const alone = events ? null : new Details(store, () => alone?.show(null), (at) => go(at));
  /** @param {number} at */
  const go = (at) => {
    if (alone) alone.show(store.rows[at]);
    else tabs?.choose(0);
    events?.go(at);
  };
  /** @type {Record<string, Part | null>} */
  const made = {
    position: has("position") ? new Position(store) : null,
    controls: has("controls") ? new Controls(store) : null,
    approvals: has("approvals") ? new Approvals(store, parts.length === 1) : null,
    graph: has("graph") ? new Graphs(store, parts.length === 1) : null,
    events,
    timeline: has("timeline") ? new Timeline(store, go) : null,
    messages: has("messages") ? new Messages(store, go) : null,
    live: has("events") ? new Live(store) : null,
    progress: has("events") || has("progress") ? new Progress(store, parts.length === 1 && has("progress")) : null,
    usage: has("usage") ? new Usage(store, go) : null,
    diagram: has("diagram") ? new Diagram(store) : null,
  };
  const views = /** @type {[string, Part][]} */ ([]);
  for (const [name, words] of Object.entries(VIEWS)) if (made[name]) views.push([words, made[name]]);
  const tabs = views.length > 1 ? new Tabs(views, () => view("view")) : null;
  /** @param {string} name */
  const seen = (name) => !tabs || !VIEWS[name] || tabs.isSeen(made[name]);
  const inMain = [
    ...(tabs ? [tabs.list, ...tabs.panels] : views.map(([, part]) => part.el)),
    ...[alone, made.progress, made.live].filter((part) => part !== null).map((part) => part.el),
  ];
  const showsMain = views.length || made.progress;
  const columns = el(
    "div",
    { class: "agentnb-columns" },
    showsMain ? el("div", { class: "agentnb-main" }, ...inMain) : null,
    made.diagram?.el,
  );
  root.append(
    ...[
      kernel,
      made.position?.el,
      made.controls?.el,
      made.approvals?.el,
      made.graph?.el,
      showsMain || made.diagram ? columns : undefined,
      made.usage?.el,
      !showsMain && made.usage ? alone?.el : undefined,
    ].filter((node) => node !== undefined),
  );
  // The copy that the notebook file keeps of it (saved.py) is only for pages where this here is not.
  root.append(el("style", { text: `[data-agentnb-copy="${keyOf(model)}"] { display: none; }` }));
  host.classList.add("agentnb-place");
  host.append(root);

  // News only marks what to draw; drawing is once a frame. A hidden page has no frames, and draws when it is seen again.
  const news = /** @type {Set<News>} */ (new Set());
  let frame = 0;
  const draw = () => {
    frame = 0;
    const all = news.has("kernel") || news.has("view");
    say(kernel, store.trouble);
    kernel.hidden = !store.trouble;
    root.classList.toggle("agentnb-gone", store.gone);
    for (const [name, part] of Object.entries(made)) {
      if (!part || !seen(name)) continue;
      const due = WANTS[name].filter((what) => all || news.has(what));
      for (const what of EACH.has(name) ? due : due.slice(0, 1)) part.update(what);
    }
    news.clear();
  };
  /** @param {News} what */
  const view = (what) => {
    news.add(what);
    frame ||= requestAnimationFrame(draw);
  };
  const unview = store.view(view);
  // Not drawn while the output was not laid out, or laid out anew: what is in view has changed.
  const sized = new ResizeObserver(() => view("rows"));
  sized.observe(root);
  view("status");
  view("tail");
  return () => {
    unview();
    sized.disconnect();
    cancelAnimationFrame(frame);
    for (const part of Object.values(made)) part?.dispose?.();
  };
}

// The model's own proxy lives as long as the model; a view's is gone with the view. So the store listens from here on.
export default {
  /** @param {{ model: Model }} given */
  initialize({ model }) {
    const store = storeOf(model);
    return () => {
      clearInterval(store.timer);
      store.player?.hold();
      stores.delete(keyOf(model));
    };
  },
  render,
};
