/** The messages of a chat: drawn once each, kept in view while they grow, and read aloud when complete. */

import { encodeWav } from '../../audio/wav.js';
import { isDeveloper } from '../../elements/developer.js';
import { $, copy, download, element, h, iconButton, sheet } from '../../elements/dom.js';
import { enlarge } from '../../elements/enlarge.js';
import { partNode } from '../../elements/media-parts.js';
import { errorText } from '../../elements/notice.js';
import { Prose } from '../../elements/prose.js';
import { viewerUrl } from '../../elements/recents.js';
import { locale, number, t } from '../../words/words.js';

/** @typedef {import('../../talk/chat.js').ChatMessage} ChatMessage */

/** Distance from the end within which the view follows new text. */
const NEAR_PX = 120;

/** @param {ChatMessage} message */
export const textOf = ({ parts }) => parts.map((part) => (part.type === 'text' ? part.text : '')).join('');

/** @param {ChatMessage} message */
function facts({ timing, tokens }) {
  const seconds = (/** @type {number} */ ms) => `${number(ms / 1000, { maximumFractionDigits: 2 })}\u202fs`;
  const found = [];
  if (timing?.firstMs != null) found.push(t('chat.first', { time: seconds(timing.firstMs) }));
  if (timing) found.push(t('chat.total', { time: seconds(timing.totalMs) }));
  if (tokens) found.push(t('chat.tokens', { input: tokens.input, output: tokens.output }));
  return found.join(' · ');
}

export class Messages {
  /** @type {Map<string, HTMLElement>} */
  #rows = new Map();
  /** Text of an answer, by its node. @type {WeakMap<HTMLElement, Prose>} */
  #prose = new WeakMap();
  /** Content that a node shows, as a key. @type {WeakMap<HTMLElement, string>} */
  #drawn = new WeakMap();
  #isFollowing = true;
  #top = 0;
  list = h('ol', { class: 'messages' });
  /** Answers for screen readers: each is read whole and once. */
  spoken = h('div', { class: 'visually-hidden', role: 'log', 'aria-live': 'polite' });

