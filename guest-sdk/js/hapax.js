// The SDK of hapax for JavaScript and TypeScript; `hapax.d.ts` documents all of it.
import * as host from 'hapax:handler/sql@0.1.0';
import { publish as hostPublish } from 'hapax:handler/outbox@0.1.0';
import { write } from 'hapax:handler/log@0.1.0';
import { get, names } from 'hapax:handler/config@0.1.0';

// ---- Failures

export class Reject extends Error {
  name = 'Reject';
}

export class Retry extends Error {
  name = 'Retry';

  constructor(reason, delayMilliseconds) {
    super(reason);
    this.delayMilliseconds = delayMilliseconds;
  }
}

export class HostError extends Error {
  name = 'HostError';

  constructor(record) {
    let text = `${record.code}: ${record.message}`;
    if (record.detail !== undefined) text += ` (${record.detail})`;
    if (record.param !== undefined) text += ` (parameter $${record.param})`;
    super(text);
    for (const field of ['code', 'retryable', 'sqlstate', 'detail', 'hint', 'schema', 'table', 'column', 'constraint', 'param', 'row', 'position']) {
      this[field] = record[field];
    }
    this.text = record.message;
    this.extra = Object.fromEntries(record.extra);
  }
}

export function reject(reason) {
  throw new Reject(reason);
}

export function retry(reason, delayMilliseconds) {
  throw new Retry(reason, delayMilliseconds);
}

// Makes a call into the host: what it throws for a failed one becomes an error that a handler can look at.
function call(work) {
  try {
    return work();
  } catch (thrown) {
    if (thrown?.payload?.code === undefined) throw thrown;
    throw new HostError(thrown.payload);
  }
}

// What the build puts around the handler.
export function run(handle, message) {
  try {
    const returned = handle(message);
    if (typeof returned?.then === 'function') throw new TypeError('the handler returned a promise: it must not be `async`');
  } catch (thrown) {
    if (thrown instanceof Reject) throw { tag: 'reject', val: thrown.message };
    const delay = thrown instanceof Retry ? thrown.delayMilliseconds : undefined;
    let reason = thrown instanceof Error ? thrown.message : String(thrown);
    if (thrown instanceof Error && !(thrown instanceof Retry) && !(thrown instanceof HostError)) {
      reason = `${thrown.name}: ${reason}`;
      write('error', reason, [['stack', String(thrown.stack)]]);
    }
    throw { tag: 'retry', val: { reason, delayMilliseconds: delay === undefined ? undefined : BigInt(delay) } };
  }
}

// ---- The message

function decode(bytes, what) {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return reject(`${what} is not UTF-8`);
  }
}

export function text(message) {
  return decode(message.payload, 'payload');
}

export function json(message, { bigint = false } = {}) {
  try {
    const source = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(message.payload);
    return JSON.parse(source, (_, value, { source }) => {
      if (typeof value !== 'number' || !/^-?\d+$/.test(source)) return value;
      return bigint || !Number.isSafeInteger(value) ? BigInt(source) : value;
    });
  } catch (error) {
    return reject(`payload is not the expected JSON: ${error.message}`);
  }
}

export function isInt64(value) {
  return typeof value === 'bigint' && BigInt.asIntN(64, value) === value;
}

export function header(message, name) {
  const wanted = name.toLowerCase();
  return message.headers.find((header) => header.name.toLowerCase() === wanted)?.value;
}

export function headerText(message, name) {
  const value = header(message, name);
  return value === undefined ? undefined : decode(value, `header \`${name}\``);
}

// ---- Values

const pad = (number, digits = 2) => String(number).padStart(digits, '0');
const dateText = ({ year, month, day }) => `${pad(year, 4)}-${pad(month)}-${pad(day)}`;
const timeText = ({ hour, minute, second, microsecond }) => `${pad(hour)}:${pad(minute)}:${pad(second)}.${pad(microsecond, 6)}`;
const timestampText = ({ date, time }) => `${dateText(date)}T${timeText(time)}`;

export function instantText({ seconds, nanoseconds }) {
  const whole = new Date(Number(seconds) * 1000).toISOString().slice(0, 19);
  return `${whole}.${pad(nanoseconds, 9).replace(/000$/, '')}Z`;
}

function instantOf(moment) {
  const milliseconds = moment.getTime();
  if (Number.isNaN(milliseconds)) throw new RangeError('the Date is not valid');
  const seconds = Math.floor(milliseconds / 1000);
  return { seconds: BigInt(seconds), nanoseconds: (milliseconds - seconds * 1000) * 1_000_000 };
}

// Whole seconds and microseconds of one sign, as ISO 8601 has them.
function intervalText({ months, days, microseconds }) {
  const magnitude = microseconds < 0n ? -microseconds : microseconds;
  const seconds = `${microseconds < 0n ? '-' : ''}${magnitude / 1_000_000n}.${pad(magnitude % 1_000_000n, 6)}`;
  return `P${months}M${days}DT${seconds}S`;
}

// Bytes of the host need not be of this module's own class.
const isBytes = (value) => Object.prototype.toString.call(value) === '[object Uint8Array]';
const ownBytes = (value) => (value instanceof Uint8Array ? value : new Uint8Array(value));

const convert = {
  bytes: ownBytes,
  date: dateText,
  time: timeText,
  timestamp: timestampText,
  instant: instantText,
  interval: intervalText,
  other: ({ text }) => text,
  undecoded: ({ bytes }) => ownBytes(bytes),
};

