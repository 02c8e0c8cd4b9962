/** Reasons for the end of a connection, the same for every dialect. */

/**
 * stopped: we requested it · cancelled: the client was removed from the queue · busy: no capacity, try later · refused:
 * not allowed · bad: we sent an invalid message · failed: an error in the server · lost: the network
 * @typedef {'stopped' | 'cancelled' | 'timeout' | 'context_full' | 'server_shutdown' | 'busy' | 'refused' | 'bad' | 'failed' | 'lost'} Reason
 */
/** @typedef {{reason: Reason, code: string, sentence: string, wasReady: boolean}} Ending */

/** Error codes with which the server reports an invalid message of ours. */
const OURS = [
  'invalid_payload',
  'invalid_config',
  'invalid_request',
  'missing_field',
  'unknown_event',
  'invalid_event',
  'not_prepared',
];

/** @param {number} code of the close @param {string} serverCode of the error that preceded it @returns {Reason} */
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
