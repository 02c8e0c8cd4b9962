/**
 * Records the user (input 0) and the assistant (input 1) and posts both to the page, in step sample by sample, at the
 * context's rate.
 *
 * Page → worklet
 *   {type: 'pause', on}                 while paused no blocks are posted: both tracks stop together
 *   {type: 'stop'}                      post the remainder and stop
 * Worklet → page
 *   {type: 'block', left, right, at}    Float32Arrays of up to 100 ms, transferred; at: context time of
 *                                       the first sample
 *   {type: 'stopped'}
 */

class RecorderProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.size = Math.round(sampleRate / 10);
    this.left = new Float32Array(this.size);
    this.right = new Float32Array(this.size);
    this.filled = 0;
    this.isPaused = false;
    this.isRunning = true;
    this.port.onmessage = ({ data }) => {
      if (data.type === 'pause') this.isPaused = data.on;
      if (data.type === 'stop') {
        this.#hand();
        this.isRunning = false;
        this.port.postMessage({ type: 'stopped' });
      }
    };
  }

  /** @param {Float32Array[][]} inputs */
  process(inputs) {
    if (!this.isRunning) return false;
    if (this.isPaused) return true;
    const left = inputs[0]?.[0];
    const right = inputs[1]?.[0];
    const frames = left?.length ?? right?.length ?? 128;
    for (let i = 0; i < frames; i++) {
      this.left[this.filled] = left ? left[i] : 0;
      this.right[this.filled] = right ? right[i] : 0;
      if (++this.filled === this.size) this.#hand();
    }
    return true;
  }

  #hand() {
    if (this.filled === 0) return;
    const left = this.left.slice(0, this.filled);
    const right = this.right.slice(0, this.filled);
    const at = currentTime - (this.filled - 128) / sampleRate;
    this.filled = 0;
    this.port.postMessage({ type: 'block', left, right, at }, [left.buffer, right.buffer]);
  }
}

registerProcessor('parley-recorder', RecorderProcessor);
