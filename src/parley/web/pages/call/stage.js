/** The middle of a call page: presence or picture, what it does now, and its last words. */

import { h } from '../../elements/dom.js';
import { t } from '../../words/words.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

/** @param {CallPage} page @param {Node[]} signs */
export function makeStage(page, signs) {
  const { orb, wave, queue, stageVideo } = page;
  const stateLine = h('p', { class: 'state', role: 'status', 'aria-live': 'polite' });
  const caption = h('p', { class: 'caption' }, h('span', null), h('span', { class: 'ahead' }));
  // Captions grow word by word; who listens to the page instead of looking at it gets them whole.
  const spoken = h('p', { class: 'visually-hidden', 'aria-live': 'polite' });
  const hints = makeHints(page);
  const after = h('div', { class: 'row after', hidden: true });
  const node = h(
    'section',
    { class: 'stage', label: 'call.stage' },
    h('h1', { class: 'page-title', words: `app.${page.app}` }),
    h('div', { class: 'signs row' }, ...signs),
    stageVideo ? stageVideo.node : h('div', { class: 'presence' }, orb),
    stageVideo ? h('div', { class: 'mini' }, orb) : wave,
    stateLine,
    hints.node,
    caption,
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

  /** A new call has its own words, and nobody's yet. */
  function clearWords() {
    announced = -1;
    spoken.textContent = '';
    showWords(/** @type {any} */ ({ list: [] }));
  }

  return { node, after, stateLine, showWords, clearWords, showModel: hints.show, drawHints: hints.draw };
}

/** What can be said to this model, for people who do not know it yet, until somebody has. @param {CallPage} page */
function makeHints(page) {
  const node = h('div', { class: 'hints quiet', hidden: true });
  const draw = () => {
    const said = page.calls.current?.captions.list ?? [];
    const hasWords = said.some((/** @type {any} */ { who }) => who !== 'note');
    const isWaiting = ['idle', 'live', 'ended'].includes(page.calls.state.phase);
    node.hidden = hasWords || !isWaiting || page.notices.childElementCount > 1 || node.childElementCount === 0;
  };
  const quoted = (/** @type {string} */ key) => h('li', null, '“', h('span', { words: key }), '”');
  /** @param {string} title @param {string[]} keys */
  const list = (title, keys) => (keys.length > 0 ? [h('p', { words: title }), h('ul', null, ...keys.map(quoted))] : []);
  /**
   * What is said to begin with; in a scene, what belongs to it.
   * @param {import('../../elements/model.js').Facts} facts @param {string} [chosen] scene
   */
  const show = (facts, chosen = '') => {
    const { about, name, spoken, seen, scenes } = facts;
    const scene = scenes.find(({ id }) => id === chosen);
    const choose = (/** @type {string} */ id) => {
      const next = id === chosen ? '' : id;
      void enterScene(page, scenes.find((one) => one.id === next) ?? null, () => show(facts));
      show(facts, next);
    };
    node.replaceChildren(
      ...(about ? [h('p', { class: 'small', words: [about, { model: name }] })] : []),
      ...(scenes.length > 0 ? [sceneRow(scenes, chosen, choose)] : []),
      ...list('call.try', scene?.spoken ?? spoken),
      ...(page.stageVideo && !scene ? list('call.try_show', seen) : []),
    );
    draw();
  };
  return { node, draw, show };
}

/**
 * @param {import('../../elements/model.js').Scene[]} scenes @param {string} chosen
 * @param {(id: string) => void} choose
 */
function sceneRow(scenes, chosen, choose) {
  const buttons = scenes.map(({ id }) => {
    const onclick = () => {
      choose(id);
      /** @type {HTMLElement | null} */ (document.querySelector(`[data-scene="${id}"]`))?.focus();
    };
    const state = { 'aria-pressed': String(id === chosen), 'data-scene': id };
    return h('button', { class: 'button slim', type: 'button', words: `scene.${id}`, ...state, onclick });
  });
  const row = h('div', { class: 'row scenes', role: 'group', label: 'scene.label' }, ...buttons);
  row.removeAttribute('title');
  return row;
}

/**
 * The instructions of a scene take the place of the page's, until it is left here or in the settings.
 * @param {CallPage} page @param {import('../../elements/model.js').Scene | null} scene @param {() => void} onLeft
 */
async function enterScene(page, scene, onLeft) {
  await page.whenLoaded();
  page.prompt.borrow(scene?.prompt ? t(scene.prompt) : null);
  page.prompt.addEventListener('own', onLeft, { once: true });
}

/**
 * What is going on, in a sentence, and how the orb shows it.
 * @param {CallPage} page
 * @returns {{mood: string, key: string, values: Record<string, unknown>}}
 */
export function present({ calls, hasVideo }) {
  const { state } = calls;
  const { phase, activity } = state;
  const isNotStarted = phase === 'ended' && state.ending?.reason === 'not_started';
  const said = (/** @type {string} */ mood, /** @type {string} */ key, values = {}) => ({ mood, key, values });
  if (phase === 'idle' || isNotStarted) return said('idle', hasVideo ? 'state.idle_video' : 'state.idle');
  if (phase === 'ended') return said('idle', 'state.ended');
  if (phase === 'paused' || phase === 'pausing') return said('paused', `state.${phase}`);
  if (phase === 'reconnecting') {
    const why = state.isRenewing ? 'state.renewing' : 'state.reconnecting';
    return said('waiting', state.isOffline ? 'state.offline' : why);
  }
  if (phase !== 'live') return said('waiting', state.retrying ? 'state.retrying' : `state.${phase}`);
  if (state.isOffline) return said('waiting', 'state.offline');
  if (state.isReturning) return said('waiting', 'state.reconnecting');
  if (state.service === 'silent') return said('waiting', 'state.silent', { seconds: state.waitedS });
  if (state.service === 'slow') return said('waiting', 'state.slow');
  if (state.isForcingListen) return said(activity, 'state.forced');
  if (state.isMuted && activity === 'listening') return said('muted', 'state.muted');
  return said(activity, `state.${activity}`);
}
