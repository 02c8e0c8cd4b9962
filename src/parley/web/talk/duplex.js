/**
 * A call in full duplex: one result per second, and both sides may speak at any time. Microphone audio is sent in short
 * pieces, so that the server quickly detects that the user interrupts or has finished; audio of a file is sent in whole
 * seconds.
 *
 * Turns: the first speaking unit after listening, or after a unit marked as last, starts one. If the model listens
 * again without having ended its turn, it was interrupted, and queued playback is dropped within 40 ms. If it had ended
 * the turn, the rest is played.
 *
 * Pause: the duplex dialect confirms it, and it is complete when the voice has also ended. Realtime has no message for
 * it: the client stops sending units.
 */

import { EchoWatch } from '../audio/echo.js';
import { DuplexClient, UNIT_SAMPLES } from '../wire/duplex.js';
import { RealtimeClient } from '../wire/realtime.js';
import { Call } from './call.js';
import { HeadStart } from './head-start.js';
import { freshMetrics } from './metrics.js';
import { QualityMeter } from './quality.js';

/**
 * @typedef {import('./state.js').Order & {
 *   dialect: 'duplex' | 'realtime',
 *   mode: 'audio' | 'video',
 *   options: (said: string) => import('../wire/duplex.js').DuplexOptions,
 *   connection?: object,
 *   limitS?: number | null,
 *   sound?: 'mic' | 'file' | 'mixed',
 *   feed?: import('./files.js').FileFeed | null,
 *   frame?: (() => Promise<string | null>) | null,
 *   slices?: () => number,
 * }} DuplexOrder `options` are created for each connection, with what was said before it; `limitS`: the server's own
 *   limit, if it reports one; `frame`: returns the camera's current picture, base64 JPEG
 */

/** Maximum number of seconds in flight; the server has dropped any older ones. */
const SENT_LIMIT = 30;
/** Number of answers over which the transit time is compared; it limits the effect of a clock that is adjusted. */
const TRANSITS = 30;

/** Time after which speech without an answer counts as not meant for the assistant. */
const DUE_MS = 3000;

/**
 * @typedef {object} DuplexCallEvents in addition to those of `Call`
 * @property {{index: number, frame: string | null, levels: import('./files.js').Levels | null}} unit
 * @property {import('./metrics.js').DuplexMetrics & {isSpeaking: boolean}} metrics
 */

/** @extends {Call<DuplexOrder, import('./kind.js').CallEvents & DuplexCallEvents>} */
export class DuplexCall extends Call {
  /** @type {DuplexClient | RealtimeClient | null} */
  client = null;
  /** @type {import('./metrics.js').DuplexMetrics} */
  metrics = freshMetrics();
  #quality = new QualityMeter();
  #headStart = new HeadStart();
  #echo = new EchoWatch();
  #hasEcho = false;
  #isTurnOpen = false;
  #isHushing = false;
  #forceNext = false;
  #turnFirstAt = 0;
  #firstTransit = NaN;
  /** Our clock minus the server's for each of the last answers, in ms. @type {number[]} */
  #transits = [];
  /** Number of samples of the current second that have been sent. */
  #sent = 0;
  /** Times at which the seconds that have no answer yet were sent. @type {number[]} */
  #sentAt = [];
  #answeredAt = 0;
  #droppedBefore = 0;
  #isServerPaused = false;
  /**
   * Activity until an answer arrives: the server hears the user's turn, or has all of it.
   * @type {'hearing' | 'thinking'}
   */
  #due = 'hearing';
  #dueUntil = 0;
  /** @type {any} */
  #timer = null;
  #nextTick = 0;
  /** Chain of pending units: they are sent in order although pictures take time. @type {Promise<void>} */
  #outbox = Promise.resolve();

  /** @param {DuplexOrder} order @param {string} said */
  makeClient({ dialect, mode, options, connection, limitS }, said) {
    const Client = dialect === 'realtime' ? RealtimeClient : DuplexClient;
    const client = new Client(options(said), mode, connection);
    if (limitS !== undefined) client.limitS = limitS;
    this.metrics.contextTokens = 0;
    return client;
  }

