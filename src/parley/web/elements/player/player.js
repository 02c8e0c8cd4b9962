/** <p-player>: a small player for audio that is already loaded; `pcm` and `rateHz`, or `src`. */

import { encodeWav } from '../../audio/wav.js';
import { clock } from '../../words/words.js';
import { h, iconButton, reicon, relabel } from '../dom.js';

export class Player extends HTMLElement {
  #audio = new Audio();
  #button = iconButton('play', 'action.play');
  #seek = h('input', { type: 'range', min: 0, max: 1, step: 0.01, label: 'player.seek' });
  #time = h('span', { class: 'small quiet num' });
  #url = '';
  /** @type {Blob | null} */
  blob = null;

  connectedCallback() {
    this.append(this.#button, this.#seek, this.#time);
    this.#seek.value = '0';
    this.#button.onclick = () => (this.#audio.paused ? void this.#audio.play() : this.#audio.pause());
    this.#seek.oninput = () => {
      if (Number.isFinite(this.#audio.duration))
        this.#audio.currentTime = Number(this.#seek.value) * this.#audio.duration;
    };
    const show = () => this.#show();
    for (const type of ['play', 'pause', 'timeupdate', 'durationchange']) this.#audio.addEventListener(type, show);
    this.#audio.addEventListener('ended', () => {
      this.#audio.currentTime = 0;
      show();
    });
    this.#show();
  }

  disconnectedCallback() {
    this.#audio.pause();
    this.#audio.removeAttribute('src');
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#url = '';
  }

  #show() {
    const { paused, currentTime, duration } = this.#audio;
    reicon(this.#button, paused ? 'play' : 'pause');
    relabel(this.#button, paused ? 'action.play' : 'action.pause');
    const known = Number.isFinite(duration) ? duration : 0;
    this.#seek.value = String(known ? currentTime / known : 0);
    this.#time.textContent = `${clock(currentTime)} / ${clock(known)}`;
  }

  /** @param {Float32Array} samples @param {number} rateHz */
  setPcm(samples, rateHz) {
    this.setBlob(new Blob([encodeWav([samples], rateHz)], { type: 'audio/wav' }));
  }

  /** @param {Blob} blob */
  setBlob(blob) {
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.blob = blob;
    this.#url = URL.createObjectURL(blob);
    this.#audio.src = this.#url;
  }

  play() {
    void this.#audio.play().catch(() => {});
  }

  pause() {
    this.#audio.pause();
  }
}

customElements.define('p-player', Player);
