/**
 * The life of one conversation's socket, the same for every dialect: connecting, waiting in the queue,
 * ready, over. Knows JSON and close codes, nothing of sound, and no DOM.
 *
 * Events (`CustomEvent.detail`):
 *   phase    Phase
 *   queue    Place, while waiting; null when the wait is over
 *   ready    {sessionId, recordingId}       the conversation may begin
 *   trouble  {code, sentence}               something failed, the conversation goes on
 *   dropped  number                         units given up so far because the network is too slow
 *   ended    Ending                         exactly once
 *   wire     {out: boolean, message}        every message, for those who watch
 * and what the dialect adds.
 *
 * A connection that breaks before the conversation is ready is made again, with growing pauses: nothing
 * is lost by it but the place in the queue. After that a break is the end; the server frees the place at
 * once and there is nothing to return to.
 */

import { FINAL_CODES, Returning } from './returning.js';
import { at } from './root.js';

/** @typedef {'new' | 'connecting' | 'queued' | 'assigned' | 'ready' | 'returning' | 'stopping' | 'ended'} Phase */
/** @typedef {{position: number, length: number, waitS: number | null, ticketId: string}} Place */
/**
 * stopped: we asked · cancelled: someone took us out of the queue · busy: no room, try later ·
 * refused: not allowed · bad: we said something the server could not use · failed: the server's fault ·
 * lost: the network
 * @typedef {'stopped' | 'cancelled' | 'timeout' | 'context_full' | 'server_shutdown' | 'busy' | 'refused' |
 *   'bad' | 'failed' | 'lost'} Reason
 */
/** @typedef {{reason: Reason, code: string, sentence: string, wasReady: boolean}} Ending */

/** How long a `stop` may take before the socket is closed from this side. Source: web client spec 5. */
const STOP_WAIT_MS = 2000;
/** A handshake that takes longer is a network without an answer. */
const OPEN_WAIT_MS = 10000;
/** How long after an error its `close` is waited for. */
const ERROR_WAIT_MS = 100;
/** Pauses before and between attempts to go on with a session. */
const RETURN_FIRST_MS = 100;
const RETURN_MS = 1000;
/** Messages that wait for the line to come back, units not counted. */
const LATER_LIMIT = 64;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
/** What may wait in the socket before units are held back, and how many are held. */
const BUFFER_UNITS = 3;
const HELD_UNITS = 2;

/**
 * @typedef {{base?: string, token?: string} & Surroundings} Where the server (the page's own by default), and a key for it
 */
/**
 * @typedef {object} Surroundings what tests replace
 * @property {(url: string) => WebSocket} [connect]
 * @property {(callback: () => void, ms: number) => unknown} [setTimer]
 * @property {(timer: any) => void} [clearTimer]
 * @property {() => number} [now] ms
 * @property {boolean} [resume] go on with the session when the line breaks, where the server offers it; true
 */

/** @param {number} code @param {string} serverCode @returns {Reason} */
export function reasonOf(code, serverCode) {
  if (serverCode === 'context_full') return 'context_full';
  if (serverCode === 'cancelled') return 'cancelled';
  switch (code) {
    case 1000:
      return 'stopped';
    case 1001:
      return 'server_shutdown';
    case 1003:
    case 1007:
    case 1009:
      return 'bad';
    case 1008:
      return [
        'invalid_payload',
        'invalid_config',
        'invalid_request',
        'missing_field',
        'unknown_event',
        'invalid_event',
        'not_prepared',
      ].includes(serverCode)
        ? 'bad'
        : 'refused';
    case 1013:
      return 'busy';
    case 1006:
    case 1005:
      return 'lost';
    default:
      return 'failed';
  }
}

