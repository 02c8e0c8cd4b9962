/**
 * Playback: 24 kHz speech in, the context's rate out.
 *
 * Page → worklet
 *   {type: 'push', turn, audio, last}   audio: Float32Array at 24 kHz, transferred
 *   {type: 'end', turn}                 the turn is complete
 *   {type: 'flush', fadeMs}             fade out and clear the queue
 *   {type: 'delay', ms}                 time for which a turn waits before it starts
 * Worklet → page
 *   {type: 'position', turn, played, aheadMs, delayMs, gaps, shiftMs, level, sounding, at}
 *                                       20 times a second during playback, and once at its end;
 *                                       played: samples of `turn` at 24 kHz; at: context time
 *   {type: 'started' | 'drained' | 'flushed' | 'silent' | 'gap', turn, …, at}
 *
 * After an underrun the queue plays silence and fills up again, see jitter.js. Playing late chunks on arrival would
 * turn one stall of the network into many, and stretching the last sound would distort what the assistant says.
 */

import { PlaybackBuffer } from './jitter.js';
import { Resampler } from './resample.js';

const RATE_HZ = 24000;
const REPORTS_PER_SECOND = 20;
const STEP = 64;

class PlaybackProcessor extends AudioWorkletProcessor {
  /** @param {{processorOptions?: {delayMs?: number}}} [options] */
  constructor(options) {
    super();
    this.buffer = new PlaybackBuffer({
      rateHz: RATE_HZ,
      delayMs: options?.processorOptions?.delayMs ?? 200,
      onEvent: (event) => {
        this.port.postMessage({ ...event, at: currentTime });
        this.#report();
      },
    });
    this.resampler = new Resampler(RATE_HZ, sampleRate);
    this.step = new Float32Array(STEP);
    // Converted samples left over from the last block; at most one step and one block.
    this.ready = new Float32Array(this.resampler.maxOutput(STEP) + 1024);
    this.readyCount = 0;
    this.framesSinceReport = 0;
    this.idleFrames = 1 << 30;
    this.port.onmessage = ({ data }) => {
      switch (data.type) {
        case 'push':
          this.buffer.push(data.turn, data.audio, data.last);
          break;
        case 'end':
          this.buffer.endTurn(data.turn);
          break;
        case 'flush':
          this.buffer.flush(data.fadeMs);
          break;
        case 'delay':
          this.buffer.baseDelayMs = data.ms;
          break;
      }
    };
  }

  /** @param {Float32Array[][]} _inputs @param {Float32Array[][]} outputs */
  process(_inputs, outputs) {
    const channels = outputs[0];
    const out = channels[0];
    const frames = out.length;
    if (this.buffer.isSounding) this.idleFrames = 0;
    // The filter contains the end of the last sound for a moment after the queue is empty.
    if (this.idleFrames > sampleRate / 10) return true;
    this.idleFrames += frames;

    while (this.readyCount < frames) {
      this.buffer.read(this.step);
      this.readyCount += this.resampler.process(this.step, this.ready, this.readyCount);
    }
    for (let i = 0; i < frames; i++) out[i] = this.ready[i];
    this.ready.copyWithin(0, frames, this.readyCount);
    this.readyCount -= frames;
    for (let c = 1; c < channels.length; c++) channels[c].set(out);

    this.framesSinceReport += frames;
    if (this.buffer.isSounding && this.framesSinceReport >= sampleRate / REPORTS_PER_SECOND) this.#report();
    return true;
  }

  #report() {
    this.framesSinceReport = 0;
    const { buffer } = this;
    this.port.postMessage({
      type: 'position',
      turn: buffer.turn,
      played: buffer.played,
      aheadMs: buffer.aheadMs,
      delayMs: buffer.delayMs,
      gaps: buffer.gaps,
      shiftMs: buffer.shiftMs,
      level: buffer.takeLevel(),
      sounding: buffer.isSounding,
      at: currentTime,
    });
  }
}

registerProcessor('parley-playback', PlaybackProcessor);
