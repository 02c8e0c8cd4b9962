/**
 * The frame of every page: brand, ways to talk, status, language, light or dark.
 *
 * Which ways exist comes from `GET /api/apps`; a page whose way is switched off leads home.
 */

import { HttpError, request, requestIfAny } from '../../wire/http.js';
import { bindPage, currentLanguage, setLanguage, suggestLanguage, words } from '../../words/words.js';
import { h, reicon, relabel, say, sheet } from '../dom.js';
import { icon, mark } from '../icons.js';
import { askForKey } from '../key.js';

/** Every way to talk this server may offer, in the order of the menu. */
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

/** @returns {Promise<string[] | null>} ids of the ways that are on; null when the server does not say */
export async function enabledApps() {
  try {
    const answer = await requestIfAny('/api/apps');
    return answer ? answer.apps.map((/** @type {{app_id: string}} */ app) => app.app_id) : null;
  } catch {
    return null;
  }
}

/** @param {{app?: string, statusEveryS?: number}} [page] */
export function mountShell({ app, statusEveryS = 10 } = {}) {
  const here = location.pathname.replace(/\/$/, '') || '/';
  const link = (/** @type {typeof APPS[number]} */ { id, route }) =>
    h('a', { href: route, words: `app.${id}`, 'data-app': id, ...(here === route ? { 'aria-current': 'page' } : {}) });
  const nav = h('nav', { label: 'nav.label' }, ...APPS.map(link));
  nav.removeAttribute('title');

  const status = h('span', { class: 'chip status', role: 'status' }, h('span', { class: 'dot' }), h('span', null));
  const lang = h('button', { class: 'lang', type: 'button', onclick: () => void setLanguage(currentLanguage() === 'zh' ? 'en' : 'zh') });
  const showLanguage = () => {
    lang.textContent = currentLanguage() === 'zh' ? 'EN' : '中文';
    lang.lang = currentLanguage() === 'zh' ? 'en' : 'zh';
  };
  showLanguage();
  words.addEventListener('language', showLanguage);

  const look = h('button', { class: 'round slim', type: 'button', icon: 'auto' });
  const showLook = () => {
    reicon(look, { auto: 'auto', light: 'sun', dark: 'moon' }[theme()]);
    relabel(look, `theme.${theme()}`);
  };
  look.onclick = () => {
    localStorage.setItem('parley.theme', THEMES[(THEMES.indexOf(theme()) + 1) % 3]);
    applyTheme();
    showLook();
    document.dispatchEvent(new Event('themechange'));
  };
  showLook();

  const menu = h('button', {
    class: 'round slim menu-button', type: 'button', label: 'nav.menu', icon: 'menu',
    onclick: () => sheet('nav.label', h('nav', { class: 'menu', 'aria-label': 'parley' }, ...APPS.filter(({ id }) => !off.has(id)).map((entry) => {
      const node = link(entry);
      node.prepend(icon(entry.icon));
      return node;
    }))),
  });

  const skip = h('a', { class: 'skip', href: '#main', words: 'nav.skip' });
  document.body.prepend(
    skip,
    h('header', { class: 'topbar' }, h('a', { class: 'brand', href: '/', 'aria-label': 'parley' }, mark(), h('span', null, 'parley')), nav, h('div', { class: 'end' }, status, lang, look, menu)),
  );
  bindPage();

  /** @type {Set<string>} */
  const off = new Set();
  void enabledApps().then((enabled) => {
    if (!enabled) return;
    for (const node of /** @type {NodeListOf<HTMLElement>} */ (nav.querySelectorAll('[data-app]'))) {
      const id = node.dataset.app ?? '';
      const isOn = enabled.includes(id);
      node.hidden = !isOn;
      if (!isOn) off.add(id);
    }
    if (app && off.has(app)) location.replace('/');
  });
  void requestIfAny('/api/frontend_defaults').then((defaults) => suggestLanguage(defaults?.default_lang)).catch(() => {});

  const label = /** @type {HTMLElement} */ (status.lastElementChild);
  const dot = /** @type {HTMLElement} */ (status.firstElementChild);
  // Recordings can be shared with people who have no key, and the admin page asks by itself.
  const isOpenPage = here.startsWith('/s/') || here === '/admin';
  const poll = async () => {
    if (document.hidden) return;
    try {
      const { idle_workers: idle = 0, total_workers: total = 0, queue_length: waiting = 0 } = (await request('/status')) ?? {};
      dot.dataset.is = total === 0 ? 'poor' : idle > 0 ? 'good' : 'fair';
      if (total === 0) say(label, 'status.none');
      else if (waiting > 0) say(label, 'status.waiting', { waiting });
      else say(label, idle > 0 ? 'status.free' : 'status.busy', { idle, total });
    } catch (error) {
      dot.dataset.is = 'poor';
      const isLocked = error instanceof HttpError && error.status === 401;
      say(label, isLocked ? 'status.locked' : 'status.offline');
      if (isLocked && !isOpenPage) void askForKey();
    }
  };
  void poll();
  setInterval(poll, statusEveryS * 1000);
  document.addEventListener('visibilitychange', poll);
  // A page that takes or frees a place says so, and need not wait for the next round.
  document.addEventListener('placechange', () => {
    void poll();
    // The server needs a moment to clean a place up.
    setTimeout(poll, 2000);
  });
}
