/** The picture of a video call: preview, buttons, subtitles, and the file in place of the camera. */

import { toMediaError } from '../audio/devices.js';
import { h, say, toast } from '../elements/dom.js';
import { mediaNotice } from '../elements/notice.js';
import { Camera, ZOOM_LIMIT } from '../talk/camera.js';
import { number } from '../words/words.js';
import { drawTools, makeTools } from './call/picture-tools.js';
import { zoomByFingers } from './call/zoom.js';
import { followUnits } from './monitor.js';

/** @typedef {import('./call/parts.js').CallPage} CallPage */

class StageVideo {
  // Firefox lays its "Pop out this video" over a picture that does not forbid it.
  video = h('video', { playsinline: true, disablepictureinpicture: true, 'aria-hidden': 'true' });
  #captions = h(
    'p',
    { class: 'subtitles', dir: 'auto', 'aria-hidden': 'true' },
    h('span', null),
    h('span', { class: 'ahead' }),
  );
  #isFile = false;
  #isDetailed = false;
  /** True if the user has no camera or does not want to use it. */
  #isWithout = false;

  /** @param {CallPage} page */
  constructor(page) {
    this.page = page;
    this.video.muted = true;
    this.camera = new Camera(this.video);
    const { camera } = this;
    this.placeholder = h('p', { class: 'placeholder', icon: 'camera', words: 'state.idle_video' });
    this.acts = {
      camera,
      settings: page.settings,
      power: () => this.#turnPower(),
      flip: () => void this.#flip(),
      share: () => void this.#share(),
      full: () => this.full(),
      detail: () => {
        this.#isDetailed = !this.#isDetailed;
        camera.isDetailed = this.#isDetailed;
        this.#draw();
      },
      changed: () => this.#draw(),
    };
    this.tools = makeTools(this.acts);
    this.zoomed = h('button', {
      class: 'zoomed num',
      type: 'button',
      label: 'video.zoom_off',
      hidden: true,
      onclick: () => camera.setZoom(1),
    });
    this.node = h(
      'div',
      { class: 'picture' },
      this.video,
      this.placeholder,
      this.zoomed,
      h('div', { class: 'overlay' }, this.#captions),
    );
    zoomByFingers(this.node, camera);
    camera.addEventListener('change', () => this.#draw());
    camera.addEventListener('lost', () => toast('video.lost'));
    page.settings.addEventListener('change', () => this.#draw());
    page.calls.addEventListener('change', () => this.#draw());
    followUnits(this.video, page, () => this.#isFile);
    this.#draw();
  }

  async #flip() {
    try {
      if (!(await this.camera.flip())) toast('video.no_other');
    } catch (error) {
      this.#trouble(error);
    }
  }

  /** @param {unknown} error */
  #trouble(error) {
    const { trouble, device } = toMediaError(error, 'camera');
    const { calls, notices } = this.page;
    if (calls.isBusy) calls.current?.set({ trouble: { kind: 'media', trouble, device } });
    else
      notices.replaceChildren(
        mediaNotice({ trouble, device }, [{ words: 'action.try_again', act: () => void this.#turnOn(), isMain: true }]),
      );
  }

  async #open() {
    // The choice of the camera is in a part that is loaded later.
    await this.page.whenLoaded();
    await this.camera.open(this.page.devices.chosen('camera'));
    this.#isFile = this.#isWithout = false;
    this.#draw();
  }

  async #turnOn() {
    try {
      await this.#open();
    } catch (error) {
      this.#trouble(error);
    }
  }

  /** Before a call the button selects if the camera is used; during it, the button switches the camera on and off. */
  #turnPower() {
    if (!this.#isWanted) return void this.#turnOn();
    this.#isWithout = !this.page.calls.isBusy;
    this.camera.close();
    this.#draw();
  }

  /** True if the camera is on, or will be when the call starts. */
  get #isWanted() {
    return this.camera.isOn || !(this.#isWithout || this.page.calls.isBusy);
  }

  async #share() {
    const { camera } = this;
    if (camera.isScreen) {
      camera.close();
      if (this.page.calls.isBusy && !this.#isWithout) await this.#turnOn();
      return;
    }
    try {
      this.#isFile = false;
      await camera.share();
    } catch (error) {
      // A user who closes the browser's prompt has changed their mind.
      if (toMediaError(error, 'camera').trouble !== 'denied') toast('video.no_screen');
    }
  }

  /** Toggles full screen for the whole page: without its controls a call could not be ended. */
  full() {
    const stage = /** @type {HTMLElement} */ (this.node.closest('main'));
    if (document.fullscreenElement) void document.exitFullscreen();
    else if (!stage.requestFullscreen) toast('video.no_full');
    else void stage.requestFullscreen().catch(() => toast('video.no_full'));
  }

  #draw() {
    const { camera, tools, video, node } = this;
    const { settings, calls } = this.page;
    this.placeholder.hidden = camera.isOn || this.#isFile;
    const words = this.#isWanted ? 'state.idle_video' : 'video.is_off';
    say(/** @type {Element} */ (this.placeholder.lastElementChild), words);
    drawTools(tools, this.acts, { isDetailed: this.#isDetailed, isWanted: this.#isWanted });
    this.zoomed.hidden = !camera.isOn || camera.zoom < 1.05;
    if (!this.zoomed.hidden) this.zoomed.textContent = `${number(camera.zoom, { maximumFractionDigits: 1 })}×`;
    video.style.setProperty('--zoom', String(Math.min(ZOOM_LIMIT, camera.isOn ? camera.zoom : 1)));
    // Users expect to see themselves as in a mirror; what is sent is mirrored only if they choose so.
    const isMirrored = (camera.facing === 'user') !== camera.isMirrored;
    video.classList.toggle('mirrored', !this.#isFile && !camera.isScreen && isMirrored);
    this.#captions.hidden = !settings.get('captions') || !this.#captions.textContent;
    node.style.setProperty('--caption-height', `${settings.get('captionHeight')}%`);
    node.style.setProperty('--caption-shade', String(settings.get('captionShade') / 100));
    node.style.setProperty('--caption-shade-top', String(settings.get('captionShadeTop') / 100));
    node.dataset.live = String(calls.isLive);
    // A camera's picture fills the page; a screen or a clip is not cropped.
    node.dataset.fit = this.#isFile || camera.isScreen ? 'contain' : 'cover';
  }

  isOn() {
    return this.camera.isOn;
  }

  /** Before a call: opens the camera, unless the user goes without one. Rejects with the reason if it cannot. */
  async ready() {
    if (!this.camera.isOn && !this.#isWithout) await this.#open();
    return true;
  }

  /** Continues without a camera; a screen can still be shown. @param {() => void} then */
  goWithout(then) {
    this.#isWithout = true;
    this.#draw();
    then();
  }

  async reopen() {
    if (this.camera.isOn && !this.camera.isScreen) await this.#turnOn();
  }

  /** Returns the current picture, base64 JPEG; null if there is none. */
  frame() {
    return this.camera.isOn ? this.camera.frame() : Promise.resolve(null);
  }

  slices() {
    return this.#isDetailed ? 2 : 1;
  }

  /** Shows a chosen clip. @param {string} url @param {number} volume @param {string} sound */
  showFile(url, volume, sound) {
    const { video } = this;
    this.camera.close();
    this.#isFile = true;
    Object.assign(video, { srcObject: null, src: url, muted: sound === 'mic', volume });
    this.#draw();
  }

  /** @param {string} said @param {string} ahead */
  caption(said, ahead) {
    const [a, b] = this.#captions.children;
    a.textContent = said;
    b.textContent = ahead;
    this.#captions.hidden = !this.page.settings.get('captions') || !(said || ahead);
    this.#captions.scrollTop = this.#captions.scrollHeight;
  }

  subtitle() {
    return this.#captions.textContent ?? '';
  }

  /** Clears the picture after the call. */
  over() {
    if (this.#isFile) {
      this.video.pause();
      this.video.removeAttribute('src');
      this.video.load();
    }
    this.#isFile = false;
    this.camera.close();
    this.caption('', '');
    this.#draw();
  }

  release() {
    this.camera.close();
  }
}

/** @param {CallPage} page */
export function mountStageVideo(page) {
  return new StageVideo(page);
}
