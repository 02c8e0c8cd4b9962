/**
 * Protocols of the playground: address, example messages, encoding of audio that is sent, and location of audio in
 * received messages. Values only; sockets are in `line.js`.
 *
 * In a message `$SILENCE` stands for one second of silence and `$PICTURE` for a drawing, so that it stays readable.
 */

import { Resampler } from '../../audio/resample.js';
import { decodeBytes, decodePcm, encodeBytes, encodePcm } from '../../wire/codec.js';
import { makeSessionId } from '../../wire/address.js';

/**
 * @typedef {object} Dialect
 * @property {string} id
 * @property {'chat' | 'half_duplex' | 'duplex'} kind
 * @property {boolean} isHttp one request instead of a socket
 * @property {() => string} path
 * @property {(instructions: string) => {name: string, message: object}[]} messages the first starts a session
 * @property {number} unitSamples samples of audio at 16 kHz per message; 0 if it accepts none
 * @property {() => (audio: Float32Array<ArrayBuffer>) => object} sound creates a packer of microphone audio for one
 *   session
 * @property {object | null} goodbye message that ends a session
 * @property {string} ready type of the message after which audio may be sent
 * @property {(message: any) => Float32Array<ArrayBuffer> | null} heard returns the audio in a message of the server,
 *   24 kHz
 */

const SECOND = 16000;
const HELLO = 'Hello! Who are you?';
const noSound = () => () => ({});

/**
 * Returns a packer for 24 kHz PCM16, which OpenAI's protocols use.
 * @returns {(audio: Float32Array<ArrayBuffer>) => object}
 */
function openaiSound() {
  const resampler = new Resampler(SECOND, 24000);
  return (audio) => {
    const samples = new Float32Array(resampler.maxOutput(audio.length));
    const count = resampler.process(audio, samples);
    const pcm = Int16Array.from(samples.subarray(0, count), (value) =>
      Math.round(Math.max(-1, Math.min(1, value)) * 32767),
    );
    return { type: 'input_audio_buffer.append', audio: encodeBytes(new Uint8Array(pcm.buffer)) };
  };
}

/** @param {string} text base64 of PCM16 */
function fromPcm16(text) {
  const bytes = decodeBytes(text);
  return Float32Array.from(new Int16Array(bytes.buffer, 0, bytes.length >> 1), (value) => value / 32768);
}

/** @param {string} instructions @param {string} question */
const written = (instructions, question) => [
  { role: 'system', content: instructions },
  { role: 'user', content: question },
];

/** @param {string} instructions @param {...object} parts of the question */
const asked = (instructions, ...parts) => [
  { role: 'system', content: instructions },
  { role: 'user', content: parts },
];

const PICTURE = 'data:image/jpeg;base64,$PICTURE';

