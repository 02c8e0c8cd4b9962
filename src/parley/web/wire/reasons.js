/** Why a connection ended, in words that are the same for every dialect. */

/**
 * stopped: we asked · cancelled: someone took us out of the queue · busy: no room, try later ·
 * refused: not allowed · bad: we said something the server could not use · failed: the server's fault ·
 * lost: the network
 * @typedef {'stopped' | 'cancelled' | 'timeout' | 'context_full' | 'server_shutdown' | 'busy' | 'refused' |
 *   'bad' | 'failed' | 'lost'} Reason
 */
/** @typedef {{reason: Reason, code: string, sentence: string, wasReady: boolean}} Ending */

/** Codes of the server that say that a message of ours was wrong. */
const OURS = [
  'invalid_payload',
  'invalid_config',
  'invalid_request',
  'missing_field',
  'unknown_event',
  'invalid_event',
  'not_prepared',
];

/** @param {number} code of the close @param {string} serverCode of the error before it @returns {Reason} */
export function reasonOf(code, serverCode) {
  if (serverCode === 'context_full') return 'context_full';
  if (serverCode === 'cancelled') return 'cancelled';
  switch (code) {
    case 1000:
      return 'stopped';
    case 1001:
      return 'server_shutdown';
    case 1003:
    case 1007:
    case 1009:
      return 'bad';
    case 1008:
      return OURS.includes(serverCode) ? 'bad' : 'refused';
    case 1013:
      return 'busy';
    case 1005:
    case 1006:
    case 1012:
      return 'lost';
    default:
      return 'failed';
  }
}
