/**
 * A conversation in turns, hands free.
 *
 *   listening ─vad true→ hearing ─vad false→ listening
 *   listening ─generating→ thinking ─first sound→ speaking ─turn done, last sample heard, 800 ms→ listening
 *
 * The microphone is sent only while listening or hearing: the assistant must not hear itself. The 800 ms
 * let the room fall silent. Source: service.md 4.3. Where the person wants to be able to
 * interrupt, it is sent all the time, and the server distinguishes speech from echo.
 */

import { HalfDuplexClient } from '../wire/half-duplex.js';
import { PIECE_SAMPLES } from '../wire/sound.js';
import { Call } from './call.js';
import { HeadStart } from './head-start.js';

const RESUME_AFTER_MS = 800;
/** Of what is heard. */
const SAMPLES_PER_MS = 24;

/**
 * @typedef {import('./state.js').Order & {
 *   options: (said: string) => Omit<import('../wire/protocol.js').half_duplex.HalfDuplexPrepare, 'type'>,
 *   connection?: object,
 *   isPushToTalk?: boolean,
 *   mayInterrupt?: boolean,
 *   trailingMs?: number,
 * }} HalfDuplexOrder `options` are made for each connection, with what was said before it;
 *   `trailingMs`: the silence by which the server finds the end when the button is let go
 */

/** @extends {Call<HalfDuplexOrder>} */
export class HalfDuplexCall extends Call {
  /** @type {HalfDuplexClient | null} */
  client = null;
  lastSentAt = 0;
  metrics = { turns: 0, speechMs: 0 };
  #isSending = false;
  #isHeld = false;
  /** Units of silence that still follow. */
  #trailing = 0;
  #hasSound = false;
  #headStart = new HeadStart();
  /** When the sound of the answer will have been heard that has come, if it is heard as it comes. */
  #heardAt = 0;
  #isTurnDone = true;
  #isHeard = true;
  /** When the answer that is being made last gave a sign of itself; 0: none is. */
  #signAt = 0;
  /** @type {any} */
  #timer = null;

  /** @param {HalfDuplexOrder} order @param {string} said */
  makeClient({ options, connection }, said) {
    return new HalfDuplexClient(options(said), connection);
  }

