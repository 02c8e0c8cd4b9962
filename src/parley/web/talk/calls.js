/**
 * The calls of a page, one at a time. Pages listen to this object: a new call replaces the previous one, and its events
 * are emitted under the same names.
 */

import { Emitter } from '../emitter.js';
import { freshState } from './state.js';

/** @typedef {import('./call.js').Call<any, any>} AnyCall */

const FORWARDED = /** @type {const} */ (['change', 'level', 'wire', 'live', 'recorded', 'unit', 'metrics']);
const NO_CALL = freshState();

/**
 * @template C
 * @typedef {import('./kind.js').CallEvents & import('./duplex.js').DuplexCallEvents & {call: C, captions: import('./captions.js').Captions}} CallsEvents
 *   `call`: a new call was created; `captions`: its captions changed
 */

/** @template {AnyCall} C @extends {Emitter<CallsEvents<C>>} */
export class Calls extends Emitter {
  /** The current call, or the last one. @type {C | null} */
  current = null;
  #follow = new AbortController();

  /** @param {() => C} make */
  constructor(make) {
    super();
    this.make = make;
  }

  get state() {
    return this.current?.state ?? NO_CALL;
  }

  get isBusy() {
    return this.current?.isBusy ?? false;
  }

  get isLive() {
    return this.current?.isLive ?? false;
  }

  get isOn() {
    return this.current?.isOn ?? false;
  }

  /**
   * Starts a call; does nothing during another one.
   * @param {Parameters<C['start']>[0]} prepare
   * @returns {Promise<boolean>} true if it is connecting
   */
  start(prepare) {
    if (this.isBusy) return Promise.resolve(false);
    this.#follow.abort();
    this.#follow = new AbortController();
    this.current?.dispose();
    const call = this.make();
    this.current = call;
    const { signal } = this.#follow;
    for (const type of FORWARDED) {
      call.on(type, (detail) => this.emit(type, detail), signal);
    }
    call.captions.addEventListener('change', () => this.emit('captions', call.captions), { signal });
    this.emit('call', call);
    return call.start(prepare);
  }

  stop() {
    this.current?.stop();
  }
}
