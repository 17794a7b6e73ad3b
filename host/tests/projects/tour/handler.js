// Goes through all of the SDK; what it finds is in the table.
import { config, each, execute, executeMany, headerText, HostError, log, publish, queryOne, queryOptional, reject, savepoint, text } from './sdk/hapax.js';

const tell = (name, value) => execute('INSERT INTO told (name, value) VALUES ($1, $2)', [name, value]);

export function handle(message) {
  if (text(message) === '"fail"') throw new Error('out of order');
  if (text(message) === '"promise"') return Promise.resolve();
  tell('attempt', String(message.attempt));
  tell('header', headerText(message, 'KIND'));
  if (headerText(message, 'absent') !== undefined) reject('a header that is not there');
  tell('config', config.require('currency'));
  tell('nothing', null);
  tell('decimal', '0.10');
  const { great, blob } = queryOne('SELECT $1 AS great, $2 AS blob', [9007199254740993n, new Uint8Array([0, 255])]);
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
  for (const { number } of each('SELECT column1 AS number FROM (VALUES (1), (2), (3))', [], 2)) sum += number;
  executeMany('INSERT INTO told (name, value) VALUES ($1, $2)', [['cursor', String(sum)]]);
  publish({ subject: 'told', key: 'k', json: { great: 9007199254740993n }, headers: { Kind: 'tour' } });
  log.info('toured', { great });
}
