/**
 * Detects that the microphone picks up the assistant. If its level follows the loudspeaker's for three seconds, echo
 * cancellation does not work and headphones would help.
 */

const WINDOW = 60;

export class EchoWatch {
  constructor() {
    /** @type {number[]} */
    this.mic = [];
    /** @type {number[]} */
    this.voice = [];
  }

  /**
   * Adds the levels of both sides. Called 20 times a second while the assistant is heard.
   * @param {number} mic
   * @param {number} voice
   * @returns {boolean} true if the last three seconds look like an echo
   */
  note(mic, voice) {
    this.mic.push(mic);
    this.voice.push(voice);
    if (this.mic.length > WINDOW) {
      this.mic.shift();
      this.voice.shift();
    }
    if (this.mic.length < WINDOW) return false;
    const loudEnough = this.mic.reduce((a, b) => a + b, 0) / WINDOW > 0.01;
    return loudEnough && this.#likeness() > 0.75;
  }

  /** Returns the highest correlation over delays of up to 300 ms, which loudspeaker and room cause. */
  #likeness() {
    let best = 0;
    for (let lag = 0; lag <= 6; lag++)
      best = Math.max(best, correlation(this.mic.slice(lag), this.voice.slice(0, WINDOW - lag)));
    return best;
  }
}

/** @param {number[]} a @param {number[]} b */
function correlation(a, b) {
  const mean = (/** @type {number[]} */ list) => list.reduce((x, y) => x + y, 0) / list.length;
  const [ma, mb] = [mean(a), mean(b)];
  let ab = 0,
    aa = 0,
    bb = 0;
  for (let i = 0; i < a.length; i++) {
    ab += (a[i] - ma) * (b[i] - mb);
    aa += (a[i] - ma) ** 2;
    bb += (b[i] - mb) ** 2;
  }
  return aa > 0 && bb > 0 ? ab / Math.sqrt(aa * bb) : 0;
}
