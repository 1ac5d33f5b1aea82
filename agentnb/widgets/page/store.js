// One store per widget model: it keeps the rows, asks for lost ones again, sends questions to the kernel and passes on
// their answers, and notices when the kernel is gone. It knows which moment of the run the page shows: the newest, or an
// earlier one, also while the run continues.

import { unique } from "./text.js";
import { Player } from "./player.js";
import { Moment } from "./moment.js";

/** @type {(keyof Traits)[]} */
const TRAITS = ["status", "pending", "tools", "decisions", "breakpoints", "tail", "diagram", "tables", "graphs", "drawings", "total", "branches"];
const PING_EVERY = 5000,
  SILENT = 10000,
  GONE_AFTER = 20000; // milliseconds
const GONE_TEXT =
  "The kernel is gone: this is the last state that it sent. In a new kernel, agentnb.attach() finds the runs that are in a store.";
const KEEP = 32 * 1024 * 1024; // characters of JSON; the data of earlier events is dropped, and asked for when needed
const SYNC_EVERY = 1000; // milliseconds between two questions for missing events, at least
const LOST_FOR = 400; // milliseconds after which missing events are mentioned: usually they come sooner
const FOLDING = 12; // milliseconds of folding at a time
const DEAD = new Set(["dead", "terminating", "restarting", "autorestarting"]);

