/** Notification sounds of the queue: synthesised, quiet, and silent if muted. */

const LEVEL = 0.12;
const C5 = 523.25,
  E5 = 659.25,
  G5 = 783.99,
  C6 = 1046.5,
  E6 = 1318.51;

/**
 * @param {AudioContext} context
 * @param {number} hz
 * @param {number} afterS
 * @param {number} decayS
 */
function note(context, hz, afterS, decayS) {
  const from = context.currentTime + afterS;
  const tone = new OscillatorNode(context, { frequency: hz, type: 'sine' });
  const gain = new GainNode(context, { gain: 0 });
  gain.gain.setValueAtTime(0, from);
  gain.gain.linearRampToValueAtTime(LEVEL, from + 0.01);
  gain.gain.exponentialRampToValueAtTime(0.0005, from + 0.01 + decayS);
  tone.connect(gain).connect(context.destination);
  tone.start(from);
  tone.stop(from + decayS + 0.05);
  tone.onended = () => gain.disconnect();
}

export class Chimes {
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #loop;

  /** @param {() => AudioContext | null} context */
  constructor(context) {
    this.context = context;
    this.isMuted = false;
  }

  /** @param {(context: AudioContext) => void} play */
  #with(play) {
    const context = this.context();
    if (context?.state === 'running' && !this.isMuted) play(context);
  }

  /** Next in the queue: ding-dong every two seconds until another sound or `hush`. */
  almost() {
    if (this.#loop !== undefined) return;
    const ring = () =>
      this.#with((context) => {
        note(context, 880, 0, 0.2);
        note(context, 660, 0.5, 0.2);
      });
    ring();
    this.#loop = setInterval(ring, 2000);
  }

  /** A worker is assigned. */
  assigned() {
    this.hush();
    this.#with((context) => {
      for (const round of [0, 0.6]) {
        for (const [i, hz] of [C5, E5, G5, C6].entries()) note(context, hz, round + i * 0.12, 0.2);
      }
    });
  }

  /** The conversation is ready: the user can speak. */
  ready() {
    this.hush();
    this.#with((context) => {
      note(context, C6, 0, 0.15);
      note(context, E6, 0.12, 0.25);
    });
  }

  hush() {
    clearInterval(this.#loop);
    this.#loop = undefined;
  }
}
