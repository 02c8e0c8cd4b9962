/** Mixer of microphone and file, each at its own gain; the sum never exceeds full scale. */

/** Level above which the sum is compressed instead of clipped. */
const KNEE = 0.8;

/** @param {number} value */
function soften(value) {
  const size = Math.abs(value);
  if (size <= KNEE) return value;
  const over = (size - KNEE) / (1 - KNEE);
  return Math.sign(value) * (KNEE + (1 - KNEE) * Math.tanh(over));
}

/**
 * @param {Float32Array} out written in place; may be `mic`
 * @param {Float32Array | null} mic
 * @param {Float32Array | null} file
 * @param {{mic: number, file: number}} gain
 */
export function mixInto(out, mic, file, gain) {
  for (let i = 0; i < out.length; i++) {
    const fromMic = mic && i < mic.length ? mic[i] * gain.mic : 0;
    const fromFile = file && i < file.length ? file[i] * gain.file : 0;
    out[i] = soften(fromMic + fromFile);
  }
  return out;
}