export class Store {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    const [position = 0, moves = 0] = model.get("place") ?? [];
    this.replays = Boolean(model.get("place")?.length);
    this.isFile = Boolean(model.get("file")); // an exported file: what only a kernel can do is not offered
    this.all = /** @type {EventRow[]} */ ([]); // every row received
    this.newest = new Moment(false); // of all rows
    this.isLive = !this.replays; // whether the newest event is shown, also when others come
    this.rows = this.replays ? [] : this.all; // those until the shown moment
    this.moment = this.replays ? new Moment(true) : this.newest; // the shown one
    this.earlier = this.moment; // the one that can be moved, once it is needed
    this.folding = 0; // the timer of a fold that is not complete
    this.player = this.replays ? new Player(this) : null;
    this.position = position; // the number of events until the shown moment
    this.moves = moves; // how often the kernel's replay had moved then
    this.anew = 0; // how often rows were removed, because a replay moved back
    this.batches = /** @type {[until: number, characters: number][]} */ ([]); // the rows up to here, their characters
    this.held = 0; // characters of all batches
    this.freed = 0; // rows whose data has been dropped
    this.going = false; // whether the kernel's replay is on its way to another position
    this.total = model.get("total") ?? 0;
    this.live = /** @type {LiveLine[]} */ ([]); // what is in progress at the shown moment
    this.streamed = /** @type {LiveLine[]} */ ([]); // what the kernel has sent of it last
    this.selected = /** @type {EventRow | null} */ (null); // the row whose event is shown in full: see `select`
    this.whatIfRow = /** @type {EventRow | null | undefined} */ (null); // the row for which What if is open
    this.inner = /** @type {Map<string, import("./inside.js").InnerModel>} */ (new Map()); // of branches that are shown inside
    this.views = /** @type {Set<(what: News) => void>} */ (new Set());
    this.others = /** @type {Set<(what: News) => void>} */ (new Set()); // who wants the news and shows no panel (bar.js)
    this.page = unique();
    this.asked = /** @type {Map<string, (answer: any) => void>} */ (new Map()); // by token: the function that gets the answer
    this.skew = 0; // the kernel's clock minus ours, in milliseconds
    this.lastMessage = Date.now();
    this.pinged = 0;
    this.trouble = "";
    this.gone = false;
    this.syncing = 0;
    this.lost = 0; // events up to here are missing, and were asked for again
    this.lostSince = 0;
    this.ended = /** @type {Ended | null} */ (null);
    this.remembers = /** @type {Record<string, string> | null} */ (null); // what a decision can be remembered for, if not as in a run
    model.on("msg:custom", (message) => this.receive(message));
    for (const name of TRAITS) {
      model.on(`change:${name}`, () => {
        this.alive();
        this.notify(name);
      });
    }
    model.on("change:total", () => this.repair(model.get("total"))); // it is sent after all batches
    model.on("change:place", () => {
      this.alive();
      if (!this.going) this.follow(/** @type {Place} */ (model.get("place")));
    });
    this.watchKernel();
    this.timer = setInterval(() => this.heartbeat(), PING_EVERY);
    this.sync();
  }

  /** @param {News} what */
  notify(what) {
    for (const view of [...this.views, ...this.others]) view(what);
  }

  /** @param {ToKernel} message */
  send(message) {
    try {
      this.model.send(message);
    } catch {
      // A closed comm throws: there is no kernel to send to.
      this.lose();
    }
  }

  /**
   * Ask the kernel. Its answer has the message's token.
   * @template {keyof Questions} Type
   * @param {{ type: Type } & Questions[Type]} message
   * @param {(answer: Answers[Type]) => void} answered
   */
  ask(message, answered) {
    const token = unique();
    this.asked.set(token, answered);
    this.send({ ...message, token });
  }

  /**
   * @param {(what: News) => void} draw
   * @returns {() => void} removes the view
   */
  view(draw) {
    this.views.add(draw);
    this.reportViews();
    return () => {
      this.views.delete(draw);
      if (!this.views.size) this.player?.hold(); // no page shows it
      this.reportViews();
    };
  }

  // Report how many views the page has. The kernel closes the panel of a finished run when no page shows it any more.
  reportViews() {
    this.send({ type: "views", page: this.page, count: this.views.size });
  }

  /**
   * Open What if for an event.
   * @param {EventRow} row
   */
  whatIf(row) {
    if (this.isFile) return;
    this.whatIfRow = row;
    this.notify("whatif");
  }

  sync() {
    this.syncing = Date.now();
    this.send({ type: "sync", have: this.all.length });
  }

  /**
   * Ask again for rows that were lost, but at most once a second: the batches that follow find the same gap.
   * @param {number} total
   */
  repair(total) {
    if (total <= this.all.length) return;
    this.lost = total;
    if (!this.lostSince) {
      this.lostSince = Date.now();
      setTimeout(() => this.remind(), LOST_FOR);
    }
    if (Date.now() - this.syncing > SYNC_EVERY) this.sync();
  }

  // Mention the missing events, and ask again, until they are here.
  remind() {
    this.notify("rows");
    if (!this.lostSince || this.gone) return;
    this.repair(this.lost);
    setTimeout(() => this.remind(), SYNC_EVERY);
  }

  /**
   * The first and the last event that are missing and on their way again.
   * @returns {[first: number, last: number] | null}
   */
  gap() {
    return this.lostSince && !this.gone && Date.now() - this.lostSince >= LOST_FOR ? [this.all.length, this.lost - 1] : null;
  }

  /** @param {FromKernel} message */
  receive(message) {
    this.alive();
    if (message.now) this.skew = message.now * 1000 - Date.now();
    if (message.type === "events") this.receiveEvents(message);
    else if (message.type === "inside") this.inner.get(message.id)?.receive(message.data);
    else if (message.type === "live") {
      this.streamed = message.lines;
      if (this.isLive) this.speak(this.streamed);
    } else if (message.token) {
      const answered = this.asked.get(message.token);
      this.asked.delete(message.token);
      answered?.(message);
    }
  }

  /** @param {Extract<FromKernel, { type: "events" }>} message */
  receiveEvents(message) {
    const have = this.all.length;
    this.total = message.total;
    if (message.from > have) return this.repair(message.from);
    const rows = JSON.parse(message.rows);
    for (let i = have - message.from; i < rows.length; i++) this.all.push(rows[i]);
    if (this.all.length >= this.lost) this.lostSince = 0;
    this.newest.goTo(this.all, this.all.length);
    this.hold(message.rows.length);
    if (this.isLive) this.position = this.all.length;
    if (this.replays) this.stand(this.position);
    else this.notify("rows");
    return undefined;
  }

  // -- the moment that is shown

  // The spans at the shown moment.
  get spans() {
    return this.moment.spans;
  }

  // The rows of the trace at the shown moment.
  get trace() {
    return this.moment.trace;
  }

  // The spans of all rows.
  get whole() {
    return this.newest.spans;
  }

  // How many events there are to go to.
  recorded() {
    return Math.max(this.all.length, this.replays ? this.total : 0);
  }

  /**
   * The state of the run at the shown moment. The kernel sends that of the newest, and of the position of its replay.
   * @returns {Status}
   */
  status() {
    const { model, position } = this,
      now = model.get("status") ?? {};
    if (this.isLive) return now;
    const isKnown = this.replays && now.position === position,
      then = isKnown ? now : this.moment.status(now, model.get("phases") ?? [], model.get("tables") ?? []);
    return position && position < this.recorded() ? { ...then, standing: `as it was at #${position - 1}` } : then;
  }

  /**
   * Show the moment after so many events. In a replay the kernel follows; in a run only this page looks back.
   * @param {number} position
   */
  goTo(position) {
    const to = Math.max(0, Math.min(this.recorded(), position));
    if (this.replays) this.move(to);
    else if (to === this.all.length) this.goLive();
    else {
      this.isLive = false;
      this.stand(to);
      this.speak([]);
    }
  }

  // Show the newest event, and those that come.
  goLive() {
    if (this.replays) return this.goTo(this.recorded());
    if (this.isLive) return undefined;
    this.isLive = true;
    this.rows = this.all;
    this.moment = this.newest;
    this.position = this.all.length;
    this.notify("rows");
    this.notify("position");
    return this.speak(this.streamed);
  }

  /**
   * Set the position. The parts show what had happened by then.
   * @param {number} position
   */
  stand(position) {
    this.position = position;
    const end = Math.min(position, this.all.length);
    if (end < this.rows.length) {
      this.anew++;
      this.rows = this.all.slice(0, end);
    }
    for (let at = this.rows.length; at < end; at++) this.rows.push(this.all[at]);
    if (this.earlier === this.newest) this.earlier = new Moment(true);
    this.moment = this.earlier;
    this.fold();
    this.player?.settle();
    this.notify("rows");
    this.notify("position");
  }

  // Fold until the shown moment. Over many thousands of events this takes several turns, so that the page still answers.
  fold() {
    clearTimeout(this.folding);
    if (this.isLive || this.moment.goTo(this.all, this.rows.length, performance.now() + FOLDING)) return;
    this.folding = setTimeout(() => {
      this.fold();
      this.notify("rows");
      this.notify("position");
    }, 0);
  }

  /**
   * Choose the event that is shown in full, or none. All parts follow.
   * @param {EventRow | null} row
   */
  select(row) {
    if (this.selected === row) return;
    this.selected = row;
    this.notify("selected");
  }

  /**
   * Add a breakpoint at events of a type, if it is given also of a tool.
   * @param {string} event
   * @param {string} tool
   * @param {(answer: Done) => void} answered
   */
  breakAt(event, tool, answered) {
    const name = tool.replace(/[*?[]/g, "[$&]"); // not a pattern
    this.ask({ type: "breakpoint", do: "add", event, tool: name }, answered);
  }

  // -- a replay's position

  /**
   * Follow the kernel's replay. A message about an earlier position may arrive after the answer about a later one.
   * @param {Place} place
   */
  follow([position, moves]) {
    if (moves < this.moves) return;
    this.moves = moves;
    if (position !== this.position) this.stand(position);
  }

  /**
   * Step forwards in a recording. The kernel knows where a call, a turn or a phase ends.
   * @param {string} unit
   */
  step(unit) {
    const { position } = this;
    if (unit === "event") return this.goTo(position + 1);
    return this.ask({ type: "position", position, unit }, ({ place }) => place && this.follow(place));
  }

  /** @param {number} to */
  move(to) {
    this.stand(to);
    if (this.going || this.gone) return;
    this.going = true;
    this.ask({ type: "position", position: to }, (answer) => {
      this.going = false;
      const shown = /** @type {Place} */ (this.model.get("place")),
        place = answer.place && answer.place[1] > shown[1] ? answer.place : shown;
      if (this.position !== to) return this.move(this.position); // the position has changed meanwhile
      if (place[0] !== to) this.player?.hold(); // the replay has stopped earlier, or was moved elsewhere
      return this.follow(place);
    });
  }

  /** @param {LiveLine[]} lines */
  speak(lines) {
    if (!lines.length && !this.live.length) return;
    this.live = lines;
    this.notify("live");
  }

  /**
   * Limit the data that the page keeps: a run may have any number of events.
   * @param {number} characters
   */
  hold(characters) {
    this.held += characters;
    this.batches.push([this.all.length, characters]);
    while (this.held > KEEP && this.batches.length > 1) {
      const [until, freed] = this.batches[0];
      this.batches.shift();
      for (; this.freed < until; this.freed++) delete this.all[this.freed].data;
      this.held -= freed;
    }
  }

  /**
   * The text of an empty view: that it has none of these, and how to get some.
   * @param {string} what in the plural
   */
  nothing(what) {
    if (this.replays) return `No ${what} yet.${this.recorded() && !this.model.get("status")?.diverged ? " Play or Step shows the next events." : ""}`;
    const { can, over } = this.model.get("status") ?? {},
      begin = this.model.get("parts")?.includes("controls") ? "Step or Play starts the run." : "run.play() starts the run.";
    return `No ${what}${over ? "" : " yet"}.${can?.Play && !this.gone ? ` ${begin}` : ""}`;
  }

  // The kernel's time in seconds; in a recording, the time of its position.
  now() {
    if (this.player) return this.player.clock;
    return (Date.now() + this.skew) / 1000;
  }

  // The time up to which the run is shown. It advances while something is open and the run is driven, or a recording plays.
  until() {
    const { spans, isLive, replays } = this;
    return (isLive || replays) && this.runsOn(spans) ? Math.max(spans.last, this.now()) : spans.last;
  }

  // The time until which there is something to show.
  end() {
    const { whole, replays } = this;
    return !replays && this.runsOn(whole) ? Math.max(whole.last, this.now()) : whole.last;
  }

  /** @param {Spans} spans */
  runsOn(spans) {
    return spans.open.size > 0 && Boolean(this.model.get("status")?.lives) && !this.gone;
  }

  // -- the connection to the kernel

  alive() {
    this.lastMessage = Date.now();
    this.pinged = 0;
    if (this.trouble) {
      this.trouble = "";
      this.gone = false;
      this.notify("kernel");
    }
  }

  lose() {
    this.trouble = GONE_TEXT;
    this.gone = true;
    this.notify("kernel");
  }

  kernel() {
    return this.model.widget_manager?.kernel;
  }

  watchKernel() {
    try {
      this.kernel()?.statusChanged?.connect((_, status) => {
        if (DEAD.has(status)) this.lose();
      });
    } catch (error) {
      // A front end whose kernel has another interface: only the heartbeat is used.
      console.debug("agentnb: no kernel status", error);
    }
  }

  heartbeat() {
    this.ended?.check();
    const now = Date.now(),
      kernel = this.kernel();
    if (kernel && (kernel.isDisposed || DEAD.has(kernel.status))) return this.lose();
    if (this.pinged) {
      const silent = now - this.pinged;
      if (silent < SILENT || this.gone) return undefined;
      // An idle kernel that does not answer no longer has this widget; a busy one may be in a long cell.
      if (kernel?.status === "idle" && silent > GONE_AFTER) return this.lose();
      const minutes = Math.floor(silent / 60000); // not seconds: a screen reader reads each change
      this.trouble = `No answer from the kernel for ${minutes ? `${minutes} min` : `${SILENT / 1000} s`} or more (busy or gone).`;
      this.notify("kernel");
    } else if (!document.hidden && now - this.lastMessage > (this.model.get("status")?.over ? 6 : 1) * SILENT) {
      this.pinged = now;
      this.send({ type: "ping", token: "" });
    }
    return undefined;
  }
}
