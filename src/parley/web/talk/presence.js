/** Detector of the user's presence when their turn in the queue comes. */

/** Time that an absent user has to return when their turn comes. */
const AWAY_MS = 20_000;
/** Level and number of consecutive reports (20 a second) that count as speech. */
const VOICE_LEVEL = 0.05;
const VOICE_REPORTS = 6;

export class Presence {
  /** @type {any} */
  #timer = null;
  #loudReports = 0;

  /** @param {{setTimer: (callback: () => void, ms: number) => any, clearTimer: (timer: any) => void}} clock */
  constructor(clock) {
    this.clock = clock;
  }

  /**
   * Starts waiting for the user while the page is hidden.
   * @param {() => void} onAbsent called if no sign of the user arrives in time
   */
  wait(onAbsent) {
    this.noticed();
    this.#timer = this.clock.setTimer(() => {
      this.#timer = null;
      onAbsent();
    }, AWAY_MS);
  }

  /** Called when the user is present. */
  noticed() {
    this.clock.clearTimer(this.#timer);
    this.#timer = null;
  }

  /** @param {number} rms level of the microphone */
  heard(rms) {
    this.#loudReports = rms > VOICE_LEVEL ? this.#loudReports + 1 : 0;
    if (this.#loudReports >= VOICE_REPORTS) this.noticed();
  }
}
