// Makes a component of handler.js. Arguments, if others are wanted: the folder of the contract, the component's file.
import { writeFile } from 'node:fs/promises';
import { componentize } from '@bytecodealliance/componentize-js';

const [witPath = '../../wit', file = 'credit-account-js.wasm'] = process.argv.slice(2);
const { component } = await componentize({
  sourcePath: 'handler.js',
  witPath,
  worldName: 'handler',
  // Whatever would be imported from outside `hapax:handler`: a handler has nothing but its SQL.
  disableFeatures: ['clocks', 'fetch-event', 'http', 'random', 'stdio'],
});
await writeFile(file, component);
