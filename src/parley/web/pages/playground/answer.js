/** The assistant's answer as audio and text, in any protocol. */

import { h } from '../../elements/dom.js';

/** @typedef {import('./dialects.js').Dialect} Dialect */

const LAST = /^(turn_done|response\.done|done)$/;

export class Answer {
  node = h('p', { class: 'answer', dir: 'auto', 'aria-live': 'polite', hidden: true });
  #turn = 0;

  /** @param {import('../../audio/rig.js').Rig} rig */
  constructor(rig) {
    this.rig = rig;
  }

  clear() {
    this.node.textContent = '';
    this.node.hidden = true;
  }

  /** @param {any} message of the server @param {Dialect} dialect */
  receive(message, dialect) {
    const sound = dialect.heard(message);
    if (sound?.length) {
      this.#turn ||= this.rig.newTurn();
      this.rig.play(this.#turn, sound);
    }
    if (message.end_of_turn || LAST.test(message.type ?? '')) {
      if (this.#turn) this.rig.endTurn(this.#turn);
      this.#turn = 0;
      if (this.node.textContent) this.node.append(' ');
    }
    this.node.append(wordsOf(message));
    this.node.hidden = !this.node.textContent?.trim();
  }
}

/** Returns the assistant's text in one message of any protocol. @param {any} message @returns {string} */
export function wordsOf(message) {
  const { type = '', object } = message;
  const choice = message.choices?.[0];
  if (choice) return choice.delta?.content ?? choice.message?.content ?? '';
  if (/(text|transcript)\.delta$/.test(type) && !type.includes('input_audio')) return message.delta ?? '';
  if (object === 'response') {
    const parts = (message.output ?? []).flatMap((/** @type {any} */ item) => item.content ?? []);
    return parts.map((/** @type {any} */ part) => part.text ?? '').join('');
  }
  const isPiece = ['chunk', 'result', 'response.output_audio.delta'].includes(type);
  return isPiece ? (message.text_delta ?? message.text ?? '') : '';
}
