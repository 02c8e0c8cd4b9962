/** The operator's page: workers, queue, sessions, apps, estimates, voices, keys, and the last hour. */

import { $, confirmed, copy, h, say, sheet, toast } from '../elements/dom.js';
import { notice } from '../elements/notice.js';
import { mountShell } from '../elements/shell/shell.js';
import { HttpError, request, requestIfAny } from '../wire/http.js';
import { clock, date, has, number, t, words } from '../words/words.js';
import { histogram, History, parseMetrics, quantile } from './admin-metrics.js';

const EVERY_MS = 5000;
const ETA_EVERY = 6;
const TOKEN = 'parley.admin';

mountShell();
const main = $('#main');
main.className = 'admin';
const past = new History();
/** @type {ReturnType<typeof setInterval> | undefined} */
let timer;
let rounds = 0;

/** @param {string} path @param {RequestInit} [init] */
const ask = (path, init) => request(path, { ...init, token: sessionStorage.getItem(TOKEN) ?? undefined });
/** @param {string} path */
const askIfAny = (path) => requestIfAny(path, { token: sessionStorage.getItem(TOKEN) ?? undefined });

function login(/** @type {boolean} */ isWrong) {
  clearInterval(timer);
  const token = h('input', { type: 'password', autocomplete: 'current-password', required: true });
  const form = h('form', { class: 'card stack login' }, h('h1', { words: 'admin.title' }), h('p', { class: 'quiet', words: 'admin.login' }), h('label', null, h('span', { words: 'admin.token' }), token), isWrong ? h('p', { class: 'small error', role: 'alert', words: 'admin.wrong' }) : null, h('button', { class: 'button primary', type: 'submit', words: 'admin.enter' }));
  form.onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, token.value);
    void open();
  };
  main.replaceChildren(form);
  token.focus();
}

async function open() {
  try {
    await ask('/api/admin/apps');
  } catch (error) {
    if (error instanceof HttpError && (error.status === 401 || error.status === 403)) {
      const wasTried = sessionStorage.getItem(TOKEN) !== null;
      sessionStorage.removeItem(TOKEN);
      login(wasTried);
      return;
    }
    main.replaceChildren(notice('error', 'admin.offline', undefined, { ways: [{ words: 'action.try_again', act: () => void open() }] }));
    return;
  }
  build();
  await refresh();
  clearInterval(timer);
  timer = setInterval(() => {
    if (!document.hidden) void refresh();
  }, EVERY_MS);
}

/** @type {Record<string, HTMLElement>} */
let place = {};

function build() {
  const section = (/** @type {string} */ name, /** @type {string} */ css = '') => {
    place[name] = h('div', null);
    return h('section', { class: `card stack ${css}`, 'aria-labelledby': `admin-${name}` }, h('h2', { id: `admin-${name}`, words: `admin.${name}` }), place[name]);
  };
  place.totals = h('div', { class: 'totals' });
  place.state = h('p', { class: 'small quiet', role: 'status' });
  main.replaceChildren(
    h('div', { class: 'row spread' }, h('h1', { words: 'admin.title' }), place.state, sessionStorage.getItem(TOKEN) ? h('button', { class: 'button slim', type: 'button', words: 'admin.leave', onclick: () => {
      sessionStorage.removeItem(TOKEN);
      void open();
    } }) : null),
    place.totals,
    h('div', { class: 'grid' }, section('charts', 'wide'), section('answers', 'wide'), section('workers', 'wide'), section('queue', 'wide'), section('running', 'wide'), section('apps'), section('disk'), section('voices'), section('keys'), section('errors'), section('eta', 'wide'), section('recordings', 'wide'), section('log', 'wide')),
  );
  place.charts.after(h('p', { class: 'small quiet', words: 'admin.charts_help' }));
  place.answers.after(h('p', { class: 'small quiet', words: 'admin.answers_help' }));
  for (const name of ['keys', 'recordings', 'voices', 'errors', 'disk', 'log']) /** @type {HTMLElement} */ (place[name].parentElement).hidden = true;
  shownApps = shownEta = '';
}

