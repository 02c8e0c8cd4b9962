import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

const root = new URL('../../../', import.meta.url);
const COMPILER = new URL('node_modules/typescript-native/bin/tsc', root).pathname;
const NEEDS_COMPILER = { skip: existsSync(COMPILER) ? false : 'the browser tools are not installed (npm ci)' };
const read = (path) => readFileSync(new URL(path, root), 'utf8');

test('the JavaScript client has the version of the server', () => {
  const version = /__version__ = "([^"]+)"/.exec(read('src/parley/__init__.py'))[1];
  assert.equal(JSON.parse(read('src/parley/web/package.json')).version, version);
});

test('the client can be loaded where there is no page', async () => {
  const client = await import('../../../src/parley/web/client.js');
  const documented = [...read('docs/do/javascript-client.md').matchAll(/^\| (`.+?) \|/gm)].flatMap(([, cell]) =>
    [...cell.matchAll(/`(\w+)/g)].map(([, name]) => name),
  );
  assert.ok(documented.length > 10);
  for (const name of documented) assert.ok(name in client, name);
});

test('a Node without WebSocket says what to start it with', async (t) => {
  const { ChatClient } = await import('../../../src/parley/web/client.js');
  const { WebSocket } = globalThis;
  t.after(() => Object.assign(globalThis, { WebSocket }));
  globalThis.WebSocket = undefined;

  assert.throws(() => new ChatClient({ messages: [] }, { base: 'http://a.test' }).open(), /--experimental-websocket/);
});

test('tools are pinned exactly and the lock names no registry', () => {
  const { devDependencies } = JSON.parse(read('package.json'));
  for (const version of Object.values(devDependencies)) assert.match(version, /^(npm:\w+@)?\d+\.\d+\.\d+$/);
  assert.doesNotMatch(read('package-lock.json'), /"resolved"|registry/);
});

function folder(t) {
  const made = mkdtempSync(join(tmpdir(), 'parley-client-'));
  t.after(() => rmSync(made, { recursive: true }));
  return made;
}

/** @param {...string} words */
function compile(...words) {
  const { status, stdout } = spawnSync(process.execPath, [COMPILER, ...words], { encoding: 'utf8' });
  assert.equal(status, 0, stdout);
}

test('a strict TypeScript program knows the types of the client', NEEDS_COMPILER, (t) => {
  const program = folder(t);
  const client = join(program, 'node_modules', 'parley-client');
  compile('-p', new URL('tsconfig.types.json', root).pathname, '--outDir', join(client, 'types'));
  for (const [from, to] of [
    ['package.json', 'package.json'],
    ['wire/protocol.d.ts', 'types/wire/protocol.d.ts'],
  ])
    copyFileSync(new URL(`src/parley/web/${from}`, root), join(client, to));
  const [documented] = /import \{ ChatClient \} from 'parley-client';\n.*?(?=\n```)/s.exec(
    read('docs/do/javascript-client.md'),
  );
  writeFileSync(
    join(program, 'program.mts'),
    `${documented}
declare const process: { stdout: { write(text: string): void } };
import { Calls, DuplexCall, theRig } from 'parley-client';
import { RealtimeClient, type Connection } from 'parley-client/wire';
const some: Connection = new RealtimeClient({ instructions: 'Be kind.' }, 'audio');
const calls = new Calls(() => new DuplexCall(theRig()));
calls.addEventListener('change', ({ detail }) => detail.phase.length + detail.activity.length);
calls.addEventListener('captions', ({ detail }) => detail.list.at(-1)?.text.slice(0, detail.list.at(-1)?.heard));
calls.start({ dialect: 'realtime', mode: 'audio', microphone: {}, options: (said) => ({ instructions: said }) });
// @ts-expect-error messages are needed
new ChatClient({});
// @ts-expect-error a delta has no words
chat.addEventListener('delta', ({ detail }) => detail.words);
export { some };
`,
  );
  for (const how of ['Bundler', 'NodeNext']) {
    compile(
      ...['--ignoreConfig', '--noEmit', '--strict', '--target', 'ES2022', '--lib', 'ES2023,DOM'],
      ...['--module', how === 'Bundler' ? 'ESNext' : how, '--moduleResolution', how, join(program, 'program.mts')],
    );
  }
});

test('what the pages take from others is what the packages hold: npm run vendor copies it', (t) => {
  if (!existsSync(new URL('node_modules/esbuild', root))) {
    t.skip('the browser tools are not installed (npm ci)');
    return;
  }
  const made = folder(t);
  const { status, stderr } = spawnSync(process.execPath, [new URL('tools/vendor.mjs', root).pathname, made], {
    encoding: 'utf8',
  });
  assert.equal(status, 0, stderr);
  const files = readdirSync(made);
  assert.ok(files.length >= 6);
  for (const name of files) {
    assert.ok(
      readFileSync(join(made, name)).equals(readFileSync(new URL(`src/parley/web/vendor/${name}`, root))),
      name,
    );
  }
});
