/** The overview page: every way to talk, recent conversations, and how it works. */

import { $, copy, h, painted, say, sheet } from '../elements/dom.js';
import { icon } from '../elements/icons.js';
import { factsOf } from '../elements/model.js';
import { recents, viewerUrl } from '../elements/recents.js';
import { APPS, SHOWN, enabledApps, mountShell } from '../elements/shell/shell.js';
import { about } from '../wire/about.js';
import { at } from '../wire/root.js';
import { date, has, t, words } from '../words/words.js';
import '../elements/orb/orb.js';

/** Number of recent conversations shown; the rest are on a separate page. */
const RECENT = 6;

mountShell();

/** @param {string} name @param {string} title @param {string} more */
const cardBody = (name, title, more) => [
  h('span', { class: 'badge' }, icon(name)),
  h('span', { class: 'text' }, h('strong', { words: title }), h('span', { class: 'quiet', words: more })),
  icon('arrow'),
];

const talkNow = h('a', { class: 'button primary big', href: '/', icon: 'mic', words: 'home.talk' });
const cards = h(
  'ul',
  { class: 'cards' },
  ...SHOWN.map(({ id, route, icon: name }) =>
    h(
      'li',
      { 'data-app': id },
      h('a', { class: 'card', href: route }, ...cardBody(name, `app.${id}`, `home.about_${id}`)),
    ),
  ),
);
cards.append(
  h(
    'li',
    null,
    h('a', { class: 'card', href: '/playground' }, ...cardBody('code', 'nav.playground', 'home.about_playground')),
  ),
);
// On a phone the card would link to the page it is on.
if (!matchMedia('(pointer: coarse)').matches) {
  const body = cardBody('phone', 'home.phone', 'home.about_phone');
  cards.append(
    h('li', null, h('button', { class: 'card', type: 'button', onclick: () => void showAddress() }, ...body)),
  );
}

async function showAddress() {
  const url = new URL(at('/mobile/'), location.href).href;
  const isOnlyHere = ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);
  if (isOnlyHere) {
    sheet('home.phone', h('p', { words: 'home.phone_local' }), h('p', { class: 'mono address' }, url));
    return;
  }
  const { qrNode } = await import('../elements/qr.js');
  const button = {
    class: 'button primary',
    type: 'button',
    icon: 'copy',
    words: 'action.copy',
    onclick: () => void copy(url),
  };
  sheet(
    'home.phone',
    h('p', { words: 'home.phone_how' }),
    qrNode(url, t('home.phone_code')),
    h('p', { class: 'mono address' }, url),
    h('div', { class: 'row' }, h('button', button)),
  );
}

const list = h('ul', { class: 'recent' });
const all = h('a', { class: 'button plain slim', href: '/recordings', words: 'home.all' });
const recent = h(
  'section',
  { class: 'recents', hidden: true },
  h('div', { class: 'row spread' }, h('h2', { words: 'home.recent' }), all),
  list,
);

function drawRecents() {
  const entries = recents().slice(0, RECENT);
  recent.hidden = entries.length === 0;
  list.replaceChildren(
    ...entries.map(({ id, appType, savedAt, name, words: said }) => {
      const kind = has(`app.${appType}`) ? t(`app.${appType}`) : appType;
      const sign = icon(APPS.find((app) => app.id === appType)?.icon ?? 'wave');
      const when = h('span', { class: 'quiet small num' }, date(savedAt));
      return h(
        'li',
        null,
        h('a', { href: viewerUrl(id) }, sign, h('span', { class: 'name', dir: 'auto' }, name ?? (said || kind)), when),
      );
    }),
  );
}

/** @param {string} side @param {string[]} items */
const column = (side, items) =>
  h(
    'div',
    null,
    h('h3', { words: `home.${side}` }),
    h('ul', null, ...items.map((item) => h('li', { words: `home.${item}` }))),
  );

/** Diagram of a conversation, built from boxes so that screen readers can read it. */
function figure() {
  const box = (/** @type {string} */ name) =>
    h(
      'li',
      null,
      h('strong', { words: `home.flow_${name}` }),
      h('span', { class: 'small quiet', words: `home.flow_${name}_more` }),
    );
  return h(
    'figure',
    null,
    h('ol', { class: 'flow' }, ...['you', 'gateway', 'worker', 'model'].map(box)),
    h('figcaption', { class: 'small quiet', words: 'home.flow' }),
  );
}

