/**
 * Texts of a page in the language of its reader.
 *
 * `t('key', {n: 3})` returns text; `bind` sets it in a node and updates it when the language changes, so the page is
 * not reloaded. Everything is inserted as text, never as markup.
 */

import './storage.js';

/** @typedef {Record<string, unknown>} Values */
/** @typedef {'en' | 'zh'} Language */

const STORED = 'minicpmo_lang';
/**
 * Only the dictionary of the current language is loaded.
 * @type {Record<Language, () => Promise<Record<string, string>>>}
 */
const sources = { en: async () => (await import('./en.js')).en, zh: async () => (await import('./zh.js')).zh };
/** @typedef {'admin' | 'console'} Extra dictionaries that only some pages need */
/** @type {Record<Extra, Record<Language, () => Promise<Record<string, string>>>>} */
const extraSources = {
  admin: {
    en: async () => (await import('./en-admin.js')).en,
    zh: async () => (await import('./zh-admin.js')).zh,
  },
  console: {
    en: async () => (await import('./en-console.js')).en,
    zh: async () => (await import('./zh-console.js')).zh,
  },
};
/** @type {Extra | null} */
let extra = null;
/** @type {Partial<Record<Language, Record<string, string>>>} */
const tables = {};

/** @param {Language} chosen */
async function load(chosen) {
  tables[chosen] ??= await sources[chosen]();
  if (extra) tables[chosen] = { ...tables[chosen], ...(await extraSources[extra][chosen]()) };
}

/** @param {string | null | undefined} word @returns {Language | null} */
function known(word) {
  return word === 'en' || word === 'zh' ? word : null;
}

/** Returns the requested language: that of the address, or else the one chosen before. @returns {Language | null} */
function wanted() {
  const asked = known(new URLSearchParams(globalThis.location?.search ?? '').get('lang'));
  return asked ?? known(globalThis.localStorage?.getItem(STORED));
}

/** @type {Language} */
let language = wanted() ?? ((globalThis.navigator?.language ?? '').startsWith('zh') ? 'zh' : 'en');

await load(language);

/** Dispatches 'language' when it changes. */
export const words = new EventTarget();

export const currentLanguage = () => language;
/** Returns the reader's variant of the language, for dates and numbers. */
export const locale = () =>
  globalThis.navigator?.languages?.find((tag) => tag.startsWith(language)) ?? (language === 'zh' ? 'zh-CN' : 'en');

/** @param {Language} next @param {{isChoice?: boolean}} [how] a choice is stored */
export async function setLanguage(next, { isChoice = true } = {}) {
  if (isChoice) localStorage.setItem(STORED, next);
  if (next === language) return;
  await load(next);
  language = next;
  document.documentElement.lang = locale();
  for (const node of document.querySelectorAll('[data-bound]')) refresh(node);
  words.dispatchEvent(new Event('language'));
}

/** Loads a dictionary that only some pages need. @param {Extra} name */
export async function loadExtraWords(name) {
  extra = name;
  await load(language);
}

/** Sets the operator's language, for users who have not chosen one. @param {string | undefined} lang */
export function suggestLanguage(lang) {
  const suggested = known(lang);
  if (suggested && !wanted()) void setLanguage(suggested, { isChoice: false });
}

/**
 * @param {string} key if `count` is 1 and the language has `key.one`, that is used
 * @param {Values} [values] numbers are formatted for the language
 */
export function t(key, values = {}) {
  const table = tables[language] ?? {};
  const text = (values.count === 1 ? table[`${key}.one`] : null) ?? table[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    if (typeof value === 'number') return number(value);
    return value === undefined || value === null ? '' : String(value);
  });
}

/** True if there is a text for this key. @param {string} key */
export const has = (/** @type {string} */ key) => key in (tables[language] ?? {});

/**
 * Cache of number formats: creating one takes tens of milliseconds on a slow processor.
 * @type {Map<string, Intl.NumberFormat>}
 */
const formats = new Map();

/** @param {number} value @param {Intl.NumberFormatOptions} [options] */
export function number(value, options = { maximumFractionDigits: 1 }) {
  // All variants of our languages write these alike, so a page that shows no other numbers creates no format.
  if (Number.isInteger(value) && value >= 0 && value < 1000) return String(value);
  const key = `${locale()} ${JSON.stringify(options)}`;
  const format = formats.get(key) ?? new Intl.NumberFormat(locale(), options);
  formats.set(key, format);
  return format.format(value);
}

/** @param {string | number | Date} when */
export function date(when) {
  return new Intl.DateTimeFormat(locale(), { dateStyle: 'medium', timeStyle: 'short' }).format(new Date(when));
}

/** Time of day with seconds, in the page's language. @param {string | number | Date} when */
export function time(when) {
  return new Intl.DateTimeFormat(locale(), { timeStyle: 'medium' }).format(new Date(when));
}

/** Formats seconds: 75 → "1:15" @param {number} seconds */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')}`;
}

/** @type {WeakMap<Element, Map<string, {key: string, values?: Values}>>} */
const bound = new WeakMap();

/**
 * Binds an attribute, or the text, of a node to a key, so that it stays in the reader's language.
 * @param {Element} node
 * @param {string} where name of an attribute, or 'text'
 * @param {string} key
 * @param {Values} [values]
 */
export function bind(node, where, key, values) {
  const places = bound.get(node) ?? new Map();
  const before = places.get(where);
  places.set(where, { key, values });
  bound.set(node, places);
  node.setAttribute('data-bound', '');
  if (before?.key === key && !values && !before.values) return;
  put(node, where, t(key, values));
}

/** @param {Element} node @param {string} where @param {string} text */
function put(node, where, text) {
  if (where !== 'text') node.setAttribute(where, text);
  else if (node.textContent !== text) node.textContent = text;
}

/** @param {Element} node */
function refresh(node) {
  for (const [where, { key, values }] of bound.get(node) ?? []) put(node, where, t(key, values));
}

/** Binds nodes written in HTML: data-words="key", data-words-title="key". @param {ParentNode} [root] */
export function bindPage(root = document) {
  document.documentElement.lang = locale();
  for (const node of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll('[data-words]')))
    bind(node, 'text', node.dataset.words ?? '');
}
