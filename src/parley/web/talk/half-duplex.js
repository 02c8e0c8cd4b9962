/**
 * A conversation in turns, hands free.
 *
 *   listening ─vad true→ hearing ─vad false→ listening
 *   listening ─generating→ thinking ─first sound→ speaking ─turn done, last sample heard, 800 ms→ listening
 *
 * Microphone audio is sent only while listening or hearing, because the assistant must not hear itself. The 800 ms let
 * the room fall silent. Source: service.md 4.3. If the user wants to be able to interrupt, it is sent all the time, and
 * the server distinguishes speech from echo.
 */

import { HalfDuplexClient } from '../wire/half-duplex.js';
import { Call } from './call.js';
import { HeadStart } from './head-start.js';

const RESUME_AFTER_MS = 800;
/** Samples per ms of the assistant's audio. */
const SAMPLES_PER_MS = 24;

/**
 * @typedef {import('./state.js').Order & {
 *   options: (said: string) => Omit<import('../wire/protocol.js').half_duplex.HalfDuplexPrepare, 'type'>,
 *   connection?: object,
 *   isPushToTalk?: boolean,
 *   mayInterrupt?: boolean,
 *   trailingMs?: number,
 * }} HalfDuplexOrder `options` are created for each connection, with what was said before it; `trailingMs`: silence
 *   sent after the button is released, with which the server detects the end
 */

/** @extends {Call<HalfDuplexOrder>} */
export class HalfDuplexCall extends Call {
  /** @type {HalfDuplexClient | null} */
  client = null;
  lastSentAt = 0;
  metrics = { turns: 0, speechMs: 0 };
  #isSending = false;
  #isHeld = false;
  /** Number of units of silence still to be sent. */
  #trailing = 0;
  #hasSound = false;
  #headStart = new HeadStart();
  /** Time at which the audio received so far will have been played, if it is played on arrival. */
  #heardAt = 0;
  #isTurnDone = true;
  #isHeard = true;
  /** Time of the last message about the answer that is being generated; 0 if none is. */
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
      // A written turn already has its caption.
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

  /** Measures how late the next audio of an answer has arrived. @param {number} samples */
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
   * @param {string} text the part of the answer that was heard, and all that the model remembers of it
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

  /** Returns the ms for which an answer has been due or audio has been waiting to be sent. */
  waitingMs() {
    const stuck = this.client?.stuckMs() ?? 0;
    return Math.max(stuck, this.#signAt > 0 ? this.now() - this.#signAt : 0);
  }

  #listen() {
    if (!this.isLive) return;
    if (!this.#isSending) this.#send();
    // A user who started to speak before the last sample was heard is already being heard.
    if (this.state.activity !== 'hearing') this.set({ activity: 'listening' });
  }

  get #pieceSamples() {
    return /** @type {HalfDuplexClient} */ (this.client).sound.pieceSamples;
  }

  #send() {
    this.#isSending = true;
    this.lastSentAt = this.now();
    // Starting again discards the samples gathered while the assistant was audible.
    this.rig.capture(this.#pieceSamples, (audio) => {
      if (this.#isSending && audio.length === this.#pieceSamples && this.#mayLeave()) {
        this.client?.sendAudio(audio);
        this.lastSentAt = this.now();
      }
      this.rig.recycle(audio);
    });
    if (this.order?.isPushToTalk) this.rig.mute(!this.#isHeld || this.state.isMuted);
  }

  /**
   * True if the next unit is sent. After the button is released silence is sent, so that the server detects the end.
   */
  #mayLeave() {
    if (this.state.isMuted) return false;
    if (!this.order?.isPushToTalk || this.#isHeld) return true;
    return this.#trailing-- > 0;
  }

  /** Push to talk: the user is heard only while this is on. @param {boolean} on */
  hold(on) {
    if (!this.order?.isPushToTalk || !this.isLive || on === this.#isHeld) return;
    this.#isHeld = on;
    this.#trailing = on ? 0 : Math.ceil(((this.order.trailingMs ?? 0) * 16) / this.#pieceSamples);
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

  /** Returns the seconds until the server stops waiting for audio; null while it is not waiting. */
  idleLeftS() {
    if (!this.isLive || !this.client?.timeoutS) return null;
    return Math.max(0, this.client.timeoutS - (this.now() - this.lastSentAt) / 1000);
  }

  /**
   * Silences this answer and listens again.
   * @param {(sessionId: string) => Promise<unknown>} stopTurn requests that the server stop generating it
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