const ABILITIES = /** @type {[string, string, string, string][]} */ ([
  ['audio_duplex', 'sound', 'sound_text', 'any_time'],
  ['omni', 'sound_picture', 'sound_text', 'any_time'],
  ['half_duplex_audio', 'sound', 'sound_text', 'in_turns'],
  ['turnbased', 'all', 'sound_text', 'on_send'],
]);

function table() {
  const heads = ['way', 'in', 'out', 'when'].map((name) => h('th', { scope: 'col', words: `home.th_${name}` }));
  const rows = ABILITIES.map(([way, ...cells]) =>
    h(
      'tr',
      null,
      h('th', { scope: 'row', words: `app.${way}` }),
      ...cells.map((cell) => h('td', { words: `home.td_${cell}` })),
    ),
  );
  return h(
    'div',
    { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-labelledby': 'capabilities' },
    h('table', null, h('thead', null, h('tr', null, ...heads)), h('tbody', null, ...rows)),
  );
}

const aboutText = h('p', { class: 'quiet' });
const lead = h('p', { class: 'lead', words: 'home.lead' });
const modelNote = h('p', { class: 'note', hidden: true });
const privacy = column('privacy', ['privacy_1', 'privacy_2', 'privacy_3']);
privacy.append(h('a', { class: 'small', href: '/privacy', words: 'consent.more' }));
const write = h('a', { class: 'button big', href: '/turnbased', icon: 'chat', words: 'home.write' });
const main = $('#main');
main.className = 'home';
main.append(
  h(
    'section',
    { class: 'hero' },
    document.createElement('p-orb'),
    h(
      'div',
      { class: 'words' },
      h('h1', { words: 'home.title' }),
      lead,
      h('div', { class: 'row' }, talkNow, write),
      modelNote,
    ),
  ),
  h('section', null, h('h2', { words: 'home.ways' }), cards),
  recent,
  h(
    'section',
    { class: 'about' },
    h('h2', { words: 'home.about' }),
    aboutText,
    figure(),
    h('h2', { id: 'capabilities', words: 'home.capabilities' }),
    table(),
    h('div', { class: 'columns' }, privacy, column('tips', ['tips_1', 'tips_2', 'tips_3'])),
  ),
  h(
    'footer',
    { class: 'small quiet row' },
    h('span', null, 'parley'),
    h('a', { href: '/recordings', words: 'mine.title' }),
    h('a', { href: '/privacy', words: 'consent.more' }),
    h('a', { href: '/docs', words: 'home.api' }),
    h('a', { href: '/admin', words: 'admin.title' }),
  ),
);

let isAllOff = false;

/** Shows which model answers here, and what it can do. */
async function showModel() {
  const { about: what, name, seen } = factsOf((await about()).model);
  modelNote.hidden = !what;
  if (what) say(modelNote, what, { model: name });
  if (what && seen.length === 0) {
    if (!isAllOff) say(lead, 'home.lead_voice');
    const more = cards.querySelector('[data-app="omni"] .quiet');
    if (more) say(more, 'home.about_omni_blind');
  }
  say(aboutText, 'home.about_text', { model: name || t('home.the_model') });
}

async function showEnabled() {
  const enabled = await enabledApps();
  if (!enabled) return;
  for (const card of /** @type {NodeListOf<HTMLElement>} */ (cards.querySelectorAll('[data-app]'))) {
    card.hidden = !enabled.includes(card.dataset.app ?? '');
  }
  const first = SHOWN.find(({ id }) => enabled.includes(id) && id !== 'turnbased');
  talkNow.hidden = !first;
  // The start page is a voice call, if voice calls are switched on.
  if (first) talkNow.href = at(first.id === 'audio_duplex' ? '/' : first.route);
  isAllOff = enabled.length === 0;
  if (isAllOff) say(lead, 'home.nothing_on');
}

drawRecents();
words.addEventListener('language', drawRecents);
void painted().then(showModel);
void painted().then(showEnabled);
