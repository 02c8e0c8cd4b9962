/** What a kind of call fills in: its own client, and what it does when something happens to the call. */

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

  /** Say goodbye over the wire. */
  hangUp() {}
  /** @param {any} _client @param {AbortSignal} _signal */
  wire(_client, _signal) {}
  pause() {}
  onReady() {}
  /** The same session, over another connection. */
  onReturned() {}
  /** The connection is gone and will be made again. */
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

  /** How long an answer has been due, in ms; 0 while none is. */
  waitingMs() {
    return 0;
  }
}
