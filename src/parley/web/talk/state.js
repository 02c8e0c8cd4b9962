/** State of a call and its order. */

/**
 * @typedef {import('./phases.js').CallPhase} CallPhase
 * @typedef {'listening' | 'hearing' | 'thinking' | 'speaking'} Activity
 * @typedef {{kind: 'media', trouble: import('../audio/devices.js').MediaTrouble, device: 'microphone' | 'camera'}
 *   | {kind: 'page'}
 *   | {kind: 'server', code: string, sentence: string}
 *   | {kind: 'network', dropped: number}} Trouble
 * @typedef {'not_started' | import('../wire/reasons.js').Reason} EndReason
 * @typedef {{reason: EndReason, code: string, sentence: string, wasReady: boolean}} Ending
 * @typedef {ReturnType<typeof freshState>} CallState
 */

export const freshState = () => ({
  phase: /** @type {CallPhase} */ ('idle'),
  activity: /** @type {Activity} */ ('listening'),
  queue: /** @type {import('../wire/place.js').Place | null} */ (null),
  retrying: /** @type {{attempt: number} | null} */ (null),
  isMuted: false,
  isForcingListen: false,
  isSuspended: false, // the system has suspended audio
  hasLostMic: false,
  hasNoSound: false, // the microphone delivers nothing, not even silence
  isOffline: false, // the browser reports that there is no network
  isStalled: false, // nothing gets through to the server at the moment
  isReturning: false, // the connection broke, and the session is being resumed over another
  isRenewing: false, // the call reconnects because its context was full
  service: /** @type {'ok' | 'slow' | 'silent'} by the time for which an answer has been due */ ('ok'),
  waitedS: 0, // whole seconds for which an answer has been due
  sessionId: '',
  recordingId: '',
  liveSince: 0, // `now` when the conversation first became live
  trouble: /** @type {Trouble | null} */ (null),
  ending: /** @type {Ending | null} */ (null),
  hasGivenBack: false, // the user was away when their turn came, and the slot was given to the next client
});

/**
 * The part of `Rig` that a call uses.
 * @typedef {EventTarget & {
 *   open: () => Promise<void>,
 *   isHeld?: boolean,
 *   newTurn: () => number,
 *   connectMicrophone: (options?: {deviceId?: string, isStudio?: boolean}) => Promise<void>,
 *   releaseMicrophone: () => void,
 *   capture: (unitSamples: number, onUnit: (audio: Float32Array<ArrayBuffer>, final: boolean) => void) => void,
 *   stopCapture: () => Promise<void> | void,
 *   recycle: (audio: Float32Array<ArrayBuffer>) => void,
 *   mute: (on: boolean) => void,
 *   play: (turn: number, audio: Float32Array<ArrayBuffer>, last?: boolean) => void,
 *   endTurn: (turn: number) => void,
 *   flush: (fadeMs?: number) => void,
 *   duck: (on: boolean) => void,
 *   setPlaybackDelay: (ms: number) => void,
 *   unheardMs?: number,
 * }} Sound
 */

/**
 * @typedef {object} Surroundings parts of the environment that tests replace
 * @property {() => number} [now] ms
 * @property {(callback: () => void, ms: number) => any} [setTimer]
 * @property {(timer: any) => void} [clearTimer]
 * @property {EventTarget} [network] dispatches 'online' and 'offline'
 */

/** @typedef {{start: () => Promise<void>, pause: (on: boolean) => void, stop: () => Promise<Blob | null>}} Recorder */

/**
 * The order of every kind of call.
 * @typedef {object} Order
 * @property {{deviceId?: string, isStudio?: boolean} | null} microphone null if none is needed
 * @property {string} [said] what was said in the call that this one continues
 * @property {(() => Promise<Recorder>) | null} [recorder] a recording in this browser
 * @property {{ms: number, isFixed: boolean}} [delay] time for which a turn waits before it is played: the maximum, or
 *   the exact time if the user has set it
 */
