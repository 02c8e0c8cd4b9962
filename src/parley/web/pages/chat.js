/** The page of turn-based chat: messages of any kind, answers in words and voice, kept in this browser. */

import { theRig } from '../audio/rig.js';
import { encodeWav, join } from '../audio/wav.js';
import { $, askName, confirmed, copy, download, growing, h, pickFiles, reicon, relabel, say, sheet, toast } from '../elements/dom.js';
import { group, range, Settings, toggle } from '../elements/form.js';
import { partNode, partOf } from '../elements/media-parts.js';
import { barrierNotice, errorText, mediaNotice } from '../elements/notice.js';
import { proseNodes } from '../elements/prose.js';
import { remember, viewerUrl } from '../elements/recents.js';
import { mountShell } from '../elements/shell/shell.js';
import { ChatTalk } from '../talk/chat.js';
import { forgetChat, keepChat, listChats, nameChat, titleOf } from '../talk/history.js';
import { encodePcm } from '../wire/codec.js';
import { clock, date, locale, number, t, words } from '../words/words.js';
import '../elements/orb/orb.js';
import '../elements/parts/parts.js';
import '../elements/player/player.js';
import '../elements/prompt/prompt.js';
import '../elements/queue/queue.js';
import '../elements/voice/voice.js';

/** @typedef {import('../talk/chat.js').Part} Part */
/** @typedef {import('../talk/chat.js').ChatMessage} ChatMessage */

/** Holding longer than this is push-to-talk, shorter switches recording on and off. */
const HOLD_MS = 300;
/** Dragging this far up while holding takes the recording back. */
const CANCEL_PX = 80;
const NOTE_LIMIT_S = 120;
/** A sound of the instructions longer than this is no voice to imitate. */
const VOICE_LIMIT_S = 20;
/** What was being written, for this tab. */
const DRAFT = 'parley.draft';

mountShell({ app: 'turnbased', statusEveryS: 3 });

const settings = new Settings('chat', { streaming: true, voice: false, maxTokens: 512, lengthPenalty: 1.1, temperature: 0.7, detailed: false, thinking: false, advanced: false, independent: false });
const rig = theRig();
let turn = 0;
let playing = '';
let chatId = newId();
/** What the person calls this chat; empty: its first words do. */
let chatName = '';
/** Which message of the list belongs to which node. @type {Map<string, HTMLElement>} */
const rows = new Map();
/** What a node shows. @type {WeakMap<HTMLElement, string>} */
const drawn = new WeakMap();

function newId() {
  return Math.random().toString(36).slice(2, 10);
}

const talk = new ChatTalk({
  onSound: (audio, id) => {
    if (playing !== id) {
      playing = id;
      turn++;
    }
    rig.play(turn, audio);
    drawCompose();
  },
  onSoundEnd: () => rig.endTurn(turn),
});
rig.addEventListener('drained', () => quiet());
rig.addEventListener('flushed', () => quiet());

function quiet() {
  playing = '';
  drawCompose();
}

/** @template {HTMLElement} T @param {string} tag @param {Record<string, string>} [attributes] @returns {T} */
function make(tag, attributes = {}) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return /** @type {T} */ (node);
}

const prompt = /** @type {import('../elements/prompt/prompt.js').Prompt} */ (make('p-prompt'));
const voice = /** @type {import('../elements/voice/voice.js').Voice} */ (make('p-voice', { words: 'voice.label' }));
const ttsVoice = /** @type {import('../elements/voice/voice.js').Voice} */ (make('p-voice', { words: 'voice.tts', same: '' }));
const systemParts = /** @type {import('../elements/parts/parts.js').Parts} */ (make('p-parts'));
const queue = /** @type {import('../elements/queue/queue.js').Queue} */ (make('p-queue'));
const orb = /** @type {import('../elements/orb/orb.js').Orb} */ (make('p-orb'));
prompt.mode = 'turnbased';

// What goes out

