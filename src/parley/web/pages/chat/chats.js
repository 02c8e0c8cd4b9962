/** The chats stored in this browser: open, find, rename, delete. Deleting a chat also deletes the server's copies. */

import { $, askName, confirmed, h, iconButton, say, textButton, toast } from '../../elements/dom.js';
import { deleteRecording } from '../../elements/forget.js';
import { forgetChat, keepChat, listChats, matches, nameChat, titleOf, watchChats } from '../../talk/history.js';
import { date, t } from '../../words/words.js';

/** @typedef {import('../../talk/history.js').Chat} Chat */

/** Minimum number of chats for which the search field is shown. */
const SEARCH_FROM = 6;

const newId = () => Math.random().toString(36).slice(2, 10);

/** @param {Chat} chat */
const nameOf = (chat) => chat.name || chat.title || t('chat.untitled');

/** Returns the ids of the server's recordings of a chat. @param {Chat} chat */
const recordingsOf = ({ messages }) =>
  messages.map(({ recordingId }) => recordingId).filter((id) => id !== undefined && id !== '');

export class Chats {
  id = newId();
  #list = h('ul', { class: 'history' });
  #empty = h('p', { class: 'small quiet', words: 'chat.no_history' });
  #search = h('input', {
    type: 'search',
    hint: 'chat.search',
    label: 'chat.search',
    oninput: () => void this.draw(),
  });

  /**
   * @param {import('./parts.js').ChatPage} page @param {{shown: () => void}} around `shown` is called when another
   *   chat is shown
   */
  constructor(page, { shown }) {
    this.page = page;
    this.shown = shown;
    const close = iconButton('close', 'action.close', () => this.close(), 'narrow');
    const fresh = textButton('plus', 'chat.new', () => void this.fresh(), '');
    this.node = h(
      'aside',
      { class: 'chats', label: 'chat.history' },
      h('div', { class: 'row spread' }, h('h2', { words: 'chat.history' }), close),
      fresh,
      this.#search,
      this.#empty,
      this.#list,
    );
    this.node.removeAttribute('title');
    globalThis.addEventListener('popstate', () => void this.openAddress());
    watchChats((change) => void this.#changedElsewhere(change));
    globalThis.addEventListener(
      'pageshow',
      ({ persisted }) => persisted && void this.#changedElsewhere({ id: this.id }),
    );
  }

  /**
   * Called when another tab has changed a chat: the copy that is shown here and stored later must not be older.
   * @param {import('../../talk/history.js').ChatChange} change
   */
  async #changedElsewhere({ id, isRenamed, isGone }) {
    if (id !== this.id || isRenamed) return void this.draw();
    if (isGone) {
      // What this tab has stored since the other deleted it.
      await forgetChat(id);
      return this.#forgotten();
    }
    if (!this.page.talk.isBusy) return await this.#turnTo(id);
    // Both tabs are waiting for an answer, so the one in this tab becomes a separate chat.
    this.id = newId();
    this.#show(this.id, 'replaceState');
  }

  /** Opens the chat in the page's address; a new one if the address has none. */
  async openAddress() {
    const id = decodeURIComponent(location.hash.slice(1));
    if (id === this.id || (!id && this.page.talk.messages.length === 0)) return;
    await this.#turnTo(id);
  }

  /** @param {string} id */
  async #turnTo(id) {
    const chat = id ? (await listChats()).find((one) => one.id === id) : undefined;
    await this.leave();
    if (!chat) this.page.talk.clear();
    this.#become(chat?.id ?? newId(), chat?.messages ?? []);
    // The chat at that address no longer exists.
    if (id && !chat) this.#show('', 'replaceState');
  }

  /** @param {string} id of the chat at this address; empty: a new one @param {'pushState' | 'replaceState'} how */
  #show(id, how) {
    const address = location.pathname + (id ? `#${encodeURIComponent(id)}` : '');
    if (address !== location.pathname + location.hash || location.search) history[how](null, '', address);
  }

  close() {
    this.node.removeAttribute('data-open');
  }

  async keep() {
    const { talk } = this.page;
    if (talk.messages.length === 0) return;
    const last = talk.messages.at(-1);
    const messages = talk.messages
      .map((message) => (talk.isBusy && message === last ? { ...message, isInterrupted: true } : message))
      .filter(({ role, parts, error, sound }) => {
        const hasContent = parts.some((part) => part.type !== 'text' || part.text);
        return role === 'user' || error || sound || hasContent;
      });
    const chat = {
      id: this.id,
      title: titleOf(messages),
      updatedAt: Date.now(),
      messages,
    };
    if (!(await keepChat(chat))) toast('chat.not_kept');
    void this.draw();
  }

  async draw() {
    const all = await listChats();
    this.#search.hidden = all.length < SEARCH_FROM;
    const wanted = this.#search.hidden ? '' : this.#search.value.trim().toLowerCase();
    const chats = wanted ? all.filter((chat) => matches(chat, wanted)) : all;
    say(this.#empty, wanted ? 'chat.nothing_found' : 'chat.no_history');
    this.#list.replaceChildren(...chats.map((chat) => this.#row(chat)));
    this.#empty.hidden = chats.length > 0;
  }

  /** @param {Chat} chat */
  #row(chat) {
    const here = chat.id === this.id ? { 'aria-current': 'true' } : {};
    const name = nameOf(chat);
    const edit = iconButton('edit', ['action.rename', { name }], () => void this.#rename(chat));
    edit.dataset.id = chat.id;
    return h(
      'li',
      null,
      h(
        'button',
        { class: 'open', type: 'button', title: name, ...here, onclick: () => void this.#open(chat) },
        h('span', { dir: 'auto' }, name),
        h('small', { class: 'quiet' }, date(chat.updatedAt)),
      ),
      edit,
      iconButton('trash', ['chat.delete', { name }], () => void this.#delete(chat)),
    );
  }

  /** @param {Chat} chat */
  async #open(chat) {
    await this.leave();
    this.#become(chat.id, chat.messages);
    this.#show(chat.id, 'pushState');
  }

  /** @param {string} id @param {import('../../talk/chat.js').ChatMessage[]} messages */
  #become(id, messages) {
    this.id = id;
    this.page.talk.messages = messages;
    this.shown();
    void this.draw();
    this.close();
  }

  /** @param {Chat} chat */
  async #rename(chat) {
    const name = await askName(chat.name ?? '');
    if (name === null) return;
    await nameChat(chat.id, name);
    await this.draw();
    // The button that had the focus was removed with its row.
    /** @type {HTMLElement | null} */ (this.#list.querySelector(`[data-id="${CSS.escape(chat.id)}"]`))?.focus();
  }

  /** @param {Chat} chat */
  async #delete(chat) {
    if (!(await confirmed('chat.delete_sure', 'action.delete'))) return;
    const gone = await Promise.all(recordingsOf(chat).map((id) => deleteRecording(/** @type {string} */ (id))));
    await forgetChat(chat.id);
    toast(gone.every(Boolean) ? 'replay.deleted' : 'chat.delete_partly');
    if (chat.id === this.id) return this.#forgotten();
    await this.draw();
    $('.button', this.node).focus();
  }

  /** The chat was deleted: nothing of it is stored, not even an unfinished answer. */
  #forgotten() {
    this.page.talk.clear();
    this.#become(newId(), []);
    this.#show('', 'replaceState');
  }

  /** Leaves the chat; the answer so far is stored in it. */
  async leave() {
    const { talk, hush } = this.page;
    const last = talk.messages.at(-1);
    const isCut = talk.isBusy;
    if (isCut && last?.role === 'assistant') last.isInterrupted = true;
    hush();
    // Everything else has been stored when it was said.
    if (isCut) await this.keep();
  }

  async fresh() {
    await this.leave();
    this.page.talk.clear();
    this.#become(newId(), []);
    this.#show('', 'pushState');
  }

  /** Called when a message was sent: from the first message on, the chat has an address. */
  begun() {
    this.#show(this.id, this.page.talk.messages.length > 2 ? 'replaceState' : 'pushState');
  }
}
