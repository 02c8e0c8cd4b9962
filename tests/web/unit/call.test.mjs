/** One object per call: what a person sees is true at every moment, and nothing outlives its call. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { present } from '../../../src/parley/web/pages/call/stage.js';
import { AnswerTime } from '../../../src/parley/web/talk/answer-time.js';
import { interruptionOf } from '../../../src/parley/web/talk/barge.js';
import { Calls } from '../../../src/parley/web/talk/calls.js';
import { DuplexCall } from '../../../src/parley/web/talk/duplex.js';
import { linesOf, plainText, srt, vtt } from '../../../src/parley/web/talk/export.js';
import { HalfDuplexCall } from '../../../src/parley/web/talk/half-duplex.js';
import { mayFollow } from '../../../src/parley/web/talk/phases.js';
import { QualityMeter } from '../../../src/parley/web/talk/quality.js';
import { FakeRig, settle, sound, surroundings } from '../support/fakes.mjs';
import { secondsIn } from '../support/sound.mjs';

const hello = (id = 'rt_1') => [
  { type: 'session.queue_done' },
  { type: 'session.created', session_id: id, prompt_length: 5, recording_session_id: `${id}_rec` },
];
const listen = { type: 'response.listen', kv_cache_length: 10 };
const speak = (text, count, last = false) => ({
  type: 'response.output_audio.delta',
  text,
  audio: sound(count),
  end_of_turn: last,
  kv_cache_length: 20,
});
const units = (socket) => socket.sent.filter(({ type }) => type === 'input_audio_buffer.append');
const instructions = (socket) => socket.sent.find(({ type }) => type === 'session.update').session.instructions;
const lines = (call) => call.captions.list.map(({ who, key, text }) => (who === 'note' ? key : `${who}: ${text}`));

/** A page with one kind of call and fakes around it. */
function page(more = {}) {
  const { clock, sockets, connection } = surroundings();
  const rig = new FakeRig();
  const calls = new Calls(() => new DuplexCall(rig, clock.surroundings()));
  const options = (said) => ({ instructions: said ? `Be kind.\n${said}` : 'Be kind.' });
  const order = { dialect: 'realtime', mode: 'audio', options, microphone: {}, connection, ...more };
  /** Time passes and the sound card ticks. */
  const seconds = async (count, answer) => {
    for (let i = 0; i < count; i++) {
      rig.second();
      await settle();
      if (answer) sockets.at(-1).say(answer);
      clock.pass(1000);
    }
  };
  return { clock, sockets, rig, calls, order, seconds };
}

async function live(more) {
  const all = page(more);
  await all.calls.start(all.order);
  all.sockets[0].accept();
  all.sockets[0].say(...hello());
  return { ...all, call: all.calls.current, socket: all.sockets[0] };
}

test('W1: the click itself begins the call, and a second one finds it busy', async () => {
  const { calls, order, sockets, rig } = page();
  let allow;
  const question = new Promise((resolve) => {
    allow = resolve;
  });
  const first = calls.start(async () => {
    await question;
    return order;
  });
  assert.equal(calls.state.phase, 'starting');
  const call = calls.current;
  const second = await calls.start(order);
  allow();
  await first;

  assert.equal(second, false);
  assert.equal(calls.current, call);
  assert.equal(sockets.length, 1);
  sockets[0].accept();
  sockets[0].say(...hello());
  rig.unit();
  await settle();
  assert.equal(units(sockets[0]).length, 1, 'it hears the person');
  calls.stop();
  assert.equal(sockets[0].types().at(-1), 'session.close', 'and it can be hung up');
});

test('W1: anyone who thinks better of it while the camera question is open takes no place', async () => {
  const { calls, order, sockets, rig } = page();
  let allow;
  const started = calls.start(
    () =>
      new Promise((resolve) => {
        allow = () => resolve(order);
      }),
  );
  calls.stop();
  allow();

  assert.equal(await started, false);
  assert.equal(calls.state.phase, 'ended');
  assert.equal(calls.state.ending.reason, 'not_started');
  assert.equal(sockets.length, 0);
  assert.ok(!rig.log.includes('mic'), 'nor the microphone');
});

