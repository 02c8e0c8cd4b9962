/**
 * Lifecycle of one conversation's socket, common to all dialects: connecting, queued, ready, ended. Handles messages
 * and close codes, but neither samples nor the DOM.
 *
 * Its events are `ConnectionEvents` and those that the dialect adds.
 *
 * If the connection breaks before the conversation is ready, the client reconnects after growing pauses. A client that
 * was queued sends its ticket and gets its place back, also from another gateway. Once the conversation is ready, the
 * client resumes the session over a new connection for as long as the server keeps it; if the server does not keep
 * sessions, a break ends the conversation.
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
 * @property {{attempt: number, inMs: number, sentence: string}} retrying the connection broke before the conversation
 *   started
 * @property {{sessionId: string, recordingId: string}} ready the conversation can start
 * @property {{awayMs: number}} returned the session was resumed over another connection
 * @property {{code: string, sentence: string, reason?: Reason}} trouble something failed, the conversation continues
 * @property {number} dropped seconds of audio dropped so far because the network is too slow
 * @property {Ending} ended exactly once
 * @property {{out: boolean, message: any}} wire every message in both directions, for inspection
 * @property {{id: string, text: string, isFinal: boolean}} heard_text transcript of the user's speech, in calls
 */

/** Maximum time to wait for the answer to a `stop` before the client closes the socket. */
const STOP_WAIT_MS = 2000;
/** Maximum time for the handshake; after it the server counts as unreachable. */
const OPEN_WAIT_MS = 10000;
/** Time to wait for the `close` that follows an error. */
const ERROR_WAIT_MS = 100;
/** For programs; pages have their own words. */
const LOST = 'The connection broke, and the session ended with it. Open another one.';
/** Pauses before and between attempts to resume a session. */
const RETURN_FIRST_MS = 100;
const RETURN_MS = 1000;
/** Interval at which the connection of a session that can be resumed is checked. */
const CHECK_MS = 500;
/** Maximum number of messages, units not counted, that are queued while the connection is lost. */
const LATER_LIMIT = 64;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
/** Time for which the client tries to get its place in the queue back; servers keep sessions as long. */
const PLACE_KEPT_MS = 30_000;

/**
 * @typedef {{base?: string, token?: string} & Surroundings} Where the server (the page's own by default) and a key
 *   for it
 */
/**
 * @typedef {object} Surroundings parts of the environment that tests replace
 * @property {(url: string) => WebSocket} [connect]
 * @property {(callback: () => void, ms: number) => unknown} [setTimer]
 * @property {(timer: any) => void} [clearTimer]
 * @property {() => number} [now] ms
 * @property {typeof globalThis.fetch} [fetch]
 * @property {boolean} [resume] resume the session if the connection breaks and the server supports it; default true
 * @property {import('./sound.js').Format} [audioFormat] audio format on the wire; by default the published one for a
 *   server on this machine and, over a network, Opus, or 16-bit samples if the browser or the server does not offer it
 * @property {import('./opus.js').Codecs} [codecs] of the browser
 */

/** @template {ConnectionEvents} [Events=ConnectionEvents] @extends {Emitter<Events>} */
export class Connection extends Emitter {
  /** @type {Phase} */
  phase = 'new';
  sessionId = '';
  recordingId = '';
  dropped = 0;
  /** Pauses before attempts to reconnect. */
  retryMs = RETRY_MS;
  /** Time at which the server's clock for this connection starts (ms of `now`). */
  openedAt = 0;

  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {any} */
  #timer = null;
  #attempt = 0;
  /** Reason why the socket is about to close, set by the dialect from the last message. @type {Partial<Ending>} */
  #farewell = {};
  #hasOpened = false;
  /**
   * Time limit of the call in seconds; null: none to show. The server announces a long one shortly before it is reached.
   * @type {number | null}
   */
  limitS = null;
  #backlog = new Backlog();
  /** State for resuming the session, from the first message on; null if resuming is off. @type {Returning | null} */
  #returning = null;
  /** Ticket of the client's place in the queue. */
  #ticketId = '';
  /** Time at which the connection was lost; Infinity if it is not. */
  #lostAt = Infinity;
  /** Why the connection broke. @type {{reason: Reason, code: string, sentence: string}} */
  #break = { reason: 'lost', code: '', sentence: '' };
  /** Messages to be sent once the session is resumed. @type {object[]} */
  #later = [];
  /** @type {any} */
  #checking = null;
  /** Units whose audio filled no packet. */
  #unfinished = {};
  /** What has to be done before the next message is processed; null if nothing has. @type {Promise<void> | null} */
  #before = null;

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
    const format = surroundings.audioFormat ?? fitting(url);
    this.sound = new WireSound(format, () => this.#failed(), surroundings.codecs);
  }

  /** Name of the field that contains audio in the server's messages. */
  get soundField() {
    return '';
  }

  /** True if the client may reconnect after a break. Chat narrows this: only until a worker has the request. */
  get mayRetry() {
    return this.phase === 'connecting' || this.phase === 'queued' || this.phase === 'assigned';
  }