async function refresh() {
  try {
    const [status, queue, workers, text] = await Promise.all([ask('/status'), ask('/api/queue'), ask('/workers'), fetch('/metrics').then((answer) => (answer.ok ? answer.text() : ''))]);
    const metrics = parseMetrics(text);
    past.note(Date.now(), status, metrics);
    drawTotals(status);
    drawWorkers(workers.workers);
    drawQueue(queue.items ?? queue.entries ?? []);
    drawRunning(queue.running_tasks ?? status.running_tasks ?? []);
    drawErrors(metrics);
    drawAnswers(metrics);
    past.draw(place.charts);
    if (rounds++ % ETA_EVERY === 0) await Promise.all([drawApps(), drawEta(), drawVoices(), drawKeys(), drawRecordings(), drawDisk(), drawLog()]);
    say(place.state, 'admin.updated', { time: new Date().toLocaleTimeString() });
  } catch (error) {
    if (error instanceof HttpError && error.status === 401) login(true);
    else say(place.state, 'admin.offline');
  }
}

/** @param {string[]} heads @param {(Node | string | number | null)[][]} rows @param {string} label */
function table(heads, rows, label) {
  if (rows.length === 0) return h('p', { class: 'quiet small', words: 'admin.none' });
  return h('div', { class: 'scroll-x', tabindex: 0, role: 'group', 'aria-labelledby': `admin-${label}` }, h('table', null, h('thead', null, h('tr', null, ...heads.map((head) => (head ? h('th', { scope: 'col', words: `admin.th_${head}` }) : h('td', null))))), h('tbody', null, ...rows.map((row) => h('tr', null, ...row.map((cell) => h('td', { class: 'num' }, cell)))))));
}

/** @param {string} word */
const stateWord = (word) => (has(`worker.${word}`) ? t(`worker.${word}`) : word);
/** @param {string | null | undefined} task */
const taskWord = (task) => (task ? (has(`task.${task}`) ? t(`task.${task}`) : task) : '–');

/** @param {any} status */
function drawTotals(status) {
  // Duplex workers are a part of the busy ones.
  const cards = [['total', status.total_workers], ['idle', status.idle_workers], ['busy', status.busy_workers], ['duplex', status.duplex_workers], ['loading', status.loading_workers], ['failed', (status.error_workers ?? 0) + (status.offline_workers ?? 0)], ['waiting', status.queue_length]];
  place.totals.replaceChildren(...cards.map(([name, value]) => h('div', { class: 'card' }, h('span', { class: 'small quiet', words: `admin.total_${name}` }), h('strong', { class: 'num' }, number(Number(value ?? 0))))));
}

/** @param {any[]} workers */
function drawWorkers(workers) {
  place.workers.replaceChildren(
    table(['worker', 'state', 'device', 'slots', 'task', 'requests', 'mean', 'seen', 'session', ''],
      workers.map((worker) => {
        const is = worker.status === 'idle' ? 'good' : ['error', 'offline'].includes(worker.status) ? 'poor' : 'fair';
        return [
          h('span', { class: 'mono' }, String(worker.worker_id), worker.port ? h('small', { class: 'quiet' }, ` :${worker.port}`) : null),
          h('span', { class: 'chip' }, h('span', { class: 'dot', 'data-is': worker.draining ? 'fair' : is }), worker.draining ? t('admin.draining', { state: stateWord(worker.status) }) : stateWord(worker.status)),
          [worker.gpu_id, worker.model].filter(Boolean).join(' · '),
          worker.slots === undefined ? '–' : `${worker.free_slots} / ${worker.slots}`,
          taskWord(worker.current_request_type),
          number(worker.total_requests ?? 0),
          `${number(worker.avg_inference_time_ms ?? 0, { maximumFractionDigits: 0 })} ms`,
          worker.last_heartbeat ? new Date(worker.last_heartbeat).toLocaleTimeString() : '–',
          worker.current_session_id ? h('span', { class: 'mono small cut', title: worker.current_session_id }, worker.current_session_id) : '–',
          workerTools(worker),
        ];
      }), 'workers'));
}

/** @param {any} worker */
function workerTools(worker) {
  if (worker.status === 'offline') return null;
  const path = `/api/admin/workers/${encodeURIComponent(worker.worker_id)}`;
  return h('span', { class: 'row tools' },
    h('button', { class: 'button slim', type: 'button', words: worker.draining ? 'admin.undrain' : 'admin.drain', onclick: () => void act(() => ask(path, { method: 'PUT', body: JSON.stringify({ draining: !worker.draining }) })) }),
    h('button', { class: 'button slim danger', type: 'button', words: 'admin.restart', onclick: async () => {
      if (!(await confirmed('admin.restart_sure', 'admin.restart', { worker: worker.worker_id }))) return;
      await act(() => ask(`${path}/restart`, { method: 'POST', body: '{}' }));
    } }));
}

