/**
 * What every live conversation has: a start that asks for the microphone before it takes a place, a
 * queue, a state that pages draw, captions that follow the voice, and one end.
 *
 * No DOM. The `rig` is the only way to sound and the `client` the only way to the server; tests pass
 * their own. State flows one way: events → `state` → 'change'.
 *
 * Events: change (detail: state), level (detail: {mic, voice}).
 */

import { Captions } from './captions.js';

/**
 * @typedef {'idle' | 'opening' | 'connecting' | 'queued' | 'preparing' | 'live' | 'pausing' | 'paused' |
 *   'stopping' | 'ended'} TalkPhase
 * @typedef {'listening' | 'hearing' | 'thinking' | 'speaking'} Activity
 * @typedef {{kind: 'media', trouble: import('../audio/devices.js').MediaTrouble, device: 'microphone' | 'camera'}
 *   | {kind: 'server', code: string, sentence: string}
 *   | {kind: 'network', dropped: number}} Trouble
 * @typedef {object} TalkState
 * @property {TalkPhase} phase
 * @property {Activity} activity
 * @property {import('../wire/connection.js').Place | null} queue
 * @property {{attempt: number} | null} retrying
 * @property {boolean} isMuted
 * @property {boolean} isForcingListen
 * @property {boolean} isSuspended the system took the sound away
 * @property {boolean} hasLostMic
 * @property {string} sessionId
 * @property {string} recordingId
 * @property {number} liveSince `now` when the conversation became live; 0 before
 * @property {Trouble | null} trouble
 * @property {import('../wire/connection.js').Ending | null} ending
 * @property {boolean} hasGivenBack the turn came, nobody was there, and the place went to the next
 */

/** Who waited, and is not there when the turn comes, has this long. Source: web client spec 6. */
const AWAY_MS = 20_000;
/** This many loud reports in a row (20 a second) are somebody speaking. */
const VOICE_LEVEL = 0.05;
const VOICE_REPORTS = 6;

/** A slow network is spoken of until it has been quick for this long. */
const SLOW_SHOWN_MS = 15_000;

/** @returns {TalkState} */
function freshState() {
  return {
    phase: 'idle',
    activity: 'listening',
    queue: null,
    retrying: null,
    isMuted: false,
    isForcingListen: false,
    isSuspended: false,
    hasLostMic: false,
    sessionId: '',
    recordingId: '',
    liveSince: 0,
    trouble: null,
    ending: null,
    hasGivenBack: false,
  };
}

/**
 * What a conversation needs of the sound equipment; `Rig` is one.
 * @typedef {EventTarget & {
 *   open: () => Promise<void>,
 *   isHeld?: boolean,
 *   connectMicrophone: (options?: {deviceId?: string, isStudio?: boolean}) => Promise<void>,
 *   releaseMicrophone: () => void,
 *   capture: (unitSamples: number, onUnit: (audio: Float32Array<ArrayBuffer>, final: boolean) => void) => void,
 *   stopCapture: () => Promise<void> | void,
 *   recycle: (audio: Float32Array<ArrayBuffer>) => void,
 *   mute: (on: boolean) => void,
 *   play: (turn: number, audio: Float32Array<ArrayBuffer>, last?: boolean) => void,
 *   endTurn: (turn: number) => void,
 *   flush: (fadeMs?: number) => void,
 *   duck: (on: boolean) => void,
 * }} Sound
 */

export class Talk extends EventTarget {
  /** @type {TalkState} */
  state = freshState();
  captions = new Captions();
  /** Turns of the assistant in this page, across conversations: the mouth orders its queue by them. */
  turn = 0;
  /** @type {import('../audio/rig.js').Position | null} */
  position = null;
  micLevel = 0;
  /** Whether nobody looks at the page now. */
  isAway = () => false;
  #hasWaited = false;
  /** @type {any} */
  #awayTimer = null;
  #loudReports = 0;
  /** @type {any} */
  #slowTimer = null;
  /** Seconds in one unit. */
  unitS = 1;
  /** @type {AbortController} */
  #life = new AbortController();

