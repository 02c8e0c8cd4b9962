/**
 * A recorded conversation: what was configured, what was said, both voices as waveforms over one time
 * line, and the sound or film of all of it. The merged file is streamed; single pieces load when asked for.
 */

import { $, confirmed, copy, h, say, toast } from '../elements/dom.js';
import { askForKey } from '../elements/key.js';
import { notice } from '../elements/notice.js';
import { mountShell } from '../elements/shell/shell.js';
import { HttpError, request, requestIfAny } from '../wire/http.js';
import { clock, date, has, number, t } from '../words/words.js';
import '../elements/player/player.js';

/**
 * @typedef {object} Cell one row of the time line: a unit, or a turn
 * @property {number} index
 * @property {number} at seconds
 * @property {number} length seconds
 * @property {string | undefined} userAudio
 * @property {string | undefined} aiAudio
 * @property {string[]} images
 * @property {string | undefined} video
 * @property {string} userText
 * @property {string} text
 * @property {'listen' | 'speak' | 'turn'} mode
 * @property {boolean} isEnd
 * @property {Record<string, number>} timing
 */

const POLL_MS = 5000;

mountShell();
const main = $('#main');
main.className = 'replay';
const id = decodeURIComponent(location.pathname.split('/').filter(Boolean)[1] ?? '');
/** Opened by a link that was shared: for looking only. */
const isShared = id.startsWith('sh_');
const base = `/api/sessions/${encodeURIComponent(id)}`;
const asset = (/** @type {string} */ path) => `${base}/assets/${path.split('/').map(encodeURIComponent).join('/')}`;

/** @param {any} recording of the server @returns {Cell[]} */
function cellsOf(recording) {
  const chunks = Array.isArray(recording?.chunks) ? recording.chunks : [];
  if (chunks.length > 0) {
    return chunks.map((/** @type {any} */ chunk, /** @type {number} */ i) => ({
      index: chunk.index ?? i,
      at: i,
      length: 1,
      userAudio: chunk.user_audio,
      aiAudio: chunk.result?.ai_audio,
      images: chunk.user_frame ? [chunk.user_frame] : [],
      video: undefined,
      userText: '',
      text: chunk.result?.text ?? '',
      mode: String(chunk.result?.mode ?? '').toUpperCase() === 'SPEAK' ? 'speak' : 'listen',
      isEnd: Boolean(chunk.result?.end_of_turn),
      timing: chunk.result?.timing ?? {},
    }));
  }
  const turns = Array.isArray(recording?.turns) ? recording.turns : [];
  const first = turns[0]?.request_ts_ms ?? 0;
  const isSpoken = recording?.mode === 'half_duplex_audio';
  return turns.map((/** @type {any} */ turn, /** @type {number} */ i) => ({
    index: turn.turn_index ?? i,
    // Half-duplex counts from when it was ready, and what was asked had been spoken by then.
    at: Math.max(0, isSpoken ? ((turn.request_ts_ms ?? 0) - (turn.input?.duration_ms ?? 0)) / 1000 : ((turn.request_ts_ms ?? first) - first) / 1000),
    length: Math.max(1, ((turn.input?.duration_ms ?? 0) + (turn.output?.audio_duration_ms ?? 0)) / 1000),
    userAudio: turn.input?.audio,
    aiAudio: turn.output?.audio,
    images: turn.input?.images ?? [],
    video: turn.input?.videos?.[0],
    userText: turn.input?.text ?? '',
    text: turn.output?.text ?? '',
    mode: 'turn',
    isEnd: true,
    timing: turn.timing ?? {},
  }));
}

async function load() {
  main.replaceChildren(h('p', { class: 'quiet', role: 'status', words: 'replay.loading' }));
  /** @type {any} */
  let meta;
  /** @type {any} */
  let recording = null;
  try {
    meta = await request(base);
    recording = await requestIfAny(`${base}/recording`);
  } catch (error) {
    const isMissing = error instanceof HttpError && error.status === 404;
    if (error instanceof HttpError && error.status === 401) void askForKey();
    main.replaceChildren(notice('error', isMissing ? 'replay.missing' : 'replay.failed', isMissing ? 'replay.missing_fix' : undefined, { ways: [{ words: 'action.try_again', act: () => void load() }, { words: 'nav.home', act: () => location.assign('/') }] }));
    return;
  }
  draw(meta, recording);
  const isUnfinished = (!recording?.chunks && !recording?.turns) || ['queued', 'running'].includes(meta.replay?.state);
  if (isUnfinished) setTimeout(() => void wait(meta.replay?.state), POLL_MS);
}

