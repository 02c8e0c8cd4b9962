/** Conversations of this browser, with links to their recordings. */

const KEY = 'minicpmo45_recent_sessions';
const KEEP = 200;

/**
 * @typedef {{id: string, appType: string, savedAt: number, name?: string, words?: string, seconds?: number}} Recent
 *   `name`: set by the user; `words`: the first words that were said; `seconds`: the duration
 */

/** @returns {Recent[]} */
export function recents() {
  try {
    const list = JSON.parse(localStorage.getItem(KEY) ?? '[]');
    return Array.isArray(list)
      ? list
          .filter(
            (entry) =>
              typeof entry?.id === 'string' && typeof entry.appType === 'string' && Number.isFinite(entry.savedAt),
          )
          .slice(0, KEEP)
      : [];
  } catch {
    return [];
  }
}

/** @param {string} id @param {string} appType */
export function remember(id, appType) {
  if (!id) return;
  const list = recents();
  const before = list.find((entry) => entry.id === id);
  const rest = list.filter((entry) => entry.id !== id);
  localStorage.setItem(KEY, JSON.stringify([{ ...before, id, appType, savedAt: Date.now() }, ...rest].slice(0, KEEP)));
}

/** Adds details to a conversation. @param {string} id @param {{name?: string, words?: string, seconds?: number}} more */
export function describe(id, more) {
  const list = recents().map((entry) => (entry.id === id ? { ...entry, ...more } : entry));
  localStorage.setItem(KEY, JSON.stringify(list));
}

/** @param {string} id @param {string} name empty: removes the name */
export const rename = (id, name) => describe(id, { name: name.trim() || undefined });

/** @param {string} id */
export function forget(id) {
  localStorage.setItem(KEY, JSON.stringify(recents().filter((entry) => entry.id !== id)));
}

/** @param {string} id */
export const viewerUrl = (id) => `/s/${encodeURIComponent(id)}`;
