/** Finds out if the person whose turn has come is there to take it. */

/** Who waited, and is not there when the turn comes, has this long. */
const AWAY_MS = 20_000;
/** This many loud reports in a row (20 a second) are speech. */
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

  /** The page is hidden. @param {() => void} onAbsent after a while without a sign of the person */
  wait(onAbsent) {
    this.noticed();
    this.#timer = this.clock.setTimer(() => {
      this.#timer = null;
      onAbsent();
    }, AWAY_MS);
  }

  /** Somebody is there. */
  noticed() {
    this.clock.clearTimer(this.#timer);
    this.#timer = null;
  }

  /** @param {number} rms of the microphone */
  heard(rms) {
    this.#loudReports = rms > VOICE_LEVEL ? this.#loudReports + 1 : 0;
    if (this.#loudReports >= VOICE_REPORTS) this.noticed();
  }
}
