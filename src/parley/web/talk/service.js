/** State of a server that does not answer, and the limit of reconnections because of it. */

/** Time for which an answer is due until it counts as late, as missing, and as lost. */
const SLOW_MS = 3000;
const SILENT_MS = 8000;
const LOST_MS = 20_000;
/** Maximum number of reconnections of a call, and the time in which they are counted. */
const REDIALS = 3;
const REDIALS_WITHIN_MS = 120_000;

/**
 * @param {number} waitedMs time for which an answer has been due
 * @returns {{service: 'ok' | 'slow' | 'silent', waitedS: number, isLost: boolean}}
 */
export function serviceAfter(waitedMs) {
  const service = waitedMs > SILENT_MS ? 'silent' : waitedMs > SLOW_MS ? 'slow' : 'ok';
  return { service, waitedS: service === 'ok' ? 0 : Math.floor(waitedMs / 1000), isLost: waitedMs > LOST_MS };
}

/** Limits the reconnections of a call. */
export class Redials {
  /** @type {number[]} */
  #at = [];

  /** Returns true if the call may reconnect, and counts the reconnection. @param {number} now ms */
  take(now) {
    this.#at = this.#at.filter((then) => now - then < REDIALS_WITHIN_MS);
    if (this.#at.length >= REDIALS) return false;
    this.#at.push(now);
    return true;
  }
}
