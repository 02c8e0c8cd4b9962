/** Conversations of this browser: at most twenty links to their recordings. */

const KEY = 'minicpmo45_recent_sessions';
const KEEP = 20;

/** @typedef {{id: string, appType: string, savedAt: number}} Recent */

/** @returns {Recent[]} */
export function recents() {
  try {
    const list = JSON.parse(localStorage.getItem(KEY) ?? '[]');
    return Array.isArray(list) ? list.filter((entry) => typeof entry?.id === 'string' && typeof entry.appType === 'string' && Number.isFinite(entry.savedAt)).slice(0, KEEP) : [];
  } catch {
    return [];
  }
}

/** @param {string} id @param {string} appType */
export function remember(id, appType) {
  if (!id) return;
  const list = [{ id, appType, savedAt: Date.now() }, ...recents().filter((entry) => entry.id !== id)];
  localStorage.setItem(KEY, JSON.stringify(list.slice(0, KEEP)));
}

export function forgetRecents() {
  localStorage.removeItem(KEY);
}

/** @param {string} id */
export const viewerUrl = (id) => `/s/${encodeURIComponent(id)}`;
