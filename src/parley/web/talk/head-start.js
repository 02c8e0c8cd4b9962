/**
 * How long a turn waits before it is heard, so that its next part is there in time.
 *
 * The next part is taken to come as late as the latest of the last ones. The first has to hear and to find words: if it
 * was later than that, there is no need to wait. After a hole in the voice nothing is taken on trust for a while. Pure.
 */

/** What a turn waits at most where nothing else was said. */
const DELAY_MS = 200;
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

  /** @param {number} ms how late a part that was not the first of its turn came, compared with others */
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

  /**
   * What a turn waits.
   * @param {number} first how late its first part has come, in ms
   * @param {{ms: number, isFixed: boolean}} [delay] where nothing is known, or always
   * @returns {number} ms
   */
  ms(first, { ms: most, isFixed } = { ms: DELAY_MS, isFixed: false }) {
    if (isFixed || this.#seen < this.#wanted) return most;
    const later = Math.max(...this.#answers) - first;
    return Math.min(most, Math.max(0, LEAST_MS + Math.min(0, later), Math.round(later * MARGIN)));
  }
}