  /** Replaces the token for the sockets that follow, since calls outlive tokens. @param {string} token */
  useToken(token) {
    const url = new URL(this.url);
    url.searchParams.set('token', token);
    this.url = url.href;
  }

  open() {
    if (this.phase !== 'new') throw new Error(`a connection is opened once, this one is ${this.phase}`);
    this.#inOrder(() => {}, this.sound.settle());
    this.#dial();
  }

  /**
   * Acts after everything that waits: messages, and the end of a socket, keep their order while audio is decoded.
   * @param {() => void} act @param {Promise<void> | null} [first] what has to be done before
   */
  #inOrder(act, first = null) {
    if (!this.#before && !first) return act();
    const step = Promise.all([this.#before, first]).then(() => {
      if (this.#before === step) this.#before = null;
      act();
    });
    this.#before = step;
  }

  /** The browser's codec has failed: another connection does without. */
  #failed() {
    if (this.#socket) this.#broken(this.#socket, 1006, '', false);
    else if (this.phase === 'returning') this.#end(this.#break);
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
    // In browsers `close` follows immediately and has more details. In Node a refused connection emits only this event.
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
    socket.onclose = ({ code, reason }) => this.#inOrder(() => this.#broken(socket, code, reason));
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
    this.#inOrder(() => this.#process(message), this.sound.decode(message, this.soundField));
  }

  /** @param {any} message */
  #process(message) {
    if (this.phase === 'ended') return;
    // A reason applies only to the close that follows it directly.
    this.#farewell = {};
    this.emit('wire', { out: false, message });
    if (message.type === 'session.going_away' && message.reason === 'time') {
      this.limitS = (this.now() - this.openedAt) / 1000 + message.time_left_s;
    }
    this.onMessage(message);
  }

