// Makes a component of one module. Arguments: the module, the folder of the contract, the component's file.
import { writeFile } from 'node:fs/promises';
import { componentize } from '@bytecodealliance/componentize-js';

const [sourcePath, witPath, file] = process.argv.slice(1);
try {
  const { component } = await componentize({
    sourcePath,
    witPath,
    worldName: 'handler',
    // Whatever would be imported from outside `hapax:handler`: a handler has nothing but its SQL.
    disableFeatures: ['clocks', 'fetch-event', 'http', 'random', 'stdio'],
  });
  await writeFile(file, component);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