/** Look again until something has changed: a page that is being read is not drawn anew for nothing. @param {string | undefined} state */
async function wait(state) {
  const meta = await requestIfAny(base).catch(() => null);
  if (meta && meta.replay?.state === state && (meta.ended_at === null || state)) setTimeout(() => void wait(state), POLL_MS);
  else await load();
}

/** @param {any} meta @param {any} recording */
function draw(meta, recording) {
  const cells = cellsOf(recording);
  const isLive = !meta.ended_at && cells.length === 0;
  const type = meta.type ?? meta.app_type ?? '';
  const app = `app.${{ chat: 'turnbased', omni_duplex: 'omni' }[/** @type {string} */ (type)] ?? type}`;
  const comment = h('textarea', { rows: 2, maxlength: 2000, hint: 'share.comment_hint' });
  const saved = h('span', { class: 'small quiet', role: 'status' });
  void requestIfAny(`${base}/comment`).then((answer) => {
    comment.value = answer?.comment ?? '';
  }).catch(() => {});
  comment.onchange = async () => {
    try {
      await request(`${base}/comment`, { method: 'POST', body: JSON.stringify({ comment: comment.value.trim() }) });
      say(saved, 'replay.comment_saved');
    } catch {
      say(saved, 'replay.comment_failed');
    }
  };
  const facts = [meta.created_at ? date(meta.created_at) : '', meta.duration_s ? clock(meta.duration_s) : '', meta.worker_id ? String(meta.worker_id) : ''].filter(Boolean);

  const media = h('div', { class: 'media' });
  const shown = new Timeline(cells);
  main.replaceChildren(
    h('header', { class: 'row spread' },
      h('div', { class: 'stack title' }, h('h1', null, String(meta.title || (has(app) ? t(app) : t('replay.title')))), h('p', { class: 'quiet small num' }, h('span', { class: 'chip' }, has(app) ? t(app) : type), ` ${facts.join(' · ')}`), isShared ? null : h('p', { class: 'small quiet mono' }, id)),
      h('div', { class: 'row' }, h('button', { class: 'button slim', type: 'button', icon: 'copy', words: 'replay.link', onclick: () => void copy(location.href, 'share.copied') }), h('a', { class: 'button slim', href: `${base}/download`, icon: 'download', words: 'replay.zip' }), isShared ? null : h('button', { class: 'button slim danger', type: 'button', icon: 'trash', words: 'action.delete', onclick: () => void remove() }))),
    ...(isLive || !recording || ['queued', 'running'].includes(meta.replay?.state) ? [notice('info', 'replay.processing', 'replay.processing_more')] : []),
    media,
    shown.node,
    ...(isShared ? [] : [h('section', { class: 'card stack' }, h('label', null, h('span', { words: 'share.comment' }), comment), saved)]),
    h('details', { class: 'card' }, h('summary', { words: 'replay.config' }), h('pre', { class: 'mono', tabindex: 0 }, JSON.stringify(meta.config ?? {}, null, 2))),
  );
  void mountMedia(media, recording, shown);
}

async function remove() {
  if (!(await confirmed('replay.delete_sure', 'action.delete'))) return;
  try {
    await request(base, { method: 'DELETE', token: sessionStorage.getItem('parley.admin') ?? undefined });
    toast('replay.deleted');
    main.replaceChildren(notice('info', 'replay.deleted', undefined, { ways: [{ words: 'nav.home', act: () => location.assign('/') }] }));
  } catch (error) {
    toast(error instanceof HttpError && error.status === 401 ? 'replay.delete_not_allowed' : 'error.request');
  }
}

/** The whole conversation as one file: the server's mix first, then what a browser uploaded. @param {HTMLElement} place @param {any} recording @param {Timeline} timeline */
async function mountMedia(place, recording, timeline) {
  const merged = recording?.merged_replay_video ?? recording?.merged_replay;
  /** @type {[string, string][]} */
  const found = [];
  if (merged) found.push([merged, 'replay.merged']);
  if (recording && 'frontend_replay' in recording) {
    if (recording.frontend_replay) found.push([recording.frontend_replay, 'replay.from_browser']);
  } else {
    // A server that does not say has to be asked for each.
    for (const kind of ['webm', 'mp4', 'wav']) {
      const path = `frontend_replay.${kind}`;
      const probe = await fetch(asset(path), { method: 'HEAD' }).catch(() => null);
      if (probe?.ok) found.push([path, 'replay.from_browser']);
    }
  }
  if (found.length === 0) timeline.isSilent = true;
  for (const [i, [path, key]] of found.entries()) {
    const isFilm = /\.(mp4|webm)$/.test(path);
    const player = h(isFilm ? 'video' : 'audio', { controls: true, preload: 'metadata', src: asset(path), playsinline: true, 'aria-label': t(key) });
    place.append(h('figure', null, player, h('figcaption', { class: 'small quiet', words: key })));
    if (i === 0) timeline.follow(player, recording?.merged_replay ? asset(recording.merged_replay) : isFilm ? null : asset(path));
  }
}

