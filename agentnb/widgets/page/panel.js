// The panel's side on the page: it draws what the kernel sends, and sends what a person does.
//
// All data is set through textContent. Only the kernel's own drawings are parsed, as XML, and only their shapes and text
// are used. A front end takes a single module: bundle.py joins these files.

import { button, el, say } from "./text.js";
import { icon } from "./icons.js";
import { Store } from "./store.js";
import { Controls } from "./controls.js";
import { ReplayControls } from "./replay.js";
import { Strip } from "./strip.js";
import { Approvals } from "./approvals.js";
import { Detail } from "./detail.js";
import { Events } from "./events.js";
import { Trace } from "./trace.js";
import { Messages } from "./messages.js";
import { Live, Progress } from "./live.js";
import { Usage } from "./usage.js";
import { Tabs } from "./tabs.js";
import { Diagram } from "./diagram.js";
import { Graphs } from "./graph.js";
import { WhatIf } from "./whatif.js";
import { Branches } from "./branches.js";
import { Compare } from "./compare.js";
import { InnerModel } from "./inside.js";
import { Ended } from "./ended.js";
import { Sum } from "./sum.js";
import { inBars } from "./bar.js";
import { keepFocus } from "./focus.js";
import { Find } from "./find.js";
import { Help } from "./help.js";
import { actByKey, keepKeys } from "./keys.js";
import { Ready } from "./ready.js";
import { resizable } from "./size.js";
import { StudyPanel } from "./study.js";
import { StudyStore } from "./study_store.js";

const ALL = ["controls", "approvals", "graph", "trace", "events", "timeline", "messages", "progress", "usage", "diagram", "detail"];
/** @type {Record<string, string>} */
const VIEWS = { trace: "Trace", events: "Events", messages: "Messages", usage: "Usage", graph: "Graph", compare: "Compare" }; // the tabs, in this order; one is visible
const CHOOSES = new Set(["trace", "timeline", "position", "messages", "usage"]); // the parts in which an event can be chosen, apart from the list of events
const ONE_COLUMN = 760; // pixels: in a narrower panel the details of an event unfold under its row (frame.css)
const MESSAGES = new Set(["message", "model_end", "call_end"]); // the events that add to the messages
/**
 * The news for which each part is drawn again.
 * @type {Record<string, News[]>}
 */
const WANTS = {
  replay: ["position", "rows", "status", "clock"],
  strip: ["rows", "status", "position", "clock"],
  controls: ["status", "rows", "total", "selected", "breakpoints", "pending", "position"],
  approvals: ["pending", "tools", "decisions", "position", "rows"],
  graph: ["graphs", "drawings", "status"],
  trace: ["rows", "status", "live", "selected"],
  events: ["rows", "tail", "selected"],
  messages: ["rows", "status", "live"],
  live: ["live", "status"],
  progress: ["live", "status", "rows"],
  usage: ["rows", "status", "position"],
  detail: ["selected", "rows", "status", "live", "position", "pending", "breakpoints"],
  diagram: ["status", "diagram", "tables", "position"],
  whatif: ["whatif", "kernel"],
  branches: ["branches", "rows", "status"],
  compare: ["branches", "rows"],
  sum: ["rows", "position", "status"],
};
const EACH = new Set(["controls", "approvals", "events", "messages", "diagram", "whatif"]); // parts that get each piece of news; the others are drawn once
// By the panel's key. All views of a model share a module, and in some front ends all models do.
const stores = /** @type {Map<string | Model, Store>} */ (new Map());
let addStyle = /** @type {(host: HTMLElement) => void} */ (() => {}); // given with each model, the same each time

/** @param {Model} model */
const keyOf = (model) => model.get("key") ?? model;

/** @param {Model} model */
function storeOf(model) {
  const key = keyOf(model);
  const store = stores.get(key) ?? (model.get("study") ? new StudyStore(model) : new Store(model));
  stores.set(key, store);
  return store;
}

