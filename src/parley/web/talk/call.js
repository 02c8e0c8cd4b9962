/**
 * One call, from the click to its end, with its state, its captions and its connections. A page creates a new object
 * for each call, so no state of an earlier one remains.
 *
 * The state changes in the click itself (`starting`), before anything is awaited, so a second click finds a busy call.
 * The microphone is requested before a slot on a server is taken. If the connection is lost during the call, if the
 * server does not answer or if its context is full, the call reconnects and passes on what was said.
 *
 * Does not use the DOM. All audio goes through `rig` and all messages through `client`; tests pass their own. State
 * flows one way: events → `state` → 'change'.
 */

import { Captions } from './captions.js';
import { CallKind } from './kind.js';
import { isBusyIn, isOnIn, mayFollow } from './phases.js';
import { Presence } from './presence.js';
import { Redials, serviceAfter } from './service.js';
import { freshState } from './state.js';

/** @typedef {import('./state.js').CallState} CallState */
/** @typedef {import('./state.js').Ending} Ending */
/** @typedef {import('./state.js').Trouble} Trouble */

/** Time without dropped audio after which the page stops reporting a slow network. */
const SLOW_SHOWN_MS = 15_000;
/** Interval at which the age of the last answer is checked. */
const WATCH_MS = 1000;
/** Time without a level after which the microphone counts as dead; even a silent one reports 20 levels a second. */
const NO_SOUND_MS = 2500;
/** Time within which a microphone that is lost again is not replaced automatically. */
const MIC_LOST_MS = 2000;
/** Pause before a lost call reconnects. */
const REDIAL_PAUSE_MS = 500;
/** Minimum time until the context is full; if it fills up faster, it is too small to continue the call. */
const RENEW_AFTER_MS = 20_000;
/** Maximum time without a network, after which the call ends. */
const OFFLINE_LIMIT_MS = 60_000;

/**
 * @template {import('./state.js').Order} O
 * @template {import('./kind.js').CallEvents} [Events=import('./kind.js').CallEvents]
 * @extends {CallKind<O, Events>}
 */
export class Call extends CallKind {
  /** @type {CallState} */
  state = freshState();
  captions = new Captions();
  /** @type {O | null} */
  order = null;
  /** @type {import('../wire/connection.js').Connection | null} */
  client = null;
  /** The assistant's latest turn, numbered by the rig. */
  turn = 0;
  /** @type {import('../audio/rig.js').Position | null} */
  position = null;
  micLevel = 0;
  /** True if the page is hidden. */
  isAway = () => false;
  /** @type {Blob | null} */
  recorded = null;
  /** @type {import('./state.js').Recorder | null} */
  #recorder = null;
  #hasWaited = false;
  #presence;
  /** @type {{slow: any, watch: any, dial: any}} */
  #timers = { slow: null, watch: null, dial: null };
  #redials = new Redials();
  #wasPaused = false;
  #hasBeenLive = false;
  #readyAt = 0;
  #levelAt = 0;
  #lostMicAt = -Infinity;
  /** Aborted at the end of the call. */
  #life = new AbortController();
  /** Aborted at the end of a connection. */
  #line = new AbortController();
  /** Aborted when the last sentence has been heard, which may be after the end of the call. */
  #listening = new AbortController();

  /** @param {import('./state.js').Sound} rig @param {import('./state.js').Surroundings} [surroundings] */
  constructor(rig, surroundings = {}) {
    super();
    this.rig = rig;
    this.now = surroundings.now ?? (() => performance.now());
    this.setTimer = surroundings.setTimer ?? ((callback, ms) => setTimeout(callback, ms));
    this.clearTimer = surroundings.clearTimer ?? ((timer) => clearTimeout(timer));
    this.#presence = new Presence(this);
    this.network = surroundings.network ?? ('addEventListener' in globalThis ? globalThis : new EventTarget());
  }

