import assert from 'node:assert/strict';
import { test } from 'node:test';

import { chosenApi } from '../../../src/parley/web/wire/api.js';
import { decodePcm, encodeBlob, encodePcm } from '../../../src/parley/web/wire/codec.js';
import { goodbyeUrl, makeSessionId, socketUrl, unreachable } from '../../../src/parley/web/wire/address.js';
import { reasonOf } from '../../../src/parley/web/wire/reasons.js';
import { HalfDuplexClient } from '../../../src/parley/web/wire/half-duplex.js';
import { RealtimeClient } from '../../../src/parley/web/wire/realtime.js';
import { DuplexClient } from '../../../src/parley/web/wire/duplex.js';
import { ChatClient } from '../../../src/parley/web/wire/chat.js';
import { Backlog } from '../../../src/parley/web/wire/backlog.js';
import { request } from '../../../src/parley/web/wire/http.js';
import { fakeCodecs, settle, sound, surroundings } from '../support/fakes.mjs';

const NEEDS_SOCKETS = { skip: 'WebSocket' in globalThis ? false : 'this Node has no WebSocket' };
const once = (target, type) => new Promise((resolve) => target.addEventListener(type, resolve, { once: true }));

function watch(client, ...types) {
  const seen = [];
  for (const type of types) client.addEventListener(type, ({ detail }) => seen.push([type, detail]));
  return seen;
}

test('samples survive the way through text, at any length', () => {
  for (const count of [0, 1, 16000, 50001]) {
    const samples = Float32Array.from({ length: count }, (_, i) => Math.sin(i));
    assert.deepEqual(decodePcm(encodePcm(samples)), samples);
  }
});

test('the code does the same without native base64', () => {
  const samples = Float32Array.from({ length: 20001 }, (_, i) => Math.sin(i));
  assert.equal(encodePcm(samples), Buffer.from(samples.buffer).toString('base64'));
});

test('a film becomes text in steps, between which a browser does other things', async (t) => {
  const bytes = Buffer.alloc(4_000_001);
  for (let i = 0; i < bytes.length; i++) bytes[i] = (i * 31) >> 3;
  const film = new Blob([bytes]);
  const slice = t.mock.method(film, 'slice');
  assert.ok((await encodeBlob(film)) === bytes.toString('base64'), 'the same bytes');
  const sizes = slice.mock.calls.map(({ result }) => result?.size ?? 0);
  assert.ok(Math.max(...sizes) <= 2_000_000, `steps of ${sizes}`);
  assert.equal(
    sizes.reduce((sum, size) => sum + size, 0),
    bytes.length,
  );
  assert.equal(await encodeBlob(new Blob([])), '');
});

test('a damaged sound loses its odd bytes, and nonsense is silence', (t) => {
  t.mock.method(console, 'warn', () => {});
  assert.equal(decodePcm(Buffer.from([0, 0, 0, 0, 1]).toString('base64')).length, 1);
  assert.equal(decodePcm('§').length, 0);
  assert.equal(decodePcm(null).length, 0);
});

test('addresses keep the host and become sockets', () => {
  assert.equal(socketUrl('/ws/chat', 'https://a.test:8006'), 'wss://a.test:8006/ws/chat?extensions=true');
  assert.equal(
    socketUrl('/v1/realtime?mode=audio', 'http://a.test'),
    'ws://a.test/v1/realtime?mode=audio&extensions=true',
  );
  assert.equal(socketUrl('/ws/chat', 'localhost:8006'), 'wss://localhost:8006/ws/chat?extensions=true');
  assert.match(makeSessionId('hdx_'), /^hdx_[0-9a-z]{15,40}$/);
});

test('a path before the server is kept, and a key goes along', () => {
  const url = new URL(socketUrl('/ws/chat', 'https://a.test/parley/', 'pk_1&2'));
  assert.equal(url.pathname, '/parley/ws/chat');
  assert.equal(url.searchParams.get('token'), 'pk_1&2');
  const where = { ...surroundings().connection, base: 'https://a.test', token: 'pk_1' };
  for (const client of [
    new ChatClient({ messages: [] }, where),
    new HalfDuplexClient({}, where),
    new DuplexClient({ instructions: '' }, 'audio', where),
    new RealtimeClient({ instructions: '' }, 'audio', where),
  ])
    assert.equal(new URL(client.url).searchParams.get('token'), 'pk_1');
});

test('the client says within seconds that a server is not there, and what to look at', NEEDS_SOCKETS, async () => {
  const chat = new ChatClient({ messages: [] }, { base: 'https://127.0.0.1:9' });
  const retrying = once(chat, 'retrying');
  const ended = once(chat, 'ended');
  const began = Date.now();
  chat.open();
  const first = (await retrying).detail;
  assert.match(first.sentence, /^No connection to wss:\/\/127\.0\.0\.1:9\/ws\/chat\..*NODE_EXTRA_CA_CERTS/);
  const { detail } = await ended;
  assert.equal(detail.reason, 'lost');
  assert.equal(detail.sentence, first.sentence);
  assert.ok(Date.now() - began < 9000, 'long before an open would have been given up');
});

test('the end names the setting that lets a page of another site in; the own pages have their own words', (t) => {
  Object.assign(globalThis, { document: {}, location: { origin: 'http://localhost:5173' } });
  t.after(() => Object.assign(globalThis, { document: undefined, location: undefined }));

  assert.match(
    unreachable('wss://talk.test/ws/chat'),
    / https:\/\/talk\.test here\..*ORIGINS=http:\/\/localhost:5173\.$/,
  );
  assert.equal(unreachable('ws://localhost:5173/ws/chat'), '');
});

