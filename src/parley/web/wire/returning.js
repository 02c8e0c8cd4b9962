/**
 * State that a client needs to resume its session over another connection: a token, and the numbers of the messages
 * received and sent. Source: docs/protocols/resume.md. Does not use sockets.
 */

/** The server receives an acknowledgement after this many messages, or this many characters or bytes of them. */
const ACK_EVERY = 32;
const ACK_SIZE = 2e6;
/**
 * Maximum size of the messages that are kept because the server may not have received them, in characters or bytes; the
 * oldest are dropped first.
 */
const UNSURE_LIMIT = 8e6;
/** Time without a message after which the server is asked for one, and time for which that is waited for. */
const QUIET_MS = 2500;
const ANSWER_MS = 3500;
/** Time for which an answer is due until nothing gets through. */
const STALLED_MS = 1000;
/** Audio in flight after which the server is asked how much has arrived. */
const MUCH_MS = 2000;
/** Number of connections without a message after which no other one is tried. */
const IN_VAIN_LIMIT = 3;
/** Close codes after which the session cannot be resumed. */
export const FINAL_CODES = [1000, 4404, 4409];
/** Close code with which the client drops a connection but keeps the session. */
export const CUT_CODE = 4006;

export class Returning {
  sessionId = '';
  token = '';
  windowS = 0;
  #seq = 0;
  #acknowledged = 0;
  #unacknowledgedSize = 0;
  #generation = 0;
  /**
   * Messages that were sent and may not have been received, oldest first, and the audio in them.
   * @type {{frame: string | Uint8Array, ms: number}[]}
   */
  #unsure = [];
  #unsureSize = 0;
  #received = 0;
  /** Number of the messages that have arrived; the server may not have stored the last ones. */
  #arrived = 0;
  /** Milliseconds of audio that were sent and may not have arrived. */
  inFlightMs = 0;
  /** Time of the server's newest message. */
  #heardAt = 0;
  /** Time at which the server was asked for an answer that has not come; null if it was not. @type {number | null} */
  #askedAt = null;
  /** Number of connections since the server's last message. */
  #inVain = 0;

  /** True if the server keeps the session for us. */
  get isPossible() {
    return this.token !== '';
  }

  /** True if a message has arrived over the current connection; if none arrives, another connection would not help. */
  get hasHeard() {
    return this.#inVain === 0;
  }

  /** Returns the time for which an answer has been due and nothing at all has come, in ms. @param {number} now */
  #silentMs(now) {
    return this.#askedAt === null ? 0 : now - Math.max(this.#askedAt, this.#heardAt);
  }

  /** True if nothing gets through at the moment. @param {number} now */
  isStalled(now) {
    return this.#silentMs(now) > STALLED_MS;
  }

  /** True if the network has lost the connection without closing it. @param {number} now */
  isDeaf(now) {
    return this.#silentMs(now) > ANSWER_MS;
  }

  /** Returns the question to the server that is due now; null if none is. @param {number} now */
  dueQuestion(now) {
    if (!this.isPossible || this.#askedAt !== null) return null;
    if (now - this.#heardAt < QUIET_MS && this.inFlightMs < MUCH_MS) return null;
    this.#askedAt = now;
    return { ...this.#ack(), ask: true };
  }

  /** True if connections were silent often enough that another one would not help. */
  get isInVain() {
    return this.#inVain >= IN_VAIN_LIMIT;
  }

  /** @param {string | Uint8Array} frame a message that is about to be sent @param {number} [ms] of audio */
  sent(frame, ms = 0) {
    this.#unsure.push({ frame, ms });
    this.#unsureSize += frame.length;
    this.inFlightMs += ms;
    while (this.#unsureSize > UNSURE_LIMIT && this.#unsure.length > 1) this.#drop();
  }

  #drop() {
    const first = this.#unsure.shift();
    this.#unsureSize -= first?.frame.length ?? 0;
    if (this.#arrived === this.#received++) this.#arrive(first?.ms ?? 0);
  }

  /** @param {number} ms of the next message that has arrived */
  #arrive(ms) {
    this.#arrived++;
    this.inFlightMs -= ms;
  }

  /** Called with every message of the server. @param {any} message @param {number} now ms */
  heard({ arrived }, now) {
    this.#heardAt = now;
    this.#inVain = 0;
    if (arrived === undefined) return;
    this.#askedAt = null;
    for (const { ms } of this.#unsure.slice(this.#arrived - this.#received, arrived - this.#received)) this.#arrive(ms);
  }

  /**
   * Counts a message of the server.
   * @param {any} message
   * @param {number} [size] of the message as received
   * @returns {boolean} false if it was received before
   */
  take({ seq, received, session_id: id, resume_token: token, resume_window_s: windowS }, size = 0) {
    while (this.#received < (received ?? 0) && this.#unsure.length > 0) this.#drop();
    if (token) Object.assign(this, { token, windowS, sessionId: id });
    if (!seq) return true;
    if (seq <= this.#seq) return false;
    this.#seq = seq;
    this.#unacknowledgedSize += size;
    return true;
  }

  /** Returns the acknowledgement that is due now; null if none is. */
  dueAck() {
    const isDue = this.#seq - this.#acknowledged >= ACK_EVERY || this.#unacknowledgedSize >= ACK_SIZE;
    return this.isPossible && isDue ? this.#ack() : null;
  }

  #ack() {
    this.#acknowledged = this.#seq;
    this.#unacknowledgedSize = 0;
    return { type: 'session.ack', seq: this.#seq, generation: this.#generation };
  }

  /** Returns the first message of the next connection. */
  request() {
    const sent = this.#received + this.#unsure.length;
    return { type: 'session.resume', session_id: this.sessionId, resume_token: this.token, seq: this.#seq, sent };
  }

  /**
   * Processes the server's consent to resume the session.
   * @param {any} granted its `session.resumed` @param {number} now ms
   * @returns {(string | Uint8Array)[]} what to send now: the acknowledgement, and the messages that were lost
   */
  granted(granted, now) {
    this.take({ ...granted, seq: 0 });
    this.#generation = granted.generation;
    this.#heardAt = now;
    this.#askedAt = null;
    this.#inVain++;
    // The messages sent again continue after the last one that the server received, even if some in between had to be
    // dropped.
    this.#received = this.#arrived = granted.received;
    this.inFlightMs = this.#unsure.reduce((sum, { ms }) => sum + ms, 0);
    return [JSON.stringify(this.#ack()), ...this.#unsure.map(({ frame }) => frame)];
  }
}
