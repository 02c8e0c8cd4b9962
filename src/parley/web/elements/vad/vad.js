/**
 * <p-vad>: level of the microphone and speech detected by the server: the last ten seconds as bars, coloured where the
 * server detected speech, so that the user can adjust the threshold by dragging a line. The line is the required
 * probability of speech, not a loudness: nothing is cut off at its height. `level` is set 20 times a second, `isHeard`
 * when the server reports speech. Event: threshold (detail: the position it was dragged to; 0 and 1 are the edges).
 */

import { drawing, h, say } from '../dom.js';

/** Ten seconds. */
const BARS = 200;

/** Maps a level to a height on a logarithmic scale, as hearing does: −60 dB is 0, 0 dB is 1. @param {number} rms */
const loudnessOf = (rms) => Math.min(1, Math.max(0, 1 + Math.log10(Math.max(rms, 1e-4)) / 3));

export class Vad extends HTMLElement {
  /** @type {{size: number, isHeard: boolean}[]} */
  #bars = [];
  #isHeard = false;
  #threshold = 0.8;
  #due = 0;
  /** It is not drawn while it is not shown. */
  #isShown = false;
  #size = new ResizeObserver(([{ contentRect }]) => {
    this.#isShown = contentRect.width > 0;
    this.#drawSoon();
  });
  #canvas = h('canvas', { 'aria-hidden': 'true' });
  #meter = h('meter', { min: 0, max: 1, low: 0.1, high: 0.9, label: 'vad.level' });
  #lamp = h('span', { class: 'dot' });
  #text = h('span', { class: 'small', words: 'vad.silent' });

  connectedCallback() {
    this.#meter.removeAttribute('title');
    const hint = h('p', { class: 'small quiet', words: 'vad.hint' });
    this.append(this.#canvas, hint, this.#meter, h('p', { class: 'row', role: 'status' }, this.#lamp, this.#text));
    this.#size.observe(this.#canvas);
    // Without a pointer, use the slider next to it.
    this.#canvas.onpointerdown = (event) => {
      this.#canvas.setPointerCapture(event.pointerId);
      this.#drag(event);
    };
    this.#canvas.onpointermove = (event) => {
      if (this.#canvas.hasPointerCapture(event.pointerId)) this.#drag(event);
    };
  }

  /** @param {PointerEvent} event */
  #drag({ clientY }) {
    const { top, height } = this.#canvas.getBoundingClientRect();
    this.dispatchEvent(new CustomEvent('threshold', { detail: 1 - (clientY - top) / height }));
  }

  /** @param {number} threshold */
  set threshold(threshold) {
    this.#threshold = threshold;
    this.#drawSoon();
  }

  #drawSoon() {
    cancelAnimationFrame(this.#due);
    if (this.#isShown) this.#due = requestAnimationFrame(() => this.#draw());
  }

  disconnectedCallback() {
    cancelAnimationFrame(this.#due);
    this.#size.disconnect();
    this.replaceChildren();
  }

  /** @param {number} rms */
  set level(rms) {
    const size = loudnessOf(rms);
    this.#bars.push({ size, isHeard: this.#isHeard });
    if (this.#bars.length > BARS) this.#bars.shift();
    this.#drawSoon();
  }

  /** @param {boolean} isHeard */
  set isHeard(isHeard) {
    this.#isHeard = isHeard;
    this.#lamp.dataset.is = isHeard ? 'good' : '';
    say(this.#text, isHeard ? 'vad.speech' : 'vad.silent');
  }

  #draw() {
    const shown = drawing(this.#canvas);
    if (!shown) return;
    const { pen, width, height, ratio, style } = shown;
    this.#meter.value = this.#bars.at(-1)?.size ?? 0;
    const step = width / BARS;
    this.#bars.forEach(({ size, isHeard }, i) => {
      pen.fillStyle = isHeard ? style.color : style.borderTopColor;
      const tall = Math.max(ratio, size * height);
      pen.fillRect(width - (this.#bars.length - i) * step, height - tall, Math.max(1, step * 0.7), tall);
    });
    pen.fillStyle = style.outlineColor;
    pen.fillRect(0, Math.round((1 - this.#threshold) * height) - ratio, width, 2 * ratio);
  }
}

customElements.define('p-vad', Vad);