  /** @param {Partial<CallState>} patch */
  set(patch) {
    if (patch.phase && !mayFollow(this.state.phase, patch.phase)) {
      throw new Error(`a call that is ${this.state.phase} cannot become ${patch.phase}`);
    }
    this.state = { ...this.state, ...patch };
    this.emit('change', this.state);
  }

  get isBusy() {
    return isBusyIn(this.state.phase);
  }

  get isLive() {
    return this.state.phase === 'live';
  }

  get isOn() {
    return isOnIn(this.state.phase);
  }

  /** Returns the seconds left of the total limit; null if there is none to show. */
  leftS() {
    if (!this.client?.limitS || !this.client.isOpen) return null;
    return Math.max(0, this.client.limitS - (this.now() - this.client.openedAt) / 1000);
  }

  /** Returns the remaining fraction of the total limit, from 1 to 0; null if there is none to show. */
  leftPart() {
    const left = this.leftS();
    return left === null || !this.client?.limitS ? null : left / this.client.limitS;
  }

  // Start and first connection

  /**
   * Starts the call. Must be called from a user's gesture, and only once.
   * @param {O | ((signal: AbortSignal) => O | null | Promise<O | null>)} order or a function that returns it; null if
   *   the call cannot start, which the page has explained
   * @returns {Promise<boolean>} true if the call is connecting
   */
  start(order) {
    this.set({ phase: 'starting' });
    // Called in the gesture itself: what is awaited below may take longer than the gesture is valid.
    const opening = this.rig.open();
    opening.catch(() => {});
    return this.#begin(typeof order === 'function' ? order : () => order, opening);
  }

