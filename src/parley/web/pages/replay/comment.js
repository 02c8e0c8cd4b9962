/** The owner's comment on a recording, stored when its field is left. */

import { h, say } from '../../elements/dom.js';
import { request, requestIfAny } from '../../wire/http.js';

/** @param {string} base path of the recording's routes */
export function commentCard(base) {
  const comment = h('textarea', { rows: 2, maxlength: 2000, hint: 'share.comment_hint' });
  const saved = h('span', { class: 'small quiet', role: 'status' });
  const show = async () => {
    comment.value = (await requestIfAny(`${base}/comment`).catch(() => null))?.comment ?? '';
  };
  void show();
  comment.onchange = async () => {
    try {
      await request(`${base}/comment`, { method: 'POST', body: JSON.stringify({ comment: comment.value.trim() }) });
      say(saved, 'replay.comment_saved');
    } catch {
      say(saved, 'replay.comment_failed');
    }
  };
  return h('section', { class: 'card stack' }, h('label', null, h('span', { words: 'share.comment' }), comment), saved);
}