/** @param {any[]} items */
function drawQueue(items) {
  place.queue.replaceChildren(
    table(['place', 'ticket', 'task', 'wait', 'since', ''],
      items.map((item) => [
        item.position,
        h('span', { class: 'mono' }, item.ticket_id),
        taskWord(item.request_type),
        item.estimated_wait_s === null ? '–' : clock(item.estimated_wait_s ?? 0),
        clock(item.wait_elapsed_s ?? 0),
        h('button', { class: 'button slim danger', type: 'button', words: 'action.cancel', onclick: async () => {
          if (!(await confirmed('admin.cancel_sure', 'admin.cancel_yes', { ticket: item.ticket_id }))) return;
          await act(() => ask(`/api/queue/${encodeURIComponent(item.ticket_id)}`, { method: 'DELETE' }));
        } }),
      ]), 'queue'));
}

/** @param {any[]} tasks */
function drawRunning(tasks) {
  place.running.replaceChildren(table(['task', 'worker', 'started', 'elapsed', 'left'], tasks.map((task) => [taskWord(task.request_type), h('span', { class: 'mono' }, task.worker_id), new Date(task.started_at).toLocaleTimeString(), clock(task.elapsed_s ?? 0), clock(task.estimated_remaining_s ?? 0)]), 'running'));
}

const TASKS = ['chat', 'half_duplex_audio', 'audio_duplex', 'omni_duplex'];

/** Waits for an answer by kind of conversation. @param {import('./admin-metrics.js').Sample[]} metrics */
function drawAnswers(metrics) {
  const ms = (/** @type {number | null} */ seconds) => `${number(1000 * (seconds ?? 0), { maximumFractionDigits: 0 })} ms`;
  const rows = TASKS.map((mode) => /** @type {const} */ ([mode, histogram(metrics, 'parley_answer_seconds', { mode })])).filter(([, buckets]) => (buckets.at(-1)?.count ?? 0) > 0);
  place.answers.replaceChildren(table(['task', 'answers', 'p50', 'p95', 'p99'], rows.map(([mode, buckets]) => [taskWord(mode), number(buckets.at(-1)?.count ?? 0), ...[0.5, 0.95, 0.99].map((part) => ms(quantile(buckets, part)))]), 'answers'));
}

/** @param {() => Promise<unknown>} action */
async function act(action) {
  try {
    await action();
    toast('admin.done');
    rounds = 0;
    await refresh();
  } catch (error) {
    toast('admin.failed', { why: error instanceof Error ? error.message : '' });
  }
}

let shownApps = '';

async function drawApps() {
  const { apps } = await ask('/api/admin/apps');
  const key = JSON.stringify(apps);
  if (key === shownApps) return;
  shownApps = key;
  place.apps.replaceChildren(
    ...apps.map((/** @type {any} */ app) => {
      const box = h('input', { type: 'checkbox', role: 'switch', checked: app.enabled });
      box.onchange = async () => {
        const on = box.checked;
        if (!on && !(await confirmed('admin.app_off_sure', 'admin.app_off', { app: has(`app.${app.app_id}`) ? t(`app.${app.app_id}`) : app.name }))) {
          box.checked = true;
          return;
        }
        shownApps = '';
        await act(() => ask(`/api/admin/apps/${encodeURIComponent(app.app_id)}`, { method: 'PUT', body: JSON.stringify({ enabled: on }) }));
      };
      return h('label', { class: 'switch', 'data-app': app.app_id }, h('span', null, h('span', null, has(`app.${app.app_id}`) ? t(`app.${app.app_id}`) : app.name), h('small', { class: 'mono' }, app.route)), box);
    }),
  );
}

let shownEta = '';

