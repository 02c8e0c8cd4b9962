/** Facts that the server reports about itself, requested once per page. */

import { requestIfAny } from './http.js';

/**
 * @typedef {object} About
 * @property {string} model name of the model; '' if the server does not report it
 * @property {number | null} playbackDelayMs
 * @property {string | undefined} language set by the operator
 * @property {string[]} apiHosts other servers that `?api=` may name
 * @property {Record<string, number>} limitsS maximum seconds of a call, by mode; empty if the server reports none
 * @property {number | null} keptDays days for which recordings are stored; null: until deleted
 * @property {boolean} records true if this server records at all
 */

/** @type {Promise<About> | null} */
let asked = null;

/** Never rejects: if the server does not answer, the fields have their defaults. @returns {Promise<About>} */
export function about() {
  asked ??= requestIfAny('/api/frontend_defaults')
    .catch(() => null)
    .then((told) => ({
      model: typeof told?.model === 'string' ? told.model : '',
      playbackDelayMs: typeof told?.playback_delay_ms === 'number' ? told.playback_delay_ms : null,
      language: told?.default_lang,
      apiHosts: Array.isArray(told?.api_hosts) ? told.api_hosts : [],
      limitsS: told?.session_limits_s ?? {},
      keptDays: typeof told?.retention_days === 'number' && told.retention_days >= 0 ? told.retention_days : null,
      records: told?.recording ?? true,
    }));
  return asked;
}
