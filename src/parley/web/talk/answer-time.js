/**
 * How long a person waits for an answer, as they feel it: from the end of their last word to the first sound
 * from the loudspeaker. Measured from the levels of the microphone and of what is played, 20 times a second.
 *
 * Pure: levels and times in, milliseconds out.
 */

/** Below this nothing is speech. */
const QUIET = 0.008;
/** Speech is so many times louder than the quietest of late. */
const OVER_FLOOR = 3;
/** How fast a room may become louder without being taken for speech, per level. */
const FLOOR_RISE = 1.01;
/** A shorter sound is a click: levels in a row. */
const LEAST = 3;
/** From here on the loudspeaker is heard. */
const SOUNDING = 0.004;
/** What comes later is no answer to what was said. */
const LONGEST_MS = 20_000;

export class AnswerTime {
  /** Of the last answer; null: none has been heard. @type {number | null} */
  ms = null;
  #floor = QUIET;
  #run = 0;
  /** When the last word ended. @type {number | null} */
  #endedAt = null;
  #wasSounding = false;

  /**
   * @param {{mic: number, voice: number, isMuted?: boolean}} levels
   * @param {number} now ms
   * @param {number} [delayMs] from here to the ear
   * @returns {number | null} the wait, when an answer begins to be heard
   */
  note({ mic, voice, isMuted = false }, now, delayMs = 0) {
    const isSounding = voice > SOUNDING;
    const begins = isSounding && !this.#wasSounding;
    this.#wasSounding = isSounding;
    if (!isSounding) this.#listen(isMuted ? 0 : mic, now);
    // Its own voice is no word of the person.
    else this.#run = 0;
    if (!begins || this.#endedAt === null) return null;
    const waited = now + delayMs - this.#endedAt;
    this.#endedAt = null;
    if (waited > LONGEST_MS) return null;
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
