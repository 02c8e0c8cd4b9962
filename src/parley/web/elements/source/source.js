/**
 * <p-source>: choice of live input or a file. It decodes a clip before the call, adjusts its loudness and creates the
 * feed of units. A mixed call opens the mixer with levels and trims for file and microphone.
 */

import { AUDIO_LIMIT_S, FileFeed, VIDEO_LIMIT_S } from '../../talk/files.js';
import {
  ASSUMED_MIC_LUFS,
  gainFor,
  loudness,
  TARGET_FILE_ALONE_LUFS,
  TARGET_FILE_MIXED_LUFS,
  TARGET_MIC_LUFS,
  TRIM_LIMIT_DB,
} from '../../audio/loudness.js';
import { mixInto } from '../../audio/mixer.js';
import { decodeSound, theRig } from '../../audio/rig.js';
import { join } from '../../audio/wav.js';
import { framesOf, secondsOf } from '../../talk/camera.js';
import { clock, number } from '../../words/words.js';
import { h, say, toast } from '../dom.js';
import { choice, range, Settings } from '../form.js';
import '../player/player.js';

const RATE_HZ = 16000;
/** Duration of a trial of the mix: long enough for a sentence over the file. */
const TRIAL_S = 10;
const TRIAL_STEP = RATE_HZ / 10;

/** @param {Float32Array} samples */
function peakOf(samples) {
  let peak = 0;
  for (const value of samples) peak = Math.max(peak, Math.abs(value));
  return peak;
}

/** Returns the length in seconds of the clip at an address. @param {string} url @returns {Promise<number>} */
function lengthOf(url) {
  const video = document.createElement('video');
  video.preload = 'metadata';
  return new Promise((resolve) => {
    video.onloadedmetadata = () => secondsOf(video).then(resolve, () => resolve(0));
    video.onerror = () => resolve(0);
    video.src = url;
  });
}

