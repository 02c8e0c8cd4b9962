/**
 * All tokens and components of the pages, in every state, on one page: for development, and for the tests of contrast,
 * names and keys.
 */

import { $, element, h } from '../elements/dom.js';
import { icon } from '../elements/icons.js';
import { notice } from '../elements/notice.js';
import { mountShell } from '../elements/shell/shell.js';
import { Captions } from '../talk/captions.js';
import '../elements/orb/orb.js';
import '../elements/player/player.js';
import '../elements/transcript/transcript.js';

const COLOURS =
  'paper surface surface-2 ink ink-2 line line-strong accent accent-soft listen speak speak-soft think rest danger ' +
  'danger-soft end warn-soft good focus';
const MOODS = ['idle', 'waiting', 'listening', 'hearing', 'thinking', 'speaking', 'paused', 'muted'];
const ICONS =
  'mic mic-off phone end pause play stop text settings camera video flip screen captions send plus globe spark';

mountShell();

/** @param {string} title @param {...(Node | null)} nodes */
const part = (title, ...nodes) => h('section', { 'aria-label': title }, h('h2', null, title), ...nodes);
/** @param {...Node} nodes */
const row = (...nodes) => h('div', { class: 'row' }, ...nodes);

function colours() {
  const one = (/** @type {string} */ name) => {
    const patch = h('i', { 'aria-hidden': 'true' });
    patch.style.background = `var(--${name})`;
    return h('li', null, patch, h('span', { class: 'mono' }, name));
  };
  return part('Colours', h('ul', { class: 'swatches' }, ...COLOURS.split(' ').map(one)));
}

function type() {
  const lines = /** @type {[keyof HTMLElementTagNameMap, string, string][]} */ ([
    ['p', 'state', 'Listening, in the size of a state'],
    ['p', 'lead', 'A lead says in one sentence what a page is for.'],
    ['p', '', 'Text for reading: the quick brown fox jumps over the lazy dog, 0123456789.'],
    ['p', 'quiet', 'Quiet text stands back and stays readable.'],
    ['p', 'small', 'Small text for what few will need.'],
    ['p', 'mono', 'const words = 42;'],
  ]);
  const heads = [h('p', null, h('strong', null, 'Strong')), h('h3', null, 'A third heading')];
  return part(
    'Type',
    h('div', { class: 'stack types' }, ...lines.map(([tag, name, text]) => h(tag, { class: name }, text)), ...heads),
  );
}

function buttons() {
  const kinds = ['', 'primary', 'danger', 'plain', 'slim', 'end-button'];
  const button = (/** @type {string} */ kind, /** @type {object} */ more = {}) =>
    h('button', { class: `button ${kind}`, type: 'button', ...more }, kind || 'button');
  const round = (/** @type {string} */ name, /** @type {object} */ more = {}) =>
    h('button', { class: 'round', type: 'button', icon: name, 'aria-label': name, ...more });
  return part(
    'Buttons',
    row(...kinds.map((kind) => button(kind))),
    row(...kinds.map((kind) => button(kind, { disabled: true }))),
    row(button('', { 'aria-pressed': 'true' }), button('slim', { 'aria-pressed': 'true', icon: 'check' })),
    row(round('mic'), round('mic-off', { 'aria-pressed': 'true' }), round('pause', { disabled: true })),
  );
}

function fields() {
  const option = (/** @type {string} */ text) => h('option', null, text);
  const box = (/** @type {boolean} */ checked) => h('input', { type: 'checkbox', role: 'switch', checked });
  const field = (/** @type {string} */ name, /** @type {Node} */ node) => h('label', null, h('span', null, name), node);
  return part(
    'Fields',
    h(
      'div',
      { class: 'fields' },
      field('Text', h('input', { value: 'Anna' })),
      field('Choice', h('select', null, option('One'), option('Two'))),
      field('Range', h('input', { type: 'range' })),
      field('Disabled', h('input', { value: 'Not now', disabled: true })),
      field('Long text', h('textarea', { rows: 2 })),
      h('label', { class: 'switch' }, h('span', null, 'Switch, on'), box(true)),
      h('label', { class: 'switch' }, h('span', null, 'Switch, off'), box(false)),
    ),
  );
}

function orbs() {
  const list = MOODS.map((mood) => {
    const orb = /** @type {import('../elements/orb/orb.js').Orb} */ (element('p-orb'));
    orb.state = mood;
    if (mood === 'speaking' || mood === 'hearing') orb.level = 0.5;
    return h('li', null, orb, h('span', { class: 'small' }, mood));
  });
  return part('The sphere', h('ul', { class: 'orbs' }, ...list));
}

function signs() {
  const dot = (/** @type {string} */ is) =>
    h('span', { class: 'chip' }, h('span', { class: 'dot', 'data-is': is }), is);
  const notices = ['info', 'warn', 'error'].map((kind) =>
    notice(/** @type {any} */ (kind), 'media.lost', 'media.lost_fix', {
      ways: [{ words: 'action.try_again', act: () => {}, isMain: true }],
    }),
  );
  return part('Signs', row(dot('good'), dot('fair'), dot('poor')), ...notices);
}

function words() {
  const transcript = /** @type {import('../elements/transcript/transcript.js').Transcript} */ (element('p-transcript'));
  const captions = new Captions();
  captions.note('note.reconnecting');
  captions.wrote('What is the capital of Japan?');
  captions.add(1, 'Tokyo is the capital of Japan.', 100);
  captions.hear(1, 60);
  captions.add(2, 'This one was cut off in the middle.', 100);
  captions.hear(2, 40);
  captions.interrupt(2);
  transcript.captions = captions;
  return part('Words', transcript);
}

const icons = () =>
  part('Icons', row(...ICONS.split(' ').map((name) => h('span', { class: 'chip' }, icon(name), name))));

const main = $('#main');
main.className = 'components';
main.append(h('h1', null, 'Components'), colours(), type(), buttons(), fields(), orbs(), signs(), words(), icons());
