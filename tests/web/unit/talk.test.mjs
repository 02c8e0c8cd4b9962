import assert from 'node:assert/strict';
import { test } from 'node:test';

import { MediaError } from '../../../src/parley/web/audio/devices.js';
import { CaptionTrack } from '../../../src/parley/web/talk/captions.js';
import { buildRequest, ChatTalk } from '../../../src/parley/web/talk/chat.js';
import { Countdown } from '../../../src/parley/web/talk/countdown.js';
import { DuplexCall } from '../../../src/parley/web/talk/duplex.js';
import { FileFeed } from '../../../src/parley/web/talk/files.js';
import { HeadStart } from '../../../src/parley/web/talk/head-start.js';
import { HalfDuplexCall } from '../../../src/parley/web/talk/half-duplex.js';
import { FakeRig, settle, sound, surroundings } from '../support/fakes.mjs';

async function halfDuplex(options = {}, more = {}) {
  const { clock, sockets, connection } = surroundings();
  const rig = new FakeRig();
  const talk = new HalfDuplexCall(rig, clock.surroundings());
  const seen = [];
  talk.addEventListener('change', ({ detail }) => {
    const now = detail.phase === 'live' ? detail.activity : detail.phase;
    if (seen.at(-1) !== now) seen.push(now);
  });
  await talk.start({ options: () => options, microphone: {}, connection, ...more });
  const socket = sockets[0];
  return { clock, rig, talk, seen, socket, sockets, connection };
}

async function listening(options, more) {
  const all = await halfDuplex(options, more);
  all.socket.accept();
  all.socket.say({ type: 'queue_done' }, { type: 'prepared', session_id: 'hdx_1', timeout_s: 180 });
  return all;
}

const chunks = (socket) => socket.types().filter((type) => type === 'audio_chunk').length;

test('an answer in turns waits for as long as parts of the last ones came late', async () => {
  const { clock, rig, talk, socket } = await listening();
  /** An answer of whole seconds, which come so many ms after each other. */
  const answer = (...gapsMs) => {
    socket.say({ type: 'generating', speech_duration_ms: 900 });
    for (const ms of [0, ...gapsMs]) {
      clock.pass(ms);
      socket.say({ type: 'chunk', text_delta: 'Hello', audio_data: sound(24000) });
    }
    socket.say({ type: 'turn_done', turn_index: 0, text: 'Hello' });
    rig.emit('drained', { turn: talk.turn });
    return rig.delayMs;
  };
  assert.equal(answer(300, 300, 300), 200, 'nothing is known yet');
  assert.equal(answer(1060), 0, 'parts come long before they are heard');
  assert.equal(answer(), 90);
});

test('two turns of half-duplex: the microphone rests until the voice has ended and the room is quiet', async () => {
  const { clock, rig, talk, seen, socket } = await listening();
  rig.unit();
  socket.say({ type: 'vad_state', speaking: true });
  rig.unit();
  socket.say({ type: 'vad_state', speaking: false }, { type: 'generating', speech_duration_ms: 900 });
  rig.unit();
  assert.equal(chunks(socket), 2);
  socket.say(
    { type: 'chunk', text_delta: 'Hello', audio_data: sound(24000) },
    { type: 'chunk', text_delta: ' you', audio_data: null },
  );
  rig.emit('started', { turn: talk.turn });
  socket.say({ type: 'turn_done', turn_index: 0, text: 'Hello you' });
  clock.pass(5000);
  rig.unit();
  assert.equal(chunks(socket), 2, 'the voice is still heard');
  rig.emit('drained', { turn: talk.turn });
  clock.pass(799);
  rig.unit();
  assert.equal(chunks(socket), 2, 'the room is not quiet yet');
  clock.pass(1);
  rig.unit();

  assert.equal(chunks(socket), 3);
  assert.deepEqual(seen, [
    'starting',
    'connecting',
    'listening',
    'hearing',
    'listening',
    'thinking',
    'speaking',
    'listening',
  ]);
  assert.deepEqual(rig.plays(), [`play ${talk.turn} 24000`]);
});

