/** Deletion of a conversation: the server's copy and this browser's entry. */

import { HttpError, request } from '../wire/http.js';
import { confirmed, toast } from './dom.js';
import { forget } from './recents.js';

/**
 * Deletes the server's copy of a recording and this browser's entry. A recording that no longer exists counts as
 * deleted.
 * @param {string} recordingId
 * @returns {Promise<boolean>} true if it is deleted
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

/**
 * Asks for confirmation, deletes and shows the result.
 * @param {string} recordingId
 * @returns {Promise<boolean>} true if it is deleted
 */
export async function forgetRecording(recordingId) {
  if (!(await confirmed('replay.delete_sure', 'action.delete'))) return false;
  const isGone = await deleteRecording(recordingId);
  toast(isGone ? 'replay.deleted' : 'replay.delete_failed');
  return isGone;
}
