/**
 * The page of a recorded conversation: its text and audio, both voices as waveforms and, on request, every second of it
 * and its configuration. The merged file is streamed.
 */

import { forgetRecording } from '../elements/forget.js';
import { $, copy, h, textButton } from '../elements/dom.js';
import { askForKey } from '../elements/key.js';
import { notice } from '../elements/notice.js';
import { mountShell } from '../elements/shell/shell.js';
import { HttpError, request, requestIfAny } from '../wire/http.js';
import { at, here } from '../wire/root.js';
import { clock, date, has, t } from '../words/words.js';
import { titleOf } from '../talk/captions.js';
import { cellsOf, conversationOf } from './replay/cells.js';
import { commentCard } from './replay/comment.js';
import { Conversation } from './replay/conversation.js';
import { Timeline } from './replay/timeline.js';
import '../elements/player/player.js';

const POLL_MS = 5000;
/** Pause before a recording that is being rendered is requested again. */
const COMING_MS = 2000;
/** Within this time after its end, a recording may be complete before its rendering has been queued. */
const JUST_ENDED_MS = 10_000;
const SPEEDS = [0.75, 1, 1.25, 1.5, 2];
const HOME = { words: 'nav.home', act: () => location.assign(at('/')) };

mountShell();
const main = $('#main');
main.className = 'replay';
const id = decodeURIComponent(here().split('/').filter(Boolean)[1] ?? '');
/** True if the page was opened with a shared link, which allows only viewing. */
const isShared = id.startsWith('sh_');
const base = `/api/sessions/${encodeURIComponent(id)}`;
const asset = (/** @type {string} */ path) => at(`${base}/assets/${path.split('/').map(encodeURIComponent).join('/')}`);
/** True if the list of seconds is open. */
let isOpen = false;
const isUnderway = (/** @type {any} */ meta) => ['queued', 'running'].includes(meta.replay?.state);
const isFresh = (/** @type {any} */ meta) =>
  meta.ended_at === null || Date.now() - Date.parse(meta.ended_at) < JUST_ENDED_MS;

/** @param {boolean} [isAgain] true to keep the current content until the new content is loaded */
async function load(isAgain = false) {
  if (!isAgain) main.replaceChildren(h('p', { class: 'quiet', role: 'status', words: 'replay.loading' }));
  /** @type {any} */
  let meta;
  /** @type {any} */
  let recording = null;
  try {
    meta = await request(base);
    recording = await requestIfAny(`${base}/recording`);
  } catch (error) {
    if (error instanceof HttpError && error.code === 'recording_coming') showComing();
    else showMissing(error);
    return;
  }
  draw(meta, recording);
  if ((!recording?.chunks && !recording?.turns) || isUnderway(meta) || (!meta.replay && isFresh(meta)))
    setTimeout(() => void wait(meta.replay?.state), POLL_MS);
}

/** Shown in the first seconds after a call, when its recording may still be on the worker that created it. */
function showComing() {
  setTimeout(() => void load(true), COMING_MS);
  if (main.querySelector('.coming')) return;
  const told = notice('info', 'replay.coming', 'replay.processing_more');
  told.classList.add('coming');
  main.replaceChildren(h('h1', { words: 'replay.title' }), told);
}

/** @param {unknown} error */
function showMissing(error) {
  const isMissing = error instanceof HttpError && error.status === 404;
  if (error instanceof HttpError && error.status === 401 && error.code !== 'signed_out') void askForKey();
  const ways = isMissing ? [HOME] : [{ words: 'action.try_again', act: () => void load() }, HOME];
  main.replaceChildren(
    h('h1', { words: 'replay.title' }),
    isMissing
      ? notice('info', 'replay.missing', 'replay.missing_fix', { ways })
      : notice('error', 'replay.failed', undefined, { ways }),
  );
}

/**
 * Polls until something has changed, so that the page is not redrawn without need.
 * @param {string | undefined} state
 */
async function wait(state) {
  const meta = await requestIfAny(base).catch(() => null);
  const isSame = meta && meta.replay?.state === state && (state || isFresh(meta));
  if (isSame) setTimeout(() => void wait(state), POLL_MS);
  else await load();
}