  /**
   * @param {Sound} rig
   * @param {{now?: () => number, setTimer?: (callback: () => void, ms: number) => any, clearTimer?: (timer: any) => void}} [clock]
   */
  constructor(rig, clock = {}) {
    super();
    this.rig = rig;
    this.now = clock.now ?? (() => performance.now());
    this.setTimer = clock.setTimer ?? ((callback, ms) => setTimeout(callback, ms));
    this.clearTimer = clock.clearTimer ?? ((timer) => clearTimeout(timer));
  }

  /** @param {Partial<TalkState>} patch */
  set(patch) {
    this.state = { ...this.state, ...patch };
    this.dispatchEvent(new CustomEvent('change', { detail: this.state }));
  }

  get isBusy() {
    return !['idle', 'ended'].includes(this.state.phase);
  }

  get isLive() {
    return this.state.phase === 'live';
  }

  /**
   * Ask for the microphone, then connect. Must be called from a user's gesture.
   * @param {import('../wire/connection.js').Connection} client fresh
   * @param {{deviceId?: string, isStudio?: boolean} | null} microphone null: none is needed
   * @returns {Promise<boolean>} whether the conversation is on its way
   */
  async begin(client, microphone) {
    if (this.isBusy) return false;
    this.#life = new AbortController();
    const { signal } = this.#life;
    this.state = freshState();
    this.#hasWaited = false;
    this.set({ phase: 'opening' });
    try {
      await this.rig.open();
      // Before a place is taken: a worker must not wait for a person to answer a browser's question.
      if (microphone) await this.rig.connectMicrophone(microphone);
    } catch (error) {
      const { trouble = 'failed', device = 'microphone' } = /** @type {any} */ (error);
      if (!signal.aborted) this.set({ phase: 'idle', trouble: { kind: 'media', trouble, device } });
      return false;
    }
    if (signal.aborted) {
      this.rig.releaseMicrophone();
      return false;
    }
    this.rig.mute(false);
    this.#watchRig(signal);
    this.#watchClient(client, signal);
    this.wire(client, signal);
    client.open();
    return true;
  }

  /** @param {AbortSignal} signal */
  #watchRig(signal) {
    /** @param {string} type @param {(detail: any) => void} act */
    const on = (type, act) => this.rig.addEventListener(type, (event) => act(/** @type {CustomEvent} */ (event).detail), { signal });
    on('level', ({ rms }) => {
      this.micLevel = rms;
      this.#loudReports = rms > VOICE_LEVEL ? this.#loudReports + 1 : 0;
      if (this.#loudReports >= VOICE_REPORTS) this.noticed();
      this.#tellLevel();
    });
    on('position', (position) => {
      this.position = position;
      this.captions.hear(position.turn, position.heard);
      this.onPosition(position);
      this.#tellLevel();
    });
    on('drained', ({ turn }) => {
      this.captions.drained(turn);
      this.onDrained(turn);
    });
    on('started', ({ turn }) => this.onStarted(turn));
    on('gap', (gap) => this.onGap(gap));
    on('mic-lost', () => this.set({ hasLostMic: true }));
    on('suspended', () => this.set({ isSuspended: true }));
    on('resumed', () => {
      if (this.state.isSuspended) this.set({ isSuspended: false });
    });
  }