function fromHost({ tag, val }) {
  if (tag === 'null') return null;
  if (tag.endsWith('-array')) {
    const one = convert[tag.slice(0, -'-array'.length)] ?? ((value) => value);
    return Array.from(val, (value) => (value === undefined ? null : one(value)));
  }
  return convert[tag]?.(val) ?? val;
}

function toHost(value, place) {
  switch (typeof value) {
    case 'boolean':
      return { tag: 'boolean', val: value };
    case 'string':
      return { tag: 'text', val: value };
    case 'bigint':
      if (!isInt64(value)) throw new RangeError(`${place}: ${value} does not fit into 64 bits; pass it as a string`);
      return { tag: 'int64', val: value };
    case 'number':
      return Number.isSafeInteger(value) && !Object.is(value, -0) ? { tag: 'int64', val: BigInt(value) } : { tag: 'float64', val: value };
    case 'object':
      if (value === null) return { tag: 'null' };
      if (isBytes(value)) return { tag: 'bytes', val: ownBytes(value) };
      if (value instanceof Date) return { tag: 'instant', val: instantOf(value) };
      if (Array.isArray(value)) return arrayToHost(value, place);
      if (typeof value.tag === 'string') return value;
  }
  throw new TypeError(`${place}: ${value === undefined ? 'undefined' : `a value of type ${typeof value}`} is no value of SQL; objects are passed by JSON.stringify`);
}

function arrayToHost(values, place) {
  const elements = values.map((value) => (value == null ? undefined : toHost(value, place)));
  const tags = new Set(elements.filter((element) => element !== undefined).map((element) => element.tag));
  // Whole numbers among others are numbers, too.
  if (tags.size === 2 && tags.has('int64') && tags.has('float64')) {
    return { tag: 'float64-array', val: values.map((value) => (value == null ? undefined : Number(value))) };
  }
  if (tags.size > 1) throw new TypeError(`${place}: the array mixes ${[...tags].join(' and ')}`);
  const [tag = 'text'] = tags;
  return { tag: `${tag}-array`, val: elements.map((element) => element?.val) };
}

const toParams = (params) => params.map((value, index) => toHost(value, `parameter $${index + 1}`));

// Counts are far below 2^53.
const count = Number;

// ---- SQL

function rowsOf(columns, rows) {
  const names = columns.map((column) => column.name);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) throw new TypeError(`two columns are called \`${twice}\`: name one with AS`);
  return rows.map((row) => Object.fromEntries(row.map((value, index) => [names[index], fromHost(value)])));
}

export function execute(statement, params = []) {
  const values = toParams(params);
  return count(call(() => host.execute(statement, values)));
}

export function executeMany(statement, rows) {
  const values = rows.map((params, row) => params.map((value, index) => toHost(value, `row ${row}, parameter $${index + 1}`)));
  return Array.from(call(() => host.executeMany(statement, values)), count);
}

export function query(statement, params = []) {
  const values = toParams(params);
  const { columns, rows } = call(() => host.query(statement, values));
  return rowsOf(columns, rows);
}

export function queryOptional(statement, params = []) {
  const rows = query(statement, params);
  if (rows.length > 1) throw new RangeError(`the query gave ${rows.length} rows, where at most one is expected`);
  return rows[0];
}

export function queryOne(statement, params = []) {
  const row = queryOptional(statement, params);
  if (row === undefined) throw new RangeError('the query gave no row, where one is expected');
  return row;
}

export function* each(statement, params = [], portion = 1000) {
  const values = toParams(params);
  const cursor = call(() => host.openCursor(statement, values));
  try {
    const columns = cursor.columns();
    for (;;) {
      const rows = call(() => cursor.fetch(portion));
      if (rows.length === 0) return;
      yield* rowsOf(columns, rows);
    }
  } finally {
    cursor[Symbol.dispose]?.();
  }
}

export function savepoint(work) {
  const place = call(() => host.beginSavepoint());
  let result;
  try {
    result = work();
    if (typeof result?.then === 'function') throw new TypeError('the function of a savepoint must not be `async`');
  } catch (thrown) {
    call(() => place.rollback());
    throw thrown;
  }
  call(() => place.release());
  return result;
}

// ---- The outbox, the configuration, the log

const bytesOf = (value) => (typeof value === 'string' ? new TextEncoder().encode(value) : value);

export function publish({ subject, payload, json: value, key, target, headers = {}, contentType, notBefore }) {
  const outgoing = {
    target,
    subject,
    key,
    headers: Object.entries(headers).map(([name, value]) => ({ name, value: bytesOf(value) })),
    contentType: contentType ?? (value === undefined ? undefined : 'application/json'),
    payload: bytesOf(value === undefined ? (payload ?? '') : stringify(value)),
    notBefore: notBefore === undefined ? undefined : instantOf(notBefore),
  };
  return call(() => hostPublish(outgoing));
}

// As JSON, where a BigInt is a number like others.
export function stringify(value) {
  return JSON.stringify(value, (_, value) => (typeof value === 'bigint' ? JSON.rawJSON(value.toString()) : value));
}

export const config = {
  get,
  names,
  require(name) {
    const value = get(name);
    if (value === undefined) throw new Error(`the handler's table \`config\` has no \`${name}\``);
    return value;
  },
};

const line = (level) => (message, fields = {}) =>
  write(level, message, Object.entries(fields).map(([name, value]) => [name, String(value)]));

export const log = { trace: line('trace'), debug: line('debug'), info: line('info'), warn: line('warn'), error: line('error') };
