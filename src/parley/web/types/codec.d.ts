/** @param {Uint8Array} bytes @returns {string} */
export function encodeBytes(bytes: Uint8Array): string;
/** @param {string} text @returns {Uint8Array<ArrayBuffer>} */
export function decodeBytes(text: string): Uint8Array<ArrayBuffer>;
/** @param {Float32Array} samples @returns {string} */
export function encodePcm(samples: Float32Array): string;
/**
 * Sound of a server. Never throws: a call continues without a damaged piece.
 * @param {string | null | undefined} text
 * @returns {Float32Array<ArrayBuffer>} empty when there is nothing to play
 */
export function decodePcm(text: string | null | undefined): Float32Array<ArrayBuffer>;
/** @param {Blob} blob @returns {Promise<string>} base64 without a `data:` prefix */
export function encodeBlob(blob: Blob): Promise<string>;
