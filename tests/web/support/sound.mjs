/** Comparing what was sent with what was heard, by loudness every 5 ms. */

import { UNIT_SAMPLES } from '../../../src/parley/web/wire/duplex.js';
import { PIECE_SAMPLES } from '../../../src/parley/web/wire/sound.js';

const FRAMES_PER_SECOND = 200;
const LOUD = 0.008;

/** Whole seconds in so many pieces of a microphone. @param {number} pieces */
export const secondsIn = (pieces) => Math.floor((pieces * PIECE_SAMPLES) / UNIT_SAMPLES);

/** True if the last of so many pieces ends a second. @param {number} pieces */
export const endsSecond = (pieces) => secondsIn(pieces) > secondsIn(pieces - 1);

/** @param {string} text base64 float32 @returns {number[]} */
export function floats(text) {
  const bytes = Buffer.from(text, 'base64');
  return [...new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length))];
}

/** @param {number[]} samples @param {number} rateHz @returns {number[]} */
export function envelope(samples, rateHz) {
  const frame = Math.round(rateHz / FRAMES_PER_SECOND);
  const levels = [];
  for (let at = 0; at + frame <= samples.length; at += frame) {
    let sum = 0;
    for (let i = at; i < at + frame; i++) sum += samples[i] ** 2;
    levels.push(Math.sqrt(sum / frame));
  }
  return levels;
}

/** The last loud frame of a stretch; its beginning when all of it is silent. */
export function lastLoud(levels, from, to) {
  let last = Math.round(from);
  for (let i = Math.max(0, Math.round(from)); i < Math.min(levels.length, to); i++) if (levels[i] > LOUD) last = i;
  return last;
}

/**
 * @param {number[]} heard levels, silence before and after
 * @param {number[]} sent levels
 * @returns {{likeness: number, longerMs: number, holeMs: number}} correlation when laid over each other; how
 *   much longer the heard one is between its first and last loud frame; the longest silence where
 *   something was sent
 */
export function compareSound(heard, sent) {
  const bounds = (levels) => [levels.findIndex((level) => level > LOUD), levels.findLastIndex((level) => level > LOUD)];
  const [h0, h1] = bounds(heard);
  const [s0, s1] = bounds(sent);
  if (h0 < 0 || s0 < 0) return { likeness: 0, longerMs: NaN, holeMs: NaN };
  // Over 25 ms: within one period of a voice the levels of 5 ms depend on where the frames begin.
  const smoothHeard = smooth(heard);
  const smoothSent = smooth(sent).slice(s0, s1 + 1);
  let best = 0;
  for (let shift = -3; shift <= 3; shift++)
    best = Math.max(best, correlation(smoothHeard.slice(h0 + shift, h0 + shift + s1 - s0 + 1), smoothSent));
  let hole = 0;
  let run = 0;
  for (let i = s0; i <= s1; i++) {
    // Within one frame the two may be shifted against each other.
    const isSpoken = Math.min(sent[i - 1] ?? 0, sent[i], sent[i + 1] ?? 0) > 2 * LOUD;
    run = isSpoken && (heard[h0 + i - s0] ?? 0) < LOUD / 4 ? run + 1 : 0;
    hole = Math.max(hole, run);
  }
  const frameMs = 1000 / FRAMES_PER_SECOND;
  return { likeness: best, longerMs: (h1 - h0 - (s1 - s0)) * frameMs, holeMs: hole * frameMs };
}

function smooth(levels) {
  return levels.map((_, i) => [-2, -1, 0, 1, 2].reduce((sum, step) => sum + (levels[i + step] ?? 0), 0) / 5);
}

/** How alike two lists are, 1 at most. @param {number[]} a @param {number[]} b */
export function correlation(a, b) {
  const n = Math.min(a.length, b.length);
  const mean = (list) => list.slice(0, n).reduce((x, y) => x + y, 0) / n;
  const [ma, mb] = [mean(a), mean(b)];
  let ab = 0,
    aa = 0,
    bb = 0;
  for (let i = 0; i < n; i++) {
    ab += (a[i] - ma) * (b[i] - mb);
    aa += (a[i] - ma) ** 2;
    bb += (b[i] - mb) ** 2;
  }
  return aa > 0 && bb > 0 ? ab / Math.sqrt(aa * bb) : 0;
}
