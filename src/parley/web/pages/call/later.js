/** The part of a call page that is not visible at first: settings, devices, writing, messages on the wire. */

import { element, h } from '../../elements/dom.js';
import { group } from '../../elements/form.js';
import { microphoneToast } from '../../elements/notice.js';
import { mountWriting } from '../writing.js';
import { settingsPanel } from './panel.js';
import { makeTrends } from './trends.js';
import { makeWordsTools } from './words-tools.js';
import '../../elements/devices/devices.js';
import '../../elements/events/events.js';
import '../../elements/mixer/mixer.js';
import '../../elements/parts/parts.js';
import '../../elements/prompt/prompt.js';
import '../../elements/source/source.js';
import '../../elements/vad/vad.js';
import '../../elements/voice/voice.js';

export { showAfter } from './after.js';
export { makeOrder } from './order.js';

/** @typedef {import('./parts.js').CallPage} CallPage */
/** @typedef {import('../../elements/voice/voice.js').Voice} Voice */

/** @param {import('./parts.js').Parts} parts */
export function makeLater({ kind, isHalf, hasVideo, app }) {
  const later = {
    prompt: /** @type {import('../../elements/prompt/prompt.js').Prompt} */ (element('p-prompt')),
    voice: /** @type {Voice} */ (element('p-voice', { words: isHalf ? 'voice.label' : 'voice.model' })),
    ttsVoice: isHalf ? null : /** @type {Voice} */ (element('p-voice', { words: 'voice.tts', same: '' })),
    content: isHalf ? /** @type {import('../../elements/parts/parts.js').Parts} */ (element('p-parts')) : null,
    devices: /** @type {import('../../elements/devices/devices.js').Devices} */ (
      element('p-devices', { page: kind, ...(hasVideo ? { camera: '' } : {}) })
    ),
    events: /** @type {import('../../elements/events/events.js').Events} */ (element('p-events')),
    source: isHalf ? null : /** @type {import('../../elements/source/source.js').Source} */ (element('p-source')),
    vad: isHalf ? /** @type {import('../../elements/vad/vad.js').Vad} */ (element('p-vad')) : null,
  };
  if (later.source) later.source.isVideo = hasVideo;
  later.prompt.mode = kind === 'realtime' ? 'omni' : app;
  return later;
}

/** Loads the styles of these elements, none of which is visible yet. */
const STYLES = ['devices', 'events', 'mixer', 'parts', 'player', 'prompt', 'source', 'vad', 'voice'];

function loadStyles() {
  for (const name of STYLES) {
    const { href } = new URL(`../../elements/${name}/${name}.css`, import.meta.url);
    document.head.append(h('link', { rel: 'stylesheet', href }));
  }
}

/** Makes the parts that are not visible at first, and inserts them. @param {CallPage} page */
export function mountLater(page) {
  loadStyles();
  Object.assign(page, makeLater(page));
  const { calls, prompt, voice, devices } = page;
  prompt.addEventListener('voice', (event) => {
    const { sound, name } = /** @type {CustomEvent} */ (event).detail;
    if (!calls.isBusy) voice.offer(sound, name);
  });
  devices.addEventListener('device', (event) => chooseDevice(page, /** @type {CustomEvent} */ (event).detail));
  if (page.source) followMix(page, page.source);
  const panel = settingsPanel(page);
  const connection = [
    ...(page.isHalf ? [] : [makeTrends(page)]),
    page.metrics,
    group('events.title', page.kind === 'realtime', page.events),
    h('p', { class: 'small quiet', words: 'metrics.help' }),
  ];
  return { panel, connection, writing: [makeWordsTools(page), mountWriting(page)] };
}

/**
 * Shows the mixer in a call that mixes a file into the microphone.
 * @param {CallPage} page @param {import('../../elements/source/source.js').Source} source
 */
function followMix({ calls, stage }, source) {
  const mixer = /** @type {import('../../elements/mixer/mixer.js').Mixer} */ (element('p-mixer', { hidden: '' }));
  mixer.mount(source.settings);
  stage.node.append(mixer);
  const feed = () => /** @type {any} */ (calls.current)?.order?.feed ?? null;
  calls.addEventListener('change', () => {
    mixer.hidden = !calls.isOn || feed()?.source !== 'mixed';
  });
  calls.addEventListener('unit', (event) => {
    const { levels } = /** @type {CustomEvent} */ (event).detail;
    if (levels && !mixer.hidden) mixer.show(levels);
  });
  source.settings.addEventListener('change', () => {
    if (!mixer.hidden) feed().gain = source.gain();
  });
}

/** @param {CallPage} page @param {{kind: string, id: string}} device */
function chooseDevice({ calls, rig, settings, stageVideo }, { kind, id }) {
  if (kind === 'speaker') void rig.setSpeaker(id);
  if (kind === 'camera') void stageVideo?.reopen();
  if (kind !== 'microphone' || !rig.stream) return;
  const microphone = { deviceId: id || undefined, isStudio: settings.get('studio') };
  void calls.current?.useMicrophone(microphone).catch(microphoneToast);
}
