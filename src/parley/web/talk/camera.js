/**
 * The camera of a video call: opened before the call, flipped, mirrored, and drawn once per unit.
 *
 * Pictures are scaled down here (the model looks at a grid of 448-pixel tiles) and encoded off the main
 * thread by the browser.
 */

import { openCamera, openScreen, release, toMediaError } from '../audio/devices.js';
import { encodeBlob } from '../wire/codec.js';

/** Long side in pixels. */
const SIDE = 896;
const SIDE_DETAILED = 1344;
const QUALITY = 0.75;
/** Maximum time to wait for a picture. A later one is omitted, so that the audio is not delayed. */
const LATE_MS = 150;
export const ZOOM_LIMIT = 4;

export class Camera extends EventTarget {
  /** @type {MediaStream | null} */
  stream = null;
  /** @type {'user' | 'environment'} */
  facing = 'user';
  isMirrored = false;
  isDetailed = false;
  /** True if the picture is frozen, in the preview and in what is sent. */
  isFrozen = false;
  /** True if a screen or window is shown in place of the camera. */
  isScreen = false;
  /** Enlargement of the centre of the picture, from 1 to 4. */
  zoom = 1;
  #canvas = document.createElement('canvas');
  /** @type {string | undefined} */
  #deviceId;

  /** @param {HTMLVideoElement} video shows the preview; pictures are taken from it */
  constructor(video) {
    super();
    this.video = video;
    video.muted = true;
    video.playsInline = true;
  }

  get isOn() {
    return this.stream !== null;
  }

  /** @param {string} [deviceId] */
  async open(deviceId) {
    const stream = await openCamera({ deviceId, facing: this.facing, isDetailed: this.isDetailed });
    this.#deviceId = deviceId;
    await this.#take(stream, false);
  }

  /** Opens a screen, a window or a tab that the user chooses; if they refuse, the previous source stays. */
  async share() {
    await this.#take(await openScreen(), true);
  }

