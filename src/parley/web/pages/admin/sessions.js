/** The sessions of the gateway, with their location and a button to end each. */

import { h } from '../../elements/dom.js';
import { clock } from '../../words/words.js';
import { ask, dangerButton, show, table } from './shared.js';

/** Appearance of the states of sessions. @type {Record<string, string>} */
const SESSION_SIGNS = { connected: 'good', away: 'fair', moving: 'fair', lost: 'poor' };

/**
 * Shows the location of each session that has not ended.
 * @param {any[]} sessions
 * @param {number} missing sessions whose log cannot be written
 */
export function drawSessions(sessions, missing) {
  const underway = sessions.filter(({ state }) => state !== 'ended');
  show(
    'sessions',
    ...(missing > 0 ? [h('p', { words: ['admin.logs_missing', { count: missing }] })] : []),
    table(
      ['session', 'state', 'for', 'worker', 'protected', ''],
      underway.map(({ session_id: id, state, for_s: seconds, worker, is_protected: isProtected, why }) => [
        h('span', { class: 'mono small cut', title: id }, id),
        h(
          'span',
          { class: 'chip', title: why || null },
          h('span', { class: 'dot', 'data-is': SESSION_SIGNS[state] ?? '' }),
          h('span', { words: `registry.${state}` }),
        ),
        clock(seconds ?? 0),
        worker ? h('span', { class: 'mono small' }, worker) : '–',
        h('span', { words: isProtected ? 'admin.yes' : 'admin.no' }),
        ['connected', 'away', 'lost'].includes(state) ? endButton(id) : null,
      ]),
      'sessions',
    ),
  );
}

/** @param {string} id session */
const endButton = (id) =>
  dangerButton('admin.end', ['admin.end_sure', 'admin.end', { session: id }], () =>
    ask(`/api/sessions/${encodeURIComponent(id)}/end`, { method: 'POST' }),
  );