test('close codes have words', () => {
  assert.deepEqual(
    [1000, 1001, 1003, 1006, 1011, 1012, 1013].map((code) => reasonOf(code, '')),
    ['stopped', 'server_shutdown', 'bad', 'lost', 'failed', 'lost', 'busy'],
  );
  assert.equal(reasonOf(1008, 'app_disabled'), 'refused');
  assert.equal(reasonOf(1008, 'invalid_config'), 'bad');
});

test('half-duplex sends its configuration after the queue, not on opening', () => {
  const { sockets, connection } = surroundings();
  const client = new HalfDuplexClient({ system_prompt: 'Hi.' }, { ...connection, sessionId: 'hdx_1' });
  const seen = watch(client, 'queue', 'ready', 'ended');
  client.open();
  sockets[0].accept();
  sockets[0].say({ type: 'queued', position: 2, estimated_wait_s: 40, ticket_id: 'q_1', queue_length: 3 });
  assert.deepEqual(sockets[0].sent, []);
  sockets[0].say({ type: 'queue_done' });
  const config = { transcribe: true };
  assert.deepEqual(sockets[0].sent, [{ type: 'prepare', system_prompt: 'Hi.', config, resume: true }]);
  sockets[0].say({ type: 'prepared', session_id: 'hdx_1', timeout_s: 180, recording_session_id: 'r1' });
  sockets[0].say({ type: 'stopped', session_id: 'hdx_1' });

  assert.equal(sockets[0].url, 'ws://parley.localhost/ws/half_duplex/hdx_1?extensions=true');
  assert.deepEqual(seen, [
    ['queue', { position: 2, length: 3, waitS: 40, ticketId: 'q_1' }],
    ['queue', null],
    ['ready', { sessionId: 'hdx_1', recordingId: 'r1' }],
    ['ended', { reason: 'stopped', code: '', sentence: '', wasReady: true }],
  ]);
});

/** A session that the server lets us continue, and one message of it. */
function resumable() {
  const { clock, sockets, requests, connection } = surroundings();
  const client = new DuplexClient({ instructions: 'x' }, 'audio', connection);
  const seen = watch(client, 'listen', 'returned', 'ended');
  client.open();
  const [socket] = sockets;
  socket.accept();
  const token = { resume_token: 't1', resume_window_s: 30 };
  socket.say({ type: 'queue_done' }, { type: 'prepared', session_id: 'adx_1', ...token, seq: 1, received: 1 });
  const result = (seq, received) => ({ type: 'result', is_listen: true, kv_cache_length: seq, seq, received });
  const unit = () => client.sendUnitOf({ audio: new Float32Array(4) });
  const resumed = { type: 'session.resumed', session_id: 'adx_1', resume_window_s: 30, generation: 1 };
  const again = { ...resumed, resume_token: 't2' };
  return { clock, sockets, requests, socket, client, seen, result, unit, resumed: again };
}

test('a session continues over another connection: nothing is lost, nothing comes twice', () => {
  const { clock, sockets, socket, client, seen, result, unit, resumed } = resumable();
  unit();
  unit();
  socket.say(result(2, 2));
  socket.hangUp(1006);
  assert.equal(client.phase, 'returning');
  unit();
  client.pause();
  clock.pass(100);
  assert.match(sockets[1].url, /\/ws\/duplex\/adx_\w+\?extensions=true&resume=true$/);
  sockets[1].accept();
  const asked = { type: 'session.resume', session_id: 'adx_1' };
  assert.deepEqual(sockets[1].sent, [{ ...asked, resume_token: 't1', seq: 2, sent: 3 }]);
  sockets[1].say({ ...resumed, seq: 3, received: 2 }, result(2, 2), result(3, 2), result(4, 4));
  unit();

  assert.deepEqual(sockets[1].types().slice(1), ['session.ack', 'audio_chunk', 'pause', 'audio_chunk', 'audio_chunk']);
  assert.deepEqual(sockets[1].sent[1], { type: 'session.ack', seq: 2, generation: 1 });
  assert.equal(seen.filter(([type]) => type === 'listen').length, 3, 'one of the four had come before');
  assert.equal(seen.filter(([type]) => type === 'returned').length, 1);

  sockets[1].hangUp(1012);
  clock.pass(100);
  sockets[2].accept();
  assert.deepEqual(sockets[2].sent[0], { ...asked, resume_token: 't2', seq: 4, sent: 6 });
});

test('the server is told now and then what has come', () => {
  const { socket, result } = resumable();
  for (let seq = 2; seq <= 65; seq++) socket.say(result(seq, 1));
  socket.say({ ...result(66, 1), text: 'x'.repeat(1.2e6) });
  socket.say({ ...result(67, 1), text: 'x'.repeat(1.2e6) });
  const acks = socket.sent.filter(({ type }) => type === 'session.ack');
  assert.deepEqual(
    acks.map(({ seq }) => seq),
    [32, 64, 67],
  );
});

