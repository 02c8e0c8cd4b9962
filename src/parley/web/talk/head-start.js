/**
 * Delay before a turn is played, so that its next part arrives in time.
 *
 * The next part is expected to be as late as the latest of the last ones. If the first part, which can take longer to
 * generate, was later than that, no delay is needed. After a gap in the voice the default delay is used until enough
 * new parts have arrived. Pure.
 */

/** Default maximum delay of a turn. */
const DELAY_MS = 200;
/** Number of answers needed for an estimate, and number of the last answers used for it. */
const ENOUGH = 3;
const REMEMBERED = 8;
/** Number of answers needed after a gap. */
const ENOUGH_AFTER_GAP = 20;
/** Allowance for delay that is lost in the sound card's own blocks. */
const LEAST_MS = 40;
/** Factor applied to the observed lateness. */
const MARGIN = 1.5;

export class HeadStart {
  /** Lateness of the last parts of speech. @type {number[]} */
  #spoken = [];
  /** Lateness of the last answers without speech. @type {number[]} */
  #silent = [];
  #wanted = ENOUGH;
  #seen = 0;

  /**
   * @param {number} ms lateness of an answer that was not the first of its turn, compared with others
   * @param {boolean} [isSpoken] false: the model only listened
   */
  answered(ms, isSpoken = true) {
    this.#seen++;
    const answers = isSpoken ? this.#spoken : this.#silent;
    answers.push(ms);
    if (answers.length > REMEMBERED) answers.shift();
  }

  /** Called on a gap in the playback. */
  gap() {
    this.#seen = 0;
    this.#wanted = ENOUGH_AFTER_GAP;
  }

  /**
   * Returns the delay of a turn.
   * @param {number} first lateness of its first part, in ms
   * @param {{ms: number, isFixed: boolean}} [delay] maximum, used as it is if `isFixed` or without an estimate
   * @returns {number} ms
   */
  ms(first, { ms: most, isFixed } = { ms: DELAY_MS, isFixed: false }) {
    if (isFixed || this.#seen < this.#wanted) return most;
    // Listening mostly takes less time than speaking, but more where words are recognised: only speech shows how late
    // the next part is.
    const known = this.#spoken.length < ENOUGH ? [first, ...this.#spoken, ...this.#silent] : this.#spoken;
    const later = Math.max(...known) - first;
    return Math.min(most, Math.max(0, LEAST_MS + Math.min(0, later), Math.round(later * MARGIN)));
  }
}
