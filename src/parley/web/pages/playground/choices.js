/** The protocols to choose from. */

import { h } from '../../elements/dom.js';
import { DIALECTS } from './dialects.js';

/** @typedef {import('./dialects.js').Dialect} Dialect */

/** @param {(dialect: Dialect) => void} onChoose */
export function makeChoices(onChoose) {
  /** @param {KeyboardEvent} event @param {number} at */
  const move = (event, at) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (at + step + DIALECTS.length) % DIALECTS.length;
    onChoose(DIALECTS[next]);
    buttons[next].focus();
  };
  const buttons = DIALECTS.map((dialect, at) =>
    h(
      'button',
      {
        type: 'button',
        role: 'radio',
        onclick: () => onChoose(dialect),
        onkeydown: (/** @type {KeyboardEvent} */ event) => move(event, at),
      },
      h('strong', { words: `dialect.${dialect.id}` }),
      h('span', { class: 'small quiet', words: `dialect.${dialect.id}_more` }),
    ),
  );
  const node = h('div', { class: 'dialects', role: 'radiogroup', label: 'play.dialects' }, ...buttons);
  node.removeAttribute('title');
  /** @param {Dialect} chosen */
  const show = (chosen) => {
    for (const [at, button] of buttons.entries()) {
      const isChosen = DIALECTS[at] === chosen;
      button.setAttribute('aria-checked', String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    }
  };
  return { node, show };
}
