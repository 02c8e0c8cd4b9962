/**
 * Charts of the last hour, from samples of `/metrics` that the server stores once a minute, and from samples every few
 * seconds while this page is open. A monitoring system stores more (docs: Prometheus).
 */

import { drawing, h } from '../elements/dom.js';
import { number } from '../words/words.js';

/** @typedef {{name: string, labels: Record<string, string>, value: number}} Sample */

/**
 * Parses the part of Prometheus' text format that the server writes.
 * @param {string} text
 * @returns {Sample[]}
 */
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split('\n')) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{([^}]*)\})?\s+(\S+)/.exec(line);
    if (!match || line.startsWith('#')) continue;
    /** @type {Record<string, string>} */
    const labels = {};
    for (const [, key, value] of (match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[key] = value.replace(/\\(["\\])/g, '$1');
    samples.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return samples;
}

/**
 * Returns a histogram's buckets, cumulative and ascending; without `labels`, those of all labels together.
 * @param {Sample[]} metrics @param {string} name @param {Record<string, string>} [labels]
 */
export function histogram(metrics, name, labels = {}) {
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const sample of metrics) {
    if (sample.name !== `${name}_bucket` || Object.entries(labels).some(([key, value]) => sample.labels[key] !== value))
      continue;
    const bound = sample.labels.le === '+Inf' ? Infinity : Number(sample.labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + sample.value);
  }
  return [...counts].map(([bound, count]) => ({ bound, count })).sort((a, b) => a.bound - b.bound);
}

/**
 * Returns the value below which `part` of a histogram is, interpolated between its bounds.
 * @param {{bound: number, count: number}[]} buckets cumulative, ascending
 * @param {number} part
 * @returns {number | null}
 */
export function quantile(buckets, part) {
  const total = buckets.at(-1)?.count ?? 0;
  if (total <= 0) return null;
  const wanted = part * total;
  let before = 0;
  let lower = 0;
  for (const { bound, count } of buckets) {
    if (count >= wanted) {
      if (!Number.isFinite(bound)) return lower;
      return lower + ((wanted - before) / Math.max(1, count - before)) * (bound - lower);
    }
    before = count;
    lower = bound;
  }
  return lower;
}

const HOUR_MS = 3_600_000;

/** @typedef {{at: number, waiting: number, running: number, free: number, p50: number | null, p95: number | null, bytes: number, errors: number}} Point */

export class History {
  /** @type {Point[]} */
  points = [];
  /** @type {Map<number, number> | null} */
  #counts = null;
  #bytes = NaN;
  #errors = NaN;

  /**
   * Adds the samples taken before this page was opened.
   * @param {{at: number, metrics: Sample[]}[]} looks oldest first
   */
  recall(looks) {
    this.points = [];
    this.#counts = null;
    this.#bytes = this.#errors = NaN;
    for (const { at, metrics } of looks) this.note(at, {}, metrics);
  }

  /** @param {number} at @param {any} status @param {Sample[]} metrics */
  note(at, status, metrics) {
    const sum = (/** @type {string} */ name) =>
      metrics.filter((sample) => sample.name === name).reduce((total, { value }) => total + value, 0);
    // Difference from the last sample, since a histogram only grows.
    const counts = new Map(histogram(metrics, 'parley_answer_seconds').map(({ bound, count }) => [bound, count]));
    const buckets = [...counts].map(([bound, count]) => ({ bound, count: count - (this.#counts?.get(bound) ?? 0) }));
    const isFirst = this.#counts === null;
    this.#counts = counts;
    const bytes = sum('parley_relay_bytes_total');
    const errors = sum('parley_errors_total');
    const grown = (/** @type {number} */ now, /** @type {number} */ before) =>
      Number.isNaN(before) ? 0 : Math.max(0, now - before);
    const ms = (/** @type {number | null} */ seconds) => (seconds === null || isFirst ? null : seconds * 1000);
    this.points.push({
      at,
      waiting: status.queue_length ?? sum('parley_queue_length'),
      running: sum('parley_sessions'),
      free:
        metrics.find(({ name, labels }) => name === 'parley_slots' && labels.state === 'free')?.value ??
        status.idle_workers ??
        0,
      p50: ms(quantile(buckets, 0.5)),
      p95: ms(quantile(buckets, 0.95)),
      bytes: grown(bytes, this.#bytes),
      errors: grown(errors, this.#errors),
    });
    this.#bytes = bytes;
    this.#errors = errors;
    while (this.points.length > 0 && this.points[0].at < at - HOUR_MS) this.points.shift();
  }

  /** @param {HTMLElement} place */
  draw(place) {
    if (place.children.length === 0) {
      place.className = 'charts';
      place.append(...CHARTS.map(chartNode));
    }
    for (const [c, [, keys, unit]] of CHARTS.entries()) {
      const figure = place.children[c];
      const last = this.points.at(-1);
      for (const [i, key] of keys.entries()) {
        const text = /** @type {HTMLElement} */ (figure.querySelector(`.key-${i} b`));
        text.textContent = shownValue(last?.[key], unit);
      }
      drawLines(/** @type {HTMLCanvasElement} */ (figure.querySelector('canvas')), this.points, keys);
    }
  }
}

const CHARTS = /** @type {[string, (keyof Point)[], string][]} */ ([
  ['sessions', ['running', 'free'], ''],
  ['waiting', ['waiting'], ''],
  ['latency', ['p50', 'p95'], 'ms'],
  ['traffic', ['bytes'], 'B'],
  ['errors', ['errors'], ''],
]);

/** @param {number | null | undefined} value @param {string} unit */
function shownValue(value, unit) {
  if (value === null || value === undefined) return '–';
  const sizes = /** @type {[number, string][]} */ ([
    [1e6, 'MB'],
    [1e3, 'kB'],
  ]);
  const [size, name] = (unit === 'B' && sizes.find(([least]) => value >= least)) || [1, unit];
  const how = unit ? {} : /** @type {const} */ ({ notation: 'compact' });
  return `${number(value / size, { maximumFractionDigits: 0, ...how })}${name && `\u202f${name}`}`;
}

/** @param {typeof CHARTS[number]} chart */
function chartNode([name, keys]) {
  const legend = keys.map((key, i) => {
    const words = keys.length > 1 || key !== name ? h('span', { words: `chart.${key}` }) : null;
    return h('span', { class: `key key-${i}` }, words, ' ', h('b', { class: 'num' }));
  });
  const caption = h(
    'figcaption',
    { class: 'small' },
    h('span', { words: `chart.${name}` }),
    h('span', { class: 'row' }, ...legend),
  );
  return h('figure', { 'data-chart': name }, caption, h('canvas', { 'aria-hidden': 'true' }));
}

/** @param {HTMLCanvasElement} canvas @param {Point[]} points @param {(keyof Point)[]} keys */
function drawLines(canvas, points, keys) {
  const shown = drawing(canvas);
  if (!shown) return;
  const { pen, width, height, ratio, style } = shown;
  const now = Date.now();
  const top = Math.max(1, ...points.flatMap((point) => keys.map((key) => point[key] ?? 0)));
  pen.lineWidth = 1.6 * ratio;
  pen.lineJoin = 'round';
  for (const [i, key] of keys.entries()) {
    pen.strokeStyle = i === 0 ? style.color : style.outlineColor;
    pen.beginPath();
    let isDown = false;
    for (const point of points) {
      const value = point[key];
      const x = (1 - (now - point.at) / HOUR_MS) * width;
      const y = height - 2 * ratio - ((value ?? 0) / top) * (height - 5 * ratio);
      if (value !== null && isDown) pen.lineTo(x, y);
      else if (value !== null) pen.moveTo(x, y);
      isDown = value !== null;
    }
    pen.stroke();
  }
}