  /** @param {MediaStream} stream @param {boolean} isScreen */
  async #take(stream, isScreen) {
    this.close();
    this.isScreen = isScreen;
    this.stream = stream;
    stream.getVideoTracks()[0].addEventListener('ended', () => {
      if (this.stream === stream) this.#lost();
    });
    this.video.srcObject = stream;
    await this.video.play().catch(() => {});
    this.dispatchEvent(new Event('change'));
  }

  /** Freezes the picture, so that it can be discussed. @param {boolean} on */
  async freeze(on) {
    this.isFrozen = on && this.isOn;
    if (this.isFrozen) this.video.pause();
    else if (this.isOn) await this.video.play().catch(() => {});
    this.dispatchEvent(new Event('change'));
  }

  /** @param {number} factor */
  setZoom(factor) {
    this.zoom = Math.max(1, Math.min(ZOOM_LIMIT, factor));
    this.dispatchEvent(new Event('change'));
  }

  #lost() {
    this.stream = null;
    this.isFrozen = this.isScreen = false;
    this.dispatchEvent(new Event('lost'));
    this.dispatchEvent(new Event('change'));
  }

  /** Switches to the camera on the other side; stays as it is if there is none. @returns {Promise<boolean>} */
  async flip() {
    const before = this.facing;
    this.facing = before === 'user' ? 'environment' : 'user';
    const old = this.stream;
    // Phones open only one camera at a time, so this one is released first.
    release(old);
    this.stream = null;
    try {
      await this.open();
      return true;
    } catch {
      this.facing = before;
      await this.open(this.#deviceId).catch((error) => {
        this.#lost();
        throw toMediaError(error, 'camera');
      });
      return false;
    }
  }

  get hasTorch() {
    const track = this.stream?.getVideoTracks()[0];
    return Boolean(/** @type {any} */ (track?.getCapabilities?.())?.torch);
  }

  /** @param {boolean} on */
  async torch(on) {
    await this.stream?.getVideoTracks()[0].applyConstraints(/** @type {any} */ ({ advanced: [{ torch: on }] }));
  }

  /** Returns the current picture. @returns {Promise<string | null>} base64 JPEG; null if there is none in time */
  async frame() {
    if (!this.isOn || document.hidden) return null;
    const late = new Promise((resolve) => setTimeout(() => resolve(null), LATE_MS));
    return /** @type {string | null} */ (await Promise.race([this.#draw(), late]));
  }

  async #draw() {
    const { video } = this;
    const { videoWidth: width, videoHeight: height } = video;
    if (!width || !height) return null;
    const blob = await drawJpeg(this.#canvas, video, width, height, {
      isDetailed: this.isDetailed,
      isMirrored: this.isMirrored,
      zoom: this.zoom,
    });
    return blob ? await encodeBlob(blob) : null;
  }

  close() {
    release(this.stream);
    this.stream = null;
    this.isFrozen = this.isScreen = false;
    this.zoom = 1;
    this.video.srcObject = null;
    this.dispatchEvent(new Event('change'));
  }
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {CanvasImageSource} source
 * @param {number} width
 * @param {number} height
 * @param {{isDetailed?: boolean, isMirrored?: boolean, zoom?: number, side?: number, quality?: number}} [how]
 * @returns {Promise<Blob | null>}
 */
export function drawJpeg(
  canvas,
  source,
  width,
  height,
  { isDetailed = false, isMirrored = false, zoom = 1, side, quality = QUALITY } = {},
) {
  const [seenWidth, seenHeight] = [width / zoom, height / zoom];
  const scale = Math.min(1, (side ?? (isDetailed ? SIDE_DETAILED : SIDE)) / Math.max(seenWidth, seenHeight));
  canvas.width = Math.round(seenWidth * scale);
  canvas.height = Math.round(seenHeight * scale);
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d', { alpha: false }));
  if (isMirrored) pen.setTransform(-1, 0, 0, 1, canvas.width, 0);
  pen.drawImage(
    source,
    (width - seenWidth) / 2,
    (height - seenHeight) / 2,
    seenWidth,
    seenHeight,
    0,
    0,
    canvas.width,
    canvas.height,
  );
  return new Promise((resolve) => canvas.toBlob(resolve, 'image/jpeg', quality));
}

/**
 * Returns one picture per second of a clip, taken at `offset` within each second.
 * @param {string} url
 * @param {{offset?: number, limitS: number, isDetailed?: boolean, onProgress?: (part: number) => void}} how
 * @returns {Promise<string[]>} base64 JPEG
 */
export async function framesOf(url, { offset = 0.5, limitS, isDetailed, onProgress }) {
  const video = document.createElement('video');
  const canvas = document.createElement('canvas');
  video.muted = true;
  video.preload = 'auto';
  video.src = url;
  await event(video, 'loadeddata');
  const seconds = Math.min(limitS, Math.ceil(await secondsOf(video)));
  const frames = [];
  for (let second = 0; second < seconds; second++) {
    video.currentTime = Math.min(second + offset, Math.max(0, video.duration - 0.05));
    await event(video, 'seeked');
    const blob = await drawJpeg(canvas, video, video.videoWidth, video.videoHeight, { isDetailed });
    if (blob) frames.push(await encodeBlob(blob));
    onProgress?.((second + 1) / seconds);
  }
  return frames;
}

/**
 * Returns the length of a clip in seconds. Recordings made by a browser do not contain it; it is known after seeking to
 * the end.
 * @param {HTMLMediaElement} media whose metadata is loaded
 * @returns {Promise<number>}
 */
export async function secondsOf(media) {
  if (Number.isFinite(media.duration)) return media.duration;
  const found = event(media, 'durationchange');
  media.currentTime = 1e9;
  await found;
  const seconds = media.duration;
  media.currentTime = 0;
  return Number.isFinite(seconds) ? seconds : 0;
}

/** @param {HTMLMediaElement} media @param {string} name */
function event(media, name) {
  return new Promise((resolve, reject) => {
    media.addEventListener(name, resolve, { once: true });
    media.addEventListener('error', () => reject(new Error('this file cannot be shown')), { once: true });
  });
}
