/**
 * Countdown of the estimated wait in a queue. It runs by itself, and an update can only lower it unless the place has
 * changed. Below zero it counts the time by which the estimate is exceeded.
 */
export class Countdown {
  /** @type {{position: number, length: number, dueAt: number | null} | null} */
  #place = null;

  /** @param {() => number} [now] ms */
  constructor(now = () => performance.now()) {
    this.now = now;
  }

  /** @param {import('../wire/place.js').Place | null} place */
  update(place) {
    if (!place) {
      this.#place = null;
      return;
    }
    const dueAt = place.waitS === null ? null : this.now() + place.waitS * 1000;
    const before = this.#place;
    const samePlace = before !== null && before.position === place.position;
    const keep = samePlace && before.dueAt !== null && (dueAt === null || dueAt > before.dueAt);
    this.#place = {
      position: place.position,
      length: Math.max(place.length, place.position),
      dueAt: keep ? before.dueAt : dueAt,
    };
  }

  /** @returns {{position: number, length: number, leftS: number | null} | null} leftS below zero if overdue */
  read() {
    if (!this.#place) return null;
    const { position, length, dueAt } = this.#place;
    return { position, length, leftS: dueAt === null ? null : Math.round((dueAt - this.now()) / 1000) };
  }
}
