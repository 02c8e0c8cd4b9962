/**
 * Sample rate converter for streams that can be split at any sample.
 *
 * A polyphase windowed-sinc filter: the rate ratio is reduced to L/M, and the taps of one low-pass are computed once
 * for each of the L phases. State (the last taps of input and the phase) is kept between calls, so a stream cut into
 * blocks of any size yields the same samples as one call: converting each block separately would click at every border.
 * Pure arithmetic; runs in a worklet, a worker or a test.
 */

/** Zero crossings of the sinc on each side. With the window below, 24 keeps aliases under -75 dB. */
const ZEROS = 24;
/** Kaiser window shape. */
const BETA = 8.5;
/** Edge of the pass band as a fraction of the lower Nyquist frequency; the rest is the transition band. */
const EDGE = 0.94;
/**
 * Maximum number of phases. Odd rate pairs would need a table of millions of taps; for them the nearest phase is used.
 */
const MAX_PHASES = 1024;
/** Samples processed per inner round; bounds the history buffer. */
const ROUND = 1024;

/** @param {number} a @param {number} b @returns {number} */
function gcd(a, b) {
  return b === 0 ? a : gcd(b, a % b);
}

/** Modified Bessel function of the first kind, order 0. @param {number} x */
function bessel0(x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; k < 40; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
    if (term < sum * 1e-12) break;
  }
  return sum;
}

export class Resampler {
  /**
   * @param {number} fromHz
   * @param {number} toHz
   */
  constructor(fromHz, toHz) {
    if (!(fromHz > 0) || !(toHz > 0)) throw new RangeError(`cannot convert ${fromHz} Hz to ${toHz} Hz`);
    this.fromHz = Math.round(fromHz);
    this.toHz = Math.round(toHz);
    const divisor = gcd(this.fromHz, this.toHz);
    this.up = this.toHz / divisor;
    this.down = this.fromHz / divisor;
    this.isIdentity = this.up === this.down;

    const cutoff = Math.min(1, this.toHz / this.fromHz) * EDGE;
    this.half = Math.ceil(ZEROS / cutoff);
    this.taps = 2 * this.half;
    this.phases = Math.min(this.up, MAX_PHASES);
    /** taps of phase p at [p * taps, (p + 1) * taps) @type {Float32Array} */
    this.table = this.isIdentity ? new Float32Array(0) : this.#layTable(cutoff);

    this.history = new Float32Array(this.taps + ROUND);
    this.filled = 0;
    this.index = 0;
    this.phase = 0;
    this.reset();
  }

  /** Clears the state: the next sample is the first of a stream. */
  reset() {
    this.history.fill(0);
    // The filter needs `half` samples before the first one: they are silence.
    this.filled = this.half - 1;
    this.index = 0;
    this.phase = 0;
  }

  /** Returns the output length that is sufficient for `process` with `count` samples. @param {number} count */
  maxOutput(count) {
    return Math.ceil((count * this.up) / this.down) + 1;
  }

  /**
   * Converts the next samples of the stream.
   *
   * @param {Float32Array} input any length
   * @param {Float32Array} output at least `offset + maxOutput(input.length)` long
   * @param {number} [offset] index in `output` at which writing starts
   * @returns {number} samples written
   */
  process(input, output, offset = 0) {
    if (this.isIdentity) {
      output.set(input, offset);
      return input.length;
    }
    let written = 0;
    for (let from = 0; from < input.length; from += ROUND) {
      const count = Math.min(ROUND, input.length - from);
      // A plain loop, because `subarray` would allocate an object per block on the audio thread.
      for (let i = 0; i < count; i++) this.history[this.filled + i] = input[from + i];
      this.filled += count;
      written += this.#drain(output, offset + written);
    }
    return written;
  }

  /**
   * Returns the samples that are still in the filter (`half` samples of look-ahead) and resets it.
   * @returns {Float32Array}
   */
  finish() {
    if (this.isIdentity) return new Float32Array(0);
    const silence = new Float32Array(this.half);
    const output = new Float32Array(this.maxOutput(this.half));
    const count = this.process(silence, output);
    this.reset();
    return output.slice(0, count);
  }

  /** @param {Float32Array} output @param {number} offset */
  #drain(output, offset) {
    const { history, table, taps, up, down, phases } = this;
    let written = 0;
    while (this.index + taps <= this.filled) {
      const row = phases === up ? this.phase : Math.round((this.phase * phases) / up) % phases;
      let sum = 0;
      const tapsFrom = row * taps;
      const samplesFrom = this.index;
      for (let i = 0; i < taps; i++) sum += history[samplesFrom + i] * table[tapsFrom + i];
      output[offset + written++] = sum;
      this.phase += down;
      while (this.phase >= up) {
        this.phase -= up;
        this.index++;
      }
    }
    // When the rate is reduced, `index` may be beyond the samples received so far.
    const gone = Math.min(this.index, this.filled);
    history.copyWithin(0, gone, this.filled);
    this.filled -= gone;
    this.index -= gone;
    return written;
  }

  /** @param {number} cutoff edge of the pass band as a fraction of the input Nyquist frequency */
  #layTable(cutoff) {
    const { half, taps, phases } = this;
    const table = new Float32Array(phases * taps);
    const norm = bessel0(BETA);
    for (let p = 0; p < phases; p++) {
      let sum = 0;
      for (let i = 0; i < taps; i++) {
        const t = i - (half - 1) - p / phases;
        const x = Math.PI * cutoff * t;
        const sinc = Math.abs(x) < 1e-9 ? 1 : Math.sin(x) / x;
        const edge = 1 - (t / half) ** 2;
        const window = edge <= 0 ? 0 : bessel0(BETA * Math.sqrt(edge)) / norm;
        table[p * taps + i] = cutoff * sinc * window;
        sum += table[p * taps + i];
      }
      // Each phase is normalised to pass a constant unchanged; otherwise a steady tone would ripple at the phase rate.
      for (let i = 0; i < taps; i++) table[p * taps + i] /= sum;
    }
    return table;
  }
}

/**
 * Converts a whole signal in one call.
 * @param {Float32Array} samples
 * @param {number} fromHz
 * @param {number} toHz
 * @returns {Float32Array} about `samples.length * toHz / fromHz` long
 */
export function resample(samples, fromHz, toHz) {
  if (fromHz === toHz) return samples.slice();
  const resampler = new Resampler(fromHz, toHz);
  const output = new Float32Array(resampler.maxOutput(samples.length) + resampler.maxOutput(resampler.half));
  const count = resampler.process(samples, output);
  const tail = resampler.finish();
  output.set(tail, count);
  return output.slice(0, Math.min(count + tail.length, Math.round((samples.length * toHz) / fromHz)));
}
