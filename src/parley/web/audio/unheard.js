/**
 * Amount of queued playback that has not been heard, from which the server determines what was heard of an answer.
 * Pure: times are passed in, in milliseconds.
 */

export class Unheard {
  /** Number of samples passed in, by turn, of turns that have not ended. @type {Map<number, number>} */
  #given = new Map();
  #turn = -1;
  #heard = 0;
  /** Time of the last position; null if nothing is playing. @type {number | null} */
  #at = null;

  /** @param {number} rateHz of the samples */
  constructor(rateHz) {
    this.rateHz = rateHz;
  }

  /** @param {number} turn @param {number} samples queued after all others */
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

  /** Marks a turn as completely heard. @param {number} turn */
  end(turn) {
    for (const each of this.#given.keys()) if (each <= turn) this.#given.delete(each);
  }

  /** Clears the queue: none of it will be heard. */
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
