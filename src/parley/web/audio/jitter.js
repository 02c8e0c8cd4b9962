/**
 * Playback queue for speech that plays without gaps and can be silenced immediately.
 *
 * Speech arrives in chunks, and some arrive late. The queue therefore waits for `delay` before it starts a turn. If it
 * runs empty in the middle of a turn, it does not play each late chunk on arrival, which would turn one stall into
 * many: it fills up again and from then on waits longer, up to 600 ms, depending on the arrivals. A turn that follows
 * another is appended to it. All times are counted in samples read, so a test needs no clock.
 *
 * states: idle ─push→ filling ─delay over, or turn complete→ playing ─dry→ starved ─push→ filling
 *                                                            playing ─turn's last sample→ idle (or the next turn)
 *         any ─flush→ fading → idle, or filling if new speech has arrived meanwhile
 */

/**
 * @typedef {{type: 'started', turn: number}
 *   | {type: 'gap', turn: number, index: number, ms: number}
 *   | {type: 'drained', turn: number, played: number}
 *   | {type: 'flushed', turn: number, played: number}
 *   | {type: 'silent', turn: number, played: number}} PlaybackEvent flushed: the fade starts; silent: the fade is
 *   complete
 */

const MAX_DELAY_MS = 600;
/** Fade at the edges of speech: a shorter one clicks, a longer one swallows consonants. */
const EDGE_MS = 5;
/** Audio queued beyond the delay with which a turn starts without waiting. */
const PLENTY_MS = 1000;

export class PlaybackBuffer {
  /**
   * @param {{rateHz?: number, delayMs?: number, onEvent?: (event: PlaybackEvent) => void}} [options]
   */
  constructor({ rateHz = 24000, delayMs = 200, onEvent = () => {} } = {}) {
    this.rateHz = rateHz;
    this.onEvent = onEvent;
    this.baseDelayMs = delayMs;
    this.lateMs = 0;
    this.edge = Math.round((rateHz * EDGE_MS) / 1000);

    /** @type {{turn: number, samples: Float32Array, from: number}[]} */
    this.queue = [];
    this.ahead = 0;
    /** Turns whose last sample has been pushed. @type {Set<number>} */
    this.complete = new Set();
    /** @type {'idle' | 'filling' | 'playing' | 'starved' | 'fading'} */
    this.state = 'idle';

    this.clock = 0;
    this.turn = -1;
    this.played = 0;
    this.gaps = 0;
    this.shiftMs = 0;
    this.waitedFrom = 0;
    /** Number of the first sample that was missing; -1: none was. */
    this.starvedFrom = -1;
    this.turnBegan = -1;
    this.turnPushed = 0;
    this.pushTurn = -1;
    this.fadeIn = 0;
    this.fade = new Float32Array(0);
    this.fadeAt = 0;
    this.last = 0;
    this.sumSquares = 0;
    this.sumCount = 0;
  }

  /** Time for which a turn waits before it starts. */
  get delayMs() {
    return Math.max(this.baseDelayMs, this.lateMs > 0 ? Math.min(MAX_DELAY_MS, this.lateMs + 30) : 0);
  }

  get aheadMs() {
    return (this.ahead / this.rateHz) * 1000;
  }

  get isSounding() {
    return this.state !== 'idle';
  }

  /**
   * Adds speech of a turn. Turns play in the order in which they first appear.
   * @param {number} turn
   * @param {Float32Array} samples
   * @param {boolean} [last] true if these are the last samples of the turn
   */
  push(turn, samples, last = false) {
    this.#noteArrival(turn, samples.length);
    if (samples.length > 0) {
      this.queue.push({ turn, samples, from: 0 });
      this.ahead += samples.length;
      if (this.state === 'starved' && this.clock === this.starvedFrom) {
        // Just in time: no sample was missing.
        this.starvedFrom = -1;
        this.state = 'playing';
      } else if (this.state === 'idle' || this.state === 'starved') {
        this.state = 'filling';
        this.waitedFrom = this.clock;
      }
    }
    if (last) this.endTurn(turn);
  }

  /** Marks a turn as complete. @param {number} turn */
  endTurn(turn) {
    if (turn < this.turn) return;
    this.complete.add(turn);
    if (this.state === 'starved' && turn === this.turn) this.#drained();
  }

  /**
   * Silences the playback: what is playing fades out within `fadeMs`, and the queue is cleared.
   * @param {number} [fadeMs]
   */
  flush(fadeMs = 40) {
    if (this.state === 'idle') return;
    const { turn, played } = this;
    const wasSounding = this.state === 'playing' || this.state === 'fading';
    if (this.state === 'playing') this.fade = this.#takeFade(Math.round((this.rateHz * fadeMs) / 1000));
    this.queue.length = 0;
    this.ahead = 0;
    this.complete.clear();
    this.pushTurn = -1;
    this.starvedFrom = -1;
    this.state = wasSounding ? 'fading' : 'idle';
    this.onEvent({ type: 'flushed', turn, played });
  }

