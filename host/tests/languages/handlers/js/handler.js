// Does what the payload says; what it finds is in the tables.
import { config, each, execute, executeMany, headerText, HostError, log, publish, query, queryOne, queryOptional, reject, retry, savepoint, text } from './sdk/hapax.js';

export function handle(message) {
  const word = text(message);
  switch (word) {
    case 'tour':
      return tour(message);
    case 'values':
      return values();
    case 'arrays':
      return arrays();
    case 'reject':
      return reject('not today: ä😀');
    case 'retry':
      return retry('later: ä😀', 1);
    case 'error':
      throw new Error('out of order');
    case 'unique':
      return execute('INSERT INTO samples (number) VALUES ($1)', [1]);
    case 'wrong':
      return execute('INSERT INTO samples (number, i) VALUES (9, $1)', ['five']);
    case 'panic':
      throw new TypeError('out of order');
    case 'memory':
      for (const pieces = []; ; ) pieces.push(new Array(1 << 17).fill(pieces.length));
    case 'time':
      for (;;);
  }
  reject(`no such word: ${word}`);
}

const tell = (name, value) => execute('INSERT INTO told (name, value) VALUES ($1, $2)', [name, value]);

function tour(message) {
  tell('attempt', String(message.attempt));
  tell('header', headerText(message, 'MESSAGE-ID'));
  if (headerText(message, 'absent') !== undefined) reject('a header that is not there');
  tell('config', config.require('currency'));
  tell('nothing', null);
  const { great, blob } = queryOne('SELECT CAST($1 AS bigint) AS great, x AS blob FROM samples WHERE number = 1', [9007199254740993n]);
  if (typeof great !== 'bigint' || !(blob instanceof Uint8Array)) reject('other types');
  tell('great', String(great));
  tell('blob', Array.from(blob, (byte) => byte.toString(16).padStart(2, '0')).join(''));
  savepoint(() => tell('kept', 'y'));
  try {
    savepoint(() => {
      tell('gone', 'x');
      publish({ subject: 'gone', payload: 'never' });
      tell('kept', 'z');
    });
  } catch (error) {
    if (!(error instanceof HostError)) throw error;
    tell('unique', error.code);
  }
  if (queryOptional('SELECT 1 AS one FROM told WHERE name = $1', ['gone']) !== undefined) reject('it is there');
  let sum = 0n;
  for (const { number } of each('SELECT number FROM samples ORDER BY number', [], 2)) sum += number;
  executeMany('INSERT INTO told (name, value) VALUES ($1, $2)', [['cursor', String(sum)]]);
  publish({ subject: 'told', key: 'k', json: { great: 9007199254740993n }, headers: { Kind: 'tour' } });
  log.info('toured', { great });
}

// All kinds of values: those of the table as they come, and one row of JavaScript's own.
function values() {
  const own = {
    number: 100,
    b: true,
    i: -(2n ** 63n),
    f: 0.1,
    t: 'ä😀',
    x: new Uint8Array([0, 255]),
    n: { tag: 'decimal', val: '0.10' },
    d: '2024-02-29',
    h: '12:34:56.000001',
    ts: '2024-02-29T12:00:00.000000',
    at: new Date(Date.UTC(2024, 1, 29, 12, 34, 56, 123)),
    iv: 'P1M-2DT3.500000S',
    u: '00112233-4455-6677-8899-aabbccddeeff',
    j: JSON.stringify({ a: [1, true, null] }),
  };
  for (const row of [...query('SELECT * FROM samples ORDER BY number'), own]) {
    execute(
      'INSERT INTO copies (number, b, i, f, t, x, n, d, h, ts, at, iv, u, j) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)',
      Object.keys(own).map((name) => row[name]),
    );
  }
}

function arrays() {
  const own = { number: 100, ia: [-(2n ** 63n), null], ta: ['ä', null], ba: [true], fa: [0.1], na: ['0.10'], o: '192.0.2.2' };
  for (const row of [...query('SELECT * FROM array_samples ORDER BY number'), own]) {
    execute(
      'INSERT INTO array_copies (number, ia, ta, ba, fa, na, o) VALUES ($1, $2, $3, $4, $5, $6, $7)',
      Object.keys(own).map((name) => row[name]),
    );
  }
}
