/** Messages that the three older dialects share: queue, end, errors, and text in a call. */

import { Connection } from './connection.js';
import { placeOf } from './place.js';
import { reasonOf } from './reasons.js';

/** @template {import('./connection.js').ConnectionEvents} Events @extends {Connection<Events>} */
export class LegacyConnection extends Connection {
  /** True if the server accepts text and pictures in the live call; it reports this at the start. */
  canText = false;
  /** A full context is reported as an error, and `stopped` follows. */
  #isFull = false;

  /** @param {any} message @returns {boolean} true if the message was one of these */
  onShared(message) {
    switch (message.type) {
      case 'queued':
      case 'queue_update':
        this.waiting(placeOf(message));
        return true;
      case 'queue_done':
        this.assigned();
        this.onAssigned();
        return true;
      case 'input_transcript':
        this.emit('heard_text', { id: String(message.index), text: message.text, isFinal: true });
        return true;
      case 'stopped':
        this.finish(this.#isFull ? { reason: 'context_full', code: 'context_full' } : { reason: 'stopped' });
        return true;
      case 'timeout':
        this.finish({ reason: 'timeout', sentence: message.reason ?? '' });
        return true;
      case 'status':
        if (message.reason === 'voice_failed') this.emit('trouble', { code: message.reason, sentence: '' });
        return true;
      case 'error':
        this.onError({ code: message.code ?? '', sentence: message.message || message.error || '' });
        return true;
      default:
        return false;
    }
  }

  /** Processes the server's `prepared`: the conversation can start. @param {any} message */
  prepared({ audio_format: format, accepts, session_id: sessionId, recording_session_id: recordingId }) {
    this.sound.agree(format);
    this.canText = Array.isArray(accepts) && accepts.includes('input_text');
    this.ready({ sessionId, recordingId });
  }

  /**
   * Sends text, and optionally a picture, into the live call.
   * @param {string} text
   * @param {string | null} [image] base64
   */
  sendText(text, image = null) {
    this.send({ type: 'input_text', text, ...(image ? { images: [image] } : {}) });
  }

  /** Called when a worker is assigned. */
  onAssigned() {}

  /**
   * Called on an error; the close that follows shows how serious it is.
   * @param {{code: string, sentence: string}} trouble
   */
  onError({ code, sentence }) {
    this.#isFull ||= code === 'context_full';
    const reason = sentence === 'Cancelled' ? 'cancelled' : undefined;
    this.emit('trouble', { code, sentence, reason: reason ?? reasonOf(1008, code) });
    this.farewell({ code, sentence, ...(reason ? { reason } : {}) });
  }
}
