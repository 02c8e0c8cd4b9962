/**
 * <p-prompt>: the assistant's instructions. It shows presets of the server (or the built-in one) and their editable
 * text. The user's changes are kept when another preset is chosen, and are marked as changed.
 */

import { decodePcm } from '../../wire/codec.js';
import { requestIfAny } from '../../wire/http.js';
import { currentLanguage, t, words } from '../../words/words.js';
import { confirmed, h, say, sheet } from '../dom.js';

/**
 * @typedef {object} Preset
 * @property {string} id
 * @property {string} name
 * @property {string} [description]
 * @property {string} text
 * @property {boolean} hasVoice
 */

/** Instructions used if the server has no presets. @type {Record<string, string>} */
const BUILT_IN = {
  en: 'You are a friendly assistant in a live conversation. Answer naturally and briefly, in the language you are spoken to.',
  zh: '你是一个友好的助手，正在与用户实时交谈。请用对方的语言，自然、简短地回答。',
};

/** @param {any} preset of the server @returns {Preset} */
function read(preset) {
  const items = Array.isArray(preset.system_content) ? preset.system_content : [];
  const text =
    preset.system_prompt ??
    items
      .filter((/** @type {any} */ item) => item.type === 'text')
      .map((/** @type {any} */ item) => item.text)
      .join('\n');
  const hasVoice = Boolean(preset.ref_audio) || items.some((/** @type {any} */ item) => item.type === 'audio');
  return {
    id: String(preset.id),
    name: String(preset.name ?? preset.id),
    description: preset.description,
    text,
    hasVoice,
  };
}

/** Maximum number of the user's own presets, which are stored in this browser. */
const OWN_LIMIT = 20;

/**
 * Returns presets that exist in both languages only in the page's: the fonts of the other may not be installed.
 * @param {Preset[]} presets @param {string} chosen is included in any language
 */
function inLanguage(presets, chosen) {
  const [here, other] = currentLanguage() === 'zh' ? ['_zh', '_en'] : ['_en', '_zh'];
  const hasTwin = (/** @type {string} */ id) =>
    id.endsWith(other) && presets.some((one) => one.id === id.slice(0, -other.length) + here);
  return presets.filter(({ id }) => id === chosen || !hasTwin(id));
}

