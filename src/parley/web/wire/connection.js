/**
 * The life of one conversation's socket, the same for every dialect: connecting, waiting in the queue,
 * ready, over. Knows messages and close codes, no samples, and no DOM.
 *
 * Its events are `ConnectionEvents`, and what the dialect adds.
 *
 * A connection that breaks before the conversation is ready is made again, with growing pauses. Who
 * waited in the queue shows its ticket and has its place again, also at another gateway. After that the
 * session continues over another one, for as long as the server keeps it; where it does not, a break is
 * the end.
 */

import { goodbyeUrl, unreachable } from './address.js';
import { Backlog } from './backlog.js';
import { Emitter } from '../emitter.js';
import { reasonOf } from './reasons.js';
import { CUT_CODE, FINAL_CODES, Returning } from './returning.js';
import { fitting, pack, unpack, WireSound } from './sound.js';

/** @typedef {'new' | 'connecting' | 'queued' | 'assigned' | 'ready' | 'returning' | 'stopping' | 'ended'} Phase */
/** @typedef {import('./place.js').Place} Place */
/** @typedef {import('./reasons.js').Reason} Reason */
/** @typedef {import('./reasons.js').Ending} Ending */
/**
 * @typedef {object} ConnectionEvents
 * @property {Phase} phase
 * @property {Place | null} queue while waiting; null when the wait is over
 * @property {{attempt: number, inMs: number, sentence: string}} retrying the line broke before the conversation began
 * @property {{sessionId: string, recordingId: string}} ready the conversation may begin
 * @property {{awayMs: number}} returned the session was resumed over another connection
 * @property {{code: string, sentence: string, reason?: Reason}} trouble something failed, the conversation continues
 * @property {number} dropped seconds given up so far because the network is too slow
 * @property {Ending} ended exactly once
 * @property {{out: boolean, message: any}} wire every message, for those who watch
 * @property {{id: string, text: string, isFinal: boolean}} heard_text what the user was heard to say, in calls
 */

/** How long a `stop` may take before the socket is closed from this side. */
const STOP_WAIT_MS = 2000;
/** A handshake that takes longer is a network without an answer. */
const OPEN_WAIT_MS = 10000;
/** How long after an error its `close` is waited for. */
const ERROR_WAIT_MS = 100;
/** Pauses before and between attempts to resume a session. */
const RETURN_FIRST_MS = 100;
const RETURN_MS = 1000;
/** Messages that wait for the line to come back, units not counted. */
const LATER_LIMIT = 64;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
/** For so long a place in the queue is asked for again, as long as servers keep sessions. */
const PLACE_KEPT_MS = 30_000;

/**
 * @typedef {{base?: string, token?: string} & Surroundings} Where the server (the page's own by default), and a key for it
 */
/**
 * @typedef {object} Surroundings what tests replace
 * @property {(url: string) => WebSocket} [connect]
 * @property {(callback: () => void, ms: number) => unknown} [setTimer]
 * @property {(timer: any) => void} [clearTimer]
 * @property {() => number} [now] ms
 * @property {typeof globalThis.fetch} [fetch]
 * @property {boolean} [resume] resume the session if the line breaks and the server offers it; true
 * @property {import('./sound.js').Format} [audioFormat] how sound crosses the wire; by default as published on this
 *   machine, as 16-bit samples in binary messages over a network, where the server offers that
 */

/** @template {ConnectionEvents} [Events=ConnectionEvents] @extends {Emitter<Events>} */
export class Connection extends Emitter {
  /** @type {Phase} */
  phase = 'new';
  sessionId = '';
  recordingId = '';
  dropped = 0;
  /** Pauses before a broken line is made again. */
  retryMs = RETRY_MS;
  /** Server clock readings of this connection begin here (ms of `now`). */
  openedAt = 0;

  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {any} */
  #timer = null;
  #attempt = 0;
  /** Set by the dialect from the last message: why the socket is about to close. @type {Partial<Ending>} */
  #farewell = {};
  #hasOpened = false;
  #backlog = new Backlog();
  /** From the first message on, if the session can be resumed. @type {Returning | null} */
  #returning = null;
  /** While the client waits, and until it is ready. */
  #ticketId = '';
  /** Infinity: it is not. */
  #lostAt = Infinity;
  /** Why the line broke. @type {{reason: Reason, code: string, sentence: string}} */
  #break = { reason: 'lost', code: '', sentence: '' };
  /** What was to be sent meanwhile. @type {object[]} */
  #later = [];