test('W1: a microphone that is allowed after hanging up is let go', async () => {
  const { calls, order, sockets, rig } = page();
  let allow;
  rig.connectMicrophone = () =>
    new Promise((resolve) => {
      allow = resolve;
    });
  const started = calls.start(order);
  await settle();
  calls.stop();
  allow();

  assert.equal(await started, false);
  assert.equal(rig.log.at(-1), 'release');
  assert.equal(sockets.length, 0);
});

test('a call passes through states that make sense only', () => {
  assert.ok(mayFollow('idle', 'starting') && mayFollow('live', 'reconnecting') && mayFollow('reconnecting', 'queued'));
  for (const [from, to] of [
    ['idle', 'live'],
    ['ended', 'starting'],
    ['ending', 'live'],
    ['starting', 'live'],
  ]) {
    assert.equal(mayFollow(from, to), false, `${from} → ${to}`);
  }
});

test('W5: after an interruption the assistant is known to be silent', async () => {
  const { call, socket, rig } = await live();
  socket.say(speak('Once upon a time', 24000));
  rig.position(call.turn, 4000);
  socket.say(listen);
  // The last report of the fade, as the playback worklet sends it.
  rig.position(call.turn, 4100, false);

  assert.equal(call.state.activity, 'listening');
  let voice = 1;
  call.addEventListener('level', ({ detail }) => {
    voice = detail.voice;
  });
  for (let i = 0; i < 10; i++) rig.emit('level', { rms: 0.4, peak: 0.5 });
  assert.equal(voice, 0, 'its bars stand still');
  rig.unit();
  await settle();
  assert.equal(units(socket).at(-1).force_listen ?? false, false, 'nobody is interrupted who is silent');
  call.pause();
  assert.equal(call.state.phase, 'paused');
});

test('W6: a server that gives no answer is said to be slow, then silent, then called again', async () => {
  const { call, sockets, seconds } = await live();
  await seconds(3, listen);
  assert.equal(call.state.service, 'ok');
  await seconds(5);
  assert.equal(call.state.service, 'slow');
  assert.equal(call.quality(), 'poor');
  await seconds(6);
  assert.equal(call.state.service, 'silent');
  assert.ok(call.state.waitedS >= 9, `${call.state.waitedS} s`);
  await seconds(12);

  assert.equal(call.state.phase, 'reconnecting');
  assert.equal(sockets.length, 2, 'the dead line was given up and another one dialled');
  sockets[1].accept();
  sockets[1].say(...hello('rt_2'));
  assert.equal(call.state.phase, 'live');
  await seconds(2, listen);
  assert.equal(call.state.service, 'ok');
  assert.equal(secondsIn(units(sockets[1]).length), 2);
});

test('W6: while an answer is heard, no answer is said to be missing', () => {
  for (const service of ['slow', 'silent'])
    for (const [activity, key] of [
      ['thinking', `state.${service}`],
      ['speaking', 'state.speaking'],
    ])
      assert.equal(present({ calls: { state: { phase: 'live', activity, service } } }).key, key);
});

test('W6: answers that come again are believed immediately', async () => {
  const { call, seconds } = await live();
  await seconds(6);
  assert.equal(call.state.service, 'slow');
  await seconds(1, listen);
  assert.equal(call.state.service, 'ok');
  assert.equal(call.state.waitedS, 0);
});

