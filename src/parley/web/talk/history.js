/**
 * Chats stored in this browser. They are in IndexedDB because their pictures and audio are too large for localStorage.
 */

/**
 * @typedef {{id: string, title: string, name?: string, updatedAt: number, messages: import('./chat.js').ChatMessage[]}} Chat
 *   `name`: set by the user, shown instead of the title
 */

const STORE = 'chats';

/** @type {BroadcastChannel | null | undefined} */
let channel;

/** Returns the channel to other tabs of this browser; null if there can be none. */
function tabs() {
  if (channel === undefined) {
    try {
      channel = new BroadcastChannel('parley.chats');
    } catch {
      // Firefox, if it may store nothing for this page; then there is no chat to report either.
      channel = null;
    }
  }
  return channel;
}

/**
 * What another tab has done to a chat: stored it anew, renamed it, or deleted it.
 * @typedef {{id: string, isRenamed?: boolean, isGone?: boolean}} ChatChange
 */

/** @param {(change: ChatChange) => void} changed called when another tab has changed a chat */
export function watchChats(changed) {
  tabs()?.addEventListener('message', ({ data }) => changed(data));
}

/** @returns {Promise<IDBDatabase>} */
function open() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open('parley', 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: 'id' });
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
}

/**
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest<T>} act
 * @returns {Promise<T>}
 */
async function inStore(mode, act) {
  const database = await open();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const asked = act(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** @returns {Promise<Chat[]>} newest first; empty if the browser stores nothing (private windows) */
export async function listChats() {
  const all = /** @type {Chat[]} */ (await inStore('readonly', (store) => store.getAll()).catch(() => []));
  return all.sort((a, b) => b.updatedAt - a.updatedAt);
}

/** Returns the name that the user gave to a chat; empty if it is called after its first words. @param {string} id */
export async function chatName(id) {
  return (await listChats()).find((one) => one.id === id)?.name ?? '';
}

/** @param {ChatChange} change @param {(store: IDBObjectStore) => IDBRequest} act @returns {Promise<boolean>} true if it worked */
async function write(change, act) {
  return await inStore('readwrite', act).then(
    () => {
      tabs()?.postMessage(change);
      return true;
    },
    () => false,
  );
}

/**
 * Stores a chat under the name that it has here: another tab may have renamed it a moment ago.
 * @param {Chat} chat @returns {Promise<boolean>} true if it could be stored
 */
export async function keepChat(chat) {
  return await write({ id: chat.id }, (store) => {
    const asked = store.get(chat.id);
    asked.onsuccess = () => store.put({ ...chat, name: asked.result?.name });
    return asked;
  });
}

/**
 * Renames a chat. It is read and written in one transaction, so an answer that ends meanwhile is not lost.
 * @param {string} id @param {string} name empty: its title is shown again
 */
export async function nameChat(id, name) {
  await write({ id, isRenamed: true }, (store) => {
    const asked = store.get(id);
    asked.onsuccess = () => {
      if (asked.result) store.put({ ...asked.result, name: name || undefined });
    };
    return asked;
  });
}

/** @param {string} id */
export async function forgetChat(id) {
  await write({ id, isGone: true }, (store) => store.delete(id));
}

/** Returns the first text of the user. @param {import('./chat.js').ChatMessage[]} messages */
export function titleOf(messages) {
  for (const { role, parts } of messages) {
    const text = role === 'user' ? parts.find((part) => part.type === 'text') : undefined;
    if (text?.type === 'text' && text.text.trim()) return text.text.trim().slice(0, 60);
  }
  return '';
}

/** @param {Chat} chat @param {string} wanted search text in lower case */
export function matches(chat, wanted) {
  const inText = chat.messages.some(({ parts }) =>
    parts.some((part) => part.type === 'text' && part.text.toLowerCase().includes(wanted)),
  );
  return inText || (chat.name ?? '').toLowerCase().includes(wanted);
}
