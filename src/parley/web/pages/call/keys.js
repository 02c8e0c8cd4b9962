/** Keys, media keys, the wake lock of the screen, and leaving a page during a call. */

import { once } from '../../elements/dom.js';
import { t } from '../../words/words.js';
import { toggleMute, togglePause } from './controls.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

const FIELDS = 'input, textarea, select, dialog, [contenteditable]';

/**
 * @param {CallPage} page
 * @param {{main: HTMLElement, side: {isOpen: () => boolean}}} around
 * @param {Document} [where] the document with the controls, which may be in a small window
 */
export function listenToKeys(page, { main, side }, where = document) {
  const mute = once(() => toggleMute(page), 200);
  /** True if the keyboard has focused a button; otherwise Space means mute. @param {HTMLElement} at */
  const isAimed = (at) => {
    const button = at.closest('button, a, summary');
    return button !== null && button !== main && !button.matches('.start') && button.matches(':focus-visible');
  };
  /** @param {KeyboardEvent} event */
  const isForPage = (event) => {
    const at = /** @type {HTMLElement} */ (event.target);
    return !at.closest(FIELDS) && !event.ctrlKey && !event.metaKey && !event.altKey;
  };
  /**
   * Closes the panel on Escape, also from a field; the focus returns to the button that opened it.
   * @param {KeyboardEvent} event
   */
  const closeSide = ({ target, isComposing }) => {
    if (isComposing || !side.isOpen() || /** @type {HTMLElement} */ (target).closest('dialog')) return;
    page.openSide(null);
    for (const act of ['more', 'text']) {
      /** @type {HTMLElement | null} */ (where.querySelector(`.dock [data-act="${act}"]`))?.focus();
    }
  };
  where.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') closeSide(event);
    if (!isForPage(event)) return;
    const at = /** @type {HTMLElement} */ (event.target);
    const key = event.key.toLowerCase();
    if (key === ' ' && page.calls.isOn && !isAimed(at)) {
      event.preventDefault();
      if (page.half?.order?.isPushToTalk) page.half.hold(true);
      else if (!event.repeat) mute();
    } else if (key === 'm') mute();
    else if (key === 'f') page.stageVideo?.full();
    else if (key === 's' && page.stageVideo) page.settings.set('captions', !page.settings.get('captions'));
  });
  where.addEventListener('keyup', (event) => {
    if (event.key !== ' ' || !isForPage(event) || !page.calls.isOn) return;
    // Some browsers press a button when the key is released.
    if (!isAimed(/** @type {HTMLElement} */ (event.target))) event.preventDefault();
    page.half?.hold(false);
  });
}

/** @param {string} key @param {(() => void) | null} act */
function onSystemKey(key, act) {
  try {
    navigator.mediaSession.setActionHandler(/** @type {MediaSessionAction} */ (key), act);
  } catch {
    // The browser does not support this key.
  }
}

/**
 * Connects the keys of headset and lock screen to microphone, pause, and the end of the call.
 * @param {CallPage} page
 */
export function listenToMediaKeys(page) {
  if (!('mediaSession' in navigator)) return;
  const keys = /** @type {[string, () => void][]} */ ([
    ['togglemicrophone', () => toggleMute(page)],
    ['hangup', () => page.calls.stop()],
    ['pause', () => page.duplex?.pause()],
    ['play', () => togglePause(page)],
  ]);
  let wasOn = false;
  page.calls.addEventListener('change', () => {
    const isOn = page.calls.isOn;
    if (isOn === wasOn) return;
    wasOn = isOn;
    if (isOn) navigator.mediaSession.metadata = new MediaMetadata({ title: t(`app.${page.app}`), artist: 'parley' });
    for (const [key, act] of keys) onSystemKey(key, isOn ? act : null);
  });
}

/** Keeps the screen on during a call. @param {CallPage} page */
export function keepAwake({ calls }) {
  /** @type {WakeLockSentinel | null} */
  let lock = null;
  const update = async () => {
    if (!calls.isOn) {
      void lock?.release();
      lock = null;
    } else if ((!lock || lock.released) && !document.hidden) {
      lock = (await navigator.wakeLock?.request('screen').catch(() => null)) ?? null;
    }
  };
  calls.addEventListener('live', update);
  calls.addEventListener('change', () => calls.isOn || void update());
  document.addEventListener('visibilitychange', update);
}

/** @param {CallPage} page */
export function watchLeaving({ calls, rig, stageVideo }) {
  for (const sign of ['pointerdown', 'keydown']) {
    document.addEventListener(sign, () => calls.current?.noticed(), { capture: true });
  }
  document.addEventListener('visibilitychange', async () => {
    if (document.hidden) return;
    calls.current?.noticed();
    if (calls.isBusy && rig.context && rig.context.state !== 'running') await calls.current?.wake().catch(() => {});
  });
  // On a click on the menu or a reload, the browser asks for confirmation.
  globalThis.addEventListener('beforeunload', (event) => {
    if (calls.isOn || calls.state.phase === 'reconnecting') event.preventDefault();
  });
  // On some phones the next page receives a black picture while this one still uses the camera.
  globalThis.addEventListener('pagehide', () => {
    calls.stop();
    stageVideo?.release();
    void rig.close();
  });
}
