/** The page of the REST API, built from the server's own description: all operations, and a form to try each. */

import { $, h, say } from '../elements/dom.js';
import { icon } from '../elements/icons.js';
import { mountShell } from '../elements/shell/shell.js';
import { request } from '../wire/http.js';
import { loadExtraWords } from '../words/words.js';
import { operationNode } from './docs/operation.js';
import { operations } from './docs/openapi.js';

await loadExtraWords('console');
mountShell();

/** @typedef {import('./docs/openapi.js').Operation} Operation */

const list = h('div', { class: 'operations' });
const state = h('p', { class: 'quiet', role: 'status', words: 'rest.loading' });
const search = h('input', { type: 'search', hint: 'rest.search', label: 'rest.search', oninput: () => filter() });
const sections = h('nav', { class: 'sections', label: 'rest.sections' });
sections.removeAttribute('title');

/** @type {{operation: Operation, node: HTMLElement}[]} */
let shown = [];

function filter() {
  const wanted = search.value.trim().toLowerCase();
  for (const { operation, node } of shown) node.hidden = !operation.searched.includes(wanted);
  for (const section of list.children) {
    /** @type {HTMLElement} */ (section).hidden = !section.querySelector('.operation:not([hidden])');
  }
  state.hidden = shown.some(({ node }) => !node.hidden);
  if (!state.hidden) say(state, 'rest.none');
}

/** @param {string} tag as the server names a section */
const titleOf = (tag) => (tag === 'openai' ? 'OpenAI' : tag[0].toUpperCase() + tag.slice(1));

async function load() {
  try {
    const all = operations(await request('/openapi.json'));
    shown = all.map((operation) => ({ operation, node: operationNode(operation) }));
    const tags = [...new Set(all.map(({ tag }) => tag))];
    for (const tag of tags) {
      const nodes = shown.filter(({ operation }) => operation.tag === tag).map(({ node }) => node);
      list.append(
        h(
          'section',
          { id: tag, 'aria-labelledby': `${tag}-title` },
          h('h2', { id: `${tag}-title` }, titleOf(tag)),
          ...nodes,
        ),
      );
      sections.append(h('a', { href: `#${tag}` }, titleOf(tag)));
    }
    filter();
    openNamed();
  } catch (error) {
    say(state, 'rest.failed', { why: error instanceof Error ? error.message : '' });
  }
}

/** Opens the operation or the section in the address. */
function openNamed() {
  const named = location.hash ? document.getElementById(location.hash.slice(1)) : null;
  if (!named) return;
  search.value = '';
  filter();
  if (named instanceof HTMLDetailsElement) named.open = true;
  named.scrollIntoView();
}

const main = $('#main');
main.className = 'rest';
main.append(
  h(
    'header',
    { class: 'console-head' },
    h('h1', { words: 'rest.title' }),
    h('p', { class: 'lead', words: 'rest.lead' }),
    h(
      'div',
      { class: 'row' },
      h('a', { class: 'button', href: '/playground', icon: 'code', words: 'play.title' }),
      h('a', { class: 'button', href: '/openapi.json', icon: 'file', words: 'rest.file' }),
    ),
  ),
  h('aside', null, h('div', { class: 'search' }, icon('search'), search), sections),
  h('div', { class: 'stack' }, state, list),
);
addEventListener('hashchange', openNamed);
void load();
