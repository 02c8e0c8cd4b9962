/**
 * The playground: choose a protocol, send its messages or speak, see the messages on the wire, and copy a program that
 * does the same.
 */

import { toMediaError } from '../audio/devices.js';
import { theRig } from '../audio/rig.js';
import { $, element, h, say, textButton } from '../elements/dom.js';
import { mediaNotice } from '../elements/notice.js';
import { mountShell } from '../elements/shell/shell.js';
import { loadExtraWords, t } from '../words/words.js';
import { Answer } from './playground/answer.js';
import { makeChoices } from './playground/choices.js';
import { programs } from './playground/code.js';
import { DIALECTS } from './playground/dialects.js';
import { Line } from './playground/line.js';
import { filled } from './playground/placeholders.js';
import '../elements/code/code.js';
import '../elements/events/events.js';

await loadExtraWords('console');
mountShell();

/** @typedef {import('./playground/dialects.js').Dialect} Dialect */

const rig = theRig();
const line = new Line();
const events = /** @type {import('../elements/events/events.js').Events} */ (element('p-events'));
const code = /** @type {import('../elements/code/code.js').Code} */ (element('p-code'));

/** @type {Dialect} */
let dialect = DIALECTS.find(({ id }) => `#${id}` === location.hash) ?? DIALECTS[0];
let path = dialect.path();
let isSpeaking = false;
/** True if the session accepts audio. */
let isReady = false;

const choices = makeChoices(choose);
const answer = new Answer(rig);
const method = h('b', { class: 'method' });
const address = h('code', null);
const dot = h('span', { class: 'dot' });
const connect = h('button', { class: 'button primary', type: 'button', onclick: () => press() });
const speak = h('button', {
  class: 'button',
  type: 'button',
  icon: 'mic',
  words: 'play.speak',
  'aria-pressed': 'false',
  onclick: () => void (isSpeaking ? hush() : listen()),
});
const instructions = h('textarea', { rows: 2, oninput: () => drawTexts() });
instructions.value = t('play.instructions_text');
const templates = h('div', { class: 'row templates', role: 'group', label: 'play.templates' });
templates.removeAttribute('title');
const editor = h('textarea', {
  class: 'mono editor',
  spellcheck: 'false',
  rows: 8,
  oninput: () => drawCode(),
  onkeydown: (/** @type {KeyboardEvent} */ event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void send();
  },
});
const obstacle = h('div', null);
const wrong = h('p', { class: 'error small', role: 'alert', hidden: true });
const sendButton = textButton('send', 'action.send', () => void send(), '');

/** @param {Dialect} next */
function choose(next) {
  line.close();
  dialect = next;
  history.replaceState(null, '', `#${dialect.id}`);
  path = dialect.path();
  answer.clear();
  begin();
}

/** Starts with the first message of the chosen protocol. */
function begin() {
  choices.show(dialect);
  method.textContent = dialect.isHttp ? 'POST' : 'WebSocket';
  speak.hidden = dialect.unitSamples === 0;
  connect.hidden = dialect.isHttp;
  drawTemplates();
  fill(0);
  drawState();
}

function drawTemplates() {
  templates.replaceChildren(
    ...dialect
      .messages(instructions.value)
      .map(({ name }, i) =>
        h('button', { class: 'button slim', type: 'button', words: `template.${name}`, onclick: () => fill(i) }),
      ),
  );
}

let shownTemplate = 0;

/** @param {number} i template */
function fill(i) {
  shownTemplate = i;
  editor.value = JSON.stringify(dialect.messages(instructions.value)[i].message, null, 2);
  for (const [at, button] of [...templates.children].entries()) button.setAttribute('aria-pressed', String(at === i));
  drawCode();
}

/** Updates the first message, which contains the instructions. */
function drawTexts() {
  if (shownTemplate === 0 || dialect.kind === 'chat') fill(shownTemplate);
  else drawCode();
}

/** Returns the message in the editor; null if it is not valid JSON. */
function message() {
  try {
    const value = filled(editor.value, dialect);
    wrong.hidden = true;
    return value;
  } catch (error) {
    wrong.hidden = false;
    say(wrong, 'play.not_json', { why: error instanceof Error ? error.message : '' });
    return null;
  }
}

