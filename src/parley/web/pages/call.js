/**
 * The page of a live conversation. It assembles the parts: `talk/` controls the call, and `pages/call/` what is shown.
 */

import { $, h, loadedOnce, painted, say, toast } from '../elements/dom.js';
import { factsOf } from '../elements/model.js';
import { barrierNotice, notice } from '../elements/notice.js';
import { describe, remember } from '../elements/recents.js';
import { mountShell } from '../elements/shell/shell.js';
import { AnswerTime } from '../talk/answer-time.js';
import { titleOf } from '../talk/captions.js';
import { about } from '../wire/about.js';
import { chosenApi } from '../wire/api.js';
import { CallClock } from './call/clock.js';
import { watchReturn } from './call/comeback.js';
import { Controls } from './call/controls.js';
import { keepAwake, listenToKeys, listenToMediaKeys, watchLeaving } from './call/keys.js';
import { noticesOf } from './call/notices.js';
import { makeParts } from './call/parts.js';
import { APP } from './call/settings.js';
import { makeSide } from './call/side.js';
import { makeStage, present } from './call/stage.js';
import { followUnits } from './monitor.js';

/** @typedef {import('./call/parts.js').CallPage} CallPage */
/** @param {import('./call/settings.js').Kind} kind @param {import('./call/parts.js').KindOfCall} own */
export async function mountCall(kind, own) {
  mountShell({ app: APP[kind] });
  const page = assemble(makeParts(kind, own), own);
  follow(page);
  page.main.append(page.stage.node, page.controls.node, page.side.node);
  page.openSide(null);
  if (kind === 'realtime' && matchMedia('(min-width: 68.01rem)').matches) page.openSide('connection', true);
  listenToKeys(page, { main: page.controls.main, side: page.side });
  listenToMediaKeys(page);
  keepAwake(page);
  watchLeaving(page);
  setInterval(() => page.clock.draw(), 500);
  watchReturn(page, () => page.drawNotices());
  draw(page);
  firstNotice(page);
  await painted();
  page.stage.showModel(factsOf((await about()).model));
}

/** @param {import('./call/parts.js').Parts} parts @param {import('./call/parts.js').KindOfCall} own */
function assemble(parts, { mountStageVideo }) {
  const page = /** @type {CallPage} */ (parts);
  page.stageVideo = page.hasVideo && mountStageVideo ? mountStageVideo(page) : null;
  page.openSide = (name, isTab) => side.open(name, isTab);
  const controls = new Controls(page);
  const clock = new CallClock(page, (time) => controls.showTime(time));
  const stage = makeStage(page, [clock.timer, clock.recorded, page.signal], controls.start);
  const [writing, panel, connection] = ['stack', 'stack', 'stack'].map((name) => h('div', { class: name }));
  const side = makeSide(
    [
      ['conversation', [page.transcript, writing]],
      ['settings', [panel]],
      ['connection', [connection]],
    ],
    (open) => {
      controls.showOpen(/** @type {any} */ (open));
      if (open) page.whenLoaded?.().catch(() => toast('call.no_start_fix'));
    },
  );
  const main = $('#main');
  main.className = 'call';
  main.dataset.kind = page.kind;
  page.whenLoaded = loadedOnce(async () => {
    const later = await import('./call/later.js');
    const made = later.mountLater(page);
    panel.append(made.panel);
    connection.append(...made.connection);
    writing.append(...made.writing);
    void page.prompt.load();
    return later;
  });
  // The visible parts are loaded first; if the user needs the rest earlier, or this fails, it is loaded on request.
  const load = () => page.whenLoaded().catch(() => {});
  if ('requestIdleCallback' in globalThis) requestIdleCallback(load, { timeout: 1500 });
  else setTimeout(load, 300);
  const server = reachServer(page);
  page.start = (said = '') =>
    void page.calls.start(async (/** @type {AbortSignal} */ signal) => {
      const { makeOrder } = await page.whenLoaded();
      return await makeOrder(page, { server, said, signal });
    });
  return Object.assign(page, { controls, clock, stage, side, panel, main, drawNotices: noticesOf(page) });
}

/** @typedef {ReturnType<typeof assemble>} WholePage */

/** Loads the allowed servers and the limits, which are needed before a call starts. @param {CallPage} page */
function reachServer(page) {
  const known = painted().then(async () => {
    const { playbackDelayMs, apiHosts, limitsS } = await about();
    if (playbackDelayMs !== null) page.settings.suggest({ delay: playbackDelayMs });
    if (page.isHalf) return { base: null, limitsS };
    const { base, refused } = chosenApi(location.href, apiHosts);
    if (base) toast('call.other_server', { host: new URL(base).host });
    if (refused) {
      page.notices.prepend(
        notice('warn', 'call.server_refused', 'call.server_refused_fix', { values: { host: refused } }),
      );
    }
    // Another server has other limits, which it does not report.
    return { base, limitsS: base ? {} : limitsS };
  });
  return () => known;
}

