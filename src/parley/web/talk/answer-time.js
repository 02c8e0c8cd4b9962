/**
 * Meter of the response time that the user perceives: from the end of their last word to the first sound from the
 * loudspeaker. It is measured from the levels of the microphone and of the playback, 20 times a second.
 *
 * Pure: levels and times in, milliseconds out.
 */

/** Level below which nothing counts as speech. */
const QUIET = 0.008;
/** Ratio of speech to the noise floor. */
const OVER_FLOOR = 3;
/** Maximum rise of the noise floor per level, so that a room that becomes louder is not taken for speech. */
const FLOOR_RISE = 1.01;
/** Minimum number of consecutive loud levels; a shorter sound is a click. */
const LEAST = 3;
/** Level from which the loudspeaker is heard. */
const SOUNDING = 0.004;
/** Minimum silence before an answer; after a shorter one the assistant continues its sentence. */
const REST_MS = 600;
/** Maximum response time; later speech does not count as an answer. */
const LONGEST_MS = 20_000;

export class AnswerTime {
  /** Response time of the last answer in ms; null if none has been heard. @type {number | null} */
  ms = null;
  #floor = QUIET;
  #run = 0;
  /** Time at which the user's last word ended. @type {number | null} */
  #endedAt = null;
  /** Time at which the loudspeaker was last heard. */
  #soundedAt = -Infinity;

  /**
   * @param {{mic: number, voice: number, isMuted?: boolean}} levels
   * @param {number} now ms
   * @param {number} [delayMs] delay from the playback to the ear
   * @returns {number | null} the response time in ms when the sound of an answer starts, otherwise null
   */
  note({ mic, voice, isMuted = false }, now, delayMs = 0) {
    const isSounding = voice > SOUNDING;
    if (!isSounding) {
      this.#listen(isMuted ? 0 : mic, now);
      return null;
    }
    // The assistant's voice in the microphone does not count as the user's speech.
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
