/**
 * <p-voice>: choice of the assistant's voice: the server's own, a registered one, a file, or a recording. A file or
 * recording stays in this page until it is closed, unless it is saved on the server.
 */

import { decodeSound } from '../../audio/rig.js';
import { encodePcm } from '../../wire/codec.js';
import { about } from '../../wire/about.js';
import { fetchVoice, listVoices } from '../../wire/http.js';
import { clock } from '../../words/words.js';
import { h, pickFiles, say, textButton, toast } from '../dom.js';
import { factsOf } from '../model.js';
import '../player/player.js';

/** Result of one request for all pickers of a page. @type {Promise<import('../../wire/http.js').VoiceInfo[]> | null} */
let registered = null;

/** Maximum length in seconds; samples shorter than `LEAST_S` are too short to imitate. */
const LIMIT_S = 20;
const LIMIT_BYTES = 30e6;
const LEAST_S = 1;
const RATE_HZ = 16000;

/** Loads the sample of a built-in voice of the model. @param {string} id */
async function fetchSample(id) {
  const answer = await fetch(new URL(`../../voices/${id}.wav`, import.meta.url));
  if (!answer.ok) throw new Error(`no sample of ${id}: ${answer.status}`);
  return await decodeSound(await answer.arrayBuffer(), RATE_HZ);
}

/**
 * Returns the function that loads the audio of a choice; null if nothing has to be loaded.
 * @param {string} value
 * @returns {(() => Promise<Float32Array<ArrayBuffer> | null>) | null}
 */
function sourceOf(value) {
  if (value.startsWith('id:')) return () => fetchVoice(value.slice(3));
  return value.startsWith('model:') ? () => fetchSample(value.slice(6)) : null;
}

export class Voice extends HTMLElement {
  #select = h('select', null);
  #player = /** @type {import('../player/player.js').Player} */ (document.createElement('p-player'));
  #state = h('p', { class: 'small quiet', role: 'status' });
  #few = h('p', { class: 'small quiet', words: 'voice.few', hidden: true });
  /** Audio of each option, by its value. @type {Map<string, Float32Array<ArrayBuffer> | null>} */
  #sounds = new Map();
  /** @type {Float32Array<ArrayBuffer> | null} */
  #sound = null;
  #own = 0;
  /** @type {Promise<unknown>} */
  #loading = Promise.resolve();
  /** @type {HTMLButtonElement | null} */
  #listen = null;
  /** The model's built-in voices, the default one first. @type {import('../model.js').OwnVoice[]} */
  #models = [];

  connectedCallback() {
    const upload = textButton('file', 'voice.upload', () => this.#upload());
    const record = textButton('mic', 'voice.record', () => this.#record());
    this.#listen = textButton('play', 'voice.listen', () => void this.#preview());
    this.#select.onchange = () => void this.#choose(this.#select.value);
    this.append(
      h('label', null, h('span', { words: this.getAttribute('words') ?? 'voice.label' }), this.#select),
      this.#player,
      this.#few,
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
    this.#models = factsOf((await about()).model).voices;
    for (const { id } of this.#models.slice(1)) {
      this.#select.append(h('option', { value: `model:${id}`, words: `voice.${id}` }));
    }
    this.#few.hidden = this.#models.length === 0;
    try {
      registered ??= listVoices();
      for (const voice of await registered) this.#select.append(h('option', { value: `id:${voice.id}` }, voice.name));
    } catch {
      // The list is optional; the server's own voice does not need it.
      registered = null;
    }
  }

  /** Loads the server's own voice when the user wants to hear it. */
  async #preview() {
    try {
      const [usual] = this.#models;
      const sound = usual ? await fetchSample(usual.id) : await fetchVoice('default');
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

  /** Base64 samples at 16 kHz; null for the server's own (or the same as the other voice). */
  get data() {
    return this.#sound ? encodePcm(this.#sound) : null;
  }

  get isSame() {
    return this.#select.value === 'same';
  }

  /** Adds and selects the voice of a preset. @param {Float32Array<ArrayBuffer>} sound @param {string} name */
  offer(sound, name) {
    this.#add(sound, name);
  }

  /** Chooses a voice from outside the settings and plays it. @param {string} value of its option */
  async pick(value) {
    await this.#choose(value);
    if (value === 'default') await this.#preview();
    else if (this.#sound) this.#player.play();
  }

  reset() {
    void this.#choose(this.hasAttribute('same') ? 'same' : 'default');
  }

  /** Resolves when the chosen voice has been loaded, or could not be. */
  ready() {
    return this.#loading;
  }

  /** @param {string} value */
  async #choose(value) {
    this.#select.value = value;
    const source = sourceOf(value);
    if (source && !this.#sounds.has(value)) {
      say(this.#state, 'voice.loading');
      const loading = source().catch(() => null);
      this.#loading = loading;
      this.#sounds.set(value, await loading);
      if (this.#select.value !== value) return;
    }
    this.#sound = this.#sounds.get(value) ?? null;
    this.#player.hidden = !this.#sound;
    if (this.#listen) this.#listen.hidden = value !== 'default';
    if (this.#sound) this.#player.setPcm(this.#sound, RATE_HZ);
    if (source && !this.#sound) say(this.#state, 'voice.unavailable');
    else if (this.#sound && this.#models.length === 0 && this.#sound.length < 5 * RATE_HZ)
      say(this.#state, 'voice.short');
    else say(this.#state, '');
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
    if (file.size > LIMIT_BYTES) {
      toast('error.too_big', { megabytes: LIMIT_BYTES / 1e6 });
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

  async #record() {
    const { recordVoice } = await import('./record.js');
    recordVoice({
      use: (sound, name) => this.#add(sound, name),
      saved: async (id, sound) => {
        this.#sounds.set(`id:${id}`, sound);
        registered = null;
        await this.#list();
        await this.#choose(`id:${id}`);
      },
    });
  }
}

customElements.define('p-voice', Voice);
