/**
 * How much of what was given to be played has not been heard: for a server that is to know what was heard of an
 * answer. Pure: times are given, in milliseconds.
 */

export class Unheard {
  /** Samples given, by turn, of turns that are not over. @type {Map<number, number>} */
  #given = new Map();
  #turn = -1;
  #heard = 0;
  /** When that was so; null: nothing is being heard. @type {number | null} */
  #at = null;

  /** @param {number} rateHz of samples */
  constructor(rateHz) {
    this.rateHz = rateHz;
  }

  /** @param {number} turn @param {number} samples to be played behind all others */
  give(turn, samples) {
    if (samples > 0) this.#given.set(turn, (this.#given.get(turn) ?? 0) + samples);
  }

  /** @param {{turn: number, heard: number, sounding: boolean}} position samples of the turn @param {number} now */
  take({ turn, heard, sounding }, now) {
    for (const each of this.#given.keys()) if (each < turn) this.#given.delete(each);
    this.#turn = turn;
    this.#heard = heard;
    this.#at = sounding ? now : null;
  }

  /** All of a turn has been heard. @param {number} turn */
  end(turn) {
    for (const each of this.#given.keys()) if (each <= turn) this.#given.delete(each);
  }

  /** Nothing more of it will be heard. */
  clear() {
    this.#given.clear();
  }

  /** @param {number} now @returns {number} milliseconds */
  leftMs(now) {
    let samples = 0;
    for (const each of this.#given.values()) samples += each;
    const open = this.#given.get(this.#turn) ?? 0;
    const since = this.#at === null ? 0 : ((now - this.#at) / 1000) * this.rateHz;
    return (1000 * (samples - Math.min(open, this.#heard + since))) / this.rateHz;
  }
}
