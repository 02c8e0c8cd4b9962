import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

const root = new URL('../../../', import.meta.url);
const read = (path) => readFileSync(new URL(path, root), 'utf8');

test('the JavaScript client has the version of the server', () => {
  const version = /__version__ = "([^"]+)"/.exec(read('src/parley/__init__.py'))[1];
  assert.equal(JSON.parse(read('src/parley/web/package.json')).version, version);
});

test('the client can be loaded where there is no page', async () => {
  const client = await import('../../../src/parley/web/client.js');
  const documented = [...read('docs/do/javascript-client.md').matchAll(/^\| (`.+?) \|/gm)].flatMap(([, cell]) => [...cell.matchAll(/`(\w+)/g)].map(([, name]) => name));
  assert.ok(documented.length > 10);
  for (const name of documented) assert.ok(name in client, name);
});

test('tools are pinned exactly and the lock names no registry', () => {
  const { devDependencies } = JSON.parse(read('package.json'));
  for (const version of Object.values(devDependencies)) assert.match(version, /^\d+\.\d+\.\d+$/);
  assert.doesNotMatch(read('package-lock.json'), /"resolved"|https?:/);
});
