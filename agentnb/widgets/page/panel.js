// The panel's page side: draws what the kernel tells and sends back what a person does.
//
// All data is set through textContent. All that is parsed are the drawings, which the kernel made, and these as XML with
// everything but shapes and text left out. A front end takes one module only: page.py joins these files.

import { el, say } from "./text.js";
import { Store } from "./store.js";
import { Controls } from "./controls.js";
import { Approvals } from "./approvals.js";
import { Events } from "./events.js";
import { Diagram } from "./diagram.js";
import { Graphs } from "./graph.js";

const ALL = ["controls", "approvals", "graph", "events", "diagram"];
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
  const root = el("div", { class: "agentnb agentnb-panel mathjax_ignore tex2jax_ignore" });
  const kernel = el("p", { class: "agentnb-problem", role: "status", hidden: true });
  const made = {
    controls: has("controls") ? new Controls(store) : null,
    approvals: has("approvals") ? new Approvals(store) : null,
    graph: has("graph") ? new Graphs(store) : null,
    events: has("events") ? new Events(store) : null,
    diagram: has("diagram") ? new Diagram(store) : null,
  };
  const columns = el(
    "div",
    { class: "agentnb-columns" },
    made.events && el("div", { class: "agentnb-main" }, made.events.el),
    made.diagram?.el,
  );
  root.append(
    ...[kernel, made.controls?.el, made.approvals?.el, made.graph?.el, (made.events || made.diagram) && columns].filter(Boolean),
  );
  // The copy that the notebook file keeps of it (saved.py) is only for pages where this here is not.
  root.append(el("style", { text: `[data-agentnb-copy="${keyOf(model)}"] { display: none; }` }));
  host.append(root);

  // News only marks what to draw; drawing is once a frame. A hidden page has no frames, and draws when it is seen again.
  const news = new Set();
  let frame = 0;
  const draw = () => {
    frame = 0;
    const all = news.has("kernel");
    const wants = {
      controls: ["status", "rows", "total"],
      approvals: ["pending", "tools"],
      graph: ["graphs", "drawings", "status"],
      events: ["rows", "live", "status", "tail"],
      diagram: ["status", "diagram", "tables"],
    };
    say(kernel, store.trouble);
    kernel.hidden = !store.trouble;
    root.classList.toggle("agentnb-gone", store.gone);
    for (const [name, part] of Object.entries(made)) {
      if (part) for (const what of wants[name]) if (all || news.has(what)) part.update(what);
    }
    news.clear();
  };
  const view = (what) => {
    news.add(what);
    frame ||= requestAnimationFrame(draw);
  };
  store.views.add(view);
  // Not drawn while the output was not laid out, or laid out anew: what is in view has changed.
  const sized = new ResizeObserver(() => view("rows"));
  sized.observe(root);
  for (const what of ["status", "tail"]) view(what);
  return () => {
    store.views.delete(view);
    sized.disconnect();
    cancelAnimationFrame(frame);
    made.approvals?.dispose();
  };
}

// The model's own proxy lives as long as the model; a view's is gone with the view. So the store listens from here on.
export default {
  initialize({ model }) {
    const store = storeOf(model);
    return () => {
      clearInterval(store.timer);
      stores.delete(keyOf(model));
    };
  },
  render,
};