/** @returns {import('../talk/chat.js').ChatSettings} */
function chatSettings() {
  const voiceData = voice.data;
  /** @type {Part[]} */
  const plain = voiceData
    ? [{ type: 'text', text: t('prompt.imitate') }, { type: 'audio', data: voiceData }, { type: 'text', text: prompt.text }]
    : [{ type: 'text', text: prompt.text }];
  const system = settings.get('advanced') && systemParts.parts.length > 0 ? systemParts.parts : plain;
  const fromSystem = system.filter((part) => part.type === 'audio');
  const own = ttsVoice.isSame ? null : ttsVoice.data;
  const [only] = fromSystem;
  const extracted = fromSystem.length === 1 && only.type === 'audio' && (only.seconds ?? 0) < VOICE_LIMIT_S ? only.data : null;
  return {
    system,
    streaming: settings.get('streaming'),
    voice: settings.get('voice'),
    ttsVoice: own ?? extracted,
    maxNewTokens: settings.get('maxTokens'),
    lengthPenalty: settings.get('lengthPenalty'),
    temperature: settings.get('temperature'),
    detailed: settings.get('detailed'),
    thinking: settings.get('thinking'),
  };
}

// The compose bar

/** @type {Part[]} */
let attached = [];
const field = growing(h('textarea', { rows: 1, maxlength: 60000, hint: 'chat.hint' }));
const attachments = h('ul', { class: 'attached' });
const send = h('button', { class: 'round send', type: 'submit', icon: 'send', label: 'action.send' });
const mic = h('button', { class: 'round slim', type: 'button', icon: 'mic', label: 'chat.record' });
const plus = h('button', { class: 'round slim', type: 'button', icon: 'plus', label: 'chat.attach', onclick: () => attachMenu() });
const voiceButton = h('button', { class: 'round slim', type: 'button', icon: 'sound', label: 'chat.voice', onclick: () => settings.set('voice', !settings.get('voice')) });
const recording = h('span', { class: 'recording small', role: 'status', hidden: true });
const form = h('form', { class: 'compose' }, attachments, h('div', { class: 'line' }, plus, h('label', { class: 'grow' }, h('span', { class: 'visually-hidden', words: 'chat.hint' }), field), recording, voiceButton, mic, send));
const status = h('p', { class: 'small quiet status-line', role: 'status' });

form.onsubmit = (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  if (talk.isBusy || playing) {
    talk.cancel();
    rig.flush();
  } else void submit();
};

async function submit() {
  const text = field.value.trim();
  /** @type {Part[]} */
  const parts = [...attached, ...(text ? [{ type: /** @type {const} */ ('text'), text }] : [])];
  if (parts.length === 0 || talk.isBusy) return;
  if (settings.get('voice')) await rig.open().catch(() => {});
  rig.flush();
  field.value = '';
  attached = [];
  drawAttached();
  talk.send(parts, chatSettings());
  sessionStorage.removeItem(DRAFT);
  // Whoever leaves before the answer is there finds the question again.
  void keep();
  view.scrollTop = view.scrollHeight;
}

field.onkeydown = (/** @type {KeyboardEvent} */ event) => {
  // While a word is being composed Enter chooses it.
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
    event.preventDefault();
    if (!talk.isBusy) void submit();
  }
  if (event.key === ' ' && field.value === '' && !event.repeat && !event.isComposing) {
    event.preventDefault();
    holdFrom();
  }
  if (event.key === 'Escape') void stopNote('cancel');
};
field.onkeyup = (/** @type {KeyboardEvent} */ event) => {
  if (event.key === ' ') holdUntil();
};
document.addEventListener('keydown', (event) => {
  const at = /** @type {HTMLElement} */ (event.target);
  if (at.closest('input, textarea, select, button, a, dialog, summary')) return;
  if (event.key === ' ' && !event.repeat) {
    event.preventDefault();
    holdFrom();
  }
  if (event.key === 'Escape') void stopNote('cancel');
});
document.addEventListener('keyup', (event) => {
  const at = /** @type {HTMLElement} */ (event.target);
  if (event.key === ' ' && !at.closest('input, textarea, select, button, a, dialog, summary')) holdUntil();
});

