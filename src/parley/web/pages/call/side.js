/** The side of a call page: conversation, settings and connection as tabs; on a phone a sheet over the stage. */

import { $, h, iconButton } from '../../elements/dom.js';

/**
 * @param {[name: string, nodes: Node[]][]} tabs
 * @param {(open: string) => void} onOpen
 */
export function makeSide(tabs, onOpen) {
  const row = h('div', { class: 'tabs', role: 'tablist', label: 'call.panels' });
  row.removeAttribute('title');
  const panels = tabs.map(([name, nodes]) => {
    const about = { id: `panel-${name}`, 'aria-labelledby': `tab-${name}`, 'data-panel': name };
    return h('div', { class: 'panel', role: 'tabpanel', ...about, hidden: true }, ...nodes);
  });
  const close = iconButton('close', 'action.close', () => open(null), 'close-side');
  const node = h(
    'aside',
    { class: 'side', label: 'call.side' },
    h('div', { class: 'row spread head' }, row, close),
    ...panels,
  );
  node.removeAttribute('title');

  tabs.forEach(([name], i) => {
    /** @param {KeyboardEvent} event */
    const onkeydown = (event) => {
      const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length][0];
      open(next, true);
      $(`#tab-${next}`).focus();
    };
    const about = { id: `tab-${name}`, 'aria-controls': `panel-${name}`, words: `call.${name}` };
    row.append(h('button', { type: 'button', role: 'tab', ...about, onclick: () => open(name, true), onkeydown }));
  });

  /** @param {string | null} name @param {boolean} [isTab] true if chosen as a tab, which never closes it */
  function open(name, isTab = false) {
    const wasOpen = node.dataset.open === name && !isTab;
    node.dataset.open = name === null || wasOpen ? '' : name;
    const shown = node.dataset.open || 'conversation';
    for (const panel of panels) panel.hidden = panel.dataset.panel !== shown;
    for (const tab of /** @type {HTMLCollectionOf<HTMLElement>} */ (row.children)) {
      const isHere = tab.id === `tab-${shown}`;
      tab.setAttribute('aria-selected', String(isHere));
      tab.tabIndex = isHere ? 0 : -1;
    }
    onOpen(node.dataset.open ?? '');
  }

  return { node, open, isOpen: () => Boolean(node.dataset.open) };
}
