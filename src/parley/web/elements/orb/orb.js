/**
 * <p-orb>: animated sphere of light in two colours that shows the state of the call. It breathes at rest and reacts to
 * a voice, to thinking and to speech. It is still if the user prefers reduced motion. Decorative: the text next to it
 * has the same information.
 *
 * `state`: idle, waiting, listening, hearing, thinking, speaking, paused, muted. `level`: 0 to 1.
 */

const POINTS = 72;
/** Lights that move inside the sphere. */
const LIGHTS = 4;

/**
 * Pause between two frames, without the wait for the screen: 30 frames a second look as smooth as 60 for slow motion.
 */
const REST_MS = 25;
/** Pause between two frames while it only breathes, less than a pixel per frame: 15 frames a second. */
const CALM_REST_MS = 58;
/** Pace below which it only breathes. */
const CALM_PACE = 0.3;

/**
 * Motion of each state: pace, amplitude of the shapes, size.
 * @type {Record<string, {pace: number, sway: number, size: number}>}
 */
const MOODS = {
  idle: { pace: 0.28, sway: 0.012, size: 0.74 },
  waiting: { pace: 0.9, sway: 0.012, size: 0.66 },
  listening: { pace: 0.45, sway: 0.016, size: 0.76 },
  hearing: { pace: 0.9, sway: 0.024, size: 0.8 },
  thinking: { pace: 2.4, sway: 0.02, size: 0.66 },
  speaking: { pace: 1.1, sway: 0.03, size: 0.78 },
  paused: { pace: 0.08, sway: 0.008, size: 0.64 },
  muted: { pace: 0.15, sway: 0.008, size: 0.68 },
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
  /** Two colours as six numbers. */
  #colour = [120, 120, 120, 120, 120, 120];
  #aim = [120, 120, 120, 120, 120, 120];
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
    if (!this.#isStill) return;
    this.#colour = [...this.#aim];
    this.#size = (MOODS[state] ?? MOODS.idle).size;
    this.#draw();
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
      // Styles are computed here; reading them earlier would make the browser compute them twice.
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
    const { color, outlineColor } = getComputedStyle(this);
    this.#aim = [color, outlineColor].flatMap(
      (text) =>
        text
          .match(/[\d.]+/g)
          ?.slice(0, 3)
          .map(Number) ?? [120, 120, 120],
    );
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

  /** Schedules the next frame, unless it is still or not shown. */
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
    const reach = Math.min(width, height) / 2;
    // Breathing: a slight change of size, about every six seconds at rest.
    const breath = 1 + 0.018 * Math.sin(this.#time * 3.6);
    const radius = reach * this.#size * breath * (1 + 0.16 * this.#level);
    const [one, two] = [this.#colour.slice(0, 3), this.#colour.slice(3)].map((parts) =>
      parts.map(Math.round).join(' '),
    );
    pen.clearRect(0, 0, width, height);
    pen.save();
    pen.translate(width / 2, height / 2);
    this.#drawGlow(pen, reach, one);
    this.#tracePath(pen, radius);
    const base = pen.createRadialGradient(-radius * 0.35, -radius * 0.45, radius * 0.1, 0, 0, radius * 1.25);
    base.addColorStop(0, `rgb(${one})`);
    base.addColorStop(1, `rgb(${two})`);
    pen.fillStyle = base;
    pen.fill();
    pen.clip();
    this.#drawLights(pen, radius, one, two);
    this.#drawShine(pen, radius);
    pen.restore();
  }

  /**
   * Draws the glow around it, stronger with a voice.
   * @param {CanvasRenderingContext2D} pen
   * @param {number} reach
   * @param {string} colour
   */
  #drawGlow(pen, reach, colour) {
    const glow = pen.createRadialGradient(0, 0, reach * 0.45, 0, 0, reach);
    glow.addColorStop(0, `rgb(${colour} / ${0.34 + 0.3 * this.#level})`);
    glow.addColorStop(0.55, `rgb(${colour} / ${0.1 + 0.12 * this.#level})`);
    glow.addColorStop(1, `rgb(${colour} / 0)`);
    pen.fillStyle = glow;
    pen.fillRect(-reach, -reach, reach * 2, reach * 2);
  }

  /**
   * Traces the edge: nearly a circle, deformed by voices.
   * @param {CanvasRenderingContext2D} pen
   * @param {number} radius
   */
  #tracePath(pen, radius) {
    const wander = (MOODS[this.state] ?? MOODS.idle).sway + 0.075 * this.#level;
    const t = this.#time;
    pen.beginPath();
    for (let i = 0; i <= POINTS; i++) {
      const angle = (i / POINTS) * Math.PI * 2;
      const lump =
        Math.sin(angle * 2 + t * 1.7) * 0.5 +
        Math.sin(angle * 3 - t * 1.1) * 0.32 +
        Math.sin(angle * 5 + t * 2.3) * 0.18;
      const far = radius * (1 + lump * wander);
      pen.lineTo(Math.cos(angle) * far, Math.sin(angle) * far);
    }
    pen.closePath();
  }

  /**
   * Draws lights of both colours that move inside.
   * @param {CanvasRenderingContext2D} pen
   * @param {number} radius
   * @param {string} one
   * @param {string} two
   */
  #drawLights(pen, radius, one, two) {
    const isTurning = this.state === 'thinking' || this.state === 'waiting';
    for (let i = 0; i < LIGHTS; i++) {
      const turn = this.#time * (0.9 + i * 0.23) * (i % 2 && !isTurning ? -1 : 1) + (i * Math.PI * 2) / LIGHTS;
      const far = radius * (isTurning ? 0.62 : 0.42 + 0.14 * Math.sin(this.#time * 0.7 + i * 2));
      const [x, y] = [Math.cos(turn) * far, Math.sin(turn * (isTurning ? 1 : 1.13)) * far];
      const size = radius * (0.75 + 0.25 * this.#level);
      const light = pen.createRadialGradient(x, y, 0, x, y, size);
      const colour = i % 2 ? one : i === 0 ? '255 255 255' : two;
      light.addColorStop(0, `rgb(${colour} / ${i === 0 ? 0.34 + 0.3 * this.#level : 0.75})`);
      light.addColorStop(1, `rgb(${colour} / 0)`);
      pen.fillStyle = light;
      pen.fillRect(-radius * 1.3, -radius * 1.3, radius * 2.6, radius * 2.6);
    }
  }

  /**
   * Draws light from above and shade at the rim, which make it look round.
   * @param {CanvasRenderingContext2D} pen
   * @param {number} radius
   */
  #drawShine(pen, radius) {
    const shine = pen.createRadialGradient(
      -radius * 0.3,
      -radius * 0.5,
      0,
      -radius * 0.3,
      -radius * 0.5,
      radius * 0.95,
    );
    shine.addColorStop(0, 'rgb(255 255 255 / 0.42)');
    shine.addColorStop(1, 'rgb(255 255 255 / 0)');
    pen.fillStyle = shine;
    pen.fillRect(-radius * 1.3, -radius * 1.3, radius * 2.6, radius * 2.6);
    const rim = pen.createRadialGradient(0, 0, radius * 0.72, 0, 0, radius * 1.12);
    rim.addColorStop(0, 'rgb(10 8 40 / 0)');
    rim.addColorStop(1, 'rgb(20 10 70 / 0.2)');
    pen.fillStyle = rim;
    pen.fillRect(-radius * 1.3, -radius * 1.3, radius * 2.6, radius * 2.6);
  }
}

customElements.define('p-orb', Orb);
