/**
 * <p-wave>: the last seconds of both voices, the user above the line, the assistant below. `note(mic, voice)` is called
 * with levels from 0 to 1 about 20 times a second. It is drawn as often, or once a second if the user prefers reduced
 * motion.
 */

import { drawing } from '../dom.js';

const KEEP = 120;
const BAR_MS = 48;
const STILL_MS = 1000;

export class Wave extends HTMLElement {
  #canvas = document.createElement('canvas');
  /** @type {[number, number][]} */
  #bars = [];
  /** @type {ResizeObserver | null} */
  #watch = null;
  #due = 0;
  #lastAt = 0;
  #drawnAt = 0;
  #everyMs = 0;

  connectedCallback() {
    this.setAttribute('aria-hidden', 'true');
    this.append(this.#canvas);
    this.#everyMs = matchMedia('(prefers-reduced-motion: reduce)').matches ? STILL_MS : 0;
    this.#watch = new ResizeObserver(() => this.#draw());
    this.#watch.observe(this);
  }

  disconnectedCallback() {
    this.#watch?.disconnect();
    cancelAnimationFrame(this.#due);
    this.#canvas.remove();
  }

  /** @param {number} mic @param {number} voice */
  note(mic, voice) {
    // Both sides report at their own pace; each bar of 50 ms shows the maximum of each.
    const now = performance.now();
    const last = this.#bars.at(-1);
    if (last && now - this.#lastAt < BAR_MS) {
      last[0] = Math.max(last[0], mic);
      last[1] = Math.max(last[1], voice);
      return;
    }
    this.#lastAt = now;
    this.#bars.push([mic, voice]);
    if (this.#bars.length > KEEP) this.#bars.shift();
    if (now - this.#drawnAt < this.#everyMs) return;
    this.#drawnAt = now;
    cancelAnimationFrame(this.#due);
    this.#due = requestAnimationFrame(() => this.#draw());
  }

  clear() {
    this.#bars = [];
    this.#draw();
  }

  #draw() {
    const shown = drawing(this.#canvas);
    if (!shown) return;
    const { pen, width, height, style } = shown;
    const step = width / KEEP;
    const middle = height / 2;
    pen.fillStyle = style.borderTopColor;
    pen.fillRect(0, middle - 0.5, width, 1);
    const wide = Math.max(1, step * 0.62);
    const tall = (/** @type {number} */ level) => Math.min(1, Math.sqrt(level) * 1.3) * (middle - 2);
    const x = (/** @type {number} */ i) => width - (this.#bars.length - i) * step;
    pen.fillStyle = style.color;
    for (const [i, [mic]] of this.#bars.entries()) pen.fillRect(x(i), middle - tall(mic), wide, tall(mic));
    pen.fillStyle = style.outlineColor;
    for (const [i, [, voice]] of this.#bars.entries()) pen.fillRect(x(i), middle, wide, tall(voice));
  }
}

customElements.define('p-wave', Wave);
