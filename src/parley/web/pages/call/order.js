/**
 * The order of a call, built from the controls of the page. Everything that takes time to determine is awaited here.
 */

import { MediaError, mediaBarrier } from '../../audio/devices.js';
import { mayBegin, mayRecord } from '../../elements/consent.js';
import { toast } from '../../elements/dom.js';
import { interruptionOf } from '../../talk/barge.js';
import { t } from '../../words/words.js';

/** @typedef {import('./parts.js').CallPage} CallPage */
/** @typedef {{base: string | null, limitsS: Record<string, number>}} Server */

/**
 * @param {CallPage} page
 * @param {{server: () => Promise<Server>, said: string, signal: AbortSignal}} around
 * @returns {Promise<any>} an order; null if the user has to do something first, which the page shows
 * @throws {MediaError} no microphone can be requested here
 */
export async function makeOrder(page, { server, said, signal }) {
  const { rig, settings, devices, voice, ttsVoice, prompt } = page;
  const barrier = mediaBarrier();
  if (barrier) throw new MediaError(barrier, 'microphone');
  if (page.source?.isFile && !page.source.feed()) {
    page.openSide('settings', true);
    toast('source.none');
    return null;
  }
  const wantsSound = page.source?.isFile && page.source.sound === 'file' ? null : 'microphone';
  if (!(await mayBegin({ microphone: wantsSound !== null, camera: page.hasVideo && !page.source?.isFile, signal })))
    return null;
  for (const part of [prompt, voice, ttsVoice]) await part?.ready();
  const known = await server();
  if (signal.aborted) return null;
  page.notices.replaceChildren();
  rig.setVolume(settings.get('volume'));
  void rig.setSpeaker(devices.chosen('speaker') ?? '');
  const common = {
    microphone: wantsSound && { deviceId: devices.chosen('microphone'), isStudio: settings.get('studio') },
    said,
    delay: { ms: settings.get('delay'), isFixed: settings.isChosen('delay') },
    recorder: settings.get('recordHere') ? () => recorder(page) : null,
  };
  if (page.isHalf) return halfDuplex(page, common);
  const order = await duplex(page, common, known);
  // The camera may have been allowed after the user had cancelled the call.
  if (signal.aborted && !page.calls.isBusy) page.stageVideo?.over();
  return order;
}

/** Returns the instructions, followed by what was said before. @param {string} text @param {string} said */
const instructed = (text, said) => (said ? `${text}\n\n${t('call.carried')}\n${said}` : text);

/** @param {CallPage} page @param {object} common */
function halfDuplex({ settings, prompt, voice, content }, common) {
  const config = {
    vad: {
      threshold: settings.get('threshold'),
      min_speech_duration_ms: settings.get('minSpeech'),
      min_silence_duration_ms: settings.get('minSilence'),
      speech_pad_ms: settings.get('pad'),
    },
    generation: {
      max_new_tokens: settings.get('maxTokens'),
      length_penalty: settings.get('lengthPenalty'),
      temperature: settings.get('temperature'),
    },
    tts: { enabled: settings.get('voiceOn') },
    session: { timeout_s: settings.get('timeout') },
    interruption: interruptionOf(settings.get('interrupting')),
  };
  const text = (/** @type {string} */ words) => ({ type: /** @type {const} */ ('text'), text: words });
  const own = settings.get('advanced') && content?.parts.length ? content.parts : null;
  /** @param {string} said */
  const who = (said) => {
    if (own) return { system_content: said ? [...own, text(instructed('', said))] : own };
    const words = instructed(prompt.text, said);
    if (!voice.data) return { system_prompt: words };
    const sound = { type: /** @type {const} */ ('audio'), data: voice.data };
    return { system_content: [text(t('prompt.imitate')), sound, text(words)] };
  };
  const record = mayRecord();
  return {
    ...common,
    isPushToTalk: settings.get('pushToTalk'),
    mayInterrupt: settings.get('interrupting') !== 'wait',
    trailingMs: settings.get('minSilence') + 700,
    options: (/** @type {string} */ said) => ({ ...who(said), record, config }),
  };
}

/** @param {CallPage} page @param {object} common @param {Server} server */
async function duplex(page, common, { base, limitsS }) {
  const { kind, settings, source, stageVideo, prompt, voice, ttsVoice } = page;
  const dialect = settings.get('dialect') === 'duplex' && kind !== 'realtime' ? 'duplex' : 'realtime';
  const isVideo = kind === 'omni' || (kind === 'realtime' && settings.get('mode') === 'video');
  const mode = isVideo ? 'video' : 'audio';
  const feed = source?.feed() ?? null;
  if (isVideo && !feed && !(await stageVideo?.ready())) return null;
  if (feed) stageVideo?.showFile(source?.url ?? '', source?.monitor ?? 0.3, source?.sound ?? 'file');
  const record = mayRecord();
  return {
    ...common,
    dialect,
    mode,
    ...(base ? { connection: { base } } : {}),
    ...(dialect === 'realtime' && mode in limitsS ? { limitS: limitsS[mode] } : {}),
    sound: source?.sound ?? 'mic',
    feed,
    frame: isVideo && stageVideo ? () => stageVideo.frame() : null,
    slices: isVideo && stageVideo ? () => stageVideo.slices() : undefined,
    options: (/** @type {string} */ said) => ({
      instructions: instructed(prompt.text, said),
      voice: voice.data,
      ttsVoice: ttsVoice?.isSame ? null : (ttsVoice?.data ?? null),
      slices: stageVideo?.slices() ?? 1,
      config: { length_penalty: settings.get('lengthPenalty') },
      interruption: interruptionOf(settings.get('interrupting')),
      record,
    }),
  };
}

/** @param {CallPage} page */
async function recorder({ rig, settings, hasVideo, stageVideo }) {
  const { VideoRecorder, VoiceRecorder } = await import('../../talk/recorder.js');
  if (!hasVideo || !stageVideo?.isOn() || settings.get('recordFormat') === 'audio') return new VoiceRecorder(rig);
  return new VideoRecorder(rig, stageVideo.video, {
    format: settings.get('recordFormat'),
    megabits: Number(settings.get('recordMegabits')),
    subtitle: settings.get('recordSubtitles') ? () => stageVideo.subtitle() : null,
  });
}