test('a session that waits for a worker is asked for as long as the server says', () => {
  const { clock, sockets, socket, client } = resumable();
  socket.hangUp(1006);
  clock.pass(100);
  sockets[1].accept();
  sockets[1].say({ type: 'session.resume_waiting', estimated_s: 40, window_s: 120 });
  for (let second = 0; second < 100; second++) {
    clock.pass(1000);
    if (sockets.at(-1).readyState !== 3) sockets.at(-1).hangUp(1006);
  }

  assert.equal(client.phase, 'returning');
});

test('a session that the server does not keep, or not long enough, is lost', () => {
  const refused = resumable();
  refused.socket.hangUp(1006);
  refused.clock.pass(100);
  refused.sockets[1].accept();
  refused.sockets[1].say({ type: 'session.resume_failed', reason: 'expired', message: 'The session has ended.' });
  assert.equal(refused.seen.at(-1)[1].reason, 'lost');

  const late = resumable();
  late.socket.hangUp(1006);
  for (let second = 0; second < 31; second++) {
    late.clock.pass(1000);
    if (late.sockets.at(-1).readyState !== 3) late.sockets.at(-1).hangUp(1006);
  }
  assert.equal(late.seen.at(-1)[1].reason, 'lost');
  const count = late.sockets.length;
  late.clock.pass(60_000);
  assert.equal(late.sockets.length, count, 'and nobody knocks any more');

  const ended = resumable();
  ended.socket.say({ type: 'error', error: 'x', message: 'The server is shutting down.', code: 'service_unavailable' });
  ended.socket.hangUp(1001);
  assert.equal(ended.seen.at(-1)[1].reason, 'server_shutdown', 'who said why it ends is not called again');

  const left = resumable();
  left.socket.hangUp(1006);
  left.client.end();
  assert.equal(left.seen.at(-1)[1].reason, 'stopped');
  left.clock.pass(5000);
  assert.equal(left.sockets.length, 1);
  const goodbye = 'http://parley.localhost/api/sessions/adx_1/end';
  assert.deepEqual(left.requests, [['POST', goodbye]], 'the server need not wait for who will not come');

  for (const breaks of [({ socket }) => socket.hangUp(1006), ({ clock }) => clock.pass(2000)]) {
    const leaving = resumable();
    leaving.client.end();
    breaks(leaving);
    assert.equal(leaving.seen.at(-1)[1].reason, 'stopped');
    assert.deepEqual(leaving.requests, [['POST', goodbye]], 'whether the word for it has come is not known');
  }
});

test('half-duplex and duplex: what was heard is told, and words are written into the call', () => {
  for (const make of [
    (where) => new HalfDuplexClient({ system_prompt: 'Hi.' }, where),
    (where) => new DuplexClient({ instructions: 'x' }, 'audio', where),
  ]) {
    const { sockets, connection } = surroundings();
    const client = make(connection);
    const seen = watch(client, 'heard_text');
    client.open();
    const [socket] = sockets;
    socket.accept();
    socket.say({ type: 'queue_done' });
    const [{ transcribe, config }] = socket.sent;
    assert.equal(transcribe ?? config.transcribe, true);
    socket.say({ type: 'prepared', session_id: 's', timeout_s: 9, accepts: ['input_text', 'input_image'] });
    socket.say({ type: 'input_transcript', index: 2, text: 'What is the capital of Italy?' });
    client.sendText('And this?', 'AAAA');
    client.sendText('Thanks.', null);

    assert.equal(client.canText, true);
    assert.deepEqual(seen, [['heard_text', { id: '2', text: 'What is the capital of Italy?', isFinal: true }]]);
    assert.deepEqual(socket.sent.slice(1), [
      { type: 'input_text', text: 'And this?', images: ['AAAA'] },
      { type: 'input_text', text: 'Thanks.' },
    ]);
  }
});

test('a goodbye without a socket goes where the server is, with its key', () => {
  const address = 'wss://a.test/voice/v1/realtime?mode=audio&token=pk_1%262&extensions=true';
  assert.equal(goodbyeUrl(address, 'rt_1'), 'https://a.test/voice/api/sessions/rt_1/end?token=pk_1%262');
});

/** A binary message of a server. */
function binary(message, bytes) {
  const head = Buffer.from(JSON.stringify(message));
  const size = Buffer.alloc(4);
  size.writeUInt32BE(head.length);
  const all = Buffer.concat([size, head, bytes]);
  return all.buffer.slice(all.byteOffset, all.byteOffset + all.length);
}

/** JSON and 16-bit samples of a binary message of ours. */
function opened(frame) {
  const all = Buffer.from(frame);
  const end = 4 + all.readUInt32BE(0);
  const samples = Array.from({ length: (all.length - end) / 2 }, (_, i) => all.readInt16LE(end + 2 * i));
  return [JSON.parse(all.subarray(4, end).toString()), samples];
}

const SAMPLES = { input: 'pcm16', output: 'pcm16', binary: true };
const HEARD = Float32Array.of(0, 0.5, -1, 1, 2);
const AS_16_BIT = [0, 16384, -32767, 32767, 32767];

