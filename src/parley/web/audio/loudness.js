/**
 * Loudness according to ITU-R BS.1770-4, mono: K-weighting, 400 ms blocks with 75 % overlap, an absolute gate at -70
 * LUFS and a relative gate 10 LU below the mean of the blocks that pass it.
 */

/** Target loudness of a file alone, a file mixed with a microphone, and the microphone itself. */
export const TARGET_FILE_ALONE_LUFS = -28;
export const TARGET_FILE_MIXED_LUFS = -33;
export const TARGET_MIC_LUFS = -23;
export const ASSUMED_MIC_LUFS = -23;
/** Maximum gain that the user can add or remove. */
export const TRIM_LIMIT_DB = 12;

/**
 * Returns the two filter stages for any rate: bilinear transforms of analogue prototypes, which equal the standard's
 * coefficients at 48 kHz.
 * @param {number} rateHz
 */
function weighting(rateHz) {
  const shelf = (() => {
    const [f0, gainDb, q] = [1681.974450955533, 3.999843853973347, 0.7071752369554196];
    const k = Math.tan((Math.PI * f0) / rateHz);
    const vh = 10 ** (gainDb / 20);
    const vb = vh ** 0.4996667741545416;
    const a0 = 1 + k / q + k * k;
    return {
      b0: (vh + (vb * k) / q + k * k) / a0,
      b1: (2 * (k * k - vh)) / a0,
      b2: (vh - (vb * k) / q + k * k) / a0,
      a1: (2 * (k * k - 1)) / a0,
      a2: (1 - k / q + k * k) / a0,
    };
  })();
  const highPass = (() => {
    const [f0, q] = [38.13547087602444, 0.5003270373238773];
    const k = Math.tan((Math.PI * f0) / rateHz);
    const a0 = 1 + k / q + k * k;
    return { b0: 1, b1: -2, b2: 1, a1: (2 * (k * k - 1)) / a0, a2: (1 - k / q + k * k) / a0 };
  })();
  return [shelf, highPass];
}

/** @param {Float32Array} samples @param {{b0: number, b1: number, b2: number, a1: number, a2: number}} stage */
function filter(samples, { b0, b1, b2, a1, a2 }) {
  const out = new Float32Array(samples.length);
  let x1 = 0,
    x2 = 0,
    y1 = 0,
    y2 = 0;
  for (let i = 0; i < samples.length; i++) {
    const x = samples[i];
    const y = b0 * x + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2;
    x2 = x1;
    x1 = x;
    y2 = y1;
    y1 = y;
    out[i] = y;
  }
  return out;
}

const toLufs = (/** @type {number} */ power) => -0.691 + 10 * Math.log10(power);

/**
 * @param {Float32Array} samples mono
 * @param {number} rateHz
 * @returns {number} LUFS; -Infinity if nothing passes the absolute gate
 */
export function loudness(samples, rateHz) {
  const weighted = weighting(rateHz).reduce(filter, samples);
  const block = Math.round(rateHz * 0.4);
  const hop = Math.round(rateHz * 0.1);
  /** @type {number[]} */
  const powers = [];
  for (let from = 0; from + block <= weighted.length; from += hop) {
    let sum = 0;
    for (let i = from; i < from + block; i++) sum += weighted[i] * weighted[i];
    powers.push(sum / block);
  }
  const mean = (/** @type {number[]} */ list) => list.reduce((a, b) => a + b, 0) / list.length;
  const loud = powers.filter((power) => toLufs(power) > -70);
  if (loud.length === 0) return -Infinity;
  const gate = toLufs(mean(loud)) - 10;
  return toLufs(mean(loud.filter((power) => toLufs(power) > gate)));
}

/**
 * Returns the gain that brings a signal to its target loudness, plus the user's trim.
 * @param {number} measuredLufs
 * @param {number} targetLufs
 * @param {number} [trimDb]
 * @returns {number} a factor; 1 if nothing could be measured
 */
export function gainFor(measuredLufs, targetLufs, trimDb = 0) {
  if (!Number.isFinite(measuredLufs)) return 1;
  const trim = Math.max(-TRIM_LIMIT_DB, Math.min(TRIM_LIMIT_DB, trimDb));
  return 10 ** ((targetLufs - measuredLufs + trim) / 20);
}
