/**
 * Conversion of the user's files to parts of a message; files beyond the server's limits are refused with a message.
 */

import { decodeSound } from '../audio/rig.js';
import { drawJpeg, secondsOf } from '../talk/camera.js';
import { decodeBytes, decodePcm, encodeBlob, encodePcm } from '../wire/codec.js';
import { h, toast } from './dom.js';
import './player/player.js';

/** @typedef {import('../talk/chat.js').Part} Part */

/** Pictures are made smaller before they are sent. */
const LIMITS = /** @type {Record<string, number>} */ ({ image: 100e6, audio: 30e6, video: 30e6 });
const VIDEO_LIMIT_S = 60;
const IMAGE_SIDE = 1280;
const IMAGE_QUALITY = 0.85;

/** @param {File} file @returns {Promise<Part | null>} null if it was refused and the user knows why */
export async function partOf(file) {
  const kind = file.type.split('/')[0];
  const limit = LIMITS[kind];
  if (!limit) {
    toast('error.unknown_file', { name: file.name });
    return null;
  }
  if (file.size > limit) {
    toast('error.too_big', { megabytes: limit / 1e6 });
    return null;
  }
  try {
    if (kind === 'image') return await imagePart(file);
    if (kind === 'audio') return await soundPart(file);
    const { seconds, hasPictures } = await clipFacts(file);
    // Browsers and systems call a recorded voice a clip.
    if (!hasPictures) return await soundPart(file);
    if (seconds > VIDEO_LIMIT_S) {
      toast('error.video_too_long', { seconds: VIDEO_LIMIT_S });
      return null;
    }
    return { type: 'video', data: await encodeBlob(file), name: file.name, seconds };
  } catch {
    toast(kind === 'image' ? 'error.not_image' : kind === 'audio' ? 'error.not_sound' : 'error.not_video');
    return null;
  }
}

/** @param {File} file @returns {Promise<Part>} */
async function soundPart(file) {
  const samples = await decodeSound(await file.arrayBuffer());
  return { type: 'audio', data: encodePcm(samples), name: file.name, seconds: samples.length / 16000 };
}

/** @param {Blob & {name?: string}} file @returns {Promise<Part>} */
async function imagePart(file) {
  const picture = await createImageBitmap(file);
  const blob = await drawJpeg(document.createElement('canvas'), picture, picture.width, picture.height, {
    side: IMAGE_SIDE,
    quality: IMAGE_QUALITY,
  });
  picture.close();
  if (!blob) throw new Error('this picture cannot be encoded');
  return { type: 'image', data: await encodeBlob(blob), name: file.name ?? '' };
}

/** @param {File} file @returns {Promise<{seconds: number, hasPictures: boolean}>} */
async function clipFacts(file) {
  const url = URL.createObjectURL(file);
  const video = document.createElement('video');
  video.preload = 'metadata';
  try {
    await new Promise((resolve, reject) => {
      video.onloadedmetadata = resolve;
      video.onerror = () => reject(new Error('this file cannot be shown'));
      video.src = url;
    });
    return { seconds: await secondsOf(video), hasPictures: video.videoWidth > 0 };
  } finally {
    URL.revokeObjectURL(url);
  }
}

/**
 * Returns a node that shows or plays a part of a message.
 * @param {Part} part
 * @returns {HTMLElement}
 */
export function partNode(part) {
  if (part.type === 'text') return h('p', { dir: 'auto' }, part.text);
  if (part.type === 'audio') {
    const player = /** @type {import('./player/player.js').Player} */ (document.createElement('p-player'));
    player.setPcm(decodePcm(part.data), 16000);
    return player;
  }
  const bytes = decodeBytes(part.data);
  const url = URL.createObjectURL(new Blob([bytes], { type: part.type === 'image' ? 'image/jpeg' : 'video/mp4' }));
  if (part.type === 'image') {
    // Its address stays valid as long as the page, so that it can be enlarged.
    return h('img', { src: url, alt: part.name || '' });
  }
  return h('video', { src: url, controls: true, playsinline: true, 'aria-label': part.name || 'video' });
}
