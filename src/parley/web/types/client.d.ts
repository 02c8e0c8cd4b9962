/**
 * The parley client for other pages and programs: everything that does not need one of its pages.
 *
 * Each `…Client` speaks one dialect over a WebSocket. A `…Call` is a whole call with microphone and loudspeaker, and
 * `ChatTalk` is a written chat; both need a browser. docs/do/javascript-client.md shows both.
 */
export { ChatClient } from './wire/chat.js';
export { HalfDuplexClient } from './wire/half-duplex.js';
export { CONTEXT_TOKENS, DuplexClient } from './wire/duplex.js';
export { RealtimeClient } from './wire/realtime.js';
export { Connection } from './wire/connection.js';
export { makeSessionId, socketUrl } from './wire/address.js';
export { decodeBytes, decodePcm, encodeBytes, encodePcm } from './wire/codec.js';
export { HttpError, request } from './wire/http.js';
export { decodeSound, Rig, theRig } from './audio/rig.js';
export { listDevices, mediaBarrier, MediaError } from './audio/devices.js';
export { PlaybackBuffer } from './audio/jitter.js';
export { loudness } from './audio/loudness.js';
export { resample, Resampler } from './audio/resample.js';
export { encodeWav } from './audio/wav.js';
export { Captions, CaptionTrack } from './talk/captions.js';
export { ChatTalk } from './talk/chat.js';
export { Camera } from './talk/camera.js';
export { Countdown } from './talk/countdown.js';
export { Calls } from './talk/calls.js';
export { DuplexCall } from './talk/duplex.js';
export { FileFeed } from './talk/files.js';
export { HalfDuplexCall } from './talk/half-duplex.js';
export { VideoRecorder, VoiceRecorder } from './talk/recorder.js';
