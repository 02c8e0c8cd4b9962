/**
 * Units of live sound that cannot leave yet: the newest few on a slow network, because late sound is worth
 * nothing; while the call is away all that is said, up to the window in which it may come back.
 */

import { pack } from './sound.js';

/** What may wait in the socket before units are held back, and how many are held: on a line, and without one. */
const BUFFER_UNITS = 3;
const HELD_UNITS = 2;
const AWAY_UNITS = 30;

export class Backlog {
  /** @type {{frame: string | Uint8Array, message: any}[]} */
  #units = [];
  /** Since when something waits; null: nothing does. @type {number | null} */
  #since = null;
  #isAway = false;

  /**
   * @param {any} message a unit
   * @param {number} now ms
   * @param {{bufferedAmount: number} | null} socket null: there is none now
   * @param {(frame: string | Uint8Array, message: any) => void} post
   * @returns {number} units given up
   */
  push(message, now, socket, post) {
    const frame = pack(message);
    this.#units.push({ frame, message });
    const limit = frame.length * BUFFER_UNITS;
    for (let next = this.#units[0]; next && socket && socket.bufferedAmount < limit; next = this.#units[0]) {
      this.#units.shift();
      post(next.frame, next.message);
    }
    this.#since = this.#units.length === 0 ? null : (this.#since ?? now);
    // What was said while the call was away is sent whole, however slowly it leaves.
    this.#isAway = socket === null || (this.#isAway && this.#units.length > HELD_UNITS);
    let dropped = 0;
    while (this.#units.length > (this.#isAway ? AWAY_UNITS : HELD_UNITS)) {
      this.#drop();
      dropped++;
    }
    return dropped;
  }

  #drop() {
    const old = this.#units.shift();
    const [next] = this.#units;
    // A request to be silent is not late sound: it moves to the unit that follows.
    if (!old?.message.force_listen || !next) return;
    next.message = { ...next.message, force_listen: true };
    next.frame = pack(next.message);
  }

  clear() {
    this.#units.length = 0;
  }

  /** For how long units have been waiting, in ms. @param {number} now */
  waitedMs(now) {
    return this.#since === null ? 0 : now - this.#since;
  }
}
