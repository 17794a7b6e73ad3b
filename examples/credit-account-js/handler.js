// Adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does.
import { execute } from 'hapax:handler/sql@0.1.0';

export function handle(message) {
  const { account, amount } = credit(message.payload);
  const updated = sql(() =>
    execute('UPDATE accounts SET balance = balance + $1 WHERE id = $2', [
      { tag: 'int64', val: amount },
      { tag: 'text', val: account },
    ]),
  );
  if (updated === 0n) throw reject(`account \`${account}\` does not exist`);
}

// Reads the payload: `account` as a string, `amount` as a BigInt.
function credit(payload) {
  let value;
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(payload);
    // A Number has 53 bits: integers are taken from the source instead.
    value = JSON.parse(text, (_, value, { source }) => (/^-?\d+$/.test(source) ? BigInt(source) : value));
  } catch (error) {
    throw reject(`payload is not the expected JSON: ${error.message}`);
  }
  if (typeof value?.account !== 'string') throw reject('payload is not the expected JSON: `account` is not a string');
  if (typeof value.amount !== 'bigint' || BigInt.asIntN(64, value.amount) !== value.amount) {
    throw reject('payload is not the expected JSON: `amount` is not a 64-bit integer');
  }
  return value;
}

// Rolls back and keeps the message as a dead letter.
function reject(reason) {
  return { tag: 'reject', val: reason };
}

// Makes a call into the host; the error record of one that fails goes back to the host, which runs the message again.
function sql(call) {
  try {
    return call();
  } catch (thrown) {
    const error = thrown.payload;
    if (error === undefined) throw thrown;
    let reason = `${error.code}: ${error.message}`;
    if (error.detail !== undefined) reason += ` (${error.detail})`;
    if (error.param !== undefined) reason += ` (parameter $${error.param})`;
    throw { tag: 'retry', val: { reason, delayMilliseconds: undefined } };
  }
}