/** @param {{ model: Model, el: HTMLElement }} given */
export function render({ model, el: host }) {
  const store = storeOf(model),
    panel = make(store, model),
    { root } = panel,
    scrolled = /** @type {Map<Element, number>} */ (new Map());
  let focused = /** @type {HTMLElement | null} */ (null);
  host.classList.add("agentnb-place");
  host.append(root);
  // An element that is taken off the page loses how far it was scrolled, and the focus.
  root.addEventListener("scroll", ({ target }) => target instanceof Element && scrolled.set(target, target.scrollTop), { capture: true, passive: true });
  root.addEventListener("focusin", ({ target }) => {
    focused = target instanceof HTMLElement ? target : null;
  });
  root.addEventListener("focusout", ({ target }) => {
    queueMicrotask(() => {
      if (focused === target && focused?.isConnected) focused = null; // a person has left it
    });
  });
  return () => {
    if (store.ended) store.ended.leave(panel, [...scrolled], focused);
    else panel.dispose();
  };
}

/**
 * Make a panel. It is drawn when it is on the page.
 * @param {Store} store
 * @param {Model} model
 * @returns {{ root: HTMLElement, dispose: () => void }}
 */
function make(store, model) {
  // An exported file has no studies, and not their modules.
  if (model.get("study") && store instanceof StudyStore)
    return new StudyPanel(store, model, ({ inside, state }, words, root, leave) =>
      showInside(store, new InnerModel(store, inside, state), words, root, leave),
    );
  const parts = model.get("parts") ?? ALL;
  /** @param {string} name */
  const has = (name) => parts.includes(name);
  const root = el("div", { class: "agentnb agentnb-panel mathjax_ignore tex2jax_ignore", role: "group", "aria-label": "Panel" });
  keepFocus(root);
  keepKeys(root);
  const trouble = el("p", { class: "agentnb-trouble", role: "status" }),
    kernel = el("div", { class: "agentnb-notice agentnb-bad", hidden: true }, icon("cross"), trouble);
  // Show an event, from any of the parts. A panel without a list of events shows the event alone.
  /** @param {number} at */
  const go = (at) => {
    if (!events) return store.select(store.rows[at]);
    tabs?.choose(tabs.indexOf(events));
    return events.go(at);
  };
  const events = has("events") ? new Events(store) : null;
  /** @param {string} phase */
  const listPhase = (phase) => {
    if (events) tabs?.choose(tabs.indexOf(events));
    events?.showPhase(phase);
  };
  /** @param {number} at */
  const showEvent = (at) => {
    store.select(store.all[at] ?? null);
    requestAnimationFrame(() => detail?.body.focus({ preventScroll: true })); // it is visible by then
  };
  const help = new Help(store.isFile),
    controls = has("controls") ? new Controls(store, help, (answered) => openReplay(answered)) : null,
    replay = has("position") ? new ReplayControls(store) : null,
    strip = has("timeline") || has("position") ? new Strip(store) : null,
    head = controls ?? replay,
    diagram = has("diagram") ? new Diagram(store, events && ((phase) => listPhase(phase))) : null;
  // The branches of the run, listed, compared, and each shown in this panel's place; and its replay, shown there too.
  let inside = /** @type {ReturnType<typeof showInside> | null} */ (null);
  const leave = () => {
    inside?.dispose();
    inside = null;
    root.classList.remove("agentnb-behind");
  };
  /**
   * @param {Opened} answer
   * @param {InnerWords} words
   */
  const show = (answer, words) => {
    if (!answer.ok || inside || !root.isConnected) return null;
    inside = showInside(store, new InnerModel(store, answer.inside, answer.state), words, root, leave);
    return inside.store;
  };
  /** @param {BranchState} branch */
  const open = ({ id, name, at }) => store.ask({ type: "open", id }, (answer) => show(answer, { name, about: `branch ${name}, from #${at}` }));
  /** @param {BranchState} branch */
  const openInstead = (branch) => {
    leave(); // another branch is open
    open(branch);
  };
  /** @param {(answer: Answers["replay"]) => void} answered */
  const openReplay = (answered) =>
    store.ask({ type: "replay" }, (answer) => {
      answered(answer);
      const own = show(answer, { name: "the replay", about: "replay: nothing is executed" });
      own?.goTo(0);
      own?.player?.toggle();
    });
  const isWhole = events && (has("controls") || has("position")) && !store.isFile, // and not only some parts of a panel
    branches = isWhole ? new Branches(store, { open, compare: (branch) => compareWith(branch) }, strip) : null,
    compare = isWhole ? new Compare(store, open) : null;
  const trace = has("trace") ? new Trace(store, (at) => showEvent(at)) : null,
    approvals = has("approvals") ? new Approvals(store, parts.length === 1, trace) : null;
  /**
   * Show the form of What if under the row of its event. An event without a row has it in the detail pane.
   * @param {HTMLElement} form
   * @param {EventRow} event
   */
  const growForm = (form, event) => {
    const row = trace && store.trace.of(event);
    if (!row) {
      detail?.hold(form);
      return;
    }
    tabs?.choose(tabs.indexOf(trace));
    trace.grow("whatif", row.number, form, { under: true, kind: "whatif" });
    // It has its height with the next drawing. The list then shows it, also if it was at its end, which it follows.
    requestAnimationFrame(() => requestAnimationFrame(() => trace.reveal(row.number)));
  };
  const shrinkForm = () => {
    trace?.shrink("whatif");
    detail?.hold(null);
  };
  /** @param {BranchState} branch */
  const compareWith = (branch) => {
    compare?.choose(branch.id);
    tabs?.choose(tabs.indexOf(compare));
  };
  // A panel without this part shows an event that a person has chosen, below the others.
  const choosable = events || parts.some((name) => CHOOSES.has(name)),
    messages = has("messages") ? new Messages(store, go) : null,
    detail =
      has("detail") || choosable
        ? new Detail(store, {
            follows: has("detail"),
            asked: () => approvals?.asked() ?? null,
            left: () => [trace?.grid, events?.list.spacer].find((list) => list?.getClientRects().length)?.focus({ preventScroll: true }),
            toMessages: messages && (() => tabs?.choose(tabs.indexOf(messages))),
          })
        : null;
  // The bars of the trace and the lanes of the branches are drawn to the strip's scale.
  if (strip)
    strip.laid = (axis) => {
      trace?.follows(axis);
      branches?.update();
    };
  /** @type {Record<string, Part | null>} */
  const made = {
    replay,
    controls,
    strip,
    approvals,
    graph: has("graph") ? new Graphs(store, parts.length === 1) : null,
    events,
    trace,
    messages,
    live: events && !has("trace") ? new Live(store) : null, // the trace shows in its rows what is in progress
    progress: (events || has("progress")) && !has("trace") ? new Progress(store, parts.length === 1 && has("progress")) : null,
    usage: has("usage") ? new Usage(store, go) : null,
    diagram,
    detail,
    whatif: detail && !store.isFile ? new WhatIf(store, (form, row) => growForm(form, row), () => shrinkForm()) : null,
    branches,
    compare,
    sum: store.isFile ? new Sum(store) : null,
  };
  const views = /** @type {[string, Part][]} */ ([]);
  for (const [name, words] of Object.entries(VIEWS)) if (made[name]) views.push([words, made[name]]);
  const find = new Find();
  const chosen = () => {
    if (tabs) find.turnTo(tabs.views[tabs.at].part);
    view("view");
  };
  const tabs = views.length > 1 ? new Tabs(views, chosen) : null;
  const ready = controls && views.length ? new Ready(store) : null; // in the place of the first view
  if (tabs) find.turnTo(tabs.views[0].part);
  tabs?.el.append(find.el);
  const framed = Boolean(head && views.length); // the frame has a constant height, whatever happens in it
  /** @param {string} name */
  const seen = (name) => !tabs || !VIEWS[name] || tabs.isSeen(made[name]);
  const main = el(
    "div",
    { class: "agentnb-main" },
    head?.notices.el,
    trace ? undefined : approvals?.el,
    tabs?.el,
    ready?.el,
    trace ? approvals?.el : undefined,
    ...(tabs ? tabs.views.map(({ panel }) => panel) : views.map(([, part]) => part.el)),
    ...[made.whatif, made.progress, made.live].map((part) => part?.el),
    controls?.composer.el,
    made.sum?.el,
  );
  const inSide = [diagram?.el, detail?.el, compare?.side].filter((node) => node !== undefined);
  const side = el("div", { class: "agentnb-side" }, ...inSide);
  if (!diagram) main.append(...inSide);
  root.classList.toggle("agentnb-framed", framed);
  root.append(
    ...[
      head?.el,
      help.el,
      kernel,
      strip?.el,
      branches?.el,
      el("div", { class: "agentnb-body" }, main.children.length ? main : null, diagram ? side : null),
      framed && !store.isFile ? resizable(root) : undefined,
    ].filter((node) => node !== undefined),
  );
  // What the tabs say about their views.
  let counted = 0,
    sent = 0, // the messages among them
    anew = store.anew;
  const tell = () => {
    if (!tabs) return;
    if (anew !== store.anew) {
      anew = store.anew;
      counted = sent = 0;
    }
    for (; counted < store.rows.length; counted++) if (MESSAGES.has(store.rows[counted].type)) sent++;
    tabs.tell(events, store.rows.length || (store.replays ? 0 : store.total));
    tabs.tell(messages, sent);
    tabs.offer(compare, Boolean(model.get("branches")?.length));
    tabs.tell(compare, model.get("branches")?.length ?? 0);
    if (compare) compare.side.hidden = !tabs.isSeen(compare);
    root.classList.toggle("agentnb-comparing", tabs.isSeen(compare));
    tabs.offer(made.graph, Boolean(model.get("graphs")?.length));
    if (controls) controls.composer.el.hidden = tabs.at > 0;
  };
  let width = Infinity; // of the panel. It is not measured with each drawing: the page would be laid out for that
  // Where the details of the chosen event are: in the side column; in one column under its row, if that is shown.
  const placeDetail = () => {
    if (!trace || !detail || !diagram) return;
    const row = width < ONE_COLUMN && seen("trace") && detail.chosen() ? store.trace.of(/** @type {EventRow} */ (store.selected)) : undefined;
    if (row) trace.detail(row.number, detail.el);
    else if (detail.el.parentElement !== side) {
      side.insertBefore(detail.el, compare?.side ?? null);
      trace.shrink("detail");
    }
  };
  const begin = () => {
    if (!ready) return;
    ready.update();
    if (tabs && tabs.at > 0) ready.el.hidden = true;
    (tabs ? tabs.views[0].panel : views[0][1].el).hidden = !ready.el.hidden || Boolean(tabs && tabs.at > 0);
  };
  actByKey(root, {
    play: () => (controls ? controls.play() : replay?.player.toggle()),
    step: () => (controls ? controls.stepOnce() : replay?.forward()),
    live: () => store.goLive(),
    find: () => find.focus(),
    tab: (at) => tabs?.choose(tabs.views.indexOf(tabs.views.filter(({ tab }) => !tab.hidden)[at])),
    help: () => help.open(),
    whatIf: () => detail?.whatIf(),
    breakHere: () => detail?.breakHere(),
    close: () => {
      const opened = [help, controls?.menu, replay?.menu].find((one) => one && !one.el.hidden);
      opened?.close();
      return Boolean(opened);
    },
  });
  // The copy in the notebook file (display.py) is hidden while this panel is on the page.
  root.append(el("style", { text: `[data-agentnb-copy="${keyOf(model)}"] { display: none; }` }));

  // News is only noted here; the parts are drawn once a frame. A hidden page draws when it is visible again.
  const news = /** @type {Set<News>} */ (new Set());
  let frame = 0;
  const draw = () => {
    frame = 0;
    const all = news.has("kernel") || news.has("view");
    say(trouble, store.trouble);
    kernel.hidden = !store.trouble;
    root.classList.toggle("agentnb-gone", store.gone);
    for (const [name, part] of Object.entries(made)) {
      if (!part || !seen(name)) continue;
      const due = WANTS[name].filter((what) => all || news.has(what));
      for (const what of EACH.has(name) ? due : due.slice(0, 1)) part.update(what);
    }
    tell();
    begin();
    placeDetail();
    news.clear();
  };
  /** @param {News} what */
  const view = (what) => {
    news.add(what);
    frame ||= requestAnimationFrame(draw);
  };
  const unview = store.view(view);
  // Draw again when the output gets a layout or another size: other rows are visible then.
  const sized = new ResizeObserver(([{ contentRect }]) => {
    ({ width } = contentRect);
    view("rows");
  });
  sized.observe(root);
  view("status");
  view("tail");
  const leaveBars = store.isFile ? () => {} : inBars(store, root, { dress: (place) => addStyle(place), open: openInstead });
  const dispose = () => {
    unview();
    leaveBars();
    sized.disconnect();
    cancelAnimationFrame(frame);
    inside?.dispose();
    for (const part of Object.values(made)) part?.dispose?.();
    root.remove();
  };
  return { root, dispose };
}

