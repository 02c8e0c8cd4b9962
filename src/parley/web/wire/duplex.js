/**
 * The duplex dialect: audio in pieces of up to a second, one result per second, and a pause.
 *
 * `DuplexClient` and `RealtimeClient` speak two dialects for the same kind of call and share their events.
 */

import { makeSessionId, socketUrl } from './address.js';
import { LegacyConnection } from './legacy.js';

/** @typedef {import('./protocol.js').duplex.Prepare} Prepare */
/** @typedef {import('./protocol.js').duplex.ServerMessage} ServerMessage */
/**
 * @typedef {object} Unit
 * @property {Float32Array} audio 16 kHz, at most 16000 samples
 * @property {string[]} [frames] base64 JPEG
 * @property {boolean} [forceListen]
 * @property {number} [slices] 1 to 9
 */
/** @typedef {{allMs?: number, wallMs?: number, sentAt?: number, slices?: number, visionTokens?: number}} Costs */
/**
 * @typedef {object} UnitEvents
 * @property {{contextTokens: number, costs: Costs}} listen
 * @property {{text: string, audio: Float32Array<ArrayBuffer>, isLast: boolean, contextTokens: number, costs: Costs}} speak
 * @property {{timeoutS: number}} paused
 * @property {{}} resumed
 * @property {{state: 'suspected' | 'dismissed' | 'stopped'}} interruption
 */
/** @typedef {import('./connection.js').ConnectionEvents & UnitEvents} DuplexEvents */
/**
 * Options with which a full-duplex conversation starts.
 * @typedef {object} DuplexOptions
 * @property {string} instructions
 * @property {string | null} [voice] base64 audio that the language model hears as its voice
 * @property {string | null} [ttsVoice] base64 audio that the vocoder imitates; `voice` if absent
 * @property {number} [slices]
 * @property {import('./protocol.js').duplex.DuplexConfig} [config]
 * @property {boolean} [record]
 * @property {import('./protocol.js').duplex.InterruptionOptions} [interruption] what the server does if the user
 *   speaks while the assistant is speaking; nothing by default
 */

/** @template M @template {keyof M} F @typedef {Omit<M, F> & Record<F, string | Uint8Array | Promise<Uint8Array>>} WithSound */

export const UNIT_SAMPLES = 16000;

/** Returns what a unit cost. @param {any} message @returns {Costs} */
export const costsOf = (message) => ({
  allMs: message.cost_all_ms,
  wallMs: message.wall_clock_ms,
  sentAt: message.server_send_ts,
  slices: message.vision_slices,
  visionTokens: message.vision_tokens,
});

/** Maximum number of tokens in a context. Source: service.md 4.5. */
export const CONTEXT_TOKENS = 8192;

/** @extends {LegacyConnection<DuplexEvents>} */
export class DuplexClient extends LegacyConnection {
  canPause = true;

  /**
   * @param {DuplexOptions} options
   * @param {'audio' | 'video'} mode
   * @param {import('./connection.js').Where} [where]
   */
  constructor(options, mode, { base, token, ...surroundings } = {}) {
    const id = makeSessionId(mode === 'audio' ? 'adx_' : 'omni_');
    super(socketUrl(`/ws/duplex/${id}`, base, token), surroundings);
    this.options = options;
    this.ownId = id;
  }

  get soundField() {
    return 'audio_data';
  }

  onAssigned() {
    const { instructions, voice, ttsVoice, slices = 1, config, record, interruption } = this.options;
    /** @type {Prepare} */
    const prepare = { type: 'prepare', system_prompt: instructions, max_slice_nums: slices, config, transcribe: true };
    if (interruption) prepare.interruption = interruption;
    if (voice) prepare.ref_audio_base64 = voice;
    if (ttsVoice) prepare.tts_ref_audio_base64 = ttsVoice;
    if (record === false) prepare.record = false;
    if (this.sound.asked) prepare.audio_format = this.sound.asked;
    if (this.asksToResume) prepare.resume = true;
    this.begin(prepare);
  }

  /** @param {ServerMessage} message */
  onMessage(message) {
    if (this.onShared(message)) return;
    switch (message.type) {
      case 'prepared':
        this.prepared({ ...message, session_id: message.session_id || this.ownId });
        break;
      case 'result': {
        const costs = costsOf(message);
        const contextTokens = message.kv_cache_length;
        if (message.is_listen) this.emit('listen', { contextTokens, costs });
        else
          this.emit('speak', {
            text: message.text,
            audio: this.sound.come(message.audio_data),
            isLast: message.end_of_turn,
            contextTokens,
            costs,
          });
        break;
      }
      case 'interruption':
        this.emit('interruption', { state: message.state });
        break;
      case 'paused':
        this.emit('paused', { timeoutS: message.timeout });
        break;
      case 'resumed':
        this.emit('resumed', {});
        break;
    }
  }

  /** @param {Unit} unit */
  sendUnitOf({ audio, frames, forceListen, slices }) {
    if (!this.takesUnits) return;
    /** @type {WithSound<import('./protocol.js').duplex.AudioChunk, 'audio_base64'>} */
    const message = { type: 'audio_chunk', audio_base64: this.sound.out(audio), ...this.sound.told };
    if (frames?.length) message.frame_base64_list = frames;
    if (forceListen) message.force_listen = true;
    if (slices) message.max_slice_nums = slices;
    this.sendUnit(message, audio);
  }

  pause() {
    this.send({ type: 'pause' });
  }

  resume() {
    this.send({ type: 'resume' });
  }

  /** @param {object} metrics */
  diagnose(metrics) {
    if (this.phase === 'ready') this.send({ type: 'client_diagnostic', metrics });
  }

  end() {
    this.stop({ type: 'stop' });
  }
}
