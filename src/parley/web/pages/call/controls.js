/**
 * The controls of a call: its state and time, mute, pause, stop speaking, hang up. One node for every
 * layout: below the stage, over a full screen, under an open sheet, and in a small window of its own.
 */

import { h, reicon, relabel, say } from '../../elements/dom.js';
import { request } from '../../wire/http.js';

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
 * A key that is held down presses once: neither does a call begin and end in a row, nor does the button that has the
 * focus next, as mute has when a call begins.
 *
 * @param {KeyboardEvent} event
 */
const once = (event) => void (event.repeat && event.key === 'Enter' && event.preventDefault());

/** @param {string} name @param {string} label @param {() => void} act @param {string} [caption] */
function round(name, label, act, caption) {
  const button = h('button', { class: 'round', type: 'button', icon: name, label, onclick: act, onkeydown: once });
  return caption
    ? h('span', { class: 'control' }, button, h('span', { class: 'name', words: caption, 'aria-hidden': 'true' }))
    : button;
}

/**
 * Push to talk: heard while it is held, by finger, mouse or key.
 * @param {CallPage} page
 */
function holdButton(page) {
  const button = h('button', { class: 'button talk', type: 'button', icon: 'mic', words: 'call.hold', hidden: true });
  const hold = (/** @type {boolean} */ on) => page.half?.hold(on);
  button.addEventListener('pointerdown', (event) => {
    // Where the finger goes meanwhile makes no difference.
    button.setPointerCapture?.(event.pointerId);
    hold(true);
  });
  for (const end of ['pointerup', 'pointercancel', 'lostpointercapture', 'blur']) {
    button.addEventListener(end, () => hold(false));
  }
  button.addEventListener('contextmenu', (event) => event.preventDefault());
  button.addEventListener('keydown', ({ key }) => (key === 'Enter' || key === ' ') && hold(true));
  button.addEventListener('keyup', ({ key }) => (key === 'Enter' || key === ' ') && hold(false));
  return button;
}

/** @param {Element | null} node @returns {HTMLButtonElement | null} */
const buttonOf = (node) =>
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
  #state = h('strong', { class: 'now' });
  #time = h('span', { class: 'num' });

  /** @param {CallPage} page */
  constructor(page) {
    this.page = page;
    const { isHalf } = page;
    this.#main = h(
      'button',
      {
        class: 'button main',
        type: 'button',
        icon: 'mic',
        onclick: (/** @type {MouseEvent} */ event) => this.#press(event),
      },
      this.#mainText,
    );
    this.#main.addEventListener('keydown', once);
    this.#mute = round('mic', 'call.mute', () => toggleMute(page), 'control.mute');
    this.#pause = isHalf ? null : round('pause', 'call.pause', () => togglePause(page), 'control.pause');
    this.#hush = round(
      isHalf ? 'skip' : 'stop',
      isHalf ? 'call.skip' : 'call.hush',
      () => hushNow(page),
      isHalf ? 'control.skip' : 'control.hush',
    );
    this.#force = isHalf
      ? null
      : round(
          'listen',
          'call.force',
          () => page.duplex?.forceListen(!page.calls.state.isForcingListen),
          'control.force',
        );
    this.#text = round('text', 'call.conversation', () => page.openSide('conversation'), 'control.text');
    this.#settings = round('settings', 'call.settings', () => page.openSide('settings'), 'control.settings');
    this.#talk = isHalf ? holdButton(page) : null;
    this.#small =
      'documentPictureInPicture' in globalThis
        ? round(
            'window',
            'call.small',
            () => void import('./small-window.js').then(({ toggleSmall }) => toggleSmall(page, this)),
            'control.small',
          )
        : null;
    this.status = h('p', { class: 'status', 'aria-hidden': 'true' }, this.#state, ' ', this.#time);
    const buttons = h('div', { class: 'buttons', role: 'toolbar', label: 'call.controls' });
    buttons.removeAttribute('title');
    buttons.append(
      h('div', { class: 'left' }, this.#mute, this.#pause),
      this.#main,
      h('div', { class: 'right' }, this.#hush, this.#force, this.#small, this.#text, this.#settings),
    );
    this.node = h('div', { class: 'dock' }, this.status, this.#talk, buttons);
    // What slides up behind the controls ends above them, and they are higher while it is open.
    new ResizeObserver(() => {
      this.node.closest('main')?.style.setProperty('--dock', `${this.node.offsetHeight}px`);
    }).observe(this.node);
  }

  /** The second half of a double click means the same as the first, not the opposite. @param {MouseEvent} event */
  #press(event) {
    if (event.detail > 1) return;
    if (this.page.calls.isBusy) this.page.calls.stop();
    else this.page.start();
  }

  /** @param {'conversation' | 'settings' | ''} open which part of the side is */
  showOpen(open) {
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
    for (const node of [this.#mute, this.#hush, this.#pause, this.#force]) {
      const button = buttonOf(node);
      if (button) button.disabled = !isOn;
    }
    const mute = /** @type {HTMLButtonElement} */ (buttonOf(this.#mute));
    mute.setAttribute('aria-pressed', String(isMuted));
    reicon(mute, isMuted ? 'mic-off' : 'mic');
    relabel(mute, isMuted ? 'call.unmute' : 'call.mute');
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
    const { calls } = this.page;
    const { phase } = calls.state;
    const main = this.#main;
    const isOver = phase === 'ended' && calls.state.ending?.reason !== 'not_started';
    reicon(main, calls.isBusy ? (phase === 'queued' ? 'close' : 'end') : isOver ? 'phone' : 'mic');
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
    main.classList.toggle('primary', !calls.isBusy);
    main.classList.toggle('live', calls.isOn);
    main.disabled = phase === 'ending';
  }

  /**
   * The button that began the call now hangs up. Whoever presses Space or Enter again means something
   * else: the focus goes on to mute. After the call it goes back.
   * @param {boolean} isLive
   */
  moveFocus(isLive) {
    const here = this.node.ownerDocument.activeElement;
    if (isLive && here === this.#main) buttonOf(this.#mute)?.focus({ preventScroll: true });
    if (!isLive && (here === this.node.ownerDocument.body || this.node.contains(here)))
      this.#main.focus({ preventScroll: true });
  }

  get main() {
    return this.#main;
  }
}