for (const [name, make, first, ready, send, sent, said] of [
  [
    'half-duplex',
    (where) => new HalfDuplexClient({ system_prompt: 'Hi.' }, where),
    (asked) => asked.config.audio_format,
    [{ type: 'queue_done' }, { type: 'prepared', session_id: 'h', timeout_s: 9, audio_format: SAMPLES }],
    (client) => client.sendAudio(HEARD),
    { type: 'audio_chunk', audio_base64: '' },
    { type: 'chunk', text_delta: 'é', audio_data: '' },
  ],
  [
    'duplex',
    (where) => new DuplexClient({ instructions: 'x' }, 'audio', where),
    (asked) => asked.audio_format,
    [{ type: 'queue_done' }, { type: 'prepared', session_id: 'd', audio_format: SAMPLES }],
    (client) => client.sendUnitOf({ audio: HEARD, forceListen: true }),
    { type: 'audio_chunk', audio_base64: '', force_listen: true },
    { type: 'result', is_listen: false, text: 'é', audio_data: '', kv_cache_length: 1 },
  ],
  [
    'realtime',
    (where) => new RealtimeClient({ instructions: 'x' }, 'audio', where),
    (asked) => asked.session.audio_format,
    [{ type: 'session.queue_done' }, { type: 'session.created', session_id: 'r', audio_format: SAMPLES }],
    (client) => client.sendUnitOf({ audio: HEARD }),
    { type: 'input_audio_buffer.append', audio: '' },
    { type: 'response.output_audio.delta', text: 'é', audio: '', kv_cache_length: 1 },
  ],
]) {
  test(`${name}: over a network sound crosses as 16-bit samples in binary messages`, () => {
    const { sockets, connection } = surroundings();
    const client = make({ ...connection, base: 'https://a.test' });
    const seen = watch(client, 'speak', 'delta');
    client.open();
    const [socket] = sockets;
    socket.accept();
    socket.say(...ready);
    send(client);
    socket.say(binary(said, Buffer.from(Int16Array.of(0, 16384, -32768).buffer)));

    assert.equal(socket.binaryType, 'arraybuffer');
    assert.deepEqual(first(socket.sent[0]), SAMPLES);
    assert.deepEqual(opened(socket.sent[1]), [sent, AS_16_BIT]);
    const [[, { text, audio }]] = seen;
    assert.deepEqual([text, ...audio], ['é', 0, 0.5, -1]);
  });

  test(`${name}: with its sound a client says how far the assistant has been heard`, () => {
    const { sockets, connection } = surroundings();
    const client = make({ ...connection, base: 'https://a.test' });
    client.sound.unheardMs = () => 750.4;
    client.open();
    const [socket] = sockets;
    socket.accept();
    socket.say(...ready);
    send(client);
    socket.say(binary(said, Buffer.from(new Int16Array(24000).buffer)));
    send(client);

    const [before, after] = socket.sent.slice(1, 3).map((frame) => opened(frame)[0].playback);
    assert.equal(before, undefined);
    assert.deepEqual(after, { received_ms: 1000, buffered_ms: 750 });
  });

  test(`${name}: as published on this machine, for who asks for it, and for a server without formats`, () => {
    for (const [where, told] of [
      [{ base: 'http://127.0.0.1:8006' }, undefined],
      [{ base: 'https://a.test', audioFormat: { input: 'float32', output: 'float32', binary: false } }, undefined],
      [{ base: 'https://a.test' }, SAMPLES],
    ]) {
      const { sockets, connection } = surroundings();
      const client = make({ ...connection, ...where });
      client.open();
      const [socket] = sockets;
      socket.accept();
      socket.say(...ready.map(({ audio_format: _, ...message }) => message));
      send(client);

      assert.deepEqual(first({ config: {}, ...socket.sent[0] }), told);
      const { audio = '', audio_base64: text = audio } = socket.sent[1];
      assert.deepEqual(decodePcm(text), HEARD);
    }
  });
}

const COMPACT = { input: 'opus', output: 'opus', binary: true };

/** A half-duplex conversation over a network, in a browser that has Opus. */
async function inOpus(codecs) {
  const { sockets, connection } = surroundings();
  const client = new HalfDuplexClient({ system_prompt: 'Hi.' }, { ...connection, base: 'https://a.test', codecs });
  client.open();
  const [socket] = sockets;
  socket.accept();
  socket.say({ type: 'queue_done' });
  await settle();
  const audio_format = socket.sent[0].config.audio_format;
  socket.say({ type: 'prepared', session_id: 'h', timeout_s: 9, audio_format });
  await settle();
  return { client, socket, audio_format };
}

test('a browser that has Opus uses it over a network, and messages keep their order while sound is decoded', async () => {
  const { client, socket, audio_format } = await inOpus(fakeCodecs().codecs);
  assert.deepEqual(audio_format, COMPACT);
  assert.equal(client.sound.pieceSamples, 640);
  const seen = watch(client, 'delta', 'turn', 'ended');
  for (const level of [0.1, 0.2]) client.sendAudio(new Float32Array(640).fill(level));
  for (let i = 0; i < 3; i++) await settle();
  const packet = (level) => Buffer.from([0, 1, level]);
  socket.say(
    binary({ type: 'chunk', text_delta: 'a', audio_data: '' }, Buffer.concat([packet(10), packet(20)])),
    binary({ type: 'chunk', text_delta: 'b', audio_data: '' }, packet(30)),
    { type: 'turn_done', turn_index: 0, text: 'ab' },
  );
  socket.hangUp(1000);
  assert.deepEqual(seen, [], 'nothing overtakes sound that is being decoded');
  for (let i = 0; i < 3; i++) await settle();

  const bytes = socket.sent.slice(1).map((frame) => [...Buffer.from(frame).subarray(-3)]);
  assert.deepEqual(bytes, [
    [0, 1, 10],
    [0, 1, 20],
  ]);
  assert.deepEqual(
    seen.map(([type, { text = '' }]) => type + text),
    ['deltaa', 'deltab', 'turnab', 'ended'],
  );
  const [[, { audio }], [, { audio: next }]] = seen;
  assert.deepEqual([audio.length, next.length], [960, 480], '40 ms and 20 ms at 24 kHz');
  // 31 samples at 48 kHz later than they were sent.
  assert.deepEqual(
    [audio[300], audio[900], next[400]].map((value) => Math.round(value * 100)),
    [10, 20, 30],
  );
});

