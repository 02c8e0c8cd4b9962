/**
 * Suggestions for new users of a model: a sentence to say, its voices with samples, and things to do together. They are
 * hidden as soon as the user has spoken.
 */

import { h, say } from '../../elements/dom.js';
import { currentLanguage, t, words } from '../../words/words.js';

/** @typedef {import('./parts.js').CallPage} CallPage */
/** @typedef {import('../../elements/model.js').Facts} Facts */
/** @typedef {import('../../elements/model.js').Scene} Scene */

/** Time for which a suggestion is shown before the next one. */
const TURN_MS = 7000;

/** A sentence without a translation is for a model that understands only English. @param {string} sentence */
const isForeign = (sentence) => currentLanguage() === 'zh' && !/\p{Script=Han}/u.test(sentence);

/** @param {CallPage} page */
export function makeChoices(page) {
  const line = h('span', null);
  const suggestion = h('p', { class: 'suggestion', hidden: true }, line);
  const node = h('div', { class: 'choices', hidden: true });
  /** @type {string[]} */
  let sentences = [];
  let at = 0;
  let wasAgain = false;
  const draw = () => {
    const said = page.calls.current?.captions.list ?? [];
    const hasWords = said.some((/** @type {any} */ { who }) => who !== 'note');
    const { phase, service, isOffline, isReturning } = page.calls.state;
    const isWell = service === 'ok' && !isOffline && !isReturning;
    const isIdle = phase === 'idle' || phase === 'ended';
    const isFree = page.notices.childElementCount === 0;
    const isOver = phase === 'ended' && page.calls.state.ending?.reason !== 'not_started';
    const hasSentence = sentences.length > 0 && !hasWords && !isOver;
    const isAgain = isOver && !page.hasVideo;
    suggestion.hidden = !(isIdle || (phase === 'live' && isWell)) || !isFree || !(hasSentence || isAgain);
    if (isAgain) say(line, 'call.tap_again');
    else if (wasAgain) next();
    wasAgain = isAgain;
    node.hidden = !isIdle || isOver || !isFree || node.childElementCount === 0;
  };
  const next = () => {
    if (sentences.length === 0) return;
    // Forces a new layout, so that the animation restarts for each suggestion.
    suggestion.classList.remove('fresh');
    void suggestion.offsetWidth;
    suggestion.classList.add('fresh');
    const sentence = t(sentences[at++ % sentences.length]);
    say(line, isForeign(sentence) ? 'call.try_english' : 'call.try', { words: sentence });
  };
  words.addEventListener('language', () => {
    at = Math.max(0, at - 1);
    if (!wasAgain) next();
  });
  setInterval(() => {
    if (!suggestion.hidden && !wasAgain && !document.hidden && sentences.length > 1) next();
  }, TURN_MS);
  /** @param {Facts} facts @param {string} [chosen] scene */
  const show = (facts, chosen = '') => {
    const scene = facts.scenes.find(({ id }) => id === chosen);
    const choose = (/** @type {string} */ id) => {
      const wanted = id === chosen ? '' : id;
      void enterScene(page, facts.scenes.find((one) => one.id === wanted) ?? null, () => show(facts));
      show(facts, wanted);
    };
    sentences = scene?.spoken ?? [...facts.spoken, ...(page.stageVideo ? facts.seen : [])];
    at = 0;
    next();
    node.replaceChildren(
      ...(facts.voices.length > 1 ? [voiceRow(page, facts.voices)] : []),
      ...(facts.scenes.length > 0 ? [sceneRow(facts.scenes, chosen, choose)] : []),
    );
    draw();
  };
  return { node, suggestion, draw, show };
}

/** @param {string} label @param {string} kind @param {Node[]} buttons */
function group(label, kind, buttons) {
  const row = h('div', { class: `row ${kind}`, role: 'group', label }, ...buttons);
  row.removeAttribute('title');
  return row;
}

/**
 * Returns the model's built-in voices; a press chooses one and plays it.
 * @param {CallPage} page @param {import('../../elements/model.js').OwnVoice[]} voices the default one first
 */
function voiceRow(page, voices) {
  const buttons = voices.map(({ id }, i) => {
    const pick = async () => {
      for (const one of buttons) one.setAttribute('aria-pressed', String(one === button));
      await page.whenLoaded();
      await page.voice.pick(i === 0 ? 'default' : `model:${id}`);
    };
    const state = { 'aria-pressed': String(i === 0), 'data-voice': id };
    const face = h('span', { class: 'face', 'aria-hidden': 'true' });
    const button = h('button', { class: 'voice', type: 'button', ...state, onclick: () => void pick() }, face);
    button.append(h('span', { words: `voice.short_${id}` }));
    return button;
  });
  return group('call.voices', 'voices', buttons);
}

/**
 * @param {Scene[]} scenes @param {string} chosen
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
  return group('scene.label', 'scenes', buttons);
}

/**
 * Replaces the page's instructions with those of a scene, until it is left here or in the settings.
 * @param {CallPage} page @param {Scene | null} scene @param {() => void} onLeft
 */
async function enterScene(page, scene, onLeft) {
  await page.whenLoaded();
  page.prompt.borrow(scene?.prompt ? t(scene.prompt) : null);
  page.prompt.addEventListener('own', onLeft, { once: true });
}
