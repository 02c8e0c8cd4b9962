/** Waveforms of both voices on one timeline: the user above the line, the assistant below. */

import { drawing } from '../../elements/dom.js';

/** Peaks per 50 ms of user and assistant. @typedef {[Float32Array, Float32Array]} Peaks */

const RATE_HZ = 16000;
const STEP = RATE_HZ / 20;
/** Maximum size that is fetched and decoded for a waveform: 20 minutes of stereo. */
const LIMIT_BYTES = 120e6;

/** @param {string} url @returns {Promise<{peaks: Peaks, seconds: number} | null>} null if it is too long to be drawn */
export async function loadPeaks(url) {
  const answer = await fetch(url);
  if (Number(answer.headers.get('content-length')) > LIMIT_BYTES) {
    await answer.body?.cancel();
    return null;
  }
  const sound = await new OfflineAudioContext(2, 1, RATE_HZ).decodeAudioData(await answer.arrayBuffer());
  const peaks = (/** @type {number} */ channel) => {
    const samples = sound.getChannelData(Math.min(channel, sound.numberOfChannels - 1));
    const out = new Float32Array(Math.ceil(samples.length / STEP));
    for (let i = 0; i < samples.length; i++) {
      const size = Math.abs(samples[i]);
      const at = (i / STEP) | 0;
      if (size > out[at]) out[at] = size;
    }
    return out;
  };
  return { peaks: [peaks(0), peaks(1)], seconds: sound.duration };
}

/** @param {Float32Array} list @param {number} from @param {number} until */
function peakIn(list, from, until) {
  let peak = 0;
  for (let i = Math.floor(from); i < Math.max(until, Math.floor(from) + 1) && i < list.length; i++) {
    peak = Math.max(peak, list[i]);
  }
  return peak;
}

/**
 * @param {HTMLCanvasElement} canvas its colour, outline and border colours are used for the user, the assistant and
 *   the line
 * @param {{cells: import('./cells.js').Cell[], peaks: Peaks | null, totalS: number, at: number}} what
 */
export function drawWaveform(canvas, { cells, peaks, totalS, at }) {
  const shown = drawing(canvas);
  if (!shown || totalS === 0) return;
  const { pen, width, height, ratio, style } = shown;
  const colours = [style.color, style.outlineColor];
  const middle = height / 2;
  pen.globalAlpha = 0.12;
  pen.fillStyle = colours[1];
  for (const cell of cells.filter(({ mode }) => mode !== 'listen')) {
    // What a unit says is heard after it.
    const from = cell.mode === 'speak' ? cell.at + cell.length : cell.at;
    pen.fillRect((from / totalS) * width, 0, Math.max(1, (cell.length / totalS) * width - 1), height);
  }
  pen.globalAlpha = 1;
  const perPixel = (totalS * 20) / width;
  for (const [side, list] of (peaks ?? []).entries()) {
    pen.fillStyle = colours[side];
    for (let x = 0; x < width; x++) {
      const tall = Math.sqrt(peakIn(list, x * perPixel, (x + 1) * perPixel)) * (middle - 3);
      pen.fillRect(x, side === 0 ? middle - tall : middle, 1, tall);
    }
  }
  pen.fillStyle = style.borderTopColor;
  pen.fillRect(0, middle, width, 1);
  pen.fillRect(Math.round((at / totalS) * width), 0, Math.max(2, ratio), height);
}
