/**
 * Splitter of a stream of samples into units of one exact size.
 *
 * Runs in the capture worklet; pure, so a test can drive it. Buffers are taken from a small pool to which the page
 * returns them after use, so the steady path allocates nothing. If the page is slow and the pool is empty, a new buffer
 * is allocated: an allocation is better than lost audio.
 */

export class UnitGatherer {
  /**
   * @param {number} unitSamples
   * @param {(unit: Float32Array<ArrayBuffer>, final: boolean) => void} onUnit the callee owns the buffer
   */
  constructor(unitSamples, onUnit) {
    this.onUnit = onUnit;
    this.unitSamples = unitSamples;
    /** @type {Float32Array<ArrayBuffer>[]} */
    this.pool = [];
    this.isRunning = false;
    this.isMuted = false;
    this.filled = 0;
    this.unit = new Float32Array(unitSamples);
  }

  /** Discards the samples gathered so far and starts. @param {number} [unitSamples] */
  start(unitSamples = this.unitSamples) {
    if (unitSamples !== this.unitSamples) {
      this.unitSamples = unitSamples;
      this.pool.length = 0;
      this.unit = new Float32Array(unitSamples);
    }
    this.filled = 0;
    this.isRunning = true;
  }

  /** Stops; samples gathered since the last whole unit, if any, are delivered as a unit marked `final`. */
  stop() {
    if (!this.isRunning) return;
    this.isRunning = false;
    if (this.filled > 0) this.onUnit(this.unit.slice(0, this.filled), true);
    this.filled = 0;
  }

  /** Returns a used buffer to the pool. @param {Float32Array<ArrayBuffer>} buffer */
  recycle(buffer) {
    if (buffer.length === this.unitSamples && this.pool.length < 4) this.pool.push(buffer);
  }

  /** @param {Float32Array} samples @param {number} [count] number of valid samples */
  push(samples, count = samples.length) {
    if (!this.isRunning) return;
    for (let i = 0; i < count; i++) {
      this.unit[this.filled++] = this.isMuted ? 0 : samples[i];
      if (this.filled === this.unitSamples) {
        const whole = this.unit;
        this.unit = this.pool.pop() ?? new Float32Array(this.unitSamples);
        this.filled = 0;
        this.onUnit(whole, false);
      }
    }
  }
}

/** Level meter of the microphone that reports at a fixed interval. */
export class LevelMeter {
  /** @param {number} everySamples @param {(rms: number, peak: number) => void} onLevel */
  constructor(everySamples, onLevel) {
    this.everySamples = everySamples;
    this.onLevel = onLevel;
    this.sum = 0;
    this.peak = 0;
    this.count = 0;
  }

  /** @param {Float32Array} samples @param {number} [count] */
  push(samples, count = samples.length) {
    for (let i = 0; i < count; i++) {
      const value = samples[i];
      this.sum += value * value;
      const size = value < 0 ? -value : value;
      if (size > this.peak) this.peak = size;
      if (++this.count >= this.everySamples) {
        this.onLevel(Math.sqrt(this.sum / this.count), this.peak);
        this.sum = this.peak = this.count = 0;
      }
    }
  }
}
