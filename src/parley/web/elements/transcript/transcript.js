/** <p-transcript>: both sides of a conversation, words appearing as they are heard. */

import { t, words } from '../../words/words.js';
import { h } from '../dom.js';

/** @typedef {import('../../talk/captions.js').Captions} Captions */
/** @typedef {import('../../talk/captions.js').Caption} Caption */

export class Transcript extends HTMLElement {
  /** @type {Captions | null} */
  #captions = null;
  /** @type {AbortController} */
  #life = new AbortController();
  #due = 0;
  /** @type {Map<number, HTMLElement>} */
  #rows = new Map();
  #list = h('ol', { class: 'lines' });
  #empty = h('p', { class: 'quiet empty', words: 'transcript.empty' });

  /** @param {Captions} captions */
  set captions(captions) {
    this.#captions = captions;
    if (this.isConnected) this.#follow();
  }

  connectedCallback() {
    this.append(this.#empty, this.#list);
    if (this.#captions) this.#follow();
  }

  disconnectedCallback() {
    this.#life.abort();
    cancelAnimationFrame(this.#due);
  }

  #follow() {
    this.#life.abort();
    this.#life = new AbortController();
    const { signal } = this.#life;
    this.#captions?.addEventListener('change', () => this.#later(), { signal });
    words.addEventListener('language', () => this.#later(), { signal });
    this.#draw();
  }

  #later() {
    cancelAnimationFrame(this.#due);
    this.#due = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const list = this.#captions?.list ?? [];
    this.#empty.hidden = list.length > 0;
    const isAtEnd = this.scrollHeight - this.scrollTop - this.clientHeight < 60;
    const kept = new Set(list.map(({ id }) => id));
    for (const [id, row] of this.#rows) {
      if (!kept.has(id)) {
        row.remove();
        this.#rows.delete(id);
      }
    }
    for (const caption of list) this.#row(caption);
    if (isAtEnd) this.scrollTop = this.scrollHeight;
  }

  /** @param {Caption} caption */
  #row(caption) {
    let row = this.#rows.get(caption.id);
    if (!row) {
      row = h('li', { class: `line ${caption.who}` }, h('span', { class: 'said' }), h('span', { class: 'ahead' }), h('em', { class: 'cut' }));
      this.#rows.set(caption.id, row);
      this.#list.append(row);
    }
    const text = caption.key ? t(caption.key, caption.values) : caption.text;
    const heard = caption.who === 'assistant' ? caption.heard : text.length;
    const [said, ahead, cut] = /** @type {HTMLElement[]} */ ([...row.children]);
    if (said.textContent !== text.slice(0, heard)) said.textContent = text.slice(0, heard);
    const rest = text.slice(heard);
    if (ahead.textContent !== rest) ahead.textContent = rest;
    row.dataset.cut = String(caption.isInterrupted);
    cut.textContent = caption.isInterrupted ? ` ${t('transcript.interrupted')}` : '';
  }
}

customElements.define('p-transcript', Transcript);

/** @param {Captions} captions @returns {string} */
export function plainTranscript(captions) {
  return captions.list
    .map((caption) => {
      const text = caption.key ? t(caption.key, caption.values) : caption.text;
      return caption.who === 'note' ? `— ${text} —` : `${t(`who.${caption.who}`)}: ${text}${caption.isInterrupted ? ` (${t('transcript.interrupted')})` : ''}`;
    })
    .join('\n');
}