function drawCode() {
  // A certificate that a server has created itself contains no domain.
  const hasOwnCertificate = location.protocol === 'https:' && !/\.[a-z]+$/i.test(location.hostname);
  const origin = location.origin;
  address.textContent = path;
  code.show(programs(dialect, { origin, instructions: instructions.value, message: editor.value, hasOwnCertificate }));
}

function drawState() {
  const { state } = line;
  dot.dataset.is = { off: '', opening: 'fair', on: 'good' }[state];
  say(connect, state === 'off' ? 'play.connect' : 'play.disconnect');
  connect.classList.toggle('primary', state === 'off');
  sendButton.classList.toggle('primary', state === 'on' || dialect.isHttp);
  sendButton.disabled = !dialect.isHttp && state !== 'on';
  speak.disabled = state !== 'on';
  speak.setAttribute('aria-pressed', String(isSpeaking));
}

function press() {
  if (line.state !== 'off') {
    line.close(isReady ? dialect.goodbye : null);
    return;
  }
  path = dialect.path();
  isReady = false;
  answer.clear();
  drawCode();
  line.open(path);
}

/** Starts the session if it has not started. */
const start = () => isReady || line.send(dialect.messages(instructions.value)[0].message);

async function send() {
  const value = message();
  if (!value) return;
  // Browsers play audio only after a user's gesture.
  await rig.open();
  if (!dialect.isHttp) {
    // A session of OpenAI Realtime starts with any message; the first one declines recording.
    if (dialect.id === 'openai_realtime' && value.type !== 'session.update') start();
    line.send(value);
    return;
  }
  answer.clear();
  await line.post(path, value);
}

/** Sends the microphone's audio; starts the session first if it has not started. */
async function listen() {
  const why = await rig.connectMicrophone({}).then(
    () => null,
    (error) => toMediaError(error, 'microphone'),
  );
  obstacle.replaceChildren(...(why ? [mediaNotice(why, [])] : []));
  if (why) return;
  isSpeaking = true;
  drawState();
  start();
  const pack = dialect.sound();
  rig.capture(dialect.unitSamples, (audio) => {
    if (isReady && line.state === 'on') line.send(pack(audio));
    rig.recycle(audio);
  });
}

async function hush() {
  if (!isSpeaking) return;
  isSpeaking = false;
  rig.releaseMicrophone();
  rig.flush();
  drawState();
}

line.addEventListener('state', () => {
  if (line.state === 'off') void hush();
  drawState();
});
line.addEventListener('wire', (event) => {
  const { out, message: said } = /** @type {CustomEvent} */ (event).detail;
  events.note({ out, message: said });
  if (out) return;
  if (said.type === dialect.ready) isReady = true;
  answer.receive(said, dialect);
});
line.addEventListener('closed', (event) => {
  isReady = false;
  const { detail } = /** @type {CustomEvent} */ (event);
  events.note({ out: false, message: { type: dialect.isHttp ? 'status' : 'close', ...detail } });
});
line.addEventListener('trouble', (event) => {
  events.note({ out: false, message: { type: 'error', message: /** @type {CustomEvent} */ (event).detail } });
});

const lead = h('p', { class: 'lead', words: 'play.lead' });
const links = [h('a', { href: '/realtime', words: 'play.call' }), h('a', { href: '/docs', words: 'home.api' })];
const main = $('#main');
main.className = 'console';
main.append(
  h('header', { class: 'console-head' }, h('h1', { words: 'play.title' }), lead),
  choices.node,
  h(
    'section',
    { class: 'card try', label: 'play.try' },
    h('p', { class: 'address' }, dot, method, ' ', address),
    h('label', null, h('span', { words: 'prompt.text' }), instructions),
    h('div', { class: 'field' }, h('span', { id: 'message', words: 'play.message' }), templates, editor, wrong),
    h('div', { class: 'row' }, connect, sendButton, speak),
    obstacle,
    answer.node,
  ),
  h('section', { class: 'card wire', label: 'events.title' }, h('h2', { words: 'play.wire' }), events),
  h('section', { class: 'program', label: 'play.code' }, h('h2', { words: 'play.code' }), code),
  h('footer', { class: 'row small' }, ...links),
);
for (const section of main.querySelectorAll('section')) section.removeAttribute('title');
editor.setAttribute('aria-labelledby', 'message');
addEventListener('pagehide', () => line.close(isReady ? dialect.goodbye : null));
begin();
