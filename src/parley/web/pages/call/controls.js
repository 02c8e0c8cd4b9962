/**
 * The controls of a call. Before a call: text and settings, while the sphere on the stage starts the call. During a
 * call: round buttons for mute, the camera of a video call, hang up, and more, which opens the rest. One node is used
 * in every layout: below the stage, over a picture, under an open sheet, and in a separate small window.
 */

import { $, h, reicon, relabel, say } from '../../elements/dom.js';
import { request } from '../../wire/http.js';
import { holdButton } from './hold.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

/** @param {CallPage} page */
export function hushNow({ duplex, half }) {
  if (duplex) duplex.interrupt();
  const stopTurn = (/** @type {string} */ id) =>
    request('/api/half_duplex/stop', { method: 'POST', body: JSON.stringify({ session_id: id, scope: 'turn' }) });
  void half?.skip(stopTurn);
}

/** @param {CallPage} page */
export const toggleMute = ({ calls }) => calls.current?.mute(!calls.state.isMuted);

/** @param {CallPage} page */
export function togglePause({ duplex }) {
  if (duplex?.isLive) duplex.pause();
  else duplex?.resume();
}

/**
 * Makes a key that is held down press only once. Otherwise it would start and end a call in turn, or press the button
 * that receives the focus next, such as mute when a call starts.
 *
 * @param {KeyboardEvent} event
 */
const once = (event) => void (event.repeat && event.key === 'Enter' && event.preventDefault());

/** @param {string} id @param {string} name @param {string} label @param {(event: MouseEvent) => void} act @param {string} caption */
export function round(id, name, label, act, caption) {
  const about = { class: 'round', type: 'button', icon: name, label, 'data-act': id };
  const button = h('button', { ...about, onclick: act, onkeydown: once });
  return h('span', { class: 'control' }, button, h('span', { class: 'name', words: caption, 'aria-hidden': 'true' }));
}

/** @param {Element | null} node @returns {HTMLButtonElement | null} */
export const buttonOf = (node) =>
  /** @type {HTMLButtonElement | null} */ (node?.closest('button') ?? node?.querySelector('button') ?? null);

export class Controls {
  #mainText = h('span', null);
  #main;
  #mute;
  #pause;
  #hush;
  #force;
  #text;
  #settings;
  #talk;
  #small;
  #more;
  /** @type {HTMLElement | null} */
  #camera;
  #menu = h('div', { class: 'more-menu' });
  #left = h('div', { class: 'left' });
  /** Node with text and settings before a call. */
  #calm = h('div', { class: 'calm' });
  #state = h('strong', { class: 'now' });
  #time = h('span', { class: 'num' });
  #open = '';

