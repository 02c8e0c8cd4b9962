/**
 * <parley-call>: a voice call on somebody else's page, by one script tag (docs/do/embed.md).
 *
 * Attributes: `server` (the script's own by default), `token-url` (of the page's own server: answers JSON with a
 * `token`; not needed on a server without keys), `voice` (woman, man), `scene`
 * (instructions), `language` (en, zh), `theme` (light, dark), `size` (pixels of the sphere).
 * Events, all bubbling: `phase` {phase, activity}, `caption` {who, text, heard}, `ended` {reason, code}.
 * The server has to allow the page's origin (`security.allowed_origins`).
 */

import { decodeSound, theRig } from './audio/rig.js';
import { Calls } from './talk/calls.js';
import { DuplexCall } from './talk/duplex.js';
import { encodePcm } from './wire/codec.js';
import './elements/orb/orb.js';

/** The server that this script came from. */
const HOME = import.meta.url.replace(/\/static\/.*$/, '');

/** @type {Record<string, Record<string, string>>} */
const WORDS = {
  en: {
    start: 'Start talking',
    stop: 'Hang up',
    mute: 'Mute the microphone',
    unmute: 'Unmute the microphone',
    idle: 'Tap to talk',
    waiting: 'Connecting…',
    listening: 'Listening',
    hearing: 'Hearing you',
    thinking: 'Thinking',
    speaking: 'Speaking',
    muted: 'Muted',
    ended: 'Tap to talk again',
    failed: 'The call could not be made.',
    denied: 'The microphone is not allowed here.',
    no_token: 'This page may not call at present.',
  },
  zh: {
    start: '开始说话',
    stop: '挂断',
    mute: '静音',
    unmute: '取消静音',
    idle: '点一下，开始说话',
    waiting: '正在连接…',
    listening: '正在听',
    hearing: '听到你在说话',
    thinking: '正在想',
    speaking: '正在说',
    muted: '已静音',
    ended: '再点一下，继续聊',
    failed: '无法接通。',
    denied: '这里不允许使用麦克风。',
    no_token: '此页面暂时无法通话。',
  },
};

const STYLE = `
:host {
  --parley-size: 9rem;
  color-scheme: light dark;
  display: inline-grid;
  justify-items: center;
  gap: 0.6rem;
  font: 500 1rem/1.4 system-ui, sans-serif;
  color: light-dark(#17161a, #f1eff4);
  text-align: center;
  max-width: 22rem;
 
}
:host([theme="light"]) {
  color-scheme: light;
 
}
:host([theme="dark"]) {
  color-scheme: dark;
 
}
:host([hidden]) {
  display: none;
 
}
button {
  font: inherit;
  color: inherit;
  border: 0;
  background: none;
  padding: 0;
  cursor: pointer;
  border-radius: 999px;
 
}
button:focus-visible {
  outline: 3px solid light-dark(#1b5fd0, #8ab8ff);
  outline-offset: 2px;
 
}
.start {
  width: var(--parley-size);
  height: var(--parley-size);
 
}
p-orb {
  display: block;
  width: 100%;
  height: 100%;
  outline: 0 solid;
  color: light-dark(#2fb8a8, #4fc9bb);
  outline-color: light-dark(#8467ea, #8f74f0);
 
}
p-orb canvas {
  width: 100%;
  height: 100%;
 
}
p-orb:is([data-state="listening"], [data-state="hearing"]) {
  color: light-dark(#23c0a9, #55d6c4);
  outline-color: #3f97ec;
 
}
p-orb:is([data-state="thinking"], [data-state="waiting"]) {
  color: #7089ff;
  outline-color: #c58bff;
 
}
p-orb[data-state="speaking"] {
  color: light-dark(#8a63f5, #9d7dff);
  outline-color: #ea86d3;
 
}
p {
  margin: 0;
 
}
.said {
  font-weight: 400;
  min-height: 1.4em;
  overflow-wrap: anywhere;
 
}
.row {
  display: flex;
  gap: 0.6rem;
 
}
.row[hidden] {
  display: none;
 
}
.row button {
  min-width: 44px;
  min-height: 44px;
  padding: 0 1rem;
  background: light-dark(#edebe6, #20242c);
 
}
.row .stop {
  background: #d0342b;
  color: #fff;
 
}
`;

/** @template {keyof HTMLElementTagNameMap} T @param {T} tag @param {string} name @param {...Node} children */
function make(tag, name, ...children) {
  const node = document.createElement(tag);
  node.className = name;
  node.append(...children);
  return node;
}

export class ParleyCall extends HTMLElement {
  static observedAttributes = ['language', 'size'];
  #calls = new Calls(() => new DuplexCall(theRig()));
  #orb = /** @type {import('./elements/orb/orb.js').Orb} */ (document.createElement('p-orb'));
  #start = make('button', 'start', this.#orb);
  #state = make('p', 'state');
  #said = make('p', 'said');
  #mute = make('button', 'mute');
  #stop = make('button', 'stop');
  #row = make('div', 'row', this.#mute, this.#stop);
  #problem = '';