function attachMenu() {
  const add = (/** @type {string} */ name, /** @type {string} */ key, /** @type {string} */ accept, /** @type {string | undefined} */ capture = undefined) =>
    h('button', { class: 'button', type: 'button', icon: name, words: key, onclick: async () => {
      const files = await pickFiles(accept, { capture, multiple: !capture });
      node.close();
      await take(files);
    } });
  const node = sheet('chat.attach', h('div', { class: 'stack' }, add('image', 'part.image', 'image/*'), add('camera', 'chat.photo', 'image/*', 'environment'), add('sound', 'part.audio', 'audio/*'), add('video', 'part.video', 'video/*')));
}

/** @param {Iterable<File>} files */
async function take(files) {
  for (const file of files) {
    const part = await partOf(file);
    if (part) attached.push(part);
  }
  drawAttached();
  field.focus();
}

field.onpaste = (/** @type {ClipboardEvent} */ event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length === 0) return;
  event.preventDefault();
  void take(files);
};
document.addEventListener('dragover', (event) => event.preventDefault());
document.addEventListener('drop', (event) => {
  event.preventDefault();
  if (event.dataTransfer?.files.length) void take(event.dataTransfer.files);
});

function drawAttached() {
  attachments.replaceChildren(
    ...attached.map((part, i) =>
      h('li', null, partNode(part), h('button', { class: 'round slim', type: 'button', icon: 'close', label: 'part.remove', onclick: () => {
        attached.splice(i, 1);
        drawAttached();
      } })),
    ),
  );
  drawCompose();
}

// Voice notes

/** @type {{parts: Float32Array[], since: number, heldSince: number} | null} */
let note = null;
let isStarting = false;

async function startNote() {
  if (note || isStarting || talk.isBusy) return;
  isStarting = true;
  rig.flush();
  try {
    await rig.connectMicrophone();
  } catch (error) {
    const { trouble = 'failed' } = /** @type {any} */ (error);
    trouble === 'insecure' ? notices.replaceChildren(/** @type {Node} */ (barrierNotice())) : notices.replaceChildren(/** @type {Node} */ (mediaNotice({ trouble, device: 'microphone' }, [{ words: 'action.dismiss', act: () => notices.replaceChildren() }])));
    isStarting = false;
    return;
  }
  isStarting = false;
  navigator.vibrate?.(15);
  const mine = { parts: /** @type {Float32Array[]} */ ([]), since: performance.now(), heldSince: 0 };
  note = mine;
  rig.capture(1600, (audio) => {
    mine.parts.push(audio.slice());
    if (audio.length === 1600) rig.recycle(audio);
    say(recording, 'chat.recording', { time: clock(mine.parts.length / 10) });
    if (mine.parts.length > NOTE_LIMIT_S * 10) void stopNote('attach');
  });
  drawCompose();
}

/** @param {'attach' | 'send' | 'cancel'} then */
async function stopNote(then) {
  const mine = note;
  if (!mine) return;
  note = null;
  await rig.stopCapture();
  rig.releaseMicrophone();
  const samples = join(mine.parts);
  if (then !== 'cancel' && samples.length >= 0.28 * 16000) {
    attached.push({ type: 'audio', data: encodePcm(samples), seconds: samples.length / 16000 });
    drawAttached();
    if (then === 'send') await submit();
  }
  drawCompose();
}

let heldSince = 0;
let wasRunning = false;

function holdFrom() {
  heldSince = performance.now();
  wasRunning = note !== null;
  if (!wasRunning) void startNote();
}

function holdUntil() {
  if (heldSince === 0) return;
  const heldMs = performance.now() - heldSince;
  heldSince = 0;
  if (wasRunning) void stopNote('attach');
  else if (heldMs >= HOLD_MS) void stopNote('send');
}

let pressedAt = 0;
mic.onpointerdown = (/** @type {PointerEvent} */ event) => {
  if (event.button !== 0) return;
  mic.setPointerCapture(event.pointerId);
  pressedAt = event.clientY;
  holdFrom();
};
mic.onpointermove = (/** @type {PointerEvent} */ event) => {
  form.toggleAttribute('data-cancel', note !== null && heldSince > 0 && pressedAt - event.clientY > CANCEL_PX);
};
mic.onpointerup = () => {
  if (form.hasAttribute('data-cancel')) {
    form.removeAttribute('data-cancel');
    heldSince = 0;
    void stopNote('cancel');
  } else holdUntil();
};
mic.onkeydown = (/** @type {KeyboardEvent} */ event) => {
  if ((event.key === 'Enter' || event.key === ' ') && !event.repeat) {
    event.preventDefault();
    holdFrom();
  }
};
mic.onkeyup = (/** @type {KeyboardEvent} */ event) => {
  if (event.key === 'Enter' || event.key === ' ') holdUntil();
};

