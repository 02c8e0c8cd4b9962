import assert from 'node:assert/strict';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { WORDS } from '../../../src/parley/web/elements/call/words.js';
import { mayRecord, setRecord } from '../../../src/parley/web/elements/consent.js';
import { recents, remember, rename } from '../../../src/parley/web/elements/recents.js';
import { histogram, parseMetrics, quantile } from '../../../src/parley/web/pages/admin-metrics.js';
import { DIALECTS } from '../../../src/parley/web/pages/playground/dialects.js';
import { en as enAll } from '../../../src/parley/web/words/en.js';
import { en as enAdmin } from '../../../src/parley/web/words/en-admin.js';
import { en as enConsole } from '../../../src/parley/web/words/en-console.js';
import { t, time } from '../../../src/parley/web/words/words.js';
import { zh as zhAll } from '../../../src/parley/web/words/zh.js';
import { zh as zhAdmin } from '../../../src/parley/web/words/zh-admin.js';
import { zh as zhConsole } from '../../../src/parley/web/words/zh-console.js';

const en = { ...enAll, ...enAdmin, ...enConsole };
const zh = { ...zhAll, ...zhAdmin, ...zhConsole };

/** Without what a language says differently of a single thing. */
const sentences = (table) =>
  Object.keys(table).filter(
    (key) => !/\{count\}/.test(table[key.replace(/\.one$/, '')] ?? '') || !key.endsWith('.one'),
  );

const web = new URL('../../../src/parley/web/', import.meta.url).pathname;
const files = readdirSync(web, { recursive: true }).filter((name) => /\.(js|html|css)$/.test(name));
const read = (name) => readFileSync(join(web, name), 'utf8');

test('both languages have the same sentences with the same blanks', () => {
  assert.deepEqual(sentences(zh).sort(), sentences(en).sort());
  const blanks = (text) => [...text.matchAll(/\{(\w+)\}/g)].map((match) => match[1]).sort();
  for (const key of sentences(en)) assert.deepEqual(blanks(zh[key]), blanks(en[key]), key);
});

