/**
 * <p-parts>: an ordered list of text, pictures, sounds and clips; parts can be added, removed and moved by dragging or
 * by key.
 */

import { h, iconButton, pickFiles, textButton } from '../dom.js';
import { partNode, partOf } from '../media-parts.js';

/** @typedef {import('../../talk/chat.js').Part} Part */

export class Parts extends HTMLElement {
  /** @type {Part[]} */
  #parts = [];
  #list = h('ol', null);
  #dragged = -1;

  connectedCallback() {
    const add = (/** @type {string} */ name, /** @type {() => void} */ act) =>
      textButton(name === 'text' ? 'text' : name === 'audio' ? 'sound' : name, `part.${name}`, act);
    const file = (/** @type {string} */ kind) => async () => {
      const [chosen] = await pickFiles(`${kind}/*`);
      const part = chosen && (await partOf(chosen));
      if (part) this.#insert(part);
    };
    this.append(
      this.#list,
      h(
        'div',
        { class: 'row' },
        add('text', () => this.#insert({ type: 'text', text: '' })),
        add('image', file('image')),
        add('audio', file('audio')),
        add('video', file('video')),
      ),
    );
    this.#draw();
  }

  /** @returns {Part[]} */
  get parts() {
    return this.#parts.filter((part) => part.type !== 'text' || part.text.trim());
  }

  /** @param {Part[]} parts */
  set parts(parts) {
    this.#parts = parts.map((part) => ({ ...part }));
    this.#draw();
  }

  /** @param {Part} part */
  #insert(part) {
    this.#parts.push(part);
    this.#changed();
    /** @type {HTMLElement | null} */ (this.#list.querySelector('li:last-child textarea'))?.focus();
  }

  #changed() {
    this.#draw();
    this.dispatchEvent(new Event('change'));
  }

  /** @param {number} from @param {number} to */
  #move(from, to) {
    if (to < 0 || to >= this.#parts.length || from === to) return;
    const [part] = this.#parts.splice(from, 1);
    this.#parts.splice(to, 0, part);
    this.#changed();
    /** @type {HTMLElement | null} */ (this.#list.children[to]?.querySelector('button'))?.focus();
  }

  #draw() {
    this.#list.replaceChildren(
      ...this.#parts.map((part, i) => {
        const body =
          part.type === 'text'
            ? h('textarea', {
                rows: 2,
                value: part.text,
                label: 'part.text',
                oninput: (/** @type {Event} */ event) => {
                  part.text = /** @type {HTMLTextAreaElement} */ (event.target).value;
                  this.dispatchEvent(new Event('change'));
                },
              })
            : partNode(part);
        return h(
          'li',
          {
            draggable: 'true',
            ondragstart: () => (this.#dragged = i),
            ondragover: (/** @type {Event} */ event) => event.preventDefault(),
            ondrop: (/** @type {Event} */ event) => {
              event.preventDefault();
              if (this.#dragged >= 0) this.#move(this.#dragged, i);
              this.#dragged = -1;
            },
          },
          body,
          h(
            'div',
            { class: 'row' },
            iconButton('up', 'part.up', () => this.#move(i, i - 1)),
            iconButton('down', 'part.down', () => this.#move(i, i + 1)),
            iconButton('trash', 'part.remove', () => {
              this.#parts.splice(i, 1);
              this.#changed();
            }),
          ),
        );
      }),
    );
  }
}

customElements.define('p-parts', Parts);