  /**
   * @param {WebSocket} socket @param {number} code @param {string} reason
   * @param {boolean} [mayReturn] false if another connection would not help
   */
  #broken(socket, code, reason, mayReturn = true) {
    if (socket !== this.#socket || this.phase === 'ended') return;
    this.clearTimer(this.#timer);
    this.#forsake();
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
    // A server that sent a reason has ended the session, so it cannot be resumed.
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

  /** Drops the socket. */
  #forsake() {
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.onmessage = socket.onclose = null;
    // If this arrives late, behind delayed messages, the server must not take it for the end of the session.
    if (socket.readyState < 2) socket.close(this.phase === 'stopping' ? 1000 : CUT_CODE);
  }

  /** @returns {number | null} ms before the next attempt; null if there is none */
  #nextPause() {
    const pause = this.retryMs[Math.min(this.#attempt, this.retryMs.length - 1)];
    if (!this.#ticketId) return this.#attempt++ < this.retryMs.length ? pause : null;
    this.#attempt += 1;
    this.#lostAt = Math.min(this.#lostAt, this.now());
    return this.now() - this.#lostAt < PLACE_KEPT_MS ? Math.min(pause, RETURN_MS) : null;
  }

  // Resuming over another connection

  /** @param {any} message @param {any} data as received @returns {boolean} true if the dialect must process it */
  #count(message, data) {
    this.#returning?.heard(message, this.now());
    const isNew = this.#returning?.take(message, data.length ?? data.byteLength);
    const ack = this.#returning?.dueAck();
    if (ack) this.#put(JSON.stringify(ack));
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

  /** Processes the answer to the request to resume. @param {any} message */
  #onReturn(message) {
    const socket = /** @type {WebSocket} */ (this.#socket);
    if (message.type === 'session.resume_failed') {
      this.#socket = null;
      this.#end(this.#break);
      socket.close(1000);
    } else if (message.type === 'session.resumed') this.#returned(socket, message);
    else {
      // `session.resume_waiting`: the session waits for a worker. Anything else: this server is too busy or does not
      // know the session.
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
    // The server's clock was stopped while the connection was lost.
    this.openedAt += awayMs;
    this.#farewell = {};
    for (const frame of /** @type {Returning} */ (this.#returning).granted(granted, this.now())) {
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
    this.clearTimer(this.#checking);
    this.#backlog.clear();
    this.#later.length = 0;
    this.sound.close();
    this.#enter('ended');
    const isLost = ending.reason === 'lost' && this.#hasOpened;
    const sentence = ending.sentence || (isLost ? LOST : '');
    this.emit('ended', { ...ending, sentence, wasReady: this.sessionId !== '' });
  }

  // For the dialects

  /** Called when the socket is open. */
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
    this.#check();
  }

  /** Asks a server that has been quiet for a sign of life; without one, the connection is lost. */
  #check() {
    this.clearTimer(this.#checking);
    if (!this.#returning?.isPossible || this.phase === 'ended') return;
    this.#checking = this.setTimer(() => this.#check(), CHECK_MS);
    if (this.phase !== 'ready' || !this.#socket) return;
    if (this.#returning.isDeaf(this.now())) this.#broken(this.#socket, 1006, '', !this.#returning.isInVain);
    else this.#ask();
  }

  #ask() {
    const question = this.#returning?.dueQuestion(this.now());
    if (question) this.#put(JSON.stringify(question));
  }

  /** Sets the reason for the close that follows. @param {Partial<Ending>} why */
  farewell(why) {
    this.#farewell = why;
    // Some dialects wait for a correction of a configuration that they refused, and there is none.
    if (this.phase === 'assigned' && reasonOf(1008, why.code ?? '') === 'bad') this.finish({ reason: 'bad', ...why });
  }

  /**
   * Ends the connection after the dialect's last message, without waiting for the close frame.
   * @param {Partial<Ending>} why
   */
  finish(why) {
    const socket = this.#socket;
    this.#socket = null;
    this.#end({ reason: why.reason ?? 'stopped', code: why.code ?? '', sentence: why.sentence ?? '' });
    if (socket && socket.readyState < 2) socket.close(1000);
  }

  /** True if units are accepted now; those that cannot be sent yet are queued, the newest ones only. */
  get takesUnits() {
    return this.phase === 'ready' || this.phase === 'returning';
  }

  get isOpen() {
    return this.#socket?.readyState === 1;
  }

  /** True if the server gives no sign of life, so that nothing gets through at the moment. */
  get isStalled() {
    return this.phase === 'ready' && (this.#returning?.isStalled(this.now()) ?? false);
  }

  /** Returns the time for which units have been waiting because the socket does not send, in ms. */
  stuckMs() {
    return this.#backlog.waitedMs(this.now());
  }

  /** The network is back: reconnects immediately instead of after the pause. Its address may be another one. */
  hurry() {
    if (this.phase === 'connecting' && !this.#socket) {
      this.clearTimer(this.#timer);
      this.#dial();
    } else if (this.phase === 'returning') {
      this.clearTimer(this.#timer);
      this.#forsake();
      this.#comeBack(0);
    } else if (this.phase === 'ready' && this.#returning?.isPossible) this.giveUp();
  }

  /** Treats the connection as lost although the socket has not reported it yet. */
  giveUp() {
    if (this.#socket) this.#broken(this.#socket, 1006, '', this.#returning?.hasHeard);
  }

  /** Sends the first message of a session; both sides count messages from it on. @param {object} message */
  begin(message) {
    if (this.asksToResume) this.#returning = new Returning();
    this.send(message);
  }

  /** @param {object} message @returns {boolean} true if it was sent, or will be once the session is resumed */
  send(message) {
    if (this.phase === 'returning') return this.#later.length < LATER_LIMIT && this.#later.push(message) > 0;
    if (!this.isOpen) return false;
    this.#post(pack(message), message);
    return true;
  }

  /** @param {string | Uint8Array} frame @param {object} message @param {number} [ms] of its audio */
  #post(frame, message, ms) {
    this.emit('wire', { out: true, message });
    this.#returning?.sent(frame, ms);
    this.#put(frame);
  }

  /** Sends, unless the socket is closing, which browsers report as an error. @param {any} frame */
  #put(frame) {
    if (this.isOpen) this.#socket?.send(frame);
  }

  /**
   * Sends a unit of live audio. Late audio is worthless, so the oldest units are dropped if the network is too slow.
   * @param {any} message a field of it may be a promise
   * @param {Float32Array} audio the audio in it, 16 kHz
   */
  sendUnit(message, audio) {
    const ms = audio.length / 16;
    const [field, encoding] = Object.entries(message).find(([, value]) => value instanceof Promise) ?? [];
    if (field === undefined) return this.#sendNow(message, ms);
    void encoding.then((/** @type {Uint8Array} */ sound) => {
      this.#unfinished = { ...this.#unfinished, ...message, [field]: sound };
      // Audio that fills no packet is in the next unit, and so is the rest of its message.
      if (sound.length === 0) return;
      this.#sendNow(this.#unfinished, ms);
      this.#unfinished = {};
    });
  }

  /** What is in flight to the server. @type {import('./backlog.js').InFlight} */
  get #inFlight() {
    const returning = this.#returning?.isPossible ? this.#returning : null;
    return { bytes: () => this.#socket?.bufferedAmount ?? 0, ms: () => returning?.inFlightMs ?? 0 };
  }

  /** @param {any} message @param {number} ms of its audio */
  #sendNow(message, ms) {
    const isAway = this.phase === 'returning';
    if (!this.isOpen && !isAway) return;
    const inFlight = isAway || this.#returning?.isStalled(this.now()) ? null : this.#inFlight;
    const droppedMs = this.#backlog.push(message, ms, this.now(), inFlight, this.#post.bind(this));
    if (droppedMs === 0) return;
    this.dropped = Math.round(1000 * this.dropped + droppedMs) / 1000;
    this.emit('dropped', this.dropped);
  }

  /**
   * Ends the conversation: sends a message, waits for the answer and closes the socket.
   * @param {object | null} message the dialect's message for it; null if it has none
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

  /**
   * Ends the session over HTTP if the socket cannot: the server would otherwise keep the slot for a client that does
   * not come back.
   */
  #leave() {
    if (!this.#returning?.isPossible) return;
    // With `keepalive` the browser sends the request even if the page is closed before the answer.
    const init = { method: 'POST', keepalive: true };
    // Without a network the request fails, and the server frees the slot when the resume window ends.
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
