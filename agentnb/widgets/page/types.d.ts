// The messages between the kernel and the page, and the types that several of the page's modules share.
// The type checker reads this file (tests/javascript); no page gets it.

// ---- The traits of the widget (widget.py), which a page that is loaded again finds

interface Traits {
  /** The widget that holds this module; the loader reads it. */
  source: string;
  key: string;
  parts: string[];
  /** What the run was started with. */
  question: string;
  /** The tools of a run that has not begun, and whether each asks before it runs. */
  offered: [name: string, asks: boolean][];
  status: Status;
  pending: Question[];
  /** The tools that a call may be replaced by: by the path of the loop, then by name, with the fields of each. */
  tools: Record<string, Record<string, FieldSpec[]>>;
  decisions: { recent?: Decision[]; open?: number; rules?: Rule[] };
  breakpoints: BreakpointChoices;
  phases: string[];
  /** A drawing, as SVG; empty until it is drawn. */
  diagram: string;
  tables: PhaseTable[];
  graphs: CallGraph[];
  drawings: string[];
  total: number;
  /** Of a replay: its position, and how often it has moved. Of any other run: empty. */
  place: Place | [];
  /** The last rows as JSON, without their data. */
  tail: string;
  /** The runs of this kernel that were forked from this one, oldest first. */
  branches: BranchState[];
  /** Whether this is the panel in an exported file (file.js), which nobody can answer. */
  file?: boolean;
  /** The sums of a study: this is its panel (study_widget.py), which has few of the other traits. */
  study?: StudyHead;
}

/** The sums of a study (views/population.py). */
interface StudyHead {
  name: string;
  sign: string;
  words: string;
  runs: number;
  repeats: number;
  /** The number of runs by status. */
  counts: Record<string, number>;
  loops: string[];
  seconds: number;
  /** The label of each factor, by arm. */
  factors: Record<string, string[]>;
  inputs: string[];
  /** The outcomes whose share is offered. */
  outcomes: string[];
  /** What a person can do with the study now, or an empty text. */
  can: "Start" | "Continue" | "Cancel" | "Retry failed" | "";
  arms: StudyArm[];
  /** Of two arms the difference of the shares of each outcome, and its bounds. */
  differences: [difference: number, low: number, high: number][];
  /** Whether the runs that the store had before were read. */
  read: boolean;
  /** Of a resampling: the steps of the run that is drawn. */
  steps?: StepsOfRun;
}

/** The steps of a resampling (views/steps.py). */
interface StepsOfRun {
  run: string;
  until: string;
  /** The values whose shares are offered. */
  values: string[];
  steps: StepOfRun[];
}

interface StepOfRun {
  /** The number of its event in the run. */
  at: number;
  name: string;
  recorded: string;
  /** How many samples have a value that can be compared, how many have ended without one, and how many have a value. */
  n: number;
  failed: number;
  total: number;
  flips: ShareOfRuns;
  /** Of each of the values. */
  shares: ShareOfRuns[];
}

/** How many have it, and the bounds of the share. */
type ShareOfRuns = [number: number, low: number, high: number];

interface StudyArm {
  name: string;
  runs: number;
  counts: Record<string, number>;
  ended: number;
  /** Of each outcome how many runs have it, and the bounds of its share. */
  shares: [number: number, low: number, high: number][];
  turns: number | null;
  tokens: number | null;
  /** Half the widths of their intervals. */
  turns_within: number | null;
  tokens_within: number | null;
  seconds: number | null;
  waited: number | null;
}

/** One run of a study. */
interface StudyRow {
  n: number;
  arm: number;
  input: number;
  repeat: number;
  kind: string;
  outcome: string;
  turns: number;
  calls: number;
  tokens: number;
  began: number;
  seconds: number;
  waited: number;
  /** Four numbers for each mark: kind, turn, start and seconds (views/miniature.py). */
  strip: number[];
}