test('anyone who may interrupt is heard all the time, and what both remember of the answer is the same', async () => {
  const { clock, rig, talk, seen, socket } = await listening({}, { mayInterrupt: true });
  const stopped = { type: 'interruption', state: 'stopped', index: 0, heard_ms: 700, text: 'Once upon' };
  rig.unit();
  socket.say({ type: 'generating', speech_duration_ms: 900 });
  rig.unit();
  socket.say({ type: 'chunk', text_delta: 'Once upon a time there was', audio_data: sound(48000) });
  rig.emit('started', { turn: talk.turn });
  rig.unit();
  assert.equal(chunks(socket), 3);
  rig.position(talk.turn, 9000);
  socket.say({ ...stopped, state: 'suspected' });
  assert.ok(rig.log.includes('duck'));
  assert.ok(!rig.log.includes('flush'));
  socket.say(stopped, { type: 'turn_done', turn_index: 0, text: 'Once upon', interrupted: true });
  clock.pass(0);
  rig.unit();

  assert.ok(rig.log.includes('flush'));
  assert.equal(talk.captions.said(), 'Assistant: Once upon');
  assert.equal(chunks(socket), 4, 'nothing that was said meanwhile is lost');
  assert.deepEqual(seen.slice(-3), ['thinking', 'speaking', 'listening']);

  // Made whole already, and interrupted while it is played.
  socket.say({ type: 'generating', speech_duration_ms: 900 });
  socket.say({ type: 'chunk', text_delta: 'A second answer', audio_data: sound(48000) });
  rig.emit('started', { turn: talk.turn });
  socket.say({ type: 'turn_done', turn_index: 1, text: 'A second answer' });
  assert.equal(talk.state.activity, 'speaking');
  socket.say({ ...stopped, index: 1, text: 'A' });
  clock.pass(0);
  assert.equal(talk.state.activity, 'listening');
  assert.match(talk.captions.said(), /Assistant: A$/);
});

test('the voice may end before the server says so', async () => {
  const { clock, rig, talk, socket } = await listening();
  socket.say(
    { type: 'generating', speech_duration_ms: 900 },
    { type: 'chunk', text_delta: 'a', audio_data: sound(240) },
  );
  rig.emit('started', { turn: talk.turn });
  rig.emit('drained', { turn: talk.turn });
  clock.pass(2000);
  rig.unit();
  assert.equal(chunks(socket), 0);
  socket.say({ type: 'turn_done', turn_index: 0, text: 'a' });
  clock.pass(800);
  rig.unit();
  assert.equal(chunks(socket), 1);
});

test('an answer without a voice does not make anyone wait', async () => {
  const { clock, rig, talk, socket } = await listening();
  socket.say(
    { type: 'generating', speech_duration_ms: 900 },
    { type: 'chunk', text_delta: 'words', audio_data: null },
    { type: 'turn_done', turn_index: 0, text: 'words' },
  );
  clock.pass(0);
  rig.unit();
  assert.equal(chunks(socket), 1);
  assert.equal(talk.captions.list.at(-1).heard, 5);
});

test('skipping silences immediately, asks the server, and listens again', async () => {
  const { clock, rig, talk, socket } = await listening();
  const asked = [];
  socket.say(
    { type: 'generating', speech_duration_ms: 900 },
    { type: 'chunk', text_delta: 'a long story', audio_data: sound(24000) },
  );
  rig.emit('started', { turn: talk.turn });
  rig.position(talk.turn, 4000);
  await talk.skip(async (id) => asked.push(id));
  socket.say(
    { type: 'chunk', text_delta: ' more', audio_data: sound(24000) },
    { type: 'turn_done', turn_index: 0, text: 'a long', interrupted: true },
  );
  clock.pass(0);
  rig.unit();

  assert.deepEqual(asked, ['hdx_1']);
  assert.equal(rig.plays().length, 1);
  assert.ok(rig.log.includes('flush'));
  assert.equal(chunks(socket), 1);
  assert.equal(talk.captions.list.find((caption) => caption.who === 'assistant').isInterrupted, true);
});

test('a refused microphone costs no place in the queue', async () => {
  const { sockets, connection, clock } = surroundings();
  const rig = new FakeRig();
  rig.permission = new MediaError('denied', 'microphone');
  const talk = new HalfDuplexCall(rig, clock.surroundings());
  const started = await talk.start({ options: () => ({}), microphone: {}, connection });

  assert.equal(started, false);
  assert.equal(sockets.length, 0);
  assert.deepEqual(talk.state.trouble, { kind: 'media', trouble: 'denied', device: 'microphone' });
  assert.equal(talk.state.phase, 'ended');
  assert.equal(talk.state.ending.reason, 'not_started');
});

