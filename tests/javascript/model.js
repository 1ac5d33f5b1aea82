// Replacements for the front end in the unit tests of the page's modules: a widget model, a clock, and rows of events.

import { Store } from "../../agentnb/widgets/page/store.js";

globalThis.document ??= { hidden: false };

class Model {
  sent = [];
  handlers = {};

  constructor(traits, kernel) {
    this.traits = { parts: ["controls"], status: { over: false, lives: true }, total: 0, place: [], ...traits };
    this.widget_manager = { kernel };
  }

  get(name) {
    return this.traits[name];
  }
  on(name, handler) {
    (this.handlers[name] ??= []).push(handler);
  }
  send(message) {
    this.sent.push(message);
  }

  set(name, value) {
    this.traits[name] = value;
    for (const handler of this.handlers[`change:${name}`] ?? []) handler();
  }
  deliver(message) {
    for (const handler of this.handlers["msg:custom"]) handler(message);
  }
  sentOf(type) {
    return this.sent.filter((message) => message.type === type);
  }
  // Answer the last message of this type.
  answer(type, answer) {
    this.deliver({ type: "answer", token: this.sentOf(type).at(-1).token, ...answer });
  }
}

// A clock without real waits: `pass` advances it and runs the timers that are due.
class Clock {
  now = 1_000_000; // milliseconds
  timers = new Map();
  numbers = 0;

  constructor(context) {
    const forget = (number) => this.timers.delete(number);
    context.mock.method(Date, "now", () => this.now);
    context.mock.method(performance, "now", () => this.now);
    context.mock.method(globalThis, "setTimeout", (run, wait) => this.add(run, wait, false));
    context.mock.method(globalThis, "setInterval", (run, wait) => this.add(run, wait, true));
    context.mock.method(globalThis, "clearTimeout", forget);
    context.mock.method(globalThis, "clearInterval", forget);
  }

  add(run, wait, again) {
    const every = Math.max(1, wait); // as in a browser, where no timer runs immediately
    this.timers.set(++this.numbers, { run, again, every, at: this.now + every });
    return this.numbers;
  }

  async pass(milliseconds) {
    const end = this.now + milliseconds;
    for (;;) {
      const due = [...this.timers].filter(([, { at }]) => at <= end).sort(([, a], [, b]) => a.at - b.at)[0];
      if (!due) break;
      const [number, timer] = due;
      this.now = timer.at;
      if (timer.again) timer.at += timer.every;
      else this.timers.delete(number);
      timer.run();
      await null; // promises that are already settled continue here
    }
    this.now = end;
  }
}

// Create a store with its model and its clock.
export function storeOf(context, traits = {}, kernel = undefined) {
  const clock = new Clock(context),
    model = new Model(traits, kernel);
  return { clock, model, store: new Store(model) };
}

export const rows = (first, many) =>
  Array.from({ length: many }, (_, n) => ({ seq: first + n, time: 1000 + first + n, type: "call_end", summary: `number ${first + n}` }));

// Create a batch of rows as the kernel sends it.
export const batch = (events, from = events[0].seq) => ({
  type: "events",
  from,
  total: from + events.length,
  now: 1000,
  rows: JSON.stringify(events),
});
