/**
 * Chart of the last minutes of a call: the time of every answer as a line, and below it if the model listened or spoke.
 * Screen readers read it as one sentence.
 */

import { drawing, h, say } from '../../elements/dom.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

/** Number of seconds that are drawn. */
const KEEP = 180;
/** Time after which an answer arrives in the time of the next unit, drawn as a horizontal line. */
const UNIT_MS = 1000;

/** @param {CallPage} page */
export function makeTrends({ calls }) {
  /** @type {{ms: number, isSpeaking: boolean}[]} */
  let points = [];
  const canvas = h('canvas', { class: 'trend', 'aria-hidden': 'true', hidden: true });
  const words = h('p', { class: 'small quiet', words: 'trends.none' });
  const node = h(
    'figure',
    { class: 'trends' },
    h('figcaption', { class: 'small', words: 'trends.title' }),
    canvas,
    words,
  );
  let due = 0;
  const later = () => {
    cancelAnimationFrame(due);
    due = requestAnimationFrame(() => draw(canvas, points));
  };
  calls.addEventListener('call', () => {
    points = [];
    canvas.hidden = true;
    say(words, 'trends.none');
    later();
  });
  calls.addEventListener('metrics', (event) => {
    const { responseMs, isSpeaking } = /** @type {CustomEvent} */ (event).detail;
    if (responseMs === null) return;
    points.push({ ms: responseMs, isSpeaking });
    if (points.length > KEEP) points.shift();
    const sorted = points.map(({ ms }) => ms).sort((a, b) => a - b);
    const spoken = points.filter((point) => point.isSpeaking).length;
    const median = Math.round(sorted[Math.floor(sorted.length / 2)]);
    const most = Math.round(sorted[sorted.length - 1]);
    canvas.hidden = false;
    say(words, 'trends.said', { count: points.length, median, most, spoken });
    later();
  });
  new ResizeObserver(later).observe(canvas);
  document.addEventListener('themechange', later);
  return node;
}

/** @param {HTMLCanvasElement} canvas @param {{ms: number, isSpeaking: boolean}[]} points */
function draw(canvas, points) {
  const shown = drawing(canvas);
  if (!shown) return;
  const { pen, width, height, ratio, style } = shown;
  const band = 8 * ratio;
  const most = Math.max(UNIT_MS * 1.2, ...points.map(({ ms }) => ms));
  const y = (/** @type {number} */ ms) => (height - band - 2) * (1 - ms / most) + 1;
  const step = width / KEEP;
  pen.fillStyle = style.borderTopColor;
  pen.fillRect(0, y(UNIT_MS), width, ratio);
  points.forEach(({ ms, isSpeaking }, i) => {
    const x = width - (points.length - i) * step;
    pen.fillStyle = style.color;
    pen.fillRect(x, y(ms), Math.max(1, step * 0.8), height - band - 2 - y(ms));
    pen.fillStyle = isSpeaking ? style.outlineColor : style.borderTopColor;
    pen.fillRect(x, height - band, Math.max(1, step * 0.8), band);
  });
}
