/**
 * <p-voice>: whose voice the assistant speaks with. The server's own, one registered there, a file, or one
 * recorded here. What was brought stays in this page until it is closed, unless it is saved on the server.
 */

import { decodeSound, theRig } from '../../audio/rig.js';
import { encodeWav, join } from '../../audio/wav.js';
import { encodeBytes, encodePcm } from '../../wire/codec.js';
import { fetchVoice, HttpError, listVoices, request } from '../../wire/http.js';
import { clock } from '../../words/words.js';
import { h, pickFiles, say, sheet, toast } from '../dom.js';
import '../player/player.js';

/** One question for all pickers of a page. @type {Promise<import('../../wire/http.js').VoiceInfo[]> | null} */
let registered = null;

/** Seconds: longer is refused, shorter than `LEAST_S` is too little to imitate. Source: web client spec 8. */
const LIMIT_S = 20;
const LEAST_S = 1;
const RATE_HZ = 16000;
const TOO_QUIET = 0.02;
const TOO_LOUD = 0.98;

export class Voice extends HTMLElement {
  #select = h('select', null);
  #player = /** @type {import('../player/player.js').Player} */ (document.createElement('p-player'));
  #state = h('p', { class: 'small quiet', role: 'status' });
  /** Sounds by the value of their option. @type {Map<string, Float32Array<ArrayBuffer> | null>} */
  #sounds = new Map();
  /** @type {Float32Array<ArrayBuffer> | null} */
  #sound = null;
  #own = 0;
  isLoading = false;
  /** @type {HTMLButtonElement | null} */
  #listen = null;

