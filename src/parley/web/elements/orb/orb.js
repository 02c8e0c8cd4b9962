/**
 * <p-orb>: the living presence. Three soft shapes that breathe, lean towards a voice, turn over a thought
 * and swell with speech; still for those who asked for little motion. Decoration: the words beside it say
 * the same.
 *
 * `state`: idle, waiting, listening, hearing, thinking, speaking, paused, muted. `level`: 0 to 1.
 */

const POINTS = 90;

/** Between two pictures, less the wait for the screen: 30 a second, as smooth as 60 for what moves so slowly. */
const REST_MS = 25;
/** The same while it breathes only, less than a pixel from one to the next: 15 a second. */
const CALM_REST_MS = 58;
/** Slower than this it only breathes. */
const CALM_PACE = 0.3;

/** How each state moves: pace, how far shapes wander, size. @type {Record<string, {pace: number, sway: number, size: number}>} */
const MOODS = {
  idle: { pace: 0.25, sway: 0.03, size: 0.8 },
  waiting: { pace: 0.5, sway: 0.05, size: 0.74 },
  listening: { pace: 0.45, sway: 0.04, size: 0.82 },
  hearing: { pace: 0.9, sway: 0.06, size: 0.86 },
  thinking: { pace: 1.9, sway: 0.07, size: 0.72 },
  speaking: { pace: 1.1, sway: 0.06, size: 0.86 },
  paused: { pace: 0.08, sway: 0.02, size: 0.7 },
  muted: { pace: 0.15, sway: 0.02, size: 0.74 },
};

export class Orb extends HTMLElement {
  #canvas = document.createElement('canvas');
  #frame = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #rest;
  #time = Math.random() * 100;
  #last = 0;
  #level = 0;
  #wanted = 0;
  #size = MOODS.idle.size;
  #pace = MOODS.idle.pace;
  #colour = [120, 120, 120];
  #aim = [120, 120, 120];
  #isStill = false;
  #isSeen = false;
  /** @type {ResizeObserver | null} */
  #watch = null;
  #restyle = () => this.#readColour();

  get state() {
    return this.dataset.state ?? 'idle';
  }

