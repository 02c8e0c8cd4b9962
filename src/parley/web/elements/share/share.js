/**
 * What to do with a conversation that is over: keep its words, keep its sound, look at it again, share it.
 * Sharing says first what becomes visible, and to whom.
 */

import { HttpError, request, requestIfAny } from '../../wire/http.js';
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
  const expiry = h('select', null, ...[['86400', 'share.day'], ['2592000', 'share.month'], ['never', 'share.always']].map(([value, words]) => h('option', { value, words })));
  const tooBig = blob !== null && blob.size > UPLOAD_LIMIT;
  const node = sheet(
    'share.title',
    h('p', { class: 'quiet', words: 'share.what' }),
    blob ? h('label', { class: 'switch' }, h('span', null, h('span', { words: 'share.with_recording' }), h('small', null, `${number(blob.size / 1e6)} MB`)), withBlob) : null,
    h('label', null, h('span', { words: 'share.expiry' }), expiry),
    h('label', null, h('span', { words: 'share.comment' }), comment),
    progress,
    state,
    h('div', { class: 'row' }, go),
  );
  if (tooBig) {
    withBlob.checked = false;
    withBlob.disabled = true;
    say(state, 'error.too_big');
  }
  comment.onkeydown = (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) go.click();
  };
  go.onclick = async () => {
    go.disabled = true;
    try {
      if (comment.value.trim()) await request(`/api/sessions/${encodeURIComponent(recordingId)}/comment`, { method: 'POST', body: JSON.stringify({ comment: comment.value.trim() }) });
      if (blob && withBlob.checked) {
        progress.hidden = false;
        await upload(`/api/sessions/${encodeURIComponent(recordingId)}/upload-recording`, blob, (part) => {
          progress.value = part;
        });
      }
      // A link of its own does not tell the recording's id, so whoever has it can look and nothing else.
      const order = { expires_in_s: expiry.value === 'never' ? null : Number(expiry.value) };
      const link = await requestIfAny(`/api/sessions/${encodeURIComponent(recordingId)}/share`, { method: 'POST', body: JSON.stringify(order) });
      const url = new URL(link?.path ?? viewerUrl(recordingId), location.href).href;
      remember(recordingId, app);
      node.close();
      await copy(url, 'share.copied');
    } catch (error) {
      say(state, error instanceof HttpError && error.status === 404 ? 'share.not_there' : 'share.failed');
      go.disabled = false;
    }
  };
}

/** @param {string} path @param {Blob} blob @param {(part: number) => void} onProgress @returns {Promise<void>} */
function upload(path, blob, onProgress) {
  const kind = blob.type.includes('wav') ? 'wav' : blob.type.includes('mp4') ? 'mp4' : 'webm';
  const form = new FormData();
  form.append('file', blob, `frontend_replay.${kind}`);
  return new Promise((resolve, reject) => {
    // fetch does not tell how far an upload has come.
    const call = new XMLHttpRequest();
    call.open('POST', path);
    call.upload.onprogress = ({ loaded, total }) => onProgress(total ? loaded / total : 0);
    call.onload = () => (call.status < 300 ? resolve() : reject(new HttpError(call.status, String(call.status), call.statusText)));
    call.onerror = () => reject(new HttpError(0, 'offline', 'no answer'));
    call.send(form);
  });
}