/** Both voices over one time line; a click plays from there. */
class Timeline {
  #canvas = h('canvas', { 'aria-hidden': 'true' });
  #list = h('ol', { class: 'cells', label: 'replay.timeline' });
  /** @type {HTMLMediaElement | null} */
  #media = null;
  /** Peaks per 50 ms of person and assistant. @type {[Float32Array, Float32Array] | null} */
  #peaks = null;
  #single = new Audio();
  #current = -1;
  #sound;
  #totalS;

  /** @param {Cell[]} cells */
  constructor(cells) {
    this.cells = cells;
    const last = cells.at(-1);
    this.#totalS = last ? last.at + last.length : 0;
    this.#list.removeAttribute('title');
    this.#list.append(...cells.map((cell) => this.#cell(cell)));
    this.seek = h('input', { type: 'range', min: 0, max: Math.max(1, this.#totalS), step: 0.1, label: 'player.seek' });
    this.seek.value = '0';
    this.seek.oninput = () => this.#jump(Number(this.seek.value));
    this.#sound = h('div', { class: 'stack' }, h('div', { class: 'legend row small quiet' }, h('span', { class: 'you', words: 'who.you' }), h('span', { class: 'ai', words: 'who.assistant' })), this.#canvas, this.seek);
    this.node = cells.length === 0 ? h('div', null) : h('section', { class: 'timeline' }, h('h2', { words: 'replay.timeline' }), this.#sound, this.#list);
    this.#canvas.onclick = (event) => this.#jump((event.offsetX / this.#canvas.clientWidth) * this.#totalS);
    new ResizeObserver(() => this.#draw()).observe(this.#canvas);
    document.addEventListener('themechange', () => this.#draw());
  }

  /** Nothing to play as a whole. @param {boolean} isSilent */
  set isSilent(isSilent) {
    this.#sound.hidden = isSilent;
  }

  /** @param {Cell} cell */
  #cell(cell) {
    const play = (/** @type {string | undefined} */ path, /** @type {string} */ label, /** @type {string} */ sign) =>
      path ? h('button', { class: 'round slim', type: 'button', icon: sign, label, onclick: () => {
        this.#single.src = asset(path);
        void this.#single.play();
      } }) : null;
    const ms = cell.timing.wall_clock_ms ?? cell.timing.all_ms ?? cell.timing.elapsed_ms;
    const facts = [ms !== undefined ? `${number(ms, { maximumFractionDigits: 0 })} ms` : '', cell.timing.kv_cache_length ? t('replay.context', { tokens: cell.timing.kv_cache_length }) : '', cell.timing.input_tokens ? t('chat.tokens', { input: cell.timing.input_tokens, output: cell.timing.tokens ?? cell.timing.n_tokens ?? 0 }) : ''].filter(Boolean).join(' · ');
    return h(
      'li',
      { 'data-mode': cell.mode },
      h('button', { class: 'time num', type: 'button', label: ['replay.from', { time: clock(cell.at) }], onclick: () => this.#jump(cell.at) }, clock(cell.at)),
      cell.images.length > 0 || cell.video
        ? h('span', { class: 'thumbs' }, ...cell.images.map((path) => h('img', { src: asset(path), alt: t('replay.frame', { time: clock(cell.at) }), loading: 'lazy', width: 96, height: 72 })), cell.video ? h('video', { src: asset(cell.video), controls: true, preload: 'metadata', 'aria-label': t('part.video') }) : null)
        : null,
      h('span', { class: 'words' }, cell.userText ? h('span', { class: 'user' }, cell.userText) : null, h('span', null, cell.text || null), h('span', { class: 'small quiet num' }, facts)),
      h('span', { class: `chip ${cell.mode}`, words: `replay.${cell.mode}` }, cell.isEnd && cell.mode === 'speak' ? ' ✓' : null),
      h('span', { class: 'row' }, play(cell.userAudio, 'replay.play_user', 'user'), play(cell.aiAudio, 'replay.play_ai', 'sound')),
    );
  }

  /** @param {number} seconds */
  #jump(seconds) {
    this.#single.pause();
    if (this.#media) {
      this.#media.currentTime = seconds;
      void this.#media.play().catch(() => {});
    }
    this.#mark(seconds);
  }

  /** @param {number} seconds */
  #mark(seconds) {
    this.seek.value = String(seconds);
    this.seek.setAttribute('aria-valuetext', clock(seconds));
    const index = this.cells.findLastIndex((cell) => cell.at <= seconds + 0.05);
    if (index !== this.#current) {
      this.#list.children[this.#current]?.removeAttribute('aria-current');
      const now = /** @type {HTMLElement | undefined} */ (this.#list.children[index]);
      now?.setAttribute('aria-current', 'true');
      if (now) this.#list.scrollTop = now.offsetTop - this.#list.offsetTop - this.#list.clientHeight / 3;
      this.#current = index;
    }
    this.#draw(seconds);
  }

  /** @param {HTMLMediaElement} media @param {string | null} soundUrl whose waveforms to draw */
  follow(media, soundUrl) {
    this.#media = media;
    media.addEventListener('timeupdate', () => this.#mark(media.currentTime));
    media.addEventListener('durationchange', () => {
      if (Number.isFinite(media.duration)) {
        this.#totalS = Math.max(this.#totalS, media.duration);
        this.seek.max = String(this.#totalS);
      }
    });
    if (soundUrl) void this.#loadPeaks(soundUrl).catch(() => {});
  }

  /** @param {string} url */
  async #loadPeaks(url) {
    const bytes = await (await fetch(url)).arrayBuffer();
    // Half an hour of stereo is as much as a page should unpack for a picture.
    if (bytes.byteLength > 120e6) return;
    const decoder = new OfflineAudioContext(2, 1, 16000);
    const sound = await decoder.decodeAudioData(bytes);
    const peaks = (/** @type {number} */ channel) => {
      const samples = sound.getChannelData(Math.min(channel, sound.numberOfChannels - 1));
      const out = new Float32Array(Math.ceil(samples.length / 800));
      for (let i = 0; i < samples.length; i++) {
        const size = Math.abs(samples[i]);
        const at = (i / 800) | 0;
        if (size > out[at]) out[at] = size;
      }
      return out;
    };
    this.#peaks = [peaks(0), peaks(1)];
    this.#totalS = Math.max(this.#totalS, sound.duration);
    this.#draw();
  }

  #draw(at = Number(this.seek?.value ?? 0)) {
    const ratio = Math.min(2, devicePixelRatio || 1);
    const width = (this.#canvas.width = Math.round(this.#canvas.clientWidth * ratio));
    const height = (this.#canvas.height = Math.round(this.#canvas.clientHeight * ratio));
    const pen = this.#canvas.getContext('2d');
    if (!pen || width === 0 || this.#totalS === 0) return;
    const style = getComputedStyle(this.#canvas);
    const [you, ai, line] = [style.color, style.outlineColor, style.borderTopColor];
    const middle = height / 2;
    for (const cell of this.cells) {
      if (cell.mode !== 'speak' && cell.mode !== 'turn') continue;
      pen.globalAlpha = 0.12;
      pen.fillStyle = ai;
      pen.fillRect((cell.at / this.#totalS) * width, 0, Math.max(1, (cell.length / this.#totalS) * width - 1), height);
    }
    pen.globalAlpha = 1;
    if (this.#peaks) {
      const perPixel = (this.#totalS * 20) / width;
      for (let x = 0; x < width; x++) {
        [you, ai].forEach((colour, side) => {
          const list = /** @type {[Float32Array, Float32Array]} */ (this.#peaks)[side];
          let peak = 0;
          for (let i = Math.floor(x * perPixel); i < Math.max((x + 1) * perPixel, Math.floor(x * perPixel) + 1) && i < list.length; i++) peak = Math.max(peak, list[i]);
          pen.fillStyle = colour;
          const tall = Math.sqrt(peak) * (middle - 3);
          if (side === 0) pen.fillRect(x, middle - tall, 1, tall);
          else pen.fillRect(x, middle, 1, tall);
        });
      }
    }
    pen.fillStyle = line;
    pen.fillRect(0, middle, width, 1);
    pen.fillRect(Math.round((at / this.#totalS) * width), 0, Math.max(2, ratio), height);
  }
}

void load();
