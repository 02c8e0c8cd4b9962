/**
 * Meter of the quality of a call over the last ten seconds, so that the rating recovers.
 *
 * Pure: every reading is passed with its time in ms.
 */

/** @typedef {'good' | 'fair' | 'poor'} Quality */

/** Time after which an event no longer affects the quality. */
const MEMORY_MS = 10_000;
/** Maximum response times for good and for fair quality; later answers arrive in the time of the next unit. */
const GOOD_MS = 700;
const FAIR_MS = 1300;
/** Number of the last answers considered, so that one slow answer soon loses its effect. */
const ANSWERS = 3;
/** Time without an answer after which the quality is poor. */
const WAIT_MS = 3000;

export class QualityMeter {
  /** @type {number[]} */
  #answers = [];
  #gapAt = -Infinity;
  #dropAt = -Infinity;

  /** @param {number} ms from sending a unit to its answer */
  answered(ms) {
    this.#answers.push(ms);
    if (this.#answers.length > ANSWERS) this.#answers.shift();
  }

  /** Called on a gap in the playback. @param {number} at */
  gap(at) {
    this.#gapAt = at;
  }

  /** Called when audio could not be sent. @param {number} at */
  dropped(at) {
    this.#dropAt = at;
  }

  /**
   * @param {number} at
   * @param {number} waitingMs time for which an answer has been due
   * @returns {Quality | null} null if nothing is known yet
   */
  grade(at, waitingMs = 0) {
    if (this.#answers.length === 0) return waitingMs > WAIT_MS ? 'poor' : null;
    const worst = Math.max(...this.#answers);
    if (at - this.#dropAt < MEMORY_MS || worst > FAIR_MS || waitingMs > WAIT_MS) return 'poor';
    return at - this.#gapAt < MEMORY_MS || worst > GOOD_MS ? 'fair' : 'good';
  }
}