test('a call that the page cannot start blames neither microphone nor camera', async (t) => {
  const noted = t.mock.method(console, 'error', () => {});
  const talk = new HalfDuplexCall(new FakeRig(), surroundings().clock.surroundings());
  const error = new TypeError('a part of the page was not loaded');

  assert.equal(await talk.start(() => Promise.reject(error)), false);

  assert.deepEqual(talk.state.trouble, { kind: 'page' });
  assert.equal(talk.state.ending.reason, 'not_started');
  assert.deepEqual(noted.mock.calls[0].arguments, [error]);
});

test('a lost server lets the last sentence finish and is not called again, hanging up does not', async () => {
  const lost = await listening();
  lost.socket.hangUp(1011);
  lost.clock.pass(10_000);
  assert.equal(lost.rig.log.includes('flush'), false);
  assert.equal(lost.talk.state.ending.reason, 'failed');
  assert.equal(lost.sockets.length, 1);

  const left = await listening();
  left.talk.stop();
  left.socket.say({ type: 'stopped', session_id: 'hdx_1' });
  assert.ok(left.rig.log.includes('flush'));
  assert.ok(left.rig.log.includes('release'));
  assert.equal(left.talk.state.ending.reason, 'stopped');
});

test('a muted call sends nothing, the one after it is heard', async () => {
  const { rig, talk, socket, sockets, connection, clock } = await listening();
  talk.mute(true);
  rig.unit();
  assert.equal(chunks(socket), 0);
  talk.stop();
  socket.say({ type: 'stopped' });
  const next = new HalfDuplexCall(rig, clock.surroundings());
  await next.start({ options: () => ({}), microphone: {}, connection });

  assert.equal(rig.log.filter((line) => line.endsWith('mute')).at(-1), 'unmute');
  assert.equal(next.state.isMuted, false);
  sockets[1].accept();
  sockets[1].say({ type: 'queue_done' }, { type: 'prepared', session_id: 'hdx_2', timeout_s: 9 });
  rig.unit();
  assert.equal(next.state.sessionId, 'hdx_2');
  assert.equal(chunks(sockets[1]), 1);
});

test('sound that the system takes away and gives back', async () => {
  const { rig, talk } = await listening();
  rig.emit('suspended', {});
  assert.equal(talk.state.isSuspended, true);
  rig.emit('resumed', {});
  assert.equal(talk.state.isSuspended, false);
});

// Full duplex

const say = {
  duplex: {
    hello: [{ type: 'queue_done' }, { type: 'prepared', session_id: 'adx_1', prompt_length: 5 }],
    listen: (kv = 10) => ({
      type: 'result',
      is_listen: true,
      text: '',
      audio_data: '',
      end_of_turn: false,
      kv_cache_length: kv,
      wall_clock_ms: 90,
    }),
    speak: (text, count, last = false) => ({
      type: 'result',
      is_listen: false,
      text,
      audio_data: count ? sound(count) : '',
      end_of_turn: last,
      kv_cache_length: 20,
    }),
    units: (socket) => socket.sent.filter((message) => message.type === 'audio_chunk'),
  },
  realtime: {
    hello: [{ type: 'session.queue_done' }, { type: 'session.created', session_id: 'rt_1', prompt_length: 5 }],
    listen: (kv = 10) => ({ type: 'response.listen', kv_cache_length: kv }),
    speak: (text, count, last = false) => ({
      type: 'response.output_audio.delta',
      text,
      audio: count ? sound(count) : '',
      end_of_turn: last,
      kv_cache_length: 20,
    }),
    units: (socket) => socket.sent.filter((message) => message.type === 'input_audio_buffer.append'),
  },
};

async function call(dialect, options = {}) {
  const { clock, sockets, connection } = surroundings();
  const rig = new FakeRig();
  const talk = new DuplexCall(rig, clock.surroundings());
  const microphone = options.sound === 'file' ? null : {};
  const order = { dialect, mode: 'audio', microphone, connection, options: (said) => ({ instructions: `x${said}` }) };
  await talk.start({ ...order, ...options });
  const socket = sockets[0];
  socket.accept();
  socket.say(...say[dialect].hello);
  return { clock, rig, talk, socket, sockets, connection, words: say[dialect] };
}

