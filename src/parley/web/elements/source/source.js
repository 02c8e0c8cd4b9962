/**
 * <p-source>: live, or from a file. Decodes a clip before the call, sets its loudness, and makes the feed
 * of units. A mixed call opens the mixer: levels for file and microphone, trimmed by hand.
 */

import { AUDIO_LIMIT_S, FileFeed, VIDEO_LIMIT_S } from '../../talk/files.js';
import { ASSUMED_MIC_LUFS, gainFor, loudness, TARGET_FILE_ALONE_LUFS, TARGET_FILE_MIXED_LUFS, TARGET_MIC_LUFS, TRIM_LIMIT_DB } from '../../audio/loudness.js';
import { decodeSound, theRig } from '../../audio/rig.js';
import { join } from '../../audio/wav.js';
import { framesOf } from '../../talk/camera.js';
import { clock, number } from '../../words/words.js';
import { h, say, toast } from '../dom.js';
import { choice, range, Settings } from '../form.js';

const RATE_HZ = 16000;

export class Source extends HTMLElement {
  isVideo = false;
  #settings = new Settings('source', { mode: 'live', sound: 'file', offset: 0.5, before: 0, after: 2, monitor: 0.3, trimFile: 0, trimMic: 0 });
  /** @type {Float32Array<ArrayBuffer> | null} */
  #samples = null;
  /** @type {string[]} */
  #frames = [];
  #lufs = -Infinity;
  #micLufs = ASSUMED_MIC_LUFS;
  #state = h('p', { class: 'small quiet', role: 'status' });
  #progress = h('progress', { max: 1, value: 0, hidden: true, label: 'source.reading' });
  /** The file's object URL, for the preview. */
  url = '';
  name = '';

  connectedCallback() {
    const file = h('input', { type: 'file', accept: this.isVideo ? 'video/*' : 'audio/*', 'aria-labelledby': 'source-file' });
    file.onchange = () => {
      if (file.files?.[0]) void this.read(file.files[0]);
    };
    // A mode is chosen per visit: nobody wants to find yesterday's file in a call.
    this.#settings.set('mode', 'live');
    const sounds = /** @type {[string, string][]} */ (this.isVideo ? [['file', 'source.sound_file'], ['mic', 'source.sound_mic'], ['mixed', 'source.sound_mixed']] : [['file', 'source.sound_file'], ['mixed', 'source.sound_mixed']]);
    const measure = h('button', { class: 'button slim', type: 'button', icon: 'mic', words: 'source.measure', onclick: () => this.#measure() });
    const mixer = h('fieldset', { class: 'mixer' }, h('legend', { words: 'source.mixer' }),
      range(this.#settings, 'trimFile', { words: 'source.trim_file', min: -TRIM_LIMIT_DB, max: TRIM_LIMIT_DB, step: 1, unit: 'dB' }),
      range(this.#settings, 'trimMic', { words: 'source.trim_mic', min: -TRIM_LIMIT_DB, max: TRIM_LIMIT_DB, step: 1, unit: 'dB' }),
      measure);
    const body = h('div', { class: 'stack' },
      h('label', null, h('span', { id: 'source-file', words: this.isVideo ? ['source.video', { seconds: VIDEO_LIMIT_S }] : ['source.audio', { seconds: AUDIO_LIMIT_S }] }), file),
      this.#progress, this.#state,
      choice(this.#settings, 'sound', { words: 'source.sound', options: sounds }),
      this.isVideo ? range(this.#settings, 'offset', { words: 'source.offset', min: 0, max: 1, step: 0.1, unit: 's' }) : null,
      range(this.#settings, 'before', { words: 'source.before', min: 0, max: 30, step: 1, unit: 's' }),
      range(this.#settings, 'after', { words: 'source.after', min: 0, max: 30, step: 1, unit: 's' }),
      range(this.#settings, 'monitor', { words: 'source.monitor', min: 0, max: 1, step: 0.05 }),
      mixer);
    const mode = choice(this.#settings, 'mode', { words: 'source.mode', options: [['live', 'source.live'], ['file', 'source.file']] });
    const show = () => {
      body.hidden = this.#settings.get('mode') !== 'file';
      mixer.hidden = this.#settings.get('sound') !== 'mixed';
      this.dispatchEvent(new Event('change'));
    };
    this.#settings.addEventListener('change', show);
    this.append(mode, body);
    show();
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
    this.#samples = null;
    this.#frames = [];
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(file);
    this.name = file.name;
    say(this.#state, 'source.reading');
    this.#progress.hidden = false;
    try {
      const whole = await decodeSound(await file.arrayBuffer(), RATE_HZ).catch((error) => {
        // A film without sound is fine, a sound file without sound is not.
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
      const isCut = whole.length > limitS * RATE_HZ;
      this.#samples = isCut ? whole.slice(0, limitS * RATE_HZ) : whole;
      this.#lufs = loudness(this.#samples, RATE_HZ);
      const seconds = Math.max(this.#samples.length / RATE_HZ, this.#frames.length);
      say(this.#state, isCut ? 'source.cut' : 'source.ready', { name: file.name, time: clock(seconds), lufs: Number.isFinite(this.#lufs) ? number(this.#lufs) : '–', seconds: limitS });
    } catch {
      this.name = '';
      say(this.#state, this.isVideo ? 'error.not_video' : 'error.not_sound');
    } finally {
      this.#progress.hidden = true;
      this.dispatchEvent(new Event('change'));
    }
  }

  /** @returns {FileFeed | null} fresh for a call; null when live or nothing is loaded */
  feed() {
    if (!this.isFile || !this.#samples) return null;
    const sound = this.sound;
    const target = sound === 'mixed' ? TARGET_FILE_MIXED_LUFS : TARGET_FILE_ALONE_LUFS;
    return new FileFeed({
      samples: this.#samples,
      frames: this.isVideo ? this.#frames : undefined,
      beforeS: this.#settings.get('before'),
      afterS: this.#settings.get('after'),
      source: sound,
      gain: {
        file: gainFor(this.#lufs, target, this.#settings.get('trimFile')),
        mic: sound === 'mixed' ? gainFor(this.#micLufs, TARGET_MIC_LUFS, this.#settings.get('trimMic')) : 1,
      },
    });
  }

  /** Three seconds of the microphone. */
  async #measure() {
    const rig = theRig();
    try {
      await rig.connectMicrophone();
    } catch (error) {
      toast(`media.${/** @type {any} */ (error).trouble ?? 'failed'}_microphone`);
      return;
    }
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
