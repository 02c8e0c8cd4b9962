/** One page for `/audio_duplex`, `/omni` (on phones also `/mobile-omni/`) and `/realtime`. */

import { mountCall } from './call.js';

const kinds = /** @type {const} */ ({ '/audio_duplex': 'audio_duplex', '/omni': 'omni', '/mobile-omni': 'omni', '/realtime': 'realtime' });

void mountCall(kinds[/** @type {keyof typeof kinds} */ (location.pathname.replace(/\/$/, ''))] ?? 'audio_duplex');
