/** The buttons of a video call's picture: the camera's is one of the round buttons, the others are in "more". */

import { canShareScreen } from '../../audio/devices.js';
import { h, once, reicon, relabel } from '../../elements/dom.js';
import { buttonOf, round } from './controls.js';

/**
 * @typedef {object} Acts actions of the buttons
 * @property {import('../../talk/camera.js').Camera} camera
 * @property {import('../../elements/form.js').Settings<any>} settings
 * @property {() => void} power
 * @property {() => void} flip
 * @property {() => void} share
 * @property {() => void} full
 * @property {() => void} detail
 * @property {() => void} changed
 */

/** @param {Acts} acts */
export function makeTools({ camera, settings, power, flip, share, full, detail, changed }) {
  const turnTorch = () => {
    const torch = buttonIn(tools.torch);
    const on = torch.getAttribute('aria-pressed') !== 'true';
    torch.setAttribute('aria-pressed', String(on));
    void camera.torch(on).catch(() => {});
  };
  const turnMirror = () => {
    camera.isMirrored = !camera.isMirrored;
    changed();
  };
  const turnCaptions = () => settings.set('captions', !settings.get('captions'));
  const tools = {
    power: round('camera', 'video', 'video.off', power, 'control.camera'),
    screen: round('screen', 'screen', 'video.screen', once(share, 500), 'control.screen'),
    flip: round('flip', 'flip', 'video.flip', once(flip, 500), 'control.flip'),
    mirror: round('mirror', 'mirror', 'video.mirror', once(turnMirror, 400), 'control.mirror'),
    freeze: round('freeze', 'freeze', 'video.freeze', () => void camera.freeze(!camera.isFrozen), 'control.freeze'),
    detail: round('detail', 'plus', 'video.detail', detail, 'control.detail'),
    torch: round('torch', 'sun', 'video.torch', turnTorch, 'control.torch'),
    captions: round('captions', 'captions', 'video.captions', turnCaptions, 'control.captions'),
    whole: round('full', 'full', 'video.full', once(full, 400), 'control.full'),
  };
  buttonIn(tools.detail).replaceChildren(h('b', { class: 'small' }, 'HD'));
  tools.whole.classList.add('whole');
  tools.screen.hidden = !canShareScreen();
  return tools;
}

/** @param {HTMLElement} tool */
const buttonIn = (tool) => /** @type {HTMLButtonElement} */ (buttonOf(tool));

/** @param {ReturnType<typeof makeTools>} tools @param {Acts} acts @param {{isDetailed: boolean, isWanted: boolean}} now */
export function drawTools(tools, { camera, settings }, { isDetailed, isWanted }) {
  const power = buttonIn(tools.power);
  reicon(power, isWanted ? 'video' : 'video-off');
  relabel(power, isWanted ? 'video.off' : 'video.turn_on');
  tools.freeze.hidden = !camera.isOn;
  tools.flip.hidden = tools.mirror.hidden = !camera.isOn || camera.isScreen;
  tools.torch.hidden = !camera.hasTorch;
  const pressed = /** @type {[HTMLElement, boolean][]} */ ([
    [tools.freeze, camera.isFrozen],
    [tools.screen, camera.isScreen],
    [tools.mirror, camera.isMirrored],
    [tools.detail, isDetailed],
    [tools.captions, settings.get('captions')],
  ]);
  for (const [tool, isOn] of pressed) buttonIn(tool).setAttribute('aria-pressed', String(isOn));
}
