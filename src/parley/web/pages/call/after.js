/** Actions for a call that has ended. */

import { copy, download, h, sheet, textButton, toast } from '../../elements/dom.js';
import { forgetRecording } from '../../elements/forget.js';
import { viewerUrl } from '../../elements/recents.js';
import { linesOf, plainText, srt, vtt } from '../../talk/export.js';
import { t } from '../../words/words.js';

/** @typedef {import('../call.js').WholePage} WholePage */

/** Returns the text of the call in readable form. @param {import('../../talk/captions.js').Captions} captions */
export function textOf(captions) {
  return plainText(linesOf(captions.list, t), t('transcript.interrupted'));
}

/** @param {import('../../talk/captions.js').Captions} captions */
export function openExport(captions) {
  const lines = linesOf(captions.list, t);
  const files = /** @type {[string, string, () => string][]} */ ([
    ['txt', 'text/plain', () => textOf(captions)],
    ['srt', 'application/x-subrip', () => srt(lines)],
    ['vtt', 'text/vtt', () => vtt(lines)],
  ]);
  const node = sheet(
    'export.title',
    h(
      'div',
      { class: 'stack' },
      textButton('copy', 'after.copy', () => void copy(textOf(captions)), ''),
      ...files.map(([kind, type, make]) =>
        h('button', {
          class: 'button',
          type: 'button',
          icon: 'download',
          words: `export.${kind}`,
          onclick: () => {
            download(new Blob([make()], { type }), `parley.${kind}`);
            node.close();
          },
        }),
      ),
    ),
  );
}

/** Saves the recording made in this browser. @param {Blob} blob @param {string} name */
function save(blob, name) {
  download(blob, `${name}.${['wav', 'mp4'].find((format) => blob.type.includes(format)) ?? 'webm'}`);
  toast('toast.saved');
}

/** @param {WholePage} page @param {HTMLElement} place */
export function showAfter(page, place) {
  const { calls, kind, app } = page;
  const call = calls.current;
  if (!call || call.isBusy || !call.state.ending?.wasReady) {
    place.hidden = true;
    return;
  }
  const { recordingId } = call.state;
  const blob = call.recorded;
  const captions = /** @type {import('../../talk/captions.js').Captions} */ (call.captions);
  const hasWords = captions.list.some(({ who }) => who !== 'note');
  const share = async () => (await import('../../elements/share/share.js')).openShare({ recordingId, app, blob });
  const forget = async () => {
    if (!(await forgetRecording(recordingId))) return;
    call.set({ recordingId: '' });
    showAfter(page, place);
    page.controls.moveFocus(false);
  };
  const nodes = [
    blob && textButton('download', 'after.recording', () => save(blob, `parley-${kind}`)),
    hasWords && textButton('text', 'after.words', () => openExport(call.captions)),
    recordingId &&
      h('a', {
        class: 'button slim',
        href: viewerUrl(recordingId),
        target: '_blank',
        rel: 'noopener',
        icon: 'play',
        words: 'after.look',
      }),
    recordingId && textButton('share', 'after.share', () => void share()),
    recordingId && textButton('trash', 'after.delete', () => void forget()),
  ].filter((node) => node instanceof Node);
  place.replaceChildren(...nodes);
  place.hidden = nodes.length === 0;
}