test('W6: without a network it says so, and calls again when it is back', async () => {
  const { call, clock, sockets, seconds } = await live();
  await seconds(2, listen);
  clock.network.dispatchEvent(new Event('offline'));
  assert.equal(call.state.isOffline, true);
  await seconds(30);
  sockets[0].hangUp(1006);
  assert.equal(call.state.phase, 'reconnecting');
  clock.pass(10_000);
  assert.equal(sockets.length, 1, 'there is nowhere to dial to');
  clock.network.dispatchEvent(new Event('online'));
  clock.pass(500);

  assert.equal(call.state.isOffline, false);
  assert.equal(sockets.length, 2);
});

test('W6: what cannot connect dials again as soon as the network is back', async () => {
  const { clock, sockets, calls, order } = page();
  await calls.start(order);
  sockets[0].hangUp(1006);
  clock.network.dispatchEvent(new Event('online'));
  assert.equal(sockets.length, 2, 'no pause is waited for');
  clock.network.dispatchEvent(new Event('online'));
  clock.pass(1000);

  assert.equal(sockets.length, 2, 'who dials already is left alone');
});

test('W6: a network that stays away ends the call', async () => {
  const { call, clock, sockets } = await live();
  clock.network.dispatchEvent(new Event('offline'));
  sockets[0].hangUp(1006);
  clock.pass(60_000);

  assert.equal(call.state.phase, 'ended');
  assert.equal(call.state.ending.reason, 'lost');
  assert.ok(call.state.ending.wasReady, 'it can be gone on with');
});

test('a paused call waits for no answer', async () => {
  const { call, clock, seconds } = await live();
  await seconds(1, listen);
  call.pause();
  clock.pass(120_000);
  assert.equal(call.state.phase, 'paused');
  assert.equal(call.state.service, 'ok');
});

test('a lost call is dialled again with what both have said', async () => {
  const { call, clock, sockets, rig } = await live();
  call.captions.heardYou('a', 'What is the tallest mountain?', true);
  sockets[0].say(speak('Mount Everest. And the', 24000), speak(' second', 24000));
  rig.position(call.turn, 24000);
  sockets[0].hangUp(1006);
  assert.equal(call.state.phase, 'reconnecting');
  clock.pass(500);
  sockets[1].accept();
  sockets[1].say({ type: 'session.queue_done' });

  assert.equal(
    instructions(sockets[1]),
    'Be kind.\nUser: What is the tallest mountain?\nAssistant: Mount Everest. And the',
  );
  sockets[1].say(hello('rt_2')[1]);
  assert.equal(call.state.phase, 'live');
  assert.equal(call.state.sessionId, 'rt_2');
  assert.deepEqual(
    lines(call).filter((line) => line.startsWith('note')),
    ['note.connected', 'note.reconnecting', 'note.reconnected'],
  );
});

test('a session that waits is continued: the voice plays on, and nothing is said twice', async () => {
  const { call, clock, sockets, rig } = await live();
  const token = { resume_token: 't', resume_window_s: 30 };
  sockets[0].say({ type: 'session.created', session_id: 'rt_1', prompt_length: 5, ...token, seq: 1, received: 1 });
  sockets[0].say({ ...speak('Once upon ', 24000), seq: 2, received: 1 });
  sockets[0].hangUp(1006);
  assert.equal(call.state.phase, 'live');
  assert.ok(call.state.isReturning);
  assert.ok(!rig.log.includes('flush') && !rig.log.includes(`end ${call.turn}`), 'what has come is heard');
  clock.pass(100);
  sockets[1].accept();
  sockets[1].say({ type: 'session.resumed', session_id: 'rt_1', ...token, generation: 1, seq: 3, received: 1 });
  sockets[1].say({ ...speak('a time', 24000, true), seq: 3, received: 1 });

  assert.equal(call.state.isReturning, false);
  assert.equal(instructions(sockets[0]), 'Be kind.');
  assert.equal(sockets[1].sent.filter(({ type }) => type === 'session.update').length, 0);
  assert.equal(call.captions.list.findLast(({ who }) => who === 'assistant').text, 'Once upon a time');
  assert.ok(lines(call).includes('note.returned'));
});