export class Prompt extends HTMLElement {
  /** Mode of the page, which is the key of its presets. */
  mode = 'turnbased';
  /** @type {Preset[]} */
  #presets = [];
  #row = h('div', { class: 'row presets', role: 'radiogroup', label: 'prompt.presets' });
  #text = h('textarea', { rows: 5, maxlength: 65536 });
  #mark = h('span', { class: 'chip', words: 'prompt.changed', hidden: true });
  #note = h('p', { class: 'small quiet' });
  #keep = h('button', {
    class: 'button plain slim',
    type: 'button',
    icon: 'plus',
    words: 'prompt.keep',
    hidden: true,
    onclick: () => this.#askName(),
  });
  #forget = h('button', {
    class: 'button plain slim',
    type: 'button',
    icon: 'trash',
    words: 'prompt.forget',
    hidden: true,
    onclick: () => void this.#remove(),
  });
  #progress = h('progress', { max: 1, hidden: true, label: 'prompt.loading' });
  /** @type {string | null} */
  #borrowed = null;
  #lentText = h('p', { class: 'note' });
  #lent = h(
    'div',
    { class: 'stack', hidden: true },
    this.#lentText,
    h('button', { class: 'button slim', type: 'button', words: 'prompt.own', onclick: () => this.#giveBack() }),
  );
  /** @type {Promise<void>} */
  #loading = Promise.resolve();

  /** Resolves when the presets and the voice of the chosen one have been loaded, or could not be. */
  ready() {
    return this.#loading;
  }

  get #key() {
    return `parley.prompt.${this.mode}`;
  }

  connectedCallback() {
    this.append(
      this.#row,
      this.#note,
      this.#progress,
      h('label', null, h('span', { class: 'row spread' }, h('span', { words: 'prompt.text' }), this.#mark), this.#text),
      this.#lent,
      h('div', { class: 'row' }, this.#keep, this.#forget),
    );
    this.#row.removeAttribute('title');
    this.#text.oninput = () => {
      const { chosen, edits } = this.#stored();
      this.#store({ chosen, edits: { ...edits, [this.#current?.id ?? '_']: this.#text.value } });
      this.#show();
    };
    words.addEventListener('language', () => void this.load());
  }

  /** @returns {{chosen: string, edits: Record<string, string>}} */
  #stored() {
    try {
      const { chosen, edits } = JSON.parse(localStorage.getItem(this.#key) ?? '{}');
      const known = Object.entries(edits ?? {}).filter(([, text]) => typeof text === 'string');
      return { chosen: typeof chosen === 'string' ? chosen : '', edits: Object.fromEntries(known) };
    } catch {
      return { chosen: '', edits: {} };
    }
  }

  /** @param {{chosen: string, edits: Record<string, string>}} value */
  #store(value) {
    localStorage.setItem(this.#key, JSON.stringify(value));
  }

  get #ownKey() {
    return `parley.prompts.${this.mode}`;
  }

  /** @returns {Preset[]} */
  #own() {
    try {
      const list = JSON.parse(localStorage.getItem(this.#ownKey) ?? '[]');
      return Array.isArray(list)
        ? list
            .filter((one) => typeof one?.id === 'string' && typeof one?.text === 'string')
            .map(({ id, name, text }) => ({ id, name: String(name), text, hasVoice: false }))
        : [];
    } catch {
      return [];
    }
  }

  #askName() {
    const name = h('input', { maxlength: 40, required: true, autofocus: true });
    const form = h(
      'form',
      { class: 'stack' },
      h('label', null, h('span', { words: 'voice.name' }), name),
      h('button', { class: 'button primary', type: 'submit', words: 'action.save' }),
    );
    const node = sheet('prompt.keep', form);
    form.onsubmit = (event) => {
      event.preventDefault();
      const preset = { id: `own:${Date.now().toString(36)}`, name: name.value.trim() || '♪', text: this.#text.value };
      localStorage.setItem(this.#ownKey, JSON.stringify([...this.#own(), preset].slice(-OWN_LIMIT)));
      const { edits } = this.#stored();
      delete edits[this.#current?.id ?? '_'];
      this.#store({ chosen: preset.id, edits });
      node.close();
      void this.#reload();
    };
  }

  async #remove() {
    const preset = this.#current;
    if (!preset || !(await confirmed('prompt.forget_sure', 'prompt.forget', { name: preset.name }))) return;
    localStorage.setItem(this.#ownKey, JSON.stringify(this.#own().filter(({ id }) => id !== preset.id)));
    const { edits } = this.#stored();
    delete edits[preset.id];
    this.#store({ chosen: '', edits });
    void this.#reload();
  }

  /** Loads the presets; the button that had the focus is hidden then. */
  async #reload() {
    await this.load();
    /** @type {HTMLElement | null} */ (this.#row.querySelector('[aria-checked=true]'))?.focus();
  }

  /** @returns {Promise<void>} same as `ready` */
  load() {
    this.#loading = this.#load();
    return this.#loading;
  }

  async #load() {
    /** @type {any} */
    let answer = null;
    try {
      answer = await requestIfAny('/api/presets');
    } catch {
      // Offline: the built-in preset is used, and the status shows that the server cannot be reached.
    }
    /** @type {Preset[]} */
    const served = Array.isArray(answer?.[this.mode]) ? answer[this.mode].map(read) : [];
    const builtIn = { id: '_', name: t('prompt.built_in'), text: BUILT_IN[currentLanguage()], hasVoice: false };
    this.#presets = [...(served.length > 0 ? inLanguage(served, this.#stored().chosen) : [builtIn]), ...this.#own()];
    this.#row.hidden = this.#presets.length < 2;
    this.#row.replaceChildren(
      ...this.#presets.map((/** @type {Preset} */ preset) =>
        h(
          'button',
          {
            class: 'button slim',
            type: 'button',
            role: 'radio',
            'data-id': preset.id,
            'aria-checked': 'false',
            onclick: () => this.#choose(preset, true),
          },
          preset.name,
        ),
      ),
    );
    const { chosen } = this.#stored();
    if (chosen && chosen === this.#current?.id) return this.#show();
    const byLanguage = served.find((/** @type {Preset} */ { id, name }) =>
      new RegExp(currentLanguage() === 'zh' ? 'zh|中文|chinese' : 'en|english', 'i').test(`${id} ${name}`),
    );
    await this.#choose(this.#presets.find(({ id }) => id === chosen) ?? byLanguage ?? this.#presets[0], false);
  }

  /** @param {Preset} preset @param {boolean} isChoice */
  async #choose(preset, isChoice) {
    const { chosen, edits } = this.#stored();
    // A preset that the user did not choose changes with their language.
    this.#store({ chosen: isChoice ? preset.id : chosen, edits });
    this.#text.value = edits[preset.id] ?? preset.text;
    this.#current = preset;
    this.#show();
    if (!preset.hasVoice) return;
    let loaded = () => {};
    this.#loading = new Promise((resolve) => {
      loaded = () => resolve(undefined);
    });
    this.#progress.hidden = false;
    this.#progress.removeAttribute('value');
    try {
      const answer = await requestIfAny(
        `/api/presets/${encodeURIComponent(this.mode)}/${encodeURIComponent(preset.id)}/audio`,
      );
      const sound = answer?.ref_audio ?? answer?.system_content_audio?.[0];
      if (sound?.data && this.#current === preset) {
        this.dispatchEvent(
          new CustomEvent('voice', { detail: { sound: decodePcm(sound.data), name: sound.name ?? preset.name } }),
        );
      }
    } catch {
      // Without its voice the preset uses the server's own.
    } finally {
      loaded();
      this.#progress.hidden = true;
      this.dispatchEvent(new Event('loaded'));
    }
  }

  /** @type {Preset | null} */
  #current = null;

  #show() {
    const preset = this.#current;
    if (!preset) return;
    for (const button of this.#row.children)
      button.setAttribute('aria-checked', String(/** @type {HTMLElement} */ (button).dataset.id === preset.id));
    this.#note.textContent = preset.description ?? '';
    // The description distinguishes presets, so it is hidden if there is only one.
    this.#note.hidden = !preset.description || this.#presets.length < 2;
    this.#mark.hidden = this.#text.value === preset.text;
    this.#keep.hidden = this.#mark.hidden || !this.#text.value.trim();
    this.#forget.hidden = !preset.id.startsWith('own:');
    say(this.#mark, 'prompt.changed');
  }

  /**
   * Shows other instructions temporarily; the user's text is kept and restored.
   * @param {string | null} text null restores it
   */
  borrow(text) {
    this.#borrowed = text;
    this.#text.hidden = text !== null;
    this.#lent.hidden = text === null;
    this.#lentText.textContent = text ?? '';
  }

  #giveBack() {
    this.borrow(null);
    this.dispatchEvent(new Event('own'));
  }

  get text() {
    return this.#borrowed ?? (this.#text.value.trim() || BUILT_IN[currentLanguage()]);
  }

  reset() {
    localStorage.removeItem(this.#key);
    void this.load();
  }
}

customElements.define('p-prompt', Prompt);