function drawCompose() {
  const isStop = talk.isBusy || playing !== '';
  reicon(send, isStop ? 'stop' : 'send');
  relabel(send, isStop ? 'chat.stop' : 'action.send');
  send.disabled = !isStop && !field.value.trim() && attached.length === 0;
  mic.disabled = talk.isBusy;
  mic.setAttribute('aria-pressed', String(note !== null));
  recording.hidden = note === null;
  const on = settings.get('voice');
  voiceButton.setAttribute('aria-pressed', String(on));
  reicon(voiceButton, on ? 'sound' : 'sound-off');
  status.hidden = !talk.isBusy;
  if (talk.isBusy) say(status, `chat.${talk.phase}`);
}
field.addEventListener('input', () => {
  sessionStorage.setItem(DRAFT, field.value);
  drawCompose();
});
settings.addEventListener('change', drawCompose);

// Messages

const list = h('ol', { class: 'messages' });
const notices = h('div', { class: 'notices' });
const welcome = h('div', { class: 'welcome' }, orb, h('h1', { words: 'chat.welcome' }), h('p', { class: 'quiet', words: 'chat.welcome_more' }), h('div', { class: 'row starters' }, ...['describe', 'story', 'translate'].map((name) => h('button', { class: 'button slim', type: 'button', words: `chat.starter_${name}`, onclick: () => {
  field.value = t(`chat.starter_${name}`);
  field.focus();
  drawCompose();
} }))));
const view = h('section', { class: 'view', label: 'chat.messages', tabindex: 0 }, welcome, list, queue, notices);
view.removeAttribute('title');

/** @param {ChatMessage} message */
function drawMessage(message) {
  let row = rows.get(message.id);
  if (!row) {
    row = h('li', { class: `message ${message.role}` }, h('div', { class: 'body' }), h('div', { class: 'tools row' }));
    rows.set(message.id, row);
  }
  const [body, tools] = /** @type {HTMLElement[]} */ ([...row.children]);
  const isLast = talk.messages.at(-1) === message;
  const isOpen = talk.isBusy && isLast && message.role === 'assistant';
  const text = message.parts.map((part) => (part.type === 'text' ? part.text : '')).join('');
  // Players and pictures are made once: only what has changed is drawn again.
  const shown = JSON.stringify([text, isOpen, message.isInterrupted, message.error, Boolean(message.sound), locale()]);
  if (drawn.get(row) !== shown) {
    drawn.set(row, shown);
    drawBody(body, message, text, isOpen);
  }
  if (isOpen) {
    tools.replaceChildren();
    return row;
  }
  const tool = (/** @type {string} */ name, /** @type {string} */ label, /** @type {() => void} */ act) => h('button', { class: 'round slim', type: 'button', icon: name, label, onclick: act });
  tools.replaceChildren(
    ...[
      text ? tool('copy', 'action.copy', () => void copy(text)) : null,
      message.role === 'user' ? tool('edit', 'chat.edit', () => edit(message)) : null,
      message.role === 'assistant' && isLast ? tool('retry', 'chat.regenerate', () => {
        rig.flush();
        talk.regenerate(chatSettings());
      }) : null,
      message.sound ? tool('download', 'chat.save_sound', () => download(new Blob([encodeWav([/** @type {Float32Array} */ (message.sound)], 24000)], { type: 'audio/wav' }), 'answer.wav')) : null,
      message.recordingId ? h('a', { class: 'round slim', href: viewerUrl(message.recordingId), target: '_blank', rel: 'noopener', icon: 'play', label: 'after.look' }) : null,
      message.recordingId ? tool('share', 'after.share', async () => (await import('../elements/share/share.js')).openShare({ recordingId: message.recordingId ?? '', app: 'turnbased', blob: null })) : null,
      message.timing ? h('span', { class: 'small quiet num' }, facts(message)) : null,
    ].filter((node) => node !== null),
  );
  return row;
}

