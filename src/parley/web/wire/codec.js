/**
 * Encoding of samples and bytes on the wire: base64 of little-endian float32.
 *
 * One second of microphone audio is 64 000 bytes. Building its text character by character would create as many
 * strings. Browsers that have `Uint8Array.prototype.toBase64` encode natively; in others the bytes are passed to
 * `String.fromCharCode` in blocks.
 */

const BLOCK = 0x6000; // a multiple of 3, so that blocks can be encoded one by one, and below the argument limit
/**
 * Bytes of a video file that are encoded in one step, which takes some 10 ms. Reading the next step is a separate task,
 * so the page stays responsive.
 */
const STEP = 64 * BLOCK;

/** @param {Uint8Array} bytes @returns {string} */
export function encodeBytes(bytes) {
  const native = /** @type {{toBase64?: () => string}} */ (/** @type {unknown} */ (bytes));
  if (native.toBase64) return native.toBase64();
  let text = '';
  for (let at = 0; at < bytes.length; at += BLOCK) {
    text += btoa(
      String.fromCharCode.apply(
        null,
        /** @type {number[]} */ (/** @type {unknown} */ (bytes.subarray(at, at + BLOCK))),
      ),
    );
  }
  return text;
}

/** @param {string} text @returns {Uint8Array<ArrayBuffer>} */
export function decodeBytes(text) {
  const native = /** @type {{fromBase64?: (text: string) => Uint8Array<ArrayBuffer>}} */ (
    /** @type {unknown} */ (Uint8Array)
  );
  if (native.fromBase64) return native.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** @param {Float32Array} samples @returns {string} */
export function encodePcm(samples) {
  return encodeBytes(new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength));
}

/**
 * Decodes audio from a server. Never throws: a call continues without a damaged piece.
 * @param {string | null | undefined} text
 * @returns {Float32Array<ArrayBuffer>} empty if there is nothing to play
 */
export function decodePcm(text) {
  if (!text) return new Float32Array(0);
  try {
    const bytes = decodeBytes(text);
    const whole = bytes.length - (bytes.length % 4);
    if (whole !== bytes.length)
      console.warn(`sound with ${bytes.length} bytes: the last ${bytes.length - whole} dropped`);
    return new Float32Array(bytes.buffer, 0, whole / 4);
  } catch (error) {
    console.warn('sound that is not base64 was dropped', error);
    return new Float32Array(0);
  }
}

/** @param {Blob} blob @returns {Promise<string>} base64 without a `data:` prefix */
export async function encodeBlob(blob) {
  const texts = [];
  for (let at = 0; at < blob.size; at += STEP) {
    texts.push(encodeBytes(new Uint8Array(await blob.slice(at, at + STEP).arrayBuffer())));
  }
  return texts.join('');
}
