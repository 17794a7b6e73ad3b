// Adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does.
import { execute, isInt64, json, type Message, reject } from './sdk/hapax.js';

interface Credit {
  account: string;
  amount: bigint;
}

export function handle(message: Message): void {
  const { account, amount } = credit(message);
  const updated = execute('UPDATE accounts SET balance = balance + $1 WHERE id = $2', [amount, account]);
  if (updated === 0) reject(`account \`${account}\` does not exist`);
}

function credit(message: Message): Credit {
  // Integers come as BigInt: a Number has 53 bits.
  const value = json(message, { bigint: true }) as Partial<Credit> | null;
  const account = value?.account;
  const amount = value?.amount;
  if (typeof account !== 'string') reject('payload is not the expected JSON: `account` is not a string');
  if (!isInt64(amount)) reject('payload is not the expected JSON: `amount` is not a 64-bit integer');
  return { account, amount };
}
