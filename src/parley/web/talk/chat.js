/**
 * A written conversation. The history is stored here, and every request contains all of it.
 *
 *   idle ─send→ connecting → (queued) → prefill → generating ─done→ idle
 *
 * If an answer is cancelled, the text so far is kept and marked. A request is repeated, up to three times, only until
 * the server has responded. A chat that is too long for the model's memory continues without its oldest half. Does not
 * use the DOM.
 */

import { join } from '../audio/wav.js';
import { ChatClient } from '../wire/chat.js';
import { Emitter } from '../emitter.js';

/** @typedef {import('../wire/protocol.js').chat.Message} WireMessage */
/** @typedef {Exclude<WireMessage['content'], string>[number]} WirePart */
/**
 * A part of a message as the page stores it; `data` is base64 as sent.
 * @typedef {{type: 'text', text: string}
 *  | {type: 'image' | 'audio' | 'video', data: string, name?: string, seconds?: number}} Part
 */
/**
 * @typedef {object} ChatMessage
 * @property {string} id
 * @property {'user' | 'assistant'} role
 * @property {Part[]} parts
 * @property {boolean} [isInterrupted]
 * @property {boolean} [isLeftOut] it is not sent any more
 * @property {boolean} [leavesOut] earlier messages were left out for this answer
 * @property {string} [error] error code
 * @property {string} [why] the server's sentence about the error
 * @property {Float32Array | null} [sound] 24 kHz
 * @property {{firstMs: number | null, totalMs: number}} [timing]
 * @property {{input: number, output: number}} [tokens]
 * @property {string} [recordingId]
 * @property {number} at
 */
/**
 * @typedef {object} ChatSettings
 * @property {Part[]} system
 * @property {boolean} streaming
 * @property {boolean} voice
 * @property {string | null} ttsVoice base64
 * @property {number} maxNewTokens
 * @property {number} lengthPenalty
 * @property {number} [temperature]
 * @property {boolean} detailed
 * @property {boolean} [thinking]
 * @property {boolean} record true if the server may record it
 */
/** @typedef {'idle' | 'connecting' | 'queued' | 'prefill' | 'generating'} ChatPhase */

const newId = () => Math.random().toString(36).slice(2, 10);

/** Errors of a question that would fail again with every later one. */
const UNUSABLE = ['invalid_payload', 'too_large'];

/** A longer text is sent as several, each of whole words. The server's limit is 65,536 characters. */
const PIECE = /.{1,60000}(?!\S)|.{1,60000}/gsu;

/** @param {Part} part @returns {WirePart[]} */
function toWire(part) {
  if (part.type === 'text') return (part.text.match(PIECE) ?? []).map((text) => ({ type: 'text', text }));
  return [{ type: part.type, data: part.data }];
}

/**
 * Builds the request for the messages so far, without questions that the server could not use.
 * @param {ChatMessage[]} messages
 * @param {ChatSettings} settings
 * @returns {import('../wire/protocol.js').chat.Request}
 */
export function buildRequest(messages, settings) {
  /** @type {WireMessage[]} */
  const wire = [];
  const system = settings.system.filter((part) => part.type !== 'text' || part.text.trim());
  if (system.length > 0) wire.push({ role: 'system', content: content(system) });
  const isUsable = (/** @type {ChatMessage} */ { isLeftOut }, /** @type {number} */ i) =>
    !isLeftOut && !UNUSABLE.includes(messages[i + 1]?.error ?? '');
  for (const { role, parts, error } of messages.filter(isUsable)) {
    const said = parts.filter((part) => part.type !== 'text' || part.text);
    if (said.length > 0 && !(role === 'assistant' && error)) wire.push({ role, content: content(said) });
  }
  const hasVideo = wire.some(
    (message) => Array.isArray(message.content) && message.content.some((part) => part.type === 'video'),
  );
  return {
    messages: wire,
    streaming: settings.streaming,
    generation: {
      max_new_tokens: settings.maxNewTokens,
      length_penalty: settings.lengthPenalty,
      do_sample: true,
      ...(settings.temperature === undefined ? {} : { temperature: settings.temperature }),
    },
    image: { max_slice_nums: hasVideo || !settings.detailed ? 1 : 2 },
    omni_mode: hasVideo,
    enable_thinking: settings.thinking ?? false,
    record: settings.record,
    use_tts_template: settings.voice,
    tts: {
      enabled: settings.voice,
      mode: hasVideo ? 'omni' : 'audio_assistant',
      ref_audio_data: settings.voice ? settings.ttsVoice : null,
    },
  };
}

/**
 * Leaves out the older half of the questions with their answers. If there is only one question, which is too long by
 * itself, leaves out none of them and returns false.
 */
function leaveOutOldest(/** @type {ChatMessage[]} */ messages) {
  const asked = messages.filter(({ role, isLeftOut }) => role === 'user' && !isLeftOut);
  const first = asked.length > 1 ? messages.indexOf(asked[Math.ceil(asked.length / 2)]) : 0;
  for (const [at, message] of messages.entries()) message.isLeftOut = at < first;
  return first > 0;
}

/** @param {Part[]} parts @returns {WireMessage['content']} */
function content(parts) {
  const wire = parts.flatMap(toWire);
  return wire.length === 1 && wire[0].type === 'text' ? wire[0].text : wire;
}

/**
 * @typedef {object} ChatTalkEvents
 * @property {null} change messages or state
 * @property {{id: string}} delta an answer has grown
 * @property {{id: string, ending: import('../wire/reasons.js').Ending}} finished
 */

