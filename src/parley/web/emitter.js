/** Event emitter whose events have typed details. */

/** @template {object} Events the `detail` of each event, by type */
export class Emitter extends EventTarget {
  /**
   * @template {keyof Events & string} K
   * @overload
   * @param {K} type
   * @param {(event: CustomEvent<Events[K]>) => void} listener
   * @param {boolean | AddEventListenerOptions} [options]
   * @returns {void}
   */
  /**
   * @overload
   * @param {string} type
   * @param {EventListenerOrEventListenerObject | null} listener
   * @param {boolean | AddEventListenerOptions} [options]
   * @returns {void}
   */
  /** @param {string} type @param {any} listener @param {boolean | AddEventListenerOptions} [options] */
  addEventListener(type, listener, options) {
    super.addEventListener(type, listener, options);
  }

  /**
   * Calls `act` with the detail of each event of a type.
   * @template {keyof Events & string} K
   * @param {K} type
   * @param {(detail: Events[K]) => void} act
   * @param {AbortSignal} [signal] removes the listener
   */
  on(type, act, signal) {
    this.addEventListener(type, ({ detail }) => act(detail), signal && { signal });
  }

  /** @template {keyof Events & string} K @param {K} type @param {Events[K]} detail */
  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
