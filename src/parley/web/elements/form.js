/** Labelled controls over one store of settings. */

import { number } from '../words/words.js';
import { h } from './dom.js';

/**
 * Settings of one page: page default < server default < saved < preset; changes are saved immediately.
 * @template {Record<string, any>} T
 */
export class Settings extends EventTarget {
  /**
   * @param {string} page
   * @param {T} defaults
   */
  constructor(page, defaults) {
    super();
    this.key = `parley.settings.${page}`;
    this.defaults = { ...defaults };
    /** @type {Partial<T>} */
    this.saved = {};
    try {
      const saved = JSON.parse(localStorage.getItem(this.key) ?? '{}');
      for (const name of Object.keys(defaults)) {
        if (name in saved && typeof saved[name] === typeof defaults[name])
          this.saved[/** @type {keyof T} */ (name)] = saved[name];
      }
    } catch {
      localStorage.removeItem(this.key);
    }
  }

  /** @template {keyof T} K @param {K} name @returns {T[K]} */
  get(name) {
    return /** @type {T[K]} */ (this.saved[name] ?? this.defaults[name]);
  }

  /** True if the user has set this. @param {keyof T} name */
  isChosen(name) {
    return name in this.saved;
  }

  /** @template {keyof T} K @param {K} name @param {T[K]} value */
  set(name, value) {
    this.saved[name] = value;
    localStorage.setItem(this.key, JSON.stringify(this.saved));
    this.dispatchEvent(new CustomEvent('change', { detail: name }));
  }

  /** Sets the operator's defaults. @param {Partial<T>} values */
  suggest(values) {
    this.defaults = { ...this.defaults, ...values };
    this.dispatchEvent(new CustomEvent('change', { detail: null }));
  }

  reset() {
    this.saved = {};
    localStorage.removeItem(this.key);
    this.dispatchEvent(new CustomEvent('change', { detail: null }));
  }
}

/** @param {Settings<any>} settings @param {string} name @param {() => void} show */
function follow(settings, name, show) {
  show();
  settings.addEventListener('change', (event) => {
    const { detail } = /** @type {CustomEvent} */ (event);
    if (detail === null || detail === name) show();
  });
}

/**
 * @param {Settings<any>} settings @param {string} name
 * @param {{words: string, min: number, max: number, step: number, unit?: string}} how
 */
export function range(settings, name, { words, min, max, step, unit = '' }) {
  const output = h('span', { class: 'num' });
  const input = h('input', { type: 'range', min, max, step, oninput: () => settings.set(name, Number(input.value)) });
  follow(settings, name, () => {
    input.value = String(settings.get(name));
    output.textContent = `${number(settings.get(name), { maximumFractionDigits: 2 })}${unit && `\u202f${unit}`}`;
  });
  return h('label', { class: 'range' }, h('span', { class: 'range-head' }, h('span', { words }), output), input);
}

/** @param {Settings<any>} settings @param {string} name @param {{words: string, hint?: string}} how */
export function toggle(settings, name, { words, hint }) {
  const input = h('input', { type: 'checkbox', role: 'switch', onchange: () => settings.set(name, input.checked) });
  follow(settings, name, () => {
    input.checked = settings.get(name);
  });
  return h(
    'label',
    { class: 'switch' },
    h('span', null, h('span', { words }), hint ? h('small', { words: hint }) : null),
    input,
  );
}

/**
 * @param {Settings<any>} settings @param {string} name
 * @param {{words: string, options: [value: string, words: string][]}} how
 */
export function choice(settings, name, { words, options }) {
  const select = h(
    'select',
    { onchange: () => settings.set(name, select.value) },
    ...options.map(([value, key]) => h('option', { value, words: key })),
  );
  follow(settings, name, () => {
    select.value = settings.get(name);
  });
  return h('label', null, h('span', { words }), select);
}

/**
 * Control for a number: a row of buttons with names for the usual values.
 * @param {Settings<any>} settings @param {string} name
 * @param {{words: string, hint: string, options: [value: number, words: string][]}} how
 */
export function preset(settings, name, { words, hint, options }) {
  const buttons = options.map(([value, key]) =>
    h('button', { class: 'button slim', type: 'button', words: key, onclick: () => settings.set(name, value) }),
  );
  follow(settings, name, () => {
    const now = settings.get(name);
    const nearest = options.reduce(
      (best, [value], i) => (Math.abs(value - now) < Math.abs(options[best][0] - now) ? i : best),
      0,
    );
    for (const [i, button] of buttons.entries()) button.setAttribute('aria-pressed', String(i === nearest));
  });
  const node = h(
    'fieldset',
    null,
    h('legend', { class: 'small quiet', words }),
    h('div', { class: 'row' }, ...buttons),
    h('small', { class: 'quiet', words: hint }),
  );
  return node;
}

/** @param {string} title @param {boolean} open @param {...(Node | null)} body */
export function group(title, open, ...body) {
  return h('details', { class: 'group', open }, h('summary', { words: title }), h('div', { class: 'stack' }, ...body));
}
