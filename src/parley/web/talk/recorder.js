/**
 * Recording made in the browser: both voices as a stereo WAV, or the picture with both voices. It contains what was
 * actually heard, at the time it was heard.
 */

import { resample } from '../audio/resample.js';
import { encodeWav, join } from '../audio/wav.js';

const RATE_HZ = 16000;
/** Maximum length of a recording: half an hour of two channels. The rest is not recorded. */
const LIMIT_S = 1800;

export class VoiceRecorder {
  /** @type {Float32Array[]} */
  #left = [];
  /** @type {Float32Array[]} */
  #right = [];
  #samples = 0;
  /** @type {{node: AudioWorkletNode, close: () => void} | null} */
  #tap = null;
  #rateHz = 48000;
  /** @type {() => void} */
  #stopped = () => {};

  /** @param {import('../audio/rig.js').Rig} rig */
  constructor(rig) {
    this.rig = rig;
  }

  async start() {
    this.#tap = await this.rig.listenIn();
    this.#rateHz = this.rig.context?.sampleRate ?? 48000;
    this.#tap.node.port.onmessage = ({ data }) => {
      if (data.type === 'stopped') this.#stopped();
      if (data.type !== 'block' || this.#samples > LIMIT_S * this.#rateHz) return;
      this.#left.push(data.left);
      this.#right.push(data.right);
      this.#samples += data.left.length;
    };
  }

  /** @param {boolean} on both tracks stop together */
  pause(on) {
    this.#tap?.node.port.postMessage({ type: 'pause', on });
  }

  /** @returns {Promise<Blob | null>} the user left, the assistant right; null if nothing was heard */
  async stop() {
    const tap = this.#tap;
    if (!tap) return null;
    this.#tap = null;
    if (this.rig.context?.state === 'running') {
      await new Promise((resolve) => {
        this.#stopped = () => resolve(undefined);
        tap.node.port.postMessage({ type: 'stop' });
      });
    }
    tap.close();
    if (this.#samples === 0) return null;
    const channels = [this.#left, this.#right].map((parts) => resample(join(parts), this.#rateHz, RATE_HZ));
    return new Blob([encodeWav(channels, RATE_HZ)], { type: 'audio/wav' });
  }
}

/**
 * Formats that the user can choose, by name; the first that this browser supports is used.
 * @type {Record<string, string[]>}
 */
export const RECORD_FORMATS = {
  auto: ['video/webm;codecs=vp9,opus', 'video/webm;codecs=vp8,opus', 'video/mp4', 'video/webm'],
  vp9: ['video/webm;codecs=vp9,opus'],
  vp8: ['video/webm;codecs=vp8,opus'],
  h264: ['video/webm;codecs=h264,opus', 'video/mp4;codecs=avc1,mp4a.40.2'],
  mp4: ['video/mp4'],
  audio: [],
};

export class VideoRecorder {
  /** @type {MediaRecorder | null} */
  #recorder = null;
  /** @type {Blob[]} */
  #parts = [];
  /** @type {(() => void)[]} */
  #closers = [];

  /**
   * @param {import('../audio/rig.js').Rig} rig
   * @param {HTMLVideoElement} video
   * @param {{format?: string, megabits?: number, subtitle?: (() => string) | null}} [how] a format that this browser
   *   does not support is replaced by one that it does
   */
  constructor(rig, video, { format = 'auto', megabits = 2, subtitle = null } = {}) {
    this.rig = rig;
    this.video = video;
    this.formats = [...(RECORD_FORMATS[format] ?? []), ...RECORD_FORMATS.auto];
    this.megabits = megabits;
    this.subtitle = subtitle;
  }

  async start() {
    const sound = this.rig.mixedStream();
    this.#closers.push(sound.close);
    const picture = this.subtitle
      ? this.#canvasTrack(this.subtitle)
      : /** @type {MediaStream | null} */ (this.video.srcObject)?.getVideoTracks()[0];
    const stream = new MediaStream([...(picture ? [picture] : []), ...sound.stream.getAudioTracks()]);
    const mimeType = this.formats.find((format) => MediaRecorder.isTypeSupported(format));
    this.#recorder = new MediaRecorder(stream, { mimeType, videoBitsPerSecond: this.megabits * 1e6 });
    this.#recorder.ondataavailable = ({ data }) => {
      if (data.size > 0) this.#parts.push(data);
    };
    this.#recorder.start(1000);
  }

  /** Returns a track of the picture with the current subtitle over its lower quarter. @param {() => string} subtitle */
  #canvasTrack(subtitle) {
    const canvas = document.createElement('canvas');
    canvas.width = this.video.videoWidth || 1280;
    canvas.height = this.video.videoHeight || 720;
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d', { alpha: false }));
    const draw = () => {
      pen.drawImage(this.video, 0, 0, canvas.width, canvas.height);
      const text = subtitle();
      if (!text) return;
      const size = Math.round(canvas.height / 18);
      pen.font = `600 ${size}px sans-serif`;
      pen.textAlign = 'center';
      const lines = wrap(pen, text, canvas.width * 0.9).slice(-2);
      const shade = pen.createLinearGradient(0, canvas.height * 0.75, 0, canvas.height);
      shade.addColorStop(0, 'rgb(0 0 0 / 0.15)');
      shade.addColorStop(1, 'rgb(0 0 0 / 0.9)');
      pen.fillStyle = shade;
      pen.fillRect(0, canvas.height * 0.75, canvas.width, canvas.height * 0.25);
      pen.fillStyle = '#fff';
      for (const [i, line] of lines.entries()) {
        pen.fillText(line, canvas.width / 2, canvas.height - size * (lines.length - i) * 1.2 + size * 0.4);
      }
    };
    const timer = setInterval(draw, 1000 / 15);
    this.#closers.push(() => clearInterval(timer));
    return canvas.captureStream(15).getVideoTracks()[0];
  }

  /** @param {boolean} on */
  pause(on) {
    if (on && this.#recorder?.state === 'recording') this.#recorder.pause();
    if (!on && this.#recorder?.state === 'paused') this.#recorder.resume();
  }

  /** @returns {Promise<Blob | null>} */
  async stop() {
    const recorder = this.#recorder;
    if (!recorder) return null;
    this.#recorder = null;
    if (recorder.state !== 'inactive') {
      await new Promise((resolve) => {
        recorder.onstop = resolve;
        recorder.stop();
      });
    }
    for (const close of this.#closers) close();
    return this.#parts.length > 0 ? new Blob(this.#parts, { type: recorder.mimeType.split(';')[0] }) : null;
  }
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} width */
function wrap(pen, text, width) {
  const lines = [''];
  for (const piece of text.match(/[\p{Script=Latin}\p{N}'’-]+\s*|./gu) ?? []) {
    if (pen.measureText(lines[lines.length - 1] + piece).width > width && lines[lines.length - 1]) lines.push('');
    lines[lines.length - 1] += piece;
  }
  return lines;
}