  /** @param {CallPage} page */
  constructor(page) {
    this.page = page;
    const { isHalf } = page;
    const press = (/** @type {MouseEvent} */ event) => this.#press(event);
    this.#main = h('button', { class: 'main', type: 'button', icon: 'mic', onclick: press }, this.#mainText);
    this.#main.addEventListener('keydown', once);
    /** The sphere that starts a call. */
    this.start = h('button', { class: 'start', type: 'button', label: 'call.start', onclick: press }, page.orb);
    this.start.removeAttribute('title');
    this.start.addEventListener('keydown', once);
    const force = () => page.duplex?.forceListen(!page.calls.state.isForcingListen);
    const small = () => void import('./small-window.js').then(({ toggleSmall }) => toggleSmall(page, this));
    const [hushIcon, hush] = isHalf ? ['skip', 'skip'] : ['stop', 'hush'];
    this.#mute = round('mute', 'mic', 'call.mute', () => toggleMute(page), 'control.mute');
    this.#pause = isHalf ? null : round('pause', 'pause', 'call.pause', () => togglePause(page), 'control.pause');
    this.#hush = round('hush', hushIcon, `call.${hush}`, () => hushNow(page), `control.${hush}`);
    this.#force = isHalf ? null : round('force', 'listen', 'call.force', force, 'control.force');
    // A key press also moves the focus; after a tap the on-screen keyboard would cover the text.
    const show = (/** @type {'conversation' | 'settings'} */ name) => (/** @type {MouseEvent} */ event) => {
      page.openSide(name);
      if (event.detail === 0 && this.#open === name) $(`#tab-${name}`).focus();
    };
    this.#text = round('text', 'text', 'call.conversation', show('conversation'), 'control.text');
    this.#settings = round('settings', 'settings', 'call.settings', show('settings'), 'control.settings');
    this.#talk = isHalf ? holdButton(page) : null;
    const hasWindows = 'documentPictureInPicture' in globalThis;
    this.#small = hasWindows ? round('small', 'window', 'call.small', small, 'control.small') : null;
    this.#more = round('more', 'more', 'call.more', () => this.#openMore(), 'control.more');
    const { power = null, ...picture } = page.stageVideo?.tools ?? {};
    this.#camera = power;
    if (page.stageVideo) this.#menu.append(h('div', { class: 'tools' }, ...Object.values(picture)));
    this.#menu.append(...[this.#hush, this.#pause, this.#force, this.#small].filter((node) => node !== null));
    this.#left.append(this.#mute);
    this.status = h('p', { class: 'status', 'aria-hidden': 'true' }, this.#state, ' ', this.#time);
    const buttons = h('div', { class: 'buttons', role: 'toolbar', label: 'call.controls' });
    buttons.removeAttribute('title');
    buttons.append(this.#left, this.#main, h('div', { class: 'right' }, this.#more, this.#menu), this.#calm);
    this.node = h('div', { class: 'dock' }, this.status, this.#talk, buttons);
    this.#closeMoreAround();
    // Sheets end above the controls, whose height changes while a sheet is open.
    new ResizeObserver(() => {
      this.node.closest('main')?.style.setProperty('--dock', `${this.node.offsetHeight}px`);
    }).observe(this.node);
  }

  /**
   * Starts or ends the call. The second click of a double click is ignored, because it would do the opposite.
   * @param {MouseEvent} event
   */
  #press(event) {
    if (event.detail > 1) return;
    if (this.page.calls.isBusy) this.page.calls.stop();
    else this.page.start();
  }

  /** @param {boolean} [isOpen] */
  #openMore(isOpen = !this.node.hasAttribute('data-more')) {
    this.node.toggleAttribute('data-more', isOpen);
    buttonOf(this.#more)?.setAttribute('aria-expanded', String(isOpen));
  }

  /** Closes the menu after a press on one of its buttons or elsewhere, and on Escape. */
  #closeMoreAround() {
    this.#openMore(false);
    this.#menu.addEventListener('click', ({ target }) => {
      if (!buttonOf(/** @type {Element} */ (target))) return;
      // The button is hidden with its menu.
      if (this.#menu.contains(this.node.ownerDocument.activeElement)) buttonOf(this.#more)?.focus();
      this.#openMore(false);
    });
    document.addEventListener('pointerdown', ({ target }) => {
      if (!this.node.contains(/** @type {Node} */ (target))) this.#openMore(false);
    });
    this.node.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape' || !this.node.hasAttribute('data-more')) return;
      event.stopPropagation();
      this.#openMore(false);
      buttonOf(this.#more)?.focus();
    });
  }

