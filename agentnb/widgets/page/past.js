// What a fold has changed, event by event, so that it can be undone: a page that shows an earlier moment of a long run
// goes back from where it is, and does not fold the events from the first one again.

export class Past {
  /** @param {boolean} keeps whether the changes are kept; a fold that never goes back needs none */
  constructor(keeps) {
    this.keeps = keeps;
    this.changes = /** @type {any[]} */ ([]); // three entries a change: the object, the key, and the value before
    this.ends = /** @type {number[]} */ ([]); // how many entries there were after each event
  }

  /**
   * Set a field of an object.
   * @param {any} target
   * @param {string | number} key
   * @param {unknown} value
   */
  set(target, key, value) {
    if (this.keeps) this.changes.push(target, key, target[key]);
    target[key] = value;
  }

  /**
   * Append to an array.
   * @template Item
   * @param {Item[]} list
   * @param {Item} item
   */
  push(list, item) {
    if (this.keeps) this.changes.push(list, "length", list.length);
    list.push(item);
  }

  /**
   * Set an entry of a map; undefined removes it.
   * @template Key, Value
   * @param {Map<Key, Value>} map
   * @param {Key} key
   * @param {Value | undefined} value
   */
  put(map, key, value) {
    if (this.keeps) this.changes.push(map, key, map.get(key));
    if (value === undefined) map.delete(key);
    else map.set(key, value);
  }

  /**
   * Add an item to a set, or remove it.
   * @template Item
   * @param {Set<Item>} set
   * @param {Item} item
   * @param {boolean} isIn
   */
  hold(set, item, isIn) {
    if (set.has(item) === isIn) return;
    if (this.keeps) this.changes.push(set, item, !isIn);
    if (isIn) set.add(item);
    else set.delete(item);
  }

  // The changes of one event are complete.
  end() {
    if (this.keeps) this.ends.push(this.changes.length);
  }

  // Undo the changes of the last event.
  back() {
    const { changes, ends } = this;
    ends.pop();
    const end = ends.at(-1) ?? 0;
    for (let at = changes.length - 3; at >= end; at -= 3) {
      const target = changes[at],
        key = changes[at + 1],
        before = changes[at + 2];
      if (target instanceof Set) {
        if (before) target.add(key);
        else target.delete(key);
      } else if (!(target instanceof Map)) target[key] = before;
      else if (before === undefined) target.delete(key);
      else target.set(key, before);
    }
    changes.length = end;
  }
}