for (const dialect of ['duplex', 'realtime']) {
  test(`${dialect}: an interrupted turn falls silent, a finished one plays out`, async () => {
    const { rig, talk, socket, words } = await call(dialect);
    socket.say(words.listen(), words.speak('One', 24000), words.speak(' two', 24000, true));
    rig.position(talk.turn, 1000);
    socket.say(words.listen());
    assert.equal(rig.log.includes('flush'), false);
    assert.equal(talk.state.activity, 'speaking');
    rig.position(talk.turn, 48000, false);
    rig.emit('drained', { turn: talk.turn });
    assert.equal(talk.state.activity, 'listening');

    socket.say(words.speak('Three four five', 24000));
    rig.position(talk.turn, 6000);
    socket.say(words.listen());
    assert.ok(rig.log.includes('flush'));
    assert.equal(talk.state.activity, 'listening');
    const spoken = talk.captions.list.filter((caption) => caption.who === 'assistant');
    assert.deepEqual(
      spoken.map((caption) => [caption.text, caption.isInterrupted]),
      [
        ['One two', false],
        ['Three four five', true],
      ],
    );
    assert.deepEqual(
      rig.plays().map((line) => line.split(' ')[1]),
      ['1', '1', '2'],
    );
  });

  test(`${dialect}: forcing to listen silences now and marks every unit`, async () => {
    const { rig, talk, socket, words } = await call(dialect);
    socket.say(words.speak('Never ending', 24000));
    talk.forceListen(true);
    socket.say(words.speak(' story', 24000));
    rig.unit();
    await settle();
    talk.forceListen(false);
    socket.say(words.listen(), words.speak('Fine', 24000));
    rig.unit();
    await settle();

    assert.deepEqual(
      words.units(socket).map((unit) => unit.force_listen ?? false),
      [true, false],
    );
    assert.deepEqual(rig.plays(), ['play 1 24000', 'play 2 24000']);
  });

  test(`${dialect}: one tap interrupts once`, async () => {
    const { rig, talk, socket, words } = await call(dialect);
    socket.say(words.speak('Never ending', 24000));
    talk.interrupt();
    for (let i = 0; i < 2; i++) {
      rig.unit();
      await settle();
    }
    socket.say(words.speak(' story', 24000), words.listen());

    assert.deepEqual(
      words.units(socket).map((unit) => unit.force_listen ?? false),
      [true, false],
    );
    assert.equal(rig.plays().length, 1);
  });

  test(`${dialect}: units keep their order although pictures take time`, async () => {
    const waiting = [];
    const frame = () => new Promise((resolve) => waiting.push(resolve));
    const { rig, socket, words } = await call(dialect, { frame });
    rig.second(0.1);
    rig.second(0.2);
    waiting[1]('Mg==');
    waiting[0]('MQ==');
    await settle();

    const frames = words.units(socket).map((unit) => unit.frame_base64_list ?? unit.video_frames);
    assert.deepEqual(
      frames.map((pictures, i) => [i, pictures]).filter(([, pictures]) => pictures),
      [
        [31, ['MQ==']],
        [62, ['Mg==']],
      ],
    );
  });
}

test('pause is complete when the server agrees and the voice has ended', async () => {
  const { rig, talk, socket, words } = await call('duplex');
  socket.say(words.speak('Last words', 24000, true));
  rig.position(talk.turn, 100);
  talk.pause();
  rig.unit();
  await settle();
  assert.equal(socket.types().at(-1), 'pause');
  socket.say({ type: 'paused', timeout: 60 });
  assert.equal(talk.state.phase, 'pausing');
  rig.position(talk.turn, 24000, false);
  rig.emit('drained', { turn: talk.turn });
  assert.equal(talk.state.phase, 'paused');
  talk.resume();
  socket.say({ type: 'resumed' });
  rig.unit();
  await settle();
  assert.equal(talk.state.phase, 'live');
  assert.equal(words.units(socket).length, 1);
});

test('realtime pauses by not sending', async () => {
  const { rig, talk, socket, words, clock } = await call('realtime');
  talk.pause();
  assert.equal(talk.state.phase, 'paused');
  rig.unit();
  await settle();
  assert.equal(words.units(socket).length, 0);
  clock.pass(100000);
  assert.equal(talk.leftS(), 500);
  assert.equal(talk.leftPart(), 500 / 600);
  talk.resume();
  rig.unit();
  await settle();
  assert.equal(words.units(socket).length, 1);
});