  /**
   * @param {string} url
   * @param {Surroundings} [surroundings]
   */
  constructor(url, surroundings = {}) {
    super();
    this.url = url;
    this.connect = surroundings.connect ?? dialled;
    this.setTimer = surroundings.setTimer ?? ((callback, ms) => setTimeout(callback, ms));
    this.clearTimer = surroundings.clearTimer ?? ((timer) => clearTimeout(timer));
    this.now = surroundings.now ?? (() => performance.now());
    this.fetch = surroundings.fetch ?? globalThis.fetch.bind(globalThis);
    this.asksToResume = surroundings.resume ?? true;
    this.sound = new WireSound(surroundings.audioFormat ?? fitting(url));
  }

  /** The field of the server's messages that holds sound. */
  get soundField() {
    return '';
  }

  /** True if a broken line may be dialled again. Chat narrows it: only until a worker has the request. */
  get mayRetry() {
    return this.phase === 'connecting' || this.phase === 'queued' || this.phase === 'assigned';
  }

  /** For the sockets that follow: calls outlive tokens. @param {string} token */
  useToken(token) {
    const url = new URL(this.url);
    url.searchParams.set('token', token);
    this.url = url.href;
  }

  open() {
    if (this.phase !== 'new') throw new Error(`a connection is opened once, this one is ${this.phase}`);
    this.#dial();
  }