test('audio that fills no packet of Opus travels with the next', async () => {
  const { sockets, connection } = surroundings();
  const { codecs } = fakeCodecs();
  const client = new DuplexClient({ instructions: 'x' }, 'audio', { ...connection, base: 'https://a.test', codecs });
  client.open();
  sockets[0].accept();
  sockets[0].say({ type: 'queue_done' }, { type: 'prepared', session_id: 'd', audio_format: COMPACT });
  await settle();
  for (const [count, forceListen] of [[500, true], [500], [500]]) {
    client.sendUnitOf({ audio: new Float32Array(count).fill(0.1), forceListen });
  }
  for (let i = 0; i < 3; i++) await settle();
  assert.deepEqual(
    sockets[0].sent.slice(1).map((frame) => [Buffer.from(frame).at(-1), opened(frame)[0].force_listen]),
    [
      [10, true],
      [10, undefined],
    ],
  );
});

test('without Opus in the browser, or where its codec failed, a conversation continues in 16-bit samples', async () => {
  assert.deepEqual((await inOpus(fakeCodecs({ isOffered: false }).codecs)).audio_format, SAMPLES);
  const { made, codecs } = fakeCodecs();
  const { client } = await inOpus(codecs);
  const seen = watch(client, 'ended');
  made[0].error(new Error('broken'));
  assert.deepEqual(
    seen.map(([, { reason, wasReady }]) => [reason, wasReady]),
    [['lost', true]],
    'the call dials again',
  );
  assert.ok(made.every(({ state }) => state === 'closed'));
  assert.deepEqual((await inOpus(codecs)).audio_format, SAMPLES);
});

test('a unit that is dropped hands its request for silence on, in a binary message, too', () => {
  const { sockets, connection } = surroundings();
  const client = new DuplexClient({ instructions: 'x' }, 'audio', { ...connection, base: 'https://a.test' });
  client.open();
  const [socket] = sockets;
  socket.accept();
  socket.say({ type: 'queue_done' }, { type: 'prepared', session_id: 'd', audio_format: SAMPLES });
  socket.bufferedAmount = 1e6;
  const audio = new Float32Array(16000);
  client.sendUnitOf({ audio, forceListen: true });
  for (let i = 0; i < 2; i++) client.sendUnitOf({ audio });
  socket.bufferedAmount = 0;
  client.sendUnitOf({ audio });

  const units = socket.sent.slice(1).map((frame) => opened(frame)[0].force_listen ?? false);
  assert.deepEqual(units, [true, false, false]);
});

test('a line that breaks in the queue is fixed, with growing pauses', () => {
  const { clock, sockets, connection } = surroundings();
  const client = new HalfDuplexClient({}, connection);
  const seen = watch(client, 'ended');
  client.open();
  sockets[0].accept();
  sockets[0].say({ type: 'queued', position: 1, estimated_wait_s: 5 });
  sockets[0].hangUp(1006);
  clock.pass(499);
  assert.equal(sockets.length, 1);
  clock.pass(1);
  assert.equal(sockets.length, 2);
  sockets[1].hangUp(1006);
  clock.pass(1000);
  assert.equal(sockets.length, 3);
  assert.deepEqual(seen, []);
});

test('it does not try for ever', () => {
  const { clock, sockets, connection } = surroundings();
  const client = new DuplexClient({ instructions: 'x' }, 'audio', connection);
  const seen = watch(client, 'ended');
  client.open();
  for (let i = 0; i < 20; i++) {
    sockets.at(-1).hangUp?.(1006);
    clock.pass(60000);
  }
  assert.equal(sockets.length, 6);
  assert.equal(seen[0][1].reason, 'lost');
  assert.equal(seen.length, 1);
});

test('a network without an answer counts as broken', () => {
  const { clock, sockets, connection } = surroundings();
  new DuplexClient({ instructions: 'x' }, 'video', connection).open();
  clock.pass(10500);
  assert.equal(sockets.length, 2);
  assert.equal(sockets[0].readyState, 3);
});

test('a break in mid-call is the end', () => {
  const { clock, sockets, connection } = surroundings();
  const client = new RealtimeClient({ instructions: 'x' }, 'audio', connection);
  const seen = watch(client, 'ended');
  client.open();
  sockets[0].accept();
  sockets[0].say({ type: 'session.queue_done' }, { type: 'session.created', session_id: 'rt_1', prompt_length: 3 });
  sockets[0].hangUp(1006);
  clock.pass(60000);

  assert.equal(sockets.length, 1);
  const sentence = 'The connection broke, and the session ended with it. Open another one.';
  assert.deepEqual(seen, [['ended', { reason: 'lost', code: '', sentence, wasReady: true }]]);
});

