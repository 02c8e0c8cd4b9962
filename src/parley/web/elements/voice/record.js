/**
 * Recording of a voice to imitate: the user reads a sentence aloud, listens to it, and uses it here or saves it on the
 * server.
 */

import { theRig } from '../../audio/rig.js';
import { encodeWav, join } from '../../audio/wav.js';
import { encodeBytes } from '../../wire/codec.js';
import { HttpError, rememberVoice, request } from '../../wire/http.js';
import { clock } from '../../words/words.js';
import { element, h, say, sheet, toast } from '../dom.js';
import '../player/player.js';

const RATE_HZ = 16000;
const LIMIT_S = 20;
const LEAST_S = 1;
const GOOD_S = 5;
const TOO_QUIET = 0.02;
const TOO_LOUD = 0.98;

/**
 * @typedef {object} Taken
 * @property {(sound: Float32Array<ArrayBuffer>, name: string) => void} use called to use the recording in this page
 * @property {(id: string, sound: Float32Array<ArrayBuffer>) => Promise<void>} saved called when it was saved on the
 *   server
 */

class VoiceSheet {
  #rig = theRig();
  /** @type {Float32Array[]} */
  #parts = [];
  #peak = 0;
  #isRunning = false;
  /** @type {Float32Array<ArrayBuffer> | null} */
  #sound = null;
  #consent = h('input', { type: 'checkbox' });
  #name = h('input', { value: '', maxlength: 60, hint: 'voice.name' });
  #meter = h('meter', { min: 0, max: 1, low: TOO_QUIET, high: TOO_LOUD, optimum: 0.3, value: 0, label: 'voice.level' });
  #time = h('span', { class: 'num' }, clock(0));
  #advice = h('p', { class: 'small quiet', role: 'status', words: 'voice.read_aloud' });
  #start = h('button', {
    class: 'button primary',
    type: 'button',
    icon: 'record',
    words: 'voice.start',
    disabled: true,
  });
  #use = h('button', { class: 'button primary', type: 'button', words: 'voice.use', hidden: true });
  #save = h('button', { class: 'button', type: 'button', words: 'voice.save', hidden: true });
  #preview = /** @type {import('../player/player.js').Player} */ (element('p-player', { hidden: '' }));

  /** @param {Taken} taken */
  constructor(taken) {
    this.taken = taken;
    const node = sheet(
      'voice.record_title',
      h('p', { class: 'quiet', words: 'voice.sample_text' }),
      h('label', { class: 'switch' }, h('span', { words: 'voice.consent' }), this.#consent),
      h('div', { class: 'row' }, this.#start, this.#time, this.#meter),
      this.#advice,
      this.#preview,
      h('label', null, h('span', { words: 'voice.name' }), this.#name),
      h('div', { class: 'row' }, this.#use, this.#save),
    );
    this.#consent.onchange = () => {
      this.#start.disabled = !this.#consent.checked;
    };
    const watch = (/** @type {Event} */ event) => this.#onLevel(/** @type {CustomEvent} */ (event).detail);
    this.#rig.addEventListener('level', watch);
    this.#start.onclick = () => void (this.#isRunning ? this.#finish() : this.#begin());
    this.#use.onclick = () => {
      if (this.#sound) taken.use(this.#sound, this.#name.value || '♪');
      node.close();
    };
    this.#save.onclick = async () => {
      if (await this.#keep()) node.close();
    };
    node.addEventListener('close', () => {
      this.#rig.removeEventListener('level', watch);
      if (this.#isRunning) this.#rig.releaseMicrophone();
    });
  }

  /** @param {{rms: number, peak: number}} level */
  #onLevel({ rms, peak }) {
    this.#meter.value = Math.min(1, rms * 4);
    if (this.#isRunning) this.#peak = Math.max(this.#peak, peak);
  }

  async #begin() {
    const rig = this.#rig;
    try {
      await rig.connectMicrophone();
    } catch (error) {
      say(this.#advice, `media.${/** @type {any} */ (error).trouble ?? 'failed'}_microphone`);
      return;
    }
    this.#parts = [];
    this.#peak = 0;
    this.#isRunning = true;
    this.#start.replaceChildren(h('span', { words: 'voice.finish' }));
    rig.capture(RATE_HZ / 10, (audio) => {
      this.#parts.push(audio.slice());
      rig.recycle(audio);
      this.#time.textContent = clock(this.#parts.length / 10);
      if (this.#parts.length >= LIMIT_S * 10) void this.#finish();
    });
  }

  async #finish() {
    this.#isRunning = false;
    await this.#rig.stopCapture();
    this.#rig.releaseMicrophone();
    const sound = join(this.#parts);
    this.#sound = sound;
    this.#start.replaceChildren(h('span', { words: 'voice.again' }));
    const isLong = sound.length >= LEAST_S * RATE_HZ;
    this.#use.hidden = this.#save.hidden = this.#preview.hidden = !isLong;
    if (isLong) this.#preview.setPcm(sound, RATE_HZ);
    say(this.#advice, this.#verdict(sound.length / RATE_HZ));
  }

  /** @param {number} seconds */
  #verdict(seconds) {
    if (seconds < LEAST_S) return 'voice.too_short';
    if (this.#peak < TOO_QUIET * 4) return 'voice.too_quiet';
    if (this.#peak > TOO_LOUD) return 'voice.too_loud';
    return seconds < GOOD_S ? 'voice.short' : 'voice.good';
  }

  /** @returns {Promise<boolean>} true if the server has saved it */
  async #keep() {
    const sound = this.#sound;
    if (!sound) return false;
    const audio = encodeBytes(encodeWav([sound], RATE_HZ));
    const body = JSON.stringify({ name: this.#name.value || 'voice', audio_base64: audio });
    try {
      const { id } = await request('/api/assets/ref_audio', { method: 'POST', body });
      const name = this.#name.value || 'voice';
      rememberVoice({ id, name, durationMs: (1000 * sound.length) / RATE_HZ, source: 'upload' });
      await this.taken.saved(id, sound);
      toast('voice.saved');
      return true;
    } catch (error) {
      const isMissing = error instanceof HttpError && error.status === 404;
      say(this.#advice, isMissing ? 'voice.cannot_save' : 'error.request');
      return false;
    }
  }
}

/** @param {Taken} taken */
export function recordVoice(taken) {
  new VoiceSheet(taken);
}
