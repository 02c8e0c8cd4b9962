/** The bar in which a message is composed: text, files, a voice note. It also shows the state of the last message. */

import { mayBegin } from '../../elements/consent.js';
import { growing, h, iconButton, pickFiles, reicon, relabel, say, sheet } from '../../elements/dom.js';
import { partNode, partOf } from '../../elements/media-parts.js';
import { VoiceNote } from './note.js';

/** @typedef {import('../../talk/chat.js').Part} Part */

/** Key of this tab's draft. */
const DRAFT = 'parley.draft';
const FIELDS = 'input, textarea, select, button, a, dialog, summary, audio, video';

export class Compose {
  /** @type {Part[]} */
  #attached = [];
  /** Resolves when all files have been read. */
  #reading = Promise.resolve();
  /** @type {Promise<void> | null} */
  #submitting = null;
  #field = growing(h('textarea', { dir: 'auto', rows: 1, hint: 'chat.hint' }));
  #attachments = h('ul', { class: 'attached' });
  #send = h('button', { class: 'round send', type: 'submit', icon: 'send', label: 'action.send' });
  #mic = iconButton('mic', 'chat.record');
  #recording = h('span', { class: 'recording small', role: 'status', hidden: true });
  #voice;
  #note;

  /** @param {import('./parts.js').ChatPage} page @param {{notices: HTMLElement, sent: () => void}} around */
  constructor(page, { notices, sent }) {
    this.page = page;
    this.sent = sent;
    const { settings } = page;
    this.status = h('p', { class: 'small quiet status-line', role: 'status' });
    this.#voice = iconButton('sound', 'chat.voice', () => settings.set('voice', !settings.get('voice')));
    const plus = iconButton('plus', 'chat.attach', () => this.#attachMenu());
    const label = h(
      'label',
      { class: 'grow' },
      h('span', { class: 'visually-hidden', words: 'chat.hint' }),
      this.#field,
    );
    const line = h('div', { class: 'line' }, plus, label, this.#recording, this.#voice, this.#mic, this.#send);
    this.node = h('form', { class: 'compose' }, this.#attachments, line);
    /** @param {Part} part @param {boolean} isSent */
    const done = (part, isSent) => {
      this.#attached.push(part);
      this.#drawAttached();
      if (isSent) void this.submit();
    };
    this.#note = new VoiceNote(page, { label: this.#recording, notices, done });
    this.#note.listenTo(this.#mic, this.node);
    this.#listen();
    this.#field.value = sessionStorage.getItem(DRAFT) ?? '';
  }

  #listen() {
    const { talk, settings } = this.page;
    this.node.onsubmit = (event) => {
      event.preventDefault();
      if (talk.isBusy || this.page.playing) this.page.hush();
      else void this.submit();
    };
    this.#field.onkeydown = (event) => this.#onKey(event);
    this.#field.onkeyup = (event) => {
      if (event.key === ' ') this.#note.holdUntil();
    };
    this.#field.addEventListener('input', () => {
      sessionStorage.setItem(DRAFT, this.#field.value);
      this.draw();
    });
    this.#field.onpaste = (event) => {
      const { files, types = [] } = event.clipboardData ?? {};
      // Spreadsheets and word processors add a picture of the text that was copied.
      const isText = types.includes('text/plain') && types.includes('text/html');
      if (!files?.length || isText) return;
      event.preventDefault();
      void this.#take(files);
    };
    settings.addEventListener('change', () => this.draw());
    const isElsewhere = (/** @type {Event} */ event) => /** @type {HTMLElement} */ (event.target).closest(FIELDS);
    document.addEventListener('keydown', (event) => {
      if (isElsewhere(event)) return;
      if (event.key === 'Escape') void this.#note.stop('cancel');
      if (event.key !== ' ' || event.repeat) return;
      event.preventDefault();
      this.#note.holdFrom();
    });
    document.addEventListener('keyup', (event) => {
      if (event.key === ' ' && !isElsewhere(event)) this.#note.holdUntil();
    });
    // Text is dropped where the browser puts it, files for a voice where they belong.
    for (const type of /** @type {const} */ (['dragover', 'drop'])) {
      document.addEventListener(type, (event) => {
        if (event.defaultPrevented || !event.dataTransfer?.types.includes('Files')) return;
        event.preventDefault();
        if (type === 'drop') void this.#take(event.dataTransfer.files);
      });
    }
  }

  /** @param {KeyboardEvent} event in the field */
  #onKey(event) {
    // While an input method composes a word, Enter selects it.
    const isComposing = event.isComposing || event.keyCode === 229;
    if (event.key === 'Enter' && !event.shiftKey && !isComposing) {
      event.preventDefault();
      if (!this.page.talk.isBusy) void this.submit();
    }
    if (event.key === ' ' && this.#field.value === '' && !event.repeat && !isComposing) {
      event.preventDefault();
      this.#note.holdFrom();
    }
    if (event.key === 'Escape') void this.#note.stop('cancel');
  }

  submit() {
    this.#submitting ??= this.#submit().finally(() => {
      this.#submitting = null;
    });
    return this.#submitting;
  }

  async #submit() {
    const { talk, rig, settings } = this.page;
    await this.#reading;
    const text = this.#field.value.trim();
    /** @type {Part[]} */
    const parts = [...this.#attached, ...(text ? [{ type: /** @type {const} */ ('text'), text }] : [])];
    if (parts.length === 0 || talk.isBusy || !(await mayBegin({})) || talk.isBusy) return;
    if (settings.get('voice')) await rig.open().catch(() => {});
    rig.flush();
    this.#field.value = '';
    this.#attached = [];
    this.#drawAttached();
    talk.send(parts, this.page.settingsNow());
    sessionStorage.removeItem(DRAFT);
    this.sent();
  }

  /** Sends a suggested question. @param {string} text */
  async ask(text) {
    this.#field.value = text;
    await this.submit();
  }

  focus() {
    this.#field.focus();
  }

  #attachMenu() {
    /** @param {string} icon @param {string} words @param {string} accept @param {string} [capture] */
    const add = (icon, words, accept, capture) => {
      const onclick = async () => {
        const files = await pickFiles(accept, { capture, multiple: !capture });
        node.close();
        await this.#take(files);
      };
      return h('button', { class: 'button', type: 'button', icon, words, onclick });
    };
    const node = sheet(
      'chat.attach',
      h(
        'div',
        { class: 'stack' },
        add('image', 'part.image', 'image/*'),
        add('camera', 'chat.photo', 'image/*', 'environment'),
        add('sound', 'part.audio', 'audio/*'),
        add('video', 'part.video', 'video/*'),
      ),
    );
  }

  /** @param {Iterable<File>} files */
  #take(files) {
    const all = [...files];
    this.#attachments.append(h('li', { class: 'small quiet', words: 'chat.prefill' }));
    this.#reading = this.#reading.then(async () => {
      for (const file of all) {
        const part = await partOf(file);
        if (part) this.#attached.push(part);
      }
      this.#drawAttached();
      this.#field.focus();
    });
    return this.#reading;
  }

  #drawAttached() {
    const rows = this.#attached.map((part, i) => {
      const remove = iconButton('close', 'part.remove', () => {
        this.#attached.splice(i, 1);
        this.#drawAttached();
      });
      return h('li', null, partNode(part), remove);
    });
    this.#attachments.replaceChildren(...rows);
    this.draw();
  }

  draw() {
    const { talk, settings, playing } = this.page;
    const isStop = talk.isBusy || playing !== '';
    reicon(this.#send, isStop ? 'stop' : 'send');
    relabel(this.#send, isStop ? 'chat.stop' : 'action.send');
    this.#send.disabled = !isStop && !this.#field.value.trim() && this.#attached.length === 0;
    this.#mic.disabled = talk.isBusy;
    this.#mic.setAttribute('aria-pressed', String(this.#note.isRunning));
    this.#recording.hidden = !this.#note.isRunning;
    const on = settings.get('voice');
    this.#voice.setAttribute('aria-pressed', String(on));
    reicon(this.#voice, on ? 'sound' : 'sound-off');
    this.status.hidden = !talk.isBusy;
    if (talk.isBusy) say(this.status, `chat.${talk.phase}`);
  }
}
