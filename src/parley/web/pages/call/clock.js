/** Time, context, quality and measurements of a call, drawn twice a second. */

import { isDeveloper } from '../../elements/developer.js';
import { element, h, say, toast } from '../../elements/dom.js';
import { grade } from '../../elements/metrics/metrics.js';
import { CONTEXT_TOKENS } from '../../wire/duplex.js';
import { clock, t } from '../../words/words.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

/** Seconds left at which the user is notified, and from which the end of a silence is shown. */
const HINT_AT_S = 30;
/** Seconds left from which the time is shown. */
const NEAR_S = 60;
/** Fraction of the context from which it is shown. */
const NEARLY_FULL = 0.8;

/** Metric of the response time that the user perceives. @param {number | null} value ms */
const answerMetric = (value) => ({ name: 'answer_time', value, unit: 'ms', is: grade(value, 1500, 2500) });

/** @param {import('../../talk/duplex.js').DuplexCall} call @param {number} used @param {number | null} answerMs */
function duplexMetrics({ metrics: now, state }, used, answerMs) {
  const drift = now.driftMs === null ? null : Math.abs(now.driftMs);
  const ahead = now.gaps ? 'poor' : now.aheadMs > 200 ? 'good' : now.aheadMs > 50 ? 'fair' : '';
  return /** @type {import('../../elements/metrics/metrics.js').Metric[]} */ ([
    answerMetric(answerMs),
    { name: 'session', value: state.sessionId.slice(0, 12) || null },
    { name: 'units', value: now.units },
    { name: 'turns', value: now.turns },
    { name: 'context', value: now.contextTokens, is: grade(used, 0.5, 0.8) },
    { name: 'vision', value: now.slices * 64, is: now.slices > 1 ? 'fair' : 'good' },
    { name: 'response', value: now.responseMs, unit: 'ms', is: grade(now.responseMs, 700, 1300) },
    { name: 'inference', value: now.costMs, unit: 'ms', is: grade(now.costMs, 200, 500) },
    { name: 'play_delay', value: now.playDelayMs, unit: 'ms' },
    { name: 'ahead', value: now.aheadMs, unit: 'ms', is: ahead },
    { name: 'gaps', value: now.gaps, is: now.gaps ? 'poor' : 'good' },
    { name: 'shift', value: now.shiftMs, unit: 'ms', is: grade(now.shiftMs, 1, 200) },
    { name: 'drift', value: now.driftMs, unit: 'ms', is: grade(drift, 50, 200) },
    { name: 'dropped', value: Math.ceil(now.dropped), is: now.dropped ? 'poor' : 'good' },
  ]);
}

/** @param {import('../../talk/half-duplex.js').HalfDuplexCall} call @param {number | null} answerMs */
function halfMetrics({ metrics: { turns, speechMs }, position, state }, answerMs) {
  return /** @type {import('../../elements/metrics/metrics.js').Metric[]} */ ([
    answerMetric(answerMs),
    { name: 'session', value: state.sessionId.slice(0, 12) || null },
    { name: 'turns', value: turns },
    { name: 'speech', value: speechMs, unit: 'ms' },
    { name: 'ahead', value: position?.aheadMs ?? null, unit: 'ms' },
    { name: 'gaps', value: position?.gaps ?? 0, is: position?.gaps ? 'poor' : 'good' },
  ]);
}

export class CallClock {
  #rings = /** @type {import('../../elements/metrics/metrics.js').Rings} */ (element('p-rings', { hidden: '' }));
  #time = h('span', null);
  #memory = h('span', { class: 'visually-hidden' });
  /** Notifications already shown for this call. @type {Set<string>} */
  #told = new Set();

  /** @param {CallPage} page @param {(time: string) => void} onTime */
  constructor(page, onTime) {
    this.page = page;
    this.onTime = onTime;
    this.timer = h('span', { class: 'chip num', hidden: true }, this.#rings, this.#time, ' ', this.#memory);
    this.recorded = h('span', { class: 'chip rec', hidden: true, words: 'call.recorded' });
    page.calls.addEventListener('call', () => this.#told.clear());
  }

  /** @param {string} key @param {Record<string, unknown>} values */
  #tellOnce(key, values) {
    if (this.#told.has(key)) return;
    this.#told.add(key);
    toast(key, values);
  }

  draw() {
    const { calls, duplex, half } = this.page;
    this.recorded.hidden = !(calls.isOn && calls.state.recordingId);
    this.drawSignal();
    const total = (duplex ?? half)?.leftS() ?? null;
    const left = total ?? half?.idleLeftS() ?? null;
    const isNear = left !== null && left <= (total === null ? HINT_AT_S : NEAR_S);
    this.timer.toggleAttribute('data-near', isNear);
    // Time and context are shown when little is left, and always in developer mode.
    this.timer.hidden = !calls.isOn || !(isNear || this.timer.hasAttribute('data-full') || isDeveloper());
    if (total !== null) say(this.#time, 'call.left', { time: clock(total) });
    else if (left !== null && isNear) say(this.#time, 'call.idle_left', { time: clock(left) });
    else this.#time.textContent = clock(this.#runningS());
    this.onTime(
      calls.isOn ? (total !== null && isNear ? t('call.left', { time: clock(total) }) : clock(this.#runningS())) : '',
    );
    if (calls.isOn && total !== null && total <= HINT_AT_S) this.#tellOnce('call.soon_over', { seconds: HINT_AT_S });
    if (duplex?.isOn) this.#drawMemory(duplex);
    else if (half) this.page.metrics.show(halfMetrics(half, this.page.answerTime.ms));
  }

  /** Draws the quality. It is shown only if poor, or in developer mode. */
  drawSignal() {
    const quality = this.page.duplex?.quality() ?? null;
    this.page.signal.show(quality);
    if (quality !== 'poor' && !isDeveloper()) this.page.signal.hidden = true;
  }

  #runningS() {
    return (performance.now() - this.page.calls.state.liveSince) / 1000;
  }

  /** @param {import('../../talk/duplex.js').DuplexCall} call */
  #drawMemory(call) {
    const used = call.metrics.contextTokens / this.page.settings.get('contextLimit');
    this.#rings.show({ time: call.leftPart(), memory: used });
    this.timer.toggleAttribute('data-full', used >= NEARLY_FULL);
    say(this.#memory, 'call.memory', { percent: Math.round(used * 100) });
    this.page.metrics.show(duplexMetrics(call, used, this.page.answerTime.ms));
    if (used >= NEARLY_FULL) this.#tellOnce('call.context_nearly', { percent: Math.round(used * 100) });
    // The server's own limit is reported by the server, and the call continues; a lower limit set by the user ends it.
    if (used < 1 || this.page.settings.get('contextLimit') >= CONTEXT_TOKENS) return;
    this.#tellOnce('call.context_full', {});
    call.stop();
  }
}
