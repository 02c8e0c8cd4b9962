/**
 * Frame of every page: logo, ways to talk, status, language, light or dark.
 *
 * `GET /api/apps` lists the ways to talk; a page whose way is switched off redirects to /explore.
 */

import { about } from '../../wire/about.js';
import { HttpError, request, requestIfAny } from '../../wire/http.js';
import { at, here } from '../../wire/root.js';
import { bindPage, currentLanguage, setLanguage, suggestLanguage, words } from '../../words/words.js';
import { h, iconButton, painted, reicon, relabel, say, sheet } from '../dom.js';
import { icon, mark } from '../icons.js';

/** All ways to talk that a server can offer, in the order of the menu. */
export const APPS = [
  { id: 'audio_duplex', route: '/audio_duplex', icon: 'wave' },
  { id: 'omni', route: '/omni', icon: 'video' },
  { id: 'half_duplex_audio', route: '/half_duplex', icon: 'turns' },
  { id: 'turnbased', route: '/turnbased', icon: 'chat' },
  { id: 'realtime', route: '/realtime', icon: 'code' },
];

const THEMES = /** @type {const} */ (['auto', 'light', 'dark']);

function theme() {
  const stored = localStorage.getItem('parley.theme');
  return THEMES.find((name) => name === stored) ?? 'auto';
}

