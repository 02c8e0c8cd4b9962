/**
 * <p-events>: the last messages on the wire in both directions, as text, for developers. A call sends thirty a second,
 * so similar consecutive messages share a row, and rows are drawn four times a second, only while shown.
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

/** Returns a message with long values, mostly audio, replaced by their size. @param {any} value @returns {any} */
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

/**
 * @typedef {{at: Date, kind: Kind, out: boolean, type: string, text: string, like: string, count: number,
 *   row?: HTMLElement}} Entry `like`: messages with equal values share a row
 */

export class Events extends HTMLElement {
  #list = h('ol', { tabindex: 0, label: 'events.title' });
  #none = h('p', { class: 'small quiet', words: 'events.none' });
  #tools = h('div', { class: 'row' });
  /** @type {Kind} */
  #filter = 'all';
  /** Newest first. @type {Entry[]} */
  #entries = [];
  /** Number of the newest entries whose rows are not up to date. */
  #fresh = 0;
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
      this.#fresh = this.#entries.length = 0;
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
    const fresh = this.#entries.slice(0, this.#fresh);
    this.#fresh = 0;
    for (const { row } of fresh) row?.remove();
    this.#list.prepend(...fresh.map((entry) => this.#rowOf(entry)));
    const isEmpty = this.#entries.length === 0;
    this.#none.hidden = !isEmpty;
    this.#tools.hidden = this.#list.hidden = isEmpty;
  }

  /** @param {Entry} entry */
  #rowOf(entry) {
    const { at, kind, out, type, text, count } = entry;
    entry.row = h(
      'li',
      { 'data-kind': kind, 'data-out': String(out), hidden: this.#isLeftOut(kind) },
      h('time', { class: 'num' }, at.toISOString().slice(11, 23)),
      icon(out ? 'arrow-out' : 'arrow-in'),
      h('b', null, count > 1 ? `${type} ×${count}` : type),
      h('span', { class: 'mono' }, text),
    );
    return entry.row;
  }

  /** @param {string | undefined} kind */
  #isLeftOut(kind) {
    return this.#filter !== 'all' && kind !== this.#filter;
  }

  /** @param {Kind} kind */
  #show(kind) {
    this.#filter = kind;
    for (const { row, kind: own } of this.#entries) if (row) row.hidden = this.#isLeftOut(own);
  }

  /** @param {{out: boolean, message: any}} event */
  note({ out, message }) {
    const type = String(message.type ?? message.object ?? 'request');
    const like = out ? `${type} ${Object.keys(message)}` : '';
    const now = { at: new Date(), text: JSON.stringify(summary(message)) };
    const [newest] = this.#entries;
    if (like && newest?.like === like) {
      Object.assign(newest, now, { count: newest.count + 1 });
      this.#fresh ||= 1;
    } else {
      this.#entries.unshift({ ...now, kind: kindOf(message), out, type, like, count: 1 });
      this.#fresh++;
      for (const { row } of this.#entries.splice(KEEP)) row?.remove();
    }
    this.#drawSoon();
  }
}

customElements.define('p-events', Events);