  #dial() {
    this.#enter('connecting');
    this.#farewell = {};
    const url = this.#ticketId ? withQuery(this.url, `ticket=${this.#ticketId}`) : this.url;
    const socket = this.#reach(url, () => {
      this.clearTimer(this.#timer);
      this.openedAt = this.now();
      this.#hasOpened = true;
      this.onOpen();
    });
    // In browsers `close` follows immediately and says more. Node ends a refused connection with this alone.
    socket.onerror = () => {
      if (socket !== this.#socket || socket.readyState === 1) return;
      this.clearTimer(this.#timer);
      this.#timer = this.setTimer(() => this.#broken(socket, 1006, ''), ERROR_WAIT_MS);
    };
  }

  /** @param {string} url @param {() => void} onOpen */
  #reach(url, onOpen) {
    const socket = this.connect(url);
    this.#socket = socket;
    socket.binaryType = 'arraybuffer';
    this.#timer = this.setTimer(() => this.#broken(socket, 1006, ''), OPEN_WAIT_MS);
    socket.onopen = () => {
      if (socket === this.#socket) onOpen();
    };
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(data);
    };
    socket.onclose = ({ code, reason }) => this.#broken(socket, code, reason);
    return socket;
  }

  /** @param {Phase} phase */
  #enter(phase) {
    if (phase === this.phase) return;
    this.phase = phase;
    this.emit('phase', phase);
  }

  /** @param {unknown} data */
  #receive(data) {
    let message;
    try {
      message = typeof data === 'string' ? JSON.parse(data) : unpack(/** @type {any} */ (data), this.soundField);
    } catch (error) {
      console.warn('a message that cannot be read was ignored', error);
      return;
    }
    if (this.phase === 'ended') return;
    if (this.phase === 'returning') return this.#onReturn(message);
    if (this.#returning && !this.#count(message, data)) return;
    // A reason is one for the close that follows it, and not for a later one.
    this.#farewell = {};
    this.emit('wire', { out: false, message });
    this.onMessage(message);
  }

  /**
   * @param {WebSocket} socket @param {number} code @param {string} reason
   * @param {boolean} [mayReturn] whether another connection could be better
   */
  #broken(socket, code, reason, mayReturn = true) {
    if (socket !== this.#socket || this.phase === 'ended') return;
    this.clearTimer(this.#timer);
    this.#socket = null;
    socket.onmessage = socket.onclose = null;
    // A server that gets this late, behind what was held up, must not take it for a goodbye.
    if (socket.readyState < 2) socket.close(this.phase === 'stopping' ? 1000 : CUT_CODE);
    if (!this.#hasOpened) reason ||= unreachable(this.url);
    const why = this.#farewell.reason ?? reasonOf(code, this.#farewell.code ?? '');
    const pause = why === 'lost' && this.mayRetry ? this.#nextPause() : null;
    if (pause !== null) {
      this.#enter('connecting');
      this.emit('queue', null);
      this.emit('retrying', { attempt: this.#attempt, inMs: pause, sentence: reason });
      this.#timer = this.setTimer(() => this.#dial(), pause);
      return;
    }
    // A server that said why it ends has ended: there is nothing to come back to.
    const isCut = mayReturn && !FINAL_CODES.includes(code) && Object.keys(this.#farewell).length === 0;
    if (isCut && this.phase === 'ready' && this.#returning?.isPossible) {
      this.#break = { reason: why, code: '', sentence: reason };
      this.#lostAt = this.now();
      this.#enter('returning');
      this.#comeBack(RETURN_FIRST_MS);
      return;
    }
    if (this.phase === 'returning') return this.#comeBack(RETURN_MS);
    if (this.phase === 'stopping' && why === 'lost') this.#leave();
    this.#end({
      reason: this.phase === 'stopping' && why === 'lost' ? 'stopped' : why,
      code: this.#farewell.code ?? '',
      sentence: this.#farewell.sentence ?? reason,
    });
  }

  /** @returns {number | null} ms before the next attempt; null: there is none */
  #nextPause() {
    const pause = this.retryMs[Math.min(this.#attempt, this.retryMs.length - 1)];
    if (!this.#ticketId) return this.#attempt++ < this.retryMs.length ? pause : null;
    this.#attempt += 1;
    this.#lostAt = Math.min(this.#lostAt, this.now());
    return this.now() - this.#lostAt < PLACE_KEPT_MS ? Math.min(pause, RETURN_MS) : null;
  }

  // Going on over another connection

  /** @param {any} message @param {any} data as it came @returns {boolean} whether it is news for the dialect */
  #count(message, data) {
    const isNew = this.#returning?.take(message, data.length ?? data.byteLength);
    const ack = this.#returning?.dueAck();
    if (ack) this.#socket?.send(JSON.stringify(ack));
    return Boolean(isNew) && message.type !== 'session.input_ack' && message.type !== 'session.resync_required';
  }

  /** @param {number} pause ms */
  #comeBack(pause) {
    const { windowS } = /** @type {Returning} */ (this.#returning);
    if (this.now() + pause - this.#lostAt > windowS * 1000) {
      this.#end(this.#break);
      return;
    }
    this.#timer = this.setTimer(() => {
      const socket = this.#reach(withQuery(this.url, 'resume=true'), () =>
        socket.send(JSON.stringify(this.#returning?.request())),
      );
    }, pause);
  }

  /** The answer to the request to resume. @param {any} message */
  #onReturn(message) {
    const socket = /** @type {WebSocket} */ (this.#socket);
    if (message.type === 'session.resume_failed') {
      this.#socket = null;
      this.#end(this.#break);
      socket.close(1000);
    } else if (message.type === 'session.resumed') this.#returned(socket, message);
    else {
      // It waits for a worker. Anything else: this server is too busy, or knows nothing of this.
      if (message.type === 'session.resume_waiting') {
        const { windowS } = /** @type {Returning} */ (this.#returning);
        const awayS = (this.now() - this.#lostAt) / 1000;
        Object.assign(this.#returning ?? {}, { windowS: Math.max(windowS, awayS + message.window_s) });
      }
      this.#broken(socket, 1006, '');
    }
  }

  /** @param {WebSocket} socket @param {any} granted */
  #returned(socket, granted) {
    this.clearTimer(this.#timer);
    const awayMs = this.now() - this.#lostAt;
    // The server's clock stood still meanwhile.
    this.openedAt += awayMs;
    this.#farewell = {};
    for (const frame of /** @type {Returning} */ (this.#returning).granted(granted)) {
      socket.send(/** @type {string | Uint8Array<ArrayBuffer>} */ (frame));
    }
    this.#enter('ready');
    for (const message of this.#later.splice(0)) this.send(message);
    this.emit('returned', { awayMs });
  }

  /** @param {{reason: Reason, code: string, sentence: string}} ending */
  #end(ending) {
    if (this.phase === 'ended') return;
    this.clearTimer(this.#timer);
    this.#backlog.clear();
    this.#later.length = 0;
    this.#enter('ended');
    this.emit('ended', { ...ending, wasReady: this.sessionId !== '' });
  }

  // For the dialects

  /** The socket is open. */
  onOpen() {}

  /** @param {any} _message */
  onMessage(_message) {}

  /** @param {Place & {}} place */
  waiting(place) {
    this.#attempt = 0;
    this.#lostAt = Infinity;
    this.#ticketId = place.ticketId;
    this.#enter('queued');
    this.emit('queue', place);
  }

  assigned() {
    this.#enter('assigned');
    this.emit('queue', null);
  }

  /** @param {{sessionId: string, recordingId?: string}} session */
  ready({ sessionId, recordingId = '' }) {
    this.sessionId = sessionId;
    this.recordingId = recordingId;
    this.#enter('ready');
    this.emit('ready', { sessionId, recordingId });
  }

  /** Why the close that follows happens. @param {Partial<Ending>} why */
  farewell(why) {
    this.#farewell = why;
  }

  /** The dialect's last word has come: the close frame is not waited for. @param {Partial<Ending>} why */
  finish(why) {
    const socket = this.#socket;
    this.#socket = null;
    this.#end({ reason: why.reason ?? 'stopped', code: why.code ?? '', sentence: why.sentence ?? '' });
    if (socket && socket.readyState < 2) socket.close(1000);
  }

  /** True if sound is wanted now; what cannot leave yet waits, the newest of it. */
  get takesUnits() {
    return this.phase === 'ready' || this.phase === 'returning';
  }

  get isOpen() {
    return this.#socket?.readyState === 1;
  }

  /** For how long units have been waiting because nothing leaves the socket. */
  stuckMs() {
    return this.#backlog.waitedMs(this.now());
  }

  /** The network is back: what waits before it dials again does it now. */
  hurry() {
    if (this.phase !== 'connecting' || this.#socket) return;
    this.clearTimer(this.#timer);
    this.#dial();
  }

  /** The line is dead although the socket does not know it yet. */
  giveUp() {
    if (this.#socket) this.#broken(this.#socket, 1006, '', this.#returning?.hasHeard);
  }

  /** The message with which a session begins: from it on both sides count. @param {object} message */
  begin(message) {
    if (this.asksToResume) this.#returning = new Returning();
    this.send(message);
  }

  /** @param {object} message @returns {boolean} whether it went out, or will */
  send(message) {
    if (this.phase === 'returning') return this.#later.length < LATER_LIMIT && this.#later.push(message) > 0;
    if (!this.isOpen) return false;
    this.#post(pack(message), message);
    return true;
  }

  /** @param {string | Uint8Array} frame @param {object} message */
  #post(frame, message) {
    this.emit('wire', { out: true, message });
    this.#returning?.sent(frame);
    this.#socket?.send(/** @type {any} */ (frame));
  }

  /**
   * A unit of live sound: late sound is worth nothing, so while the network is behind the oldest goes.
   * @param {any} message
   * @param {Float32Array} audio what it holds, 16 kHz
   */
  sendUnit(message, audio) {
    const isAway = this.phase === 'returning';
    if (!this.isOpen && !isAway) return;
    const post = this.#post.bind(this);
    const ms = audio.length / 16;
    const droppedMs = this.#backlog.push(message, ms, this.now(), isAway ? null : this.#socket, post);
    if (droppedMs === 0) return;
    this.dropped = Math.round(1000 * this.dropped + droppedMs) / 1000;
    this.emit('dropped', this.dropped);
  }

  /**
   * End on purpose: say so, wait for the answer, close.
   * @param {object | null} message the dialect's word for it; null where it has none
   */
  stop(message) {
    if (this.phase === 'ended' || this.phase === 'stopping') return;
    if (this.phase === 'returning') this.#leave();
    if (this.phase === 'new' || this.phase === 'returning' || !this.isOpen || !message) {
      this.finish({ reason: 'stopped' });
      return;
    }
    this.send(message);
    this.#enter('stopping');
    this.#timer = this.setTimer(() => {
      this.#leave();
      this.finish({ reason: 'stopped' });
    }, STOP_WAIT_MS);
  }

  /** If the socket cannot deliver it, the server would keep the slot for a client that does not come back. */
  #leave() {
    if (!this.#returning?.isPossible) return;
    // A page that is being closed is gone before an answer comes; the browser sends it all the same.
    const init = { method: 'POST', keepalive: true };
    // Without a network it is not heard, and the slot is free when the server has waited long enough.
    this.fetch(goodbyeUrl(this.url, this.sessionId), init).catch(() => {});
  }
}

/** @param {string} url */
function dialled(url) {
  if (typeof WebSocket === 'undefined')
    throw new Error('There is no WebSocket here. Use Node 22, or start Node 20 with --experimental-websocket.');
  return new WebSocket(url);
}

/** @param {string} url @param {string} query */
function withQuery(url, query) {
  return `${url}${url.includes('?') ? '&' : '?'}${query}`;
}