/** @param {HTMLElement} body @param {ChatMessage} message @param {string} text @param {boolean} isOpen */
function drawBody(body, message, text, isOpen) {
  if (message.role === 'user') {
    body.replaceChildren(...message.parts.map(partNode));
    return;
  }
  body.replaceChildren(...proseNodes(text));
  if (isOpen && !text) body.append(h('span', { class: 'dots', 'aria-hidden': 'true' }, h('i', null), h('i', null), h('i', null)));
  if (message.isInterrupted) body.append(h('p', { class: 'small quiet', words: 'transcript.interrupted' }));
  if (message.error) body.append(h('p', { class: 'error small', role: 'alert' }, errorText(message.error)));
  if (message.sound && !isOpen) {
    const player = /** @type {import('../elements/player/player.js').Player} */ (make('p-player'));
    player.setPcm(message.sound, 24000);
    body.append(player);
  }
}

/** @param {ChatMessage} message */
function facts({ timing, tokens }) {
  const seconds = (/** @type {number} */ ms) => `${number(ms / 1000, { maximumFractionDigits: 2 })}\u202fs`;
  const found = [];
  if (timing?.firstMs != null) found.push(t('chat.first', { time: seconds(timing.firstMs) }));
  if (timing) found.push(t('chat.total', { time: seconds(timing.totalMs) }));
  if (tokens) found.push(t('chat.tokens', { input: tokens.input, output: tokens.output }));
  return found.join(' · ');
}

/** @param {ChatMessage} message */
function edit(message) {
  const parts = /** @type {import('../elements/parts/parts.js').Parts} */ (make('p-parts'));
  parts.parts = message.parts;
  const go = h('button', { class: 'button primary', type: 'button', words: 'chat.resend' });
  const node = sheet('chat.edit', parts, h('div', { class: 'row' }, go));
  go.onclick = () => {
    if (parts.parts.length === 0) return;
    rig.flush();
    talk.resend(message.id, parts.parts, chatSettings());
    node.close();
  };
}

function draw() {
  const isAtEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 120;
  const kept = new Set(talk.messages.map(({ id }) => id));
  for (const [id, row] of rows) {
    if (!kept.has(id)) {
      row.remove();
      rows.delete(id);
    }
  }
  talk.messages.forEach((message, i) => {
    if (rows.has(message.id) && i < talk.messages.length - 3) return;
    const row = drawMessage(message);
    if (list.children[i] !== row) list.insertBefore(row, list.children[i] ?? null);
  });
  welcome.hidden = talk.messages.length > 0;
  queue.update(talk.queue);
  drawCompose();
  if (isAtEnd) view.scrollTop = view.scrollHeight;
}

let due = 0;
talk.addEventListener('change', draw);
talk.addEventListener('delta', () => {
  cancelAnimationFrame(due);
  due = requestAnimationFrame(draw);
});
talk.addEventListener('finished', () => {
  const answer = talk.messages.at(-1);
  if (answer?.recordingId) remember(answer.recordingId, 'turnbased');
  // `idle` follows this event: draw the last answer as finished then.
  queueMicrotask(() => {
    draw();
    void keep();
  });
});
words.addEventListener('language', () => {
  for (const message of talk.messages) drawMessage(message);
});
rig.addEventListener('position', (event) => {
  orb.level = /** @type {CustomEvent} */ (event).detail.level * 3;
});

// Chats

async function keep() {
  if (talk.messages.length === 0) return;
  const messages = talk.messages
    .map((message) => (talk.isBusy && message === talk.messages.at(-1) ? { ...message, isInterrupted: true } : message))
    .filter(({ role, parts, error, sound }) => role === 'user' || error || sound || parts.some((part) => part.type !== 'text' || part.text));
  const isKept = await keepChat({ id: chatId, title: titleOf(messages), name: chatName || undefined, updatedAt: Date.now(), messages });
  if (!isKept) toast('chat.not_kept');
  void drawHistory();
}

