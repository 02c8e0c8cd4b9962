/** The privacy page: what happens to what users say, show and write, as this server is configured. */

import { recordingSwitch } from '../elements/consent.js';
import { $, h } from '../elements/dom.js';
import { factsOf } from '../elements/model.js';
import { mountShell } from '../elements/shell/shell.js';
import { about } from '../wire/about.js';

mountShell();

/** @param {string} topic @param {...(string | [string, Record<string, unknown>])} points keys */
const part = (topic, ...points) =>
  h('section', { class: 'stack' }, h('h2', { words: `privacy.${topic}` }), ...points.map((words) => h('p', { words })));

async function draw() {
  const { model, records, keptDays } = await about();
  // A model that is not known here may be an address.
  const live = factsOf(model).about === null ? 'privacy.live_1_other' : 'privacy.live_1';
  /** @type {string | [string, Record<string, unknown>]} */
  const kept = !records
    ? 'privacy.kept_never'
    : keptDays === null
      ? 'privacy.kept_forever'
      : ['privacy.kept_days', { days: keptDays }];
  const main = $('#main');
  main.className = 'home privacy';
  main.append(
    h('h1', { words: 'privacy.title' }),
    part('live', live, 'privacy.live_2'),
    part('kept', 'privacy.kept_1', kept),
    h('div', { class: 'card' }, recordingSwitch()),
    part('browser', 'privacy.browser_1', 'privacy.browser_2'),
    part('shared', 'privacy.shared_1'),
    part('delete', 'privacy.delete_1'),
    h('p', null, h('a', { class: 'button', href: '/recordings', words: 'mine.title' })),
    part('others', 'privacy.others_1'),
    h('p', null, h('a', { class: 'small', href: '/about', words: 'about.title' })),
  );
}

void draw();