test('W6: without a connection no answer is called slow', async () => {
  const { call, sockets, seconds } = await live();
  const token = { resume_token: 't', resume_window_s: 30 };
  sockets[0].say({ type: 'session.created', session_id: 'rt_1', prompt_length: 5, ...token, seq: 1, received: 1 });
  await seconds(3, listen);
  assert.equal(call.quality(), 'good');
  sockets[0].hangUp(1006);
  assert.ok(call.state.isReturning);
  assert.equal(call.quality(), null);
});

test('W6: a network that stands still is not called a slow server', async () => {
  const { call, sockets, seconds } = await live();
  const token = { resume_token: 't', resume_window_s: 30 };
  sockets[0].say({ type: 'session.created', session_id: 'rt_1', prompt_length: 5, ...token, seq: 1, received: 1 });
  await seconds(3, listen);
  assert.equal(call.state.isStalled, false);
  await seconds(3);
  assert.equal(call.state.isStalled, true);
  sockets[0].say({ type: 'session.input_ack', received: 2, arrived: 188 });
  await seconds(1);
  assert.equal(call.state.isStalled, false);
  assert.equal(call.state.service, 'slow', 'it is the server');
});

test('a muted or paused person is so after a reconnection too', async () => {
  const { call, clock, sockets, rig } = await live();
  call.mute(true);
  call.pause();
  sockets[0].hangUp(1006);
  clock.pass(500);
  sockets[1].accept();
  sockets[1].say(...hello('rt_2'));

  assert.equal(call.state.isMuted, true);
  assert.equal(rig.log.filter((line) => line.endsWith('mute')).at(-1), 'mute');
  assert.equal(call.state.phase, 'paused');
});

test('a server that cannot be reached again ends the call; hanging up ends the attempt', async () => {
  const lost = await live();
  lost.sockets[0].hangUp(1006);
  lost.clock.pass(500);
  for (let i = 1; i <= 6; i++) {
    lost.sockets.at(-1).hangUp(1006);
    lost.clock.pass(10_000);
  }
  assert.equal(lost.call.state.ending.reason, 'lost');
  assert.ok(lost.call.state.ending.wasReady);

  const left = await live();
  left.sockets[0].hangUp(1006);
  left.calls.stop();
  left.clock.pass(5000);
  assert.equal(left.call.state.ending.reason, 'stopped');
  assert.equal(left.sockets.length, 1);
  assert.ok(left.rig.log.includes('release'));
});

test('a call that breaks again and again is given up', async () => {
  const { call, clock, sockets } = await live();
  for (let i = 0; i < 4; i++) {
    sockets.at(-1).hangUp(1006);
    clock.pass(500);
    if (call.state.phase === 'ended') break;
    sockets.at(-1).accept();
    sockets.at(-1).say(...hello(`rt_${i + 2}`));
  }
  assert.equal(sockets.length, 4, 'three times within two minutes');
  assert.equal(call.state.ending.reason, 'lost');
});

test('a call whose memory is full continues in a new one with the latest of what was said', async () => {
  const { call, clock, sockets, rig, seconds } = await live({ said: 'User: hello' });
  await seconds(21, listen);
  sockets[0].say(speak('The capital is Vientiane.', 24000, true));
  rig.emit('drained', { turn: call.turn });
  sockets[0].say({ type: 'session.closed', reason: 'context_full' });
  assert.equal(call.state.phase, 'reconnecting');
  assert.ok(call.state.isRenewing);
  clock.pass(500);
  sockets[1].accept();
  sockets[1].say(...hello('rt_2'));

  assert.equal(instructions(sockets[1]), 'Be kind.\nUser: hello\nAssistant: The capital is Vientiane.');
  assert.equal(call.state.phase, 'live');
  assert.equal(call.state.isRenewing, false);
  assert.deepEqual(
    lines(call).filter((line) => line.startsWith('note')),
    ['note.connected', 'note.renewed'],
  );
  sockets[1].say({ type: 'session.closed', reason: 'context_full' });
  assert.equal(call.state.phase, 'ended', 'a memory that is full at once is no use');
  assert.equal(call.state.ending.reason, 'context_full');
});

