/**
 * Capture: microphone at the device's rate in, exact units at 16 kHz out.
 *
 * Page → worklet
 *   {type: 'start', unitSamples}     discard the samples gathered so far and start
 *   {type: 'stop'}                   stop; the remainder is sent as a unit with final: true
 *   {type: 'mute', on}               units continue, filled with silence: a duplex call is clocked by
 *                                    the sound card, which does not stop
 *   {type: 'recycle', audio}         returns a used buffer (transferred)
 * Worklet → page
 *   {type: 'unit', audio, final, at} audio: Float32Array, transferred; at: context time of its last sample
 *   {type: 'stopped'}                after the remainder
 *   {type: 'level', rms, peak}       20 times a second, also while muted, so that the page can show
 *                                    that the microphone works
 *
 * No input (device unplugged, not yet connected) counts as silence, so a call continues without its microphone.
 */

import { Resampler } from './resample.js';
import { LevelMeter, UnitGatherer } from './units.js';

const RATE_HZ = 16000;
const LEVELS_PER_SECOND = 20;
const SILENCE = new Float32Array(128);

class CaptureProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, RATE_HZ);
    this.scratch = new Float32Array(this.resampler.maxOutput(1024));
    this.units = new UnitGatherer(RATE_HZ, (audio, final) =>
      this.port.postMessage({ type: 'unit', audio, final, at: currentTime }, [audio.buffer]),
    );
    this.meter = new LevelMeter(RATE_HZ / LEVELS_PER_SECOND, (rms, peak) =>
      this.port.postMessage({ type: 'level', rms, peak }),
    );
    this.port.onmessage = ({ data }) => {
      switch (data.type) {
        case 'start':
          this.units.start(data.unitSamples);
          break;
        case 'stop':
          this.units.stop();
          this.port.postMessage({ type: 'stopped' });
          break;
        case 'mute':
          this.units.isMuted = data.on;
          break;
        case 'recycle':
          this.units.recycle(data.audio);
          break;
      }
    };
  }

  /** @param {Float32Array[][]} inputs */
  process(inputs) {
    const samples = inputs[0]?.[0] ?? SILENCE;
    const count = this.resampler.process(samples, this.scratch);
    this.meter.push(this.scratch, count);
    this.units.push(this.scratch, count);
    return true;
  }
}

registerProcessor('parley-capture', CaptureProcessor);