export class Source extends HTMLElement {
  isVideo = false;
  #settings = new Settings('source', {
    mode: 'live',
    sound: 'file',
    offset: 0.5,
    before: 0,
    after: 2,
    monitor: 0.3,
    trimFile: 0,
    trimMic: 0,
  });
  /** @type {Float32Array<ArrayBuffer> | null} */
  #samples = null;
  /** @type {string[]} */
  #frames = [];
  #lufs = -Infinity;
  #micLufs = ASSUMED_MIC_LUFS;
  /** The file, kept so that pictures can be taken again at another offset. @type {File | null} */
  #file = null;
  #offset = NaN;
  #state = h('p', { class: 'small quiet', role: 'status' });
  #progress = h('progress', { max: 1, value: 0, hidden: true, label: 'source.reading' });
  /** The file's object URL, for the preview. */
  url = '';
  name = '';

  connectedCallback() {
    // The mode is chosen per visit: the file of an earlier visit must not appear in a call.
    this.#settings.set('mode', 'live');
    const mixer = this.#mixer();
    const body = this.#body(mixer);
    const modes = /** @type {[string, string][]} */ ([
      ['live', 'source.live'],
      ['file', 'source.file'],
    ]);
    const show = () => {
      body.hidden = this.#settings.get('mode') !== 'file';
      mixer.hidden = this.#settings.get('sound') !== 'mixed';
      if (mixer.hidden) this.#stopTrial();
      this.dispatchEvent(new Event('change'));
    };
    this.#settings.addEventListener('change', show);
    this.append(choice(this.#settings, 'mode', { words: 'source.mode', options: modes }), body);
    this.#showLights();
    show();
  }

  #mixer() {
    const trim = { min: -TRIM_LIMIT_DB, max: TRIM_LIMIT_DB, step: 1, unit: 'dB' };
    const onclick = () => this.#measure();
    this.#heard.hidden = this.#meters.hidden = true;
    this.#try.onclick = () => void (this.#trial ? this.#stopTrial() : this.#startTrial());
    return h(
      'fieldset',
      { class: 'mixer' },
      h('legend', { words: 'source.mixer' }),
      range(this.#settings, 'trimFile', { words: 'source.trim_file', ...trim }),
      range(this.#settings, 'trimMic', { words: 'source.trim_mic', ...trim }),
      h(
        'div',
        { class: 'row' },
        h('button', { class: 'button slim', type: 'button', icon: 'mic', words: 'source.measure', onclick }),
        this.#try,
      ),
      this.#lights,
      this.#meters,
      this.#heard,
    );
  }

  /** @param {HTMLElement} mixer */
  #body(mixer) {
    const settings = this.#settings;
    const accept = this.isVideo ? 'video/*' : 'audio/*';
    const file = h('input', { type: 'file', accept, 'aria-labelledby': 'source-file' });
    file.onchange = () => {
      if (file.files?.[0]) void this.read(file.files[0]);
    };
    const kinds = this.isVideo ? ['file', 'mic', 'mixed'] : ['file', 'mixed'];
    const options = kinds.map((kind) => /** @type {[string, string]} */ ([kind, `source.sound_${kind}`]));
    const seconds = { min: 0, max: 30, step: 1, unit: 's' };
    /** @type {[string, Record<string, unknown>]} */
    const words = this.isVideo
      ? ['source.video', { seconds: VIDEO_LIMIT_S }]
      : ['source.audio', { seconds: AUDIO_LIMIT_S }];
    const body = h(
      'div',
      { class: 'stack' },
      h('label', null, h('span', { id: 'source-file', words }), file),
      this.#progress,
      this.#state,
      choice(settings, 'sound', { words: 'source.sound', options }),
      this.isVideo ? range(settings, 'offset', { words: 'source.offset', min: 0, max: 1, step: 0.1, unit: 's' }) : null,
      range(settings, 'before', { words: 'source.before', ...seconds }),
      range(settings, 'after', { words: 'source.after', ...seconds }),
      range(settings, 'monitor', { words: 'source.monitor', min: 0, max: 1, step: 0.05 }),
      mixer,
    );
    body.addEventListener('change', () => {
      // When the slider is released, the pictures are taken again at the new offset.
      if (this.isVideo && this.#file && settings.get('offset') !== this.#offset) void this.read(this.#file);
    });
    return body;
  }

  /** Settings, of which the trims can be changed during a call. */
  get settings() {
    return this.#settings;
  }

  /** Returns the gains with the current trims. */
  gain() {
    return this.#gain(this.sound);
  }

  get isFile() {
    return this.#settings.get('mode') === 'file';
  }

  get monitor() {
    return this.#settings.get('monitor');
  }

  /** @returns {'mic' | 'file' | 'mixed'} */
  get sound() {
    return this.isFile ? /** @type {'mic' | 'file' | 'mixed'} */ (this.#settings.get('sound')) : 'mic';
  }

  /** @param {File} file */
  async read(file) {
    const limitS = this.isVideo ? VIDEO_LIMIT_S : AUDIO_LIMIT_S;
    this.#stopTrial();
    this.#file = file;
    this.#offset = this.#settings.get('offset');
    this.#samples = null;
    this.#frames = [];
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(file);
    this.name = file.name;
    say(this.#state, 'source.reading');
    this.#progress.hidden = false;
    try {
      const whole = await decodeSound(await file.arrayBuffer(), RATE_HZ).catch((error) => {
        // A video without sound is accepted, an audio file without sound is not.
        if (this.isVideo) return new Float32Array(0);
        throw error;
      });
      if (this.isVideo) {
        this.#frames = await framesOf(this.url, {
          offset: this.#settings.get('offset'),
          limitS,
          onProgress: (part) => {
            this.#progress.value = part;
          },
        });
      }
      const isCut = whole.length > limitS * RATE_HZ || (this.isVideo && (await lengthOf(this.url)) > limitS);
      this.#samples = isCut ? whole.slice(0, limitS * RATE_HZ) : whole;
      this.#lufs = loudness(this.#samples, RATE_HZ);
      const seconds = Math.max(this.#samples.length / RATE_HZ, this.#frames.length);
      say(this.#state, isCut ? 'source.cut' : 'source.ready', {
        name: file.name,
        time: clock(seconds),
        lufs: Number.isFinite(this.#lufs) ? number(this.#lufs) : '–',
        seconds: limitS,
      });
    } catch {
      this.name = '';
      this.#file = null;
      say(this.#state, this.isVideo ? 'error.not_video' : 'error.not_sound');
    } finally {
      this.#progress.hidden = true;
      this.#showLights();
      this.dispatchEvent(new Event('change'));
    }
  }

  /** @returns {FileFeed | null} a new one for a call; null if live or if nothing is loaded */
  feed() {
    if (!this.isFile || !this.#samples) return null;
    this.#stopTrial();
    const sound = this.sound;
    return new FileFeed({
      samples: this.#samples,
      frames: this.isVideo ? this.#frames : undefined,
      beforeS: this.#settings.get('before'),
      afterS: this.#settings.get('after'),
      source: sound,
      gain: this.#gain(sound),
    });
  }

  /** @param {'mic' | 'file' | 'mixed'} sound */
  #gain(sound) {
    const target = sound === 'mixed' ? TARGET_FILE_MIXED_LUFS : TARGET_FILE_ALONE_LUFS;
    return {
      file: gainFor(this.#lufs, target, this.#settings.get('trimFile')),
      mic: sound === 'mixed' ? gainFor(this.#micLufs, TARGET_MIC_LUFS, this.#settings.get('trimMic')) : 1,
    };
  }

  // Trial of the mix before a call: what the model would hear is recorded and played back

  #try = h('button', { class: 'button slim', type: 'button', icon: 'record', words: 'source.try' });
  #meters = h('div', { class: 'meters' });
  #lights = h('p', { class: 'lights small quiet' });
  #heard = /** @type {import('../player/player.js').Player} */ (document.createElement('p-player'));
  /** @type {Float32Array[] | null} */
  #trial = null;

  /** Shows if file, microphone and worklet are available, as text with a dot. */
  #showLights() {
    const rig = theRig();
    /** @type {[string, boolean][]} */
    const lights = [
      ['file', this.#samples !== null],
      ['mic', rig.stream !== null],
      ['engine', rig.context?.state === 'running'],
    ];
    this.#lights.replaceChildren(
      ...lights.map(([name, isOn]) =>
        h(
          'span',
          { class: 'chip' },
          h('span', { class: 'dot', 'data-is': isOn ? 'good' : '' }),
          h('span', { words: `source.light_${name}` }),
          h('span', { words: isOn ? 'source.light_on' : 'source.light_off' }),
        ),
      ),
    );
  }

  /**
   * Returns the rig with a microphone; null, with a message on the page, if there is none.
   * @returns {Promise<ReturnType<typeof theRig> | null>}
   */
  async #withMicrophone() {
    const rig = theRig();
    try {
      await rig.connectMicrophone();
      return rig;
    } catch (error) {
      toast(`media.${/** @type {any} */ (error).trouble ?? 'failed'}_microphone`);
      return null;
    }
  }

  async #startTrial() {
    const file = this.#samples;
    if (!file) {
      toast('source.none');
      return;
    }
    const rig = await this.#withMicrophone();
    if (!rig) return;
    /** @type {Float32Array[]} */
    const parts = [];
    this.#trial = parts;
    const meters = ['file', 'mic', 'mix'].map((name) =>
      h('meter', { min: 0, max: 1, low: 0.02, high: 0.95, optimum: 0.4, value: 0, label: `source.meter_${name}` }),
    );
    this.#meters.replaceChildren(
      ...['file', 'mic', 'mix'].map((name, i) =>
        h('label', null, h('span', { words: `source.meter_${name}` }), meters[i]),
      ),
    );
    this.#meters.hidden = false;
    this.#heard.hidden = true;
    say(/** @type {HTMLElement} */ (this.#try.lastElementChild), 'source.try_stop');
    this.#showLights();
    rig.capture(TRIAL_STEP, (mic) => {
      if (this.#trial !== parts) return;
      const from = (parts.length * TRIAL_STEP) % Math.max(1, file.length);
      const gain = this.#gain('mixed');
      const piece = file.subarray(from, from + TRIAL_STEP);
      const mixed = mixInto(new Float32Array(TRIAL_STEP), mic, piece, gain);
      [peakOf(piece) * gain.file, peakOf(mic) * gain.mic, peakOf(mixed)].forEach((value, i) => {
        meters[i].value = Math.min(1, value);
      });
      parts.push(mixed);
      if (mic.length === TRIAL_STEP) rig.recycle(mic);
      if (parts.length * TRIAL_STEP >= TRIAL_S * RATE_HZ) this.#stopTrial();
    });
  }

  #stopTrial() {
    const parts = this.#trial;
    if (!parts) return;
    this.#trial = null;
    theRig().releaseMicrophone();
    say(/** @type {HTMLElement} */ (this.#try.lastElementChild), 'source.try');
    this.#showLights();
    if (parts.length === 0) return;
    this.#heard.setPcm(join(parts), RATE_HZ);
    this.#heard.hidden = false;
  }

  /** Records three seconds of the microphone. */
  async #measure() {
    const rig = await this.#withMicrophone();
    if (!rig) return;
    say(this.#state, 'source.speak_now');
    /** @type {Float32Array[]} */
    const parts = [];
    await new Promise((resolve) => {
      rig.capture(RATE_HZ, (audio) => {
        parts.push(audio.slice());
        if (parts.length === 3) resolve(undefined);
      });
    });
    rig.releaseMicrophone();
    this.#micLufs = loudness(join(parts), RATE_HZ);
    if (!Number.isFinite(this.#micLufs)) this.#micLufs = ASSUMED_MIC_LUFS;
    say(this.#state, 'source.measured', { lufs: number(this.#micLufs) });
  }
}

customElements.define('p-source', Source);