  /** @param {import('./parts.js').ChatPage} page @param {HTMLElement} view that scrolls */
  constructor(page, view) {
    this.page = page;
    this.view = view;
    // Only scrolling up means that the user reads earlier messages. A picture that gets its height also moves the end
    // out of view, in which case the view must follow. Messages that scroll into view get their height then, which must
    // not undo the scrolling.
    view.addEventListener('scroll', () => {
      const leftPx = view.scrollHeight - view.scrollTop - view.clientHeight;
      const isUp = view.scrollTop < this.#top && leftPx > 1;
      if (isUp || leftPx < NEAR_PX) this.#isFollowing = !isUp;
      this.#top = view.scrollTop;
    });
    enlarge(this.list);
    // A picture gets its height when it has been loaded, which is after it was drawn.
    const keepEnd = new ResizeObserver(() => {
      if (this.#isFollowing) this.toEnd();
    });
    keepEnd.observe(this.list);
    keepEnd.observe(view);
  }

  toEnd() {
    this.#isFollowing = true;
    // A greeting is shown from its top.
    this.view.scrollTop = this.#rows.size > 0 ? this.view.scrollHeight : 0;
  }

  clear() {
    this.#rows.clear();
    this.list.replaceChildren();
    this.spoken.replaceChildren();
  }

  draw() {
    const { messages } = this.page.talk;
    const kept = new Set(messages.map(({ id }) => id));
    for (const [id, row] of this.#rows) {
      if (kept.has(id)) continue;
      row.remove();
      this.#rows.delete(id);
    }
    messages.forEach((message, i) => {
      if (this.#rows.has(message.id) && i < messages.length - 3) return;
      const row = this.#row(message);
      if (this.list.children[i] !== row) this.list.insertBefore(row, this.list.children[i] ?? null);
    });
    if (this.#isFollowing && messages.length > 0) this.toEnd();
  }

  drawAll() {
    for (const message of this.page.talk.messages) this.#row(message);
  }

  /** Passes a complete answer to screen readers. @param {ChatMessage} message */
  announce(message) {
    if (message.role !== 'assistant') return;
    this.spoken.replaceChildren(h('p', null, message.error ? errorText(message.error, message.why) : textOf(message)));
  }

  /** @param {ChatMessage} message */
  #row(message) {
    let row = this.#rows.get(message.id);
    if (!row) {
      row = h(
        'li',
        { class: `message ${message.role}` },
        h('span', { class: 'visually-hidden', words: `who.${message.role === 'user' ? 'you' : 'assistant'}` }),
        h('div', { class: 'body' }),
        h('div', { class: 'tools row' }),
      );
      this.#rows.set(message.id, row);
    }
    const [, body, tools] = /** @type {HTMLElement[]} */ ([...row.children]);
    const { talk } = this.page;
    const isLast = talk.messages.at(-1) === message;
    const isOpen = talk.isBusy && isLast && message.role === 'assistant';
    // Only what has changed is redrawn, so that players and pictures are created once and a button is not replaced
    // while it is pressed.
    const { isInterrupted, error, sound, recordingId } = message;
    const text = textOf(message);
    if (this.#isNew(body, [text, isOpen, isInterrupted, error, Boolean(sound), locale()]))
      this.#drawBody(body, message, isOpen);
    if (this.#isNew(tools, [text !== '', isOpen, isLast, Boolean(sound), recordingId, facts(message), isDeveloper()]))
      tools.replaceChildren(...(isOpen ? [] : this.#tools(message, isLast)));
    return row;
  }

  /** True if a node does not show this content yet. @param {HTMLElement} node @param {unknown[]} what */
  #isNew(node, what) {
    const shown = JSON.stringify(what);
    const isNew = this.#drawn.get(node) !== shown;
    this.#drawn.set(node, shown);
    return isNew;
  }

  /** @param {HTMLElement} body @param {ChatMessage} message @param {boolean} isOpen */
  #drawBody(body, message, isOpen) {
    if (message.role === 'user') {
      body.replaceChildren(...message.parts.map(partNode));
      return;
    }
    const text = textOf(message);
    const prose = this.#prose.get(body) ?? new Prose(h('div', { class: 'prose', dir: 'auto' }));
    this.#prose.set(body, prose);
    prose.show(text);
    for (const after of [...body.childNodes]) if (after !== prose.node) after.remove();
    if (prose.node.parentNode !== body) body.prepend(prose.node);
    const dots = () => h('span', { class: 'dots', 'aria-hidden': 'true' }, h('i', null), h('i', null), h('i', null));
    if (isOpen && !text) body.append(dots());
    if (message.leavesOut && !message.error) body.prepend(h('p', { class: 'small quiet', words: 'chat.left_out' }));
    if (message.isInterrupted) body.append(h('p', { class: 'small quiet', words: 'transcript.interrupted' }));
    if (message.error)
      body.append(h('p', { class: 'error small', role: 'alert' }, errorText(message.error, message.why)));
    if (!message.sound || isOpen) return;
    const player = /** @type {import('../../elements/player/player.js').Player} */ (element('p-player'));
    player.setPcm(message.sound, 24000);
    body.append(player);
  }

  /** @param {ChatMessage} message @param {boolean} isLast @returns {Node[]} */
  #tools(message, isLast) {
    const { talk, rig, settingsNow } = this.page;
    const { sound, recordingId = '' } = message;
    const again = (/** @type {MouseEvent} */ { detail }) => {
      rig.flush();
      talk.regenerate(settingsNow());
      // The button goes with the old answer; after a tap, the on-screen keyboard would cover the new one.
      if (detail === 0) $('.compose textarea').focus();
    };
    const save = () =>
      download(
        new Blob([encodeWav([/** @type {Float32Array} */ (sound)], 24000)], { type: 'audio/wav' }),
        'answer.wav',
      );
    const share = async () =>
      (await import('../../elements/share/share.js')).openShare({ recordingId, app: 'turnbased', blob: null });
    const look = { href: viewerUrl(recordingId), target: '_blank', rel: 'noopener' };
    const nodes = [
      textOf(message) && iconButton('copy', 'action.copy', () => void copy(textOf(message))),
      message.role === 'user' && iconButton('edit', 'chat.edit', () => this.#edit(message)),
      message.role === 'assistant' && isLast && iconButton('retry', 'chat.regenerate', again),
      sound && iconButton('download', 'chat.save_sound', save),
      recordingId && h('a', { class: 'round slim', ...look, icon: 'history', label: 'after.look' }),
      recordingId && iconButton('share', 'after.share', () => void share()),
      message.timing && isDeveloper() && h('span', { class: 'small quiet num facts' }, facts(message)),
    ];
    return nodes.filter((node) => node instanceof Node);
  }

  /** @param {ChatMessage} message */
  #edit(message) {
    const { talk, rig, settingsNow } = this.page;
    const parts = /** @type {import('../../elements/parts/parts.js').Parts} */ (element('p-parts'));
    parts.parts = message.parts;
    const go = h('button', { class: 'button primary', type: 'button', words: 'chat.resend' });
    const node = sheet('chat.edit', parts, h('div', { class: 'row' }, go));
    go.onclick = () => {
      if (parts.parts.length === 0) return;
      rig.flush();
      talk.resend(message.id, parts.parts, settingsNow());
      node.close();
    };
  }
}