const history = h('ul', { class: 'history' });
const search = h('input', { type: 'search', hint: 'chat.search', 'aria-label': t('chat.search'), oninput: () => void drawHistory() });
/** With fewer chats than this nobody needs to search. */
const SEARCH_FROM = 6;

/** @param {import('../talk/history.js').Chat} chat @param {string} wanted in small letters */
function speaksOf(chat, wanted) {
  return (chat.name ?? '').toLowerCase().includes(wanted) || chat.messages.some(({ parts }) => parts.some((part) => part.type === 'text' && part.text.toLowerCase().includes(wanted)));
}

/** @param {import('../talk/history.js').Chat} chat */
const nameOf = (chat) => chat.name || chat.title || t('chat.untitled');

/** @param {import('../talk/history.js').Chat} chat */
async function call(chat) {
  const name = await askName(chat.name ?? '');
  if (name === null) return;
  if (chat.id === chatId) chatName = name;
  await nameChat(chat.id, name);
  await drawHistory();
  // The button that had the focus went with its row.
  /** @type {HTMLElement | null} */ (history.querySelector(`[data-id="${CSS.escape(chat.id)}"]`))?.focus();
}

async function drawHistory() {
  const all = await listChats();
  search.hidden = all.length < SEARCH_FROM;
  const wanted = search.hidden ? '' : search.value.trim().toLowerCase();
  const chats = wanted ? all.filter((chat) => speaksOf(chat, wanted)) : all;
  say(historyEmpty, wanted ? 'chat.nothing_found' : 'chat.no_history');
  history.replaceChildren(
    ...chats.map((chat) =>
      h(
        'li',
        null,
        h('button', { class: 'open', type: 'button', ...(chat.id === chatId ? { 'aria-current': 'true' } : {}), onclick: async () => {
          await leave();
          chatId = chat.id;
          chatName = chat.name ?? '';
          talk.messages = chat.messages;
          rows.clear();
          list.replaceChildren();
          draw();
          void drawHistory();
          chatsPanel.removeAttribute('data-open');
          view.scrollTop = view.scrollHeight;
        } }, h('span', null, nameOf(chat)), h('small', { class: 'quiet' }, date(chat.updatedAt))),
        h('button', { class: 'round slim', type: 'button', icon: 'edit', label: ['action.rename', { name: nameOf(chat) }], 'data-id': chat.id, onclick: () => void call(chat) }),
        h('button', { class: 'round slim', type: 'button', icon: 'trash', label: 'chat.delete', onclick: async () => {
          if (!(await confirmed('chat.delete_sure', 'action.delete'))) return;
          await forgetChat(chat.id);
          if (chat.id === chatId) {
            talk.clear();
            await fresh();
          }
          void drawHistory();
        } }),
      ),
    ),
  );
  historyEmpty.hidden = chats.length > 0;
}

/** What was answered so far stays with the chat it belongs to. */
async function leave() {
  const last = talk.messages.at(-1);
  if (talk.isBusy && last?.role === 'assistant') last.isInterrupted = true;
  talk.cancel();
  rig.flush();
  await keep();
}

async function fresh() {
  await leave();
  talk.clear();
  chatId = newId();
  chatName = '';
  rows.clear();
  list.replaceChildren();
  draw();
  void drawHistory();
  chatsPanel.removeAttribute('data-open');
  field.focus();
}

function exportMenu() {
  const name = (chatName || titleOf(talk.messages) || 'chat').replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 40);
  const plain = talk.messages.map((message) => `**${t(`who.${message.role === 'user' ? 'you' : 'assistant'}`)}**\n\n${message.parts.map((part) => (part.type === 'text' ? part.text : `[${t(`part.${part.type}`)}]`)).join('\n')}`).join('\n\n---\n\n');
  const json = JSON.stringify(talk.messages.map(({ role, parts, at, tokens, timing }) => ({ role, content: parts, at: new Date(at).toISOString(), tokens, timing })), null, 2);
  const node = sheet('chat.export', h('div', { class: 'stack' },
    h('button', { class: 'button', type: 'button', icon: 'file', words: 'chat.export_md', onclick: () => (download(new Blob([plain], { type: 'text/markdown' }), `${name}.md`), node.close()) }),
    h('button', { class: 'button', type: 'button', icon: 'code', words: 'chat.export_json', onclick: () => (download(new Blob([json], { type: 'application/json' }), `${name}.json`), node.close()) })));
}