  #tellLevel() {
    const voice = this.position?.sounding ? this.position.level : 0;
    this.dispatchEvent(new CustomEvent('level', { detail: { mic: this.micLevel, voice } }));
  }

  /** @param {import('../wire/connection.js').Connection} client @param {AbortSignal} signal */
  #watchClient(client, signal) {
    /** @param {string} type @param {(detail: any) => void} act */
    const on = (type, act) => client.addEventListener(type, (event) => act(/** @type {CustomEvent} */ (event).detail), { signal });
    on('phase', (phase) => {
      const mine = { connecting: 'connecting', queued: 'queued', assigned: 'preparing', stopping: 'stopping' }[/** @type {string} */ (phase)];
      if (mine) this.set({ phase: /** @type {TalkPhase} */ (mine) });
      if (phase === 'queued') this.#hasWaited = true;
      if (phase === 'assigned' && this.#hasWaited && this.isAway()) this.#waitForPerson();
    });
    on('queue', (queue) => this.set({ queue, ...(queue ? { retrying: null } : {}) }));
    on('retrying', ({ attempt }) => this.set({ retrying: { attempt } }));
    on('ready', ({ sessionId, recordingId }) => {
      this.set({ phase: 'live', activity: 'listening', sessionId, recordingId, retrying: null, liveSince: this.now() });
      this.onReady();
    });
    on('trouble', ({ code, sentence }) => this.set({ trouble: { kind: 'server', code, sentence } }));
    on('dropped', (dropped) => {
      this.set({ trouble: { kind: 'network', dropped: dropped * this.unitS } });
      this.clearTimer(this.#slowTimer);
      this.#slowTimer = this.setTimer(() => {
        if (this.state.trouble?.kind === 'network') this.dismissTrouble();
      }, SLOW_SHOWN_MS);
    });
    on('ended', (ending) => this.#ended(ending));
  }

  /** The others in the queue must not wait for somebody who has left. */
  #waitForPerson() {
    this.clearTimer(this.#awayTimer);
    this.#awayTimer = this.setTimer(() => {
      this.#awayTimer = null;
      this.set({ hasGivenBack: true });
      this.stop();
    }, AWAY_MS);
  }

  /** The person is here: they came back to the page, touched it, or spoke. */
  noticed() {
    this.clearTimer(this.#awayTimer);
    this.#awayTimer = null;
  }

  /** @param {import('../wire/connection.js').Ending} ending */
  #ended(ending) {
    this.noticed();
    this.clearTimer(this.#slowTimer);
    this.onEnded(ending);
    this.rig.releaseMicrophone();
    // Whoever hangs up wants silence; any other end lets the last sentence finish.
    if (ending.reason === 'stopped' || ending.reason === 'cancelled') this.rig.flush();
    else this.rig.endTurn(this.turn);
    this.#life.abort();
    this.set({ phase: 'ended', ending, queue: null, retrying: null, trouble: ending.reason === 'stopped' ? null : this.state.trouble });
  }

  /** Leave before there is a connection. */
  abandon() {
    this.#life.abort();
    this.rig.releaseMicrophone();
    this.set({ phase: 'idle', queue: null });
  }

  /** The system gave the sound back, or a person tapped to have it. */
  async wake() {
    await this.rig.open();
    if (!this.rig.isHeld) this.set({ isSuspended: false });
  }

  /** @param {{deviceId?: string, isStudio?: boolean}} microphone */
  async useMicrophone(microphone) {
    await this.rig.connectMicrophone(microphone);
    this.set({ hasLostMic: false });
  }

  /** @param {boolean} isMuted */
  mute(isMuted) {
    this.rig.mute(isMuted);
    this.set({ isMuted });
  }

  dismissTrouble() {
    this.set({ trouble: null });
  }

  // What the modes fill in

  /** @param {any} _client @param {AbortSignal} _signal */
  wire(_client, _signal) {}
  onReady() {}
  /** @param {import('../audio/rig.js').Position} _position */
  onPosition(_position) {}
  /** @param {number} _turn */
  onStarted(_turn) {}
  /** @param {number} _turn */
  onDrained(_turn) {}
  /** @param {{turn: number, index: number, ms: number}} _gap */
  onGap(_gap) {}
  /** @param {import('../wire/connection.js').Ending} _ending */
  onEnded(_ending) {}
  /** Hang up, or leave the queue. */
  stop() {}
}
