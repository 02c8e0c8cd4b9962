/** Enlargement of pictures in a list to the size of the window, by click or keyboard. */

import { h, sheet } from './dom.js';

/** @param {EventTarget} list in which pictures appear */
export function enlarge(list) {
  /** @param {EventTarget | null} target */
  const show = (target) => {
    if (!(target instanceof HTMLImageElement)) return false;
    sheet('part.image', h('img', { src: target.currentSrc || target.src, alt: target.alt })).classList.add('large');
    return true;
  };
  list.addEventListener('click', ({ target }) => show(target));
  list.addEventListener('keydown', (event) => {
    const { key, target } = /** @type {KeyboardEvent} */ (event);
    if ((key === 'Enter' || key === ' ') && show(target)) event.preventDefault();
  });
}
