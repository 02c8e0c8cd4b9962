/** The realtime dialect: full duplex on `/v1/realtime`. Events as in duplex.js. */

import { socketUrl } from './address.js';
import { Connection } from './connection.js';
import { costsOf } from './duplex.js';
import { placeOf } from './place.js';

/** @typedef {import('./protocol.js').realtime.ServerMessage} ServerMessage */
/** @typedef {import('./duplex.js').Unit} Unit */

/** Maximum seconds of a session, including the time in the queue. Source: service.md 4.5. */
const LIMIT_S = { video: 300, audio: 600 };
/** Those of the other dialects; this one refuses empty ones. */
const DEFAULT_INSTRUCTIONS = 'You are a helpful assistant.';

/**
 * Transcript of the user's speech, with the event names of OpenAI's realtime interface. Only servers that transcribe
 * send it.
 * @typedef {{type: 'conversation.item.input_audio_transcription.delta' |
 *   'conversation.item.input_audio_transcription.completed', item_id?: string, delta?: string,
 *   transcript?: string}} Transcript
 */

/** @extends {Connection<import('./duplex.js').DuplexEvents>} */
export class RealtimeClient extends Connection {
  /** The protocol has no message for a pause: to pause, the client stops sending. */
  canPause = false;
  /** True if the server accepts text and pictures in the live call; it reports this at the start. */
  canText = false;

  /**
   * @param {import('./duplex.js').DuplexOptions} options
   * @param {'audio' | 'video'} mode
   * @param {import('./connection.js').Where} [where]
   */
  constructor(options, mode, { base, token, ...surroundings } = {}) {
    super(socketUrl(`/v1/realtime?mode=${mode}`, base, token), surroundings);
    this.options = options;
    this.mode = mode;
    /** @type {number | null} */
    this.limitS = LIMIT_S[mode];
  }

  /** Text so far of the user's utterances, by id. @type {Map<string, string>} */
  #heard = new Map();

  /** @param {ServerMessage | Transcript} message */
  onMessage(message) {
    switch (message.type) {
      case 'session.queued':
      case 'session.queue_update':
        this.waiting(placeOf(message));
        break;
      case 'session.queue_done':
        this.assigned();
        this.#update();
        break;
      case 'session.created':
        this.sound.agree(message.audio_format);
        this.canText = message.accepts?.includes('input_text') ?? false;
        this.ready({ sessionId: message.session_id, recordingId: message.recording_session_id });
        break;
      case 'response.listen':
        this.emit('listen', { contextTokens: message.kv_cache_length, costs: costsOf(message) });
        break;
      case 'response.output_audio.delta':
        this.emit('speak', {
          text: message.text,
          audio: this.sound.come(message.audio),
          isLast: message.end_of_turn,
          contextTokens: message.kv_cache_length,
          costs: costsOf(message),
        });
        break;
      case 'response.interruption':
        this.emit('interruption', { state: message.state });
        break;
      case 'conversation.item.input_audio_transcription.delta':
      case 'conversation.item.input_audio_transcription.completed':
        this.#transcript(message);
        break;
      case 'session.status':
        if (message.reason === 'voice_failed') this.emit('trouble', { code: message.reason, sentence: '' });
        break;
      case 'session.closed':
        this.#closed(message.reason);
        break;
      case 'error': {
        const { code, message: sentence } = message.error;
        this.emit('trouble', { code, sentence });
        this.farewell({ code, sentence });
        break;
      }
    }
  }

  /**
   * Processes a transcript of the user's speech, from servers that transcribe.
   * @param {any} message
   */
  #transcript({ type, item_id: id = '', delta = '', transcript = '' }) {
    const isFinal = type.endsWith('.completed');
    const text = isFinal ? transcript : (this.#heard.get(id) ?? '') + delta;
    this.#heard.set(id, text);
    this.emit('heard_text', { id, text, isFinal });
  }

  /**
   * Sends text, and optionally a picture, into the live call.
   * @param {string} text
   * @param {string | null} [image] base64 JPEG
   */
  sendText(text, image = null) {
    const picture = image ? [{ type: 'input_image', image_url: `data:image/jpeg;base64,${image}` }] : [];
    const content = [...picture, { type: 'input_text', text }];
    this.send({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content } });
  }

  get soundField() {
    return 'audio';
  }

  #update() {
    const { instructions, voice, ttsVoice, slices = 1, config, record, interruption } = this.options;
    /** @type {import('./protocol.js').realtime.SessionOptions} */
    const session = { instructions: instructions || DEFAULT_INSTRUCTIONS, max_slice_nums: slices, transcribe: true };
    if (voice) session.ref_audio = voice;
    if (ttsVoice) session.tts_ref_audio = ttsVoice;
    if (config) session.voice_config = config;
    if (interruption) session.interruption = interruption;
    if (record === false) session.record = false;
    if (this.sound.asked) session.audio_format = this.sound.asked;
    if (this.asksToResume) session.resume = true;
    this.begin({ type: 'session.update', session });
  }

  /** @param {string} reason */
  #closed(reason) {
    const known = /** @type {const} */ (['stopped', 'timeout', 'context_full', 'server_shutdown']).find(
      (word) => word === reason,
    );
    this.finish({ reason: known ?? 'failed', code: reason });
  }

  /** @param {Unit} unit */
  sendUnitOf({ audio, frames, forceListen, slices }) {
    if (!this.takesUnits) return;
    /** @type {import('./duplex.js').WithSound<import('./protocol.js').realtime.Append, 'audio'>} */
    const message = { type: 'input_audio_buffer.append', audio: this.sound.out(audio), ...this.sound.told };
    if (frames?.length) message.video_frames = frames;
    if (forceListen) message.force_listen = true;
    if (slices) message.max_slice_nums = slices;
    this.sendUnit(message, audio);
  }

  pause() {}

  resume() {}

  /** @param {object} _metrics */
  diagnose(_metrics) {}

  end() {
    this.stop({ type: 'session.close', reason: 'user_stop' });
  }
}