test('labels change with the language', () => {
  const fixed = files.filter((name) => /'(aria-label|title|placeholder)'[:,] t\(/.test(read(name)));
  assert.deepEqual(fixed, []);
});

test('both languages of an embedded call have the same sentences', () => {
  assert.deepEqual(Object.keys(WORDS.zh), Object.keys(WORDS.en));
});

test('one thing is not said as many', () => {
  assert.equal(t('mine.count', { count: 1 }), '1 conversation');
  assert.equal(t('mine.count', { count: 2 }), '2 conversations');
});

test('every sentence that is asked for exists, and none is left over', () => {
  const source = files
    .filter((name) => name.endsWith('.js') && !/^words\/(en|zh)(-admin|-console)?\.js$/.test(name))
    .map(read)
    .join('\n');
  const asked = new Set([...source.matchAll(/'((?:[a-z_]+)\.(?:[a-z0-9_]+))'/g)].map((match) => match[1]));
  const families = new Set(Object.keys(en).map((key) => key.split('.')[0]));
  // Names of settings in localStorage and the like look alike but belong to no family of sentences.
  const missing = [...asked].filter((key) => families.has(key.split('.')[0]) && !(key in en));
  assert.deepEqual(missing, []);
  const composed = [...source.matchAll(/`([a-z_]+\.[a-z_]*)\$\{/g)].map((match) => match[1]);
  const lists = /^(home\.|state\.|admin\.|chart\.)/;
  const unused = sentences(en).filter(
    (key) =>
      !asked.has(key) &&
      !composed.some((prefix) => key.startsWith(prefix)) &&
      !lists.test(key) &&
      !/^(end|code|media)\./.test(key),
  );
  assert.deepEqual(unused, []);
});

test('no page has a script or a style of its own', () => {
  for (const name of files) {
    const text = read(name);
    if (name.endsWith('.html')) {
      assert.doesNotMatch(text, /<script(?![^>]*\bsrc=)/, name);
      assert.doesNotMatch(text, /<style|\sstyle=|\son\w+=/, name);
    }
    assert.doesNotMatch(text, /innerHTML|insertAdjacentHTML|document\.write|\beval\(|setAttribute\('style'/, name);
    assert.doesNotMatch(text, /https?:\/\/(?!www\.w3\.org|server|your-server)[a-z]/, name);
  }
});

test('a page says its title, its words and its own files, and the frame the rest', () => {
  const own = /^<(title>|meta name="description"|link rel="stylesheet"|script type="module")/;
  const [frame, ...pages] = files.filter((name) => name.endsWith('.html')).sort((a) => (a === 'frame.html' ? -1 : 0));
  assert.equal(read(frame).split('<!-- page -->\n').length, 2);
  for (const name of pages) {
    const lines = read(name).trimEnd().split('\n');
    for (const line of lines) assert.match(line, own, name);
    for (const once of ['<title>', '<meta name="description"', '<script'])
      assert.equal(lines.filter((line) => line.startsWith(once)).length, 1, `${name}: ${once}`);
  }
});

test('what the pages name exists', () => {
  for (const name of files.filter((file) => file.endsWith('.html'))) {
    for (const [, path] of read(name).matchAll(/(?:src|href)="\/static\/([^"]+)"/g))
      assert.ok(statSync(join(web, path)).isFile(), path);
  }
  for (const name of files.filter((file) => file.endsWith('.js'))) {
    for (const [, path] of read(name).matchAll(/(?:from|import|import\() ?'(\.[^']+)'/g)) {
      if (!path.endsWith('protocol.js')) assert.ok(statSync(join(web, name, '..', path)).isFile(), `${name}: ${path}`);
    }
  }
});

test('the layers know each other in one direction only', () => {
  const forbidden = {
    wire: /\b(document|window)\.|from '\.\.\/(audio|talk|elements|pages|words)/,
    audio: /from '\.\.\/(wire|talk|elements|pages|words)/,
    talk: /from '\.\.\/(elements|pages|words)/,
    elements: /from '(\.\.\/)+pages/,
  };
  for (const [layer, pattern] of Object.entries(forbidden)) {
    for (const name of files.filter((file) => file.startsWith(`${layer}/`) && file.endsWith('.js')))
      assert.doesNotMatch(read(name), pattern, name);
  }
});

test('a histogram is of one label, or of all together', () => {
  const text = ['chat', 'omni_duplex']
    .flatMap((mode, i) =>
      [
        ['0.1', 1],
        ['+Inf', 3],
      ].map(([le, count]) => `parley_answer_seconds_bucket{le="${le}",mode="${mode}"} ${count * (i + 1)}`),
    )
    .join('\n');
  const metrics = parseMetrics(text);

  assert.deepEqual(histogram(metrics, 'parley_answer_seconds', { mode: 'chat' }), [
    { bound: 0.1, count: 1 },
    { bound: Infinity, count: 3 },
  ]);
  assert.deepEqual(
    histogram(metrics, 'parley_answer_seconds').map(({ count }) => count),
    [3, 9],
  );
  assert.deepEqual(histogram(metrics, 'parley_answer_seconds', { mode: 'none' }), []);
});

test('prometheus text is read, quantiles lie within their bucket', () => {
  const samples = parseMetrics(
    '# HELP x\nparley_errors_total{code="a\\"b",source="worker"} 2.0\nparley_queue_length 3\n',
  );
  assert.deepEqual(samples, [
    { name: 'parley_errors_total', labels: { code: 'a"b', source: 'worker' }, value: 2 },
    { name: 'parley_queue_length', labels: {}, value: 3 },
  ]);
  const buckets = [
    { bound: 0.1, count: 5 },
    { bound: 0.2, count: 10 },
    { bound: Infinity, count: 10 },
  ];
  assert.equal(quantile(buckets, 0.5), 0.1);
  assert.ok(Math.abs(quantile(buckets, 0.75) - 0.15) < 1e-9);
  assert.equal(quantile([], 0.5), null);
});

/** Storage of a browser, for one test. */
function storing(t) {
  const kept = new Map();
  const store = {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
  const before = Object.getOwnPropertyDescriptor(globalThis, 'localStorage');
  Object.defineProperty(globalThis, 'localStorage', { value: store, configurable: true });
  t.after(() => (before ? Object.defineProperty(globalThis, 'localStorage', before) : delete globalThis.localStorage));
}

test('nothing is recorded without consent', (t) => {
  storing(t);
  const answers = [mayRecord()];
  for (const may of [true, false]) {
    setRecord(may);
    answers.push(mayRecord());
  }
  assert.deepEqual(answers, [false, true, false]);
});

test('a conversation keeps the name it was given until that is taken back', (t) => {
  storing(t);
  remember('a', 'audio_duplex');
  remember('b', 'omni');
  rename('a', '  The first one ');
  assert.deepEqual(
    recents().map(({ id, name }) => [id, name]),
    [
      ['b', undefined],
      ['a', 'The first one'],
    ],
  );
  remember('a', 'audio_duplex');
  assert.deepEqual(
    recents().map(({ id, name }) => [id, name]),
    [
      ['a', 'The first one'],
      ['b', undefined],
    ],
  );
  rename('a', ' ');
  assert.equal(recents()[0].name, undefined);
});

test('numbers are written as the language writes them', () => {
  assert.equal(t('queue.wait', { seconds: 1234 }), 'about 1,234 s');
  assert.equal(t('no.such.key'), 'no.such.key');
});

test('the time of day is written as the reader of the page writes it, not as the browser does', () => {
  const { navigator } = globalThis;
  const read = (tag) => {
    Object.defineProperty(globalThis, 'navigator', { value: { languages: [tag] }, configurable: true });
    return time(new Date(2026, 10, 29, 15, 4, 5));
  };

  try {
    assert.equal(read('en-GB'), '15:04:05');
    assert.match(read('en-US'), /^3:04:05\sPM$/);
  } finally {
    Object.defineProperty(globalThis, 'navigator', { value: navigator, configurable: true });
  }
});

test('what a full browser does not store lasts until the page is closed', async (t) => {
  storing(t);
  const { localStorage: store } = globalThis;
  store.setItem('language', 'en');
  await import('../../../src/parley/web/words/storage.js?full');
  store.setItem = () => {
    throw new DOMException('', 'QuotaExceededError');
  };
  localStorage.setItem('theme', 'dark');
  assert.deepEqual(
    ['theme', 'language', 'voice'].map((key) => localStorage.getItem(key)),
    ['dark', 'en', null],
  );
  localStorage.removeItem('theme');
  assert.equal(localStorage.getItem('theme'), null);
});

test('a browser that stores nothing for a page has no chats and no other tabs', async (t) => {
  const refused = () => {
    throw new DOMException('The operation is insecure', 'SecurityError');
  };
  const { BroadcastChannel } = globalThis;
  t.after(() => Object.assign(globalThis, { BroadcastChannel, indexedDB: undefined }));
  Object.assign(globalThis, { BroadcastChannel: refused, indexedDB: { open: refused } });
  const { keepChat, listChats, watchChats } = await import('../../../src/parley/web/talk/history.js');

  watchChats(() => {});

  assert.equal(await keepChat({ id: 'a', title: '', updatedAt: 0, messages: [] }), false);
  assert.deepEqual(await listChats(), []);
});

test('nothing that is tried in the playground is recorded', () => {
  for (const { id, kind, messages } of DIALECTS) {
    // Another message than the first starts no session, except in a chat.
    const starting = messages('').filter(({ name }, at) => (kind === 'chat' ? name !== 'stop' : at === 0));
    for (const { message } of starting) assert.match(JSON.stringify(message), /"(record|store)":false/, id);
  }
});