function applyTheme() {
  const chosen = theme();
  if (chosen === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

applyTheme();

/** @returns {Promise<string[] | null>} ids of the ways that are on; null if the server does not report them */
export async function enabledApps() {
  try {
    const answer = await requestIfAny('/api/apps');
    return answer ? answer.apps.map((/** @type {{app_id: string}} */ app) => app.app_id) : null;
  } catch {
    return null;
  }
}

/** Ways shown in the menu; the one for developers is in the playground. */
export const SHOWN = APPS.filter(({ id }) => id !== 'realtime');

/** Pages without a conversation. */
const OTHERS = [
  { href: '/playground', icon: 'code', words: 'nav.playground' },
  { href: '/explore', icon: 'spark', words: 'nav.explore' },
];

/** @param {typeof APPS[number]} app */
function appLink({ id, route }) {
  const path = here().replace(/\/$/, '') || '/';
  const isHere = path === route || (path === '/' && id === 'audio_duplex') ? { 'aria-current': 'page' } : {};
  return h('a', { href: route, words: `app.${id}`, 'data-app': id, ...isHere });
}

/** Returns the button for the other language, labelled in the current one, whose font every page has. */
function languageButton() {
  const next = () => (currentLanguage() === 'zh' ? 'en' : 'zh');
  const change = () => void setLanguage(next());
  const name = h('span', { words: 'nav.language' });
  const show = () => Object.assign(name, { lang: next() });
  words.addEventListener('language', show);
  show();
  return h('button', { class: 'lang', type: 'button', icon: 'globe', onclick: change }, name);
}

function lookButton() {
  const show = () => {
    reicon(button, { auto: 'auto', light: 'sun', dark: 'moon' }[theme()]);
    relabel(button, `theme.${theme()}`);
  };
  const onclick = () => {
    localStorage.setItem('parley.theme', THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
    applyTheme();
    show();
    document.dispatchEvent(new Event('themechange'));
  };
  const button = h('button', { class: 'round slim', type: 'button', icon: 'auto', onclick });
  show();
  return button;
}

/** @param {Set<string>} off ways that are switched off */
function menuButton(off) {
  /** @param {typeof APPS[number]} app */
  const entry = (app) => {
    const node = appLink(app);
    node.prepend(icon(app.icon));
    return node;
  };
  const mine = () => h('a', { href: '/recordings', icon: 'history', words: 'mine.title' });
  const others = () => OTHERS.map((about) => h('a', about));
  const onclick = () => {
    const on = SHOWN.filter(({ id }) => !off.has(id));
    sheet('nav.label', h('nav', { class: 'menu', 'aria-label': 'parley' }, ...on.map(entry), mine(), ...others()));
  };
  return iconButton('menu', 'nav.menu', onclick, 'menu-button');
}

let hasAsked = false;

/** Asks a user whom a proxy has signed out to reload the page, which leads to the login page. */
function askToSignIn() {
  if (hasAsked) return;
  hasAsked = true;
  const onclick = () => location.reload();
  const reload = h('button', { class: 'button primary', type: 'button', words: 'action.reload', onclick });
  sheet('key.signed_out', h('p', { class: 'quiet', words: 'key.signed_out_fix' }), reload);
}

let hasAskedForKey = false;

/** Returns the status of the server, which shows if it can accept a call and is polled. @param {number} everyS */
function statusChip(everyS) {
  const dot = h('span', { class: 'dot' });
  const label = h('span', null);
  const node = h('span', { class: 'chip status', role: 'status', hidden: true }, dot, label);
  /** True during a call: the user is being served, so the status is not relevant. */
  const isTalking = () => /** @type {HTMLElement} */ (document.querySelector('main'))?.dataset.calling === 'true';
  // Recordings can be shared with users who have no key, and the admin page asks for the key itself.
  const isOpenPage = /^\/(s\/|admin|privacy|about|docs|components)/.test(here());
  const poll = async () => {
    if (document.hidden) return;
    try {
      const {
        free_slots: free = 0,
        total_workers: total = 0,
        queue_length: waiting = 0,
        problem = '',
      } = (await request('/status')) ?? {};
      dot.dataset.is = total === 0 || problem ? 'poor' : free > 0 ? 'good' : 'fair';
      // Shown only if no call can start now, or if answers fail.
      node.hidden = isTalking() || (free > 0 && waiting === 0 && !problem);
      node.title = problem;
      if (total === 0) say(label, 'status.none');
      else if (problem) say(label, 'status.problem');
      else if (waiting > 0) say(label, 'status.waiting', { waiting });
      else say(label, free > 0 ? 'status.free' : 'status.busy');
    } catch (error) {
      dot.dataset.is = 'poor';
      node.hidden = isTalking();
      const isLocked = error instanceof HttpError && error.status === 401;
      const isSignedOut = isLocked && error.code === 'signed_out';
      say(label, isSignedOut ? 'key.signed_out' : isLocked ? 'status.locked' : 'status.offline');
      if (isSignedOut && !isTalking()) askToSignIn();
      // Asked once: a user who closes the question may read their own chats.
      if (isLocked && !isSignedOut && !isOpenPage && !hasAskedForKey) {
        hasAskedForKey = true;
        void import('../key.js').then(({ askForKey }) => askForKey());
      }
    }
  };
  void painted().then(poll);
  setInterval(poll, everyS * 1000);
  document.addEventListener('visibilitychange', poll);
  // A page that takes or frees a slot does not wait for the next poll. The delay lets the server clean up the call that
  // has just ended, which would otherwise be shown as busy.
  document.addEventListener('placechange', () => {
    node.hidden ||= isTalking();
    setTimeout(poll, 2000);
  });
  return node;
}

/** @param {{app?: string, statusEveryS?: number}} [page] */
export function mountShell({ app, statusEveryS = 10 } = {}) {
  /** @type {Set<string>} */
  const off = new Set();
  const nav = h('nav', { label: 'nav.label' }, ...SHOWN.map(appLink));
  nav.removeAttribute('title');
  const skip = h('a', { class: 'skip', href: '#main', words: 'nav.skip' });
  for (const { href, words } of OTHERS)
    nav.append(h('a', { href, words, ...(here() === href ? { 'aria-current': 'page' } : {}) }));
  const brand = h('a', { class: 'brand', href: '/', 'aria-label': 'parley' }, mark(), h('span', null, 'parley'));
  const end = h('div', { class: 'end' }, statusChip(statusEveryS), languageButton(), lookButton(), menuButton(off));
  document.body.prepend(skip, h('header', { class: 'topbar' }, brand, nav, end));
  bindPage();
  void painted().then(async () => {
    const enabled = await enabledApps();
    if (!enabled) return;
    for (const node of /** @type {NodeListOf<HTMLElement>} */ (nav.querySelectorAll('[data-app]'))) {
      const id = node.dataset.app ?? '';
      node.hidden = !enabled.includes(id);
      if (node.hidden) off.add(id);
    }
    if (app && off.has(app)) location.replace(at('/explore'));
  });
  void painted().then(async () => suggestLanguage((await about()).language));
}
