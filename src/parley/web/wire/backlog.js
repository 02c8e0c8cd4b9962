/**
 * Live sound that cannot leave yet: the newest seconds on a slow network, because late sound is worth
 * nothing; while the call is away all that is said, up to the window in which it may come back.
 */

import { pack } from './sound.js';

/** What may wait in the socket before sound is held back, and what is held: on a line, and without one. */
const BUFFER_MS = 3000;
const HELD_MS = 2000;
const AWAY_MS = 30_000;
/** The sizes of so much sound say how many bytes a second takes: one piece of it has a picture. */
const MEASURED_MS = 1000;

/** @param {{ms: number}[]} pieces */
const msOf = (pieces) => pieces.reduce((sum, { ms }) => sum + ms, 0);

export class Backlog {
  /** @type {{frame: string | Uint8Array, message: any, ms: number}[]} */
  #units = [];
  /** Of the last second of sound, oldest first. @type {{size: number, ms: number}[]} */
  #sizes = [];
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
    const limit = this.#bytesPerMs(frame.length, ms) * BUFFER_MS;
    for (let next = this.#units[0]; next && socket && socket.bufferedAmount < limit; next = this.#units[0]) {
      this.#units.shift();
      post(next.frame, next.message);
    }
    this.#since = this.#units.length === 0 ? null : (this.#since ?? now);
    // What was said while the call was away is sent whole, however slowly it leaves.
    const before = msOf(this.#units);
    this.#isAway = socket === null || (this.#isAway && before > HELD_MS);
    while (msOf(this.#units) > (this.#isAway ? AWAY_MS : HELD_MS)) this.#drop();
    return before - msOf(this.#units);
  }

  /** @param {number} size of the newest unit @param {number} ms */
  #bytesPerMs(size, ms) {
    this.#sizes.push({ size, ms });
    while (msOf(this.#sizes.slice(1)) >= MEASURED_MS) this.#sizes.shift();
    return this.#sizes.reduce((sum, one) => sum + one.size, 0) / msOf(this.#sizes);
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
