/** The operator's page: workers, queue, sessions, apps, estimates, voices, keys, and the last hour. */

import { $, h, say } from '../elements/dom.js';
import { notice } from '../elements/notice.js';
import { mountShell } from '../elements/shell/shell.js';
import { HttpError } from '../wire/http.js';
import { at } from '../wire/root.js';
import { loadExtraWords, time, words } from '../words/words.js';
import { drawDisk, drawKeys, drawLog, drawRecordings, drawVoices } from './admin/kept.js';
import {
  drawAnswers,
  drawErrors,
  drawQueue,
  drawRunning,
  drawTotals,
  drawWorkers,
  learnAbilities,
} from './admin/live.js';
import { drawSessions } from './admin/sessions.js';
import { drawApps, drawEta, forgetShown } from './admin/set.js';
import { ask, place, setRefresh, TOKEN } from './admin/shared.js';
import { History, parseMetrics } from './admin-metrics.js';

const EVERY_MS = 5000;
const ETA_EVERY = 6;

await loadExtraWords('admin');
mountShell();
const main = $('#main');
main.className = 'admin';
const past = new History();
/** @type {ReturnType<typeof setInterval> | undefined} */
let timer;
let rounds = 0;
setRefresh(async () => {
  rounds = 0;
  await refresh();
});

function login(/** @type {boolean} */ isWrong) {
  clearInterval(timer);
  const token = h('input', { type: 'password', autocomplete: 'current-password', required: true });
  const form = h(
    'form',
    { class: 'card stack login' },
    h('h1', { words: 'admin.title' }),
    h('p', { class: 'quiet', words: 'admin.login' }),
    h('label', null, h('span', { words: 'admin.token' }), token),
    isWrong ? h('p', { class: 'small error', role: 'alert', words: 'admin.wrong' }) : null,
    h('button', { class: 'button primary', type: 'submit', words: 'admin.enter' }),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, token.value);
    void open();
  };
  main.replaceChildren(form);
  token.focus();
}

/** True if the token is not accepted. @param {unknown} error */
const isRefused = (error) =>
  error instanceof HttpError && [401, 403].includes(error.status) && error.code !== 'signed_out';

async function open() {
  try {
    await ask('/api/admin/apps');
  } catch (error) {
    if (isRefused(error)) {
      const wasTried = sessionStorage.getItem(TOKEN) !== null;
      sessionStorage.removeItem(TOKEN);
      login(wasTried);
      return;
    }
    main.replaceChildren(
      notice('error', 'admin.offline', undefined, { ways: [{ words: 'action.try_again', act: () => void open() }] }),
    );
    return;
  }
  build();
  await Promise.all([recall(), learnAbilities()]);
  await refresh();
  clearInterval(timer);
  timer = setInterval(() => {
    if (!document.hidden) void refresh();
  }, EVERY_MS);
}

/** Loads the server's samples of the last hour. */
async function recall() {
  const { looks } = await ask('/api/admin/history').catch(() => ({ looks: [] }));
  past.recall(
    looks.map((/** @type {any} */ { at: when, metrics }) => ({ at: Date.parse(when), metrics: parseMetrics(metrics) })),
  );
}

function build() {
  const section = (/** @type {string} */ name, /** @type {string} */ css = '') => {
    place[name] = h('div', null);
    return h(
      'section',
      { class: `card stack ${css}`, 'aria-labelledby': `admin-${name}` },
      h('h2', { id: `admin-${name}`, words: `admin.${name}` }),
      place[name],
    );
  };
  place.totals = h('div', { class: 'totals' });
  // A screen reader announces failed updates, but not the time of each successful one.
  place.state = h('p', { class: 'small quiet', role: 'status', 'aria-live': 'off' });
  main.replaceChildren(
    h(
      'div',
      { class: 'row spread' },
      h('h1', { words: 'admin.title' }),
      place.state,
      sessionStorage.getItem(TOKEN)
        ? h('button', {
            class: 'button slim',
            type: 'button',
            words: 'admin.leave',
            onclick: () => {
              sessionStorage.removeItem(TOKEN);
              void open();
            },
          })
        : null,
    ),
    place.totals,
    h(
      'div',
      { class: 'grid' },
      section('charts', 'wide'),
      section('workers', 'wide'),
      section('sessions', 'wide'),
      section('queue', 'wide'),
      section('running', 'wide'),
      section('answers', 'wide'),
      section('apps'),
      section('disk'),
      section('voices'),
      section('keys'),
      section('errors', 'wide'),
      section('eta', 'wide'),
      section('recordings', 'wide'),
      section('log', 'wide'),
    ),
  );
  place.charts.after(h('p', { class: 'small quiet', words: 'admin.charts_help' }));
  place.answers.after(h('p', { class: 'small quiet', words: 'admin.answers_help' }));
  for (const name of ['keys', 'recordings', 'voices', 'errors', 'disk', 'log', 'queue', 'running', 'answers']) {
    const card = place[name].parentElement;
    if (card) card.hidden = true;
  }
  forgetShown();
}

async function refresh() {
  try {
    const [status, queue, workers, text] = await Promise.all([
      ask('/status'),
      ask('/api/queue'),
      ask('/workers'),
      fetch(at('/metrics')).then((answer) => (answer.ok ? answer.text() : '')),
    ]);
    const metrics = parseMetrics(text);
    past.note(Date.now(), status, metrics);
    drawTotals(status);
    drawWorkers(workers.workers);
    drawQueue(queue.items ?? queue.entries ?? []);
    drawSessions(status.sessions ?? [], status.session_logs?.missing ?? 0);
    drawRunning(queue.running_tasks ?? status.running_tasks ?? []);
    drawErrors(metrics);
    drawAnswers(metrics);
    past.draw(place.charts);
    if (rounds++ % ETA_EVERY === 0)
      await Promise.all([drawApps(), drawEta(), drawVoices(), drawKeys(), drawRecordings(), drawDisk(), drawLog()]);
    place.state.ariaLive = 'off';
    say(place.state, 'admin.updated', { time: time(Date.now()) });
  } catch (error) {
    if (isRefused(error)) login(true);
    else {
      place.state.ariaLive = 'polite';
      say(place.state, 'admin.offline');
    }
  }
}

words.addEventListener('language', () => {
  if (!place.totals) return;
  forgetShown();
  rounds = 0;
  void refresh();
});
document.addEventListener('themechange', () => place.charts && past.draw(place.charts));
void open();
