/**
 * <p-mixer>: file and microphone during a call, each with a level and a slider, and the level of the mix that the model
 * receives. It is shown over the page and can be moved by its title, with a finger or with the arrow keys.
 */

import { h } from '../dom.js';
import { range } from '../form.js';
import { TRIM_LIMIT_DB } from '../../audio/loudness.js';

/** @typedef {import('../../talk/files.js').Levels} Levels */

const NAMES = /** @type {const} */ (['file', 'mic', 'mix']);
/** Pixels per press of an arrow key. */
const STEP = 24;
/** Pixels of its title that stay in the window. */
const KEPT = 44;

export class Mixer extends HTMLElement {
  #meters = NAMES.map((name) =>
    h('meter', { min: 0, max: 1, low: 0.02, high: 0.95, optimum: 0.4, value: 0, label: `source.meter_${name}` }),
  );
  #at = { x: 0, y: 0 };
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;

  /** @param {import('../form.js').Settings<any>} settings with `trimFile` and `trimMic` */
  mount(settings) {
    const trim = { min: -TRIM_LIMIT_DB, max: TRIM_LIMIT_DB, step: 1, unit: 'dB' };
    const sliders = [
      range(settings, 'trimFile', { words: 'source.trim_file', ...trim }),
      range(settings, 'trimMic', { words: 'source.trim_mic', ...trim }),
      h('span', { class: 'small quiet', words: 'source.meter_mix' }),
    ];
    const handle = h('button', { class: 'handle', type: 'button', icon: 'move', words: 'source.mixer' });
    this.#follow(handle);
    for (const meter of this.#meters) meter.removeAttribute('title');
    this.replaceChildren(handle, ...sliders.map((slider, i) => h('div', { class: 'lane' }, slider, this.#meters[i])));
  }

  /** @param {HTMLElement} handle */
  #follow(handle) {
    handle.addEventListener('pointerdown', (event) => {
      handle.setPointerCapture?.(event.pointerId);
      const from = { x: event.clientX - this.#at.x, y: event.clientY - this.#at.y };
      const move = (/** @type {PointerEvent} */ now) => this.#move(now.clientX - from.x, now.clientY - from.y);
      handle.addEventListener('pointermove', move);
      for (const end of ['pointerup', 'pointercancel', 'lostpointercapture']) {
        handle.addEventListener(end, () => handle.removeEventListener('pointermove', move), { once: true });
      }
    });
    handle.addEventListener('keydown', (event) => {
      const [x, y] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [];
      if (x === undefined || y === undefined) return;
      event.preventDefault();
      this.#move(this.#at.x + x * STEP, this.#at.y + y * STEP);
    });
  }

  /** @param {number} x @param {number} y pixels from its first position */
  #move(x, y) {
    const { left, top, right } = this.getBoundingClientRect();
    const home = { left: left - this.#at.x, top: top - this.#at.y, right: right - this.#at.x };
    const within = (/** @type {number} */ value, /** @type {number} */ least, /** @type {number} */ most) =>
      Math.max(least, Math.min(most, value));
    this.#at = {
      x: within(x, KEPT - home.right, innerWidth - KEPT - home.left),
      y: within(y, -home.top, innerHeight - KEPT - home.top),
    };
    this.style.translate = `${this.#at.x}px ${this.#at.y}px`;
  }

  /** Shows the levels of a unit at the pace at which they were heard. @param {Levels} levels */
  show(levels) {
    clearInterval(this.#timer);
    let step = 0;
    const draw = () => {
      NAMES.forEach((name, i) => {
        this.#meters[i].value = Math.min(1, levels[name][step] ?? 0);
      });
      if (++step >= levels.mix.length) clearInterval(this.#timer);
    };
    draw();
    this.#timer = setInterval(draw, 1000 / levels.mix.length);
  }

  disconnectedCallback() {
    clearInterval(this.#timer);
  }
}

customElements.define('p-mixer', Mixer);
