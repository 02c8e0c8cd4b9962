/**
 * Replacement for storage in browsers that store nothing for a page (cookies blocked, some private windows): they throw
 * when their stores are accessed. Pages then keep values until they are closed.
 */

class Memory {
  /** @type {Map<string, string>} */
  #entries = new Map();

  /** @param {string} key */
  getItem(key) {
    return this.#entries.get(key) ?? null;
  }

  /** @param {string} key @param {string} value */
  setItem(key, value) {
    this.#entries.set(key, String(value));
  }

  /** @param {string} key */
  removeItem(key) {
    this.#entries.delete(key);
  }
}

for (const name of /** @type {const} */ (['localStorage', 'sessionStorage'])) {
  try {
    // Access may throw; writing throws if the storage has no space at all.
    globalThis[name]?.setItem('parley.try', '');
    globalThis[name]?.removeItem('parley.try');
  } catch {
    Object.defineProperty(globalThis, name, { value: new Memory(), configurable: true });
  }
}
