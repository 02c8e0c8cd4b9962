/** The middle of a call page: sphere or picture, the current state, and the last words. */

import { h } from '../../elements/dom.js';
import { makeChoices } from './choices.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

/** @param {CallPage} page @param {Node[]} signs @param {HTMLElement} start the sphere that starts a call */
export function makeStage(page, signs, start) {
  const { orb, wave, queue, stageVideo } = page;
  const stateLine = h('p', { class: 'state', role: 'status', 'aria-live': 'polite' });
  // "Tap to talk" is tapped itself, too; screen readers and keys use the sphere.
  stateLine.onclick = () => present(page).key === 'state.idle' && start.click();
  const caption = h('p', { class: 'caption', dir: 'auto' }, h('span', null), h('span', { class: 'ahead' }));
  // Captions grow word by word; screen readers receive them whole.
  const spoken = h('p', { class: 'visually-hidden', 'aria-live': 'polite' });
  const choices = makeChoices(page);
  const after = h('div', { class: 'row after', hidden: true });
  const node = h(
    'section',
    { class: 'stage', label: 'call.stage' },
    h('h1', { class: 'visually-hidden', words: `app.${page.app}` }),
    h('div', { class: 'signs row' }, ...signs),
    stageVideo ? stageVideo.node : h('div', { class: 'presence' }, start),
    h(
      'div',
      { class: 'below' },
      stageVideo ? h('div', { class: 'mini' }, orb) : wave,
      stateLine,
      choices.suggestion,
      caption,
    ),
    choices.node,
    spoken,
    queue,
    page.notices,
    after,
  );
  node.removeAttribute('title');
  let announced = -1;

  /** @param {import('../../talk/captions.js').Captions} captions */
  function showWords({ list }) {
    const last = list.findLast(({ who }) => who === 'assistant');
    const text = last?.text ?? '';
    const said = text.slice(0, last?.heard ?? 0);
    const ahead = last?.isInterrupted ? '' : text.slice(last?.heard ?? 0);
    const [a, b] = caption.children;
    a.textContent = said;
    b.textContent = ahead;
    caption.scrollTop = caption.scrollHeight;
    if (last?.isComplete && text && last.id !== announced) {
      announced = last.id;
      spoken.textContent = text;
    }
    stageVideo?.caption(said, ahead);
  }

  /** Clears the captions for a new call. */
  function clearWords() {
    announced = -1;
    spoken.textContent = '';
    showWords(/** @type {any} */ ({ list: [] }));
  }

  return { node, after, stateLine, showWords, clearWords, showModel: choices.show, drawHints: choices.draw };
}

/**
 * Returns the state of the call as a sentence and as a state of the orb.
 * @param {CallPage} page
 * @returns {{mood: string, key: string, values: Record<string, unknown>}}
 */
export function present({ calls, hasVideo }) {
  const { state } = calls;
  const { phase, activity } = state;
  const wasNever = phase === 'ended' && !state.ending?.wasReady;
  const said = (/** @type {string} */ mood, /** @type {string} */ key, values = {}) => ({ mood, key, values });
  if (phase === 'idle' || wasNever) return said('idle', hasVideo ? 'state.idle_video' : 'state.idle');
  if (phase === 'ended') return said('idle', 'state.ended');
  if (phase === 'paused' || phase === 'pausing') return said('paused', `state.${phase}`);
  if (phase === 'reconnecting') {
    const why = state.isRenewing ? 'state.renewing' : 'state.reconnecting';
    return said('waiting', state.isOffline ? 'state.offline' : why);
  }
  if (state.retrying) return said('waiting', navigator.onLine ? 'state.retrying' : 'state.offline');
  if (phase !== 'live') return said('waiting', `state.${phase}`);
  if (state.isOffline) return said('waiting', 'state.offline');
  if (state.isReturning) return said('waiting', 'state.reconnecting');
  if (state.hasNoSound) return said('waiting', 'state.no_sound');
  if (state.isStalled) return said('waiting', 'state.stalled');
  // While an answer is heard, it is not said to be missing: the next one may be.
  const isHeard = activity === 'speaking';
  if (state.service === 'silent' && !isHeard) return said('waiting', 'state.silent', { seconds: state.waitedS });
  if (state.service === 'slow' && !isHeard) return said('waiting', 'state.slow');
  if (state.isForcingListen) return said(activity, 'state.forced');
  if (state.isMuted && activity === 'listening') return said('muted', 'state.muted');
  return said(activity, `state.${activity}`);
}