  connectedCallback() {
    const upload = h('button', { class: 'button slim', type: 'button', icon: 'file', words: 'voice.upload', onclick: () => this.#upload() });
    const record = h('button', { class: 'button slim', type: 'button', icon: 'mic', words: 'voice.record', onclick: () => this.#record() });
    this.#listen = h('button', { class: 'button slim', type: 'button', icon: 'play', words: 'voice.listen', onclick: () => void this.#preview() });
    this.#select.onchange = () => void this.#choose(this.#select.value);
    this.append(
      h('label', null, h('span', { words: this.getAttribute('words') ?? 'voice.label' }), this.#select),
      this.#player,
      this.#state,
      h('div', { class: 'row' }, this.#listen, upload, record),
    );
    this.#player.hidden = true;
    this.addEventListener('dragover', (event) => event.preventDefault());
    this.addEventListener('drop', (event) => {
      event.preventDefault();
      const file = event.dataTransfer?.files[0];
      if (file) void this.#take(file);
    });
    void this.#list();
  }

  disconnectedCallback() {
    this.replaceChildren();
  }

  async #list() {
    const options = [h('option', { value: 'default', words: 'voice.default' })];
    if (this.hasAttribute('same')) options.unshift(h('option', { value: 'same', words: 'voice.same' }));
    this.#select.replaceChildren(...options);
    if (this.#listen) this.#listen.hidden = this.#select.value !== 'default';
    try {
      registered ??= listVoices();
      for (const voice of await registered) this.#select.append(h('option', { value: `id:${voice.id}` }, voice.name));
    } catch {
      // The list is a convenience; the server's own voice needs none.
      registered = null;
    }
  }

  /** The server's own voice, fetched when somebody wants to hear it. */
  async #preview() {
    try {
      const sound = await fetchVoice('default');
      if (!sound) throw new Error('there is none');
      if (this.#select.value !== 'default') return;
      this.#player.setPcm(sound, RATE_HZ);
      this.#player.hidden = false;
      if (this.#listen) this.#listen.hidden = true;
      this.#player.play();
    } catch {
      say(this.#state, 'voice.no_preview');
      this.#state.removeAttribute('data-empty');
    }
  }

  /** Base64 samples at 16 kHz; null: the server's own (or the same as the other voice). */
  get data() {
    return this.#sound ? encodePcm(this.#sound) : null;
  }

  get isSame() {
    return this.#select.value === 'same';
  }

  /** A preset brings its voice. @param {Float32Array<ArrayBuffer>} sound @param {string} name */
  offer(sound, name) {
    this.#add(sound, name);
  }

  reset() {
    void this.#choose(this.hasAttribute('same') ? 'same' : 'default');
  }

  /** @param {string} value */
  async #choose(value) {
    this.#select.value = value;
    if (value.startsWith('id:') && !this.#sounds.has(value)) {
      this.isLoading = true;
      say(this.#state, 'voice.loading');
      try {
        this.#sounds.set(value, await fetchVoice(value.slice(3)));
      } catch {
        this.#sounds.set(value, null);
      }
      this.isLoading = false;
      if (this.#select.value !== value) return;
    }
    this.#sound = this.#sounds.get(value) ?? null;
    this.#player.hidden = !this.#sound;
    if (this.#listen) this.#listen.hidden = value !== 'default';
    if (this.#sound) this.#player.setPcm(this.#sound, RATE_HZ);
    if (value.startsWith('id:') && !this.#sound) say(this.#state, 'voice.unavailable');
    else if (this.#sound && this.#sound.length < 5 * RATE_HZ) say(this.#state, 'voice.short');
    else this.#state.textContent = '';
    this.#state.toggleAttribute('data-empty', !this.#state.textContent);
    this.dispatchEvent(new Event('change'));
  }

  /** @param {Float32Array<ArrayBuffer>} sound @param {string} name */
  #add(sound, name) {
    const value = `own:${this.#own++}`;
    this.#sounds.set(value, sound);
    this.#select.append(h('option', { value }, `${name} (${clock(sound.length / RATE_HZ)})`));
    void this.#choose(value);
  }

  async #upload() {
    const [file] = await pickFiles('audio/*');
    if (file) await this.#take(file);
  }

  /** @param {File} file */
  async #take(file) {
    if (file.size > 30e6) {
      toast('error.too_big');
      return;
    }
    try {
      const sound = await decodeSound(await file.arrayBuffer(), RATE_HZ);
      if (sound.length > LIMIT_S * RATE_HZ) toast('voice.too_long', { seconds: LIMIT_S });
      else if (sound.length < LEAST_S * RATE_HZ) toast('voice.too_short');
      else this.#add(sound, file.name);
    } catch {
      toast('error.not_sound');
    }
  }

  #record() {
    const rig = theRig();
    /** @type {Float32Array[]} */
    let parts = [];
    let peak = 0;
    /** @type {Float32Array<ArrayBuffer> | null} */
    let sound = null;
    const consent = h('input', { type: 'checkbox' });
    const name = h('input', { value: '', maxlength: 60, hint: 'voice.name' });
    const meter = h('meter', { min: 0, max: 1, low: TOO_QUIET, high: TOO_LOUD, optimum: 0.3, value: 0, label: 'voice.level' });
    const time = h('span', { class: 'num' }, clock(0));
    const advice = h('p', { class: 'small quiet', role: 'status', words: 'voice.read_aloud' });
    const start = h('button', { class: 'button primary', type: 'button', icon: 'record', words: 'voice.start', disabled: true });
    const use = h('button', { class: 'button primary', type: 'button', words: 'voice.use', hidden: true });
    const save = h('button', { class: 'button', type: 'button', words: 'voice.save', hidden: true });
    const preview = /** @type {import('../player/player.js').Player} */ (document.createElement('p-player'));
    preview.hidden = true;
    const node = sheet(
      'voice.record_title',
      h('p', { class: 'quiet', words: 'voice.sample_text' }),
      h('label', { class: 'switch' }, h('span', { words: 'voice.consent' }), consent),
      h('div', { class: 'row' }, start, time, meter),
      advice,
      preview,
      h('label', null, h('span', { words: 'voice.name' }), name),
      h('div', { class: 'row' }, use, save),
    );
    consent.onchange = () => {
      start.disabled = !consent.checked;
    };
    const watch = (/** @type {Event} */ event) => {
      const { rms, peak: now } = /** @type {CustomEvent} */ (event).detail;
      meter.value = Math.min(1, rms * 4);
      if (isRunning) peak = Math.max(peak, now);
    };
    rig.addEventListener('level', watch);
    let isRunning = false;
    const finish = async () => {
      isRunning = false;
      await rig.stopCapture();
      rig.releaseMicrophone();
      sound = join(parts);
      start.replaceChildren(h('span', { words: 'voice.again' }));
      const isGood = sound.length >= LEAST_S * RATE_HZ;
      use.hidden = save.hidden = preview.hidden = !isGood;
      if (isGood) preview.setPcm(sound, RATE_HZ);
      say(advice, !isGood ? 'voice.too_short' : peak < TOO_QUIET * 4 ? 'voice.too_quiet' : peak > TOO_LOUD ? 'voice.too_loud' : sound.length < 5 * RATE_HZ ? 'voice.short' : 'voice.good');
    };
    start.onclick = async () => {
      if (isRunning) {
        await finish();
        return;
      }
      try {
        await rig.connectMicrophone();
      } catch (error) {
        say(advice, `media.${/** @type {any} */ (error).trouble ?? 'failed'}_microphone`);
        return;
      }
      parts = [];
      peak = 0;
      isRunning = true;
      start.replaceChildren(h('span', { words: 'voice.finish' }));
      rig.capture(RATE_HZ / 10, (audio) => {
        parts.push(audio.slice());
        rig.recycle(audio);
        time.textContent = clock(parts.length / 10);
        if (parts.length >= LIMIT_S * 10) void finish();
      });
    };
    use.onclick = () => {
      if (sound) this.#add(sound, name.value || '♪');
      node.close();
    };
    save.onclick = async () => {
      if (!sound) return;
      try {
        const body = JSON.stringify({ name: name.value || 'voice', audio_base64: encodeBytes(encodeWav([sound], RATE_HZ)) });
        const { id } = await request('/api/assets/ref_audio', { method: 'POST', body });
        this.#sounds.set(`id:${id}`, sound);
        registered = null;
        await this.#list();
        await this.#choose(`id:${id}`);
        toast('voice.saved');
        node.close();
      } catch (error) {
        say(advice, error instanceof HttpError && error.status === 404 ? 'voice.cannot_save' : 'error.request');
      }
    };
    node.addEventListener('close', () => {
      rig.removeEventListener('level', watch);
      if (isRunning) rig.releaseMicrophone();
    });
  }
}

customElements.define('p-voice', Voice);
