/**
 * Storage for pages whose browser stores nothing for them (cookies blocked, some private windows) or has no space left:
 * browsers throw then. Pages keep such values until they are closed.
 */

class Kept {
  #store;
  /** Values that the browser did not store. @type {Map<string, string>} */
  #own = new Map();

  /** @param {Storage | undefined} store */
  constructor(store) {
    this.#store = store;
  }

  /** @param {string} key */
  getItem(key) {
    return this.#own.get(key) ?? this.#store?.getItem(key) ?? null;
  }

  /** @param {string} key @param {string} value */
  setItem(key, value) {
    this.#own.set(key, String(value));
    try {
      this.#store?.setItem(key, value);
      if (this.#store) this.#own.delete(key);
    } catch {
      // It stays in the page.
    }
  }

  /** @param {string} key */
  removeItem(key) {
    this.#own.delete(key);
    this.#store?.removeItem(key);
  }
}

/** @param {'localStorage' | 'sessionStorage'} name */
function storeOf(name) {
  try {
    return globalThis[name];
  } catch {
    return undefined;
  }
}

for (const name of /** @type {const} */ (['localStorage', 'sessionStorage'])) {
  if (name in globalThis)
    Object.defineProperty(globalThis, name, { value: new Kept(storeOf(name)), configurable: true });
}
