/** What a person can read in one go: pages of 250 lines, functions of 60, lines of 120 columns. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import ts from 'typescript';

const web = new URL('../../../src/parley/web/', import.meta.url).pathname;
/** Dictionaries and made files are data. */
const isData = (name) => /^words\/(en|zh)(-admin|-console)?\.js$|^types\/|^vendor\//.test(name);
const files = readdirSync(web, { recursive: true }).filter((name) => name.endsWith('.js') && !isData(name));
const read = (name) => readFileSync(join(web, name), 'utf8');

/** Lines of every function of a file that has more than so many. */
function longFunctions(name, most) {
  const source = ts.createSourceFile(name, read(name), ts.ScriptTarget.Latest, true);
  const found = [];
  const visit = (node) => {
    if (ts.isFunctionLike(node) && node.body) {
      const lines = [node.body.getStart(), node.body.getEnd()].map(
        (at) => source.getLineAndCharacterOfPosition(at).line,
      );
      if (lines[1] - lines[0] + 1 > most)
        found.push(`${name}: ${node.name?.getText() ?? 'a function'} ${lines[1] - lines[0] + 1}`);
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return found;
}

test('no page file is longer than 250 lines', () => {
  const long = files
    .filter((name) => name.startsWith('pages/'))
    .map((name) => [name, read(name).split('\n').length - 1]);
  assert.deepEqual(
    long.filter(([, lines]) => lines > 250),
    [],
  );
});

test('no function is longer than 60 lines', () => {
  assert.deepEqual(
    files.flatMap((name) => longFunctions(name, 60)),
    [],
  );
});

test('no line is longer than 120 columns', () => {
  const long = files.flatMap((name) =>
    read(name)
      .split('\n')
      // A list of names is read like a table; a link cannot be broken.
      .flatMap((line, i) =>
        line.length > 120 && !/^\s*(\*|\/\*\*|'|\w+: '|\/)/.test(line) ? [`${name}:${i + 1}`] : [],
      ),
  );
  assert.deepEqual(long, []);
});
