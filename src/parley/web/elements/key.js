/**
 * Sign-in on servers that require an API key. The key is exchanged for a cookie that is valid for a quarter of an hour
 * and renewed while a page is open. The key is stored for this tab or, if the user chooses so, on this device.
 */

import { HttpError, request } from '../wire/http.js';
import { h, say, sheet } from './dom.js';

const STORED = 'parley.key';
const RENEW_MS = 10 * 60_000;

const storedKey = () => sessionStorage.getItem(STORED) ?? localStorage.getItem(STORED);

function forget() {
  sessionStorage.removeItem(STORED);
  localStorage.removeItem(STORED);
}

/** @param {string} key @returns {Promise<boolean>} true if this server accepts it */
async function exchange(key) {
  try {
    await request('/api/token', { method: 'POST', token: key });
    return true;
  } catch (error) {
    if (error instanceof HttpError && (error.status === 401 || error.status === 403)) return false;
    throw error;
  }
}

/** @type {ReturnType<typeof setInterval> | undefined} */
let renewal;

/** Uses the key of an earlier visit. @returns {Promise<boolean>} true if the server still accepts it */
export async function useStoredKey() {
  const key = storedKey();
  if (!key) return false;
  const isGood = await exchange(key).catch(() => false);
  if (!isGood) {
    forget();
    return false;
  }
  clearInterval(renewal);
  renewal = setInterval(() => void exchange(key).catch(() => {}), RENEW_MS);
  return true;
}

let isAsking = false;

/** Asks for the key; the page reloads if it is correct. */
export async function askForKey() {
  if (isAsking) return;
  isAsking = true;
  if (await useStoredKey()) {
    location.reload();
    return;
  }
  const field = h('input', { type: 'password', autocomplete: 'current-password', required: true, autofocus: true });
  const stays = h('input', { type: 'checkbox' });
  const state = h('p', { class: 'error small', role: 'alert' });
  const form = h(
    'form',
    { class: 'stack' },
    h('p', { class: 'quiet', words: 'key.text' }),
    h('label', null, h('span', { words: 'key.field' }), field),
    h('label', { class: 'switch' }, h('span', { words: 'key.remember' }), stays),
    state,
    h('button', { class: 'button primary', type: 'submit', words: 'key.enter' }),
  );
  const node = sheet('key.title', form);
  node.addEventListener('close', () => {
    isAsking = false;
  });
  form.onsubmit = async (event) => {
    event.preventDefault();
    try {
      if (!(await exchange(field.value.trim()))) {
        say(state, 'key.wrong');
        return;
      }
      (stays.checked ? localStorage : sessionStorage).setItem(STORED, field.value.trim());
      location.reload();
    } catch {
      say(state, 'error.request');
    }
  };
}

if (storedKey()) void useStoredKey();
