/**
 * <p-events>: what goes over the wire, for builders: the last 200 messages in both directions, as text. They are drawn
 * four times a second, and only where they are shown: a call sends thirty a second.
 */

import { h } from '../dom.js';
import { icon } from '../icons.js';

const KEEP = 200;
const DRAWN_EVERY_MS = 250;
const KINDS = /** @type {const} */ (['all', 'listen', 'speak', 'error', 'other']);
/** @typedef {typeof KINDS[number]} Kind */

/** @param {any} message @returns {Kind} */
function kindOf(message) {
  if (message.type === 'error') return 'error';
  if (message.type === 'response.listen' || message.is_listen === true) return 'listen';
  if (message.type === 'response.output_audio.delta' || message.type === 'chunk' || message.is_listen === false)
    return 'speak';
  return 'other';
}

/** Long values, sound above all, as their size. @param {any} value @returns {any} */
function summary(value) {
  if (typeof value === 'string') return value.length > 80 ? `${value.slice(0, 24)}… (${value.length})` : value;
  if (value instanceof Uint8Array) return `(${value.length} bytes)`;
  if (Array.isArray(value)) return value.map(summary);
  if (value && typeof value === 'object')
    return Object.fromEntries(
      Object.entries(value)
        .filter(([key]) => key !== 'type')
        .map(([key, entry]) => [key, summary(entry)]),
    );
  return value;
}

export class Events extends HTMLElement {
  #list = h('ol', { tabindex: 0, label: 'events.title' });
  #none = h('p', { class: 'small quiet', words: 'events.none' });
  #tools = h('div', { class: 'row' });
  /** @type {Kind} */
  #filter = 'all';
  /** Not drawn yet, newest first. @type {{at: Date, kind: Kind, out: boolean, type: string, text: string}[]} */
  #fresh = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #due;
  #isShown = false;

  connectedCallback() {
    const filter = h(
      'select',
      { label: 'events.filter', onchange: () => this.#show(/** @type {Kind} */ (filter.value)) },
      ...KINDS.map((kind) => h('option', { value: kind, words: `events.${kind}` })),
    );
    const onclick = () => {
      this.#fresh.length = 0;
      this.#list.replaceChildren();
      this.#draw();
    };
    this.#list.removeAttribute('title');
    this.#tools.append(filter, h('button', { class: 'button slim', type: 'button', words: 'action.clear', onclick }));
    this.append(this.#tools, this.#list, this.#none);
    new ResizeObserver(([{ contentRect }]) => {
      this.#isShown = contentRect.width > 0;
      this.#drawSoon();
    }).observe(this);
    this.#draw();
  }

  #drawSoon() {
    if (this.#isShown) this.#due ??= setTimeout(() => this.#draw(), DRAWN_EVERY_MS);
  }

  #draw() {
    clearTimeout(this.#due);
    this.#due = undefined;
    this.#list.prepend(...this.#fresh.splice(0).map((one) => this.#row(one)));
    while (this.#list.children.length > KEEP) this.#list.lastElementChild?.remove();
    const isEmpty = this.#list.childElementCount === 0;
    this.#none.hidden = !isEmpty;
    this.#tools.hidden = this.#list.hidden = isEmpty;
  }

  /** @param {{at: Date, kind: Kind, out: boolean, type: string, text: string}} message */
  #row({ at, kind, out, type, text }) {
    return h(
      'li',
      { 'data-kind': kind, 'data-out': String(out), hidden: this.#isLeftOut(kind) },
      h('time', { class: 'num' }, at.toISOString().slice(11, 23)),
      icon(out ? 'arrow-out' : 'arrow-in'),
      h('b', null, type),
      h('span', { class: 'mono' }, text),
    );
  }

  /** @param {string | undefined} kind */
  #isLeftOut(kind) {
    return this.#filter !== 'all' && kind !== this.#filter;
  }

  /** @param {Kind} kind */
  #show(kind) {
    this.#filter = kind;
    for (const row of /** @type {HTMLCollectionOf<HTMLElement>} */ (this.#list.children))
      row.hidden = this.#isLeftOut(row.dataset.kind);
  }

  /** @param {{out: boolean, message: any}} event */
  note({ out, message }) {
    const type = String(message.type ?? message.object ?? 'request');
    this.#fresh.unshift({ at: new Date(), kind: kindOf(message), out, type, text: JSON.stringify(summary(message)) });
    if (this.#fresh.length > KEEP) this.#fresh.pop();
    this.#drawSoon();
  }
}

customElements.define('p-events', Events);