/** A branch of the run (views/branches.py). */
interface BranchState {
  id: string;
  number: number;
  name: string;
  /** The event at which it was forked. */
  at: number;
  standing: string;
  /** How many calls wait for a person, and the first of them on one line. */
  waiting: number;
  asks: string;
  over: boolean;
  /** How it ended, or how far it is, in at most four words. */
  outcome: string;
  events: number;
  /** The moment of the fork, in seconds since the epoch. */
  began: number;
  /** What worked after the fork, on the clock of this run. */
  bars: [kind: "model" | "call", start: number, end: number][];
}

type Place = [position: number, moves: number];

/** The state of the run (views/status.py). */
interface Status {
  run: string;
  /** The name that is shown: that of the run, or its design and a number. */
  name: string;
  id: string;
  loop: string;
  model: string;
  /** Of a recording of another tool: its format, and what is lost or unknown in it. */
  imported?: string;
  standing: string;
  /** The state for a person: its sign, and in words. */
  sign: "ready" | "running" | "waiting" | "paused" | "failed" | "done" | "stopped";
  words: string;
  waiting: number;
  phase: string;
  path: Arrow[];
  times: number[];
  latest: number;
  /** The loops inside; `more` counts those that are left out. */
  nested?: NestedLoop[];
  more?: number;
  over: boolean;
  lives: boolean;
  turn: number;
  requests: number;
  calls: number;
  usage: Record<string, number>;
  problem: string;
  paused_for: string;
  diverged: Departure | null;
  position: number;
  /** The last event of each snapshot that was taken in a panel. */
  snapshots: number[];
  queued: { queue: string; text: string; digest: string }[];
  /** What each button can do now, by its name. */
  can: Record<string, boolean>;
}

type Arrow = [source: string, target: string];

interface NestedLoop {
  path: string;
  input: string;
  phase: string;
  arrows: Arrow[];
  times: number[];
  latest: number;
  running: boolean;
  ended: string;
  /** The index of its table in the trait `tables`; -1 if it has no drawing. */
  table: number;
}

interface PhaseTable {
  phases: string[];
  diagram: string;
  /** The loops that have it: of each its design and its name, as in the summary of its first event. */
  loops: string[];
}

/** Where a replay differs from its recording (views/status.py). */
interface Departure {
  seq: number;
  path: string;
  recorded: DepartureSide;
  expected: DepartureSide;
}

interface DepartureSide {
  type: string;
  text: string;
}

interface CallGraph {
  path: string;
  name: string;
  heading: string;
  notes: string;
  more: string;
  calls: [status: string, words: string, sentence: string][];
}

/** The identity of a question: `event` is null if it is not recorded yet. */
interface Identity {
  run: string;
  path: string;
  event: number | null;
  id: string;
  attempt: number;
}

/** A call that waits for a person. */
interface Question extends Identity {
  name: string;
  why: string;
  /** Whether it waits because its tool always asks. */
  usual: boolean;
  /** What its tool needs. */
  needs: string[];
  /** The description of its tool. */
  description: string;
  view: string;
  unknown: boolean;
  /** Seconds since the epoch. */
  deadline: number | null;
  values: Value[];
  /** The number of characters of all arguments, and how many of them are missing in `values`. */
  length: number;
  left: number;
  digest: string;
  fields: FieldSpec[];
  /** The approximate number of characters of the question in a message. */
  size: number;
  /** In a study: the arm of its run. Its path begins with the name of the run. */
  group?: string;
}

/** One argument: a text of several lines, a text of one line, or any other value as JSON. */
interface Value {
  name: string;
  kind: "text" | "string" | "json";
  text: string;
}

/** One field of a form (views/forms.py). */
interface FieldSpec {
  path: string[];
  label: string;
  kind: "string" | "integer" | "number" | "boolean" | "json" | "enum" | "object" | "kept" | "text";
  type: string;
  description: string;
  required: boolean;
  given: "value" | "null" | "absent";
  text: string;
  default?: string;
  nullable?: boolean;
  /** Of an enumeration, each as JSON. */
  options?: string[];
  /** Of a value that is kept: its characters in all. */
  length?: number;
}