test('a file is sent by the clock, padded, and its end is not the end of the call', async () => {
  const feed = new FileFeed({
    samples: new Float32Array(16000 + 8000).fill(0.5),
    frames: ['QQ==', 'Qg=='],
    beforeS: 1,
    afterS: 1,
  });
  const { clock, talk, socket, words, rig } = await call('duplex', { sound: 'file', feed });
  for (let i = 0; i < 7; i++) {
    clock.pass(1000);
    await settle();
  }
  const units = words.units(socket);
  const first = (unit) => Buffer.from(unit.audio_base64, 'base64').readFloatLE(0);
  assert.deepEqual(
    units.map((unit) => [first(unit), unit.frame_base64_list[0]]),
    [
      [0, 'QQ=='],
      [0.5, 'QQ=='],
      [0.5, 'Qg=='],
      [0, 'Qg=='],
    ],
  );
  assert.equal(talk.state.phase, 'live');
  assert.equal(rig.log.includes('mic'), false, 'a file needs no microphone');
});

test('metrics say how the line is', async () => {
  const { clock, rig, talk, socket, words } = await call('duplex');
  assert.equal(talk.quality(), null);
  assert.equal(talk.leftPart(), null, 'this dialect has no limit');
  rig.second();
  await settle();
  clock.pass(300);
  socket.say(words.listen(4096));
  assert.equal(talk.metrics.responseMs, 90, 'as the server says');
  assert.equal(talk.metrics.contextTokens, 4096);
  assert.equal(talk.quality(), 'good');
  rig.second();
  await settle();
  socket.say({ ...words.listen(), wall_clock_ms: 1500 });
  assert.equal(talk.quality(), 'poor');
});

// Smaller things

test('captions follow the voice, whole words at a time', () => {
  const track = new CaptionTrack();
  track.add('The weather ', 0);
  track.add('is nice', 4800);
  track.add('', 19200);
  track.add(' today', 24000);
  track.complete();

  assert.equal(track.text.slice(0, track.hear(0)), '');
  assert.equal(track.text.slice(0, track.hear(6000)), 'The weather');
  assert.equal(track.text.slice(0, track.hear(24000)), 'The weather is nice');
  assert.equal(track.text.slice(0, track.hear(48000)), 'The weather is nice today');
});

test('chinese captions go sign by sign', () => {
  const track = new CaptionTrack();
  track.add('今天天气很好', 24000);
  assert.equal(track.text.slice(0, track.hear(12000)), '今天天');
});

test('an estimate falls, and rises only when the place changes', () => {
  let now = 0;
  const countdown = new Countdown(() => now);
  const at = (position, waitS) => countdown.update({ position, length: 5, waitS, ticketId: '' });
  at(3, 60);
  now = 10000;
  at(3, 70);
  assert.equal(countdown.read().leftS, 50);
  at(3, 20);
  assert.equal(countdown.read().leftS, 20);
  at(2, 40);
  assert.equal(countdown.read().leftS, 40);
  now = 55000;
  assert.equal(countdown.read().leftS, -5);
  at(2, null);
  assert.equal(countdown.read().leftS, -5);
  countdown.update(null);
  assert.equal(countdown.read(), null);
});

const settings = {
  system: [{ type: 'text', text: 'Be kind.' }],
  streaming: true,
  voice: true,
  ttsVoice: 'VVVV',
  maxNewTokens: 256,
  lengthPenalty: 1.1,
  detailed: true,
};

test('a chat request carries the history, the voice and the pictures', () => {
  const user = {
    id: 'a',
    role: 'user',
    at: 0,
    parts: [
      { type: 'image', data: 'SQ==' },
      { type: 'text', text: 'What is this?' },
    ],
  };
  const request = buildRequest([user], settings);

  assert.deepEqual(request.messages, [
    { role: 'system', content: 'Be kind.' },
    {
      role: 'user',
      content: [
        { type: 'image', data: 'SQ==' },
        { type: 'text', text: 'What is this?' },
      ],
    },
  ]);
  assert.deepEqual(request.tts, { enabled: true, mode: 'audio_assistant', ref_audio_data: 'VVVV' });
  assert.deepEqual(request.image, { max_slice_nums: 2 });
  const video = buildRequest([{ ...user, parts: [{ type: 'video', data: 'Vg==' }] }], settings);
  assert.deepEqual([video.omni_mode, video.image.max_slice_nums, video.tts.mode], [true, 1, 'omni']);
  // A long text is sent whole, in pieces that the server accepts.
  for (const text of ['a word '.repeat(20_000), 'x'.repeat(130_000)]) {
    const { content } = buildRequest([{ ...user, parts: [{ type: 'text', text }] }], settings).messages[1];
    assert.equal(content.map((part) => part.text).join(''), text);
    assert.deepEqual([content.length, content.every((part) => part.text.length <= 65_536)], [3, true]);
  }
});

