/** The first page: one tap to talk, every way there is, what was talked about before. */

import { $, askName, copy, h, say, sheet } from '../elements/dom.js';
import { icon } from '../elements/icons.js';
import { forgetRecents, recents, rename, viewerUrl } from '../elements/recents.js';
import { APPS, enabledApps, mountShell } from '../elements/shell/shell.js';
import { has, t } from '../words/words.js';
import { date, words } from '../words/words.js';
import '../elements/orb/orb.js';

mountShell();

const orb = document.createElement('p-orb');
const talkNow = h('a', { class: 'button primary big', href: '/audio_duplex', icon: 'mic', words: 'home.talk' });
const cards = h('ul', { class: 'cards' }, ...APPS.map(({ id, route, icon: name }) =>
  h('li', { 'data-app': id },
    h('a', { class: 'card', href: route }, h('span', { class: 'badge' }, icon(name)), h('span', { class: 'text' }, h('strong', { words: `app.${id}` }), h('span', { class: 'quiet', words: `home.about_${id}` })), icon('arrow')))));

// Where this page is a phone's already, the card would lead to itself.
const isPhone = matchMedia('(pointer: coarse)').matches;
if (!isPhone) {
  cards.append(
    h('li', null,
      h('button', { class: 'card', type: 'button', onclick: showAddress }, h('span', { class: 'badge' }, icon('phone')), h('span', { class: 'text' }, h('strong', { words: 'home.phone' }), h('span', { class: 'quiet', words: 'home.about_phone' })), icon('arrow'))));
}

function showAddress() {
  const url = new URL('/mobile/', location.href).href;
  const isOnlyHere = ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);
  sheet('home.phone', h('p', { words: isOnlyHere ? 'home.phone_local' : 'home.phone_how' }), h('p', { class: 'mono address' }, url), h('div', { class: 'row' }, h('button', { class: 'button primary', type: 'button', icon: 'copy', words: 'action.copy', onclick: () => void copy(url) })));
}

const list = h('ul', { class: 'recent' });
const recent = h('section', { class: 'recents', hidden: true }, h('div', { class: 'row spread' }, h('h2', { words: 'home.recent' }), h('button', { class: 'button plain slim', type: 'button', words: 'action.clear', onclick: () => (forgetRecents(), drawRecents()) })), list);

function drawRecents() {
  const entries = recents();
  recent.hidden = entries.length === 0;
  list.replaceChildren(
    ...entries.map(({ id, appType, savedAt, name }) => {
      const kind = has(`app.${appType}`) ? t(`app.${appType}`) : appType;
      return h('li', null,
        h('a', { href: viewerUrl(id), target: '_blank', rel: 'noopener' }, icon(APPS.find((app) => app.id === appType)?.icon ?? 'wave'), h('span', { class: 'name' }, name ?? kind), h('span', { class: 'quiet small num' }, date(savedAt))),
        h('button', { class: 'round slim', type: 'button', icon: 'edit', label: ['action.rename', { name: name ?? kind }], 'data-id': id, onclick: () => void call(id, name ?? '') }));
    }),
  );
}

/** @param {string} id @param {string} before */
async function call(id, before) {
  const name = await askName(before);
  if (name === null) return;
  rename(id, name);
  drawRecents();
  // The button that had the focus went with its row.
  /** @type {HTMLElement | null} */ (list.querySelector(`[data-id="${CSS.escape(id)}"]`))?.focus();
}
drawRecents();
words.addEventListener('language', drawRecents);

/** @param {string} side @param {string[]} items */
const column = (side, items) => h('div', null, h('h3', { words: `home.${side}` }), h('ul', null, ...items.map((item) => h('li', { words: `home.${item}` }))));
/** How a conversation flows, drawn with boxes so that it can be read aloud. */
const figure = h('figure', null,
  h('ol', { class: 'flow' }, ...['you', 'gateway', 'worker', 'model'].map((name) => h('li', null, h('strong', { words: `home.flow_${name}` }), h('span', { class: 'small quiet', words: `home.flow_${name}_more` })))),
  h('figcaption', { class: 'small quiet', words: 'home.flow' }));
const rows = /** @type {[string, string, string, string][]} */ ([
  ['audio_duplex', 'sound', 'sound_text', 'any_time'],
  ['omni', 'sound_picture', 'sound_text', 'any_time'],
  ['half_duplex_audio', 'sound', 'sound_text', 'in_turns'],
  ['turnbased', 'all', 'sound_text', 'on_send'],
]);
const table = h('div', { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-labelledby': 'capabilities' },
  h('table', null,
    h('thead', null, h('tr', null, ...['way', 'in', 'out', 'when'].map((name) => h('th', { scope: 'col', words: `home.th_${name}` })))),
    h('tbody', null, ...rows.map(([way, ...cells]) => h('tr', null, h('th', { scope: 'row', words: `app.${way}` }), ...cells.map((cell) => h('td', { words: `home.td_${cell}` })))))));

const main = $('#main');
main.className = 'home';
main.append(
  h('section', { class: 'hero' }, orb, h('div', { class: 'words' }, h('h1', { words: 'home.title' }), h('p', { class: 'lead', words: 'home.lead' }), h('div', { class: 'row' }, talkNow, h('a', { class: 'button big', href: '/turnbased', icon: 'chat', words: 'home.write' })))),
  h('section', null, h('h2', { words: 'home.ways' }), cards),
  recent,
  h('section', { class: 'about' }, h('h2', { words: 'home.about' }), h('p', { class: 'quiet', words: 'home.about_text' }), figure, h('h2', { id: 'capabilities', words: 'home.capabilities' }), table,
    h('div', { class: 'columns' }, column('privacy', ['privacy_1', 'privacy_2', 'privacy_3']), column('tips', ['tips_1', 'tips_2', 'tips_3']))),
  h('footer', { class: 'small quiet row' }, h('span', null, 'parley'), h('a', { href: '/docs', words: 'home.api' }), h('a', { href: '/admin', words: 'admin.title' })),
);

void enabledApps().then((enabled) => {
  if (!enabled) return;
  for (const card of /** @type {NodeListOf<HTMLElement>} */ (cards.querySelectorAll('[data-app]'))) card.hidden = !enabled.includes(card.dataset.app ?? '');
  const first = APPS.find(({ id }) => enabled.includes(id) && id !== 'turnbased' && id !== 'realtime');
  talkNow.hidden = !first;
  if (first) talkNow.href = first.route;
  if (enabled.length === 0) say(/** @type {HTMLElement} */ (main.querySelector('.lead')), 'home.nothing_on');
});