/** @typedef {{ name: string, about: string }} InnerWords */

/**
 * Show the panel of a branch or of a replay in the place of the panel of its run.
 * @param {Store} store
 * @param {InnerModel} model
 * @param {InnerWords} words
 * @param {HTMLElement} root the panel of the run
 * @param {() => void} leave
 */
function showInside(store, model, { name, about }, root, leave) {
  store.inner.set(model.id, model);
  const own = storeOf(model),
    panel = make(own, model),
    before = document.activeElement,
    run = store.model.get("status")?.run || "the run",
    back = button(`\u2039 ${run}`, leave, { class: "agentnb-button agentnb-ghost", title: "Back to the run" });
  const bar = el(
    "div",
    { class: "agentnb-inside-bar" },
    back,
    el("span", { class: "agentnb-dim agentnb-cut", text: about }),
  );
  const host = el("div", { class: "agentnb-inside" }, bar, panel.root);
  panel.root.setAttribute("aria-label", `Panel of ${name}`);
  root.append(host);
  root.classList.add("agentnb-behind");
  back.focus({ preventScroll: true });
  return {
    root: host,
    store: own,
    dispose: () => {
      panel.dispose();
      host.remove();
      clearInterval(own.timer);
      own.player?.hold();
      store.inner.delete(model.id);
      stores.delete(keyOf(model));
      if (before instanceof HTMLElement && before.isConnected) requestAnimationFrame(() => before.focus({ preventScroll: true }));
    },
  };
}

// `initialize` gets a model that lives as long as the widget; that of `render` ends with its view. So the store uses this one.
export default {
  /** @param {{ model: Model, dress: (host: HTMLElement) => void }} given */
  initialize({ model, dress }) {
    addStyle = dress;
    const store = storeOf(model),
      ended = model.get("study") ? null : new Ended(store, () => make(store, model), dress); // a study keeps its live panel
    store.ended = ended;
    model.on("change:status", () => ended?.follow());
    return () => {
      store.ended = null;
      ended?.dispose();
      clearInterval(store.timer);
      store.player?.hold();
      stores.delete(keyOf(model));
    };
  },
  render,
};
