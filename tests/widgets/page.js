// What the tests put beside the panel on their page: the model a front end would give it, and measuring.

class Model {
  constructor(state, kernel) {
    this.state = state;
    this.handlers = {};
    this.sent = [];
    this.widget_manager = kernel ? { kernel: new Kernel(kernel) } : undefined;
  }

  get(name) {
    return this.state[name];
  }
  on(name, handler) {
    (this.handlers[name] ??= []).push(handler);
  }
  off(name, handler) {
    this.handlers[name] = (this.handlers[name] ?? []).filter((other) => other !== handler);
  }
  send(message) {
    this.sent.push(message);
  }

  emit(name, ...values) {
    for (const handler of this.handlers[name] ?? []) handler(...values);
  }
  set(name, value) {
    this.state[name] = value;
    this.emit(`change:${name}`, this, value);
  }
  deliver(message) {
    this.emit("msg:custom", message, []);
  }
}

class Kernel {
  constructor(state) {
    Object.assign(this, state);
    this.slots = [];
    this.statusChanged = { connect: (slot) => this.slots.push(slot) };
  }

  change(status) {
    this.status = status;
    for (const slot of this.slots) slot(this, status);
  }
}

// Traits that have changed, by name, and messages, without one, in the order they were sent.
window.carry = (messages) => {
  for (const [name, value] of messages) {
    if (name) window.model.set(name, value);
    else window.model.deliver(value);
  }
};

window.show = async (state, kernel) => {
  const url = URL.createObjectURL(new Blob([window.panelSource], { type: "text/javascript" }));
  window.panel = (await import(url)).default;
  window.model = new Model(state, kernel);
  window.panel.initialize({ model: window.model });
  window.dispose = window.panel.render({ model: window.model, el: document.getElementById("here") });
};

// What the panel does in a frame is timed from inside: how long a frame takes in all is also up to the machine's other work.
window.work = [];
const timed =
  (task) =>
  (...values) => {
    const began = performance.now();
    task(...values);
    window.work.push(performance.now() - began);
  };
const nextFrame = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (task) => nextFrame(timed(task));

// The element that has the focus, and whether that can be seen.
window.focused = () => {
  const at = document.activeElement,
    log = at.closest(".agentnb-log");
  const outlined = (node) => node && getComputedStyle(node).outlineStyle !== "none";
  return `${at.tagName} ${at === document.body || outlined(at) || outlined(log) ? "seen" : "unseen"}`;
};
