/**
 * Actions for a conversation that has ended: save its text, save its audio, open its recording, share it. Before
 * sharing, it shows what becomes visible, and to whom.
 */

import { HttpError, request, requestIfAny } from '../../wire/http.js';
import { at } from '../../wire/root.js';
import { number } from '../../words/words.js';
import { copy, h, say, sheet } from '../dom.js';
import { remember, viewerUrl } from '../recents.js';

const UPLOAD_LIMIT = 200e6;
const COMMENT_LIMIT = 2000;

/**
 * @param {{recordingId: string, app: string, blob: Blob | null}} what
 */
export function openShare({ recordingId, app, blob }) {
  const comment = h('textarea', { rows: 3, maxlength: COMMENT_LIMIT, hint: 'share.comment_hint' });
  const withBlob = h('input', { type: 'checkbox', role: 'switch', checked: Boolean(blob) });
  const progress = h('progress', { max: 1, value: 0, hidden: true, label: 'share.uploading' });
  const state = h('p', { class: 'small', role: 'status' });
  const go = h('button', { class: 'button primary', type: 'button', icon: 'share', words: 'share.go' });
  const expiry = h(
    'select',
    null,
    ...[
      ['86400', 'share.day'],
      ['2592000', 'share.month'],
      ['never', 'share.always'],
    ].map(([value, words]) => h('option', { value, words })),
  );
  const tooBig = blob !== null && blob.size > UPLOAD_LIMIT;
  const file = blob ? fileSwitch(blob, withBlob) : null;
  const node = sheet(
    'share.title',
    h('p', { class: 'quiet', words: 'share.what' }),
    file,
    h('label', null, h('span', { words: 'share.expiry' }), expiry),
    h('label', null, h('span', { words: 'share.comment' }), comment),
    progress,
    state,
    h('div', { class: 'row' }, go),
  );
  if (tooBig) say(state, 'error.too_big', { megabytes: UPLOAD_LIMIT / 1e6 });
  comment.onkeydown = (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) go.click();
  };
  go.onclick = async () => {
    go.disabled = true;
    /** @param {number} part */
    const onProgress = (part) => {
      progress.hidden = false;
      progress.value = part;
    };
    try {
      const expiresS = expiry.value === 'never' ? null : Number(expiry.value);
      const text = comment.value.trim();
      const url = await send(recordingId, { text, blob: withBlob.checked ? blob : null, expiresS, onProgress });
      remember(recordingId, app);
      node.close();
      await copy(url, 'share.copied');
    } catch (error) {
      say(state, error instanceof HttpError && error.status === 404 ? 'share.not_there' : 'share.failed');
      go.disabled = false;
    }
  };
}

/** @param {Blob} blob @param {HTMLInputElement} input */
function fileSwitch(blob, input) {
  input.disabled = blob.size > UPLOAD_LIMIT;
  input.checked = !input.disabled;
  const size = h('small', null, `${number(blob.size / 1e6)} MB`);
  return h('label', { class: 'switch' }, h('span', null, h('span', { words: 'share.with_recording' }), size), input);
}

/**
 * Uploads everything that is shared and returns the link.
 * @param {string} id
 * @param {{text: string, blob: Blob | null, expiresS: number | null, onProgress: (part: number) => void}} what
 */
async function send(id, { text, blob, expiresS, onProgress }) {
  const path = `/api/sessions/${encodeURIComponent(id)}`;
  if (text) await request(`${path}/comment`, { method: 'POST', body: JSON.stringify({ comment: text }) });
  if (blob) await upload(`${path}/upload-recording`, blob, onProgress);
  // The link does not contain the recording's id, so it allows only viewing.
  const body = JSON.stringify({ expires_in_s: expiresS });
  const link = await requestIfAny(`${path}/share`, { method: 'POST', body });
  return new URL(at(link?.path ?? viewerUrl(id)), location.href).href;
}

/** @param {string} path @param {Blob} blob @param {(part: number) => void} onProgress @returns {Promise<void>} */
function upload(path, blob, onProgress) {
  const kind = blob.type.includes('wav') ? 'wav' : blob.type.includes('mp4') ? 'mp4' : 'webm';
  const form = new FormData();
  form.append('file', blob, `frontend_replay.${kind}`);
  return new Promise((resolve, reject) => {
    // fetch does not report the progress of an upload.
    const call = new XMLHttpRequest();
    call.open('POST', path);
    call.upload.onprogress = ({ loaded, total }) => onProgress(total ? loaded / total : 0);
    call.onload = () =>
      call.status < 300 ? resolve() : reject(new HttpError(call.status, String(call.status), call.statusText));
    call.onerror = () => reject(new HttpError(0, 'offline', 'no answer'));
    call.send(form);
  });
}