/** @param {any} meta @param {any} recording */
function draw(meta, recording) {
  const cells = cellsOf(recording);
  const said = conversationOf(cells, recording);
  const timeline = new Timeline(cells, asset);
  const conversation = new Conversation(said, { asset, jump: (seconds) => timeline.jump(seconds) });
  timeline.onMark = (seconds) => conversation.mark(seconds);
  const media = h('div', { class: 'media' });
  const isWaiting = (!meta.ended_at && cells.length === 0) || !recording || isUnderway(meta);
  main.replaceChildren(
    header(meta, titleOf(said)),
    ...(isWaiting ? [notice('info', 'replay.processing', 'replay.processing_more')] : []),
    media,
    conversation.subtitle,
    timeline.node,
    conversation.node,
    timeline.units,
    ...(isShared ? [] : [commentCard(base)]),
    details(meta),
  );
  // The list stays open or closed when the page is redrawn while the recording is being rendered.
  timeline.units.open = isOpen;
  timeline.units.addEventListener('toggle', () => {
    isOpen = timeline.units.open;
  });
  mountMedia(media, recording, timeline);
}

/** @param {any} meta @param {string} words first words that were said */
function header(meta, words) {
  const type = meta.type ?? meta.app_type ?? '';
  const app = `app.${{ chat: 'turnbased', omni_duplex: 'omni' }[/** @type {string} */ (type)] ?? type}`;
  const kind = has(app) ? t(app) : type;
  const facts = [meta.created_at ? date(meta.created_at) : '', meta.duration_s ? clock(meta.duration_s) : ''];
  const remove = async () => {
    if (!(await forgetRecording(id))) return;
    main.replaceChildren(
      h('h1', { words: 'replay.title' }),
      notice('info', 'replay.deleted', undefined, { ways: [HOME] }),
    );
    $('button', main).focus();
  };
  /** A user with a shared link shares that link; the owner of the recording creates one that allows only viewing. */
  const share = async () => {
    if (isShared) return await copy(location.href, 'share.copied');
    (await import('../elements/share/share.js')).openShare({
      recordingId: id,
      app: app.replace('app.', ''),
      blob: null,
    });
  };
  return h(
    'header',
    { class: 'row spread' },
    h(
      'div',
      { class: 'stack title' },
      h('h1', { dir: 'auto' }, String(meta.title || words || kind || t('replay.title'))),
      h('p', { class: 'quiet small num' }, h('span', { class: 'chip' }, kind), ` ${facts.filter(Boolean).join(' · ')}`),
      partsOf(meta),
    ),
    h(
      'div',
      { class: 'row' },
      textButton(isShared ? 'copy' : 'share', isShared ? 'replay.link' : 'after.share', () => void share()),
      h('a', { class: 'button slim', href: `${base}/download`, icon: 'download', words: 'replay.zip' }),
      isShared ? null : textButton('trash', 'action.delete', () => void remove(), 'slim danger'),
    ),
  );
}

/** Links to the other recordings of a session that another worker continued. @param {any} meta */
function partsOf({ parts = [] }) {
  const links = parts.map((/** @type {string} */ part, /** @type {number} */ index) =>
    h('a', {
      class: part === id ? 'button slim primary' : 'button slim',
      href: at(`/s/${encodeURIComponent(part)}`),
      'aria-current': part === id ? 'page' : null,
      words: ['replay.part', { number: index + 1 }],
    }),
  );
  return links.length > 0 ? h('nav', { class: 'row' }, ...links) : null;
}

/** Returns ids and settings; they are not shown on shared links. @param {any} meta */
function details(meta) {
  const own = isShared ? {} : { session_id: id, worker_id: meta.worker_id };
  const text = JSON.stringify({ ...own, ...meta.config }, null, 2);
  return h(
    'details',
    { class: 'card' },
    h('summary', { words: 'replay.config' }),
    h('pre', { class: 'mono', tabindex: 0 }, text),
  );
}

/** @param {HTMLElement} place @param {any} recording @param {Timeline} timeline */
function mountMedia(place, recording, timeline) {
  const files = [
    [recording?.merged_replay_video ?? recording?.merged_replay, 'replay.merged'],
    [recording?.frontend_replay, 'replay.from_browser'],
  ];
  const found = files.filter(([path]) => path);
  timeline.isSilent = found.length === 0;
  for (const [i, [path, key]] of found.entries()) {
    const isFilm = /\.(mp4|webm)$/.test(path);
    const about = { controls: true, preload: 'metadata', src: asset(path), playsinline: true, label: key };
    const player = h(isFilm ? 'video' : 'audio', about);
    const speed = h(
      'select',
      { label: 'replay.speed' },
      ...SPEEDS.map((rate) => h('option', { value: rate }, `${rate}×`)),
    );
    speed.value = '1';
    speed.onchange = () => {
      player.playbackRate = Number(speed.value);
    };
    const caption = h('figcaption', { class: 'small quiet row spread' }, h('span', { words: key }), speed);
    place.append(h('figure', null, player, caption));
    if (i > 0) continue;
    const sound = recording?.merged_replay ? asset(recording.merged_replay) : isFilm ? null : asset(path);
    timeline.follow(player, sound);
  }
}

void load();
