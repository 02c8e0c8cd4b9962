/**
 * Audio input and output of a page: one AudioContext, one capture worklet and one playback worklet.
 *
 * Handles devices and worklets, not conversations. `open()` must be called from a click or a key press: otherwise
 * browsers do not play sound.
 */

import { Emitter } from '../emitter.js';
import { canChooseSpeaker, openMicrophone, release, toMediaError } from './devices.js';
import { Unheard } from './unheard.js';

const PLAYBACK_HZ = 24000;
const RESUME_WAIT_MS = 1500;
/** Time without a microphone and without sound after which the context is suspended until it is needed again. */
const REST_AFTER_MS = 10_000;

/** Estimated output latency in Firefox; with PulseAudio it is 25 to 50 ms. */
const FIREFOX_LATENCY_S = 0.04;

/**
 * Returns the output latency in seconds; in Firefox, an estimate. Firefox holds the lock of its audio graph while its
 * audio process looks up `outputLatency` (`getOutputTimestamp()` also reads it). If that process waits for the graph
 * meanwhile, the tab never responds again (Firefox 153 with PulseAudio: in half of all video calls).
 *
 * @param {AudioContext} context
 */
export const latencyOf = (context) =>
  'mozInnerScreenX' in globalThis ? FIREFOX_LATENCY_S : context.outputLatency || context.baseLatency || 0;

/**
 * @typedef {{turn: number, played: number, aheadMs: number, delayMs: number, gaps: number,
 *   shiftMs: number, level: number, sounding: boolean, at: number, heard: number}} Position
 */

/**
 * @typedef {object} RigEvents
 * @property {{rms: number, peak: number}} level microphone, 20 times a second
 * @property {Position} position
 * @property {{turn: number, at: number}} started for these five, see playback-worklet.js
 * @property {{turn: number, index: number, ms: number, at: number}} gap
 * @property {{turn: number, played: number, at: number}} drained
 * @property {{turn: number, played: number, at: number}} flushed
 * @property {{turn: number, played: number, at: number}} silent
 * @property {{}} mic-lost the microphone was disconnected; silence is captured until another is chosen
 * @property {{}} suspended the system has suspended audio (a phone call); `open()` resumes it
 * @property {{}} resumed audio is running again
 * @property {{}} devices the lists of devices changed
 */

/** @extends {Emitter<RigEvents>} */
export class Rig extends Emitter {
  /** @type {AudioContext | null} */
  context = null;
  /** @type {Promise<void> | null} */
  #opening = null;
  /** @type {AudioWorkletNode | null} */
  #capture = null;
  /** @type {AudioWorkletNode | null} */
  #playback = null;
  /** @type {GainNode | null} */
  #voice = null;
  /** @type {MediaStreamAudioSourceNode | null} */
  #source = null;
  /**
   * The user's input to recordings: silent while muted, and unchanged when the microphone changes.
   * @type {GainNode | null}
   */
  #micGain = null;
  #turns = 0;
  #unheard = new Unheard(PLAYBACK_HZ);
  /** @type {MediaStream | null} */
  stream = null;
  /** @type {HTMLAudioElement | null} */
  #element = null;
  /** @type {(audio: Float32Array<ArrayBuffer>, final: boolean) => void} */
  #onUnit = () => {};
  /** @type {(() => void) | null} */
  #onStopped = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #resting;
  #isResting = false;
  /** True if the microphone has delivered anything but zeros. */
  #isOn = false;

  volume = 1;
  speakerId = '';
  playbackDelayMs = 200;
  /**
   * URL of the folder with the worklets. Bundlers do not include them: set this to the URL of a copy before `open()`.
   */
  worklets = import.meta.url;