test('an answer streams in, is kept when cancelled, and can be asked for again', () => {
  const { sockets, connection, clock } = surroundings();
  const heard = [];
  const talk = new ChatTalk({ connection, now: () => clock.now, onSound: (audio) => heard.push(audio.length) });
  talk.send([{ type: 'text', text: 'Hi' }], settings);
  sockets[0].accept();
  sockets[0].say({ type: 'prefill_done', input_tokens: 7 });
  clock.pass(100);
  sockets[0].say(
    { type: 'chunk', text_delta: 'Hel', audio_data: sound(100) },
    { type: 'chunk', text_delta: 'lo', audio_data: null },
  );
  sockets[0].say({
    type: 'done',
    text: 'Hello',
    generated_tokens: 2,
    input_tokens: 7,
    audio_data: null,
    recording_session_id: 'chat_1',
  });
  sockets[0].hangUp(1000);

  const answer = talk.messages[1];
  assert.equal(answer.parts[0].text, 'Hello');
  assert.deepEqual(
    [answer.timing.firstMs, answer.tokens, answer.sound.length, answer.recordingId],
    [100, { input: 7, output: 2 }, 100, 'chat_1'],
  );
  assert.deepEqual(heard, [100]);
  assert.equal(talk.phase, 'idle');

  talk.send([{ type: 'text', text: 'And?' }], settings);
  sockets[1].accept();
  sockets[1].say({ type: 'prefill_done', input_tokens: 9 }, { type: 'chunk', text_delta: 'Half', audio_data: null });
  talk.cancel();
  assert.deepEqual(sockets[1].types().at(-1), 'stop');
  sockets[1].say({ type: 'done', text: 'Half', generated_tokens: 1, input_tokens: 9, audio_data: null, stopped: true });
  assert.equal(talk.messages[3].isInterrupted, true);
  assert.equal(sockets[1].sent[0].messages.length, 4);

  talk.regenerate(settings);
  assert.deepEqual(
    talk.messages.map((message) => message.role),
    ['user', 'assistant', 'user', 'assistant'],
  );
  assert.equal(sockets[2].url, 'ws://parley.localhost/ws/chat?extensions=true');
});

test('an answer that is left belongs to the chat it was asked in', () => {
  const { sockets, connection } = surroundings();
  const talk = new ChatTalk({ connection });
  talk.send([{ type: 'text', text: 'Hi' }], settings);
  sockets[0].accept();
  const first = talk.messages;
  const other = [{ id: 'x', role: 'user', parts: [{ type: 'text', text: 'Other' }], at: 0 }];
  talk.cancel();
  talk.messages = other;
  sockets[0].say({ type: 'stopped', session_id: '' });

  assert.equal(other.length, 1);
  assert.deepEqual(
    first.map((message) => message.role),
    ['user'],
  );
});

test('a chat that is too long continues without its oldest half', () => {
  const { sockets, connection } = surroundings();
  const talk = new ChatTalk({ connection });
  const refuse = (socket) => {
    socket.accept();
    socket.say({ type: 'error', error: 'Too long', message: '', code: 'context_full' });
    socket.hangUp(1008);
  };
  talk.messages = ['a', 'b', 'c'].flatMap((id) => [
    { id, role: 'user', parts: [{ type: 'text', text: id }], at: 0 },
    { id: `${id}!`, role: 'assistant', parts: [{ type: 'text', text: `${id}!` }], at: 0 },
  ]);
  talk.send([{ type: 'text', text: 'd' }], settings);
  refuse(sockets[0]);

  assert.deepEqual(
    sockets.map(({ sent }) => sent[0]?.messages?.map(({ content }) => content)),
    [['Be kind.', 'a', 'a!', 'b', 'b!', 'c', 'c!', 'd'], undefined],
  );
  refuse(sockets[1]);
  refuse(sockets[2]);
  assert.deepEqual(
    sockets.map(({ sent }) => sent[0].messages.length),
    [8, 4, 2],
  );
  assert.equal(talk.messages.length, 8);
  assert.deepEqual([talk.messages[7].error, talk.phase], ['context_full', 'idle']);
  // The question alone is too long, so the others stay.
  assert.equal(buildRequest(talk.messages, settings).messages.length, 8);

  talk.send([{ type: 'text', text: 'e' }], settings);
  refuse(sockets[3]);
  assert.ok(buildRequest(talk.messages, settings).messages.length < 8);
  talk.cancel();
  sockets[4].hangUp(1000);
  talk.resend('c', [{ type: 'text', text: 'f' }], settings);
  assert.deepEqual(
    buildRequest(talk.messages, settings).messages.map(({ content }) => content),
    ['Be kind.', 'a', 'a!', 'b', 'b!', 'f'],
  );
});

