/**
 * Writing beside the voice: a question typed at any time is answered in writing, with the conversation so
 * far as its history. The live conversation does not hear it: its protocols carry sound and pictures only.
 */

import { errorText } from '../elements/notice.js';
import { growing, h, toast } from '../elements/dom.js';
import { ChatTalk } from '../talk/chat.js';
import { t } from '../words/words.js';

/** Turns of writing have numbers of their own, below those of the voice. */
let nextTurn = -1;

/**
 * @param {{captions: import('../talk/captions.js').Captions, prompt: () => string, isBusy: () => boolean}} page
 */
export function mountWriting({ captions, prompt, isBusy }) {
  const field = growing(h('textarea', { rows: 1, maxlength: 8000, hint: 'writing.hint' }));
  const send = h('button', { class: 'round slim', type: 'submit', icon: 'send', label: 'action.send' });
  const form = h('form', { class: 'writing' }, h('label', { class: 'grow' }, h('span', { class: 'visually-hidden', words: 'writing.hint' }), field), send);
  const chat = new ChatTalk();
  let turn = 0;
  let shown = 0;
  let hasWaited = false;
  chat.addEventListener('change', () => {
    if (chat.phase === 'queued' && !hasWaited) captions.note('writing.waits');
    hasWaited = chat.phase === 'queued';
  });
  chat.addEventListener('delta', () => show());
  chat.addEventListener('finished', (event) => {
    const { ending } = /** @type {CustomEvent} */ (event).detail;
    const answer = chat.messages.at(-1);
    show();
    captions.complete(turn);
    captions.drained(turn);
    if (answer?.error) toast('writing.failed', { why: errorText(ending.code || ending.reason) });
    send.disabled = false;
  });

  function show() {
    const part = chat.messages.at(-1)?.parts[0];
    const text = part?.type === 'text' ? part.text : '';
    if (text.length <= shown) return;
    captions.add(turn, text.slice(shown), 0);
    captions.drained(turn);
    shown = text.length;
  }

  form.onsubmit = (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text || chat.isBusy) return;
    // What has been said aloud so far, as far as it is known in words.
    chat.messages = captions.list
      .filter(({ who, text: said }) => who !== 'note' && said)
      .map((caption) => ({ id: String(caption.id), role: caption.who === 'assistant' ? /** @type {const} */ ('assistant') : /** @type {const} */ ('user'), parts: [{ type: /** @type {const} */ ('text'), text: caption.text }], at: caption.at }));
    captions.wrote(text);
    if (isBusy()) captions.note('writing.beside');
    turn = nextTurn--;
    shown = 0;
    field.value = '';
    send.disabled = true;
    chat.send([{ type: 'text', text }], { system: [{ type: 'text', text: `${prompt()}\n${t('writing.system')}` }], streaming: true, voice: false, ttsVoice: null, maxNewTokens: 512, lengthPenalty: 1.1, detailed: false });
  };
  field.onkeydown = (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  };
  return form;
}