  constructor() {
    super();
    const style = new CSSStyleSheet();
    style.replaceSync(STYLE);
    const root = this.attachShadow({ mode: 'open' });
    root.adoptedStyleSheets = [style];
    this.#state.setAttribute('role', 'status');
    root.append(this.#start, this.#state, this.#said, this.#row);
    this.#start.onclick = () => void this.start();
    this.#stop.onclick = () => this.stop();
    this.#mute.onclick = () => this.#calls.current?.mute(!this.#calls.state.isMuted);
    this.#follow();
  }

  connectedCallback() {
    this.#draw();
  }

  disconnectedCallback() {
    this.stop();
  }

  attributeChangedCallback() {
    const size = Number(this.getAttribute('size'));
    if (size >= 48 && size <= 480) this.style.setProperty('--parley-size', `${size}px`);
    this.#draw();
  }

  /** Has to be called from a click or a key. */
  async start() {
    if (this.#calls.isBusy) return;
    this.#problem = '';
    const base = (this.getAttribute('server') ?? HOME).replace(/\/$/, '');
    await this.#calls.start(async () => {
      try {
        const [token, voice] = await Promise.all([this.#token(), this.#voice()]);
        const scene = this.getAttribute('scene') ?? '';
        const options = (/** @type {string} */ said) => ({
          instructions: [scene, said].filter(Boolean).join('\n\n'),
          ...(voice ? { voice } : {}),
        });
        const connection = { base, ...(token ? { token } : {}) };
        return { dialect: 'realtime', mode: 'audio', microphone: {}, options, connection };
      } catch {
        this.#problem = 'no_token';
        return null;
      }
    });
    this.#draw();
  }

  stop() {
    this.#calls.stop();
  }

  /** A key that lives for minutes, from the page's own server; none where the server needs none. */
  async #token() {
    const address = this.getAttribute('token-url');
    if (!address) return '';
    const answer = await fetch(address, { method: 'POST' });
    const { token } = answer.ok ? await answer.json() : {};
    if (typeof token !== 'string' || !token) throw new Error(`${address} gave no token`);
    return token;
  }

  /** How the assistant shall sound: the sample of that name, base64 at 16 kHz. */
  async #voice() {
    const name = this.getAttribute('voice');
    if (!name || !/^[\w-]+$/.test(name)) return null;
    const answer = await fetch(new URL(`./voices/${name}.wav`, import.meta.url));
    if (!answer.ok) throw new Error(`there is no voice ${name}`);
    return encodePcm(await decodeSound(await answer.arrayBuffer(), 16000));
  }

  #follow() {
    const calls = this.#calls;
    const emit = (/** @type {string} */ type, /** @type {unknown} */ detail) =>
      this.dispatchEvent(new CustomEvent(type, { detail, bubbles: true, composed: true }));
    let phase = '';
    calls.addEventListener('change', () => {
      const { state } = calls;
      this.#draw();
      const now = `${state.phase} ${state.activity}`;
      if (now === phase) return;
      phase = now;
      emit('phase', { phase: state.phase, activity: state.activity });
      if (state.phase === 'ended') emit('ended', { reason: state.ending?.reason, code: state.ending?.code });
    });
    calls.addEventListener('captions', (event) => {
      const { list } = /** @type {CustomEvent} */ (event).detail;
      const last = list.findLast((/** @type {any} */ { who, text }) => who !== 'note' && text);
      if (!last) return;
      this.#said.textContent = last.text.slice(0, last.heard);
      emit('caption', { who: last.who, text: last.text, heard: last.heard });
    });
    calls.addEventListener('level', (event) => {
      const { mic, voice } = /** @type {CustomEvent} */ (event).detail;
      this.#orb.level = calls.state.activity === 'speaking' ? voice * 3.5 : mic * 5;
    });
  }

  #draw() {
    const { phase, activity, isMuted, trouble, ending } = this.#calls.state;
    const language = (this.getAttribute('language') ?? navigator.language).toLowerCase().startsWith('zh') ? 'zh' : 'en';
    const words = WORDS[language];
    const isLive = this.#calls.isLive;
    const isBusy = this.#calls.isBusy;
    this.#orb.state = isLive ? activity : isBusy ? 'waiting' : 'idle';
    if (!isLive) this.#orb.level = 0;
    const isFailed = phase === 'ended' && !['stopped', 'not_started'].includes(ending?.reason ?? '');
    const denied = trouble?.kind === 'media' ? 'denied' : '';
    const over = phase === 'ended' ? (isFailed ? 'failed' : 'ended') : 'idle';
    const now = isLive ? (isMuted ? 'muted' : activity) : isBusy ? 'waiting' : this.#problem || denied || over;
    this.#state.textContent = words[now];
    this.#row.hidden = !isBusy;
    this.#start.disabled = isBusy;
    this.#start.ariaLabel = words.start;
    this.#stop.textContent = words.stop;
    this.#mute.textContent = isMuted ? words.unmute : words.mute;
    this.#mute.ariaPressed = String(isMuted);
    this.lang = language;
  }
}

customElements.define('parley-call', ParleyCall);
