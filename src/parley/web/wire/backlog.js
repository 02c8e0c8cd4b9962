/**
 * Queue of live audio that cannot be sent yet. On a slow network it holds the newest seconds, because late audio is
 * worthless. While nothing gets through it holds everything that is said, as long as the session can be resumed.
 *
 * The buffer of a socket shows little of what is in flight: the system and the network hold seconds of small messages.
 * What the server has acknowledged shows the rest.
 */

import { pack } from './sound.js';

/** @typedef {{bytes: () => number, ms: () => number}} InFlight `bytes` in the socket's buffer, `ms` not acknowledged */

/**
 * Maximum audio in flight before units are queued, and maximum audio in the queue, while something gets through and
 * while nothing does.
 */
const BUFFER_MS = 3000;
const HELD_MS = 2000;
const AWAY_MS = 30_000;
/** Audio over which the bytes per second are averaged: one of its units also carries a picture. */
const MEASURED_MS = 1000;

/** @param {{ms: number}[]} pieces */
const msOf = (pieces) => pieces.reduce((sum, { ms }) => sum + ms, 0);

export class Backlog {
  /** @type {{frame: string | Uint8Array, message: any, ms: number}[]} */
  #units = [];
  /** Sizes of the units in the last second of audio, oldest first. @type {{size: number, ms: number}[]} */
  #sizes = [];
  /** Time since which units have been waiting; null if none are. @type {number | null} */
  #since = null;
  #isAway = false;

  /**
   * @param {any} message a unit
   * @param {number} ms its duration
   * @param {number} now ms
   * @param {InFlight | null} inFlight null if nothing gets through
   * @param {(frame: string | Uint8Array, message: any, ms: number) => void} post
   * @returns {number} ms of audio that were dropped
   */
  push(message, ms, now, inFlight, post) {
    const frame = pack(message);
    this.#units.push({ frame, message, ms });
    const limit = this.#bytesPerMs(frame.length, ms) * BUFFER_MS;
    const hasRoom = () => inFlight !== null && inFlight.bytes() < limit && inFlight.ms() < BUFFER_MS;
    for (let next = this.#units[0]; next && hasRoom(); next = this.#units[0]) {
      this.#units.shift();
      post(next.frame, next.message, next.ms);
    }
    this.#since = this.#units.length === 0 ? null : (this.#since ?? now);
    // What was said while nothing got through is sent completely, however slow the network is.
    const before = msOf(this.#units);
    this.#isAway = inFlight === null || (this.#isAway && before > HELD_MS);
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
    // `force_listen` is not audio and must not be dropped: it moves to the next unit.
    if (!old?.message.force_listen || !next) return;
    next.message = { ...next.message, force_listen: true };
    next.frame = pack(next.message);
  }

  clear() {
    this.#units.length = 0;
  }

  /** Returns the time for which units have been waiting, in ms. @param {number} now */
  waitedMs(now) {
    return this.#since === null ? 0 : now - this.#since;
  }
}
