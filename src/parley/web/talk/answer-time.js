/**
 * How long a person waits for an answer, as they feel it: from the end of their last word to the first sound
 * from the loudspeaker. Measured from the levels of the microphone and of what is played, 20 times a second.
 *
 * Pure: levels and times in, milliseconds out.
 */

/** Below this nothing is speech. */
const QUIET = 0.008;
/** Speech is this many times louder than the quietest of late. */
const OVER_FLOOR = 3;
/** How fast a room may become louder without being taken for speech, per level. */
const FLOOR_RISE = 1.01;
/** A shorter sound is a click: levels in a row. */
const LEAST = 3;
/** From here on the loudspeaker is heard. */
const SOUNDING = 0.004;
/** After a shorter silence it continues its sentence, which is not an answer. */
const REST_MS = 600;
/** What comes later is no answer to what was said. */
const LONGEST_MS = 20_000;

export class AnswerTime {
  /** Of the last answer; null: none has been heard. @type {number | null} */
  ms = null;
  #floor = QUIET;
  #run = 0;
  /** When the last word ended. @type {number | null} */
  #endedAt = null;
  /** When the loudspeaker was last heard. */
  #soundedAt = -Infinity;

  /**
   * @param {{mic: number, voice: number, isMuted?: boolean}} levels
   * @param {number} now ms
   * @param {number} [delayMs] from here to the ear
   * @returns {number | null} the wait, when an answer begins to be heard
   */
  note({ mic, voice, isMuted = false }, now, delayMs = 0) {
    const isSounding = voice > SOUNDING;
    if (!isSounding) {
      this.#listen(isMuted ? 0 : mic, now);
      return null;
    }
    // Its own voice does not count as a word of the person.
    this.#run = 0;
    const waited = now + delayMs - (this.#endedAt ?? -Infinity);
    const begins = now - this.#soundedAt > REST_MS;
    this.#soundedAt = now;
    this.#endedAt = null;
    if (!begins || waited > LONGEST_MS) return null;
    this.ms = Math.round(waited);
    return this.ms;
  }

  /** @param {number} mic @param {number} now */
  #listen(mic, now) {
    if (mic > 0) this.#floor = Math.max(QUIET / OVER_FLOOR, Math.min(mic, this.#floor * FLOOR_RISE));
    this.#run = mic > Math.max(QUIET, OVER_FLOOR * this.#floor) ? this.#run + 1 : 0;
    if (this.#run >= LEAST) this.#endedAt = now;
  }
}
