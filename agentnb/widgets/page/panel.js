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
const VIEWS = { events: "Events", timeline: "Timeline", messages: "Messages" }; // one is seen, in this order
// What each part is drawn anew for.
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
const stores = new Map(); // by the panel's key: a module is shared by all views of a model, and by some hosts by all models

const keyOf = (model) => model.get("key") ?? model;

function storeOf(model) {
  const key = keyOf(model);
  if (!stores.has(key)) stores.set(key, new Store(model));
  return stores.get(key);
}

function render({ model, el: host }) {
  const store = storeOf(model),
    parts = model.get("parts") ?? ALL,
    has = (name) => parts.includes(name);
  const root = el("div", { class: "agentnb agentnb-panel mathjax_ignore tex2jax_ignore", role: "group", "aria-label": "Panel" });
  keepFocus(root);
  keepKeys(root);
  const kernel = el("p", { class: "agentnb-problem", role: "status", hidden: true });
  // To an event, from any of the parts. A panel without a list of events shows it alone.
  const alone = has("events") ? null : new Details(store, () => alone.show(null), (at) => go(at));
  const go = (at) => {
    if (alone) return alone.show(store.rows[at]);
    tabs?.choose(0);
    return made.events.go(at);
  };
  const made = {
    position: has("position") ? new Position(store) : null,
    controls: has("controls") ? new Controls(store) : null,
    approvals: has("approvals") ? new Approvals(store, parts.length === 1) : null,
    graph: has("graph") ? new Graphs(store, parts.length === 1) : null,
    events: has("events") ? new Events(store) : null,
    timeline: has("timeline") ? new Timeline(store, go) : null,
    messages: has("messages") ? new Messages(store, go) : null,
    live: has("events") ? new Live(store) : null,
    progress: has("events") || has("progress") ? new Progress(store, parts.length === 1 && has("progress")) : null,
    usage: has("usage") ? new Usage(store, go) : null,
    diagram: has("diagram") ? new Diagram(store) : null,
  };
  const views = Object.entries(VIEWS).filter(([name]) => made[name]),
    seen = (name) => !tabs || !VIEWS[name] || tabs.isSeen(made[name]);
  const tabs = views.length > 1 ? new Tabs(views.map(([name, words]) => [words, made[name]]), () => view("view")) : null;
  const inMain = [
    ...(tabs ? [tabs.list, ...tabs.panels] : views.map(([name]) => made[name].el)),
    ...[alone, made.progress, made.live].filter(Boolean).map((part) => part.el),
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
      (showsMain || made.diagram) && columns,
      made.usage?.el,
      !showsMain && made.usage && alone?.el,
    ].filter(Boolean),
  );
  // The copy that the notebook file keeps of it (saved.py) is only for pages where this here is not.
  root.append(el("style", { text: `[data-agentnb-copy="${keyOf(model)}"] { display: none; }` }));
  host.classList.add("agentnb-place");
  host.append(root);

  // News only marks what to draw; drawing is once a frame. A hidden page has no frames, and draws when it is seen again.
  const news = new Set();
  let frame = 0;
  const draw = () => {
    frame = 0;
    const all = news.has("kernel") || news.has("view");
    say(kernel, store.trouble);
    kernel.hidden = !store.trouble;
    root.classList.toggle("agentnb-gone", store.gone);
    for (const [name, part] of Object.entries(made)) {
      const due = part && seen(name) ? WANTS[name].filter((what) => all || news.has(what)) : [];
      for (const what of EACH.has(name) ? due : due.slice(0, 1)) part.update(what);
    }
    news.clear();
  };
  const view = (what) => {
    news.add(what);
    frame ||= requestAnimationFrame(draw);
  };
  const unview = store.view(view);
  // Not drawn while the output was not laid out, or laid out anew: what is in view has changed.
  const sized = new ResizeObserver(() => view("rows"));
  sized.observe(root);
  for (const what of ["status", "tail"]) view(what);
  return () => {
    unview();
    sized.disconnect();
    cancelAnimationFrame(frame);
    for (const part of Object.values(made)) part?.dispose?.();
  };
}

// The model's own proxy lives as long as the model; a view's is gone with the view. So the store listens from here on.
export default {
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