test('a refused chat leaves its error in the answer', () => {
  const { sockets, connection } = surroundings();
  const talk = new ChatTalk({ connection });
  talk.send([{ type: 'text', text: 'Hi' }], settings);
  sockets[0].accept();
  sockets[0].say({ type: 'error', error: 'Queue full (3 requests)', message: '', code: 'queue_full' });
  sockets[0].hangUp(1013);

  assert.equal(talk.messages[1].error, 'queue_full');
  assert.equal(buildRequest(talk.messages, settings).messages.length, 2);
});

test('a file that the server cannot use does not come between later questions and their answers', () => {
  const { sockets, connection } = surroundings();
  const talk = new ChatTalk({ connection });
  const contents = ({ sent }) => sent[0].messages.slice(1).map(({ content }) => content);
  talk.send([{ type: 'video', data: 'Vg==' }], settings);
  sockets[0].accept();
  sockets[0].say({ type: 'error', error: 'The video has no picture track.', code: 'invalid_payload' });
  sockets[0].hangUp(1008);
  talk.regenerate(settings);
  sockets[1].accept();
  sockets[1].say({ type: 'error', error: 'The video has no picture track.', code: 'invalid_payload' });
  sockets[1].hangUp(1008);
  talk.send([{ type: 'text', text: 'Hi' }], settings);
  sockets[2].accept();

  assert.equal(talk.messages[1].why, 'The video has no picture track.');
  assert.deepEqual(contents(sockets[1]), [[{ type: 'video', data: 'Vg==' }]], 'it can be tried again');
  assert.deepEqual(contents(sockets[2]), ['Hi']);
});

async function waited(isAway) {
  const { clock, sockets, connection } = surroundings();
  const talk = new DuplexCall(new FakeRig(), clock.surroundings());
  talk.isAway = () => isAway;
  await talk.start({ dialect: 'realtime', mode: 'audio', options: () => ({}), microphone: {}, connection });
  sockets[0].accept();
  sockets[0].say(
    { type: 'session.queued', position: 1, queue_length: 1, estimated_wait_s: 5, ticket_id: 'q_1' },
    { type: 'session.queue_done' },
    { type: 'session.created', session_id: 'rt_1', prompt_length: 1 },
  );
  return { clock, talk, socket: sockets[0] };
}

test('whose turn comes while they are away gives the place back after 20 seconds', async () => {
  const { clock, talk, socket } = await waited(true);
  clock.pass(19_999);
  assert.equal(talk.state.phase, 'live');
  clock.pass(1);
  assert.equal(socket.types().at(-1), 'session.close');
  socket.say({ type: 'session.closed', reason: 'stopped' });

  assert.equal(talk.state.phase, 'ended');
  assert.equal(talk.state.hasGivenBack, true);
});

test('a glance or a word is enough to keep the place', async () => {
  const glanced = await waited(true);
  glanced.clock.pass(10_000);
  glanced.talk.noticed();
  const spoke = await waited(true);
  for (let i = 0; i < 8; i++) spoke.talk.rig.emit('level', { rms: 0.2, peak: 0.3 });
  const here = await waited(false);
  for (const { clock, talk } of [glanced, spoke, here]) {
    clock.pass(60_000);
    assert.equal(talk.state.phase, 'live');
  }
});

test('a door that slams is nobody speaking', async () => {
  const { clock, talk } = await waited(true);
  for (const rms of [0.4, 0.4, 0.01, 0.4, 0.01]) talk.rig.emit('level', { rms, peak: rms });
  clock.pass(20_000);
  assert.equal(talk.state.hasGivenBack, true);
});

test('a slow network is spoken of in seconds, and no longer than it is slow', async () => {
  const { clock, talk, socket } = await listening();
  socket.bufferedAmount = 1e9;
  for (let i = 0; i < 75; i++) talk.rig.unit();
  assert.deepEqual(talk.state.trouble, { kind: 'network', dropped: 0.416 });
  clock.pass(15_000);
  assert.equal(talk.state.trouble, null);
});

