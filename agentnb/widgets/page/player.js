// Plays a recording: events appear after the pauses that were between them, and a model's text appears as it was typed.
// All views of a panel share one player. If it is paused in the middle of an answer, it resumes there.

import { Typed } from "./typed.js";

export const SILENCE = 3; // the longest pause between two events, in seconds: a call may have waited for hours
const AT_ONCE = 30; // events a second, without pauses
const TICK = 50; // milliseconds
const ASLEEP = 1; // seconds between two ticks, at most: a page that was hidden skips the rest

export class Player {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.speed = 1; // 0: without pauses
    this.timer = 0;
    this.ticked = 0; // the time of the last tick
    this.at = -1;
    this.clock = 0; // the recorded time: that of the newest event, or later
    this.typed = new Typed(store, () => this.speak());
  }

  toggle() {
    if (this.timer) return this.hold();
    if (this.store.position >= this.store.recorded()) this.store.goTo(0);
    this.ticked = performance.now();
    this.timer = setTimeout(() => this.tick(), 0);
    return this.store.notify("position");
  }

  hold() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.store.notify("position");
  }

  // The position has changed, or events have arrived: set the clock to the time of the current event.
  settle() {
    const { position, all } = this.store;
    if (position !== this.at || !this.clock) {
      this.at = position;
      this.clock = all[Math.min(position, all.length) - 1]?.time ?? all[0]?.time ?? 0;
    }
    this.speak();
  }

  speak() {
    this.store.speak(this.typed.lines(this.clock));
  }

  tick() {
    const { store } = this,
      rows = store.all,
      now = performance.now(),
      passed = Math.min(ASLEEP, (now - this.ticked) / 1000);
    if (!store.gone && rows.length <= this.at && (!store.recorded() || rows.length < store.recorded())) {
      this.ticked = now;
      this.timer = setTimeout(() => this.tick(), TICK); // the page does not have the next event yet
      return undefined;
    }
    if (store.gone || store.position >= store.recorded() || store.model.get("status")?.diverged?.seq === store.position) return this.hold();
    if (this.speed || passed * AT_ONCE >= 1) this.ticked = now;
    const to = this.speed ? this.pass(rows, passed * this.speed) : this.at + Math.floor(passed * AT_ONCE);
    if (to > this.at) {
      const { clock } = this;
      store.goTo(to);
      if (this.speed) this.clock = Math.max(this.clock, clock);
    }
    this.speak();
    store.notify("clock");
    const wait = this.speed ? (1000 * Math.max(0, (rows[this.at]?.time ?? 0) - this.clock)) / this.speed : 1000 / AT_ONCE;
    this.timer = setTimeout(() => this.tick(), Math.min(TICK, wait));
    return undefined;
  }

  /**
   * Advance the clock by so many recorded seconds, and skip most of a silence. Returns the position at that time.
   * @param {EventRow[]} rows
   * @param {number} seconds
   */
  pass(rows, seconds) {
    const next = Math.min(rows[this.at]?.time ?? Infinity, this.typed.next(this.clock));
    if (next - this.clock > SILENCE) this.clock = next - SILENCE;
    this.clock += seconds;
    let to = this.at;
    while (rows[to] && rows[to].time <= this.clock) to++;
    return to;
  }
}
