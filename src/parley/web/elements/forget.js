/** Deleting a conversation: the server's copy and this browser's entry for it. */

import { HttpError, request } from '../wire/http.js';
import { confirmed, toast } from './dom.js';
import { forget } from './recents.js';

/**
 * The server's copy of a recording, and the entry for it here. A recording that is gone already counts
 * as deleted.
 * @param {string} recordingId
 * @returns {Promise<boolean>} whether it is gone
 */
export async function deleteRecording(recordingId) {
  try {
    const token = sessionStorage.getItem('parley.admin') ?? undefined;
    await request(`/api/sessions/${encodeURIComponent(recordingId)}`, { method: 'DELETE', token });
  } catch (error) {
    if (!(error instanceof HttpError && error.status === 404)) return false;
  }
  forget(recordingId);
  return true;
}

/** Ask, delete, and say how it went. @param {string} recordingId @returns {Promise<boolean>} whether it is gone */
export async function forgetRecording(recordingId) {
  if (!(await confirmed('replay.delete_sure', 'action.delete'))) return false;
  const isGone = await deleteRecording(recordingId);
  toast(isGone ? 'replay.deleted' : 'replay.delete_failed');
  return isGone;
}