  /** @param {'conversation' | 'settings' | ''} open the part of the side that is open */
  showOpen(open) {
    this.#open = open;
    buttonOf(this.#text)?.setAttribute('aria-expanded', String(open === 'conversation'));
    buttonOf(this.#settings)?.setAttribute('aria-expanded', String(open === 'settings'));
  }

  /** @param {string} key @param {Record<string, unknown>} values */
  showState(key, values) {
    say(this.#state, key, values);
  }

  /** @param {string} time */
  showTime(time) {
    this.#time.textContent = time;
  }

  draw() {
    const { calls, half } = this.page;
    const { phase, activity, isMuted, isForcingListen } = calls.state;
    this.#drawMain();
    if (this.#talk) {
      this.#talk.hidden = !calls.isOn || !half?.order?.isPushToTalk;
      this.#talk.setAttribute('aria-pressed', String(half?.isHeld ?? false));
      say(/** @type {Element} */ (this.#talk.lastElementChild), half?.isHeld ? 'call.talking' : 'call.hold');
    }
    const isOn = calls.isOn;
    this.#mute.hidden = this.#more.hidden = !isOn;
    if (!isOn) this.#openMore(false);
    const place = isOn ? this.#menu : this.#calm;
    if (this.#text.parentNode !== place) {
      if (this.#camera) (isOn ? this.#left : this.#calm).append(this.#camera);
      place.append(this.#text, this.#settings);
    }
    this.#calm.hidden = calls.isBusy;
    const isMutedNow = isOn && isMuted;
    const mute = /** @type {HTMLButtonElement} */ (buttonOf(this.#mute));
    mute.setAttribute('aria-pressed', String(isMutedNow));
    reicon(mute, isMutedNow ? 'mic-off' : 'mic');
    relabel(mute, isMutedNow ? 'call.unmute' : 'call.mute');
    buttonOf(this.#force)?.setAttribute('aria-pressed', String(isForcingListen));
    const hush = /** @type {HTMLButtonElement} */ (buttonOf(this.#hush));
    if (half) hush.disabled = !calls.isLive || (activity !== 'thinking' && activity !== 'speaking');
    const pause = buttonOf(this.#pause);
    if (!pause) return;
    const isPaused = phase === 'paused' || phase === 'pausing';
    reicon(pause, isPaused ? 'play' : 'pause');
    relabel(pause, isPaused ? 'call.resume' : 'call.pause');
    pause.setAttribute('aria-pressed', String(isPaused));
  }

  #drawMain() {
    const { calls, hasVideo } = this.page;
    const { phase } = calls.state;
    const main = this.#main;
    const isOver = phase === 'ended' && calls.state.ending?.reason !== 'not_started';
    // A call with pictures starts with a button below them; any other with the sphere.
    main.hidden = !hasVideo && !calls.isBusy;
    this.start.disabled = calls.isBusy;
    relabel(this.start, isOver ? 'call.again' : 'call.start');
    this.start.removeAttribute('title');
    reicon(main, calls.isBusy ? (phase === 'queued' ? 'close' : 'end') : isOver ? 'phone' : 'video');
    const words =
      phase === 'queued'
        ? 'call.cancel'
        : phase === 'ending'
          ? 'call.stopping'
          : calls.isOn || phase === 'reconnecting'
            ? 'call.stop'
            : calls.isBusy
              ? 'call.preparing'
              : isOver
                ? 'call.again'
                : 'call.start';
    say(this.#mainText, words);
    main.classList.toggle('live', calls.isOn || phase === 'reconnecting' || phase === 'ending');
    main.disabled = phase === 'ending';
  }

  /**
   * Moves the focus at the start of a call to mute, or to push to talk, since the button that started
   * it now hangs up and pressing Space or Enter again must not do that. After the call it moves back.
   * @param {boolean} isLive
   */
  moveFocus(isLive) {
    const { activeElement: here } = this.node.ownerDocument;
    // A button that was disabled has lost the focus to the page.
    const isNowhere = here?.matches('body, main');
    if (isLive && (here === this.#main || here === this.start || isNowhere))
      (this.#talk?.hidden === false ? this.#talk : buttonOf(this.#mute))?.focus({ preventScroll: true });
    if (!isLive && (isNowhere || this.node.contains(here)))
      (this.#main.hidden ? this.start : this.#main).focus({ preventScroll: true });
  }

  get main() {
    return this.#main;
  }
}
