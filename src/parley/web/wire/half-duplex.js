/** The half-duplex dialect: the server detects turns, and the client sends audio while the server listens. */

import { makeSessionId, socketUrl } from './address.js';
import { LegacyConnection } from './legacy.js';

/** @typedef {import('./protocol.js').half_duplex.HalfDuplexPrepare} Prepare */
/** @typedef {import('./protocol.js').half_duplex.ServerMessage} ServerMessage */

/**
 * @typedef {object} HalfDuplexEvents in addition to those of `Connection`
 * @property {boolean} hearing
 * @property {{speechMs: number}} generating
 * @property {{text: string, audio: Float32Array<ArrayBuffer>}} delta
 * @property {{index: number, text: string, wasInterrupted: boolean, hasFailed: boolean}} turn
 * @property {{state: 'suspected' | 'dismissed' | 'stopped', text: string}} interruption `text`: the part of the
 *   answer that was heard
 */

/** @extends {LegacyConnection<import('./connection.js').ConnectionEvents & HalfDuplexEvents>} */
export class HalfDuplexClient extends LegacyConnection {
  /**
   * @param {Omit<Prepare, 'type'>} options
   * @param {{sessionId?: string} & import('./connection.js').Where} [where]
   */
  constructor(options, { base, token, sessionId = makeSessionId('hdx_'), ...surroundings } = {}) {
    super(socketUrl(`/ws/half_duplex/${sessionId}`, base, token), surroundings);
    this.options = options;
    this.timeoutS = 0;
  }

  get soundField() {
    return 'audio_data';
  }

  onAssigned() {
    const { asked } = this.sound;
    const config = { transcribe: true, ...this.options.config, ...(asked ? { audio_format: asked } : {}) };
    this.begin({ type: 'prepare', ...this.options, config, ...(this.asksToResume ? { resume: true } : {}) });
  }

  /** @param {ServerMessage} message */
  onMessage(message) {
    if (this.onShared(message)) return;
    switch (message.type) {
      case 'prepared':
        this.timeoutS = message.timeout_s;
        this.prepared(message);
        break;
      case 'vad_state':
        this.emit('hearing', message.speaking);
        break;
      case 'generating':
        this.emit('generating', { speechMs: message.speech_duration_ms });
        break;
      case 'chunk':
        this.emit('delta', { text: message.text_delta ?? '', audio: this.sound.come(message.audio_data) });
        break;
      case 'interruption':
        this.emit('interruption', { state: message.state, text: message.text ?? '' });
        break;
      case 'turn_done':
        this.emit('turn', {
          index: message.turn_index,
          text: message.text,
          wasInterrupted: message.interrupted ?? false,
          hasFailed: message.failed ?? false,
        });
        break;
    }
  }

  /** @param {Float32Array} audio */
  sendAudio(audio) {
    if (!this.takesUnits) return;
    this.sendUnit({ type: 'audio_chunk', audio_base64: this.sound.out(audio), ...this.sound.told }, audio);
  }

  end() {
    this.stop({ type: 'stop' });
  }
}
