/** Facts for developers: tokens, times and memory, shown if developer mode is on. */

import { h } from './dom.js';

const KEY = 'parley.developer';

export const isDeveloper = () => localStorage.getItem(KEY) === 'yes';

export function developerSwitch() {
  const box = h('input', { type: 'checkbox', role: 'switch', checked: isDeveloper() });
  box.onchange = () => {
    localStorage.setItem(KEY, box.checked ? 'yes' : 'no');
    document.dispatchEvent(new Event('developer'));
  };
  const text = h('span', null, h('span', { words: 'developer.mode' }), h('small', { words: 'developer.hint' }));
  return h('label', { class: 'switch' }, text, box);
}