  /** @param {(signal: AbortSignal) => O | null | Promise<O | null>} prepare @param {Promise<void>} opening */
  async #begin(prepare, opening) {
    const { signal } = this.#life;
    try {
      const order = await prepare(signal);
      if (signal.aborted) return false;
      if (!order) {
        this.#finish({ reason: 'not_started', code: '', sentence: '', wasReady: false });
        return false;
      }
      this.order = order;
      await opening;
      // Before connecting: a worker must not wait for the user to answer the browser's permission prompt.
      if (order.microphone) await this.rig.connectMicrophone(order.microphone);
    } catch (error) {
      if (!signal.aborted) this.#couldNotStart(error);
      return false;
    }
    if (signal.aborted) {
      this.rig.releaseMicrophone();
      return false;
    }
    this.rig.mute(false);
    this.#watchRig();
    this.#watchNetwork();
    this.set({ phase: 'connecting' });
    this.#dial();
    return true;
  }

  /** @param {unknown} error */
  #couldNotStart(error) {
    const { trouble, device } = /** @type {Partial<import('../audio/devices.js').MediaError>} */ (error);
    if (!trouble || trouble === 'failed') console.error(error);
    // Any other error comes from the page: a part of it that could not be loaded, or a bug.
    const ofDevice = trouble && device ? /** @type {const} */ ({ kind: 'media', trouble, device }) : null;
    this.#finish(
      { reason: 'not_started', code: '', sentence: '', wasReady: false },
      ofDevice ?? /** @type {const} */ ({ kind: 'page' }),
    );
  }

  #dial() {
    this.#line = new AbortController();
    const client = this.makeClient(/** @type {O} */ (this.order), this.captions.said(this.order?.said));
    this.client = client;
    client.sound.unheardMs = () => this.rig.unheardMs ?? 0;
    this.#watchClient(client, this.#line.signal);
    this.wire(client, this.#line.signal);
    client.open();
  }

  // Events of rig, network and client

  #watchRig() {
    const { signal } = this.#listening;
    /** @param {string} type @param {(detail: any) => void} act */
    const on = (type, act) =>
      this.rig.addEventListener(type, (event) => act(/** @type {CustomEvent} */ (event).detail), { signal });
    on('level', ({ rms }) => {
      this.micLevel = rms;
      this.#levelAt = this.now();
      if (this.state.hasNoSound) this.set({ hasNoSound: false });
      this.#presence.heard(rms);
      this.#tellLevel();
    });
    on('position', (position) => {
      this.position = position;
      this.captions.hear(position.turn, position.heard);
      this.onPosition(position);
      this.#tellLevel();
      if (!position.sounding) this.#mayBeSilentNow();
    });
    on('drained', ({ turn }) => {
      this.captions.drained(turn);
      this.onDrained(turn);
    });
    on('started', ({ turn }) => this.onStarted(turn));
    on('gap', (gap) => this.onGap(gap));
    on('mic-lost', () => {
      if (!this.isBusy) return;
      this.set({ hasLostMic: true });
      // A device that fails again immediately is not opened again and again.
      if (this.now() - this.#lostMicAt > MIC_LOST_MS) this.#replaceMicrophone();
      this.#lostMicAt = this.now();
    });
    on('devices', () => this.#replaceMicrophone());
    on('suspended', () => this.isBusy && this.set({ isSuspended: true }));
    on('resumed', () => {
      if (this.state.isSuspended) this.set({ isSuspended: false });
    });
  }

  /** After the end of the call, stops listening to the rig once the last sentence has been heard. */
  #mayBeSilentNow() {
    if (this.state.phase === 'ended') this.#listening.abort();
  }

  #tellLevel() {
    const voice = this.position?.sounding ? this.position.level : 0;
    this.onLevel(this.micLevel, voice);
    this.emit('level', { mic: this.micLevel, voice });
  }

  #watchNetwork() {
    const { signal } = this.#life;
    this.network.addEventListener('offline', () => this.set({ isOffline: true }), { signal });
    this.network.addEventListener(
      'online',
      () => {
        this.set({ isOffline: false });
        if (this.#timers.dial !== null) this.#dialSoon();
        else this.client?.hurry();
      },
      { signal },
    );
  }

  /** @param {import('../wire/connection.js').Connection} client @param {AbortSignal} signal */
  #watchClient(client, signal) {
    /** @type {typeof client.on} */
    const on = (type, act) => client.on(type, act, signal);
    on('wire', (detail) => this.emit('wire', detail));
    on('phase', (phase) => this.#onPhase(phase));
    on('queue', (queue) => this.set({ queue, ...(queue ? { retrying: null } : {}) }));
    on('retrying', ({ attempt }) => this.set({ retrying: { attempt } }));
    on('ready', (session) => this.#onReady(session));
    on('trouble', ({ code, sentence }) => this.set({ trouble: { kind: 'server', code, sentence } }));
    on('returned', () => this.#onReturned());
    on('dropped', (dropped) => this.#onDropped(dropped));
    on('heard_text', ({ text, isFinal, id }) => this.captions.heardYou(id, text, isFinal));
    on('ended', (ending) => this.#onEnded(ending));
  }

  /** @param {string} phase of the connection */
  #onPhase(phase) {
    const dialling = this.#hasBeenLive ? 'reconnecting' : 'connecting';
    if (phase === 'connecting' || phase === 'assigned') this.set({ phase: dialling });
    if (phase === 'returning') this.set({ isReturning: true });
    if (phase === 'stopping') this.set({ phase: 'ending' });
    if (phase === 'queued') {
      this.#hasWaited = true;
      this.set({ phase: 'queued' });
    }
    if (phase === 'assigned' && this.#hasWaited && this.isAway()) this.#presence.wait(() => this.#giveBack());
  }

  /** @param {{sessionId: string, recordingId: string}} session */
  #onReady({ sessionId, recordingId }) {
    const isFirst = !this.#hasBeenLive;
    this.#hasBeenLive = true;
    const liveSince = isFirst ? this.now() : this.state.liveSince;
    this.#readyAt = this.now();
    const wasRenewing = this.state.isRenewing;
    const now = { sessionId, recordingId, retrying: null, liveSince, isRenewing: false };
    this.set({ phase: 'live', activity: 'listening', ...now });
    this.captions.begin(liveSince, this.now);
    if (!wasRenewing) this.captions.note(isFirst ? 'note.connected' : 'note.reconnected');
    this.#watch();
    this.onReady();
    this.emit('live', { isFirst });
    if (isFirst) void this.#record();
    else if (this.#wasPaused) this.pause();
    this.#wasPaused = false;
  }

  /** Called when the session was resumed; the server sends the missed messages. */
  #onReturned() {
    this.set({ isReturning: false, isStalled: false, service: 'ok', waitedS: 0 });
    this.captions.note('note.returned');
    this.onReturned();
    this.#watch();
  }

  /** @param {number} dropped seconds of audio dropped so far */
  #onDropped(dropped) {
    this.set({ trouble: { kind: 'network', dropped } });
    this.clearTimer(this.#timers.slow);
    this.#timers.slow = this.setTimer(() => {
      if (this.state.trouble?.kind === 'network') this.dismissTrouble();
    }, SLOW_SHOWN_MS);
  }

  // Missing answers

  #watch() {
    this.clearTimer(this.#timers.watch);
    this.#timers.watch = this.setTimer(() => {
      if (!this.isOn) return;
      this.#lookForSound();
      const { service, waitedS, isLost } = serviceAfter(this.waitingMs());
      const isStalled = this.client?.isStalled ?? false;
      const { state } = this;
      const isSame = service === state.service && waitedS === state.waitedS && isStalled === state.isStalled;
      if (!isSame) this.set({ service, waitedS, isStalled });
      // Without a network another attempt cannot succeed: wait for `online` or the end of the connection.
      if (isLost && !this.state.isOffline) this.client?.giveUp();
      else this.#watch();
    }, WATCH_MS);
  }

  /** Reports a microphone that delivers nothing. */
  #lookForSound() {
    if (!this.order?.microphone || !this.isLive) return;
    const since = Math.max(this.#levelAt, this.#readyAt);
    if (this.now() - since > NO_SOUND_MS && !this.state.hasNoSound) this.set({ hasNoSound: true });
  }

  // End and reconnection

  /** @param {import('../wire/reasons.js').Ending} ending */
  #onEnded(ending) {
    this.#line.abort();
    const isCut = ending.wasReady && this.isOn;
    const isFull = ending.reason === 'context_full' && this.now() - this.#readyAt > RENEW_AFTER_MS;
    if (isCut && isFull) this.#redial('note.renewed');
    else if (isCut && ending.reason === 'lost' && this.#redials.take(this.now())) this.#redial('note.reconnecting');
    else this.#finish({ ...ending, wasReady: this.#hasBeenLive });
  }

  /** @param {'note.renewed' | 'note.reconnecting'} note */
  #redial(note) {
    this.#wasPaused = this.state.phase === 'paused' || this.state.phase === 'pausing';
    void this.rig.stopCapture();
    this.rig.endTurn(this.turn);
    this.captions.complete(this.turn);
    this.onCut();
    this.captions.note(note);
    const isRenewing = note === 'note.renewed';
    const fresh = { isReturning: false, isStalled: false, service: /** @type {const} */ ('ok'), waitedS: 0 };
    this.set({ phase: 'reconnecting', isRenewing, queue: null, trouble: null, ...fresh });
    if (this.state.isOffline) {
      const ending = { reason: /** @type {const} */ ('lost'), code: '', sentence: '', wasReady: true };
      this.#timers.dial = this.setTimer(() => this.#finish(ending), OFFLINE_LIMIT_MS);
    } else this.#dialSoon();
  }

  #dialSoon() {
    this.clearTimer(this.#timers.dial);
    this.#timers.dial = this.setTimer(() => {
      this.#timers.dial = null;
      this.#dial();
    }, REDIAL_PAUSE_MS);
  }

  /** @param {Ending} ending @param {Trouble | null} [trouble] */
  #finish(ending, trouble = null) {
    for (const timer of Object.values(this.#timers)) this.clearTimer(timer);
    this.#presence.noticed();
    this.#line.abort();
    this.#life.abort();
    this.onEnded();
    this.rig.releaseMicrophone();
    this.rig.duck(false);
    const isQuiet = ['stopped', 'cancelled', 'not_started'].includes(ending.reason);
    // A user who hangs up expects silence; after any other end the last sentence is played to its end.
    if (isQuiet) {
      this.rig.flush();
      this.captions.interrupt(this.turn);
    } else this.rig.endTurn(this.turn);
    if (isQuiet || !this.position?.sounding) this.#listening.abort();
    if (ending.wasReady) this.captions.note('note.ended');
    const kept = ending.reason === 'stopped' ? null : this.state.trouble;
    const over = {
      queue: null,
      retrying: null,
      isOffline: false,
      isReturning: false,
      isStalled: false,
      isRenewing: false,
      service: /** @type {const} */ ('ok'),
      waitedS: 0,
    };
    this.set({ phase: 'ended', ending, ...over, isSuspended: false, hasLostMic: false, trouble: trouble ?? kept });
    void this.#stopRecording();
  }

  /** Detaches this call from the page before another one starts. */
  dispose() {
    if (this.isBusy) this.stop();
    if (this.position?.sounding) this.rig.flush();
    this.#listening.abort();
  }

  // The recording in this browser

  async #record() {
    const recorder = await this.order?.recorder?.().catch(() => null);
    if (!recorder || !this.isBusy) return;
    this.#recorder = recorder;
    await recorder.start();
  }

  async #stopRecording() {
    const recorder = this.#recorder;
    if (!recorder) return;
    this.#recorder = null;
    this.recorded = await recorder.stop();
    this.emit('recorded', this.recorded);
  }

  /** @param {boolean} on */
  pauseRecording(on) {
    this.#recorder?.pause(on);
  }

  // The user

  /** Gives the slot back, so that the next client in the queue does not wait for a user who has left. */
  #giveBack() {
    this.set({ hasGivenBack: true });
    this.stop();
  }

  /** Called when the user is present: they came back to the page, touched it, or spoke. */
  noticed() {
    this.#presence.noticed();
  }

  /** Resumes audio after the system has released it or the user has tapped. */
  async wake() {
    await this.rig.open();
    if (!this.rig.isHeld) this.set({ isSuspended: false });
  }

  /** Takes another microphone in place of a disconnected one, or the same one when it is connected again. */
  #replaceMicrophone() {
    if (!this.isBusy || !this.state.hasLostMic || !this.order?.microphone) return;
    // If there is none, the notice of the lost one stays.
    this.useMicrophone(this.order.microphone).catch(() => {});
  }

  /** @param {{deviceId?: string, isStudio?: boolean}} microphone */
  async useMicrophone(microphone) {
    await this.rig.connectMicrophone(microphone);
    if (this.order) this.order.microphone = microphone;
    if (this.isBusy) this.set({ hasLostMic: false });
    else this.rig.releaseMicrophone();
  }

  /** @param {boolean} isMuted */
  mute(isMuted) {
    if (!this.isBusy) return;
    this.rig.mute(isMuted);
    this.set({ isMuted });
  }

  dismissTrouble() {
    this.set({ trouble: null });
  }

  /** Hangs up, leaves the queue or cancels the start. */
  stop() {
    const { phase } = this.state;
    if (phase === 'idle' || phase === 'ended' || phase === 'ending') return;
    const hasLine = this.client && this.client.phase !== 'ended' && phase !== 'starting';
    if (hasLine) this.hangUp();
    else {
      const reason = phase === 'starting' ? 'not_started' : 'stopped';
      this.#finish({ reason, code: '', sentence: '', wasReady: this.#hasBeenLive });
    }
  }
}