test('what is carried over stays bounded from call to call', async () => {
  const { call, sockets, rig } = await live({ said: 'x'.repeat(3990) });
  sockets[0].say(speak('The newest words of all of them', 24000, true));
  rig.emit('drained', { turn: call.turn });
  const carried = call.captions.said(call.order.said);
  assert.equal(carried.length, 4000);
  assert.ok(carried.endsWith('The newest words of all of them'));
});

test('W7: the sign of quality recovers, and is gone with the call', async () => {
  const { call, calls, clock, rig, seconds } = await live();
  await seconds(3, listen);
  assert.equal(call.quality(), 'good');
  rig.emit('gap', { turn: 1, index: 1, ms: 80 });
  assert.equal(call.quality(), 'fair');
  await seconds(11, listen);
  assert.equal(call.quality(), 'good', 'ten seconds later it is forgotten');
  calls.stop();
  clock.pass(2000);
  assert.equal(call.quality(), null);
});

test('W7: what could not be sent is forgotten too', () => {
  const meter = new QualityMeter();
  assert.equal(meter.grade(0), null);
  meter.answered(300);
  meter.dropped(1000);
  assert.equal(meter.grade(2000), 'poor');
  assert.equal(meter.grade(11_500), 'good');
  for (const ms of [2000, 300, 300, 300]) meter.answered(ms);
  assert.equal(meter.grade(12_000), 'good', 'one slow answer among quick ones');
  assert.equal(meter.grade(12_000, 4000), 'poor', 'nobody answers now');
});

test('W14: a second call has words of its own', async () => {
  const { calls, call, socket, rig, clock, order, sockets } = await live();
  socket.say(speak('The first call', 24000, true));
  rig.position(call.turn, 24000);
  calls.stop();
  socket.say({ type: 'session.closed', reason: 'stopped' });
  await calls.start(order);
  sockets[1].accept();
  sockets[1].say(...hello('rt_2'));

  assert.deepEqual(lines(calls.current), ['note.connected']);
  assert.ok(lines(call).includes('assistant: The first call'), 'the first keeps its own');
  assert.equal(instructions(sockets[1]), 'Be kind.');
  clock.pass(0);
});

test('a call that continues from another begins with what was said in it', async () => {
  const { sockets } = await live({ said: 'User: I am Ann.' });
  assert.equal(instructions(sockets[0]), 'Be kind.\nUser: I am Ann.');
});

test('W19: the last sentence is heard and followed after the server has gone', async () => {
  const { call, socket, rig } = await live();
  socket.say(speak('Good bye and thanks', 48000));
  rig.position(call.turn, 12000);
  socket.hangUp(1011);
  rig.position(call.turn, 30000);
  const heard = call.captions.list.find(({ who }) => who === 'assistant').heard;
  rig.emit('drained', { turn: call.turn });
  rig.position(call.turn, 48000, false);
  rig.position(call.turn, 1, true);

  assert.ok(heard > 10, 'captions follow the voice to its end');
  assert.equal(call.captions.said(), 'Assistant: Good bye and thanks');
  assert.equal(call.position.sounding, false, 'and then nothing is listened to any more');
});

