/** The page of turn-based chat: messages of any kind, answers as text and voice, stored in this browser. */

import { mayRecord, recordingChoice } from '../elements/consent.js';
import { $, h, iconButton, painted } from '../elements/dom.js';
import { factsOf } from '../elements/model.js';
import { remember } from '../elements/recents.js';
import { chatName } from '../talk/history.js';
import { mountShell } from '../elements/shell/shell.js';
import { about } from '../wire/about.js';
import { words } from '../words/words.js';
import { t } from '../words/words.js';
import { Chats } from './chat/chats.js';
import { Compose } from './chat/compose.js';
import { Messages } from './chat/messages.js';
import { openExport, optionsPanel } from './chat/options.js';
import { panelButton } from './chat/panels.js';
import { makeParts } from './chat/parts.js';

mountShell({ app: 'turnbased', statusEveryS: 3 });

const page = makeParts();
const { talk, queue, orb, rig } = page;
const notices = h('div', { class: 'notices' });
const starters = h('div', { class: 'row starters' });
const welcome = h(
  'div',
  { class: 'welcome' },
  orb,
  h('h1', { words: 'chat.welcome' }),
  h('p', { class: 'quiet', words: 'chat.welcome_more' }),
  starters,
);
/** Heading of the page while the greeting is hidden. */
const title = h('h1', { class: 'visually-hidden', words: 'app.turnbased', hidden: true });
const view = h('section', { class: 'view', label: 'chat.messages', tabindex: 0 }, welcome);
view.removeAttribute('title');
const messages = new Messages(page, view);
view.append(messages.list, messages.spoken, queue, notices);
const chats = new Chats(page, { shown: showChat });
const compose = new Compose(page, { notices, sent });
page.changed = () => compose.draw();
const options = optionsPanel(page);
const recorded = h('span', { class: 'chip rec', words: 'chat.recorded' });

const bar = h(
  'div',
  { class: 'bar row' },
  panelButton(chats.node, 'history', 'chat.history', 'narrow'),
  iconButton('plus', 'chat.new', () => void chats.fresh(), 'narrow'),
  h('span', { class: 'grow' }),
  recorded,
  iconButton('download', 'chat.export', async () => openExport(talk.messages, await chatName(chats.id))),
  panelButton(options, 'settings', 'call.settings'),
);
const main = $('#main');
main.className = 'chat';
main.append(chats.node, h('div', { class: 'centre' }, title, bar, view, compose.status, compose.node), options);

/** Stores the chat, so that a user who leaves before the answer finds the question again. */
function sent() {
  void chats.keep();
  chats.begun();
  messages.toEnd();
}

/** Shows another chat, or an empty one. */
function showChat() {
  messages.clear();
  draw();
  messages.toEnd();
  compose.focus();
}

function draw() {
  // During an answer, the status does not report the server as busy.
  main.dataset.calling = String(talk.isBusy);
  messages.draw();
  welcome.hidden = talk.messages.length > 0;
  title.hidden = !welcome.hidden;
  queue.update(talk.queue);
  compose.draw();
}

function finished() {
  const answer = talk.messages.at(-1);
  if (answer?.recordingId) remember(answer.recordingId, 'turnbased');
  // `idle` follows this event: draw the last answer as finished then.
  queueMicrotask(() => {
    draw();
    if (answer) messages.announce(answer);
    void chats.keep();
  });
}

/** Shows questions that work with this model, for new users. */
async function showModel() {
  const { starters: questions } = factsOf((await about()).model);
  const ask = (/** @type {string} */ key) =>
    h('button', { class: 'button slim', type: 'button', words: key, onclick: () => void compose.ask(t(key)) });
  starters.replaceChildren(...questions.map(ask));
}

let due = 0;
talk.addEventListener('change', draw);
talk.addEventListener('delta', () => {
  cancelAnimationFrame(due);
  due = requestAnimationFrame(draw);
});
talk.addEventListener('finished', finished);
words.addEventListener('language', () => {
  messages.drawAll();
  void chats.draw();
});
rig.addEventListener('position', (event) => {
  orb.level = /** @type {CustomEvent} */ (event).detail.level * 3;
});
const showRecorded = () => {
  recorded.hidden = !mayRecord();
};
recordingChoice.addEventListener('change', showRecorded);
globalThis.addEventListener('pagehide', () => {
  talk.cancel();
  rig.releaseMicrophone();
});
// Earlier addresses contained the chat's id in the query.
const asked = new URLSearchParams(location.search).get('chat');
if (asked) history.replaceState(null, '', `${location.pathname}#${encodeURIComponent(asked)}`);
void chats.openAddress();
void painted().then(showModel);
void painted().then(() => chats.draw());
showRecorded();
draw();
