/** Current state: workers, queue, running conversations, response times, errors. */

import { h } from '../../elements/dom.js';
import { clock, number, t, time } from '../../words/words.js';
import { histogram, quantile } from '../admin-metrics.js';
import { act, ask, dangerButton, show, showSection, stateWord, table, taskWord } from './shared.js';

const TASKS = ['chat', 'half_duplex_audio', 'audio_duplex', 'omni_duplex'];

/** @param {any} status */
export function drawTotals(status) {
  // Duplex workers are included in the busy ones.
  const cards = [
    ['total', status.total_workers],
    ['idle', status.idle_workers],
    ['busy', status.busy_workers],
    ['duplex', status.duplex_workers],
    ['loading', status.loading_workers],
    ['failed', (status.error_workers ?? 0) + (status.offline_workers ?? 0)],
    ['waiting', status.queue_length],
  ];
  show(
    'totals',
    ...cards.map(([name, value]) =>
      h(
        'div',
        { class: 'card' },
        h('span', { class: 'small quiet', words: `admin.total_${name}` }),
        h('strong', { class: 'num' }, number(Number(value ?? 0))),
      ),
    ),
  );
}

/** @param {any[]} workers */
export function drawWorkers(workers) {
  show(
    'workers',
    table(
      ['worker', 'state', 'device', 'slots', 'task', 'requests', 'mean', 'seen', 'session', ''],
      workers.map((worker) => {
        const is = worker.status === 'idle' ? 'good' : ['error', 'offline'].includes(worker.status) ? 'poor' : 'fair';
        return [
          h(
            'span',
            { class: 'mono' },
            String(worker.worker_id),
            worker.port ? h('small', { class: 'quiet' }, ` :${worker.port}`) : null,
          ),
          h(
            'span',
            { class: 'chip' },
            h('span', { class: 'dot', 'data-is': worker.draining ? 'fair' : is }),
            worker.draining ? t('admin.draining', { state: stateWord(worker.status) }) : stateWord(worker.status),
          ),
          [worker.gpu_id, worker.model].filter(Boolean).join(' · '),
          worker.slots === undefined ? '–' : `${worker.free_slots} / ${worker.slots}`,
          taskWord(worker.current_request_type),
          number(worker.total_requests ?? 0),
          `${number(worker.avg_inference_time_ms ?? 0, { maximumFractionDigits: 0 })} ms`,
          worker.last_heartbeat ? time(worker.last_heartbeat) : '–',
          worker.current_session_id
            ? h('span', { class: 'mono small cut', title: worker.current_session_id }, worker.current_session_id)
            : '–',
          workerTools(worker),
        ];
      }),
      'workers',
    ),
    ...workers.map(workerFacts).filter((node) => node !== null),
  );
}

/** Capabilities of the workers' models, by name of the model. @type {Record<string, string[]>} */
let abilities = {};

export async function learnAbilities() {
  const { models = [] } = await ask('/v1/realtime/capabilities').catch(() => ({}));
  abilities = Object.fromEntries(models.map((/** @type {any} */ one) => [one.id, [...one.modes, ...one.abilities]]));
}

/** Returns what a worker can do, its errors, and which parts of its model are not fast and why. @param {any} worker */
function workerFacts(worker) {
  const { worker_id: id, model, voice_problem: voice, problem, fast_paths: parts = [], unreachable } = worker;
  const slow = parts.filter((/** @type {any} */ part) => part.state !== 'fast');
  const fast = parts.filter((/** @type {any} */ part) => part.state === 'fast');
  const facts = [
    abilities[model]
      ? h('p', { class: 'row' }, ...abilities[model].map((name) => h('span', { class: 'chip' }, name)))
      : null,
    unreachable ? h('p', { class: 'error', words: 'admin.unreachable' }) : null,
    ...[voice, problem].filter(Boolean).map((one) => h('p', { class: 'error' }, String(one))),
    fast.length > 0
      ? h('p', {
          class: 'quiet',
          words: ['admin.fast', { parts: fast.map((/** @type {any} */ { part }) => part).join(', ') }],
        })
      : null,
    ...slow.map((/** @type {any} */ { part, state, reason }) =>
      h(
        'p',
        null,
        h('span', { class: 'dot', 'data-is': state === 'refused' ? 'poor' : 'fair' }),
        ' ',
        h('span', { words: [`admin.part_${state === 'refused' ? 'refused' : 'plain'}`, { part }] }),
        reason ? h('span', { class: 'quiet' }, ` ${reason}`) : null,
      ),
    ),
  ].filter((node) => node !== null);
  return facts.length > 0 ? h('div', { class: 'facts small' }, h('span', { class: 'mono' }, id), ...facts) : null;
}

