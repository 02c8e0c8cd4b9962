/**
 * Audio format of one connection: as published (float32 as base64 in JSON) until the server has agreed to a smaller
 * one. 16-bit samples in binary messages take three eighths of the bytes and need no base64. On this machine the
 * published format costs nothing and can be read in a network trace.
 *
 * A binary message consists of the length of the JSON in four big-endian bytes, the JSON and the audio. The audio's
 * field is empty in the JSON; in the objects used here it contains the bytes. Source: docs/protocols/README.md, "Audio
 * format".
 */

import { decodeBytes, encodeBytes } from './codec.js';

/** @typedef {'float32' | 'pcm16'} Coding */
/** @typedef {{received_ms: number, buffered_ms: number}} PlaybackReport */
/** @typedef {{input: Coding, output: Coding, binary: boolean}} Format */

/** @type {Format} */
export const PUBLISHED = { input: 'float32', output: 'float32', binary: false };
/** @type {Format} */
export const SAMPLES = { input: 'pcm16', output: 'pcm16', binary: true };

/**
 * Samples in a piece of microphone audio at 16 kHz: 32 ms, half a window of the server's detector. If pieces do not
 * divide the window, the end of a turn is detected later: with 50 ms pieces by 24 ms on average.
 */
export const PIECE_SAMPLES = 512;

const HEAD_BYTES = 4;
const SAMPLES_PER_MS = 24;
const LOOPBACK = /^(localhost|.+\.localhost|127(\.\d+){3}|\[::1\])$/;

/** Returns the format to request by default. @param {string} address of the socket @returns {Format} */
export function fitting(address) {
  return LOOPBACK.test(new URL(address).hostname) ? PUBLISHED : SAMPLES;
}

/** @param {Float32Array} samples @param {Coding} coding @returns {Uint8Array} little-endian */
function toBytes(samples, coding) {
  if (coding === 'float32') return new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
  const whole = Int16Array.from(samples, (value) => Math.max(-32768, Math.min(32767, Math.round(value * 32767))));
  return new Uint8Array(whole.buffer);
}

/** @param {Uint8Array} bytes @param {Coding} coding @returns {Float32Array<ArrayBuffer>} */
function toSamples(bytes, coding) {
  const width = coding === 'float32' ? 4 : 2;
  const whole = bytes.length - (bytes.length % width);
  if (whole !== bytes.length)
    console.warn(`sound with ${bytes.length} bytes: the last ${bytes.length - whole} dropped`);
  // Copied, because the audio after the JSON of a message may start at any byte offset.
  const { buffer } = bytes.slice(0, whole);
  return coding === 'float32' ? new Float32Array(buffer) : Float32Array.from(new Int16Array(buffer), (n) => n / 32768);
}

export class WireSound {
  /** Format in use. */
  format = PUBLISHED;
  /** Milliseconds of audio received so far, 24 kHz. */
  #receivedMs = 0;
  /** Returns how much of it has not been played, in ms; null if unknown. @type {(() => number) | null} */
  unheardMs = null;

  /** @param {Format} wanted */
  constructor(wanted) {
    this.wanted = wanted;
  }

  /**
   * Format that the first message of a conversation requests; undefined for the published one, which needs no request.
   */
  get asked() {
    const isPublished = Object.entries(PUBLISHED).every(
      ([key, value]) => this.wanted[/** @type {keyof Format} */ (key)] === value,
    );
    return isPublished ? undefined : this.wanted;
  }

  /** Sets the format that the server reports; a server without formats reports none. @param {any} told */
  agree(told) {
    this.format = told ?? PUBLISHED;
  }

  /** @param {Float32Array} samples 16 kHz @returns {string | Uint8Array} the value for the field of a message */
  out(samples) {
    const bytes = toBytes(samples, this.format.input);
    return this.format.binary ? bytes : encodeBytes(bytes);
  }

  /** Playback position to send along with audio. @returns {{playback?: PlaybackReport}} */
  get told() {
    if (!this.unheardMs || !this.#receivedMs) return {};
    return { playback: { received_ms: Math.round(this.#receivedMs), buffered_ms: Math.round(this.unheardMs()) } };
  }

  /**
   * Decodes audio from a server. Never throws: a call continues without a damaged piece.
   * @param {string | Uint8Array | null | undefined} field
   * @returns {Float32Array<ArrayBuffer>} 24 kHz; empty if there is nothing to play
   */
  come(field) {
    if (!field) return new Float32Array(0);
    try {
      const samples = toSamples(typeof field === 'string' ? decodeBytes(field) : field, this.format.output);
      this.#receivedMs += samples.length / SAMPLES_PER_MS;
      return samples;
    } catch (error) {
      console.warn('sound that is not base64 was dropped', error);
      return new Float32Array(0);
    }
  }
}

/** Encodes a message: as bytes if one of its fields contains bytes, as text otherwise. @param {any} message */
export function pack(message) {
  const [field, sound] = Object.entries(message).find(([, value]) => value instanceof Uint8Array) ?? [];
  if (field === undefined) return JSON.stringify(message);
  const head = new TextEncoder().encode(JSON.stringify({ ...message, [field]: '' }));
  const frame = new Uint8Array(HEAD_BYTES + head.length + sound.length);
  new DataView(frame.buffer).setUint32(0, head.length);
  frame.set(head, HEAD_BYTES);
  frame.set(sound, HEAD_BYTES + head.length);
  return frame;
}

/**
 * Decodes a binary message into an object.
 * @param {ArrayBuffer} data @param {string} field the field for its audio
 */
export function unpack(data, field) {
  const end = HEAD_BYTES + new DataView(data).getUint32(0);
  const message = JSON.parse(new TextDecoder().decode(new Uint8Array(data, HEAD_BYTES, end - HEAD_BYTES)));
  return { ...message, [field]: new Uint8Array(data, end) };
}
