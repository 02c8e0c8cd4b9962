/**
 * <parley-call>: a voice call on another site's page (docs/do/embed.md). `parley-call.js` loads it.
 *
 * Attributes: `server` (the script's own by default), `token-url` (on the page's own server: returns JSON with a
 * `token`; not needed on a server without keys), `voice` (woman, man), `scene` (instructions), `language` (en, zh),
 * `theme` (light, dark), `size` (pixels of the sphere).
 * Events, all bubbling: `phase` {phase, activity}, `caption` {who, text, heard}, `ended` {reason, code}.
 *
 * If something goes wrong, the element shows visitors a short sentence, and the console shows the page's owner what to
 * configure.
 */

import { decodeSound, theRig } from '../../audio/rig.js';
import { Calls } from '../../talk/calls.js';
import { DuplexCall } from '../../talk/duplex.js';
import { encodePcm } from '../../wire/codec.js';
import '../orb/orb.js';
import { checkPage, checkServer, fetchToken, Obstacle, obstacleOf } from './obstacles.js';
import { WORDS } from './words.js';

/** The server from which this script was loaded. */
const HOME = import.meta.url.replace(/\/static\/.*$/, '');

/**
 * Interval at which the token is renewed. Tokens are valid for 10 minutes and calls last longer, but reconnecting needs
 * a valid one.
 */
const RENEW_MS = 480_000;

const STYLE = `
:host {
  --parley-size: 9rem;
  display: inline-grid;
  justify-items: center;
  gap: 0.6rem;
  font: 500 1rem/1.4 system-ui, sans-serif;
  text-align: center;
  max-width: 22rem;
}
:host([theme="light"]) {
  color-scheme: light;
  color: #17161a;
}
:host([theme="dark"]) {
  color-scheme: dark;
  color: #f1eff4;
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
  background: color-mix(in srgb, currentColor 10%, transparent);
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
  #orb = /** @type {import('../orb/orb.js').Orb} */ (document.createElement('p-orb'));
  #start = make('button', 'start', this.#orb);
  #state = make('p', 'state');
  #said = make('p', 'said');
  #mute = make('button', 'mute');
  #stop = make('button', 'stop');
  #row = make('div', 'row', this.#mute, this.#stop);
  /** @type {Obstacle | null} */
  #obstacle = null;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #renewal;

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

  /** Must be called from a click or a key press. */
  async start() {
    if (this.#calls.isBusy) return;
    this.#obstacle = null;
    const base = (this.getAttribute('server') ?? HOME).replace(/\/$/, '');
    await this.#calls.start(async (/** @type {AbortSignal} */ signal) => {
      try {
        checkPage();
        const parts = Promise.all([fetchToken(this.#tokenUrl), this.#voice()]);
        // If the server is down, that is the cause of the other errors.
        parts.catch(() => {});
        await checkServer(base);
        const [token, voice] = await parts;
        const scene = this.getAttribute('scene') ?? '';
        const options = (/** @type {string} */ said) => ({
          instructions: [scene, said].filter(Boolean).join('\n\n'),
          ...(voice ? { voice } : {}),
        });
        const connection = { base, ...(token ? { token } : {}) };
        if (token) this.#renewal = setInterval(() => this.#renew(connection), RENEW_MS);
        return { dialect: 'realtime', mode: 'audio', microphone: {}, options, connection };
      } catch (error) {
        if (!signal.aborted) this.#obstacle = error instanceof Obstacle ? error : new Obstacle('failed', String(error));
        return null;
      }
    });
    this.#draw();
  }

  /** @param {{token?: string}} connection options of each socket of this call */
  async #renew(connection) {
    const token = await fetchToken(this.#tokenUrl).catch(({ hint }) => console.error(`<parley-call>: ${hint}`));
    if (!token) return;
    connection.token = token;
    this.#calls.current?.client?.useToken(token);
  }

  stop() {
    this.#calls.stop();
  }

  get #tokenUrl() {
    return this.getAttribute('token-url');
  }

  /** Returns the sample of the chosen voice, base64 at 16 kHz; null for the server's own voice. */
  async #voice() {
    const name = this.getAttribute('voice');
    if (!name) return null;
    const sample = new URL(`../../voices/${encodeURIComponent(name)}.wav`, import.meta.url);
    const answer = await fetch(sample).catch(() => null);
    if (answer?.ok) return encodePcm(await decodeSound(await answer.arrayBuffer(), 16000));
    console.error(`<parley-call>: There is no voice "${name}". Set voice to woman or man.`);
    return null;
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
      if (state.phase !== 'ended') return;
      clearInterval(this.#renewal);
      this.#obstacle ??= obstacleOf(state, this.#tokenUrl);
      if (this.#obstacle?.hint) console.error(`<parley-call>: ${this.#obstacle.hint}`);
      this.#draw();
      emit('ended', { reason: state.ending?.reason, code: state.ending?.code });
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
    const { isLive, isBusy, state } = this.#calls;
    const language = (this.getAttribute('language') ?? navigator.language).toLowerCase().startsWith('zh') ? 'zh' : 'en';
    const words = WORDS[language];
    this.#orb.state = isLive ? state.activity : isBusy ? 'waiting' : 'idle';
    if (!isLive) this.#orb.level = 0;
    if (!isBusy) this.#said.textContent = '';
    this.#state.textContent = words[this.#now()];
    this.#row.hidden = !isBusy;
    this.#start.disabled = isBusy;
    this.#start.ariaLabel = words.start;
    this.#stop.textContent = words.stop;
    this.#mute.hidden = !isLive;
    this.#mute.textContent = state.isMuted ? words.unmute : words.mute;
    this.#mute.ariaPressed = String(state.isMuted);
    this.lang = language;
  }

  /** Returns the key of the text for the current state. */
  #now() {
    const { isLive, isBusy, state } = this.#calls;
    if (isLive) {
      if (state.isReturning) return 'returning';
      if (state.hasNoSound) return 'silent';
      return state.isMuted ? 'muted' : state.activity;
    }
    if (isBusy) return state.phase === 'queued' ? 'queued' : state.retrying ? 'again' : 'waiting';
    return this.#obstacle?.word ?? (state.phase === 'ended' ? 'ended' : 'idle');
  }
}

customElements.define('parley-call', ParleyCall);