export class Connection extends EventTarget {
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
  #hasHeard = false;
  #hasOpened = false;
  /** @type {{text: string, message: any}[]} */
  #held = [];
  /** Since when units are being held back; null: none is. @type {number | null} */
  #heldSince = null;
  /** From the first message on, where the session may be gone on with. @type {Returning | null} */
  #returning = null;
  #lostAt = 0;
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
    this.connect = surroundings.connect ?? ((/** @type {string} */ to) => new WebSocket(to));
    this.setTimer = surroundings.setTimer ?? ((callback, ms) => setTimeout(callback, ms));
    this.clearTimer = surroundings.clearTimer ?? ((timer) => clearTimeout(timer));
    this.now = surroundings.now ?? (() => performance.now());
    this.asksToResume = surroundings.resume ?? true;
  }

  /** Whether a break of the line may be mended. Chat narrows it: only while nothing was received. */
  get mayRetry() {
    return this.phase === 'connecting' || this.phase === 'queued' || this.phase === 'assigned';
  }

  get hasHeard() {
    return this.#hasHeard;
  }

  open() {
    if (this.phase !== 'new') throw new Error(`a connection is opened once, this one is ${this.phase}`);
    this.#dial();
  }

  #dial() {
    this.#enter('connecting');
    this.#farewell = {};
    const socket = this.connect(this.url);
    this.#socket = socket;
    this.#timer = this.setTimer(() => this.#broken(socket, 1006, ''), OPEN_WAIT_MS);
    socket.onopen = () => {
      if (socket !== this.#socket) return;
      this.clearTimer(this.#timer);
      this.openedAt = this.now();
      this.#hasOpened = true;
      this.onOpen();
    };
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(data);
    };
    socket.onclose = ({ code, reason }) => this.#broken(socket, code, reason);
    // In browsers `close` follows at once and says more. Node ends a refused connection with this alone.
    socket.onerror = () => {
      if (socket !== this.#socket || socket.readyState === 1) return;
      this.clearTimer(this.#timer);
      this.#timer = this.setTimer(() => this.#broken(socket, 1006, ''), ERROR_WAIT_MS);
    };
  }

  /** @param {Phase} phase */
  #enter(phase) {
    if (phase === this.phase) return;
    this.phase = phase;
    this.tell('phase', phase);
  }

  /** @param {string} type @param {unknown} detail */
  tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** @param {unknown} data */
  #receive(data) {
    if (typeof data !== 'string') return;
    let message;
    try {
      message = JSON.parse(data);
    } catch (error) {
      console.warn('a message that is not JSON was ignored', error);
      return;
    }
    if (this.phase === 'ended') return;
    if (this.phase === 'returning') return this.#onReturn(message);
    if (this.#returning && !this.#count(message)) return;
    this.#hasHeard = true;
    // A reason is one for the close that follows it, and not for a later one.
    this.#farewell = {};
    this.tell('wire', { out: false, message });
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
    if (socket.readyState < 2) socket.close();
    if (!this.#hasOpened) reason ||= unreachable(this.url);
    const why = this.#farewell.reason ?? reasonOf(code, this.#farewell.code ?? '');
    if (why === 'lost' && this.mayRetry && this.#attempt < this.retryMs.length) {
      const pause = this.retryMs[this.#attempt++];
      this.#enter('connecting');
      this.tell('queue', null);
      this.tell('retrying', { attempt: this.#attempt, inMs: pause, sentence: reason });
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
    this.#end({
      reason: this.phase === 'stopping' && why === 'lost' ? 'stopped' : why,
      code: this.#farewell.code ?? '',
      sentence: this.#farewell.sentence ?? reason,
    });
  }

  // Going on over another connection

  /** @param {any} message @returns {boolean} whether it is news for the dialect */
  #count(message) {
    const isNew = this.#returning?.take(message);
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
      const socket = this.connect(`${this.url}${this.url.includes('?') ? '&' : '?'}resume=true`);
      this.#socket = socket;
      this.#timer = this.setTimer(() => this.#broken(socket, 1006, ''), OPEN_WAIT_MS);
      socket.onopen = () => {
        if (socket === this.#socket) socket.send(JSON.stringify(this.#returning?.request()));
      };
      socket.onmessage = ({ data }) => {
        if (socket === this.#socket) this.#receive(data);
      };
      socket.onclose = ({ code, reason }) => this.#broken(socket, code, reason);
    }, pause);
  }

  /** The answer to the wish to go on. @param {any} message */
  #onReturn(message) {
    const socket = /** @type {WebSocket} */ (this.#socket);
    if (message.type === 'session.resume_failed') {
      this.#socket = null;
      this.#end(this.#break);
      socket.close(1000);
    } else if (message.type === 'session.resumed') this.#returned(socket, message);
    // Anything else: this server is too busy, or knows nothing of this.
    else this.#broken(socket, 1006, '');
  }

  /** @param {WebSocket} socket @param {any} granted */
  #returned(socket, granted) {
    this.clearTimer(this.#timer);
    const awayMs = this.now() - this.#lostAt;
    // The server's clock stood still meanwhile.
    this.openedAt += awayMs;
    this.#farewell = {};
    for (const text of /** @type {Returning} */ (this.#returning).granted(granted)) socket.send(text);
    this.#enter('ready');
    for (const message of this.#later.splice(0)) this.send(message);
    this.tell('returned', { awayMs });
  }

  /** @param {{reason: Reason, code: string, sentence: string}} ending */
  #end(ending) {
    if (this.phase === 'ended') return;
    this.clearTimer(this.#timer);
    this.#held.length = this.#later.length = 0;
    this.#enter('ended');
    this.tell('ended', { ...ending, wasReady: this.sessionId !== '' });
  }

  // For the dialects

  /** The socket is open. */
  onOpen() {}

  /** @param {any} _message */
  onMessage(_message) {}

  /** @param {Place & {}} place */
  waiting(place) {
    this.#attempt = 0;
    this.#enter('queued');
    this.tell('queue', place);
  }

  assigned() {
    this.#enter('assigned');
    this.tell('queue', null);
  }

  /** @param {{sessionId: string, recordingId?: string}} session */
  ready({ sessionId, recordingId = '' }) {
    this.sessionId = sessionId;
    this.recordingId = recordingId;
    this.#enter('ready');
    this.tell('ready', { sessionId, recordingId });
  }

  /** Why the close that follows happens. @param {Partial<Ending>} why */
  farewell(why) {
    this.#farewell = why;
  }

  /** The dialect's last word has come: nobody waits for the close frame. @param {Partial<Ending>} why */
  finish(why) {
    const socket = this.#socket;
    this.#socket = null;
    this.#end({ reason: why.reason ?? 'stopped', code: why.code ?? '', sentence: why.sentence ?? '' });
    if (socket && socket.readyState < 2) socket.close(1000);
  }

  /** Whether sound is wanted now; what cannot leave yet waits, the newest of it. */
  get takesUnits() {
    return this.phase === 'ready' || this.phase === 'returning';
  }

  get isOpen() {
    return this.#socket?.readyState === 1;
  }

  /** For how long units have been waiting because nothing leaves the socket. */
  stuckMs() {
    return this.#heldSince === null ? 0 : this.now() - this.#heldSince;
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
    this.#post(JSON.stringify(message), message);
    return true;
  }

  /** @param {string} text @param {object} message */
  #post(text, message) {
    this.tell('wire', { out: true, message });
    this.#returning?.sent(text);
    this.#socket?.send(text);
  }

  /**
   * A unit of live sound: late sound is worth nothing, so while the network is behind the oldest goes.
   * @param {any} message
   */
  sendUnit(message) {
    const isAway = this.phase === 'returning';
    if (!this.isOpen && !isAway) return;
    const text = JSON.stringify(message);
    this.#held.push({ text, message });
    const limit = text.length * BUFFER_UNITS;
    while (!isAway && this.#held.length > 0 && /** @type {WebSocket} */ (this.#socket).bufferedAmount < limit) {
      const next = /** @type {{text: string, message: any}} */ (this.#held.shift());
      this.#post(next.text, next.message);
    }
    this.#heldSince = this.#held.length === 0 ? null : (this.#heldSince ?? this.now());
    while (this.#held.length > HELD_UNITS) {
      const old = /** @type {{text: string, message: any}} */ (this.#held.shift());
      // A request to be silent is not late sound: it moves to the unit that follows.
      if (old.message.force_listen && this.#held[0]) {
        this.#held[0].message = { ...this.#held[0].message, force_listen: true };
        this.#held[0].text = JSON.stringify(this.#held[0].message);
      }
      this.tell('dropped', ++this.dropped);
    }
  }

  /**
   * End on purpose: say so, wait for the answer, close.
   * @param {object | null} message the dialect's word for it; null where it has none
   */
  stop(message) {
    if (this.phase === 'ended' || this.phase === 'stopping') return;
    if (this.phase === 'new' || this.phase === 'returning' || !this.isOpen || !message) {
      this.finish({ reason: 'stopped' });
      return;
    }
    this.send(message);
    this.#enter('stopping');
    this.#timer = this.setTimer(() => this.finish({ reason: 'stopped' }), STOP_WAIT_MS);
  }
}

/**
 * What to look at when nobody answers. Pages have words of their own for it.
 * @param {string} address
 */
function unreachable(address) {
  if ('document' in globalThis) return '';
  const { origin, protocol, host } = new URL(address);
  const hint =
    protocol === 'wss:'
      ? 'If the server made its own certificate, start Node with NODE_EXTRA_CA_CERTS=certs/cert.pem.'
      : `If the server speaks HTTPS, its address is https://${host}.`;
  return `No connection to ${origin}. Is the server running, and is the port right? ${hint}`;
}

/** @param {any} message a queue event of any dialect @returns {Place} */
export function placeOf(message) {
  return {
    position: message.position,
    length: message.queue_length ?? message.position,
    waitS: message.estimated_wait_s ?? message.eta_seconds ?? null,
    ticketId: message.ticket_id ?? '',
  };
}

/**
 * The address of a socket on this page's host, or on another server. `extensions` asks for what the published protocol
 * does not name: recordings, tickets, error codes of our own.
 * @param {string} path
 * @param {string} [base] like `https://server:8006`, or with a path where a proxy offers the server; the page's own host
 *   by default
 * @param {string} [token] a key, or a session token; browsers cannot send it in a header
 */
export function socketUrl(path, base, token) {
  const url = base
    ? new URL(base.replace(/[?#].*$/, '').replace(/\/*$/, '') + path)
    : new URL(at(path), globalThis.location?.href);
  url.protocol = url.protocol.replace(/^http/, 'ws');
  if (token) url.searchParams.set('token', token);
  url.searchParams.set('extensions', 'true');
  return url.href;
}

/** An id for a conversation: unguessable, because its recording can be asked for by it. @param {string} prefix */
export function makeSessionId(prefix) {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return prefix + Array.from(random, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
