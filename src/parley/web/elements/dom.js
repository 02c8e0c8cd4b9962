/** DOM nodes without markup strings: everything that a user, a model or a server sends stays text. */

import { bind } from '../words/words.js';
import { at } from '../wire/root.js';
import { icon } from './icons.js';

/** @typedef {Node | string | number | null | undefined | false} Child */
/**
 * @typedef {Record<string, any> & {
 *   words?: string | [string, Record<string, unknown>], label?: string | [string, Record<string, unknown>],
 *   hint?: string, icon?: string}} Attributes
 */

/**
 * Creates a node. `words`: its text by key; `label`: aria-label and tooltip by key; `hint`: placeholder by key; `icon`:
 * an icon at its start; `on…`: listeners. Everything else is an attribute or, for a boolean, a property.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes | null} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  if (attributes?.icon) node.append(icon(attributes.icon));
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || name === 'icon') continue;
    if (name === 'words')
      say(attributes?.icon ? node.appendChild(document.createElement('span')) : node, ...pair(value));
    else if (name === 'label') {
      const [key, values] = pair(value);
      bind(node, 'aria-label', key, values);
      bind(node, 'title', key, values);
    } else if (name === 'hint') bind(node, 'placeholder', value);
    else if (name.startsWith('on') && typeof value === 'function') node.addEventListener(name.slice(2), value);
    else if (typeof value === 'boolean' && !name.startsWith('aria-')) node.toggleAttribute(name, value);
    else if (name === 'value') /** @type {any} */ (node).value = value;
    else if (isAddress(name, value)) node.setAttribute(name, at(value));
    else node.setAttribute(name, String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/**
 * Returns a button that shows only an icon.
 * @param {string} icon @param {string | [string, Record<string, unknown>]} label key
 * @param {(event: MouseEvent) => void} [onclick]
 * @param {string} [more] further classes
 */
export const iconButton = (icon, label, onclick, more = '') =>
  h('button', { class: `round slim ${more}`, type: 'button', icon, label, onclick });

/**
 * Returns a button with an icon and text.
 * @param {string} icon @param {string} words key @param {() => void} onclick @param {string} [more] further classes
 */
export const textButton = (icon, words, onclick, more = 'slim') =>
  h('button', { class: `button ${more}`, type: 'button', icon, words, onclick });

/** True if this is an address on our server. @param {string} name @param {unknown} value @returns {value is string} */
function isAddress(name, value) {
  return (name === 'href' || name === 'src') && typeof value === 'string' && /^\/(?!\/)/.test(value);
}

/** @param {string | [string, Record<string, unknown>]} value @returns {[string, Record<string, unknown> | undefined]} */
function pair(value) {
  return Array.isArray(value) ? [value[0], value[1]] : [value, undefined];
}

/**
 * Sets the text of a node by key.
 * @param {Element} node
 * @param {string} key
 * @param {Record<string, unknown>} [values]
 */
export function say(node, key, values) {
  bind(node, 'text', key, values);
}

/** Sets the label of a button. @param {Element} node @param {string} key */
export function relabel(node, key) {
  bind(node, 'aria-label', key);
  bind(node, 'title', key);
}

/** Replaces the icon of a button. @param {Element} node @param {string} name */
export function reicon(node, name) {
  const old = node.querySelector('svg');
  if (old?.getAttribute('data-icon') === name) return;
  const fresh = icon(name);
  if (old) old.replaceWith(fresh);
  else node.prepend(fresh);
}

/**
 * Clears a canvas, resizes it to its shown size and returns its drawing context and measures; null if it is not shown.
 * @param {HTMLCanvasElement} canvas
 */
export function drawing(canvas) {
  const ratio = Math.min(2, devicePixelRatio || 1);
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((size) => Math.round(size * ratio));
  if (width === 0) return null;
  // Setting the size also clears the canvas, but allocates a new one.
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  else pen.clearRect(0, 0, width, height);
  return { pen, width, height, ratio, style: getComputedStyle(canvas) };
}

/** Creates one of our custom elements. @param {string} tag @param {Record<string, string>} [attributes] */
export function element(tag, attributes = {}) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** @param {ParentNode} root @param {string} selector @returns {HTMLElement} */
export function $(selector, root = document) {
  const node = root.querySelector(selector);
  if (!node) throw new Error(`nothing matches ${selector}`);
  return /** @type {HTMLElement} */ (node);
}

/** @param {string} key @param {Record<string, unknown>} [values] @param {Child} [extra] */
export function toast(key, values, extra) {
  let place = document.querySelector('.toasts');
  if (!place) {
    place = h('div', { class: 'toasts', role: 'status', 'aria-live': 'polite' });
  }
  // In full screen nothing outside the full-screen element is visible.
  const stage = document.fullscreenElement ?? document.body;
  if (place.parentElement !== stage) stage.append(place);
  const node = h(
    'div',
    { class: 'toast' },
    h('span', { words: values ? [key, values] : key }),
    extra ? ' ' : '',
    extra,
  );
  place.append(node);
  setTimeout(() => node.remove(), 5000);
}

/**
 * Opens a sheet over the page; Escape and the cross close it.
 * @param {string} title key
 * @param {...(Child | Child[])} body
 */
export function sheet(title, ...body) {
  const id = `sheet-${Math.random().toString(36).slice(2, 8)}`;
  const close = iconButton('close', 'action.close', () => node.close());
  const node = h(
    'dialog',
    { class: 'sheet', 'aria-labelledby': id },
    h('header', null, h('h2', { id, words: title }), close),
    h('div', { class: 'body' }, ...body),
  );
  node.addEventListener('close', () => {
    node.remove();
    // Nothing had the focus before, or what had it is gone: keys continue in the content, not behind the sheet.
    if (document.activeElement === document.body) focusContent();
  });
  node.addEventListener('click', (event) => {
    if (event.target === node) node.close();
  });
  document.body.append(node);
  node.showModal();
  return node;
}

function focusContent() {
  const main = $('#main');
  main.tabIndex = -1;
  main.focus({ preventScroll: true });
  // Otherwise each press on the content would move the focus there.
  main.addEventListener('blur', () => main.removeAttribute('tabindex'), { once: true });
}

/**
 * Asks for confirmation before something that cannot be undone.
 * @param {string} question key @param {string} action key @param {Record<string, unknown>} [values]
 * @returns {Promise<boolean>}
 */
export function confirmed(question, action, values) {
  return new Promise((resolve) => {
    const yes = h('button', { class: 'button danger', type: 'button', words: action });
    const no = h('button', { class: 'button', type: 'button', words: 'action.keep', autofocus: true });
    const node = sheet(
      'confirm.title',
      h('p', { words: values ? [question, values] : question }),
      h('div', { class: 'row' }, yes, no),
    );
    let answer = false;
    yes.onclick = () => {
      answer = true;
      node.close();
    };
    no.onclick = () => node.close();
    node.addEventListener('close', () => resolve(answer));
  });
}

const NAME_SIGNS = 60;

/**
 * Asks for a name.
 * @param {string} name the current one; empty if none was set
 * @returns {Promise<string | null>} empty to remove the name; null to leave it unchanged
 */
export function askName(name) {
  return new Promise((resolve) => {
    const field = h('input', { dir: 'auto', value: name, maxlength: NAME_SIGNS, autofocus: true });
    const form = h(
      'form',
      { class: 'stack' },
      h('label', null, h('span', { words: 'name.label' }), field),
      h('p', { class: 'small quiet', words: 'name.help' }),
      h('div', { class: 'row' }, h('button', { class: 'button primary', type: 'submit', words: 'action.save' })),
    );
    const node = sheet('name.title', form);
    /** @type {string | null} */
    let answer = null;
    form.onsubmit = (event) => {
      event.preventDefault();
      answer = field.value.trim();
      node.close();
    };
    node.addEventListener('close', () => resolve(answer));
    field.select();
  });
}

/** Saves bytes under a file name. @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h('a', { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** @param {string} text @param {string} key of the message shown on success */
export async function copy(text, key = 'toast.copied') {
  try {
    await navigator.clipboard.writeText(text);
    toast(key);
  } catch {
    // The browser refused, as on pages without TLS: show the text with its lines, so that the user can copy it.
    const field = h('textarea', { value: text, rows: 8, readonly: true, label: 'action.copy' });
    sheet('action.copy', field);
    field.select();
  }
}

/**
 * Returns the files that the user chooses.
 * @param {string} accept
 * @param {{capture?: string, multiple?: boolean}} [options]
 * @returns {Promise<File[]>}
 */
export function pickFiles(accept, { capture, multiple = false } = {}) {
  return new Promise((resolve) => {
    const input = h('input', { type: 'file', accept, capture, multiple });
    input.onchange = () => resolve([...(input.files ?? [])]);
    input.oncancel = () => resolve([]);
    input.click();
  });
}

/** Makes a text area as tall as its text, if the browser's CSS cannot. @param {HTMLTextAreaElement} field */
export function growing(field) {
  if (CSS.supports('field-sizing', 'content')) return field;
  const grow = () => {
    field.style.height = 'auto';
    field.style.height = `${field.scrollHeight}px`;
  };
  field.addEventListener('input', grow);
  return field;
}

/** @type {Promise<void> | null} */
let firstPaint = null;

/**
 * Resolves when the current content has been painted. Work that is not needed for it runs afterwards, so that the page
 * can be used meanwhile. Once per page.
 * @returns {Promise<void>}
 */
export function painted() {
  firstPaint ??= new Promise((resolve) => {
    const next = () => setTimeout(resolve);
    // A hidden page is not painted.
    if (document.hidden) next();
    else requestAnimationFrame(next);
  });
  return firstPaint;
}

/**
 * Returns a function that does not act twice within `ms`, since touch and click may both arrive.
 * @param {() => void} act
 * @param {number} ms
 */
export function once(act, ms) {
  let last = -Infinity;
  return () => {
    if (performance.now() - last < ms) return;
    last = performance.now();
    act();
  };
}

/**
 * Returns a function that loads something once, and again after a failure. Firefox remembers a failed import until the
 * page is reloaded.
 * @template T
 * @param {() => Promise<T>} load
 */
export function loadedOnce(load) {
  /** @type {Promise<T> | null} */
  let loading = null;
  return () => {
    loading ??= load().catch((error) => {
      loading = null;
      throw error;
    });
    return loading;
  };
}