interface Decision {
  event: number;
  /** The call, and the number of the question that was answered. */
  id: string;
  asked: number | null;
  time: number;
  path: string;
  name: string;
  arguments: string;
  words: string;
  decision: string;
  reason: string;
  /** Of a changed call: the new arguments on one line, and the call that a person was asked about. */
  ran: string;
  before: string;
  /** Whether the decision can be withdrawn. */
  undo: boolean;
}

interface Rule {
  event: number;
  time: number;
  name: string;
  arguments: string | null;
  words: string;
  decision: string;
  path?: undefined;
  reason?: undefined;
}

interface BreakpointChoices {
  list?: BreakpointState[];
  events?: string[];
  tools?: string[];
  phases?: string[];
  operators?: string[];
}

interface BreakpointState {
  number: number;
  label: string;
  enabled: boolean;
  hits: number;
  last: number;
}

/** One event (views/rows.py), with its cause, its span and the spans that it changed (views/spans.py). */
interface EventRow {
  seq: number;
  time: number;
  type: string;
  group: string;
  summary: string;
  path?: string;
  phase?: string;
  /** The event's own fields. Not in the rows of a saved page, and not in early ones of a long run. */
  data?: Record<string, any>;
  /** Bytes of the data in all, where it was shortened, and the fields that were. */
  size?: number;
  cut?: string[];
  /** The number of the event that led to this one. */
  cause?: number;
  /** The number of the span it is about: a loop, a request to a model, a call, a pause. */
  span?: number;
  /** The number of the event that it had to wait for. */
  after?: number;
  /** The spans that it changed. */
  spans?: SpanChange[];
  /** Seconds spent until now, if it changed them. Those of models and calls at the same time are added up. */
  spent?: Spent;
  /** Seconds for which the run was paused until now, if it changed them. */
  paused?: number;
  /** Other seconds until now in which nothing ran and nobody was asked, if it changed them. */
  idle?: number;
  alone?: number;
  /** Its mark on the strip (views/strip.py). */
  mark?: MarkKind;
  /** Of the first event of a fork: the number of events that it has inherited. */
  inherited?: number;
  /** The rows of the trace that it added or changed. */
  trace?: TraceChange[];
  /** In an exported file: the messages that are shown from this event on, each with the number of its loop. */
  said?: [loop: number, message: ShownMessage][];
  /** In an exported file: what the event changed in the state of its loop; null for what is gone. */
  state?: StateChange;
  /** Noted by the page: a call of the loop itself, or an answer that another run has paid for. */
  uncounted?: boolean;
}

type MarkKind = "message" | "decision" | "breakpoint" | "snapshot" | "fork";

interface Spent {
  model: number;
  call: number;
  /** Several calls that wait for a person at the same time count once. */
  wait: number;
}

/** The fields of a span that an event has changed. Other spans are given by number, intervals by their index. */
type SpanChange = Partial<Omit<Span, "parent" | "turn" | "intervals">> & {
  number: number;
  parent?: number | null;
  turn?: number;
  intervals?: Record<string, Partial<Interval>>;
};

/** The fields of a row of the trace that an event has changed (views/trace.py). `place`: its place in the row around it. */
type TraceChange = Partial<Omit<TraceRow, "parent" | "inside">> & { number: number; parent?: number; place?: number };

type StateChange = { facts?: Record<string, string | number>; values?: Record<string, unknown> };

// ---- Messages from the kernel

type FromKernel =
  | { type: "events"; from: number; total: number; now: number; rows: string; token?: undefined }
  | { type: "live"; lines: LiveLine[]; now?: undefined; token?: undefined }
  | { type: "pong"; token: string; now: number }
  | { type: "inside"; id: string; data: FromInside; now?: undefined; token?: undefined }
  | { type: "population"; after: number; change: number; rows: string; now?: undefined; token?: undefined }
  | ({ type: "decided" | "done" | "exported" | "moved" | "shown" | "state" | "typed" | "messages" | OfBranches; token: string; now?: undefined } & Answers[keyof Answers]);

/** The answers about branches. */
type OfBranches = "whatif" | "shape" | "branch" | "open" | "rename" | "compare" | "whole";

