/** WAV encoder: samples to 16-bit PCM files. Decoding is left to the browser. */

/**
 * @param {Float32Array[]} channels of equal length
 * @param {number} rateHz
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function encodeWav(channels, rateHz) {
  const count = channels[0].length;
  const width = channels.length;
  const bytes = new Uint8Array(44 + count * width * 2);
  const view = new DataView(bytes.buffer);
  const text = (/** @type {number} */ at, /** @type {string} */ word) => {
    for (let i = 0; i < word.length; i++) view.setUint8(at + i, word.charCodeAt(i));
  };
  text(0, 'RIFF');
  view.setUint32(4, 36 + count * width * 2, true);
  text(8, 'WAVEfmt ');
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, width, true);
  view.setUint32(24, rateHz, true);
  view.setUint32(28, rateHz * width * 2, true);
  view.setUint16(32, width * 2, true);
  view.setUint16(34, 16, true);
  text(36, 'data');
  view.setUint32(40, count * width * 2, true);
  let at = 44;
  for (let i = 0; i < count; i++) {
    for (let c = 0; c < width; c++, at += 2) {
      const value = Math.max(-1, Math.min(1, channels[c][i]));
      view.setInt16(at, Math.round(value * 32767), true);
    }
  }
  return bytes;
}

/**
 * Concatenates buffers.
 * @param {Float32Array[]} parts
 * @returns {Float32Array<ArrayBuffer>}
 */
export function join(parts) {
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
