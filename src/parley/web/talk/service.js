/** What is believed of a server that gives no answer, and how often a call is dialled again because of it. */

/** An answer that is due for this long is late; for this long, missing; for this long, will not come. */
const SLOW_MS = 3000;
const SILENT_MS = 8000;
const LOST_MS = 20_000;
/** A call is dialled again so often within that time. */
const REDIALS = 3;
const REDIALS_WITHIN_MS = 120_000;

/**
 * @param {number} waitedMs for how long an answer has been due
 * @returns {{service: 'ok' | 'slow' | 'silent', waitedS: number, isLost: boolean}}
 */
export function serviceAfter(waitedMs) {
  const service = waitedMs > SILENT_MS ? 'silent' : waitedMs > SLOW_MS ? 'slow' : 'ok';
  return { service, waitedS: service === 'ok' ? 0 : Math.floor(waitedMs / 1000), isLost: waitedMs > LOST_MS };
}

/** When a call was dialled again. */
export class Redials {
  /** @type {number[]} */
  #at = [];

  /** True if it may be dialled again; if so, that counts. @param {number} now ms */
  take(now) {
    this.#at = this.#at.filter((then) => now - then < REDIALS_WITHIN_MS);
    if (this.#at.length >= REDIALS) return false;
    this.#at.push(now);
    return true;
  }
}