/** A message for the panel of a branch inside this one: some of its traits, or a message as the kernel sends it. */
type FromInside = { method: "update"; state: Partial<Traits> } | { method: "custom"; content: FromKernel };

/** A line of what a model, or a call, is sending now. */
interface LiveLine {
  kind: string;
  path: string;
  name: string;
  text: string;
  /** Characters in all, of which `text` has the end. */
  length?: number;
  progress?: { text: string; share?: number };
}

// ---- Messages to the kernel, and the answer to each. An answer has the token of its message.

type ToKernel =
  | { type: "sync"; have: number }
  | { type: "inside"; id: string; content: ToKernel }
  | { type: "views"; page: string; count: number }
  | { type: "ping"; token: string }
  | { type: keyof Questions; token: string };

interface Questions {
  decision: Verdict | { decisions: Verdict[] };
  undo: { event?: number };
  forget: { event: number };
  control: { action: string; unit: string; text: string; name: string; at?: number };
  withdraw: { digest: string };
  breakpoint:
    | { do: "add"; event: string; tool: string; field?: string; operator?: string; value?: string; phase?: string; cost?: string }
    | { do: "enable"; number: number; enabled: boolean }
    | { do: "remove"; number: number };
  /** `unit`: go on from there to the end of the next one. */
  position: { position: number; unit?: string };
  /** `field`: of an event only this field, or this part of a field. */
  show: { seq: number; field?: string[] } | Identity;
  /** The next part of the exported file; the first question makes the file. */
  export: { file: string; part: number };
  state: { path: string; position: number };
  typed: { seq: number };
  /** `position`: the messages as they were after so many events; without it, as they are. */
  messages: { path: string; begun: number | null; last: number; position?: number };
  whatif: { seq: number };
  shape: { json: string };
  branch: WhatIfChange & { seq: number; kind: string; name: string; approvals: "ask" | "then" };
  open: { id: string };
  replay: object;
  rename: { id: string; name: string };
  compare: { id: string };
  /** All of a pair of compared rows, by their numbers. */
  whole: { id: string; numbers: ComparedRow["numbers"] };
}

interface Answers {
  decision: Done & { failed?: Record<number, string>; late?: number[] };
  undo: Done;
  forget: Done;
  control: Done;
  withdraw: Done;
  breakpoint: Done;
  position: { place?: Place };
  /** Of an event its text, which is JSON or a text of the event itself; of a question its arguments, or why it has none. */
  show: { text: string; length: number; json?: boolean; values?: Value[]; left?: number };
  export: Failed | { ok: true; file: string; name: string; parts: number; text: string; error?: undefined };
  state: Failed | { ok: true; facts: Record<string, string | number>; values: Record<string, unknown>; error?: undefined };
  typed: { text: string; timing: Timing };
  messages: { total: number; left: number; note: string; messages: ShownMessage[] };
  whatif: Failed | { ok: true; options: WhatIfOptions; error?: undefined };
  shape: Failed | { ok: true; editor: WhatIfEditor; error?: undefined };
  branch: Failed | { ok: true; id: string; name: string; error?: undefined };
  open: Opened;
  replay: Opened;
  rename: Failed | { ok: true; name: string; error?: undefined };
  compare: Failed | { ok: true; compared: Comparison; error?: undefined };
  whole: Failed | { ok: true; whole: ComparedPart[]; error?: undefined };
}

/** The answer to a question of the panel of a study: the numbers of the runs in which a text was said. */
type RunsSaying = Failed | { ok: true; runs: number[]; error?: undefined };

type Failed = { ok: false; error: string };

/** The state of a panel inside this one. */
type Opened = Failed | { ok: true; inside: string; state: Traits; error?: undefined };

type Done = { ok: true; note?: string; error?: undefined } | { ok: false; error: string; note?: string };

/** The decision of a person about one call, with the seconds from the display of the question to the click. */
interface Verdict extends Identity {
  digest: string;
  seconds: number;
  decision: string;
  remember?: string;
  reason?: string;
  name?: string;
  result?: string;
  /** JSON, without the values at the paths in `kept`. */
  arguments?: string;
  kept?: string[][];
}

