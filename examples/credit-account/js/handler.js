// Adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does.
import { execute, isInt64, json, reject } from './sdk/hapax.js';

/** @param {import('./sdk/hapax.js').Message} message */
export function handle(message) {
  const { account, amount } = credit(message);
  const updated = execute('UPDATE accounts SET balance = balance + $1 WHERE id = $2', [amount, account]);
  if (updated === 0) reject(`account \`${account}\` does not exist`);
}

/** @param {import('./sdk/hapax.js').Message} message */
function credit(message) {
  // Integers come as BigInt: a Number has 53 bits.
  const value = json(message, { bigint: true });
  if (typeof value?.account !== 'string') reject('payload is not the expected JSON: `account` is not a string');
  if (!isInt64(value.amount)) reject('payload is not the expected JSON: `amount` is not a 64-bit integer');
  return value;
}
