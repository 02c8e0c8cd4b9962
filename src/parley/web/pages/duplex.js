/** One page for `/audio_duplex`, `/omni` (on phones also `/mobile-omni/`) and `/realtime`. */

import { DuplexCall } from '../talk/duplex.js';
import { here } from '../wire/root.js';
import { mountCall } from './call.js';
import { mountStageVideo } from './stage-video.js';

const kinds = /** @type {const} */ ({
  '/audio_duplex': 'audio_duplex',
  '/omni': 'omni',
  '/mobile-omni': 'omni',
  '/realtime': 'realtime',
});

void mountCall(kinds[/** @type {keyof typeof kinds} */ (here().replace(/(\.html|\/)$/, ''))] ?? 'audio_duplex', {
  CallOfKind: DuplexCall,
  mountStageVideo,
});
