/**
 * The controls in a separate small window above all other windows: state, time, mute, pause, stop and hang up while the
 * user works in another program. It is not offered in browsers without such windows.
 */

import { h, toast } from '../../elements/dom.js';
import { words } from '../../words/words.js';
import { listenToKeys } from './keys.js';

/** @typedef {import('./parts.js').CallPage} CallPage */
/** @typedef {{requestWindow: (size: {width: number, height: number}) => Promise<Window>}} SmallWindows */

const SIZE = { width: 380, height: 230 };

/** @returns {SmallWindows | undefined} */
const windows = () => /** @type {any} */ (globalThis).documentPictureInPicture;

/** @type {Window | null} */
let small = null;

/**
 * Opens the window, or closes it if it is open. Must be called from a user's gesture.
 * @param {CallPage} page @param {{node: HTMLElement, main: HTMLElement}} controls
 */
export async function toggleSmall(page, controls) {
  if (small) {
    small.close();
    return;
  }
  try {
    small = /** @type {Window} */ (await windows()?.requestWindow(SIZE));
  } catch {
    toast('call.no_small');
    return;
  }
  const { document: inside } = small;
  dress(inside);
  // The controls themselves are moved there, so there is only one of each and no second state.
  const place = document.createComment('controls');
  const away = h('p', { class: 'quiet away', words: 'call.is_small' });
  controls.node.replaceWith(place, away);
  inside.body.append(controls.node);
  listenToKeys(page, { main: controls.main, side: { isOpen: () => false } }, inside);
  const close = () => small?.close();
  words.addEventListener('language', close);
  small.addEventListener(
    'pagehide',
    () => {
      words.removeEventListener('language', close);
      away.remove();
      place.replaceWith(controls.node);
      small = null;
    },
    { once: true },
  );
}

/** Copies the styles of this page to that document. @param {Document} inside */
function dress(inside) {
  const { documentElement: here } = document;
  inside.documentElement.lang = here.lang;
  if (here.dataset.theme) inside.documentElement.dataset.theme = here.dataset.theme;
  inside.title = document.title;
  for (const { href } of /** @type {NodeListOf<HTMLLinkElement>} */ (
    document.querySelectorAll('link[rel="stylesheet"]')
  )) {
    inside.head.append(h('link', { rel: 'stylesheet', href }));
  }
  inside.body.className = 'small-window';
}
