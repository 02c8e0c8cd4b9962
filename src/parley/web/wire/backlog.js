/**
 * Live sound that cannot leave yet: the newest seconds on a slow network, because late sound is worth
 * nothing; while the call is away all that is said, up to the window in which it may come back.
 */

import { pack } from './sound.js';

/** What may wait in the socket before sound is held back, and what is held: on a line, and without one. */
const BUFFER_MS = 3000;
const HELD_MS = 2000;
const AWAY_MS = 30_000;

export class Backlog {
  /** @type {{frame: string | Uint8Array, message: any, ms: number}[]} */
  #units = [];
  /** Since when something waits; null: nothing does. @type {number | null} */
  #since = null;
  #isAway = false;

  /**
   * @param {any} message a unit
   * @param {number} ms how long it is
   * @param {number} now ms
   * @param {{bufferedAmount: number} | null} socket null: there is none now
   * @param {(frame: string | Uint8Array, message: any) => void} post
   * @returns {number} ms given up
   */
  push(message, ms, now, socket, post) {
    const frame = pack(message);
    this.#units.push({ frame, message, ms });
    const limit = (frame.length * BUFFER_MS) / ms;
    for (let next = this.#units[0]; next && socket && socket.bufferedAmount < limit; next = this.#units[0]) {
      this.#units.shift();
      post(next.frame, next.message);
    }
    this.#since = this.#units.length === 0 ? null : (this.#since ?? now);
    // What was said while the call was away is sent whole, however slowly it leaves.
    this.#isAway = socket === null || (this.#isAway && this.#heldMs() > HELD_MS);
    const before = this.#heldMs();
    while (this.#heldMs() > (this.#isAway ? AWAY_MS : HELD_MS)) this.#drop();
    return before - this.#heldMs();
  }

  #heldMs() {
    return this.#units.reduce((sum, { ms }) => sum + ms, 0);
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
