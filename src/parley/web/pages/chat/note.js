/** Voice notes: tap to record and tap to finish, or hold and release to send; drag up to cancel. */

import { mayBegin } from '../../elements/consent.js';
import { say } from '../../elements/dom.js';
import { mediaNotice, notice } from '../../elements/notice.js';
import { join } from '../../audio/wav.js';
import { encodePcm } from '../../wire/codec.js';
import { clock } from '../../words/words.js';

/** Minimum time of a press that counts as push-to-talk; a shorter one switches recording on and off. */
const HOLD_MS = 300;
/** Distance to drag up that cancels the recording. */
const CANCEL_PX = 80;
const LIMIT_S = 120;
/** Minimum duration of a recording; a shorter one was a slip of the finger. */
const LEAST_S = 0.28;
const RATE_HZ = 16000;
/** Samples per piece of microphone audio, a tenth of a second. */
const STEP = RATE_HZ / 10;

export class VoiceNote {
  /** @type {Float32Array[] | null} */
  #parts = null;
  #isStarting = false;
  #heldSince = 0;
  #wasRunning = false;
  #ways = [{ words: 'action.dismiss', act: () => this.notices.replaceChildren() }];

  /**
   * @param {import('./parts.js').ChatPage} page
   * @param {{label: HTMLElement, notices: HTMLElement,
   *   done: (part: import('../../talk/chat.js').Part, isSent: boolean) => void}} around
   */
  constructor(page, { label, notices, done }) {
    this.page = page;
    this.label = label;
    this.notices = notices;
    this.done = done;
  }

  get isRunning() {
    return this.#parts !== null;
  }

  async start() {
    const { rig, talk, changed } = this.page;
    if (this.#parts || this.#isStarting || talk.isBusy) return;
    this.#isStarting = true;
    rig.flush();
    try {
      if (!(await mayBegin({ microphone: true }))) return;
      await rig.connectMicrophone();
    } catch (error) {
      this.#refused(/** @type {any} */ (error).trouble ?? 'failed');
      return;
    } finally {
      this.#isStarting = false;
    }
    navigator.vibrate?.(15);
    /** @type {Float32Array[]} */
    const parts = [];
    this.#parts = parts;
    rig.capture(STEP, (audio) => {
      parts.push(audio.slice());
      if (audio.length === STEP) rig.recycle(audio);
      say(this.label, 'chat.recording', { time: clock(parts.length / 10) });
      if (parts.length > LIMIT_S * 10) void this.stop('attach');
    });
    changed();
  }

  /** @param {import('../../audio/devices.js').MediaTrouble} trouble */
  #refused(trouble) {
    this.notices.replaceChildren(mediaNotice({ trouble, device: 'microphone' }, this.#ways));
  }

  /** @param {'attach' | 'send' | 'cancel'} then */
  async stop(then) {
    const parts = this.#parts;
    if (!parts) return;
    this.#parts = null;
    await this.page.rig.stopCapture();
    this.page.rig.releaseMicrophone();
    const samples = join(parts);
    const seconds = samples.length / RATE_HZ;
    if (then !== 'cancel' && seconds >= LEAST_S) {
      if (samples.some(Boolean)) this.done({ type: 'audio', data: encodePcm(samples), seconds }, then === 'send');
      else this.notices.replaceChildren(notice('warn', 'media.no_sound', 'media.no_sound_fix', { ways: this.#ways }));
    }
    this.page.changed();
  }

  holdFrom() {
    this.#heldSince = performance.now();
    this.#wasRunning = this.isRunning;
    if (!this.#wasRunning) void this.start();
  }

  holdUntil() {
    if (this.#heldSince === 0) return;
    const heldMs = performance.now() - this.#heldSince;
    this.#heldSince = 0;
    if (this.#wasRunning) void this.stop('attach');
    else if (heldMs >= HOLD_MS) void this.stop('send');
  }

  /** @param {HTMLButtonElement} button @param {HTMLElement} form shows that releasing cancels the recording */
  listenTo(button, form) {
    let pressedAt = 0;
    button.onpointerdown = (event) => {
      if (event.button !== 0) return;
      button.setPointerCapture(event.pointerId);
      pressedAt = event.clientY;
      this.holdFrom();
    };
    button.onpointermove = (event) => {
      const isFar = pressedAt - event.clientY > CANCEL_PX;
      form.toggleAttribute('data-cancel', this.isRunning && this.#heldSince > 0 && isFar);
    };
    button.onpointerup = () => {
      if (!form.hasAttribute('data-cancel')) return this.holdUntil();
      form.removeAttribute('data-cancel');
      this.#heldSince = 0;
      void this.stop('cancel');
    };
    const isPress = (/** @type {KeyboardEvent} */ event) => event.key === 'Enter' || event.key === ' ';
    button.onkeydown = (event) => {
      if (!isPress(event) || event.repeat) return;
      event.preventDefault();
      this.holdFrom();
    };
    button.onkeyup = (event) => {
      if (isPress(event)) this.holdUntil();
    };
  }
}