test('the server says who interrupts: softer while it wonders, silent when it is sure', async () => {
  const { call, socket, rig } = await live();
  const interruption = (state) => ({ type: 'response.interruption', state, index: 1, heard_ms: 500, text: 'A' });
  const ducks = [];
  rig.duck = (on) => ducks.push(on);
  socket.say(speak('A long story', 48000));
  rig.position(call.turn, 4000);
  socket.say(interruption('suspected'), interruption('dismissed'), interruption('suspected'));
  assert.deepEqual(ducks, [true, false, true]);
  assert.ok(!rig.log.includes('flush'));

  socket.say(interruption('stopped'));
  assert.ok(rig.log.includes('flush'));
  assert.equal(ducks.at(-1), false, 'its next words are as loud as ever');
  assert.equal(call.state.activity, 'listening');
  assert.ok(call.captions.list.at(-1).isInterrupted);
  rig.position(call.turn, 4100, false);
  const flushes = rig.log.filter((line) => line === 'flush').length;
  socket.say(listen, interruption('stopped'));
  assert.equal(rig.log.filter((line) => line === 'flush').length, flushes, 'silence needs no silencing');
  rig.unit();
  await settle();
  assert.equal(units(socket).filter((unit) => unit.force_listen).length, 0, 'the server knows already');
});

test('what the server is asked to do when a person speaks over the assistant', () => {
  assert.deepEqual(['policy', 'stop', 'duck', 'wait'].map(interruptionOf), [
    { mode: 'stop' },
    { mode: 'stop', backchannel: 'heed' },
    { mode: 'duck' },
    undefined,
  ]);
});

test('W20: a loudspeaker that the microphone hears is noticed', async () => {
  const { call, socket, rig } = await live();
  socket.say(speak('A long story', 480000));
  for (let i = 0; i < 70; i++) {
    const level = 0.1 + 0.09 * Math.sin(i);
    rig.emit('position', {
      turn: call.turn,
      played: i,
      heard: i,
      sounding: true,
      level,
      aheadMs: 1,
      gaps: 0,
      shiftMs: 0,
    });
    rig.emit('level', { rms: level * 0.9, peak: 1 });
  }
  assert.equal(call.hasEcho, true);
});

test('W21: the time left is counted from the limit that the server reports', async () => {
  const told = await live({ limitS: 90 });
  told.clock.pass(30_000);
  assert.equal(told.call.leftS(), 60);
  const unlimited = await live({ limitS: null });
  assert.equal(unlimited.call.leftS(), null);
  unlimited.clock.pass(1_740_000);
  unlimited.socket.say({ type: 'session.going_away', time_left_s: 60, reason: 'time' });
  unlimited.clock.pass(20_000);
  assert.equal(unlimited.call.leftS(), 40);
});

test('W15: another microphone in mid-call belongs to the call', async () => {
  const { call, calls, rig, socket } = await live();
  rig.permission = new Error('none');
  rig.emit('mic-lost', {});
  await settle();
  assert.equal(call.state.hasLostMic, true);
  rig.permission = null;
  await call.useMicrophone({ deviceId: 'two' });
  assert.equal(call.state.hasLostMic, false);
  calls.stop();
  socket.say({ type: 'session.closed', reason: 'stopped' });
  await call.useMicrophone({ deviceId: 'three' });
  assert.equal(rig.log.at(-1), 'release', 'a call that is over holds no microphone');
});

test('W15: a microphone that is unplugged is replaced by another one, or by itself when it is back', async () => {
  const { call, clock, rig } = await live();
  rig.emit('mic-lost', {});
  await settle();
  assert.equal(call.state.hasLostMic, false, 'there was another one');
  rig.emit('mic-lost', {});
  await settle();
  assert.equal(call.state.hasLostMic, true, 'one that fails again immediately is not opened in a loop');

  clock.pass(10_000);
  const opened = () => rig.log.filter((line) => line === 'mic').length;
  const before = opened();
  rig.permission = new Error('none');
  rig.emit('mic-lost', {});
  rig.emit('devices', {});
  await settle();
  assert.equal(call.state.hasLostMic, true);
  rig.permission = null;
  rig.emit('devices', {});
  await settle();
  assert.equal(call.state.hasLostMic, false, 'it was plugged in again');
  rig.emit('devices', {});
  assert.equal(opened(), before + 1, 'a microphone that works is left alone');
});

