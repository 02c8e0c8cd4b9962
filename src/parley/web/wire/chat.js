/** The chat dialect: one request, one streamed answer, one connection. */

import { decodePcm } from './codec.js';
import { socketUrl } from './address.js';
import { LegacyConnection } from './legacy.js';

/** @typedef {import('./protocol.js').chat.Request} Request */
/** @typedef {import('./protocol.js').chat.ServerMessage} ServerMessage */

/**
 * @typedef {object} ChatEvents in addition to those of `Connection`
 * @property {{inputTokens: number}} prefilled
 * @property {{text: string, audio: Float32Array<ArrayBuffer>}} delta
 * @property {{text: string, audio: Float32Array<ArrayBuffer>, inputTokens: number, generatedTokens: number,
 *   recordingId: string, wasStopped: boolean}} done
 */

/** @extends {LegacyConnection<import('./connection.js').ConnectionEvents & ChatEvents>} */
export class ChatClient extends LegacyConnection {
  /** Short pauses: the user has just pressed send and is waiting. */
  retryMs = [400, 400, 400];

  /**
   * @param {Request} request
   * @param {import('./connection.js').Where} [options]
   */
  constructor(request, { base, token, ...surroundings } = {}) {
    super(socketUrl('/ws/chat', base, token), surroundings);
    this.request = request;
    this.text = '';
  }

  get mayRetry() {
    return this.phase === 'connecting' || this.phase === 'queued';
  }

  onOpen() {
    this.send(this.request);
  }

  /** @param {ServerMessage} message */
  onMessage(message) {
    if (this.onShared(message)) return;
    switch (message.type) {
      case 'prefill_done':
        this.assigned();
        this.emit('prefilled', { inputTokens: message.input_tokens });
        break;
      case 'chunk':
        this.text += message.text_delta ?? '';
        this.emit('delta', { text: message.text_delta ?? '', audio: decodePcm(message.audio_data) });
        break;
      case 'done':
        this.ready({ sessionId: message.recording_session_id ?? 'chat', recordingId: message.recording_session_id });
        this.emit('done', {
          text: message.text,
          audio: decodePcm(message.audio_data),
          inputTokens: message.input_tokens,
          generatedTokens: message.generated_tokens,
          recordingId: message.recording_session_id ?? '',
          wasStopped: message.stopped ?? false,
        });
        this.finish({ reason: 'stopped' });
        break;
    }
  }

  /** Stops the answer; the text and audio so far arrive as `done`. */
  cancel() {
    this.stop({ type: 'stop' });
  }
}
