/** Saves a recording made in this browser as a file. */

import { download, toast } from './dom.js';

/** @param {Blob} blob @param {string} name */
export function saveRecording(blob, name) {
  download(blob, `${name}.${blob.type.includes('wav') ? 'wav' : blob.type.includes('mp4') ? 'mp4' : 'webm'}`);
  toast('toast.saved');
}