  /** @param {HalfDuplexClient} client @param {AbortSignal} signal */
  wire(client, signal) {
    /** @type {typeof client.on} */
    const on = (type, act) => client.on(type, act, signal);
    on('hearing', (speaking) => {
      if (this.#isSending) this.set({ activity: speaking ? 'hearing' : 'listening' });
    });
    on('generating', ({ speechMs }) => {
      this.turn = this.rig.newTurn();
      this.#signAt = this.now();
      this.#isSending &&= this.order?.mayInterrupt ?? false;
      this.#hasSound = false;
      this.#isTurnDone = false;
      this.#isHeard = false;
      this.metrics.speechMs = speechMs;
      // A turn that was written has its words already.
      if (speechMs > 0) this.captions.you('caption.you_spoke', { seconds: speechMs / 1000 });
      this.set({ activity: 'thinking' });
    });
    on('delta', ({ text, audio }) => {
      if (this.#isTurnDone) return;
      this.#signAt = this.now();
      this.captions.add(this.turn, text, audio.length);
      if (audio.length === 0) return;
      this.#time(audio.length);
      this.#hasSound = true;
      this.rig.play(this.turn, audio);
    });
    on('interruption', ({ state, text }) => this.#onInterruption(state, text));
    on('turn', ({ text, wasInterrupted, hasFailed }) => {
      this.metrics.turns++;
      this.#signAt = 0;
      this.#isTurnDone = true;
      if (!this.#hasSound && text) this.captions.add(this.turn, '', 0);
      if (wasInterrupted) this.captions.interrupt(this.turn);
      else this.captions.complete(this.turn);
      if (hasFailed) this.captions.note('note.turn_failed');
      this.rig.endTurn(this.turn);
      if (!this.#hasSound || this.#isHeard) this.#resumeAfter(this.#hasSound ? RESUME_AFTER_MS : 0);
    });
  }

  /** How late the next sound of an answer has come. @param {number} samples */
  #time(samples) {
    if (this.#hasSound) this.#headStart.answered(this.now() - this.#heardAt);
    else {
      this.#heardAt = this.now();
      this.rig.setPlaybackDelay(this.#headStart.ms(0, this.order?.delay));
    }
    this.#heardAt += samples / SAMPLES_PER_MS;
  }

  /**
   * @param {'suspected' | 'dismissed' | 'stopped'} state
   * @param {string} text what was heard of the answer, and all that the model remembers of it
   */
  #onInterruption(state, text) {
    this.rig.duck(state === 'suspected');
    if (state !== 'stopped') return;
    this.#hasSound = false;
    this.rig.flush();
    this.captions.interrupt(this.turn, text);
    if (this.#isTurnDone) this.#resumeAfter(0);
  }

  onReady() {
    this.#listen();
  }

  onGap() {
    this.#headStart.gap();
  }

  onCut() {
    this.#isSending = false;
    this.#isTurnDone = true;
    this.#signAt = 0;
    this.clearTimer(this.#timer);
  }

  /** An answer that has started and does not come, or sound that cannot leave. */
  waitingMs() {
    const stuck = this.client?.stuckMs() ?? 0;
    return Math.max(stuck, this.#signAt > 0 ? this.now() - this.#signAt : 0);
  }

  #listen() {
    if (!this.isLive) return;
    if (!this.#isSending) this.#send();
    // Whoever began to speak before the last sample had been heard is heard already.
    if (this.state.activity !== 'hearing') this.set({ activity: 'listening' });
  }

  #send() {
    this.#isSending = true;
    this.lastSentAt = this.now();
    // Starting again drops what was gathered while the assistant was audible.
    this.rig.capture(PIECE_SAMPLES, (audio) => {
      if (this.#isSending && audio.length === PIECE_SAMPLES && this.#mayLeave()) {
        this.client?.sendAudio(audio);
        this.lastSentAt = this.now();
      }
      this.rig.recycle(audio);
    });
    if (this.order?.isPushToTalk) this.rig.mute(!this.#isHeld || this.state.isMuted);
  }

  /** True if a unit is sent. After the button is let go silence follows, so that the server finds the end. */
  #mayLeave() {
    if (this.state.isMuted) return false;
    if (!this.order?.isPushToTalk || this.#isHeld) return true;
    return this.#trailing-- > 0;
  }

  /** Push to talk: only while this is held is the person heard. @param {boolean} on */
  hold(on) {
    if (!this.order?.isPushToTalk || !this.isLive || on === this.#isHeld) return;
    this.#isHeld = on;
    this.#trailing = on ? 0 : Math.ceil(((this.order.trailingMs ?? 0) * 16) / PIECE_SAMPLES);
    this.rig.mute(!on || this.state.isMuted);
    this.emit('change', this.state);
  }

  get isHeld() {
    return this.#isHeld;
  }

  /** @param {number} ms */
  #resumeAfter(ms) {
    this.clearTimer(this.#timer);
    this.#timer = this.setTimer(() => this.#listen(), this.#isSending ? 0 : ms);
  }

  /** @param {number} turn */
  onStarted(turn) {
    if (turn !== this.turn || !this.isLive) return;
    this.set({ activity: 'speaking' });
  }

  /** @param {number} turn */
  onDrained(turn) {
    if (turn !== this.turn) return;
    this.#isHeard = true;
    if (this.#isTurnDone && this.isLive) this.#resumeAfter(RESUME_AFTER_MS);
  }

  /** Seconds until the server gives up waiting for sound; null while it is not counting. */
  idleLeftS() {
    if (!this.isLive || !this.client?.timeoutS) return null;
    return Math.max(0, this.client.timeoutS - (this.now() - this.lastSentAt) / 1000);
  }

  /**
   * Silence this answer and listen again.
   * @param {(sessionId: string) => Promise<unknown>} stopTurn asks the server to stop making it
   */
  async skip(stopTurn) {
    if (this.state.activity !== 'thinking' && this.state.activity !== 'speaking') return;
    const { turn } = this;
    const wasDone = this.#isTurnDone;
    this.#isTurnDone = true;
    this.#hasSound = false;
    this.rig.flush();
    this.captions.interrupt(turn);
    if (!wasDone) await stopTurn(this.state.sessionId).catch(() => {});
    if (this.turn === turn) this.#resumeAfter(0);
  }

  onEnded() {
    this.#isSending = false;
    this.clearTimer(this.#timer);
  }

  hangUp() {
    this.client?.end();
  }
}