  /** @param {DuplexClient | RealtimeClient} client @param {AbortSignal} signal */
  wire(client, signal) {
    /** @type {typeof client.on} */
    const on = (type, act) => client.on(type, act, signal);
    on('listen', (result) => this.#onListen(result));
    on('speak', (result) => this.#onSpeak(result));
    on('heard_text', ({ isFinal }) => this.#onHeard(isFinal));
    on('interruption', ({ state }) => this.#onInterruption(state));
    on('paused', () => {
      this.#isServerPaused = true;
      this.#settlePause();
    });
    on('resumed', () => this.#goOn());
    on('dropped', (dropped) => {
      this.metrics.dropped = this.#droppedBefore + dropped;
      this.#quality.dropped(this.now());
    });
  }

  onReady() {
    this.#isServerPaused = false;
    this.#sentAt.length = this.#transits.length = 0;
    this.#feed();
  }

  onReturned() {
    this.#sentAt.length = this.#transits.length = 0;
  }

  onCut() {
    this.clearTimer(this.#timer);
    this.#droppedBefore = this.metrics.dropped;
    this.#isTurnOpen = this.#isHushing = false;
    this.rig.duck(false);
  }

  // Sending

  #feed() {
    if (this.order?.sound === 'file') {
      this.#nextTick = this.now() + 1000;
      this.#tick();
      return;
    }
    const client = /** @type {DuplexClient | RealtimeClient} */ (this.client);
    this.rig.capture(this.order?.feed ? UNIT_SAMPLES : client.sound.pieceSamples, (audio, final) => {
      if (!final && this.isLive) this.#unit(audio);
      else this.rig.recycle(audio);
    });
  }

  /** Sends units of a file, which has no sound card's clock, with a timer that does not drift. */
  #tick() {
    this.#timer = this.setTimer(
      () => {
        if (!this.isOn) return;
        this.#nextTick += 1000;
        if (this.isLive) this.#unit(null);
        this.#tick();
      },
      Math.max(0, this.#nextTick - this.now()),
    );
  }

  /** @param {Float32Array<ArrayBuffer> | null} mic */
  #unit(mic) {
    const { feed, frame, slices, sound = 'mic' } = /** @type {DuplexOrder} */ (this.order);
    const taken = feed?.next(sound === 'file' ? null : mic, this.state.isMuted);
    const audio = taken?.audio ?? mic;
    if (!audio) return;
    if (feed && !taken && sound === 'file') return;
    const sent = this.#sent + audio.length;
    const endsSecond = sent >= UNIT_SAMPLES;
    this.#sent = sent % UNIT_SAMPLES;
    const seen = endsSecond ? frame?.() : null;
    const picture = Promise.resolve(taken?.frame === undefined ? seen : taken.frame);
    this.#outbox = this.#outbox.then(async () => {
      // A camera that does not respond must not delay the audio.
      const image = (await picture.catch(() => null)) ?? null;
      if (!this.isLive) return;
      const forceListen = this.state.isForcingListen || this.#forceNext;
      this.#forceNext = false;
      this.client?.sendUnitOf({ audio, frames: image ? [image] : undefined, forceListen, slices: slices?.() });
      if (mic) this.rig.recycle(mic);
      if (!endsSecond) return;
      this.#sentAt.push(this.now());
      if (this.#sentAt.length > SENT_LIMIT) this.#sentAt.shift();
      this.metrics.units++;
      this.emit('unit', { index: this.metrics.units, frame: image, levels: taken?.levels ?? null });
    });
  }

  // Receiving

  /** @param {{contextTokens: number, costs: import('../wire/duplex.js').Costs}} result */
  #onListen(result) {
    this.#account(result, false);
    this.#isHushing = false;
    if (this.#isTurnOpen) {
      this.#isTurnOpen = false;
      this.rig.flush();
      this.captions.interrupt(this.turn);
      this.#activity(this.#resting());
    } else if (!this.position?.sounding) {
      this.#activity(this.#resting());
    }
  }

  /** @param {{text: string, audio: Float32Array<ArrayBuffer>, isLast: boolean, contextTokens: number, costs: import('../wire/duplex.js').Costs}} result */
  #onSpeak(result) {
    this.#account(result, true);
    // This answers a unit that was in flight when silence was requested.
    if (this.#isHushing || this.state.isForcingListen) return;
    this.#dueUntil = 0;
    if (!this.#isTurnOpen) {
      this.#isTurnOpen = true;
      this.turn = this.rig.newTurn();
      this.rig.setPlaybackDelay(this.#headStart.ms(this.metrics.responseMs ?? 0, this.order?.delay));
      this.metrics.turns++;
      this.#turnFirstAt = this.now();
    }
    const { text, audio, isLast } = result;
    const { turn } = this;
    this.captions.add(turn, text, audio.length);
    if (audio.length > 0) this.rig.play(turn, audio, isLast);
    else if (isLast) this.rig.endTurn(turn);
    if (isLast) {
      this.captions.complete(turn);
      this.#isTurnOpen = false;
    }
    this.#activity('speaking');
  }

  /** @param {{contextTokens: number, costs: import('../wire/duplex.js').Costs}} result @param {boolean} isSpeaking */
  #account({ contextTokens, costs }, isSpeaking) {
    const { metrics } = this;
    const sentAt = this.#sentAt.shift();
    this.#answeredAt = this.now();
    const lateMs = costs.sentAt ? this.#lateMs(Date.now() - costs.sentAt * 1000) : 0;
    if (costs.wallMs) metrics.responseMs = costs.wallMs + lateMs;
    else metrics.responseMs = sentAt === undefined ? null : this.now() - sentAt;
    if (metrics.responseMs !== null) {
      this.#quality.answered(metrics.responseMs);
      if (!isSpeaking || this.#isTurnOpen) this.#headStart.answered(metrics.responseMs, isSpeaking);
    }
    metrics.contextTokens = contextTokens;
    metrics.costMs = costs.wallMs ?? costs.allMs ?? null;
    metrics.slices = costs.slices ?? metrics.slices;
    this.emit('metrics', { ...metrics, isSpeaking });
  }

  /** Returns by how many ms the transit of one answer exceeded the fastest of the last ones. @param {number} transit */
  #lateMs(transit) {
    if (Number.isNaN(this.#firstTransit)) this.#firstTransit = transit;
    this.metrics.driftMs = transit - this.#firstTransit;
    this.#transits.push(transit);
    if (this.#transits.length > TRANSITS) this.#transits.shift();
    return transit - Math.min(...this.#transits);
  }

  /** @param {import('./state.js').Activity} activity */
  #activity(activity) {
    if (this.isLive && this.state.activity !== activity) this.set({ activity });
  }

  /** @param {boolean} isFinal */
  #onHeard(isFinal) {
    if (this.#isTurnOpen || this.position?.sounding) return;
    this.#due = isFinal ? 'thinking' : 'hearing';
    this.#dueUntil = this.now() + DUE_MS;
    this.#activity(this.#due);
  }

  #resting() {
    return this.now() < this.#dueUntil ? this.#due : 'listening';
  }

  /** @param {import('../audio/rig.js').Position} position */
  onPosition(position) {
    this.metrics.aheadMs = position.aheadMs;
    this.metrics.gaps = position.gaps;
    this.metrics.shiftMs = position.shiftMs;
    if (position.sounding) return;
    if (!this.#isTurnOpen) this.#activity(this.#resting());
    this.#settlePause();
  }

  onGap() {
    this.#quality.gap(this.now());
    this.#headStart.gap();
  }

  /** @param {number} mic @param {number} voice */
  onLevel(mic, voice) {
    if (this.isLive && voice > 0 && this.#echo.note(mic, voice)) this.#hasEcho = true;
  }

  /** @param {'suspected' | 'dismissed' | 'stopped'} state */
  #onInterruption(state) {
    this.rig.duck(state === 'suspected');
    if (state === 'stopped' && (this.#isTurnOpen || this.position?.sounding)) this.#hush();
  }

  /** True if the microphone picks up the loudspeaker, in which case headphones would help. */
  get hasEcho() {
    return this.#hasEcho;
  }

  /** @param {number} turn */
  onStarted(turn) {
    if (turn === this.turn) this.metrics.playDelayMs = this.now() - this.#turnFirstAt;
  }

  /** @param {number} turn */
  onDrained(turn) {
    if (turn === this.turn && !this.#isTurnOpen) this.#activity(this.#resting());
    this.#settlePause();
  }

  // Requests of the user

  /** Makes the assistant silent and listening until this is switched off. @param {boolean} on */
  forceListen(on) {
    this.set({ isForcingListen: on });
    if (on) this.#hush();
  }

  /** Silences the current answer. */
  interrupt() {
    this.#forceNext = true;
    this.#hush();
  }

  #hush() {
    this.rig.flush();
    this.rig.duck(false);
    if (this.#isTurnOpen || this.position?.sounding) this.captions.interrupt(this.turn);
    this.#isHushing = this.#isTurnOpen;
    this.#isTurnOpen = false;
    this.#dueUntil = 0;
    this.#activity('listening');
  }

  pause() {
    if (!this.isLive) return;
    this.#isServerPaused = !this.client?.canPause;
    this.set({ phase: 'pausing' });
    this.pauseRecording(true);
    this.client?.pause();
    this.#settlePause();
  }

  #settlePause() {
    if (this.state.phase !== 'pausing' || !this.#isServerPaused || this.position?.sounding) return;
    this.set({ phase: 'paused' });
  }

  resume() {
    if (this.state.phase !== 'paused' && this.state.phase !== 'pausing') return;
    if (this.client?.canPause) this.client.resume();
    else this.#goOn();
  }

  #goOn() {
    this.#isServerPaused = false;
    this.#sentAt.length = 0;
    if (this.state.phase !== 'paused' && this.state.phase !== 'pausing') return;
    this.pauseRecording(false);
    this.set({ phase: 'live', activity: 'listening' });
  }

  /** Returns the ms since the last answer, or since the oldest unanswered second was sent. */
  waitingMs() {
    const [oldest] = this.#sentAt;
    return oldest === undefined ? 0 : this.now() - Math.max(oldest, this.#answeredAt);
  }

  /**
   * Returns the quality of the call; null unless it is live and connected.
   * @returns {import('./quality.js').Quality | null}
   */
  quality() {
    const isConnected = this.isLive && !this.state.isReturning;
    return isConnected ? this.#quality.grade(this.now(), this.waitingMs()) : null;
  }

  onEnded() {
    this.clearTimer(this.#timer);
  }

  hangUp() {
    this.client?.diagnose({ ...this.metrics });
    this.client?.end();
  }
}