  /** Returns the next samples of the queue with a fade-out applied. @param {number} count */
  #takeFade(count) {
    const fade = new Float32Array(count);
    let at = 0;
    for (const { samples, from } of this.queue) {
      for (let i = from; i < samples.length && at < count; i++, at++) fade[at] = samples[i] * (1 - at / count);
    }
    this.fadeAt = 0;
    return fade;
  }

  /** Returns the RMS level of the samples read since the last call. */
  takeLevel() {
    const level = this.sumCount ? Math.sqrt(this.sumSquares / this.sumCount) : 0;
    this.sumSquares = this.sumCount = 0;
    return level;
  }

  /**
   * Writes the next samples for the loudspeaker to `out`, silence if there is nothing to play.
   * @param {Float32Array} out
   * @param {number} [count]
   */
  read(out, count = out.length) {
    for (let i = 0; i < count; i++) {
      out[i] = this.#next();
      this.clock++;
      this.sumSquares += out[i] * out[i];
    }
    this.sumCount += count;
  }

  #next() {
    if (this.state === 'filling' && this.#mayStart()) this.#begin();
    switch (this.state) {
      case 'playing':
        return this.#speech();
      case 'fading':
        return this.#fading();
      default:
        // A cut in mid-wave clicks, so the last value decays within the edge time.
        this.last *= 1 - 3 / this.edge;
        if (this.last < 1e-5 && this.last > -1e-5) this.last = 0;
        return this.last;
    }
  }

  #mayStart() {
    const waitedMs = ((this.clock - this.waitedFrom) / this.rateHz) * 1000;
    return (
      waitedMs >= this.delayMs || this.complete.has(this.queue[0].turn) || this.aheadMs >= this.delayMs + PLENTY_MS
    );
  }

  #begin() {
    this.state = 'playing';
    this.fadeIn = 0;
    if (this.starvedFrom >= 0 && this.queue[0].turn === this.turn) {
      const ms = ((this.clock - this.starvedFrom) / this.rateHz) * 1000;
      this.gaps++;
      this.shiftMs += ms;
      this.lateMs = Math.max(this.lateMs, Math.min(ms, MAX_DELAY_MS));
      this.onEvent({ type: 'gap', turn: this.turn, index: this.gaps, ms });
    }
    this.starvedFrom = -1;
  }

  #speech() {
    const head = this.queue[0];
    if (head.turn !== this.turn) {
      this.turn = head.turn;
      this.played = 0;
      this.fadeIn = 0;
      this.onEvent({ type: 'started', turn: head.turn });
    }
    let value = head.samples[head.from++];
    this.ahead--;
    this.played++;
    if (this.fadeIn < this.edge) value *= ++this.fadeIn / this.edge;
    const isLast = head.from >= head.samples.length;
    const endsHere = this.queue.length === 1 || this.queue[1].turn !== head.turn;
    if (endsHere && this.complete.has(head.turn)) {
      const left = head.samples.length - head.from;
      if (left < this.edge) value *= left / this.edge;
    }
    this.last = value;
    if (isLast) {
      this.queue.shift();
      if (endsHere) this.#ranOut();
    }
    return value;
  }

  #ranOut() {
    if (this.complete.has(this.turn)) {
      this.#drained();
    } else if (this.queue.length > 0) {
      // The next turn has already arrived, so this one will not be completed.
      this.complete.add(this.turn);
      this.#drained();
    } else {
      this.state = 'starved';
      this.starvedFrom = this.clock + 1;
    }
  }

  #drained() {
    const { turn, played } = this;
    for (const old of this.complete) if (old <= turn) this.complete.delete(old);
    this.starvedFrom = -1;
    // Earlier late chunks must not delay every answer forever.
    this.lateMs *= 0.8;
    if (this.queue.length === 0) {
      this.state = 'idle';
    } else if (this.state !== 'playing') {
      this.state = 'filling';
      this.waitedFrom = this.clock;
    }
    this.onEvent({ type: 'drained', turn, played });
  }

  #fading() {
    if (this.fadeAt < this.fade.length) return this.fade[this.fadeAt++];
    this.last = 0;
    this.state = this.queue.length > 0 ? 'filling' : 'idle';
    this.waitedFrom = this.clock;
    // A page that received `started` must also receive an event for the end.
    if (this.state === 'idle') this.onEvent({ type: 'silent', turn: this.turn, played: this.played });
    return 0;
  }

  /**
   * Measures how late chunks arrive compared with the first of their turn.
   * @param {number} turn
   * @param {number} count
   */
  #noteArrival(turn, count) {
    if (turn !== this.pushTurn) {
      this.pushTurn = turn;
      this.turnBegan = this.clock;
      this.turnPushed = count;
      return;
    }
    const late = ((this.clock - this.turnBegan - this.turnPushed) / this.rateHz) * 1000;
    this.lateMs = Math.max(this.lateMs * 0.95, Math.min(late, MAX_DELAY_MS), 0);
    this.turnPushed += count;
  }
}