/** The arrival of a model's answer in parts: the milliseconds since the request, and the characters of each part. */
type Timing = [milliseconds: number, length: number][];

interface ShownMessage {
  place: number;
  position: number;
  role: string;
  text: string;
  reasoning: string;
  calls: ShownCall[];
  more: number;
  sent: boolean;
  failed: boolean;
  pictures?: string[];
}

interface ShownCall {
  name: string;
  /** Its arguments as in code, in parentheses, and its result, each on one line. */
  line: string;
  returned: string;
  words: string;
  arguments: string;
  decision: string;
  result: string;
  position: number;
  failed: boolean;
  pictures?: string[];
}

// ---- What if (views/whatif.py)

interface WhatIfOptions {
  seq: number;
  /** What the event is about: a call, an answer, a message, the start, or only a moment. */
  about: string;
  name: string;
  path: string;
  kinds: WhatIfKind[];
}

/** One kind of change, with the editor of its current value. */
interface WhatIfKind extends WhatIfEditor {
  kind: "decision" | "result" | "arguments" | "skip" | "answer" | "message" | "input" | "then" | "model";
  label: string;
  at: number;
  /** What stays and what happens then, in sentences. */
  then: string;
  /** Why it is not possible; empty if it is. */
  off: string;
  /** Of a decision: the one that was made, and its reason. */
  decision?: string;
  reason?: string;
  /** Of a model: the names of those there are, and whether any other name may be given. */
  models?: string[];
  by_name?: boolean;
}

interface WhatIfEditor {
  shape?: "table" | "object" | "json" | "text" | "models" | "long";
  text?: string;
  fields?: FieldSpec[];
  columns?: string[];
  kinds?: ("string" | "json")[];
  rows?: string[][];
}

interface WhatIfChange {
  /** The changed cells of a table. */
  cells?: [row: number, column: number, text: string][];
  json?: string;
  /** Of a form: JSON, without the values at the paths in `kept`. */
  fields?: string;
  kept?: string[][];
  text?: string;
  decision?: string;
  reason?: string;
  model?: string;
}

/** The comparison of a run with a branch (views/compare.py). */
interface Comparison {
  names: [left: string, right: string];
  at: number | null;
  common: number;
  words: string;
  /** The rows of the common part. */
  same: ComparedRow[];
  rows: ComparedRow[];
  /** Rows that are left out. */
  more: number;
  /** The row at which the branch was forked; -1 if there is none. */
  fork: number;
  sum: { name: string; left: string; right: string; differs: boolean }[];
}

interface ComparedRow {
  kind: string;
  person: boolean;
  lead: string;
  depth: number;
  code: boolean;
  failed: boolean;
  /** Of its row in each trace. */
  numbers: [number | null, number | null];
  positions: [number | null, number | null];
  differs: boolean;
  /** Whether a person is asked there, for each side. */
  waits: [left: boolean, right: boolean];
  /** Whether the side that lacks the row may still get there. */
  later: boolean;
  /** The text in parts, each with whether it differs; null if this side does not have the row. */
  left: ComparedText | null;
  right: ComparedText | null;
}

type ComparedText = [text: string, differs: boolean][];

/** One value of a pair of rows, as it is. */
interface ComparedPart {
  name: string;
  left: ComparedText | null;
  right: ComparedText | null;
}

// ---- The objects that a front end provides (anywidget)

interface Model {
  get<Name extends keyof Traits>(name: Name): Traits[Name];
  on(name: "msg:custom", handler: (message: FromKernel) => void): void;
  on(name: `change:${keyof Traits}`, handler: () => void): void;
  send(message: ToKernel): void;
  widget_manager?: { kernel?: Kernel };
}

interface Kernel {
  status: string;
  isDisposed?: boolean;
  statusChanged?: { connect(slot: (sender: unknown, status: string) => void): void };
}

// ---- The types that the page's modules share