/** @param {any} worker */
function workerTools(worker) {
  if (worker.status === 'offline') return null;
  const path = `/api/admin/workers/${encodeURIComponent(worker.worker_id)}`;
  return h(
    'span',
    { class: 'row tools' },
    h('button', {
      class: 'button slim',
      type: 'button',
      'data-of': worker.worker_id,
      words: worker.draining ? 'admin.undrain' : 'admin.drain',
      onclick: () => void act(() => ask(path, { method: 'PUT', body: JSON.stringify({ draining: !worker.draining }) })),
    }),
    dangerButton('admin.restart', ['admin.restart_sure', 'admin.restart', { worker: worker.worker_id }], () =>
      ask(`${path}/restart`, { method: 'POST', body: '{}' }),
    ),
  );
}

/** @param {any[]} items */
export function drawQueue(items) {
  showSection('queue', items.length > 0);
  show(
    'queue',
    table(
      ['place', 'ticket', 'task', 'wait', 'since', ''],
      items.map((item) => [
        item.position,
        h('span', { class: 'mono' }, item.ticket_id),
        taskWord(item.request_type),
        item.estimated_wait_s === null ? '–' : clock(item.estimated_wait_s ?? 0),
        clock(item.wait_elapsed_s ?? 0),
        dangerButton('action.cancel', ['admin.cancel_sure', 'admin.cancel_yes', { ticket: item.ticket_id }], () =>
          ask(`/api/queue/${encodeURIComponent(item.ticket_id)}`, { method: 'DELETE' }),
        ),
      ]),
      'queue',
    ),
  );
}

/** @param {any[]} tasks */
export function drawRunning(tasks) {
  showSection('running', tasks.length > 0);
  show(
    'running',
    table(
      ['task', 'worker', 'started', 'elapsed', 'left'],
      tasks.map((task) => [
        taskWord(task.request_type),
        h('span', { class: 'mono' }, task.worker_id),
        time(task.started_at),
        clock(task.elapsed_s ?? 0),
        clock(task.estimated_remaining_s ?? 0),
      ]),
      'running',
    ),
  );
}

/** Returns the waits for an answer, by kind of conversation. @param {import('../admin-metrics.js').Sample[]} metrics */
export function drawAnswers(metrics) {
  const ms = (/** @type {number | null} */ seconds) =>
    `${number(1000 * (seconds ?? 0), { maximumFractionDigits: 0 })} ms`;
  const rows = TASKS.map(
    (mode) => /** @type {const} */ ([mode, histogram(metrics, 'parley_answer_seconds', { mode })]),
  ).filter(([, buckets]) => (buckets.at(-1)?.count ?? 0) > 0);
  showSection('answers', rows.length > 0);
  show(
    'answers',
    table(
      ['task', 'answers', 'p50', 'p95', 'p99'],
      rows.map(([mode, buckets]) => [
        taskWord(mode),
        number(buckets.at(-1)?.count ?? 0),
        ...[0.5, 0.95, 0.99].map((part) => ms(quantile(buckets, part))),
      ]),
      'answers',
    ),
  );
}

/** @param {import('../admin-metrics.js').Sample[]} metrics */
export function drawErrors(metrics) {
  const errors = metrics.filter(({ name, value }) => name === 'parley_errors_total' && value > 0);
  showSection('errors', errors.length > 0);
  show(
    'errors',
    table(
      ['code', 'source', 'count'],
      errors.map(({ labels, value }) => [
        h('span', { class: 'mono' }, labels.code ?? ''),
        labels.source ?? '',
        number(value),
      ]),
      'errors',
    ),
  );
}
