/** Settings of a call, stored per page in the browser. */

import { Settings } from '../../elements/form.js';
import { CONTEXT_TOKENS } from '../../wire/duplex.js';

/** Names of the recording formats, which `talk/recorder.js` defines. */
export const RECORD_FORMATS = ['auto', 'vp9', 'vp8', 'h264', 'mp4', 'audio'];

/** @typedef {'half_duplex' | 'audio_duplex' | 'omni' | 'realtime'} Kind */

/** Name of each of these pages on the server. */
export const APP = {
  half_duplex: 'half_duplex_audio',
  audio_duplex: 'audio_duplex',
  omni: 'omni',
  realtime: 'realtime',
};

/** @param {Kind} kind */
export function callSettings(kind) {
  return new Settings(kind, {
    dialect: kind === 'half_duplex' ? 'half' : 'realtime',
    mode: 'video',
    threshold: 0.8,
    minSpeech: 128,
    minSilence: 800,
    pad: 30,
    maxTokens: 256,
    lengthPenalty: kind === 'audio_duplex' ? 1.05 : 1.1,
    temperature: 0.7,
    voiceOn: true,
    timeout: 180,
    delay: 200,
    contextLimit: CONTEXT_TOKENS,
    studio: false,
    interrupting: /** @type {import('../../talk/barge.js').Interrupting} */ (
      kind === 'half_duplex' ? 'wait' : 'policy'
    ),
    pushToTalk: false,
    advanced: false,
    recordHere: false,
    recordFormat: 'auto',
    recordMegabits: '2',
    recordSubtitles: true,
    volume: 1,
    captions: true,
    captionHeight: 20,
    captionShade: 80,
    captionShadeTop: 30,
  });
}
