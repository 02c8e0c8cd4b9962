/** The timeline of a recording: waveforms to click on, and every unit as a row with its own audio. */

import { h } from '../../elements/dom.js';
import { clock, number, t } from '../../words/words.js';
import { drawWaveform, loadPeaks } from './waveform.js';

/** @typedef {import('./cells.js').Cell} Cell */

/** @param {Cell} cell whose timing is shown */
function factsOf({ timing }) {
  const ms = timing.wall_clock_ms ?? timing.all_ms ?? timing.elapsed_ms;
  const output = timing.tokens ?? timing.n_tokens ?? 0;
  return [
    ms !== undefined ? `${number(ms, { maximumFractionDigits: 0 })} ms` : '',
    timing.kv_cache_length ? t('replay.context', { tokens: timing.kv_cache_length }) : '',
    timing.input_tokens ? t('chat.tokens', { input: timing.input_tokens, output }) : '',
  ]
    .filter(Boolean)
    .join(' · ');
}

export class Timeline {
  #canvas = h('canvas', { 'aria-hidden': 'true' });
  #list = h('ol', { class: 'cells', label: 'replay.timeline', tabindex: 0 });
  /** @type {HTMLMediaElement | null} */
  #media = null;
  /** @type {import('./waveform.js').Peaks | null} */
  #peaks = null;
  #single = new Audio();
  #current = -1;
  #sound;
  #totalS;
  /** Called with the position of the playback. @type {(seconds: number) => void} */
  onMark = () => {};

  /** @param {Cell[]} cells @param {(path: string) => string} asset */
  constructor(cells, asset) {
    this.cells = cells;
    this.asset = asset;
    const last = cells.at(-1);
    this.#totalS = last ? last.at + last.length : 0;
    this.#list.removeAttribute('title');
    this.#list.append(...cells.map((cell) => this.#row(cell)));
    this.seek = h('input', { type: 'range', min: 0, max: Math.max(1, this.#totalS), step: 0.1, label: 'player.seek' });
    this.seek.value = '0';
    this.seek.oninput = () => this.jump(Number(this.seek.value));
    const names = ['you', 'ai'].map((name) =>
      h('span', { class: name, words: `who.${name === 'ai' ? 'assistant' : name}` }),
    );
    this.#sound = h(
      'div',
      { class: 'stack' },
      h('div', { class: 'legend row small quiet' }, ...names),
      this.#canvas,
      this.seek,
    );
    this.node = h('section', { class: 'timeline', hidden: cells.length === 0 }, this.#sound);
    this.units = h(
      'details',
      { class: 'card units', hidden: cells.length === 0 },
      h('summary', { words: 'replay.timeline' }),
      this.#list,
    );
    this.#canvas.onclick = (event) => this.jump((event.offsetX / this.#canvas.clientWidth) * this.#totalS);
    new ResizeObserver(() => this.#draw()).observe(this.#canvas);
    document.addEventListener('themechange', () => this.#draw());
  }

  /** Sets if there is no file with the whole conversation. @param {boolean} isSilent */
  set isSilent(isSilent) {
    this.#sound.hidden = isSilent;
  }

  /** @param {string | undefined} path @param {string} label @param {string} icon */
  #play(path, label, icon) {
    if (!path) return null;
    const onclick = () => {
      this.#single.src = this.asset(path);
      void this.#single.play();
    };
    return h('button', { class: 'round slim', type: 'button', icon, label, onclick });
  }

  /** @param {Cell} cell */
  #pictures({ images, video, at }) {
    if (images.length === 0 && !video) return null;
    const size = { loading: 'lazy', width: 96, height: 72 };
    const alt = t('replay.frame', { time: clock(at) });
    const pictures = images.map((path) => h('img', { src: this.asset(path), alt, ...size }));
    const clip =
      video && h('video', { src: this.asset(video), controls: true, preload: 'metadata', label: 'part.video' });
    return h('span', { class: 'thumbs' }, ...pictures, clip || null);
  }

  /** @param {Cell} cell */
  #row(cell) {
    const label = /** @type {[string, Record<string, unknown>]} */ (['replay.from', { time: clock(cell.at) }]);
    const sounds = [
      this.#play(cell.userAudio, 'replay.play_user', 'user'),
      this.#play(cell.aiAudio, 'replay.play_ai', 'sound'),
    ];
    return h(
      'li',
      { 'data-mode': cell.mode },
      h('button', { class: 'time num', type: 'button', label, onclick: () => this.jump(cell.at) }, clock(cell.at)),
      this.#pictures(cell),
      h(
        'span',
        { class: 'words' },
        cell.userText ? h('span', { class: 'user' }, cell.userText) : null,
        h('span', null, cell.text || null),
        h('span', { class: 'small quiet num' }, factsOf(cell)),
      ),
      h(
        'span',
        { class: `chip ${cell.mode}`, words: `replay.${cell.mode}` },
        cell.isEnd && cell.mode === 'speak' ? ' ✓' : null,
      ),
      h('span', { class: 'row' }, ...sounds),
    );
  }

  /** @param {number} seconds */
  jump(seconds) {
    this.#single.pause();
    if (this.#media) {
      this.#media.currentTime = seconds;
      void this.#media.play().catch(() => {});
    }
    this.#mark(seconds);
  }

  /** @param {number} seconds */
  #mark(seconds) {
    this.onMark(seconds);
    this.seek.value = String(seconds);
    this.seek.setAttribute('aria-valuetext', clock(seconds));
    const index = this.cells.findLastIndex((cell) => cell.at <= seconds + 0.05);
    if (index !== this.#current) {
      this.#list.children[this.#current]?.removeAttribute('aria-current');
      const now = /** @type {HTMLElement | undefined} */ (this.#list.children[index]);
      now?.setAttribute('aria-current', 'true');
      if (now) this.#list.scrollTop = now.offsetTop - this.#list.clientHeight / 3;
      this.#current = index;
    }
    this.#draw(seconds);
  }

  /** @param {HTMLMediaElement} media @param {string | null} soundUrl of the audio whose waveforms to draw */
  follow(media, soundUrl) {
    this.#media = media;
    media.addEventListener('timeupdate', () => this.#mark(media.currentTime));
    media.addEventListener('durationchange', () => {
      if (Number.isFinite(media.duration)) this.#reach(media.duration);
    });
    if (!soundUrl) return;
    const show = async () => {
      const found = await loadPeaks(soundUrl);
      this.#peaks = found?.peaks ?? null;
      this.#reach(found?.seconds ?? 0);
      this.#draw();
    };
    void show().catch(() => {});
  }

  /** @param {number} seconds */
  #reach(seconds) {
    this.#totalS = Math.max(this.#totalS, seconds);
    this.seek.max = String(this.#totalS);
  }

  #draw(at = Number(this.seek?.value ?? 0)) {
    drawWaveform(this.#canvas, { cells: this.cells, peaks: this.#peaks, totalS: this.#totalS, at });
  }
}