/** @type {Dialect[]} */
export const DIALECTS = [
  {
    id: 'realtime',
    kind: 'duplex',
    isHttp: false,
    path: () => '/v1/realtime?mode=video',
    messages: (instructions) => [
      { name: 'begin', message: { type: 'session.update', session: { instructions, record: false } } },
      { name: 'second', message: { type: 'input_audio_buffer.append', audio: '$SILENCE' } },
      {
        name: 'picture',
        message: { type: 'input_audio_buffer.append', audio: '$SILENCE', video_frames: ['$PICTURE'] },
      },
      { name: 'hush', message: { type: 'input_audio_buffer.append', audio: '$SILENCE', force_listen: true } },
      { name: 'end', message: { type: 'session.close', reason: 'user_stop' } },
    ],
    unitSamples: SECOND,
    sound: () => (audio) => ({ type: 'input_audio_buffer.append', audio: encodePcm(audio) }),
    goodbye: { type: 'session.close', reason: 'user_stop' },
    ready: 'session.created',
    heard: ({ type, audio }) => (type === 'response.output_audio.delta' ? decodePcm(audio) : null),
  },
  {
    id: 'openai_realtime',
    kind: 'half_duplex',
    isHttp: false,
    path: () => '/v1/realtime?model=any',
    messages: (instructions) => [
      { name: 'begin', message: { type: 'session.update', session: { type: 'realtime', instructions, store: false } } },
      {
        name: 'write',
        message: {
          type: 'conversation.item.create',
          item: { type: 'message', role: 'user', content: [{ type: 'input_text', text: HELLO }] },
        },
      },
      {
        name: 'picture',
        message: {
          type: 'conversation.item.create',
          item: {
            type: 'message',
            role: 'user',
            content: [
              { type: 'input_image', image_url: PICTURE },
              { type: 'input_text', text: 'What is this?' },
            ],
          },
        },
      },
      { name: 'answer', message: { type: 'response.create' } },
      { name: 'cancel', message: { type: 'response.cancel' } },
    ],
    unitSamples: SECOND / 10,
    sound: openaiSound,
    goodbye: null,
    ready: 'session.updated',
    heard: ({ type, delta }) => (type === 'response.output_audio.delta' ? fromPcm16(delta) : null),
  },
  {
    id: 'half_duplex',
    kind: 'half_duplex',
    isHttp: false,
    path: () => `/ws/half_duplex/${makeSessionId('hdx_')}`,
    messages: (instructions) => [
      { name: 'begin', message: { type: 'prepare', system_prompt: instructions, record: false, extensions: true } },
      { name: 'write', message: { type: 'input_text', text: HELLO } },
      { name: 'picture', message: { type: 'input_text', text: 'What is this?', images: ['$PICTURE'] } },
      { name: 'second', message: { type: 'audio_chunk', audio_base64: '$SILENCE' } },
      { name: 'end', message: { type: 'stop' } },
    ],
    unitSamples: SECOND / 2,
    sound: () => (audio) => ({ type: 'audio_chunk', audio_base64: encodePcm(audio) }),
    goodbye: { type: 'stop' },
    ready: 'prepared',
    heard: ({ type, audio_data }) => (type === 'chunk' && audio_data ? decodePcm(audio_data) : null),
  },
  {
    id: 'duplex',
    kind: 'duplex',
    isHttp: false,
    path: () => `/ws/duplex/${makeSessionId('adx_')}`,
    messages: (instructions) => [
      { name: 'begin', message: { type: 'prepare', system_prompt: instructions, record: false } },
      { name: 'second', message: { type: 'audio_chunk', audio_base64: '$SILENCE' } },
      { name: 'picture', message: { type: 'audio_chunk', audio_base64: '$SILENCE', frame_base64_list: ['$PICTURE'] } },
      { name: 'pause', message: { type: 'pause', timeout: 60 } },
      { name: 'resume', message: { type: 'resume' } },
      { name: 'end', message: { type: 'stop' } },
    ],
    unitSamples: SECOND,
    sound: () => (audio) => ({ type: 'audio_chunk', audio_base64: encodePcm(audio) }),
    goodbye: { type: 'stop' },
    ready: 'prepared',
    heard: ({ type, audio_data }) => (type === 'result' && audio_data ? decodePcm(audio_data) : null),
  },
  {
    id: 'chat',
    kind: 'chat',
    isHttp: false,
    path: () => '/ws/chat',
    messages: (instructions) => [
      { name: 'ask', message: { messages: written(instructions, HELLO), record: false } },
      {
        name: 'ask_spoken',
        message: { messages: written(instructions, HELLO), tts: { enabled: true }, record: false },
      },
      {
        name: 'ask_picture',
        message: {
          messages: asked(instructions, { type: 'image', data: '$PICTURE' }, { type: 'text', text: 'What is this?' }),
          record: false,
        },
      },
      { name: 'stop', message: { type: 'stop' } },
    ],
    unitSamples: 0,
    sound: noSound,
    goodbye: null,
    ready: '',
    heard: ({ audio_data }) => (audio_data ? decodePcm(audio_data) : null),
  },
  {
    id: 'openai_chat',
    kind: 'chat',
    isHttp: true,
    path: () => '/v1/chat/completions',
    messages: (instructions) => [
      { name: 'ask', message: { model: 'any', messages: written(instructions, HELLO), store: false, stream: true } },
      { name: 'ask_whole', message: { model: 'any', messages: written(instructions, HELLO), store: false } },
      {
        name: 'ask_picture',
        message: {
          model: 'any',
          messages: asked(
            instructions,
            { type: 'image_url', image_url: { url: PICTURE } },
            { type: 'text', text: 'What is this?' },
          ),
          store: false,
        },
      },
    ],
    unitSamples: 0,
    sound: noSound,
    goodbye: null,
    ready: '',
    heard: () => null,
  },
  {
    id: 'openai_responses',
    kind: 'chat',
    isHttp: true,
    path: () => '/v1/responses',
    messages: (instructions) => [
      { name: 'ask', message: { model: 'any', instructions, input: HELLO, store: false, stream: true } },
      { name: 'ask_whole', message: { model: 'any', instructions, input: HELLO, store: false } },
      {
        name: 'ask_picture',
        message: {
          model: 'any',
          instructions,
          input: [
            {
              role: 'user',
              content: [
                { type: 'input_image', image_url: PICTURE },
                { type: 'input_text', text: 'What is this?' },
              ],
            },
          ],
          store: false,
        },
      },
    ],
    unitSamples: 0,
    sound: noSound,
    goodbye: null,
    ready: '',
    heard: () => null,
  },
];