// Options

const options = h('div', { class: 'stack' },
  group('settings.prompt', true, prompt, toggle(settings, 'advanced', { words: 'chat.advanced', hint: 'chat.advanced_hint' }), systemParts),
  group('settings.voice_group', false, toggle(settings, 'voice', { words: 'settings.voice', hint: 'chat.voice_hint' }), voice, ttsVoice),
  group('settings.answers', false,
    toggle(settings, 'streaming', { words: 'settings.streaming' }),
    toggle(settings, 'thinking', { words: 'settings.thinking' }),
    toggle(settings, 'detailed', { words: 'settings.detailed', hint: 'settings.detailed_hint' }),
    range(settings, 'maxTokens', { words: 'settings.max_tokens', min: 1, max: 2048, step: 1 }),
    range(settings, 'lengthPenalty', { words: 'settings.length_penalty', min: 0.1, max: 5, step: 0.05 }),
    range(settings, 'temperature', { words: 'settings.temperature', min: 0, max: 2, step: 0.05 })),
  group('help.title', false, h('p', { words: 'help.chat' }), h('p', { class: 'quiet', words: 'help.keys_chat' })),
  h('div', { class: 'row' }, h('button', { class: 'button slim', type: 'button', icon: 'retry', words: 'settings.reset', onclick: () => {
    settings.reset();
    prompt.reset();
    voice.reset();
    ttsVoice.reset();
  } })),
);
const showAdvanced = () => {
  systemParts.hidden = !settings.get('advanced');
  if (!systemParts.hidden && systemParts.parts.length === 0) systemParts.parts = [{ type: 'text', text: prompt.text }];
};
settings.addEventListener('change', showAdvanced);

const historyEmpty = h('p', { class: 'small quiet', words: 'chat.no_history' });
const chatsPanel = h('aside', { class: 'chats', label: 'chat.history' },
  h('div', { class: 'row spread' }, h('h2', { words: 'chat.history' }), h('button', { class: 'round slim narrow', type: 'button', icon: 'close', label: 'action.close', onclick: () => chatsPanel.removeAttribute('data-open') })),
  h('button', { class: 'button', type: 'button', icon: 'plus', words: 'chat.new', onclick: fresh }), search, historyEmpty, history);
const optionsPanel = h('aside', { class: 'options', label: 'call.settings' },
  h('div', { class: 'row spread' }, h('h2', { words: 'call.settings' }), h('button', { class: 'round slim', type: 'button', icon: 'close', label: 'action.close', onclick: () => optionsPanel.removeAttribute('data-open') })),
  options);
chatsPanel.removeAttribute('title');
optionsPanel.removeAttribute('title');
const bar = h('div', { class: 'bar row' },
  h('button', { class: 'round slim narrow', type: 'button', icon: 'history', label: 'chat.history', onclick: () => chatsPanel.toggleAttribute('data-open') }),
  h('button', { class: 'round slim narrow', type: 'button', icon: 'plus', label: 'chat.new', onclick: fresh }),
  h('span', { class: 'grow' }),
  h('button', { class: 'round slim', type: 'button', icon: 'download', label: 'chat.export', onclick: exportMenu }),
  h('button', { class: 'round slim', type: 'button', icon: 'settings', label: 'call.settings', onclick: () => optionsPanel.toggleAttribute('data-open') }));

const mainNode = $('#main');
mainNode.className = 'chat';
mainNode.append(chatsPanel, h('div', { class: 'centre' }, bar, view, status, form), optionsPanel);

prompt.addEventListener('voice', (event) => {
  const { sound, name } = /** @type {CustomEvent} */ (event).detail;
  voice.offer(sound, name);
});
globalThis.addEventListener('pagehide', () => {
  talk.cancel();
  rig.releaseMicrophone();
});
void prompt.load().then(showAdvanced);
void drawHistory();
field.value = sessionStorage.getItem(DRAFT) ?? '';
draw();
showAdvanced();
