/** <p-code>: source code to read and copy, in one or several languages. */

import { copy, h, iconButton } from '../dom.js';

/** @typedef {{id: string, name: string, text: string}} Version */

/** The language that was shown last is selected first in all elements. */
const STORED = 'parley.code';
let count = 0;

export class Code extends HTMLElement {
  #tabs = h('div', { class: 'tabs', role: 'tablist', label: 'play.languages' });
  #text = h('pre', { tabindex: 0, role: 'tabpanel' });
  /** @type {Version[]} */
  #versions = [];
  #chosen = localStorage.getItem(STORED) ?? '';
  #id = `code-${count++}`;

  connectedCallback() {
    if (this.childElementCount > 0) return;
    this.#tabs.removeAttribute('title');
    this.#text.id = this.#id;
    const button = iconButton('copy', 'action.copy', () => void copy(this.text));
    this.append(h('header', null, this.#tabs, button), this.#text);
  }

  /** @param {Version[]} versions the first is shown if the chosen language is not among them */
  show(versions) {
    this.#versions = versions;
    const shown = this.#shown;
    this.#tabs.replaceChildren(
      ...versions.map(({ id, name }) =>
        h(
          'button',
          {
            type: 'button',
            role: 'tab',
            'aria-selected': String(id === shown?.id),
            'aria-controls': this.#id,
            tabindex: id === shown?.id ? 0 : -1,
            onclick: () => this.#choose(id),
            onkeydown: (/** @type {KeyboardEvent} */ event) => this.#move(event, id),
          },
          name,
        ),
      ),
    );
    this.#text.textContent = shown?.text ?? '';
    this.#text.setAttribute('aria-label', shown?.name ?? '');
  }

  get #shown() {
    return this.#versions.find(({ id }) => id === this.#chosen) ?? this.#versions[0];
  }

  /** @param {string} id */
  #choose(id) {
    this.#chosen = id;
    localStorage.setItem(STORED, id);
    this.show(this.#versions);
    // The tab that had the focus was replaced.
    /** @type {HTMLElement | null} */ (this.#tabs.querySelector('[aria-selected=true]'))?.focus();
  }

  /** @param {KeyboardEvent} event @param {string} id */
  #move({ key }, id) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (!step) return;
    const at = this.#versions.findIndex((one) => one.id === id) + step;
    this.#choose(this.#versions[(at + this.#versions.length) % this.#versions.length].id);
  }

  get text() {
    return this.#shown?.text ?? '';
  }
}

customElements.define('p-code', Code);
