/** What `parley-client` exports. The parts for pages are typed in JSDoc, in `audio/` and `talk/`. */
export * from './index.js';

export const decodeSound: any, Rig: any, theRig: any;
export const listDevices: any, mediaBarrier: any, MediaError: any;
export const PlaybackBuffer: any, loudness: any, resample: any, Resampler: any, encodeWav: any;
export const Captions: any, CaptionTrack: any, ChatTalk: any, Camera: any, Countdown: any;
export const DuplexTalk: any, FileFeed: any, HalfDuplexTalk: any, VideoRecorder: any, VoiceRecorder: any;
