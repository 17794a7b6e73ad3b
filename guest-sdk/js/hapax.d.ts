// The SDK of hapax for JavaScript and TypeScript.
//
// A handler is `export function handle(message: Message): void` in `handler.js` or `handler.ts`; not `async`. What it returns means nothing: it
// has succeeded when it ends, and failed when it throws. `reject()` throws what makes a dead letter at once; any other error has the message run again.

/** A moment in UTC. */
export interface Instant {
  /** Since 1970, negative before it. */
  seconds: bigint;
  /** 0 to 999,999,999, always added. */
  nanoseconds: number;
}

/** One message, as this delivery carries it. */
export interface Message {
  /** The id that is claimed. */
  readonly id: string;
  /** The source's name in the configuration. */
  readonly source: string;
  /** The broker's subject, or the queue's topic; may be empty. */
  readonly subject: string;
  /** The key that orders the message (`order_by`), if the handler has one. */
  readonly key: string | undefined;
  readonly headers: readonly { readonly name: string; readonly value: Uint8Array }[];
  readonly contentType: string | undefined;
  /** Made by the host: `instanceof Uint8Array` is false for it and for the headers' values, all else is as usual. */
  readonly payload: Uint8Array;
  /** Failures charged to this message so far, plus 1. */
  readonly attempt: number;
  /** When the source accepted it, if the source says so. */
  readonly publishedAt: Instant | undefined;
}

/** Keeps the message as a dead letter now; nothing that was written stays. */
export function reject(reason: string): never;
/** Rolls back and has the message run again, after `delayMilliseconds` at the earliest (the configured backoff if absent). */
export function retry(reason: string, delayMilliseconds?: number): never;
/** What `reject` throws. */
export class Reject extends Error {}
/** What `retry` throws. */
export class Retry extends Error {
  constructor(reason: string, delayMilliseconds?: number);
  readonly delayMilliseconds: number | undefined;
}

/** A call into the host that failed. Uncaught it has the message run again. */
export class HostError extends Error {
  /** Stable, such as `constraint.unique`; docs/error-codes.md of hapax has all of them. */
  readonly code: string;
  /** The host's own sentence; `message` has code and detail besides. */
  readonly text: string;
  /** True if the same call may succeed in a later run. */
  readonly retryable: boolean;
  readonly sqlstate: string | undefined;
  readonly detail: string | undefined;
  readonly hint: string | undefined;
  readonly schema: string | undefined;
  readonly table: string | undefined;
  readonly column: string | undefined;
  readonly constraint: string | undefined;
  /** The parameter at fault, counted from 1. */
  readonly param: number | undefined;
  /** The row of parameters at fault in `executeMany`, counted from 0. */
  readonly row: number | undefined;
  /** The character of the statement at fault, counted from 1. */
  readonly position: number | undefined;
  readonly extra: Readonly<Record<string, string>>;
}

/** The payload as text; rejects the message if it is not UTF-8. */
export function text(message: Message): string;
/**
 * The payload as JSON; rejects the message if it is none. An integer that a Number cannot hold exactly is a BigInt; with `bigint: true` every
 * integer is one.
 */
export function json(message: Message, options?: { bigint?: boolean }): any;
/** True for a BigInt of 64 bits, which is what the database takes for an integer. */
export function isInt64(value: unknown): value is bigint;
/** The first header of that name, in any case of its letters. */
export function header(message: Message, name: string): Uint8Array | undefined;
/** As `header`, as text; rejects the message if it is not UTF-8. */
export function headerText(message: Message, name: string): string | undefined;
/** ISO 8601, such as `2024-02-29T12:34:56.000000Z`. */
export function instantText(instant: Instant): string;

/** A value of the contract, for what JavaScript has no type for: `{ tag: 'float64', val: 5 }`, `{ tag: 'decimal', val: '0.10' }`. */
export interface Tagged {
  tag: string;
  val?: unknown;
}
/**
 * What a parameter may be. A whole Number is an integer, any other a float; a string serves for uuid, numeric, dates, JSON, enums and the like: the
 * database's own type at that place decides.
 */
export type Param = null | boolean | number | bigint | string | Uint8Array | Date | Tagged | readonly (null | boolean | number | bigint | string | Uint8Array | Date)[];
/**
 * What a column may be. Integers are BigInt; decimals, uuids, JSON, dates and times are exact text, moments such as `2024-02-29T12:34:56.000000Z`.
 */
export type Value = null | boolean | number | bigint | string | Uint8Array | (null | boolean | number | bigint | string | Uint8Array)[];
export type Row = Record<string, Value>;

/** Runs one statement; returns how many rows it affected. */
export function execute(statement: string, params?: readonly Param[]): number;
/** Runs one statement once for each row of parameters; returns how many rows each affected. */
export function executeMany(statement: string, rows: readonly (readonly Param[])[]): number[];
/** Returns all rows, each with its columns by name. `T` is the caller's word for their shape; nothing checks it. */
export function query<T = Row>(statement: string, params?: readonly Param[]): T[];
/** The only row; an error unless there is exactly one. */
export function queryOne<T = Row>(statement: string, params?: readonly Param[]): T;
/** The only row, or `undefined`; an error if there are more. */
export function queryOptional<T = Row>(statement: string, params?: readonly Param[]): T | undefined;
/** Goes through any number of rows, fetching `portion` of them at a time; other statements may run meanwhile. */
export function each<T = Row>(statement: string, params?: readonly Param[], portion?: number): Generator<T, void, undefined>;
/** Runs `work`; if it throws, all that it did is undone, messages published among it, and the error goes on. */
export function savepoint<T>(work: () => T): T;

/** A message that leaves once, after the commit. */
export interface Outgoing {
  subject: string;
  /** Text is sent as UTF-8. */
  payload?: string | Uint8Array;
  /** Instead of `payload`: sent as JSON. */
  json?: unknown;
  /** Messages of one key leave in the order in which they were published. */
  key?: string;
  /** The configured target; the handler's own if absent. */
  target?: string;
  headers?: Record<string, string | Uint8Array>;
  contentType?: string;
  /** Leaves at this moment at the earliest. */
  notBefore?: Date;
}
/** Keeps the message until the transaction commits; returns its id, the same in every run. */
export function publish(message: Outgoing): string;
/** JSON text in which a BigInt is a number. */
export function stringify(value: unknown): string;

/** The handler's own table `config`: strings as written, any other value as JSON text. */
export const config: {
  get(name: string): string | undefined;
  names(): string[];
  /** An error if there is no such name. */
  require(name: string): string;
};

type Line = (message: string, fields?: Record<string, unknown>) => void;
/** Lines in the host's log; those of a run that is rolled back appear at level debug. */
export const log: { trace: Line; debug: Line; info: Line; warn: Line; error: Line };

/** What a build puts around the handler. Not for handlers. */
export function run(handle: (message: Message) => void, message: Message): void;
