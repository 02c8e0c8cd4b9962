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
  /** Messages that were sent and may not have arrived, oldest first. @type {(string | Uint8Array)[]} */
  #unsure = [];
  #unsureSize = 0;
  #received = 0;
  #seqAtReturn = 0;

  /** True if the server keeps the session for us. */
  get isPossible() {
    return this.token !== '';
  }

  /** True if a message has arrived over the current connection; if none arrives, another connection would not help. */
  get hasHeard() {
    return this.#seq > this.#seqAtReturn;
  }

  /** @param {string | Uint8Array} frame a message that is about to be sent */
  sent(frame) {
    this.#unsure.push(frame);
    this.#unsureSize += frame.length;
    while (this.#unsureSize > UNSURE_LIMIT && this.#unsure.length > 1) this.#drop();
  }

  #drop() {
    this.#received++;
    this.#unsureSize -= this.#unsure.shift()?.length ?? 0;
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
   * @param {any} granted its `session.resumed`
   * @returns {(string | Uint8Array)[]} what to send now: the acknowledgement, and the messages that were lost
   */
  granted(granted) {
    this.take({ ...granted, seq: 0 });
    this.#generation = granted.generation;
    this.#seqAtReturn = this.#seq;
    // The messages sent again continue after the last one that the server received, even if some in between had to be
    // dropped.
    this.#received = granted.received;
    return [JSON.stringify(this.#ack()), ...this.#unsure];
  }
}
