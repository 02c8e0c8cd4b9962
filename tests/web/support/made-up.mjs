/** A server made up by the test, behind /v1/realtime, and what it says. */

import { endsSecond, secondsIn } from './sound.mjs';

/** A picture: PNG. */
export const DOT = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==',
  'base64',
);

/** A second of a tone, as a server sends it. */
export const second = (size = 0.3) =>
  Buffer.from(Float32Array.from({ length: 24000 }, (_, i) => size * Math.sin(i * 0.05)).buffer).toString('base64');

/** A second in which it speaks. */
export const speaking = (text, { last = false, audio = second(), tokens = 10 } = {}) => ({
  type: 'response.output_audio.delta',
  text,
  audio,
  end_of_turn: last,
  kv_cache_length: tokens,
});

export const listening = { type: 'response.listen', kv_cache_length: 11 };

export const failed = (code, message) => ({ type: 'error', error: { code, message, type: 'server_error' } });

/**
 * @param {{accepts?: string[],
 *   onPiece?: (say: (message: object) => void, count: number) => void,
 *   onUnit?: (say: (message: object) => void, count: number, call: number) => void,
 *   onStart?: (say: (message: object) => void, call: number) => void}} how `accepts`: what it takes in a call next to
 *   sound
 * @returns its calls, each with the messages it got, its number of pieces of sound, `say` and the socket
 */
export async function madeUp(
  page,
  { accepts = [], onPiece = () => {}, onUnit = (say) => say(listening), onStart = () => {} } = {},
) {
  const calls = [];
  await page.routeWebSocket(/\/v1\/realtime/, (socket) => {
    const say = (message) => socket.send(JSON.stringify(message));
    const call = { pieces: 0, say, socket, got: [] };
    calls.push(call);
    say({ type: 'session.queue_done' });
    socket.onMessage((text) => {
      const message = JSON.parse(String(text));
      call.got.push(message);
      if (message.type === 'session.update') {
        say({ type: 'session.created', session_id: `rt_${calls.length}`, prompt_length: 1, accepts });
        onStart(say, calls.length);
      }
      if (message.type === 'input_audio_buffer.append') {
        onPiece(say, ++call.pieces);
        if (endsSecond(call.pieces)) onUnit(say, secondsIn(call.pieces), calls.length);
      }
      if (message.type === 'session.close') say({ type: 'session.closed', reason: 'stopped' });
    });
  });
  return calls;
}

/** What the page chose for each of its calls. */
export const sessionsOf = (calls) =>
  calls.flatMap(({ got }) => got.filter(({ type }) => type === 'session.update')).map(({ session }) => session);