test('the server says why: before it closes, or where it would wait for another configuration', () => {
  for (const [code, close, reason] of [
    ['queue_full', 1013, 'busy'],
    ['invalid_payload', 0, 'bad'],
  ]) {
    const { sockets, connection } = surroundings();
    const client = new RealtimeClient({ instructions: '' }, 'audio', connection);
    const seen = watch(client, 'ended');
    client.open();
    sockets[0].accept();
    sockets[0].say({ type: 'session.queue_done' }, { type: 'error', error: { code, message: 'No.' } });
    if (close) sockets[0].hangUp(close);

    assert.equal(sockets[0].sent[0].session.instructions, 'You are a helpful assistant.');
    assert.deepEqual(seen, [['ended', { reason, code, sentence: 'No.', wasReady: false }]]);
  }
});

test('stopping waits for the answer, but not longer than two seconds', () => {
  const { clock, sockets, connection } = surroundings();
  const client = new RealtimeClient({ instructions: 'x' }, 'audio', connection);
  const seen = watch(client, 'ended');
  client.open();
  sockets[0].accept();
  sockets[0].say({ type: 'session.queue_done' }, { type: 'session.created', session_id: 'rt_1' });
  client.end();
  assert.equal(sockets[0].types().at(-1), 'session.close');
  clock.pass(1999);
  assert.equal(seen.length, 0);
  clock.pass(1);
  assert.equal(seen[0][1].reason, 'stopped');
  assert.equal(sockets[0].closedWith, 1000);
});

test('the login page of a network is no answer of the server, and a proxy may refuse a large body', async (t) => {
  const headers = { 'content-type': 'text/html' };
  const answers = [413, 200].map((status) => new Response('<html>', { headers, status }));
  answers.push(Response.json({ idle: 1 }));
  t.mock.method(globalThis, 'fetch', async () => answers.shift());
  const ask = () => request('/status', { base: 'https://a.test' });
  await assert.rejects(ask, { code: 'too_large' });
  await assert.rejects(ask, { code: 'offline' });
  assert.deepEqual(await ask(), { idle: 1 });
});

test('a request that a proxy redirects to its login page asks the user to sign in', async (t) => {
  const fetched = t.mock.method(globalThis, 'fetch', async () => ({ type: 'opaqueredirect' }));
  await assert.rejects(request('/status'), { code: 'signed_out', status: 401 });
  assert.equal(fetched.mock.calls[0].arguments[1].redirect, 'manual');
});

test('what is said while the call is away is kept, and sent whole when it is back', () => {
  const backlog = new Backlog();
  const sent = [];
  const post = (_, message) => sent.push(message.number);
  const unit = (number) => ({ type: 'audio_chunk', audio_base64: 'AAAA', number });
  let dropped = 0;
  for (let number = 0; number < 12; number++) dropped += backlog.push(unit(number), 1000, 0, null, post);
  let bytes = 1e9;
  const inFlight = { bytes: () => bytes, ms: () => 0 };
  dropped += backlog.push(unit(12), 1000, 0, inFlight, post);
  bytes = 0;
  dropped += backlog.push(unit(13), 1000, 0, inFlight, post);

  assert.equal(dropped, 0);
  assert.deepEqual(
    sent,
    Array.from({ length: 14 }, (_, number) => number),
  );
});

/**
 * A half-duplex conversation that can be resumed; `speak` sends so many pieces in real time; `heard`: so many have been
 * received, and so many have arrived.
 */
function speaking() {
  const { clock, sockets, connection } = surroundings();
  const client = new HalfDuplexClient({ system_prompt: 'Hi.' }, connection);
  const seen = watch(client, 'dropped', 'ended', 'returned');
  client.open();
  sockets[0].accept();
  const token = { resume_token: 't', resume_window_s: 30 };
  sockets[0].say(
    { type: 'queue_done' },
    { type: 'prepared', session_id: 'h', timeout_s: 9, seq: 1, received: 1, ...token },
  );
  const heard = (received, arrived = received) =>
    sockets.at(-1).say({ type: 'session.input_ack', received: received + 1, arrived: arrived + 1 });
  const speak = (pieces, after = () => {}) => {
    for (let i = 0; i < pieces; i++) {
      clock.pass(32);
      client.sendAudio(new Float32Array(512).fill(0.1));
      after(i);
    }
  };
  const sent = (socket) => socket.types().filter((type) => type === 'audio_chunk').length;
  const asked = (socket) => socket.sent.filter(({ ask }) => ask).length;
  const comeBack = (received) => {
    clock.pass(1000);
    sockets.at(-1).accept();
    const resumed = { type: 'session.resumed', session_id: 'h', ...token, generation: 1, seq: 1 };
    sockets.at(-1).say({ ...resumed, received: received + 1 });
  };
  return { clock, sockets, client, seen, speak, heard, sent, asked, comeBack };
}

test('a connection that a network has forgotten is given up after six seconds, and no sound is lost', () => {
  const { sockets, client, seen, speak, heard, sent, asked, comeBack } = speaking();
  speak(100, (i) => i % 8 === 7 && heard(i + 1));
  speak(180);
  assert.equal(client.phase, 'ready', 'it may be a short stall');
  assert.equal(asked(sockets[0]), 1);
  speak(40);
  assert.equal(client.phase, 'returning');
  speak(50);
  comeBack(96);
  assert.deepEqual(
    seen.map(([type]) => type),
    ['returned'],
  );
  for (const received of [140, 230, 320]) {
    speak(1);
    heard(received);
  }
  speak(1);
  assert.equal(sent(sockets[1]), 374 - 96, 'all that the server does not have');

  for (const next of [2, 3, 4]) {
    speak(300);
    assert.equal(client.phase, 'returning');
    comeBack(374);
    assert.equal(sockets.length, next + 1);
  }
  speak(300);
  assert.equal(client.phase, 'ended', 'what no connection delivers, another one does not either');
});