type Store = import("./store.js").Store;
type Ended = import("./ended.js").Ended;
type Spans = import("./spans.js").Spans;
type Past = import("./past.js").Past;
type TraceRows = import("./trace_rows.js").TraceRows;
type Moment = import("./moment.js").Moment;
type Call = import("./call.js").Call;
type Approvals = import("./approvals.js").Approvals;
type Trace = import("./trace.js").Trace;
/** What a call wants from what lists it: the calls that wait, or the bar. */
type Lister = Pick<import("./approvals.js").Approvals, "table" | "current" | "count" | "concern" | "show" | "reveal" | "step"> & {
  send(calls: Call[], message: Verdict): void;
};

/** The subject of a notification from the store to its views: a trait that has changed, or one of these. */
type News = keyof Traits | "rows" | "live" | "clock" | "position" | "selected" | "whatif" | "kernel" | "view";

/** A loop, a request to a model, a call or a pause, with the intervals in which it waited or ran (views/spans.py). */
interface Span {
  number: number;
  kind: "loop" | "model" | "call" | "pause";
  name: string;
  path: string;
  /** The number of its first event. */
  position: number;
  /** Seconds since the epoch. */
  opened: number;
  ended: number | null;
  intervals: Interval[];
  failed: boolean;
  /** The loop it belongs to. */
  parent: Span | null;
  depth: number;
  /** Of a call: its id, the request that made it, and whether a loop performs it. */
  call?: string;
  turn: Span | null;
  performed?: boolean;
  /** Of a loop and the call it performs: the seconds in which it only waited, and since when it waits now. */
  waited: number;
  waits_since: number | null;
  /** The time of its start is unknown: it ran for at most as long as it seems. */
  at_most?: boolean;
  /** Of a request: its usage, its calls, and the seconds they ran, added up. */
  usage: Record<string, number>;
  calls: number;
  call_time: number;
  /** Of a request: the event that ended it, as it was found from the event `from` on (typed.js). */
  endedBy?: { from: number; row: EventRow | undefined };
}

/** A row of the trace (views/trace.py). */
interface TraceRow {
  number: number;
  kind: "loop" | "pass" | "turn" | "call" | "message" | "answer";
  status: "done" | "running" | "waiting" | "failed" | "next";
  /** The number of its first event. */
  position: number;
  name: string;
  parent: TraceRow | null;
  depth: number;
  /** The number of its span; of a loop also that of the loop. */
  span: number | undefined;
  loop: number | undefined;
  /** Of what was said, or of a failure, the first line. */
  text: string;
  /** Of a call, on one line; its result too. */
  arguments: string;
  result: string;
  /** How a call ended, if it did not return; how an answer was cut off. */
  outcome: string;
  /** Whether a person has written the message. */
  person: boolean;
  /** The last decision about a call, unless a rule let it run. */
  decided: TraceDecision | undefined;
  /** Of a pass: its times, in seconds since the epoch. */
  began: number | undefined;
  ended: number | undefined;
  /** Whether it is gone: a call that has not begun when its loop ended. */
  removed: boolean;
  inside: TraceRow[];
  /** How many turns and calls are in it, in loops inside too. */
  turns: number;
  calls: number;
  /** As what it is counted in the rows around it. */
  counted: "" | "turns" | "calls";
}

interface TraceDecision {
  what: string;
  by: string;
  /** Whether a person or code decided. */
  person: boolean;
  /** The seconds from the question to it. */
  after?: number;
  reason?: string;
  position: number;
}

interface Interval {
  kind: "run" | "wait";
  start: number;
  end: number | null;
  /** The number of the event that started it. */
  position: number;
  /** When the span was last able to continue. */
  since: number;
  /** The number of the event that it had to wait for. */
  after: number | null;
}

type Control = (HTMLButtonElement | HTMLInputElement) & { purpose?: string };

/** A part of the panel. */
interface Part {
  el: HTMLElement;
  update(what: News): void;
  /** Search it for a text. */
  find?(text: string): void;
  /** Its own field for a search. */
  field?: HTMLInputElement;
  dispose?(): void;
}