  /** Starts audio. Can be called repeatedly; must be called from a user's gesture. */
  async open() {
    clearTimeout(this.#resting);
    // The context may still be suspending.
    const wasResting = this.#isResting;
    this.#isResting = false;
    this.#opening ??= this.#build().catch((error) => {
      this.#opening = null;
      throw error;
    });
    await this.#opening;
    // During a phone call iOS refuses to resume, and a context resumed then stays silent permanently.
    if ((this.context?.state === 'running' && !wasResting) || this.isHeld) return;
    // If sound is not allowed yet, the promise may never settle; the page has received `suspended` by then.
    await Promise.race([this.context?.resume(), new Promise((resolve) => setTimeout(resolve, RESUME_WAIT_MS))]);
  }

  /**
   * Suspends the context after a pause. A running context uses 60 ms of CPU per second, and a phone's battery, even if
   * it is silent.
   */
  #restSoon() {
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => {
      if (this.stream || this.context?.state !== 'running') return;
      if (this.#listeners.size > 0 || this.unheardMs > 0) return this.#restSoon();
      this.#isResting = true;
      void this.context.suspend();
    }, REST_AFTER_MS);
  }

  /** True while the system interrupts audio for a phone call; a `statechange` event reports its end. */
  get isHeld() {
    return /** @type {string | undefined} */ (this.context?.state) === 'interrupted';
  }

  async #build() {
    const context = new AudioContext({ latencyHint: 'interactive' });
    this.context = context;
    // Before any `await`, while the user's gesture is still valid.
    void context.resume();
    context.addEventListener('statechange', () => {
      if (context.state === 'running') this.emit('resumed', {});
      else if (context.state !== 'closed' && !this.#isResting) this.emit('suspended', {});
    });
    navigator.mediaDevices?.addEventListener?.('devicechange', () => this.emit('devices', {}));
    await Promise.all([this.#load('capture-worklet.js'), this.#load('playback-worklet.js')]);

    const playback = new AudioWorkletNode(context, 'parley-playback', {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { delayMs: this.playbackDelayMs },
    });
    this.#voice = new GainNode(context, { gain: this.volume });
    this.#micGain = new GainNode(context);
    playback.connect(this.#voice);
    playback.port.onmessage = ({ data }) => {
      if (data.type === 'position') {
        data.heard = this.#heard(data);
        this.#unheard.take(data, performance.now());
      }
      if (data.type === 'drained') this.#unheard.end(data.turn);
      this.emit(data.type, data);
    };
    this.#playback = playback;

    const capture = new AudioWorkletNode(context, 'parley-capture', { outputChannelCount: [1] });
    capture.port.onmessage = ({ data }) => {
      if (data.type === 'unit') this.#onUnit(data.audio, data.final);
      if (data.type === 'stopped') this.#onStopped?.();
      // A microphone that a switch or another program has muted delivers zeros: not even silence.
      this.#isOn ||= data.peak > 0;
      if (data.type === 'level' && this.#isOn && !this.stream?.getAudioTracks()[0].muted) this.emit('level', data);
    };
    // The worklet's output is silence. It is connected anyway, because an unconnected node may not be run.
    capture.connect(new GainNode(context, { gain: 0 })).connect(context.destination);
    this.#capture = capture;
    await this.#routeVoice();
  }

  /** @param {{played: number, sounding: boolean}} position */
  #heard({ played, sounding }) {
    return sounding ? Math.max(0, played - this.latencyS * PLAYBACK_HZ) : played;
  }

  /** Delay from the playback worklet to the loudspeaker. */
  get latencyS() {
    return this.context ? latencyOf(this.context) : 0;
  }

  /** @param {string} file */
  async #load(file) {
    const url = new URL(file, new URL(this.worklets, document.baseURI)).href;
    await this.context?.audioWorklet.addModule(url).catch((error) => {
      throw new Error(`no worklet at ${url}: set the rig's worklets to where the package's folder audio/ is`, {
        cause: error,
      });
    });
  }

  // Capture

  /**
   * Opens the microphone. Units are delivered after `capture`.
   * @param {{deviceId?: string, isStudio?: boolean}} [options]
   */
  async connectMicrophone(options) {
    const stream = await openMicrophone(options);
    await this.open();
    this.#dropSource();
    this.#isOn = false;
    this.stream = stream;
    stream.getAudioTracks()[0].addEventListener('ended', () => {
      if (this.stream === stream) this.emit('mic-lost', {});
    });
    try {
      this.#source = /** @type {AudioContext} */ (this.context).createMediaStreamSource(stream);
    } catch (error) {
      // Firefox refuses a microphone whose rate is not the context's.
      throw toMediaError(error, 'microphone');
    }
    this.#source.connect(/** @type {AudioWorkletNode} */ (this.#capture));
    this.#source.connect(/** @type {GainNode} */ (this.#micGain));
  }

  #dropSource() {
    this.#source?.disconnect();
    this.#source = null;
    release(this.stream);
    this.stream = null;
  }

  /**
   * Starts delivering units of exactly `unitSamples` at 16 kHz, driven by the sound card's clock.
   * @param {number} unitSamples
   * @param {(audio: Float32Array<ArrayBuffer>, final: boolean) => void} onUnit should return the buffer with
   *   `recycle`
   */
  capture(unitSamples, onUnit) {
    this.#onUnit = onUnit;
    this.#capture?.port.postMessage({ type: 'start', unitSamples });
  }

  /** @param {Float32Array<ArrayBuffer>} audio */
  recycle(audio) {
    if (audio.buffer.byteLength > 0) this.#capture?.port.postMessage({ type: 'recycle', audio }, [audio.buffer]);
  }

  /** Stops delivering units; resolves when the remainder has been delivered. */
  async stopCapture() {
    const capture = this.#capture;
    if (!capture || this.context?.state !== 'running') {
      this.#onUnit = () => {};
      return;
    }
    const onUnit = this.#onUnit;
    await new Promise((resolve) => {
      this.#onStopped = () => resolve(undefined);
      capture.port.postMessage({ type: 'stop' });
    });
    // A new capture may have started meanwhile; its listener must stay.
    if (this.#onUnit === onUnit) this.#onUnit = () => {};
  }

  /** @param {boolean} on */
  mute(on) {
    this.#capture?.port.postMessage({ type: 'mute', on });
    if (this.#micGain) this.#micGain.gain.value = on ? 0 : 1;
  }

  /** Releases the microphone, so that the browser's recording indicator disappears. */
  releaseMicrophone() {
    void this.stopCapture();
    this.#dropSource();
    this.#restSoon();
  }

  // Playback

  /** Returns a number for the next turn. Turns are played in the order of these numbers. */
  newTurn() {
    return ++this.#turns;
  }

  /** Milliseconds of the audio passed to `play` that have not been heard. */
  get unheardMs() {
    return this.#unheard.leftMs(performance.now());
  }

  /**
   * @param {number} turn
   * @param {Float32Array<ArrayBuffer>} audio 24 kHz; the buffer is transferred
   * @param {boolean} [last]
   */
  play(turn, audio, last = false) {
    if (this.#isResting) void this.open();
    this.#unheard.give(turn, audio.length);
    this.#playback?.port.postMessage({ type: 'push', turn, audio, last }, [audio.buffer]);
  }

  /** @param {number} turn */
  endTurn(turn) {
    this.#playback?.port.postMessage({ type: 'end', turn });
  }

  /** @param {number} [fadeMs] */
  flush(fadeMs = 40) {
    this.#unheard.clear();
    this.#playback?.port.postMessage({ type: 'flush', fadeMs });
  }

  /** @param {number} ms */
  setPlaybackDelay(ms) {
    this.playbackDelayMs = ms;
    this.#playback?.port.postMessage({ type: 'delay', ms });
  }

  /** @param {number} volume 0 to 1 */
  setVolume(volume) {
    this.volume = volume;
    this.#glide(volume);
  }

  /** Lowers the voice while the user may be interrupting. @param {boolean} on */
  duck(on) {
    this.#glide(on ? this.volume * 0.15 : this.volume);
  }

  /** @param {number} gain */
  #glide(gain) {
    if (!this.context || !this.#voice) return;
    this.#voice.gain.setTargetAtTime(gain, this.context.currentTime, 0.015);
  }

  /** @param {string} deviceId '' for the system's choice */
  async setSpeaker(deviceId) {
    this.speakerId = deviceId;
    // While the rig is opening there is nothing to route yet; `open()` routes the voice at its end.
    if (this.#voice) await this.#routeVoice();
  }

  async #routeVoice() {
    const context = /** @type {AudioContext & {setSinkId?: (id: string) => Promise<void>}} */ (this.context);
    const voice = /** @type {GainNode} */ (this.#voice);
    voice.disconnect();
    if (context.setSinkId) {
      voice.connect(context.destination);
      await context.setSinkId(this.speakerId).catch(() => this.emit('devices', {}));
    } else if (this.speakerId && canChooseSpeaker()) {
      // Firefox and Safari can select a loudspeaker only per media element.
      const outlet = context.createMediaStreamDestination();
      voice.connect(outlet);
      this.#element ??= new Audio();
      this.#element.srcObject = outlet.stream;
      await this.#element.setSinkId(this.speakerId).catch(() => this.emit('devices', {}));
      await this.#element.play();
    } else {
      this.#element?.pause();
      voice.connect(context.destination);
    }
    for (const listener of this.#listeners) voice.connect(listener.node, 0, listener.input);
  }

  // Taps

  /** @type {Set<{node: AudioNode, input: number}>} */
  #listeners = new Set();

  /**
   * Creates a recorder node that receives the user on input 0 and the assistant on input 1, in step sample by sample.
   * @returns {Promise<{node: AudioWorkletNode, close: () => void}>}
   */
  async listenIn() {
    await this.open();
    const context = /** @type {AudioContext} */ (this.context);
    await this.#load('recorder-worklet.js');
    const node = new AudioWorkletNode(context, 'parley-recorder', {
      numberOfInputs: 2,
      numberOfOutputs: 1,
      outputChannelCount: [1],
    });
    const silent = new GainNode(context, { gain: 0 });
    node.connect(silent).connect(context.destination);
    const listener = { node, input: 1 };
    this.#listeners.add(listener);
    this.#voice?.connect(node, 0, 1);
    this.#micGain?.connect(node, 0, 0);
    return {
      node,
      close: () => {
        this.#listeners.delete(listener);
        silent.disconnect();
        this.#micGain?.disconnect(node);
        this.#voice?.disconnect(node);
        node.disconnect();
      },
    };
  }

  /** Returns both sides as one media stream for a recording in the browser: the user left, the assistant right. */
  mixedStream() {
    const context = /** @type {AudioContext} */ (this.context);
    const merger = context.createChannelMerger(2);
    const outlet = context.createMediaStreamDestination();
    merger.connect(outlet);
    const listener = { node: /** @type {AudioNode} */ (merger), input: 1 };
    this.#listeners.add(listener);
    this.#voice?.connect(merger, 0, 1);
    this.#micGain?.connect(merger, 0, 0);
    return {
      stream: outlet.stream,
      close: () => {
        this.#listeners.delete(listener);
        this.#micGain?.disconnect(merger);
        this.#voice?.disconnect(merger);
        merger.disconnect();
      },
    };
  }

  /** Stops playback, releases the devices and closes the context. The rig can be opened again. */
  async close() {
    this.releaseMicrophone();
    clearTimeout(this.#resting);
    this.#listeners.clear();
    this.#element?.pause();
    const { context } = this;
    this.context = null;
    this.#opening = null;
    this.#capture = this.#playback = this.#voice = this.#micGain = null;
    if (context && context.state !== 'closed') await context.close();
  }
}

/** @type {Rig | null} */
let shared = null;

/** Returns the page's only rig: browsers limit the number of contexts, and echo cancellation works best with one. */
export function theRig() {
  shared ??= new Rig();
  return shared;
}

/**
 * Decodes an audio file to mono samples.
 * @param {ArrayBuffer} bytes any format the browser can decode
 * @param {number} [rateHz]
 * @returns {Promise<Float32Array<ArrayBuffer>>}
 */
export async function decodeSound(bytes, rateHz = 16000) {
  const decoder = new OfflineAudioContext(1, 1, rateHz);
  const sound = await decoder.decodeAudioData(bytes);
  const mono = new Float32Array(sound.length);
  for (let c = 0; c < sound.numberOfChannels; c++) {
    const channel = sound.getChannelData(c);
    for (let i = 0; i < mono.length; i++) mono[i] += channel[i] / sound.numberOfChannels;
  }
  return mono;
}
