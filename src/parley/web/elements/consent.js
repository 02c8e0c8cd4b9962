/**
 * Consent to recording by the server. It is requested once, before the first conversation, and every page has the same
 * switch. Nothing is stored without consent.
 *
 * The browser's permission prompt for microphone and camera gives no reason, so the page explains it first.
 */

import { about } from '../wire/about.js';
import { h, sheet } from './dom.js';
import { icon } from './icons.js';

const KEY = 'parley.record';
const EXPLAINED = 'parley.explained';

/** Dispatches 'change' when the answer changes. */
export const recordingChoice = new EventTarget();

/** True if the user has been asked and has answered. */
export const hasChosen = () => ['yes', 'no'].includes(localStorage.getItem(KEY) ?? '');

export const mayRecord = () => localStorage.getItem(KEY) === 'yes';

/** @param {boolean} may */
export function setRecord(may) {
  localStorage.setItem(KEY, may ? 'yes' : 'no');
  recordingChoice.dispatchEvent(new Event('change'));
}

/** Returns the switch that is on every page. */
export function recordingSwitch() {
  const input = h('input', { type: 'checkbox', role: 'switch', onchange: () => setRecord(input.checked) });
  const show = () => {
    input.checked = mayRecord();
  };
  recordingChoice.addEventListener('change', show);
  show();
  const hint = h('small', { words: 'consent.switch_hint' });
  return h('label', { class: 'switch' }, h('span', null, h('span', { words: 'consent.switch' }), hint), input);
}

/** @param {string} device @returns {Promise<boolean>} true if the browser will ask for permission */
async function willAsk(device) {
  try {
    const name = /** @type {PermissionName} */ (device);
    return (await navigator.permissions.query({ name })).state === 'prompt';
  } catch {
    // A browser that does not report the permission will probably ask.
    return true;
  }
}

/**
 * Explains and asks what has not been explained and asked yet.
 * @param {{microphone?: boolean, camera?: boolean, signal?: AbortSignal}} what the conversation needs
 * @returns {Promise<boolean>} false if the user cancels the conversation
 */
export async function mayBegin({ microphone = false, camera = false, signal }) {
  const { records, keptDays } = await about();
  const needs = [...(microphone ? ['microphone'] : []), ...(camera ? ['camera'] : [])];
  const isNew = !localStorage.getItem(EXPLAINED);
  const asks = isNew ? (await Promise.all(needs.map(willAsk))).some(Boolean) : false;
  const asksToRecord = records && !hasChosen();
  if (!asks && !asksToRecord) return true;
  if (signal?.aborted) return false;
  return await ask({ devices: asks ? needs : [], asksToRecord, keptDays, signal });
}

/**
 * @param {{devices: string[], asksToRecord: boolean, keptDays: number | null, signal?: AbortSignal}} what
 * @returns {Promise<boolean>}
 */
function ask({ devices, asksToRecord, keptDays, signal }) {
  return new Promise((resolve) => {
    /** @param {boolean | null} record null if it was not asked */
    const go = (record) => () => {
      if (record !== null) setRecord(record);
      if (devices.length > 0) localStorage.setItem(EXPLAINED, 'yes');
      isAnswered = true;
      node.close();
    };
    let isAnswered = false;
    /** @param {string} name @param {Node[]} text */
    const point = (name, ...text) => h('div', { class: 'point' }, icon(name), h('div', null, ...text));
    const kept = keptDays === null ? 'consent.kept' : 'consent.kept_days';
    const primary = { class: 'button primary', type: 'button' };
    const buttons = asksToRecord
      ? [
          h('button', { ...primary, words: 'consent.yes', onclick: go(true) }),
          h('button', { class: 'button', type: 'button', words: 'consent.no', onclick: go(false) }),
        ]
      : [h('button', { ...primary, autofocus: true, words: 'consent.go', onclick: go(null) })];
    const node = sheet(
      'consent.title',
      ...devices.map((device) => point(device === 'camera' ? 'camera' : 'mic', h('p', { words: `consent.${device}` }))),
      asksToRecord
        ? point(
            'shield',
            h('p', { words: 'consent.question' }),
            h('p', { class: 'small quiet', words: [kept, { days: keptDays }] }),
          )
        : null,
      h('p', { class: 'small' }, h('a', { href: '/privacy', target: '_blank', words: 'consent.more' })),
      h('div', { class: 'row' }, ...buttons),
    );
    // An Enter that is held or pressed twice must not be an answer.
    if (asksToRecord) Object.assign(node, { tabIndex: -1 }).focus();
    node.addEventListener('close', () => resolve(isAnswered));
    signal?.addEventListener('abort', () => node.close());
  });
}
