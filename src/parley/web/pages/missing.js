/** The page for an address that does not exist. */

import { $, h } from '../elements/dom.js';
import { mountShell } from '../elements/shell/shell.js';

mountShell();

const main = $('#main');
main.className = 'home missing';
main.append(
  h('p', { class: 'num quiet', 'aria-hidden': 'true' }, '404'),
  h('h1', { words: 'missing.title' }),
  h('p', { class: 'lead', words: 'missing.more' }),
  h(
    'div',
    { class: 'row' },
    h('a', { class: 'button primary', href: '/', words: 'missing.home' }),
    h('a', { class: 'button', href: '/recordings', words: 'mine.title' }),
  ),
);
