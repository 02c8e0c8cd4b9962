/** A finished voice call as the recording endpoints describe it (service.md 5.5 and 6). */

import { encodeWav } from '../../../src/parley/web/audio/wav.js';

const SECONDS = 8;
const RATE_HZ = 16000;

function tone(hz, seconds, active) {
  return Float32Array.from({ length: seconds * RATE_HZ }, (_, i) => {
    const t = i / RATE_HZ;
    return active(t) ? 0.4 * Math.sin(2 * Math.PI * hz * t) * (0.6 + 0.4 * Math.sin(t * 9)) : 0;
  });
}

const words = ['', '', '', 'The weather ', 'is nice today, ', 'so take a walk.', '', ''];

export function recording() {
  return {
    meta: {
      session_id: 'demo_recording',
      app_type: 'audio_duplex',
      type: 'audio_duplex',
      created_at: '2026-11-20T10:11:12Z',
      ended_at: '2026-11-20T10:11:20Z',
      duration_s: SECONDS,
      worker_id: 'worker-0',
      title: 'A walk <b>in</b> the park',
      config: { system_prompt: 'You are a friendly assistant.', reference: 'default', length_penalty: 1.05 },
    },
    recording: {
      session_id: 'demo_recording',
      mode: 'duplex',
      worker_id: 'worker-0',
      start_ts: 1795169472,
      config: {},
      merged_replay: 'merged_replay.wav',
      frontend_replay: null,
      chunks: words.map((text, index) => ({
        index,
        receive_ts_ms: index * 1000,
        user_audio: `user_audio/${String(index).padStart(3, '0')}.wav`,
        result: {
          mode: text ? 'SPEAK' : 'LISTEN',
          text,
          ai_audio: text ? `ai_audio/turn_0_chunk_${index}.wav` : undefined,
          end_of_turn: index === 5,
          timing: { wall_clock_ms: 180 + index * 7, kv_cache_length: 300 + index * 40 },
        },
      })),
    },
    wav: encodeWav([tone(220, SECONDS, (t) => t < 3), tone(330, SECONDS, (t) => t >= 3 && t < 6)], RATE_HZ),
  };
}

/** @param {import('playwright-core').Page} page */
export async function mockRecording(page) {
  const { meta, recording: timeline, wav } = recording();
  let comment = '';
  const json = (route, body) => route.fulfill({ contentType: 'application/json', body: JSON.stringify(body) });
  await page.route('**/s/demo_recording', async (route) => {
    // The server has no such recording, and says so by the status of the page.
    return route.fulfill({ response: await route.fetch(), status: 200 });
  });
  await page.route('**/api/sessions/demo_recording', (route) => json(route, meta));
  await page.route('**/api/sessions/demo_recording/recording', (route) => json(route, timeline));
  await page.route('**/api/sessions/demo_recording/comment', (route) => {
    if (route.request().method() === 'POST') comment = route.request().postDataJSON().comment;
    return json(route, { comment, status: 'ok', len: comment.length });
  });
  await page.route('**/api/sessions/demo_recording/assets/**', (route) => {
    if (route.request().url().includes('frontend_replay')) return route.fulfill({ status: 404 });
    const range = /bytes=(\d+)-(\d*)/.exec(route.request().headers().range ?? '');
    const from = range ? Number(range[1]) : 0;
    const to = range?.[2] ? Math.min(Number(range[2]), wav.length - 1) : wav.length - 1;
    return route.fulfill({
      status: range ? 206 : 200,
      contentType: 'audio/wav',
      headers: { 'accept-ranges': 'bytes', ...(range ? { 'content-range': `bytes ${from}-${to}/${wav.length}` } : {}) },
      body: Buffer.from(wav.subarray(from, to + 1)),
    });
  });
}