test('a voice that fails is a trouble of the call, a model that thinks is none', async () => {
  const { talk, socket } = await listening();
  socket.say({ type: 'status', reason: 'waiting_for_model', elapsed_ms: 2000 });
  assert.equal(talk.state.trouble, null);
  socket.say({ type: 'status', reason: 'voice_failed', elapsed_ms: 0 });
  assert.deepEqual(talk.state.trouble, { kind: 'server', code: 'voice_failed', sentence: '' });
});

test('while a phone call holds the sound, tapping does not pretend it is back', async () => {
  const { talk, rig } = await listening();
  rig.emit('suspended', {});
  rig.isHeld = true;
  await talk.wake();
  assert.equal(talk.state.isSuspended, true);
  rig.isHeld = false;
  rig.emit('resumed', {});
  assert.equal(talk.state.isSuspended, false);
});

test('on an even line a turn is heard sooner; after a hole nothing is taken on trust', () => {
  const start = new HeadStart();
  assert.equal(start.ms(300), 200, 'nothing is known yet');
  for (const ms of [300, 310, 305]) start.answered(ms);
  assert.equal(start.ms(310), 40, 'slow, but even');
  assert.equal(start.ms(310, { ms: 0, isFixed: false }), 0, 'never more than was allowed');
  assert.equal(start.ms(340), 10, 'the next is sooner than the one with which the turn begins');
  assert.equal(start.ms(600), 0, 'and much sooner');
  assert.equal(start.ms(230), 120);
  start.answered(900);
  assert.equal(start.ms(300), 200);
  for (let i = 0; i < 8; i++) start.answered(300);
  assert.equal(start.ms(300), 40, 'what was long ago is forgotten');
  start.gap();
  for (let i = 0; i < 19; i++) start.answered(300);
  assert.equal(start.ms(300), 200);
  start.answered(300);
  assert.equal(start.ms(300), 40);
});

test('that a model listens quickly does not show that it speaks quickly', () => {
  const start = new HeadStart();
  for (const ms of [50, 60, 55]) start.answered(ms, false);
  assert.equal(start.ms(300), 40, 'the next part may take as long as the first');
  start.answered(400, false);
  assert.equal(start.ms(300), 150, 'but an uneven line counts');
  for (const ms of [100, 110, 105]) start.answered(ms);
  for (let i = 0; i < 8; i++) start.answered(50, false);
  assert.equal(start.ms(300), 0, 'later parts take less time than the first');
  start.answered(500, false);
  assert.equal(start.ms(100), 40, 'nor does a model that recognises words slowly speak slowly');
});

test('a clock that is set spoils the sign of quality for half a minute, not for ever', async () => {
  const { talk, socket, words } = await call('duplex');
  const listen = (agoS) => ({ ...words.listen(), wall_clock_ms: 90, server_send_ts: Date.now() / 1000 - agoS });
  socket.say(listen(0));
  socket.say(listen(60));
  assert.ok(talk.metrics.responseMs > 50_000);
  for (let i = 0; i < 30; i++) socket.say(listen(60));
  assert.ok(talk.metrics.responseMs < 5000);
});

test('who has set the wait gets it', async () => {
  for (const [isFixed, wait] of [
    [false, 40],
    [true, 500],
  ]) {
    const { socket, rig, words } = await call('realtime', { delay: { ms: 500, isFixed } });
    for (let i = 0; i < 3; i++) {
      rig.second();
      await settle();
      socket.say(words.listen());
    }
    rig.second();
    await settle();
    socket.say(words.speak('So', 24000));
    assert.equal(rig.delayMs, wait);
  }
});

test('a unit of a mix says how loud each part of it is, and a gain is heard in the next one', () => {
  const samples = new Float32Array(32000).fill(0.5);
  const feed = new FileFeed({ samples, source: 'mixed', gain: { mic: 1, file: 0.5 } });
  const mic = new Float32Array(16000);
  mic.fill(0.25, 8000);
  const { levels } = feed.next(mic);
  assert.deepEqual(levels.file, new Array(10).fill(0.25));
  assert.deepEqual(levels.mic, [0, 0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25, 0.25]);
  assert.deepEqual(levels.mix, [0.25, 0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5]);
  feed.gain = { mic: 1, file: 0.1 };
  const next = feed.next(mic, true);
  assert.ok(Math.abs(next.levels.mix[9] - 0.05) < 1e-6, 'and who is muted is not in it');
  assert.deepEqual(next.levels.mic, new Array(10).fill(0));
});
