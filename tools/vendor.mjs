/**
 * Writes `src/parley/web/vendor/` from the packages in `package.json`: `npm run vendor`.
 *
 * The pages need no package manager: what they take from others is in the repository, each library one
 * module, with its licence next to it. A test compares the folder with what this program writes.
 */

import { build } from 'esbuild';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const packages = new URL('../node_modules/', import.meta.url).pathname;
const folder = process.argv[2] ?? new URL('../src/parley/web/vendor/', import.meta.url).pathname;

/** Licence and version of a package, as the first line of its file. @param {string} name @param {string} licence */
const head = (name, licence) => {
  const { version } = JSON.parse(readFileSync(join(packages, name, 'package.json'), 'utf8'));
  return `/*! ${name} ${version}, ${licence} (LICENSE-${name}.txt). Made by tools/vendor.mjs. */\n`;
};

mkdirSync(folder, { recursive: true });

const made = await build({
  stdin: { contents: "export { default } from 'markdown-it';", resolveDir: packages },
  bundle: true,
  minify: true,
  charset: 'utf8',
  legalComments: 'none',
  format: 'esm',
  target: 'es2022',
  write: false,
});
writeFileSync(join(folder, 'markdown-it.js'), head('markdown-it', 'MIT') + made.outputFiles[0].text);

const temml = readFileSync(join(packages, 'temml/dist/temml.min.js'), 'utf8');
writeFileSync(join(folder, 'temml.js'), `${head('temml', 'MIT')}${temml.trim()}\nexport default temml;\n`);

/** What ends up in a module, whose licences go with it. */
const PARTS = {
  'markdown-it': ['markdown-it', 'linkify-it', 'mdurl', 'uc.micro', 'entities', 'punycode.js'],
  temml: ['temml'],
};
for (const [name, parts] of Object.entries(PARTS)) {
  const texts = parts.map((part) => {
    const file = readdirSync(join(packages, part)).find((one) => /^licen[sc]e/i.test(one));
    if (!file) throw new Error(`${part} has no licence file`);
    return `${part}\n\n${readFileSync(join(packages, part, file), 'utf8').trim()}\n`;
  });
  writeFileSync(join(folder, `LICENSE-${name}.txt`), texts.join('\n----\n\n'));
}

copyFileSync(
  join(packages, '@fontsource-variable/figtree/files/figtree-latin-wght-normal.woff2'),
  join(folder, 'figtree.woff2'),
);
copyFileSync(join(packages, '@fontsource-variable/figtree/LICENSE'), join(folder, 'LICENSE-figtree.txt'));
