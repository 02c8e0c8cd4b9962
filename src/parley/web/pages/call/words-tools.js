/** Actions for the text of a call, during it and afterwards: copy, save, share, and enlarge pictures. */

import { copy, h, iconButton } from '../../elements/dom.js';
import { enlarge } from '../../elements/enlarge.js';
import { openExport, textOf } from './after.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

/** @param {CallPage} page */
export function makeWordsTools({ calls, app, transcript }) {
  const words = () => calls.current?.captions;
  const share = async () => {
    const { recordingId } = calls.state;
    const { openShare } = await import('../../elements/share/share.js');
    openShare({ recordingId, app, blob: calls.current?.recorded ?? null });
  };
  const tools = {
    copy: iconButton('copy', 'after.copy', () => void copy(textOf(words()))),
    save: iconButton('download', 'after.words', () => openExport(words())),
    share: iconButton('share', 'after.share', () => void share()),
  };
  const node = h('div', { class: 'row words-tools' }, ...Object.values(tools));
  const draw = () => {
    const hasWords = words()?.list.some((/** @type {any} */ { who }) => who !== 'note') ?? false;
    tools.copy.hidden = tools.save.hidden = !hasWords;
    // After the call the same actions are in the middle of the page.
    tools.share.hidden = !calls.isOn || !calls.state.recordingId;
    node.hidden = [...node.children].every((child) => /** @type {HTMLElement} */ (child).hidden);
  };
  for (const type of ['call', 'change', 'captions']) calls.addEventListener(type, draw);
  enlarge(transcript);
  draw();
  return node;
}