test('who says nothing notices, too, that the connection is lost', () => {
  const { clock, sockets, client, heard, asked } = speaking();
  for (let i = 0; i < 10; i++) {
    clock.pass(3000);
    heard(0);
  }
  assert.equal(asked(sockets[0]), 10);
  assert.equal(client.phase, 'ready');
  clock.pass(7000);
  assert.equal(client.phase, 'returning');
});

test('a network that stands still for five seconds costs nothing', () => {
  const { sockets, seen, speak, heard, sent } = speaking();
  speak(100, (i) => i % 8 === 7 && heard(i + 1));
  speak(150);
  for (let i = 100; i < 250; i += 8) {
    heard(i);
    speak(1);
  }
  assert.deepEqual(seen, []);
  assert.equal(sockets.length, 1);
  assert.equal(sent(sockets[0]), 269);
});

test('a server that is slow to store what has arrived does not make the network slow', () => {
  const { sockets, seen, speak, heard, sent, asked } = speaking();
  let answers = 0;
  speak(1000, () => {
    if (asked(sockets[0]) === answers) return;
    answers++;
    heard(0, sent(sockets[0]));
  });
  assert.ok(answers < 20, `${answers} questions in 32 s`);
  assert.deepEqual(seen, []);
  assert.equal(sent(sockets[0]), 1000);
});

test('nothing is sent over a socket that is closing, which browsers report as an error', () => {
  const { sockets, speak } = speaking();
  speak(10);
  const { length } = sockets[0].sent;
  sockets[0].readyState = 2;
  speak(150);
  assert.equal(sockets[0].sent.length, length);
});

test('sound that piles up beyond the socket is dropped, too', () => {
  const { sockets, client, speak, heard, sent } = speaking();
  let arrived = 0;
  speak(600, (i) => {
    if (i % 16 !== 15) return;
    arrived += 8;
    heard(arrived);
  });
  const inFlight = sent(sockets[0]) - arrived;
  assert.ok(inFlight < 110, `${inFlight} pieces are in flight, three seconds are 94`);
  assert.ok(client.dropped > 4, `${client.dropped} of 9.6 s that the network does not carry`);
});

test('when the network is back with another address, nothing is waited for', () => {
  const { clock, sockets, client, heard } = speaking();
  heard(0);
  client.hurry();
  assert.equal(client.phase, 'returning');
  clock.pass(100);
  assert.equal(sockets.length, 2);
  client.hurry();
  clock.pass(0);
  assert.equal(sockets.length, 3, 'the attempt over the old network is not waited for');
  // 1000 would end the session.
  assert.deepEqual([sockets[0].closedWith, sockets[1].closedWith], [4006, 4006]);
});

test('a picture in one piece does not let late sound pile up in the socket', () => {
  const backlog = new Backlog();
  const sent = [];
  const push = (number, bufferedAmount) => {
    const frames = number % 10 === 9 ? ['A'.repeat(10_000)] : [];
    const unit = { type: 'audio_chunk', audio_base64: 'AAAA', frame_base64_list: frames };
    const inFlight = { bytes: () => bufferedAmount, ms: () => 0 };
    return backlog.push(unit, 100, 0, inFlight, () => sent.push(number));
  };
  for (let number = 0; number < 20; number++) push(number, 0);
  assert.equal(sent.length, 20);

  for (let number = 20; number < 30; number++) push(number, 50_000);
  assert.equal(sent.length, 20, 'three seconds are 31 KB');
});

test('a slow network loses old units and keeps the request to be silent', () => {
  const { sockets, connection } = surroundings();
  const client = new DuplexClient({ instructions: 'x' }, 'audio', connection);
  const seen = watch(client, 'dropped');
  client.open();
  const socket = sockets[0];
  socket.accept();
  socket.say({ type: 'queue_done' }, { type: 'prepared', session_id: 'adx_1', prompt_length: 1 });
  socket.bufferedAmount = 1e9;
  for (let i = 0; i < 4; i++) client.sendUnitOf({ audio: new Float32Array(16000).fill(i), forceListen: i === 0 });
  socket.bufferedAmount = 0;
  client.sendUnitOf({ audio: new Float32Array(16000).fill(9) });

  const units = socket.sent.filter((message) => message.type === 'audio_chunk');
  assert.deepEqual(
    units.map((unit) => [decodePcm(unit.audio_base64)[0], unit.force_listen ?? false]),
    [
      [2, true],
      [3, false],
      [9, false],
    ],
  );
  assert.deepEqual(seen, [
    ['dropped', 1],
    ['dropped', 2],
  ]);
});

