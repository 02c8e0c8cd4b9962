/**
 * File used in place of, or together with, the microphone: split into units before the call starts.
 *
 * Pure: processes decoded samples and encoded JPEGs. Padding repeats the first and last picture and is silent.
 */

import { mixInto } from '../audio/mixer.js';
import { UNIT_SAMPLES } from '../wire/duplex.js';

/** Maximum sizes and lengths that pages accept. */
export const VIDEO_LIMIT_S = 120;
export const AUDIO_LIMIT_S = 300;

/** @typedef {{file: number[], mic: number[], mix: number[]}} Levels of one unit, every tenth of a second, 0 to 1 */

const LEVELS = 10;

/** @param {Float32Array | null} samples @param {number} gain */
function peaks(samples, gain) {
  const found = new Array(LEVELS).fill(0);
  const step = UNIT_SAMPLES / LEVELS;
  samples?.forEach((value, i) => {
    const at = Math.floor(i / step);
    found[at] = Math.max(found[at], Math.abs(value) * gain);
  });
  return found;
}

/**
 * @typedef {object} FileFeedOptions
 * @property {Float32Array} samples 16 kHz
 * @property {string[]} [frames] base64 JPEG, one per second; none for sound files
 * @property {number} [beforeS] padding
 * @property {number} [afterS]
 * @property {{mic: number, file: number}} [gain]
 * @property {'file' | 'mic' | 'mixed'} [source] whose audio the units contain
 */

export class FileFeed {
  index = 0;

  /** @param {FileFeedOptions} options */
  constructor({ samples, frames, beforeS = 0, afterS = 2, gain = { mic: 1, file: 1 }, source = 'file' }) {
    this.samples = samples;
    this.frames = frames;
    this.before = Math.round(beforeS);
    this.gain = gain;
    this.source = source;
    this.playS = Math.max(Math.ceil(samples.length / UNIT_SAMPLES), frames?.length ?? 0);
    this.totalS = this.before + this.playS + Math.round(afterS);
  }

  /** Position in the file in seconds; below 0 and beyond `playS` it is in the padding. */
  get at() {
    return this.index - this.before;
  }

  get isOver() {
    return this.index >= this.totalS;
  }

  /**
   * Returns the next second; null at the end of the file, after which the conversation continues without it.
   * @param {Float32Array<ArrayBuffer> | null} mic
   * @param {boolean} [isMuted]
   * @returns {{audio: Float32Array<ArrayBuffer>, frame: string | null | undefined, levels: Levels} | null}
   */
  next(mic, isMuted = false) {
    if (this.isOver) return null;
    const { at } = this;
    this.index++;
    const frame = this.frames?.length ? this.frames[Math.max(0, Math.min(this.frames.length - 1, at))] : undefined;
    const audio = new Float32Array(UNIT_SAMPLES);
    const inFile = at >= 0 && at < this.playS && this.source !== 'mic';
    const fromFile = inFile ? this.samples.subarray(at * UNIT_SAMPLES, (at + 1) * UNIT_SAMPLES) : null;
    const fromMic = this.source === 'file' || isMuted ? null : mic;
    mixInto(audio, fromMic, fromFile, this.gain);
    const levels = {
      file: peaks(fromFile, this.gain.file),
      mic: peaks(fromMic, this.gain.mic),
      mix: peaks(audio, 1),
    };
    return { audio, frame, levels };
  }
}
