/**
 * Writing during a voice call. If the server accepts text in a live call, it is sent there, with a picture if there is
 * one. Otherwise a separate chat answers in writing, which needs a second free slot; if there is none, the page shows
 * this and keeps the text.
 */

import { growing, h, iconButton, pickFiles, say, toast } from '../elements/dom.js';
import { partNode, partOf } from '../elements/media-parts.js';
import { errorText } from '../elements/notice.js';
import { ChatTalk } from '../talk/chat.js';
import { request } from '../wire/http.js';
import { mayRecord } from '../elements/consent.js';
import { t } from '../words/words.js';

/** @typedef {import('./call/parts.js').CallPage} CallPage */
/** @typedef {import('../talk/chat.js').Part} Part */

/** Numbers of written turns, below those of the voice. */
let nextTurn = -1;

class Writing {
  #field = growing(h('textarea', { dir: 'auto', rows: 1, maxlength: 65536, required: true, hint: 'writing.hint' }));
  #send = h('button', { class: 'round slim', type: 'submit', icon: 'send', label: 'action.send' });
  #picture = h('span', { class: 'attached' });
  #state = h('p', { class: 'small quiet', role: 'status', hidden: true });
  /** The picture, once it has been read. @type {Promise<Part | null> | null} */
  #attached = null;
  #chat = new ChatTalk();
  #isSending = false;
  #turn = 0;
  #shown = 0;

  /** @param {CallPage} page */
  constructor(page) {
    this.page = page;
    const attach = iconButton('image', 'part.image', () => void this.#attach());
    const label = h(
      'label',
      { class: 'grow' },
      h('span', { class: 'visually-hidden', words: 'writing.hint' }),
      this.#field,
    );
    const form = h('form', { class: 'writing' }, attach, label, this.#picture, this.#send);
    this.node = h('div', { class: 'stack' }, this.#state, form);
    form.onsubmit = (event) => {
      event.preventDefault();
      // What is typed while a text is being sent stays in the field.
      if (this.#isSending) return;
      this.#isSending = true;
      void this.#submit().finally(() => {
        this.#isSending = false;
      });
    };
    this.#field.onkeydown = (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    };
    this.#chat.addEventListener('delta', () => this.#showAnswer());
    this.#chat.addEventListener('change', () => this.#showState());
    this.#chat.addEventListener('finished', (event) =>
      this.#finished(/** @type {CustomEvent} */ (event).detail.ending),
    );
  }

  /** Returns the captions of the current or the last call; before the first call, those of this page. */
  get #captions() {
    return this.page.calls.current?.captions ?? this.page.transcript.own();
  }

  async #attach() {
    const [file] = await pickFiles('image/*');
    this.#attached = file ? partOf(file) : null;
    const picture = await this.#attached;
    this.#picture.replaceChildren(...(picture ? [partNode(picture)] : []));
    this.#field.focus();
  }

  #showState() {
    const { phase } = this.#chat;
    this.#send.disabled = this.#chat.isBusy;
    this.#state.hidden = !this.#chat.isBusy;
    if (this.#chat.isBusy) say(this.#state, phase === 'queued' ? 'writing.waits' : `chat.${phase}`);
  }

  async #submit() {
    const text = this.#field.value.trim();
    if (!text || this.#chat.isBusy) return;
    this.#field.value = '';
    const picture = await this.#attached;
    const { calls } = this.page;
    const client = /** @type {any} */ (calls.current?.client);
    const canHear = calls.isLive && client?.canText;
    if (!canHear && calls.isOn && !(await hasFreePlace())) {
      this.#field.value = [text, this.#field.value].filter(Boolean).join('\n');
      say(this.#state, 'writing.no_place');
      this.#state.hidden = false;
      return;
    }
    const captions = this.#captions;
    const before = captions.list;
    captions.wrote(text, picture?.type === 'image' ? `data:image/jpeg;base64,${picture.data}` : undefined);
    this.#attached = null;
    this.#picture.replaceChildren();
    if (canHear) client.sendText(text, picture?.type === 'image' ? picture.data : null);
    else this.#ask(text, picture, before.slice(0, -1));
  }

  /** @param {string} text @param {Part | null} picture @param {import('../talk/captions.js').Caption[]} before */
  #ask(text, picture, before) {
    const chat = this.#chat;
    // What has been said so far, as far as it was transcribed.
    chat.messages = before
      .filter(({ who, text: said, heard }) => who !== 'note' && said.slice(0, heard))
      .map(({ id, who, text: said, heard, at }) => ({
        id: String(id),
        role: who === 'assistant' ? /** @type {const} */ ('assistant') : /** @type {const} */ ('user'),
        parts: [{ type: /** @type {const} */ ('text'), text: said.slice(0, heard) }],
        at,
      }));
    if (this.page.calls.isOn) this.#captions.note('writing.beside');
    this.#turn = nextTurn--;
    this.#shown = 0;
    chat.send([...(picture ? [picture] : []), { type: 'text', text }], {
      system: [{ type: 'text', text: `${this.page.prompt.text}\n${t('writing.system')}` }],
      streaming: true,
      voice: false,
      ttsVoice: null,
      maxNewTokens: 512,
      lengthPenalty: 1.1,
      detailed: false,
      record: mayRecord(),
    });
  }

  #showAnswer() {
    const part = this.#chat.messages.at(-1)?.parts[0];
    const text = part?.type === 'text' ? part.text : '';
    if (text.length <= this.#shown) return;
    this.#captions.add(this.#turn, text.slice(this.#shown), 0);
    this.#captions.drained(this.#turn);
    this.#shown = text.length;
  }

  /** @param {import('../wire/reasons.js').Ending} ending */
  #finished(ending) {
    const answer = this.#chat.messages.at(-1);
    this.#showAnswer();
    this.#captions.complete(this.#turn);
    this.#captions.drained(this.#turn);
    if (answer?.error) toast('writing.failed', { why: errorText(ending.code || ending.reason, ending.sentence) });
  }
}

/** Returns true if the server has a free slot in addition to those of current calls. */
async function hasFreePlace() {
  const status = await request('/status').catch(() => null);
  return !status || (status.free_slots ?? 1) > 0;
}

/** @param {CallPage} page */
export function mountWriting(page) {
  return new Writing(page).node;
}