  set state(state) {
    if (state === this.dataset.state) return;
    this.dataset.state = state;
    if (this.#isSeen) this.#readColour();
    if (this.#isStill) this.#draw();
  }

  /** @param {number} level */
  set level(level) {
    this.#wanted = Math.min(1, level);
  }

  connectedCallback() {
    this.setAttribute('aria-hidden', 'true');
    this.dataset.state ??= 'idle';
    this.append(this.#canvas);
    this.#isStill = matchMedia('(prefers-reduced-motion: reduce)').matches;
    this.#watch = new ResizeObserver(() => {
      // Here styles are known; to ask for them earlier would make the browser work them out twice.
      this.#readColour();
      if (!this.#isSeen) this.#colour = [...this.#aim];
      this.#isSeen = true;
      const ratio = Math.min(2, devicePixelRatio || 1);
      this.#canvas.width = Math.round(this.clientWidth * ratio);
      this.#canvas.height = Math.round(this.clientHeight * ratio);
      this.#draw();
      this.#drawAgain();
    });
    this.#watch.observe(this);
    document.addEventListener('themechange', this.#restyle);
  }

  disconnectedCallback() {
    this.#stop();
    this.#watch?.disconnect();
    document.removeEventListener('themechange', this.#restyle);
    this.#canvas.remove();
  }

  #readColour() {
    if (!this.isConnected) return;
    const parts = getComputedStyle(this)
      .color.match(/[\d.]+/g)
      ?.map(Number) ?? [120, 120, 120];
    this.#aim = parts.slice(0, 3);
  }

  #tick = (/** @type {number} */ now) => {
    const passed = Math.min(0.1, (now - this.#last) / 1000);
    this.#last = now;
    const mood = MOODS[this.state] ?? MOODS.idle;
    const ease = (/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ pace) =>
      from + (to - from) * (1 - Math.exp(-passed * pace));
    this.#level = ease(this.#level, this.#wanted, this.#wanted > this.#level ? 18 : 5);
    this.#size = ease(this.#size, mood.size, 4);
    this.#pace = ease(this.#pace, mood.pace, 3);
    this.#colour = this.#colour.map((value, i) => ease(value, this.#aim[i], 5));
    this.#time += passed * this.#pace;
    this.#draw();
    this.#drawAgain();
  };

  #stop() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#rest);
  }

  /** Soon, unless it is still or not on show. */
  #drawAgain() {
    this.#stop();
    if (this.#isStill || this.#canvas.width === 0) return;
    const isCalm = this.#pace < CALM_PACE && this.#wanted < 0.02;
    this.#rest = setTimeout(
      () => {
        this.#frame = requestAnimationFrame(this.#tick);
      },
      isCalm ? CALM_REST_MS : REST_MS,
    );
  }

  #draw() {
    const { width, height } = this.#canvas;
    const pen = this.#canvas.getContext('2d');
    if (!pen || width === 0) return;
    const mood = MOODS[this.state] ?? MOODS.idle;
    const reach = (Math.min(width, height) / 2) * 0.84;
    const colour = this.#colour.map(Math.round).join(' ');
    pen.clearRect(0, 0, width, height);
    pen.save();
    pen.translate(width / 2, height / 2);

    const glow = pen.createRadialGradient(0, 0, reach * 0.3, 0, 0, reach * 1.18);
    glow.addColorStop(0, `rgb(${colour} / ${0.2 + 0.2 * this.#level})`);
    glow.addColorStop(1, `rgb(${colour} / 0)`);
    pen.fillStyle = glow;
    pen.fillRect(-width / 2, -height / 2, width, height);

    for (let layer = 0; layer < 3; layer++) {
      const base = reach * this.#size * (1 - layer * 0.13) * (0.94 + 0.14 * this.#level);
      const wander = mood.sway * (1 + layer * 0.4) + 0.13 * this.#level;
      pen.beginPath();
      for (let i = 0; i <= POINTS; i++) {
        const angle = (i / POINTS) * Math.PI * 2;
        const t = this.#time * (1 + layer * 0.27) * (layer % 2 ? -1 : 1);
        const lump =
          Math.sin(angle * 2 + t * 1.7 + layer) * 0.5 +
          Math.sin(angle * 3 - t * 1.1 + layer * 2) * 0.32 +
          Math.sin(angle * 5 + t * 2.3) * 0.18;
        const radius = base * (1 + lump * wander);
        const x = Math.cos(angle) * radius;
        const y = Math.sin(angle) * radius;
        if (i === 0) pen.moveTo(x, y);
        else pen.lineTo(x, y);
      }
      pen.closePath();
      const turn = this.#time * 0.8 + layer * 2;
      const fill = pen.createLinearGradient(
        Math.cos(turn) * base,
        Math.sin(turn) * base,
        -Math.cos(turn) * base,
        -Math.sin(turn) * base,
      );
      fill.addColorStop(0, `rgb(${colour} / ${0.62 - layer * 0.08})`);
      fill.addColorStop(1, `rgb(${colour} / ${0.2 + layer * 0.1})`);
      pen.fillStyle = fill;
      pen.fill();
    }
    const shine = pen.createRadialGradient(-reach * 0.25, -reach * 0.3, 0, -reach * 0.25, -reach * 0.3, reach * 0.7);
    shine.addColorStop(0, 'rgb(255 255 255 / 0.35)');
    shine.addColorStop(1, 'rgb(255 255 255 / 0)');
    pen.fillStyle = shine;
    pen.beginPath();
    pen.arc(0, 0, reach * this.#size * 0.74, 0, Math.PI * 2);
    pen.fill();
    pen.restore();
  }
}

customElements.define('p-orb', Orb);
