// The panel of a branch or of a replay inside the panel of its run: its messages travel inside messages of the parent's model, so it
// works wherever the parent's panel does.

export class InnerModel {
  /**
   * @param {Store} store of the parent's panel
   * @param {string} id
   * @param {Traits} state
   */
  constructor(store, id, state) {
    this.store = store;
    this.id = id;
    this.state = state;
    this.widget_manager = store.model.widget_manager;
    this.handlers = /** @type {Map<string, ((message: any) => void)[]>} */ (new Map());
  }

  /**
   * @template {keyof Traits} Name
   * @param {Name} name
   * @returns {Traits[Name]}
   */
  get(name) {
    return this.state[name];
  }

  /**
   * @param {string} name
   * @param {(message: any) => void} handler
   */
  on(name, handler) {
    this.handlers.set(name, [...(this.handlers.get(name) ?? []), handler]);
  }

  /** @param {ToKernel} content */
  send(content) {
    this.store.send({ type: "inside", id: this.id, content });
  }

  /** @param {FromInside} data */
  receive(data) {
    if (data.method === "custom") return this.fire("msg:custom", data.content);
    Object.assign(this.state, data.state);
    for (const name of Object.keys(data.state)) this.fire(`change:${name}`, undefined);
    return undefined;
  }

  /**
   * @param {string} name
   * @param {unknown} message
   */
  fire(name, message) {
    for (const handler of this.handlers.get(name) ?? []) handler(message);
  }
}