async function drawEta() {
  const eta = await askIfAny('/api/config/eta');
  if (!eta) {
    /** @type {HTMLElement} */ (place.eta.parentElement).hidden = true;
    return;
  }
  const key = JSON.stringify(eta);
  // Never under the hands of somebody who is typing.
  if (key === shownEta || place.eta.contains(document.activeElement)) return;
  shownEta = key;
  const kinds = ['chat', 'half_duplex', 'audio_duplex', 'omni_duplex'];
  /** @type {Record<string, HTMLInputElement>} */
  const inputs = {};
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ more, /** @type {Record<string, unknown>} */ limits) => {
    inputs[name] = h('input', { type: 'number', value: String(eta[name]), required: true, ...limits });
    return h('label', null, h('span', { class: 'row spread' }, h('span', null, label), h('span', { class: 'small quiet' }, more)), inputs[name]);
  };
  const form = h('form', { class: 'eta' },
    ...kinds.map((kind) => {
      const mean = eta[`ema_${kind}_s`];
      return field(`eta_${kind}_s`, taskWord(kind === 'half_duplex' ? 'half_duplex_audio' : kind), mean == null ? t('admin.no_samples') : t('admin.samples', { mean, count: eta[`ema_${kind}_samples`] ?? 0 }), { min: 0.1, step: 0.1 });
    }),
    field('eta_ema_alpha', t('admin.alpha'), '', { min: 0.01, max: 1, step: 0.01 }),
    field('eta_ema_min_samples', t('admin.min_samples'), '', { min: 1, step: 1 }),
    h('button', { class: 'button slim', type: 'submit', words: 'action.save' }));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const changed = Object.fromEntries(Object.entries(inputs).filter(([name, input]) => Number(input.value) !== eta[name]).map(([name, input]) => [name, Number(input.value)]));
    if (Object.keys(changed).length === 0) return;
    shownEta = '';
    /** @type {HTMLElement | null} */ (document.activeElement)?.blur();
    await act(() => ask('/api/config/eta', { method: 'PUT', body: JSON.stringify(changed) }));
  };
  place.eta.replaceChildren(form);
}

/** @param {string} name @param {boolean} isThere */
function showSection(name, isThere) {
  /** @type {HTMLElement} */ (place[name].parentElement).hidden = !isThere;
}

// What a server does not have (null) has no section; what failed once (undefined) stays as it was.

async function drawVoices() {
  const answer = await askIfAny('/api/assets/ref_audio').catch(() => undefined);
  if (answer === undefined) return;
  showSection('voices', answer !== null);
  if (!answer) return;
  place.voices.replaceChildren(
    table(['name', 'length', 'made', ''], (answer.ref_audios ?? []).map((/** @type {any} */ voice) => [
      String(voice.name ?? voice.filename), clock((voice.duration_ms ?? 0) / 1000), voice.created_at ? date(voice.created_at) : '–',
      h('button', { class: 'button slim danger', type: 'button', words: 'action.delete', onclick: async () => {
        if (!(await confirmed('admin.voice_sure', 'action.delete', { name: voice.name }))) return;
        await act(() => ask(`/api/assets/ref_audio/${encodeURIComponent(voice.id)}`, { method: 'DELETE' }));
      } }),
    ]), 'voices'));
}

async function drawKeys() {
  const answer = await askIfAny('/api/admin/keys').catch(() => undefined);
  if (answer === undefined) return;
  showSection('keys', answer !== null);
  if (!answer) return;
  const add = h('button', { class: 'button slim', type: 'button', icon: 'plus', words: 'admin.key_new', onclick: () => {
    const name = h('input', { maxlength: 60, required: true });
    const form = h('form', { class: 'stack' }, h('label', null, h('span', { words: 'admin.th_name' }), name), h('button', { class: 'button primary', type: 'submit', words: 'admin.key_new' }));
    const node = sheet('admin.key_new', form);
    form.onsubmit = async (event) => {
      event.preventDefault();
      try {
        const made = await ask('/api/admin/keys', { method: 'POST', body: JSON.stringify({ name: name.value }) });
        node.close();
        sheet('admin.key_made', h('p', { words: 'admin.key_once' }), h('p', { class: 'mono' }, made.key), h('div', { class: 'row' }, h('button', { class: 'button primary', type: 'button', icon: 'copy', words: 'action.copy', onclick: () => void copy(made.key) })));
        rounds = 0;
        await refresh();
      } catch (error) {
        toast('admin.failed', { why: error instanceof Error ? error.message : '' });
      }
    };
  } });
  place.keys.replaceChildren(
    table(['name', 'made', 'used', ''], (answer.keys ?? []).map((/** @type {any} */ key) => [
      String(key.name ?? key.id), key.created_at ? date(key.created_at) : '–', key.last_used_at ? date(key.last_used_at) : '–',
      h('button', { class: 'button slim danger', type: 'button', words: 'admin.revoke', onclick: async () => {
        if (!(await confirmed('admin.key_sure', 'admin.revoke', { name: key.name ?? key.id }))) return;
        await act(() => ask(`/api/admin/keys/${encodeURIComponent(key.id)}`, { method: 'DELETE' }));
      } }),
    ]), 'keys'), add);
}