test('a recording in the browser belongs to its call', async () => {
  const made = [];
  const recorder = async () => {
    const log = [];
    made.push(log);
    return {
      start: async () => log.push('start'),
      pause: (on) => log.push(on ? 'pause' : 'go on'),
      stop: async () => {
        log.push('stop');
        return new Blob(['x']);
      },
    };
  };
  const { call, calls, socket, clock, sockets } = await live({ recorder });
  await settle();
  call.pause();
  call.resume();
  sockets[0].hangUp(1006);
  clock.pass(500);
  sockets[1].accept();
  sockets[1].say(...hello('rt_2'));
  await settle();
  const told = new Promise((resolve) => calls.addEventListener('recorded', ({ detail }) => resolve(detail)));
  calls.stop();
  sockets[1].say({ type: 'session.closed', reason: 'stopped' });
  assert.equal((await told).size, 1);
  assert.deepEqual(made, [['start', 'pause', 'go on', 'stop']], 'one for the whole call, reconnection included');
  assert.equal(socket.types().includes('session.close'), false);
});

test('half-duplex: an answer that does not come is missed; silence of the person is not', async () => {
  const { clock, sockets, connection } = surroundings();
  const call = new HalfDuplexCall(new FakeRig(), clock.surroundings());
  await call.start({ options: () => ({}), microphone: {}, connection });
  sockets[0].accept();
  sockets[0].say({ type: 'queue_done' }, { type: 'prepared', session_id: 'hdx_1', timeout_s: 180 });
  clock.pass(60_000);
  assert.equal(call.state.service, 'ok', 'nobody has asked anything');
  sockets[0].say({ type: 'generating', speech_duration_ms: 900 });
  clock.pass(5000);
  assert.equal(call.state.service, 'slow');
  sockets[0].say({ type: 'chunk', text_delta: 'Here', audio_data: null });
  clock.pass(2000);
  assert.equal(call.state.service, 'ok');
  clock.pass(22_000);
  assert.equal(call.state.phase, 'reconnecting');
});

// Words of both sides

test('what the person says is written where the server writes it down', async () => {
  const { call, clock } = await live();
  call.client.emit('heard_text', { id: 'u1', text: 'How', isFinal: false });
  assert.equal(call.state.activity, 'hearing');
  call.client.emit('heard_text', { id: 'u1', text: 'How are you?', isFinal: true });
  assert.deepEqual(lines(call), ['note.connected', 'you: How are you?']);
  const listens = () => call.client.emit('listen', { contextTokens: 1, costs: {} });
  listens();
  assert.equal(call.state.activity, 'thinking', 'an answer is due');
  clock.pass(3500);
  listens();
  assert.equal(call.state.activity, 'listening', 'it was not for the assistant');
});

test('half-duplex: a turn that was written has its words already', async () => {
  const { clock, sockets, connection } = surroundings();
  const call = new HalfDuplexCall(new FakeRig(), clock.surroundings());
  await call.start({ options: () => ({}), microphone: {}, connection });
  sockets[0].accept();
  sockets[0].say({ type: 'queue_done' }, { type: 'prepared', session_id: 'hdx_1', timeout_s: 180 });
  call.captions.wrote('What is this?');
  sockets[0].say({ type: 'generating', speech_duration_ms: 0 });
  sockets[0].say({ type: 'chunk', text_delta: 'A cup.', audio_data: '' });
  const said = call.captions.list.filter(({ who }) => who !== 'note').map(({ who, text }) => [who, text]);
  assert.deepEqual(said, [
    ['you', 'What is this?'],
    ['assistant', 'A cup.'],
  ]);
});