/** @param {WholePage} page */
function follow(page) {
  const { calls, settings, rig } = page;
  const monitor = new Audio();
  followUnits(
    monitor,
    page,
    () => Boolean(page.duplex?.order?.feed) && !page.stageVideo && page.source?.sound !== 'mic',
  );
  calls.addEventListener('call', () => {
    page.transcript.captions = /** @type {any} */ (calls.current).captions;
    page.stage.clearWords();
    page.wave.clear();
    page.answerTime = new AnswerTime();
    if (page.source) Object.assign(monitor, { volume: page.source.monitor });
    if (page.source?.url && !page.stageVideo) monitor.src = page.source.url;
  });
  let before = 'idle';
  calls.addEventListener('change', () => {
    const { phase } = calls.state;
    draw(page);
    if (phase !== before) onPhase(page, before, phase);
    before = phase;
  });
  calls.addEventListener('captions', (event) => {
    const { detail } = /** @type {CustomEvent} */ (event);
    page.stage.showWords(detail);
    page.stage.drawHints();
    slideIn(page, detail);
  });
  calls.addEventListener('level', (event) => showLevels(page, /** @type {CustomEvent} */ (event).detail));
  calls.addEventListener('wire', (event) => page.events.note(/** @type {CustomEvent} */ (event).detail));
  calls.addEventListener('recorded', () => void showAfter(page));
  calls.addEventListener('live', () => {
    page.chimes.ready();
    // At the start of the call, so that a user who leaves in the middle of it finds it again.
    remember(calls.state.recordingId, page.app);
    void page.devices.refresh();
  });
  settings.addEventListener('change', () => rig.setVolume(settings.get('volume')));
}

/** Captions for which the side has been opened. @type {WeakSet<object>} */
const shownOnce = new WeakSet();

/** Opens the conversation with a call's first words, if there is room. @param {WholePage} page @param {any} captions */
function slideIn(page, captions) {
  if (shownOnce.has(captions) || page.hasVideo || !matchMedia('(min-width: 68.01rem)').matches) return;
  if (!captions.list.some((/** @type {any} */ { who, text }) => who !== 'note' && text)) return;
  shownOnce.add(captions);
  if (!page.side.isOpen()) page.openSide('conversation', true);
}

/** @param {WholePage} page @param {string} before @param {string} phase */
function onPhase(page, before, phase) {
  document.dispatchEvent(new Event('placechange'));
  performance.mark(`call-${phase}`);
  if (phase === 'live' && before === 'connecting') performance.measure('start-to-listening', 'call-starting');
  page.clock.draw();
  if (phase === 'live' && before !== 'paused' && before !== 'pausing') page.controls.moveFocus(true);
  if (phase === 'ended') {
    page.chimes.hush();
    keepWords(page);
    page.stageVideo?.over();
    page.controls.moveFocus(false);
  }
  void showAfter(page);
}

/** Stores the title and duration of the call, which distinguish it in a list. @param {CallPage} page */
function keepWords({ calls }) {
  const { recordingId, liveSince } = calls.state;
  const said = calls.current?.captions.list ?? [];
  describe(recordingId, { words: titleOf(said), seconds: Math.round((performance.now() - liveSince) / 1000) });
}

/** @param {CallPage} page @param {{mic: number, voice: number}} levels */
function showLevels({ calls, orb, wave, duplex, vad, answerTime, rig }, { mic, voice }) {
  const { activity, isMuted } = calls.state;
  answerTime.note({ mic, voice, isMuted }, performance.now(), rig.latencyS * 1000);
  orb.level = activity === 'speaking' ? voice * 3.5 : isMuted ? 0 : mic * 5;
  wave.note(isMuted ? 0 : mic, voice);
  if (vad) Object.assign(vad, { level: mic, isHeard: activity === 'hearing' });
  if (!duplex?.hasEcho || localStorage.getItem('parley.headphones')) return;
  localStorage.setItem('parley.headphones', 'told');
  toast('call.headphones');
}

/** Updates the page from the state. @param {WholePage} page */
function draw(page) {
  const { calls, main, orb } = page;
  const { phase, activity, ending, queue } = calls.state;
  main.dataset.phase = phase === 'ended' && ending?.reason === 'not_started' ? 'idle' : phase;
  main.dataset.activity = activity;
  main.dataset.calling = String(calls.isBusy);
  main.dataset.service = calls.isOn ? calls.state.service : '';
  page.clock.drawSignal();
  const { mood, key, values } = present(page);
  orb.state = mood;
  if (!calls.isLive) orb.level = 0;
  say(page.stage.stateLine, key, values);
  page.controls.showState(key, values);
  page.controls.draw();
  page.queue.update(queue);
  lockPanel(page.panel, calls.isBusy);
  page.drawNotices();
  // Suggestions are hidden while a notice is shown.
  page.stage.drawHints();
}

/** Shows a notice if devices cannot be used. @param {CallPage} page */
function firstNotice({ notices }) {
  const barrier = barrierNotice();
  if (barrier) notices.replaceChildren(barrier);
}

/** @param {WholePage} page */
async function showAfter(page) {
  const { ending } = page.calls.state;
  page.stage.after.hidden = true;
  if (ending?.wasReady) (await page.whenLoaded()).showAfter(page, page.stage.after);
}

/** Locks the settings that cannot be changed during a call. @param {HTMLElement} panel @param {boolean} isBusy */
function lockPanel(panel, isBusy) {
  const fixed =
    'p-prompt textarea, p-prompt button, p-voice select, p-voice button, p-source select, p-source input, p-parts button';
  for (const field of /** @type {NodeListOf<HTMLButtonElement>} */ (panel.querySelectorAll(fixed))) {
    field.disabled = isBusy;
  }
  const note = panel.querySelector('.settings-note');
  if (note) say(note, isBusy ? 'settings.in_call' : 'settings.next_start');
}
