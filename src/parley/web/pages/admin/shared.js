/** Code shared by the parts of the operator's page: requests, tables, and actions. */

import { confirmed, h, toast } from '../../elements/dom.js';
import { request, requestIfAny } from '../../wire/http.js';
import { has, t } from '../../words/words.js';

export const TOKEN = 'parley.admin';

const token = () => sessionStorage.getItem(TOKEN) ?? undefined;

/** @param {string} path @param {RequestInit} [init] */
export const ask = (path, init) => request(path, { ...init, token: token() });
/** @param {string} path */
export const askIfAny = (path) => requestIfAny(path, { token: token() });

/** Node of each section, by its name. @type {Record<string, HTMLElement>} */
export const place = {};

/** Redraws everything; set by the page. @type {() => Promise<void>} */
let refresh = async () => {};

/** @param {() => Promise<void>} again */
export function setRefresh(again) {
  refresh = again;
}

export const refreshAll = () => refresh();

/** @param {() => Promise<unknown>} action */
export async function act(action) {
  try {
    await action();
    toast('admin.done');
    await refresh();
  } catch (error) {
    toast('admin.failed', { why: error instanceof Error ? error.message : '' });
  }
}

/** @param {string} name @param {boolean} isThere */
export function showSection(name, isThere) {
  /** @type {HTMLElement} */ (place[name].parentElement).hidden = !isThere;
}

/**
 * Updates a section in place: unchanged nodes stay, and with them scroll positions, the focus and a pressed button.
 * `data-of` identifies the object that a button acts on.
 * @param {string} name @param {...Node} nodes
 */
export const show = (name, ...nodes) => focused(name, (node) => replaceIn(node, nodes));

/** Redraws a section. @param {string} name @param {...Node} nodes */
export const renew = (name, ...nodes) => focused(name, (node) => node.replaceChildren(...nodes));

/**
 * Changes a section. If its focused control is replaced, the focus moves to the one in its position.
 * @param {string} name @param {(node: HTMLElement) => void} change
 */
function focused(name, change) {
  const controls = () => [.../** @type {NodeListOf<HTMLElement>} */ (place[name].querySelectorAll('a, button, input'))];
  const at = controls().indexOf(/** @type {HTMLElement} */ (document.activeElement));
  change(place[name]);
  const left = controls();
  left[Math.min(at, left.length - 1)]?.focus();
}

/** @param {ParentNode & Node} node @param {Node[]} fresh its new children */
function replaceIn(node, fresh) {
  const before = [...node.childNodes];
  if (before.length === fresh.length) for (const [i, one] of before.entries()) replace(one, fresh[i]);
  else node.replaceChildren(...fresh);
}

/** @param {ChildNode} node @param {Node} fresh */
function replace(node, fresh) {
  if (node instanceof HTMLButtonElement && !node.dataset.of) node.replaceWith(fresh);
  else if (node instanceof Element && node.firstElementChild && node.cloneNode().isEqualNode(fresh.cloneNode()))
    replaceIn(node, [...fresh.childNodes]);
  else if (!node.isEqualNode(fresh)) node.replaceWith(fresh);
}

/** @param {string[]} heads @param {(Node | string | number | null)[][]} rows @param {string} label */
export function table(heads, rows, label) {
  if (rows.length === 0) return h('p', { class: 'quiet small', words: 'admin.none' });
  return h(
    'div',
    { class: 'scroll-x', tabindex: 0, role: 'group', 'aria-labelledby': `admin-${label}` },
    h(
      'table',
      null,
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          ...heads.map((head) => (head ? h('th', { scope: 'col', words: `admin.th_${head}` }) : h('td', null))),
        ),
      ),
      h('tbody', null, ...rows.map((row) => h('tr', null, ...row.map((cell) => h('td', { class: 'num' }, cell))))),
    ),
  );
}

/**
 * Returns a button that asks for confirmation before its action.
 * @param {string} words
 * @param {[question: string, yes: string, values?: Record<string, unknown>]} sure
 * @param {() => Promise<unknown>} action
 */
export function dangerButton(words, sure, action) {
  const onclick = async () => {
    if (await confirmed(...sure)) await act(action);
  };
  const of = sure[2] && Object.values(sure[2]).join(' ');
  return h('button', { class: 'button slim danger', type: 'button', 'data-of': of, words, onclick });
}

/** @param {string} word */
export const stateWord = (word) => (has(`worker.${word}`) ? t(`worker.${word}`) : word);
/** @param {string | null | undefined} task */
export const taskWord = (task) => (task ? (has(`task.${task}`) ? t(`task.${task}`) : task) : '–');