async function drawRecordings() {
  const answer = await askIfAny('/api/sessions').catch(() => undefined);
  if (answer === undefined) return;
  showSection('recordings', answer !== null);
  if (!answer) return;
  const link = (/** @type {string} */ id, /** @type {string} */ text) => h('a', { href: `/s/${encodeURIComponent(id)}`, target: '_blank', rel: 'noopener' }, text);
  const live = (answer.sessions ?? []).map((/** @type {any} */ session) => [link(session.session_id, session.session_id), h('span', { class: 'chip' }, h('span', { class: 'dot', 'data-is': 'good' }), t('admin.live')), '–', session.last_active ? date(session.last_active) : '–', null, null]);
  const kept = (answer.recordings ?? []).map((/** @type {any} */ one) => {
    const path = `/api/sessions/${encodeURIComponent(one.session_id)}`;
    const pin = h('input', { type: 'checkbox', role: 'switch', checked: one.pinned, label: 'admin.pin', onchange: () => void act(() => ask(`${path}/pin`, { method: 'PUT', body: JSON.stringify({ pinned: pin.checked }) })) });
    return [
      link(one.session_id, one.title || one.session_id), taskWord(one.app_type), one.duration_s ? clock(one.duration_s) : '–', date(one.created_at), h('label', { class: 'switch' }, pin),
      h('button', { class: 'button slim danger', type: 'button', words: 'action.delete', onclick: async () => {
        if (await confirmed('replay.delete_sure', 'action.delete')) await act(() => ask(path, { method: 'DELETE' }));
      } }),
    ];
  });
  place.recordings.replaceChildren(table(['session', 'task', 'length', 'made', 'pinned', ''], [...live, ...kept], 'recordings'));
}

async function drawDisk() {
  const disk = await askIfAny('/api/admin/disk').catch(() => undefined);
  if (disk === undefined) return;
  showSection('disk', disk !== null);
  if (!disk) return;
  const used = 1 - disk.free_gb / Math.max(disk.total_gb, 0.01);
  const isTight = disk.free_gb < 2 * disk.min_free_gb;
  place.disk.replaceChildren(h('div', { class: 'stack' },
    h('meter', { min: 0, max: 1, low: 0.8, high: 0.95, optimum: 0, value: used, 'aria-labelledby': 'admin-disk' }),
    h('p', { words: ['admin.disk_free', { free: disk.free_gb, total: disk.total_gb }] }),
    h('p', { class: 'quiet small', words: ['admin.disk_recordings', { count: disk.recordings, size: disk.recordings_gb < 1 ? `${number(disk.recordings_gb * 1000, { maximumFractionDigits: 1 })} MB` : `${number(disk.recordings_gb)} GB` }] }),
    h('p', { class: 'quiet small' }, [disk.retention_days < 0 ? t('admin.disk_forever') : t('admin.disk_days', { days: disk.retention_days }), disk.max_gb < 0 ? '' : t('admin.disk_cap', { size: disk.max_gb })].filter(Boolean).join(' ')),
    isTight ? h('p', { class: 'error small', role: 'alert', words: ['admin.disk_tight', { size: disk.min_free_gb }] }) : null));
}

async function drawLog() {
  const answer = await askIfAny('/api/admin/log').catch(() => undefined);
  if (answer === undefined) return;
  showSection('log', answer !== null);
  if (!answer) return;
  place.log.replaceChildren(
    table(['time', 'level', 'event', 'source'], (answer.lines ?? []).map((/** @type {any} */ line) => [
      date(line.at),
      h('span', { class: 'chip' }, h('span', { class: 'dot', 'data-is': line.level === 'warning' ? 'fair' : 'poor' }), line.level),
      h('span', { class: 'event' }, line.event, h('small', { class: 'quiet mono' }, ` ${Object.entries(line.more ?? {}).map(([name, value]) => `${name}=${value}`).join(' ')}`)),
      h('span', { class: 'quiet small' }, line.source),
    ]), 'log'));
}

/** @param {import('./admin-metrics.js').Sample[]} metrics */
function drawErrors(metrics) {
  const errors = metrics.filter(({ name, value }) => name === 'parley_errors_total' && value > 0);
  showSection('errors', errors.length > 0);
  place.errors.replaceChildren(table(['code', 'source', 'count'], errors.map(({ labels, value }) => [h('span', { class: 'mono' }, labels.code ?? ''), labels.source ?? '', number(value)]), 'errors'));
}

words.addEventListener('language', () => {
  if (!place.totals) return;
  shownApps = shownEta = '';
  rounds = 0;
  void refresh();
});
document.addEventListener('themechange', () => place.charts && past.draw(place.charts));
void open();
