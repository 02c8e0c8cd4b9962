/** Notices: what went wrong, and what the user can do. */

import { mediaBarrier, toMediaError } from '../audio/devices.js';
import { has, t } from '../words/words.js';
import { h, iconButton, toast } from './dom.js';
import { icon } from './icons.js';

/** @typedef {{words: string, act: () => void, isMain?: boolean}} Way */

/** Code whose text leaves open what is wrong; the server's sentence says it. */
const UNSAID = 'invalid_payload';

/**
 * @param {'error' | 'warn' | 'info'} kind
 * @param {string} title key
 * @param {string} [body] key or, with `said`, the server's own sentence
 * @param {{values?: Record<string, unknown>, ways?: Way[], said?: string, onClose?: () => void}} [more]
 */
export function notice(kind, title, body, { values, ways = [], said, onClose } = {}) {
  const node = h(
    'div',
    { class: 'notice', 'data-kind': kind, role: kind === 'error' ? 'alert' : 'status' },
    icon(kind === 'info' ? 'info' : 'warn'),
    h(
      'div',
      null,
      h('strong', { words: values ? [title, values] : title }),
      body ? h('span', { words: values ? [body, values] : body }) : null,
      said ? h('span', { class: 'small quiet' }, ` ${said}`) : null,
    ),
    onClose ? iconButton('close', 'action.dismiss', () => onClose()) : null,
  );
  if (ways.length > 0) {
    node.append(
      h(
        'div',
        { class: 'row' },
        ...ways.map(({ words, act, isMain }) =>
          h('button', { class: `button slim${isMain ? ' primary' : ''}`, type: 'button', words, onclick: act }),
        ),
      ),
    );
  }
  return node;
}

/** Returns the browser whose settings to describe. */
function browser() {
  const agent = navigator.userAgent;
  if (/iPhone|iPad/.test(agent)) return 'ios';
  if (/Firefox/.test(agent)) return 'firefox';
  if (/Chrome|Chromium|Edg/.test(agent)) return 'chrome';
  return 'safari';
}

/** Returns a notice if devices cannot be used here at all; null if they can. */
export function barrierNotice() {
  const barrier = mediaBarrier();
  if (!barrier) return null;
  const secure = new URL(location.href);
  secure.protocol = 'https:';
  // A server sends browsers from HTTP to HTTPS if it speaks both on this port.
  const fix = secure.port ? 'media.insecure_port' : 'media.insecure_fix';
  return barrier === 'insecure'
    ? notice('error', 'media.insecure', fix, { values: { url: secure.href } })
    : notice('error', 'media.unsupported', 'media.unsupported_fix');
}

/**
 * @param {{trouble: import('../audio/devices.js').MediaTrouble, device: 'microphone' | 'camera'}} trouble
 * @param {Way[]} ways
 */
export function mediaNotice({ trouble, device }, ways) {
  if (trouble === 'insecure' || trouble === 'unsupported') return /** @type {HTMLElement} */ (barrierNotice());
  return notice('error', `media.${trouble}_${device}`, fixOf(trouble), { ways });
}

/** @param {import('../audio/devices.js').MediaTrouble} trouble @returns {string | undefined} key */
function fixOf(trouble) {
  const fix = trouble === 'denied' ? `media.denied_${browser()}` : `media.${trouble}_fix`;
  return has(fix) ? fix : undefined;
}

/** Says in passing why a call could not change its microphone. @param {unknown} error */
export function microphoneToast(error) {
  const { trouble } = toMediaError(error, 'microphone');
  const fix = fixOf(trouble);
  toast(`media.${trouble}_microphone`, undefined, fix && h('span', { words: fix }));
}

/**
 * Returns a notice of why a conversation ended; null if the user ended it.
 * @param {import('../wire/reasons.js').Ending} ending
 * @param {Way[]} ways
 */
export function endingNotice({ reason, code, sentence, wasReady }, ways) {
  if (reason === 'stopped') return null;
  // During a call this code means that the server is shutting down, not that it is not ready yet.
  const isLeaving = wasReady && code === 'service_unavailable';
  const key = isLeaving ? 'end.server_shutdown' : ([`code.${code}`, `end.${reason}`].find(has) ?? 'end.failed');
  const isQuiet = ['timeout', 'context_full', 'cancelled'].includes(reason);
  const passes = ['busy', 'server_shutdown'].includes(reason);
  const isSaid = !['bad', 'refused', 'failed'].includes(reason) || (has(`code.${code}`) && code !== UNSAID);
  const said = code && !isSaid ? sentence : undefined;
  return notice(isQuiet ? 'info' : passes ? 'warn' : 'error', key, has(`${key}_fix`) ? `${key}_fix` : undefined, {
    ways,
    said,
  });
}

/** @param {string} code @param {string} [sentence] the server's own @returns {string} text for an error of a request */
export function errorText(code, sentence = '') {
  const own = [`code.${code}`, `end.${code}`].find(has);
  const text = t(own ?? 'error.request');
  return own && code !== UNSAID ? text : `${text} ${sentence}`.trim();
}
