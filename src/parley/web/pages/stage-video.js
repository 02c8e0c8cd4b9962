/** The picture of a video call: preview, its buttons, subtitles, the file in place of the camera. */

import { h, once, reicon, relabel, toast } from '../elements/dom.js';
import { canShareScreen, toMediaError } from '../audio/devices.js';
import { Camera, ZOOM_LIMIT } from '../talk/camera.js';
import { number } from '../words/words.js';
import { followUnits } from './monitor.js';

/**
 * @param {{settings: import('../elements/form.js').Settings<any>,
 *   devices: import('../elements/devices/devices.js').Devices, talk: import('../talk/duplex.js').DuplexTalk}} page
 */
export function mountStageVideo({ settings, devices, talk }) {
  const video = h('video', { playsinline: true, 'aria-hidden': 'true' });
  video.muted = true;
  const camera = new Camera(video);
  const placeholder = h('button', { class: 'placeholder', type: 'button', icon: 'camera', words: 'video.turn_on', onclick: () => void open() });
  const captions = h('p', { class: 'subtitles', 'aria-hidden': 'true' }, h('span', null), h('span', { class: 'ahead' }));
  let isFile = false;
  let isDetailed = false;

  /** @param {string} name @param {string} label @param {() => void} act */
  const tool = (name, label, act) => h('button', { class: 'round glass', type: 'button', icon: name, label, onclick: act });
  const power = tool('video', 'video.off', () => (camera.isOn ? camera.close() : void open()));
  const flip = tool('flip', 'video.flip', once(() => void camera.flip().then((done) => done || toast('video.no_other')).catch(trouble), 500));
  const mirror = tool('mirror', 'video.mirror', once(() => {
    camera.isMirrored = !camera.isMirrored;
    draw();
  }, 400));
  const detail = tool('plus', 'video.detail', () => {
    isDetailed = !isDetailed;
    camera.isDetailed = isDetailed;
    draw();
  });
  detail.replaceChildren(h('b', { class: 'small' }, 'HD'));
  const subtitles = tool('captions', 'video.captions', () => settings.set('captions', !settings.get('captions')));
  const whole = tool('full', 'video.full', once(() => full(), 400));
  const freeze = tool('freeze', 'video.freeze', () => void camera.freeze(!camera.isFrozen));
  const screen = tool('screen', 'video.screen', once(() => void share(), 500));
  const zoomed = h('button', { class: 'zoomed num', type: 'button', label: 'video.zoom_off', hidden: true, onclick: () => camera.setZoom(1) });
  const torch = tool('sun', 'video.torch', () => {
    const on = torch.getAttribute('aria-pressed') !== 'true';
    torch.setAttribute('aria-pressed', String(on));
    void camera.torch(on).catch(() => {});
  });
  const lamp = h('span', { class: 'lamp', role: 'img', label: 'video.live', hidden: true });
  const node = h('div', { class: 'picture' }, video, placeholder, lamp, zoomed, h('div', { class: 'overlay' }, captions, h('div', { class: 'tools' }, power, flip, mirror, freeze, detail, torch, screen, subtitles, whole)));
  whole.classList.add('whole');
  screen.hidden = !canShareScreen();

  /** @param {unknown} error */
  function trouble(error) {
    const { trouble: why, device } = toMediaError(error, 'camera');
    talk.set({ trouble: { kind: 'media', trouble: why, device } });
  }

  /** @returns {Promise<boolean>} */
  async function open() {
    try {
      isFile = false;
      await camera.open(devices.chosen('camera'));
      return true;
    } catch (error) {
      trouble(error);
      return false;
    }
  }

  async function share() {
    if (camera.isScreen) {
      camera.close();
      if (talk.isBusy) await open();
      return;
    }
    try {
      isFile = false;
      await camera.share();
    } catch (error) {
      // Whoever closes the browser's question has changed their mind.
      if (toMediaError(error, 'camera').trouble !== 'denied') toast('video.no_screen');
    }
  }

  // Two fingers, or the wheel with Ctrl, make the middle of the picture larger.
  /** @type {Map<number, PointerEvent>} */
  const fingers = new Map();
  let spread = 0;
  const between = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  };
  node.addEventListener('pointerdown', (event) => {
    if (event.pointerType !== 'touch' || !camera.isOn) return;
    fingers.set(event.pointerId, event);
    if (fingers.size === 2) spread = between() / camera.zoom;
  });
  node.addEventListener('pointermove', (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, event);
    if (fingers.size === 2 && spread > 0) camera.setZoom(between() / spread);
  });
  for (const end of ['pointerup', 'pointercancel', 'pointerleave']) node.addEventListener(end, (event) => fingers.delete(/** @type {PointerEvent} */ (event).pointerId));
  node.addEventListener('wheel', (event) => {
    if (!event.ctrlKey || !camera.isOn) return;
    event.preventDefault();
    camera.setZoom(camera.zoom * Math.exp(-event.deltaY / 300));
  }, { passive: false });

  function full() {
    if (document.fullscreenElement) void document.exitFullscreen();
    else if (!node.requestFullscreen) toast('video.no_full');
    else void node.requestFullscreen().catch(() => toast('video.no_full'));
  }

  function draw() {
    const isShown = camera.isOn || isFile;
    placeholder.hidden = isShown;
    reicon(power, camera.isOn ? 'video' : 'video-off');
    relabel(power, camera.isOn ? 'video.off' : 'video.turn_on');
    for (const button of [flip, mirror, freeze]) button.disabled = !camera.isOn;
    if (camera.isScreen) flip.disabled = mirror.disabled = true;
    freeze.setAttribute('aria-pressed', String(camera.isFrozen));
    screen.setAttribute('aria-pressed', String(camera.isScreen));
    zoomed.hidden = !camera.isOn || camera.zoom < 1.05;
    zoomed.textContent = `${number(camera.zoom, { maximumFractionDigits: 1 })}×`;
    video.style.setProperty('--zoom', String(Math.min(ZOOM_LIMIT, camera.isOn ? camera.zoom : 1)));
    torch.hidden = !camera.hasTorch;
    mirror.setAttribute('aria-pressed', String(camera.isMirrored));
    detail.setAttribute('aria-pressed', String(isDetailed));
    subtitles.setAttribute('aria-pressed', String(settings.get('captions')));
    // People expect to see themselves as in a mirror; what is sent is turned only when they ask for it.
    video.classList.toggle('mirrored', !isFile && !camera.isScreen && (camera.facing === 'user') !== camera.isMirrored);
    captions.hidden = !settings.get('captions') || !captions.textContent;
    node.style.setProperty('--caption-height', `${settings.get('captionHeight')}%`);
    node.style.setProperty('--caption-shade', String(settings.get('captionShade') / 100));
    node.dataset.live = String(talk.isLive);
    lamp.hidden = !talk.isLive;
  }

  camera.addEventListener('change', draw);
  camera.addEventListener('lost', () => toast('video.lost'));
  settings.addEventListener('change', draw);
  talk.addEventListener('change', draw);
  followUnits(video, talk, () => isFile);
  draw();

  return {
    node,
    video,
    full,
    isOn: () => camera.isOn,
    /** Before a call: the camera is on, or a person was told why not. */
    ready: async () => camera.isOn || (await open()),
    reopen: async () => {
      if (camera.isOn && !camera.isScreen) await open();
    },
    frame: () => camera.frame(),
    slices: () => (isDetailed ? 2 : 1),
    /** @param {string} url @param {number} volume @param {string} sound */
    showFile: (url, volume, sound) => {
      camera.close();
      isFile = true;
      video.srcObject = null;
      video.src = url;
      video.muted = sound === 'mic';
      video.volume = volume;
      draw();
    },
    /** @param {string} said @param {string} ahead */
    caption: (said, ahead) => {
      const [a, b] = captions.children;
      a.textContent = said;
      b.textContent = ahead;
      captions.hidden = !settings.get('captions') || !(said || ahead);
      captions.scrollTop = captions.scrollHeight;
    },
    over: () => {
      if (isFile) video.pause();
      isFile = false;
      camera.close();
      captions.hidden = true;
      draw();
    },
    release: () => camera.close(),
  };
}
