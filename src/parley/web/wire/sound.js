/**
 * Audio format of one connection: as published (float32 as base64 in JSON) until the server has agreed to a smaller
 * one: Opus in binary messages, or 16-bit samples if the browser or the server does not offer Opus. On this machine
 * the published format costs nothing and can be read in a network trace.
 *
 * A binary message consists of the length of the JSON in four big-endian bytes, the JSON and the audio. The audio's
 * field is empty in the JSON; in the objects used here it contains the bytes. Source: docs/protocols/README.md, "Audio
 * format".
 */

import { decodeBytes, encodeBytes } from './codec.js';
import { offersOpus, OpusCoder, PACKET_SAMPLES } from './opus.js';

/** @typedef {'float32' | 'pcm16' | 'opus'} Coding */
/** @typedef {{received_ms: number, buffered_ms: number}} PlaybackReport */
/** @typedef {{input: Coding, output: Coding, binary: boolean}} Format */

/** @type {Format} */
export const PUBLISHED = { input: 'float32', output: 'float32', binary: false };
/** @type {Format} */
export const SAMPLES = { input: 'pcm16', output: 'pcm16', binary: true };
/** @type {Format} */
export const COMPACT = { input: 'opus', output: 'opus', binary: true };

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
  return LOOPBACK.test(new URL(address).hostname) ? PUBLISHED : COMPACT;
}

/** Codecs that have failed on this page: the next connections do without. @type {WeakSet<object>} */
const failed = new WeakSet();

const needsOpus = (/** @type {Format} */ { input, output }) => input === 'opus' || output === 'opus';

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
  /** @type {OpusCoder | null} */
  #opus = null;

  /**
   * @param {Format} wanted @param {() => void} [onFail] called if the codec fails
   * @param {import('./opus.js').Codecs} [codecs]
   */
  constructor(wanted, onFail = () => {}, codecs = globalThis) {
    this.wanted = wanted;
    this.onFail = onFail;
    this.codecs = codecs;
  }

  /** Settles the format that will be requested; null if it is settled. @returns {Promise<void> | null} */
  settle() {
    if (!needsOpus(this.wanted)) return null;
    const { wanted } = this;
    this.wanted = SAMPLES;
    if (failed.has(this.codecs) || !this.codecs.AudioEncoder) return null;
    return offersOpus(this.codecs).then((isOffered) => {
      if (isOffered) this.wanted = wanted;
    });
  }

  /** Number of samples in which the audio of a microphone should be sent. */
  get pieceSamples() {
    return this.format.input === 'opus' ? PACKET_SAMPLES : PIECE_SAMPLES;
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
    this.close();
    if (!needsOpus(this.format)) return;
    this.#opus = new OpusCoder(() => {
      failed.add(this.codecs);
      this.onFail();
    }, this.codecs);
  }

  /**
   * @param {Float32Array} samples 16 kHz
   * @returns {string | Uint8Array | Promise<Uint8Array>} the value for the field of a message
   */
  out(samples) {
    if (this.format.input === 'opus') return /** @type {OpusCoder} */ (this.#opus).encode(samples);
    const bytes = toBytes(samples, this.format.input);
    return this.format.binary ? bytes : encodeBytes(bytes);
  }

  /** Playback position to send along with audio. @returns {{playback?: PlaybackReport}} */
  get told() {
    if (!this.unheardMs || !this.#receivedMs) return {};
    return { playback: { received_ms: Math.round(this.#receivedMs), buffered_ms: Math.round(this.unheardMs()) } };
  }

  /**
   * Decodes the audio of a message if that takes a while; null if it does not. `come` returns the result.
   * @param {any} message @param {string} field @returns {Promise<void> | null}
   */
  decode(message, field) {
    const bytes = this.format.output === 'opus' ? message[field] : null;
    if (!(bytes instanceof Uint8Array) || bytes.length === 0) return null;
    return /** @type {OpusCoder} */ (this.#opus).decode(bytes).then((samples) => {
      message[field] = samples;
    });
  }

  /**
   * Decodes audio from a server. Never throws: a call continues without a damaged piece.
   * @param {string | Uint8Array | Float32Array<ArrayBuffer> | null | undefined} field
   * @returns {Float32Array<ArrayBuffer>} 24 kHz; empty if there is nothing to play
   */
  come(field) {
    if (!field) return new Float32Array(0);
    try {
      const samples =
        field instanceof Float32Array
          ? field
          : toSamples(typeof field === 'string' ? decodeBytes(field) : field, this.format.output);
      this.#receivedMs += samples.length / SAMPLES_PER_MS;
      return samples;
    } catch (error) {
      console.warn('sound that is not base64 was dropped', error);
      return new Float32Array(0);
    }
  }

  close() {
    this.#opus?.close();
    this.#opus = null;
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
