// Makes one module of a handler's sources. Arguments: the text of the module to begin with, the file of the one module.
import { build } from 'esbuild';

const [contents, outfile] = process.argv.slice(1);
try {
  await build({
    stdin: { contents, sourcefile: 'entry.js', resolveDir: process.cwd() },
    bundle: true,
    format: 'esm',
    external: ['hapax:*'],
    charset: 'utf8',
    outfile,
    color: false,
    logLevel: 'warning',
    // Without an export of that name the handler would be nothing, and only a message would tell.
    logOverride: { 'import-is-undefined': 'error' },
  });
} catch (error) {
  // What is wrong with the sources it has said itself.
  if (!error.errors) console.error(error.message);
  process.exitCode = 1;
}
