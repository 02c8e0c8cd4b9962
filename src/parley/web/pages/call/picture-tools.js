/** The buttons of a video call's picture. */

import { canShareScreen } from '../../audio/devices.js';
import { h, once, reicon, relabel } from '../../elements/dom.js';

/**
 * @typedef {object} Acts what the buttons do
 * @property {import('../../talk/camera.js').Camera} camera
 * @property {import('../../elements/form.js').Settings<any>} settings
 * @property {() => void} turnOn
 * @property {() => void} flip
 * @property {() => void} share
 * @property {() => void} full
 * @property {() => void} detail
 * @property {() => void} changed
 */

/** @param {string} name @param {string} label @param {() => void} act */
const tool = (name, label, act) =>
  h('button', { class: 'round glass', type: 'button', icon: name, label, onclick: act });

/** @param {Acts} acts */
export function makeTools({ camera, settings, turnOn, flip, share, full, detail, changed }) {
  const turnTorch = () => {
    const on = tools.torch.getAttribute('aria-pressed') !== 'true';
    tools.torch.setAttribute('aria-pressed', String(on));
    void camera.torch(on).catch(() => {});
  };
  const turnMirror = () => {
    camera.isMirrored = !camera.isMirrored;
    changed();
  };
  const tools = {
    power: tool('video', 'video.off', () => (camera.isOn ? camera.close() : turnOn())),
    flip: tool('flip', 'video.flip', once(flip, 500)),
    mirror: tool('mirror', 'video.mirror', once(turnMirror, 400)),
    freeze: tool('freeze', 'video.freeze', () => void camera.freeze(!camera.isFrozen)),
    detail: tool('plus', 'video.detail', detail),
    torch: tool('sun', 'video.torch', turnTorch),
    screen: tool('screen', 'video.screen', once(share, 500)),
    subtitles: tool('captions', 'video.captions', () => settings.set('captions', !settings.get('captions'))),
    whole: tool('full', 'video.full', once(full, 400)),
  };
  tools.detail.replaceChildren(h('b', { class: 'small' }, 'HD'));
  tools.whole.classList.add('whole');
  for (const button of [tools.detail, tools.subtitles, tools.whole]) button.classList.add('with-picture');
  tools.screen.hidden = !canShareScreen();
  return tools;
}

/** @param {ReturnType<typeof makeTools>} tools @param {Acts} acts @param {boolean} isDetailed */
export function drawTools(tools, { camera, settings }, isDetailed) {
  reicon(tools.power, camera.isOn ? 'video' : 'video-off');
  relabel(tools.power, camera.isOn ? 'video.off' : 'video.turn_on');
  for (const button of [tools.flip, tools.mirror, tools.freeze]) button.disabled = !camera.isOn;
  if (camera.isScreen) tools.flip.disabled = tools.mirror.disabled = true;
  tools.torch.hidden = !camera.hasTorch;
  const pressed = /** @type {[HTMLElement, boolean][]} */ ([
    [tools.freeze, camera.isFrozen],
    [tools.screen, camera.isScreen],
    [tools.mirror, camera.isMirrored],
    [tools.detail, isDetailed],
    [tools.subtitles, settings.get('captions')],
  ]);
  for (const [button, isOn] of pressed) button.setAttribute('aria-pressed', String(isOn));
}
