/** Microphones, loudspeakers and cameras: lists them, opens them and reports why one cannot be opened. */

/** @typedef {'insecure' | 'unsupported' | 'denied' | 'missing' | 'in_use' | 'failed'} MediaTrouble */

/** Raised if a device cannot be opened; `trouble` is one of a few reasons that a page can explain. */
export class MediaError extends Error {
  /**
   * @param {MediaTrouble} trouble
   * @param {'microphone' | 'camera'} device
   * @param {unknown} [cause]
   */
  constructor(trouble, device, cause) {
    super(`${device}: ${trouble}`, { cause });
    this.name = 'MediaError';
    this.trouble = trouble;
    this.device = device;
  }
}

/** @param {unknown} error @param {'microphone' | 'camera'} device */
export function toMediaError(error, device) {
  if (error instanceof MediaError) return error;
  const name = error instanceof Error || error instanceof DOMException ? error.name : '';
  /** @type {Record<string, MediaTrouble>} */
  const troubles = {
    NotAllowedError: 'denied',
    SecurityError: 'denied',
    NotFoundError: 'missing',
    OverconstrainedError: 'missing',
    NotReadableError: 'in_use',
    AbortError: 'in_use',
  };
  return new MediaError(troubles[name] ?? 'failed', device, error);
}

/** Returns why no device can be requested here; null if devices can be requested. @returns {MediaTrouble | null} */
export function mediaBarrier() {
  if (!globalThis.isSecureContext) return 'insecure';
  if (!navigator.mediaDevices?.getUserMedia || typeof AudioWorkletNode === 'undefined') return 'unsupported';
  return null;
}

/**
 * Opens the chosen microphone if it is still connected, otherwise any.
 * @param {{deviceId?: string, isStudio?: boolean}} [options] isStudio: no processing, for users with headphones and a
 *   good microphone
 * @returns {Promise<MediaStream>}
 */
export async function openMicrophone({ deviceId, isStudio = false } = {}) {
  const barrier = mediaBarrier();
  if (barrier) throw new MediaError(barrier, 'microphone');
  const clean = !isStudio;
  /** @type {MediaTrackConstraints} */
  const wanted = { channelCount: 1, echoCancellation: clean, noiseSuppression: clean, autoGainControl: clean };
  return await openOrAny({ audio: wanted }, 'audio', deviceId, 'microphone');
}

/**
 * @param {{deviceId?: string, facing?: 'user' | 'environment', isDetailed?: boolean}} [options]
 * @returns {Promise<MediaStream>}
 */
export async function openCamera({ deviceId, facing = 'user', isDetailed = false } = {}) {
  const barrier = mediaBarrier();
  if (barrier) throw new MediaError(barrier, 'camera');
  const width = isDetailed ? 1920 : 1280;
  const video = { facingMode: facing, width: { ideal: width }, height: { ideal: (width * 9) / 16 } };
  return await openOrAny({ video }, 'video', deviceId, 'camera');
}

/** True if this device can share a screen or window in place of a camera; phones cannot. */
export function canShareScreen() {
  return globalThis.isSecureContext && typeof navigator.mediaDevices?.getDisplayMedia === 'function';
}

/** Opens a screen, a window or a tab; the browser asks the user which. @returns {Promise<MediaStream>} */
export async function openScreen() {
  try {
    // The model sees one picture a second, so a low frame rate is enough.
    return await navigator.mediaDevices.getDisplayMedia({ video: { frameRate: { ideal: 5 } }, audio: false });
  } catch (error) {
    throw toMediaError(error, 'camera');
  }
}

/**
 * @param {MediaStreamConstraints} constraints
 * @param {'audio' | 'video'} kind
 * @param {string | undefined} deviceId
 * @param {'microphone' | 'camera'} device
 */
async function openOrAny(constraints, kind, deviceId, device) {
  const any = /** @type {MediaTrackConstraints} */ (constraints[kind]);
  if (deviceId) {
    try {
      return await navigator.mediaDevices.getUserMedia({ [kind]: { ...any, deviceId: { exact: deviceId } } });
    } catch (error) {
      // The device has been unplugged since it was chosen: use any other. All other errors are reported.
      if (toMediaError(error, device).trouble !== 'missing') throw toMediaError(error, device);
    }
  }
  try {
    return await navigator.mediaDevices.getUserMedia(constraints);
  } catch (error) {
    throw toMediaError(error, device);
  }
}

/** @param {MediaStream | null | undefined} stream */
export function release(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

/** @typedef {{id: string, label: string}} Device */

/**
 * Lists the devices. Browsers provide labels only after a permission was granted; until then a device has a number.
 * @returns {Promise<{microphones: Device[], speakers: Device[], cameras: Device[]}>}
 */
export async function listDevices() {
  const all = (await navigator.mediaDevices?.enumerateDevices?.()) ?? [];
  const of = (/** @type {MediaDeviceKind} */ kind) =>
    all
      .filter((device) => device.kind === kind && device.deviceId)
      .map((device, index) => ({ id: device.deviceId, label: device.label || `${index + 1}` }));
  return { microphones: of('audioinput'), speakers: of('audiooutput'), cameras: of('videoinput') };
}

/** True if this browser can play to a chosen loudspeaker. */
export function canChooseSpeaker() {
  return (
    'setSinkId' in (globalThis.AudioContext?.prototype ?? {}) ||
    'setSinkId' in (globalThis.HTMLMediaElement?.prototype ?? {})
  );
}