test('half-duplex: the length of what was said gives way to its words', async () => {
  const { clock, sockets, connection } = surroundings();
  const call = new HalfDuplexCall(new FakeRig(), clock.surroundings());
  await call.start({ options: () => ({}), microphone: {}, connection });
  sockets[0].accept();
  sockets[0].say({ type: 'queue_done' }, { type: 'prepared', session_id: 'hdx_1', timeout_s: 180 });
  sockets[0].say({ type: 'generating', speech_duration_ms: 900 });
  assert.equal(call.captions.list.at(-1).key, 'caption.you_spoke');
  sockets[0].say({ type: 'input_transcript', index: 0, text: 'Good morning.' });
  const said = call.captions.list.filter(({ who }) => who === 'you');
  assert.deepEqual(
    said.map(({ text, key }) => [text, key]),
    [['Good morning.', undefined]],
  );
});

const t = (key, values) =>
  ({ 'who.you': 'You', 'who.assistant': 'It', 'who.note': '', 'note.connected': 'connected' })[key] ??
  `${key} ${JSON.stringify(values ?? {})}`;

test('W14: only what was heard is copied, and an interruption is marked once', async () => {
  const { call, clock, socket, rig, calls } = await live();
  clock.pass(2000);
  call.captions.heardYou('a', 'Tell me\n\na <story>', true);
  socket.say(speak('Once upon a time ', 24000), speak('there was a king', 24000));
  clock.pass(1000);
  rig.position(call.turn, 6000);
  clock.pass(1000);
  rig.position(call.turn, 12000);
  socket.say(listen);
  calls.stop();

  const found = linesOf(call.captions.list, t);
  const text = plainText(found, 'interrupted');
  assert.match(text, /^— connected —\nYou: Tell me\n\na <story>\nIt: Once upon… \(interrupted\)/);
  assert.ok(!text.includes('king') && !text.includes('(('));
  assert.match(
    srt(found),
    /^1\n00:00:02,000 --> 00:00:03,000\nYou: Tell me a <story>\n\n2\n00:00:03,000 --> 00:00:04,200\nIt: Once upon\n$/,
  );
  assert.match(vtt(found), /^WEBVTT\n\n00:00:02\.000 --> 00:00:03\.000\n<v You>Tell me a &lt;story&gt;\n/);
});

test('the wait for an answer is from the last word to the first sound, whatever the room does', () => {
  const time = new AnswerTime();
  /** Levels every 50 ms. @type {[ms: number, mic: number, voice: number][]} */
  const parts = [
    [1000, 0.004, 0],
    [1500, 0.12, 0],
    [150, 0.005, 0],
    [800, 0.09, 0],
    [1250, 0.004, 0],
    // A click is not a word.
    [50, 0.3, 0],
    [400, 0.004, 0],
    // It answers, and is heard by the microphone.
    [2000, 0.06, 0.2],
    [200, 0.005, 0],
    [600, 0.05, 0.2],
    // The person says something while it draws breath.
    [350, 0.12, 0],
    [600, 0.05, 0.2],
  ];
  const told = [];
  let now = 0;
  for (const [ms, mic, voice] of parts) {
    for (const end = now + ms; now < end; now += 50) told.push(time.note({ mic, voice }, now, 40));
  }
  const [waited, ...more] = told.filter((ms) => ms !== null);
  assert.ok(Math.abs(waited - (1250 + 450 + 50 + 40)) <= 50, `${waited} ms`);
  assert.deepEqual(more, [], 'what it says on its own answers nothing');
});

test('a microphone that gives nothing does not look like a conversation', async () => {
  const { calls, clock, rig, seconds } = await live();
  for (let i = 0; i < 3; i++) {
    rig.emit('level', { rms: 0, peak: 0 });
    await seconds(1, listen);
  }
  assert.equal(calls.state.hasNoSound, false, 'silence is sound');
  for (let i = 0; i < 4; i++) clock.pass(1000);
  assert.equal(calls.state.hasNoSound, true);
  rig.emit('level', { rms: 0.1, peak: 0.1 });
  assert.equal(calls.state.hasNoSound, false);
});