/** @extends {Emitter<ChatTalkEvents>} */
export class ChatTalk extends Emitter {
  /** @type {ChatMessage[]} */
  messages = [];
  /** @type {ChatPhase} */
  phase = 'idle';
  /** @type {import('../wire/place.js').Place | null} */
  queue = null;
  /** @type {ChatClient | null} */
  #client = null;

  /**
   * @param {{onSound?: (audio: Float32Array<ArrayBuffer>, id: string) => void, onSoundEnd?: (id: string) => void,
   *   now?: () => number, connection?: object}} [outside]
   */
  constructor(outside = {}) {
    super();
    this.outside = outside;
    this.now = outside.now ?? (() => performance.now());
  }

  get isBusy() {
    return this.phase !== 'idle';
  }

  #changed() {
    this.emit('change', null);
  }

  /** @param {ChatPhase} phase */
  #enter(phase) {
    this.phase = phase;
    this.#changed();
  }

  /**
   * Sends a message and requests an answer.
   * @param {Part[]} parts
   * @param {ChatSettings} settings
   */
  send(parts, settings) {
    if (this.isBusy || parts.length === 0) return;
    this.messages.push({ id: newId(), role: 'user', parts, at: Date.now() });
    this.#ask(settings);
  }

  /**
   * Replaces the message `id` and requests an answer; later messages are removed.
   * @param {string} id
   * @param {Part[]} parts
   * @param {ChatSettings} settings
   */
  resend(id, parts, settings) {
    const at = this.messages.findIndex((message) => message.id === id);
    if (this.isBusy || at < 0) return;
    this.messages.length = at;
    // A shorter chat may fit whole.
    for (const message of this.messages) message.isLeftOut = false;
    this.send(parts, settings);
  }

  /** Requests a new answer to the last message of the user. @param {ChatSettings} settings */
  regenerate(settings) {
    if (this.isBusy) return;
    while (this.messages.at(-1)?.role === 'assistant') this.messages.pop();
    if (this.messages.length > 0) this.#ask(settings);
  }

  /** @param {ChatSettings} settings @param {boolean} [leavesOut] */
  #ask(settings, leavesOut) {
    const request = buildRequest(this.messages, settings);
    /** @type {ChatMessage} */
    const answer = { id: newId(), role: 'assistant', parts: [{ type: 'text', text: '' }], at: Date.now(), sound: null };
    if (leavesOut) answer.leavesOut = true;
    this.messages.push(answer);
    const text = /** @type {{type: 'text', text: string}} */ (answer.parts[0]);
    // The page may switch to another chat before this answer is complete.
    const { messages } = this;
    const askedAt = this.now();
    /** @type {number | null} */
    let firstMs = null;
    /** @type {Float32Array[]} */
    const sounds = [];

    const client = new ChatClient(request, this.outside.connection);
    this.#client = client;
    /** @param {Float32Array<ArrayBuffer>} audio */
    const hear = (audio) => {
      if (audio.length === 0) return;
      sounds.push(audio.slice());
      this.outside.onSound?.(audio, answer.id);
    };
    this.#followState(client);
    client.on('delta', (delta) => {
      firstMs ??= this.now() - askedAt;
      text.text += delta.text;
      hear(delta.audio);
      this.emit('delta', { id: answer.id });
    });
    client.on('trouble', ({ code, sentence }) => {
      answer.error = code || 'failed';
      answer.why = sentence;
    });
    client.on('done', (done) => {
      text.text = done.text || text.text;
      firstMs ??= this.now() - askedAt;
      hear(done.audio);
      answer.tokens = { input: done.inputTokens, output: done.generatedTokens };
      answer.recordingId = done.recordingId;
      answer.isInterrupted = done.wasStopped;
    });
    client.on('ended', (ending) => {
      this.#client = null;
      this.queue = null;
      if (this.#goesOnWithout(messages, answer, settings)) return;
      answer.timing = { firstMs, totalMs: this.now() - askedAt };
      if (sounds.length > 0) answer.sound = join(sounds);
      if (ending.reason !== 'stopped') answer.error ??= ending.code || ending.reason;
      else if (!answer.tokens) answer.isInterrupted = true;
      if (!text.text && !answer.sound && answer.isInterrupted) messages.splice(messages.indexOf(answer), 1);
      this.outside.onSoundEnd?.(answer.id);
      this.emit('finished', { id: answer.id, ending });
      this.#enter('idle');
    });
    this.#enter('connecting');
    client.open();
  }

  /**
   * Asks again without the oldest messages if the chat was too long; returns false if it was not.
   * @param {ChatMessage[]} messages
   * @param {ChatMessage} answer
   * @param {ChatSettings} settings
   */
  #goesOnWithout(messages, answer, settings) {
    const isFull = answer.error === 'context_full' && answer.parts.every((part) => part.type === 'text' && !part.text);
    if (!isFull || messages !== this.messages || !leaveOutOldest(messages)) return false;
    messages.pop();
    this.#ask(settings, true);
    return true;
  }

  /** @param {ChatClient} client */
  #followState(client) {
    client.on('phase', (phase) => {
      if (phase === 'connecting' || phase === 'queued') this.#enter(phase);
      if (phase === 'assigned') this.#enter('prefill');
    });
    client.on('queue', (place) => {
      this.queue = place;
      this.#changed();
    });
    client.on('prefilled', () => this.#enter('generating'));
  }

  cancel() {
    this.#client?.cancel();
  }

  clear() {
    this.cancel();
    this.messages = [];
    this.#changed();
  }
}
