/**
 * <p-queue>: the place in the queue with a countdown, a bell that can be muted, and a notification when the turn comes
 * while the page is in the background.
 */

import { Countdown } from '../../talk/countdown.js';
import { t } from '../../words/words.js';
import { h, reicon, relabel, say } from '../dom.js';

export class Queue extends HTMLElement {
  #countdown = new Countdown();
  /** Read aloud when it changes; the time after it changes every second. */
  #place = h('strong', { class: 'place num', role: 'status' });
  #wait = h('span', { class: 'quiet num' });
  #bell = h('button', { class: 'round slim', type: 'button', icon: 'bell' });
  #notify = h('button', { class: 'button plain slim', type: 'button', words: 'queue.notify', icon: 'bell' });
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;
  /** @type {import('../../audio/chime.js').Chimes | null} */
  chimes = null;
  #title = document.title;

  connectedCallback() {
    this.append(this.#place, this.#wait, h('div', { class: 'row' }, this.#bell, this.#notify));
    this.#bell.onclick = () => {
      localStorage.setItem('parley.bell', this.#isQuiet ? 'on' : 'off');
      this.#showBell();
    };
    this.#notify.hidden = !('Notification' in globalThis) || Notification.permission !== 'default';
    this.#notify.onclick = async () => {
      await Notification.requestPermission();
      this.#notify.hidden = true;
    };
    this.#showBell();
    this.hidden = true;
  }

  disconnectedCallback() {
    clearInterval(this.#timer);
  }

  get #isQuiet() {
    return localStorage.getItem('parley.bell') === 'off';
  }

  #showBell() {
    reicon(this.#bell, this.#isQuiet ? 'bell-off' : 'bell');
    relabel(this.#bell, this.#isQuiet ? 'queue.bell_on' : 'queue.bell_off');
    if (this.chimes) {
      this.chimes.isMuted = this.#isQuiet;
      if (this.#isQuiet) this.chimes.hush();
    }
  }

  /** @param {import('../../wire/place.js').Place | null} place */
  update(place) {
    const wasWaiting = !this.hidden;
    this.#countdown.update(place);
    this.hidden = place === null;
    clearInterval(this.#timer);
    if (place === null) {
      document.title = this.#title;
      this.chimes?.hush();
      if (wasWaiting) this.#yourTurn();
      return;
    }
    this.#showBell();
    if (place.position === 1) this.chimes?.almost();
    this.#timer = setInterval(() => this.#draw(), 1000);
    this.#draw();
  }

  #draw() {
    const now = this.#countdown.read();
    if (!now) return;
    say(this.#place, 'queue.place', { position: now.position, length: now.length });
    if (now.leftS === null) say(this.#wait, 'queue.unknown');
    else if (now.leftS < 0) say(this.#wait, 'queue.overtime');
    else if (now.leftS > 90) say(this.#wait, 'queue.wait_minutes', { minutes: Math.ceil(now.leftS / 60) });
    else say(this.#wait, 'queue.wait', { seconds: now.leftS });
    document.title = `(${now.position}) ${this.#title}`;
  }

  #yourTurn() {
    this.chimes?.assigned();
    if (document.hidden && 'Notification' in globalThis && Notification.permission === 'granted') {
      new Notification(t('queue.your_turn'), { body: t('queue.your_turn_body') });
    }
  }
}

customElements.define('p-queue', Queue);
