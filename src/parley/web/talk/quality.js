/**
 * How well a call goes, from what happened in the last ten seconds: a sign that recovers.
 *
 * Pure: every reading comes with its time in ms.
 */

/** @typedef {'good' | 'fair' | 'poor'} Quality */

/** What happened longer ago than this says nothing about now. */
const MEMORY_MS = 10_000;
/** Answers later than this come in the next unit's time. */
const GOOD_MS = 700;
const FAIR_MS = 1300;
/** One slow answer among quick ones is soon forgotten. */
const ANSWERS = 3;
/** Without any answer for this long the page does not claim that all is well. */
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

  /** A hole in what was heard. @param {number} at */
  gap(at) {
    this.#gapAt = at;
  }

  /** Sound that could not be sent. @param {number} at */
  dropped(at) {
    this.#dropAt = at;
  }

  /**
   * @param {number} at
   * @param {number} waitingMs how long an answer has been due
   * @returns {Quality | null} null: nothing is known yet
   */
  grade(at, waitingMs = 0) {
    if (this.#answers.length === 0) return waitingMs > WAIT_MS ? 'poor' : null;
    const worst = Math.max(...this.#answers);
    if (at - this.#dropAt < MEMORY_MS || worst > FAIR_MS || waitingMs > WAIT_MS) return 'poor';
    return at - this.#gapAt < MEMORY_MS || worst > GOOD_MS ? 'fair' : 'good';
  }
}
