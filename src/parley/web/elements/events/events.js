/** <p-events>: what goes over the wire, for builders: the last 200 messages in both directions, as text. */

import { h } from '../dom.js';
import { icon } from '../icons.js';

const KEEP = 200;
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

  connectedCallback() {
    const filter = h(
      'select',
      { label: 'events.filter', onchange: () => this.#show(/** @type {Kind} */ (filter.value)) },
      ...KINDS.map((kind) => h('option', { value: kind, words: `events.${kind}` })),
    );
    const clear = h('button', {
      class: 'button slim',
      type: 'button',
      words: 'action.clear',
      onclick: () => {
        this.#list.replaceChildren();
        this.#drawEmpty();
      },
    });
    this.#list.removeAttribute('title');
    this.#tools.append(filter, clear);
    this.append(this.#tools, this.#list, this.#none);
    this.#drawEmpty();
  }

  #drawEmpty() {
    const isEmpty = this.#list.childElementCount === 0;
    this.#none.hidden = !isEmpty;
    this.#tools.hidden = isEmpty;
    this.#list.hidden = isEmpty;
  }

  /** @param {Kind} kind */
  #show(kind) {
    this.#filter = kind;
    for (const row of /** @type {HTMLCollectionOf<HTMLElement>} */ (this.#list.children))
      row.hidden = kind !== 'all' && row.dataset.kind !== kind;
  }

  /** @param {{out: boolean, message: any}} event */
  note({ out, message }) {
    const kind = kindOf(message);
    const row = h(
      'li',
      { 'data-kind': kind, 'data-out': String(out) },
      h('time', { class: 'num' }, new Date().toISOString().slice(11, 23)),
      icon(out ? 'arrow-out' : 'arrow-in'),
      h('b', null, String(message.type ?? message.object ?? 'request')),
      h('span', { class: 'mono' }, JSON.stringify(summary(message))),
    );
    row.hidden = this.#filter !== 'all' && kind !== this.#filter;
    this.#list.prepend(row);
    if (this.#tools.hidden) this.#drawEmpty();
    while (this.#list.children.length > KEEP) this.#list.lastElementChild?.remove();
  }
}

customElements.define('p-events', Events);
