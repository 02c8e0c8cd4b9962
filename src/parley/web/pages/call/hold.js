/** Push to talk. */

import { h } from '../../elements/dom.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

/**
 * Returns a button; the user is heard while it is held by finger, mouse or key.
 * @param {CallPage} page
 */
export function holdButton(page) {
  const button = h('button', { class: 'button talk', type: 'button', icon: 'mic', words: 'call.hold', hidden: true });
  const hold = (/** @type {boolean} */ on) => page.half?.hold(on);
  button.addEventListener('pointerdown', (event) => {
    // Movement of the finger meanwhile is ignored.
    button.setPointerCapture?.(event.pointerId);
    hold(true);
  });
  for (const end of ['pointerup', 'pointercancel', 'lostpointercapture', 'blur']) {
    button.addEventListener(end, () => hold(false));
  }
  button.addEventListener('contextmenu', (event) => event.preventDefault());
  // The key that started the call may still be held.
  button.addEventListener('keydown', ({ key, repeat }) => !repeat && (key === 'Enter' || key === ' ') && hold(true));
  button.addEventListener('keyup', ({ key }) => (key === 'Enter' || key === ' ') && hold(false));
  return button;
}
