/** The conversation of a recording: its text, with search, and playback from any line. */

import { isDeveloper } from '../../elements/developer.js';
import { download, h, say } from '../../elements/dom.js';
import { plainText, srt, vtt } from '../../talk/export.js';
import { clock, t } from '../../words/words.js';

/** @typedef {import('./cells.js').Said} Said */

/** @param {Said[]} said @returns {import('../../talk/export.js').Line[]} */
const linesOf = (said) =>
  said.map((one) => ({ ...one, who: t(`who.${one.who}`), text: one.text || `(${t('replay.spoke')})`, isNote: false }));

export class Conversation {
  #rows;
  #list;
  #found = h('span', { class: 'small quiet', role: 'status' });
  /** The current sentence in large type, as subtitles of an audio recording. */
  subtitle = h('p', { class: 'now-said', 'aria-hidden': 'true', hidden: true });

  /**
   * @param {Said[]} said
   * @param {{asset: (path: string) => string, jump: (seconds: number) => void}} around
   */
  constructor(said, { asset, jump }) {
    this.said = said;
    this.#rows = said.map((one) => {
      const label = /** @type {[string, Record<string, unknown>]} */ (['replay.from', { time: clock(one.fromS) }]);
      const picture = (/** @type {string} */ path) =>
        h('img', { src: asset(path), alt: t('part.image'), loading: 'lazy', width: 120, height: 90 });
      const latency =
        one.latencyMs === null || !isDeveloper()
          ? null
          : h('span', { class: 'small quiet num', words: ['replay.latency', { ms: Math.round(one.latencyMs) }] });
      return h(
        'li',
        { class: `line ${one.who}` },
        h('button', { class: 'time num', type: 'button', label, onclick: () => jump(one.fromS) }, clock(one.fromS)),
        h(
          'div',
          null,
          h('strong', { class: 'small', words: `who.${one.who}` }),
          ...one.images.slice(0, 1).map(picture),
          one.text ? h('p', { dir: 'auto' }, one.text) : h('p', { class: 'quiet', words: 'replay.spoke' }),
          one.isInterrupted ? h('em', { class: 'small quiet', words: 'transcript.interrupted' }) : null,
          latency,
        ),
      );
    });
    const search = h('input', {
      type: 'search',
      hint: 'replay.search',
      label: 'replay.search',
      oninput: () => this.#find(search.value),
    });
    this.#list = h('ol', { class: 'said' }, ...this.#rows);
    const head = h('div', { class: 'row spread' }, h('h2', { words: 'replay.conversation' }), this.#saving());
    const hasWords = said.some(({ text }) => text);
    this.node = h(
      'section',
      { class: 'conversation stack', hidden: said.length === 0 },
      head,
      hasWords && said.length > 5 ? search : null,
      this.#found,
      this.#list,
    );
  }

  #saving() {
    const lines = () => linesOf(this.said);
    const files = /** @type {[string, string, () => string][]} */ ([
      ['txt', 'text/plain', () => plainText(lines(), t('transcript.interrupted'))],
      ['srt', 'application/x-subrip', () => srt(lines())],
      ['vtt', 'text/vtt', () => vtt(lines())],
    ]);
    const button = ([kind, type, make] = files[0]) =>
      h(
        'button',
        {
          class: 'button slim',
          type: 'button',
          label: `export.${kind}`,
          onclick: () => download(new Blob([make()], { type }), `conversation.${kind}`),
        },
        `.${kind}`,
      );
    return h('div', { class: 'row' }, ...files.map(button));
  }

  /** @param {string} text */
  #find(text) {
    const wanted = text.trim().toLowerCase();
    let count = 0;
    for (const [i, row] of this.#rows.entries()) {
      row.hidden = wanted !== '' && !this.said[i].text.toLowerCase().includes(wanted);
      if (!row.hidden) count++;
    }
    if (wanted) say(this.#found, 'replay.found', { count });
    else say(this.#found, '');
  }

  /** @param {number} seconds */
  mark(seconds) {
    let now = -1;
    for (const [i, { fromS, untilS }] of this.said.entries())
      if (fromS <= seconds + 0.05 && seconds < untilS + 0.3) now = i;
    for (const [i, row] of this.#rows.entries()) {
      if (i !== now) row.removeAttribute('aria-current');
      else if (!row.hasAttribute('aria-current')) {
        row.setAttribute('aria-current', 'true');
        this.#list.scrollTop = row.offsetTop - this.#list.clientHeight / 3;
      }
    }
    const text = this.said[now]?.text ?? '';
    // From the first subtitle on, its space stays reserved.
    if (text) this.subtitle.hidden = false;
    if (this.subtitle.textContent !== text) this.subtitle.textContent = text;
  }
}