test('the duplex dialects carry the same unit under their own names', () => {
  const { sockets, connection } = surroundings();
  for (const [Client, hello] of [
    [DuplexClient, [{ type: 'queue_done' }, { type: 'prepared', session_id: 'omni_1', prompt_length: 2 }]],
    [RealtimeClient, [{ type: 'session.queue_done' }, { type: 'session.created', session_id: 'rt_1' }]],
  ]) {
    const client = new Client({ instructions: 'Be kind.', voice: 'AAAA', slices: 2 }, 'video', connection);
    client.open();
    const socket = sockets.at(-1);
    socket.accept();
    socket.say(...hello);
    client.sendUnitOf({ audio: new Float32Array(4), frames: ['QQ=='], forceListen: true, slices: 2 });
  }
  const [legacy, realtime] = sockets;
  assert.deepEqual(legacy.sent, [
    {
      type: 'prepare',
      system_prompt: 'Be kind.',
      max_slice_nums: 2,
      transcribe: true,
      ref_audio_base64: 'AAAA',
      resume: true,
    },
    {
      type: 'audio_chunk',
      audio_base64: 'AAAAAAAAAAAAAAAAAAAAAA==',
      frame_base64_list: ['QQ=='],
      force_listen: true,
      max_slice_nums: 2,
    },
  ]);
  assert.deepEqual(realtime.sent, [
    {
      type: 'session.update',
      session: { instructions: 'Be kind.', max_slice_nums: 2, transcribe: true, ref_audio: 'AAAA', resume: true },
    },
    {
      type: 'input_audio_buffer.append',
      audio: 'AAAAAAAAAAAAAAAAAAAAAA==',
      video_frames: ['QQ=='],
      force_listen: true,
      max_slice_nums: 2,
    },
  ]);
  assert.match(legacy.url, /\/ws\/duplex\/omni_/);
  assert.match(realtime.url, /\/v1\/realtime\?mode=video&extensions=true$/);
});

for (const make of [
  (connection) => new ChatClient({ messages: [] }, connection),
  (connection) => new DuplexClient({ instructions: '' }, 'audio', { ...connection, sessionId: 'adx_1' }),
]) {
  const asked = make(surroundings().connection).url;
  test(`who waits asks for the same place again: ${asked}`, () => {
    const { clock, sockets, connection } = surroundings();
    const client = make(connection);
    const seen = watch(client, 'ended');
    client.open();
    sockets[0].accept();
    sockets[0].say({ type: 'queued', position: 2, estimated_wait_s: 40, ticket_id: 'q_1', queue_length: 3 });
    for (const later of [0, 1]) {
      sockets.at(-1).hangUp(1006);
      for (let second = 0; second < 20; second++) {
        clock.pass(1000);
        if (sockets.at(-1).readyState !== 3) sockets.at(-1).hangUp(1006);
      }
      assert.ok(sockets.length > 18 * (later + 1), 'once a second');
      clock.pass(1000);
      sockets.at(-1).accept();
      sockets.at(-1).say({ type: 'queued', position: 1, estimated_wait_s: 20, ticket_id: 'q_1', queue_length: 2 });
    }
    sockets.at(-1).hangUp(1006);
    for (let second = 0; second < 32; second++) {
      clock.pass(1000);
      if (sockets.at(-1).readyState !== 3) sockets.at(-1).hangUp(1006);
    }

    assert.equal(seen.at(-1)[1].reason, 'lost', 'as long as servers keep sessions');
    assert.equal(sockets[0].url, client.url);
    assert.equal(new URL(sockets.at(-1).url).searchParams.get('ticket'), 'q_1');
  });
}

test('a chat is asked again only until a worker has it', () => {
  const { clock, sockets, connection } = surroundings();
  const client = new ChatClient({ messages: [{ role: 'user', content: 'Hi' }] }, connection);
  const seen = watch(client, 'ended');
  client.open();
  sockets[0].hangUp(1006);
  clock.pass(500);
  sockets[1].accept();
  sockets[1].say({ type: 'prefill_done', input_tokens: 3 });
  sockets[1].hangUp(1006);
  clock.pass(60000);

  assert.equal(sockets.length, 2);
  assert.equal(seen[0][1].reason, 'lost');
});

test('an unknown message is not an accident', (t) => {
  t.mock.method(console, 'warn', () => {});
  const { sockets, connection } = surroundings();
  const client = new RealtimeClient({ instructions: 'x' }, 'audio', connection);
  client.open();
  sockets[0].accept();
  sockets[0].say(
    'not json',
    { type: 'session.warning' },
    { type: 'response.output_audio.delta', text: 'a', audio: sound(10), end_of_turn: true, kv_cache_length: 1 },
  );
  assert.notEqual(client.phase, 'ended');
});

test('a link cannot send a voice to a strange server', () => {
  const page = 'https://talk.example.org/audio_duplex?api=';
  const allowed = ['other.example.org', 'third.example.org:8443'];
  const taken = (asked) => chosenApi(page + encodeURIComponent(asked), allowed).base;

  assert.deepEqual(chosenApi('https://talk.example.org/omni'), { base: null, refused: null });
  assert.equal(taken('talk.example.org:9000'), 'https://talk.example.org:9000');
  assert.equal(taken('wss://other.example.org:1'), 'https://other.example.org:1');
  assert.equal(taken('third.example.org:8443'), 'https://third.example.org:8443');
  assert.equal(taken('http://localhost:8006'), 'http://localhost:8006');
  for (const bad of [
    'evil.example',
    'third.example.org:1',
    'http://other.example.org',
    'talk.example.org.evil.example',
    'javascript:alert(1)',
    'me:secret@talk.example.org',
    '//',
    'ftp://talk.example.org',
  ]) {
    assert.deepEqual(chosenApi(page + encodeURIComponent(bad), allowed), { base: null, refused: bad }, bad);
  }
});
