/** The page about the server: which model answers, and the licences and notices of its parts. */

import { $, h } from '../elements/dom.js';
import { factsOf } from '../elements/model.js';
import { mountShell } from '../elements/shell/shell.js';
import { about } from '../wire/about.js';
import { at } from '../wire/root.js';

mountShell();

async function draw() {
  const [{ model }, notices] = await Promise.all([
    about(),
    fetch(at('/static/notices.txt')).then((reply) => reply.text()),
  ]);
  const main = $('#main');
  main.className = 'home privacy';
  const { name } = factsOf(model);
  main.append(
    h('h1', { words: 'about.title' }),
    h('p', { words: 'about.what' }),
    // Without its key a server does not report its model.
    ...(name ? [h('p', { words: ['about.model', { model: name }] })] : []),
    h(
      'section',
      { class: 'stack' },
      h('h2', { words: 'about.parts' }),
      ...notices
        .trim()
        .split(/\n\s*\n/)
        .map((paragraph) => h('p', { class: 'small', lang: 'en' }, paragraph)),
    ),
  );
}

void draw();
