/** <p-metrics>: measurements, with their rating as a colour and as text. */

import { h, say } from '../dom.js';
import { bind, number } from '../../words/words.js';

/** @typedef {{name: string, value: number | string | null, unit?: string, is?: 'good' | 'fair' | 'poor' | ''}} Metric */

/** @param {number | null} value @param {number} good @param {number} fair @returns {'good' | 'fair' | 'poor' | ''} */
export function grade(value, good, fair) {
  if (value === null) return '';
  return value < good ? 'good' : value < fair ? 'fair' : 'poor';
}

export class Metrics extends HTMLElement {
  #list = h('dl', null);
  /** @type {Map<string, {dot: HTMLElement, value: HTMLElement}>} */
  #rows = new Map();

  connectedCallback() {
    this.append(this.#list);
  }

  /** @param {Metric[]} metrics */
  show(metrics) {
    for (const { name, value, unit = '', is = '' } of metrics) {
      let row = this.#rows.get(name);
      if (!row) {
        const dot = h('span', { class: 'dot', role: 'img', 'aria-label': '–' });
        const text = h('span', { class: 'num' });
        row = { dot, value: text };
        this.#rows.set(name, row);
        this.#list.append(h('div', null, h('dt', { words: `metric.${name}` }), h('dd', null, text, dot)));
      }
      const shown =
        typeof value === 'number'
          ? `${number(value, { maximumFractionDigits: 0 })}${unit && `\u202f${unit}`}`
          : (value ?? '–');
      if (row.value.textContent !== shown) row.value.textContent = shown;
      row.dot.dataset.is = is;
      row.dot.hidden = !is;
      if (is) bind(row.dot, 'aria-label', `grade.${is}`);
    }
  }
}

customElements.define('p-metrics', Metrics);

const SVG = 'http://www.w3.org/2000/svg';

/** <p-rings>: time left (outer ring) and context used (inner ring), also as text. */
export class Rings extends HTMLElement {
  #time = arc(10);
  #memory = arc(5);

  connectedCallback() {
    const svg = document.createElementNS(SVG, 'svg');
    svg.setAttribute('viewBox', '0 0 24 24');
    svg.setAttribute('aria-hidden', 'true');
    for (const { track, drawn } of [this.#time, this.#memory]) svg.append(track, drawn);
    this.append(svg);
  }

  /**
   * Shows fractions from 0 to 1; null if there is no limit to show.
   * @param {{time: number | null, memory: number | null}} parts
   */
  show({ time, memory }) {
    this.hidden = time === null && memory === null;
    this.#time.show(time);
    this.#memory.show(memory);
  }
}

/** @param {number} radius */
function arc(radius) {
  const [track, drawn] = ['track', 'drawn'].map((name) => {
    const circle = document.createElementNS(SVG, 'circle');
    const attributes = { class: name, cx: 12, cy: 12, r: radius, pathLength: 100, transform: 'rotate(-90 12 12)' };
    for (const [key, value] of Object.entries(attributes)) circle.setAttribute(key, String(value));
    return circle;
  });
  return {
    track,
    drawn,
    /** @param {number | null} part */
    show(part) {
      for (const circle of [track, drawn]) circle.toggleAttribute('hidden', part === null);
      drawn.setAttribute('stroke-dasharray', `${Math.round(Math.min(1, Math.max(0, part ?? 0)) * 100)} 100`);
    },
  };
}

customElements.define('p-rings', Rings);

/** <p-signal>: the quality of a call as one dot with a text. */
export class Signal extends HTMLElement {
  #dot = h('span', { class: 'dot' });
  #text = h('span', { class: 'small' });

  connectedCallback() {
    this.classList.add('chip');
    this.append(this.#dot, this.#text);
    this.hidden = true;
  }

  /** @param {'good' | 'fair' | 'poor' | null} quality */
  show(quality) {
    this.hidden = quality === null;
    if (!quality) return;
    this.#dot.dataset.is = quality;
    say(this.#text, `signal.${quality}`);
  }
}

customElements.define('p-signal', Signal);
