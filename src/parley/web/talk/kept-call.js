/** The recording of a call in this browser, where the person wants one. */

export class KeptCall {
  /** @type {import('./state.js').Recorder | null} */
  #recorder = null;

  get isOn() {
    return this.#recorder !== null;
  }

  /**
   * @param {import('./state.js').Order['recorder']} make
   * @param {() => boolean} isWanted still, when the recorder has been made
   */
  async begin(make, isWanted) {
    const recorder = await make?.().catch(() => null);
    if (!recorder || !isWanted()) return;
    this.#recorder = recorder;
    await recorder.start();
  }

  /** @param {boolean} on */
  pause(on) {
    this.#recorder?.pause(on);
  }

  /** @returns {Promise<Blob | null>} */
  async stop() {
    const recorder = this.#recorder;
    this.#recorder = null;
    return recorder ? await recorder.stop() : null;
  }
}
