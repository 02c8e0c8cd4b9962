/** The page of the user's own conversations: calls whose recordings this browser knows, and the chats it stores. */

import { $, askName, confirmed, h, iconButton, say, textButton, toast } from '../elements/dom.js';
import { deleteRecording } from '../elements/forget.js';
import { icon } from '../elements/icons.js';
import { forget, recents, rename, viewerUrl } from '../elements/recents.js';
import { APPS, mountShell } from '../elements/shell/shell.js';
import { forgetChat, listChats } from '../talk/history.js';
import { clock, date, has, t, words } from '../words/words.js';

/**
 * @typedef {object} Entry
 * @property {string} id
 * @property {string} app
 * @property {string} name
 * @property {string} more what distinguishes it from others
 * @property {string} text text that is searched
 * @property {number} at
 * @property {string} url
 * @property {string[]} recordings of the server
 * @property {(() => Promise<void>) | null} rename
 * @property {() => Promise<void>} remove removes this browser's copy
 */

mountShell();

/** @param {string} app */
const appName = (app) => (has(`app.${app}`) ? t(`app.${app}`) : app);

/** @returns {Entry[]} */
function calls() {
  return recents()
    .filter(({ appType }) => appType !== 'turnbased')
    .map(({ id, appType, savedAt, name = '', words: said = '', seconds }) => ({
      id,
      app: appType,
      name: name || said || appName(appType),
      more: [name || said ? appName(appType) : '', date(savedAt), seconds ? clock(seconds) : '']
        .filter(Boolean)
        .join(' · '),
      text: `${name} ${said} ${appName(appType)}`.toLowerCase(),
      at: savedAt,
      url: viewerUrl(id),
      recordings: [id],
      rename: async () => {
        const next = await askName(name);
        if (next !== null) rename(id, next);
      },
      remove: async () => forget(id),
    }));
}

/** Returns one entry per chat, regardless of the number of recorded answers. @returns {Promise<Entry[]>} */
async function chats() {
  const all = await listChats();
  return all.map(({ id, title, name, updatedAt, messages }) => ({
    id,
    app: 'turnbased',
    name: name || title || t('chat.untitled'),
    more: [appName('turnbased'), date(updatedAt), t('mine.messages', { count: messages.length })].join(' · '),
    text: [name, ...messages.flatMap(({ parts }) => parts.map((part) => (part.type === 'text' ? part.text : '')))]
      .join(' ')
      .toLowerCase(),
    at: updatedAt,
    url: `/turnbased#${encodeURIComponent(id)}`,
    recordings: messages.map(({ recordingId }) => recordingId ?? '').filter(Boolean),
    rename: null,
    remove: () => forgetChat(id),
  }));
}

const list = h('ul', { class: 'recent' });
const state = h('p', { class: 'quiet', role: 'status' });
const search = h('input', {
  type: 'search',
  hint: 'mine.search',
  label: 'mine.search',
  oninput: () => show(),
});
/** Returns what is shown if there are no conversations yet. */
const empty = h(
  'div',
  { class: 'empty', hidden: true },
  icon('history'),
  h('h2', { words: 'mine.none' }),
  h('p', { class: 'lead', words: 'mine.none_more' }),
  h(
    'div',
    { class: 'row' },
    h('a', { class: 'button primary', href: '/', icon: 'mic', words: 'call.start' }),
    h('a', { class: 'button', href: '/turnbased', icon: 'chat', words: 'home.write' }),
  ),
);
const intro = h('p', { class: 'quiet', words: 'mine.about' });
const removeAll = textButton(
  'trash',
  'mine.delete_all',
  () => void remove(shown, 'mine.delete_all_sure'),
  'slim danger',
);
/** @type {Entry[]} */
let entries = [];
/** @type {Entry[]} */
let shown = [];

/** @param {number} [at] position of the row whose buttons had the focus; they were removed with it */
async function load(at = -1) {
  entries = [...calls(), ...(await chats())].sort((a, b) => b.at - a.at);
  show();
  if (at >= 0) (list.children[Math.min(at, shown.length - 1)]?.querySelector('a') ?? $('a', empty)).focus();
}

function show() {
  const wanted = search.value.trim().toLowerCase();
  shown = entries.filter(({ text }) => text.includes(wanted));
  search.hidden = entries.length < 5;
  removeAll.hidden = shown.length === 0;
  empty.hidden = entries.length > 0;
  intro.hidden = state.hidden = entries.length === 0;
  say(state, 'mine.count', { count: shown.length });
  list.replaceChildren(...shown.map(row));
}

/** @param {Entry} entry @param {number} at */
function row(entry, at) {
  const { name, more, url, app } = entry;
  const sign = APPS.find(({ id }) => id === app)?.icon ?? 'wave';
  const edit = async () => {
    await entry.rename?.();
    await load(at);
  };
  return h(
    'li',
    null,
    h(
      'a',
      { href: url },
      icon(sign),
      h('span', { class: 'name', dir: 'auto' }, name),
      h('span', { class: 'quiet small num' }, more),
    ),
    entry.rename ? iconButton('edit', ['action.rename', { name }], () => void edit()) : null,
    iconButton('trash', ['chat.delete', { name }], () => void remove([entry], 'mine.delete_sure', at)),
  );
}

/** Deletes both copies: the server's and this browser's. @param {Entry[]} which @param {string} question @param {number} [at] */
async function remove(which, question, at = 0) {
  if (!(await confirmed(question, 'action.delete', { count: which.length }))) return;
  let isWhole = true;
  for (const entry of which) {
    const gone = await Promise.all(entry.recordings.map(deleteRecording));
    isWhole &&= gone.every(Boolean);
    await entry.remove();
  }
  toast(isWhole ? 'replay.deleted' : 'chat.delete_partly');
  await load(at);
}

const main = $('#main');
main.className = 'home mine';
main.append(
  h(
    'section',
    { class: 'stack' },
    h('div', { class: 'row spread' }, h('h1', { words: 'mine.title' }), removeAll),
    intro,
    search,
    state,
    list,
    empty,
  ),
);
words.addEventListener('language', () => void load());
void load();
