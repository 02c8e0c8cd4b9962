/**
 * Chats stored in this browser. They are in IndexedDB because their pictures and audio are too large for localStorage.
 */

/**
 * @typedef {{id: string, title: string, name?: string, updatedAt: number, messages: import('./chat.js').ChatMessage[]}} Chat
 *   `name`: set by the user, shown instead of the title
 */

const STORE = 'chats';

/** @type {BroadcastChannel | undefined} */
let channel;

/** Returns the channel to other tabs of this browser. */
function tabs() {
  channel ??= new BroadcastChannel('parley.chats');
  return channel;
}

/** @param {(id: string) => void} changed called when another tab has stored, renamed or deleted that chat */
export function watchChats(changed) {
  tabs().onmessage = ({ data }) => changed(data);
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

/** @param {string} id @param {(store: IDBObjectStore) => IDBRequest} act @returns {Promise<boolean>} true if it worked */
async function write(id, act) {
  return await inStore('readwrite', act).then(
    () => {
      tabs().postMessage(id);
      return true;
    },
    () => false,
  );
}

/** @param {Chat} chat @returns {Promise<boolean>} true if it could be stored */
export async function keepChat(chat) {
  return await write(chat.id, (store) => store.put(chat));
}

/**
 * Renames a chat. It is read and written in one transaction, so an answer that ends meanwhile is not lost.
 * @param {string} id @param {string} name empty: its title is shown again
 */
export async function nameChat(id, name) {
  await write(id, (store) => {
    const asked = store.get(id);
    asked.onsuccess = () => {
      if (asked.result) store.put({ ...asked.result, name: name || undefined });
    };
    return asked;
  });
}

/** @param {string} id */
export async function forgetChat(id) {
  await write(id, (store) => store.delete(id));
}

/** Returns the first text of the user. @param {import('./chat.js').ChatMessage[]} messages */
export function titleOf(messages) {
  for (const { role, parts } of messages) {
    const text = role === 'user' ? parts.find((part) => part.type === 'text') : undefined;
    if (text?.type === 'text' && text.text.trim()) return text.text.trim().slice(0, 60);
  }
  return '';
}
