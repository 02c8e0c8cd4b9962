/** <p-transcript>: both sides of a conversation; text appears as it is heard. */

import { Captions } from '../../talk/captions.js';
import { t, words } from '../../words/words.js';
import { $, h } from '../dom.js';

/** @typedef {import('../../talk/captions.js').Caption} Caption */

export class Transcript extends HTMLElement {
  /** @type {Captions | null} */
  #captions = null;
  /** @type {AbortController} */
  #life = new AbortController();
  /** Aborted when it is removed from the page. */
  #shown = new AbortController();
  #due = 0;
  #isFollowing = true;
  #top = 0;
  /** @type {Map<number, HTMLElement>} */
  #rows = new Map();
  #list = h('ol', { class: 'lines' });
  #empty = h('p', { class: 'quiet empty', words: 'transcript.empty' });

  /** @param {Captions} captions */
  set captions(captions) {
    this.#captions = captions;
    for (const row of this.#rows.values()) row.remove();
    this.#rows.clear();
    if (this.isConnected) this.#follow();
  }

  /** Shows captions that belong to no call, for text written before the first one. @returns {Captions} */
  own() {
    if (!this.#captions) this.captions = new Captions();
    return /** @type {Captions} */ (this.#captions);
  }

  connectedCallback() {
    this.append(this.#empty, this.#list);
    const { signal } = this.#shown;
    this.addEventListener('scroll', () => this.#onScroll(), { signal });
    // A picture gets its height when it has been loaded.
    this.#list.addEventListener('load', () => this.#keepEnd(), { signal, capture: true });
    if (this.#captions) this.#follow();
  }

  #onScroll() {
    if (this.scrollHeight - this.scrollTop - this.clientHeight < 60) this.#isFollowing = true;
    else if (this.scrollTop < this.#top) this.#isFollowing = false;
    this.#top = this.scrollTop;
  }

  #keepEnd() {
    if (this.#isFollowing) this.scrollTop = this.scrollHeight;
  }

  disconnectedCallback() {
    this.#shown.abort();
    this.#shown = new AbortController();
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
    const kept = new Set(list.map(({ id }) => id));
    for (const [id, row] of this.#rows) {
      if (!kept.has(id)) {
        row.remove();
        this.#rows.delete(id);
      }
    }
    for (const caption of list) this.#row(caption);
    this.#keepEnd();
  }

  /** @param {Caption} caption */
  #row(caption) {
    let row = this.#rows.get(caption.id);
    if (!row) {
      row = h(
        'li',
        { class: `line ${caption.who}`, dir: 'auto' },
        caption.who === 'note'
          ? null
          : h('span', { class: 'visually-hidden', dir: 'ltr', words: `who.${caption.who}` }),
        h('span', { class: 'said' }),
        h('span', { class: 'ahead' }),
        h('em', { class: 'cut' }),
        caption.image ? h('img', { src: caption.image, alt: t('part.image'), width: 160, tabindex: 0 }) : null,
      );
      this.#rows.set(caption.id, row);
      this.#list.append(row);
    }
    const text = caption.key ? t(caption.key, caption.values) : caption.text;
    const heard = caption.who === 'assistant' ? caption.heard : text.length;
    const [said, ahead, cut] = ['.said', '.ahead', '.cut'].map((part) => $(part, row));
    if (said.textContent !== text.slice(0, heard)) said.textContent = text.slice(0, heard);
    const rest = text.slice(heard);
    if (ahead.textContent !== rest) ahead.textContent = rest;
    row.dataset.cut = String(caption.isInterrupted);
    cut.textContent = caption.isInterrupted ? ` (${t('transcript.interrupted')})` : '';
  }
}

customElements.define('p-transcript', Transcript);
