/** The panels at the sides of a chat. On a narrow screen they lie over the page, so that only one can be open. */

import { iconButton } from '../../elements/dom.js';

/**
 * Returns the button of a panel, which has `data-open` while it is open. Escape closes it, too, and the focus returns.
 * @param {HTMLElement} panel @param {string} icon @param {string} label key @param {string} [more] further classes
 */
export function panelButton(panel, icon, label, more) {
  /** @param {MouseEvent} event */
  const toggle = ({ detail }) => {
    // A key press also moves the focus; after a tap the on-screen keyboard would cover the panel.
    if (panel.toggleAttribute('data-open') && detail === 0) panel.querySelector('button')?.focus();
  };
  const button = iconButton(icon, label, toggle, more);
  const follow = () => {
    const isOpen = panel.hasAttribute('data-open');
    button.setAttribute('aria-expanded', String(isOpen));
    if (!isOpen && panel.contains(document.activeElement)) button.focus();
    if (!isOpen) return;
    for (const other of document.querySelectorAll('aside')) if (other !== panel) other.removeAttribute('data-open');
  };
  follow();
  new MutationObserver(follow).observe(panel, { attributeFilter: ['data-open'] });
  panel.addEventListener('keydown', ({ key, isComposing }) => {
    if (key === 'Escape' && !isComposing) panel.removeAttribute('data-open');
  });
  return button;
}
