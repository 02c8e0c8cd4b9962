/** Base class of the kinds of call: each creates its own client and overrides the callbacks it needs. */

import { Emitter } from '../emitter.js';

/**
 * @typedef {object} CallEvents
 * @property {import('./state.js').CallState} change
 * @property {{mic: number, voice: number}} level
 * @property {{out: boolean, message: any}} wire
 * @property {{isFirst: boolean}} live
 * @property {Blob | null} recorded once, after the end, if a recording was made
 */

/** @template {import('./state.js').Order} O @template {CallEvents} [Events=CallEvents] @extends {Emitter<Events>} */
export class CallKind extends Emitter {
  /** @param {O} _order @param {string} _said @returns {import('../wire/connection.js').Connection} */
  makeClient(_order, _said) {
    throw new Error('a kind of call makes its own client');
  }

  /** Ends the conversation on the server. */
  hangUp() {}
  /** @param {any} _client @param {AbortSignal} _signal */
  wire(_client, _signal) {}
  pause() {}
  onReady() {}
  /** Called when the session was resumed over another connection. */
  onReturned() {}
  /** Called when the connection is lost and the call will reconnect. */
  onCut() {}
  /** @param {number} _mic @param {number} _voice */
  onLevel(_mic, _voice) {}
  /** @param {import('../audio/rig.js').Position} _position */
  onPosition(_position) {}
  /** @param {number} _turn */
  onStarted(_turn) {}
  /** @param {number} _turn */
  onDrained(_turn) {}
  /** @param {{turn: number, index: number, ms: number}} _gap */
  onGap(_gap) {}
  onEnded() {}

  /** Returns the time for which an answer has been due, in ms; 0 if none is. */
  waitingMs() {
    return 0;
  }
}
