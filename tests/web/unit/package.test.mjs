import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

const root = new URL('../../../', import.meta.url);
/** What writes the declared types; what checks programs, in a sixth of the time. */
const [WRITER, CHECKER] = ['typescript', 'typescript-native'].map(
  (name) => new URL(`node_modules/${name}/bin/tsc`, root).pathname,
);
const NEEDS_COMPILER = {
  skip: [WRITER, CHECKER].every(existsSync) ? false : 'the browser tools are not installed (npm ci)',
};
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

/** @param {string} compiler @param {...string} words */
function compile(compiler, ...words) {
  const { status, stdout } = spawnSync(process.execPath, [compiler, ...words], { encoding: 'utf8' });
  assert.equal(status, 0, stdout);
}

test('a strict TypeScript program knows the types of the client', NEEDS_COMPILER, (t) => {
  const program = folder(t);
  mkdirSync(join(program, 'node_modules'));
  symlinkSync(new URL('src/parley/web', root).pathname, join(program, 'node_modules', 'parley-client'));
  writeFileSync(
    join(program, 'program.mts'),
    `import { ChatClient, DuplexTalk } from 'parley-client';
import { RealtimeClient, type Connection } from 'parley-client/wire';
const chat = new ChatClient({ messages: [{ role: 'user', content: 'Hello!' }] }, { base: 'https://a.test', token: 'k' });
const some: Connection = new RealtimeClient({ instructions: 'Be kind.' }, 'audio');
// @ts-expect-error messages are needed
new ChatClient({});
chat.open();
export { some, DuplexTalk };
`,
  );
  for (const how of ['Bundler', 'NodeNext']) {
    compile(
      CHECKER,
      ...[
        '--ignoreConfig',
        '--noEmit',
        '--strict',
        '--target',
        'ES2022',
        '--lib',
        'ES2023,DOM',
        '--module',
        how === 'Bundler' ? 'ESNext' : how,
      ],
      ...['--moduleResolution', how, '--preserveSymlinks', join(program, 'program.mts')],
    );
  }
});

test('the declared types are those of the code: npm run types makes them', NEEDS_COMPILER, (t) => {
  const made = folder(t);
  compile(WRITER, '-p', new URL('tsconfig.types.json', root).pathname, '--outDir', made);
  for (const name of readdirSync(made))
    assert.equal(read(`src/parley/web/types/${name}`), readFileSync(join(made, name), 'utf8'), name);
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
