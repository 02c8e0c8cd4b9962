/**
 * How long a turn waits before it is heard, so that its next second is there in time.
 *
 * Every unit is answered, spoken or not; where the answers of the last seconds came equally quickly the
 * next one will too, and there is no need to wait for it. After a hole in the voice nothing is taken on trust
 * for a while. Pure.
 */

/** Number of answers that say something about the line, and of those that are looked at. */
const ENOUGH = 3;
const REMEMBERED = 8;
/** After a hole. */
const ENOUGH_AFTER_GAP = 20;
/** Less than this is lost in the sound card's own blocks. */
const LEAST_MS = 40;
/** Beyond what was seen. */
const MARGIN = 1.5;

export class HeadStart {
  /** @type {number[]} */
  #answers = [];
  #wanted = ENOUGH;
  #seen = 0;

  /** @param {number} ms from sending a unit to its answer */
  answered(ms) {
    this.#seen++;
    this.#answers.push(ms);
    if (this.#answers.length > REMEMBERED) this.#answers.shift();
  }

  /** A hole in what was heard. */
  gap() {
    this.#seen = 0;
    this.#wanted = ENOUGH_AFTER_GAP;
  }

  /** @param {number} most what is waited where nothing is known @returns {number} ms */
  ms(most) {
    if (this.#seen < this.#wanted) return most;
    const spread = Math.max(...this.#answers) - Math.min(...this.#answers);
    return Math.min(most, Math.max(LEAST_MS, Math.round(spread * MARGIN)));
  }
}
