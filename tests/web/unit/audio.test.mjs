import assert from 'node:assert/strict';
import { test } from 'node:test';

import { EchoWatch } from '../../../src/parley/web/audio/echo.js';
import { PlaybackBuffer } from '../../../src/parley/web/audio/jitter.js';
import { gainFor, loudness } from '../../../src/parley/web/audio/loudness.js';
import { mixInto } from '../../../src/parley/web/audio/mixer.js';
import { latencyOf, Rig } from '../../../src/parley/web/audio/rig.js';
import { Resampler, resample } from '../../../src/parley/web/audio/resample.js';
import { LevelMeter, UnitGatherer } from '../../../src/parley/web/audio/units.js';
import { Unheard } from '../../../src/parley/web/audio/unheard.js';
import { encodeWav } from '../../../src/parley/web/audio/wav.js';

const tone = (hz, rateHz, seconds, size = 0.5) =>
  Float32Array.from(
    { length: Math.round(rateHz * seconds) },
    (_, i) => size * Math.sin((2 * Math.PI * hz * i) / rateHz),
  );
const rms = (x) => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / x.length);
const middle = (x) => x.subarray(Math.round(x.length * 0.1), Math.round(x.length * 0.9));

for (const [from, to] of [
  [48000, 16000],
  [44100, 16000],
  [96000, 16000],
  [24000, 48000],
  [24000, 44100],
  [22050, 16000],
]) {
  test(`a 1 kHz tone keeps size and place from ${from} Hz to ${to} Hz`, () => {
    const got = resample(tone(1000, from, 0.5), from, to);
    const want = tone(1000, to, 0.5);

    assert.equal(got.length, want.length);
    const off = middle(got).map((v, i) => v - middle(want)[i]);
    assert.ok(rms(off) < 2e-4, `differs by ${rms(off)}`);
  });
}

test('what 16 kHz cannot carry does not come back as another tone', () => {
  for (const hz of [9000, 11000, 15000, 21000]) {
    const got = resample(tone(hz, 48000, 0.3), 48000, 16000);
    assert.ok(rms(middle(got)) < 0.5 * 10 ** (-70 / 20), `${hz} Hz leaks ${rms(middle(got))}`);
  }
});

test('a stream in odd blocks equals the stream in one piece', () => {
  for (const [from, to] of [
    [44100, 16000],
    [24000, 44100],
    [48000, 16000],
  ]) {
    const signal = tone(700, from, 0.2);
    const whole = new Resampler(from, to);
    const want = new Float32Array(whole.maxOutput(signal.length));
    const wanted = whole.process(signal, want);

    const stream = new Resampler(from, to);
    const got = new Float32Array(want.length + 8);
    let count = 0;
    for (let at = 0, n = 1; at < signal.length; at += n, n = (n * 7) % 391 || 1) {
      count += stream.process(signal.subarray(at, at + n), got, count);
    }

    assert.equal(count, wanted);
    assert.deepEqual(got.subarray(0, count), want.subarray(0, wanted));
  }
});

test('units have exactly the size asked for and lose nothing', () => {
  const units = [];
  const gatherer = new UnitGatherer(500, (unit, final) => units.push([unit, final]));
  gatherer.start();
  const signal = Float32Array.from({ length: 1280 }, (_, i) => i / 1280);
  for (let at = 0; at < 1280; at += 128) gatherer.push(signal.subarray(at, at + 128));
  gatherer.stop();

  assert.deepEqual(
    units.map(([unit, final]) => [unit.length, final]),
    [
      [500, false],
      [500, false],
      [280, true],
    ],
  );
  assert.deepEqual(Float32Array.from(units.flatMap(([unit]) => [...unit])), signal);

  // What was gathered before another start is not sent.
  gatherer.start();
  gatherer.push(signal.subarray(1000));
  gatherer.start();
  gatherer.push(signal.subarray(0, 500));
  assert.deepEqual(units.at(-1)[0], signal.subarray(0, 500));
});

test('a muted microphone keeps the unit clock and sends silence', () => {
  const units = [];
  const gatherer = new UnitGatherer(4, (unit) => units.push([...unit]));
  gatherer.start();
  gatherer.push(Float32Array.of(1, 1));
  gatherer.isMuted = true;
  gatherer.push(Float32Array.of(1, 1));

  assert.deepEqual(units, [[1, 1, 0, 0]]);
});

test('a used buffer is used again', () => {
  const seen = new Set();
  const gatherer = new UnitGatherer(4, (unit) => {
    seen.add(unit.buffer);
    gatherer.recycle(unit);
  });
  gatherer.start();
  for (let i = 0; i < 10; i++) gatherer.push(new Float32Array(4));

  assert.equal(seen.size, 2);
});

test('level is reported at a steady pace', () => {
  const levels = [];
  const meter = new LevelMeter(100, (level, peak) => levels.push([level, peak]));
  meter.push(new Float32Array(250).fill(-0.5));

  assert.deepEqual(levels, [
    [0.5, 0.5],
    [0.5, 0.5],
  ]);
});

// The queue of speech, driven in samples: 1000 Hz makes one sample one millisecond.

function player(delayMs = 200) {
  const events = [];
  const buffer = new PlaybackBuffer({ rateHz: 1000, delayMs, onEvent: (event) => events.push(event) });
  const listen = (ms) => {
    const out = new Float32Array(ms);
    buffer.read(out);
    return out;
  };
  const speech = (ms) => new Float32Array(ms).fill(0.5);
  const names = () => events.map((event) => event.type);
  return { buffer, events, listen, speech, names };
}
const heardMs = (out) => out.reduce((n, v) => n + (Math.abs(v) > 0.01 ? 1 : 0), 0);

test('the first chunk waits for the delay, and then plays whole', () => {
  const { buffer, listen, speech, names } = player();
  buffer.push(0, speech(1000));

  assert.equal(heardMs(listen(200)), 0);
  assert.ok(heardMs(listen(1000)) >= 995);
  assert.deepEqual(names(), ['started']);
});

test('a complete turn need not wait', () => {
  const { buffer, listen, speech, names } = player();
  buffer.push(0, speech(100), true);

  assert.ok(heardMs(listen(100)) >= 90);
  assert.deepEqual(names(), ['started', 'drained']);
});

test('chunks on the second with 100 ms of jitter play without a gap', () => {
  const { buffer, listen, speech } = player();
  const lateBy = [0, 90, 10, 100, 0, 60, 100, 30];
  let now = 0;
  const heard = [];
  lateBy.forEach((late, i) => {
    const at = i * 1000 + late;
    heard.push(...listen(at - now));
    now = at;
    buffer.push(0, speech(1000), i === lateBy.length - 1);
  });
  heard.push(...listen(2000));

  assert.equal(buffer.gaps, 0);
  assert.ok(heardMs(heard) >= 8 * 1000 - 10);
});

test('after running dry the queue refills once instead of stuttering', () => {
  const { buffer, listen, speech, events } = player();
  buffer.push(0, speech(300));
  listen(600);
  buffer.push(0, speech(100));
  assert.equal(heardMs(listen(100)), 0);
  buffer.push(0, speech(500));
  listen(1000);

  assert.equal(buffer.gaps, 1);
  assert.equal(events.find((event) => event.type === 'gap').index, 1);
  assert.ok(buffer.delayMs > 200, 'a late chunk makes it more patient');
});

test('a chunk that comes when the last sample has just been read leaves no gap', () => {
  const { buffer, listen, speech, names } = player();
  buffer.push(0, speech(300));
  listen(200 + 300);
  buffer.push(0, speech(300), true);

  assert.ok(heardMs(listen(300)) >= 290);
  assert.deepEqual(names(), ['started', 'drained']);
});

test('patience has an end', () => {
  const { buffer, listen, speech } = player();
  buffer.push(0, speech(100));
  listen(5000);
  buffer.push(0, speech(100));
  listen(1000);

  assert.equal(buffer.delayMs, 600);
});

test('flush is silent within the fade and drops the rest', () => {
  const { buffer, listen, speech, names } = player();
  buffer.push(0, speech(3000));
  listen(500);
  buffer.flush(40);

  const after = listen(1000);
  assert.ok(heardMs(after) <= 40);
  assert.ok(after[0] > 0.4, 'it fades, it does not cut');
  assert.deepEqual(names(), ['started', 'flushed', 'silent']);
  assert.equal(buffer.isSounding, false);
});

test('what comes during the fade of another turn is kept', () => {
  const { buffer, listen, speech, names } = player();
  buffer.push(0, speech(3000));
  listen(500);
  buffer.flush(40);
  listen(10);
  buffer.push(1, speech(100), true);

  listen(200);
  assert.deepEqual(names(), ['started', 'flushed', 'started', 'drained']);
});

test('a new turn is appended behind the tail of the previous one', () => {
  const { buffer, listen, speech, events } = player();
  buffer.push(0, speech(500), true);
  listen(100);
  buffer.push(1, speech(300), true);
  const rest = listen(1000);

  assert.deepEqual(
    events.map((event) => [event.type, event.turn]),
    [
      ['started', 0],
      ['drained', 0],
      ['started', 1],
      ['drained', 1],
    ],
  );
  assert.ok(heardMs(rest) >= 400 + 300 - 15);
});

test('a turn that ends after its last chunk has played is not a gap', () => {
  const { buffer, listen, speech, names } = player();
  buffer.push(0, speech(300));
  listen(800);
  buffer.endTurn(0);

  assert.deepEqual(names(), ['started', 'drained']);
  assert.equal(buffer.gaps, 0);
  assert.equal(buffer.isSounding, false);
});

test('edges are faded: no step larger than the slope', () => {
  const { buffer, listen, speech } = player();
  buffer.push(0, speech(300), true);
  const out = listen(400);

  for (let i = 1; i < out.length; i++) assert.ok(Math.abs(out[i] - out[i - 1]) <= 0.15, `step at ${i}`);
});

test('loudness of the reference tone', () => {
  // A 997 Hz sine at full scale in one channel reads -3.01 LUFS (BS.1770, test material).
  assert.ok(Math.abs(loudness(tone(997, 48000, 3, 1), 48000) + 3.01) < 0.05);
  assert.ok(Math.abs(loudness(tone(997, 16000, 3, 0.1), 16000) + 23.01) < 0.2);
  assert.equal(loudness(new Float32Array(16000), 16000), -Infinity);
});

test('silence around speech does not count', () => {
  const speech = tone(997, 16000, 2, 0.1);
  const padded = new Float32Array(16000 * 8);
  padded.set(speech, 16000 * 3);

  assert.ok(Math.abs(loudness(padded, 16000) - loudness(speech, 16000)) < 1);
});

test('gain reaches the target, and trim is limited', () => {
  assert.equal(gainFor(-20, -40), 0.1);
  assert.equal(gainFor(-20, -20, 100), 10 ** (12 / 20));
  assert.equal(gainFor(-Infinity, -23), 1);
});

test('a mix never leaves full scale', () => {
  const out = mixInto(new Float32Array(4), Float32Array.of(1, -1, 0.1, 0), Float32Array.of(1, -1, 0.1), {
    mic: 1,
    file: 1,
  });

  assert.ok(out.every((v) => Math.abs(v) <= 1));
  assert.ok(Math.abs(out[2] - 0.2) < 1e-6);
});

test('wav header and samples', () => {
  const bytes = encodeWav([Float32Array.of(0, 1), Float32Array.of(-1, 0)], 16000);

  assert.equal(Buffer.from(bytes.subarray(0, 4)).toString(), 'RIFF');
  const view = new DataView(bytes.buffer);
  assert.deepEqual(
    [22, 24, 40].map((at) => (at === 22 ? view.getUint16(at, true) : view.getUint32(at, true))),
    [2, 16000, 8],
  );
  assert.deepEqual(
    [44, 46, 48, 50].map((at) => view.getInt16(at, true)),
    [0, -32767, 32767, 0],
  );
});

test('a microphone that follows the loudspeaker is an echo, a person is not', () => {
  const voice = Array.from({ length: 80 }, (_, i) => 0.2 + 0.2 * Math.sin(i * 0.9) * Math.sin(i * 0.13));
  const echo = new EchoWatch();
  const person = new EchoWatch();
  const echoSeen = voice.map((v, i) => echo.note(0.3 * (voice[i - 2] ?? 0), v));
  const personSeen = voice.map((v, i) => person.note(0.1 + 0.1 * Math.abs(Math.sin(i * 1.7)), v));

  assert.equal(echoSeen.at(-1), true);
  assert.equal(personSeen.includes(true), false);
});

test('what has not been heard is what was given, less what the loudspeaker says and the time since', () => {
  const unheard = new Unheard(24000);
  unheard.give(1, 24000);
  unheard.give(2, 12000);
  assert.equal(unheard.leftMs(0), 1500);

  unheard.take({ turn: 1, heard: 6000, sounding: true }, 1000);
  assert.equal(unheard.leftMs(1000), 1250);
  assert.equal(unheard.leftMs(1100), 1150);
  // No more than the turn has.
  assert.equal(unheard.leftMs(9000), 500);

  unheard.take({ turn: 2, heard: 2400, sounding: false }, 2000);
  assert.equal(unheard.leftMs(3000), 400);
  unheard.end(2);
  assert.equal(unheard.leftMs(3000), 0);
  unheard.give(3, 2400);
  unheard.clear();
  assert.equal(unheard.leftMs(3000), 0);
});

test('Firefox is not asked for the latency of its loudspeaker, which can stop the tab', () => {
  const asked = { outputLatency: 0.02, baseLatency: 0.01 };
  assert.equal(latencyOf(asked), 0.02);
  assert.equal(latencyOf({ ...asked, outputLatency: 0 }), 0.01);

  globalThis.mozInnerScreenX = 0;
  try {
    const guarded = Object.defineProperty({}, 'outputLatency', { get: () => assert.fail('it was read') });
    assert.ok(latencyOf(guarded) > 0);
  } finally {
    delete globalThis.mozInnerScreenX;
  }
});

test('a program whose bundler left the worklets behind learns where they are looked for', async () => {
  const audioWorklet = { addModule: () => Promise.reject(new Error('404')) };
  globalThis.AudioContext = class extends EventTarget {
    audioWorklet = audioWorklet;
    async resume() {}
  };
  globalThis.document = { baseURI: 'https://a.test/app/' };
  globalThis.navigator ??= {};
  const rig = new Rig();

  rig.worklets = 'sound/';

  await assert.rejects(
    rig.open(),
    /no worklet at https:\/\/a\.test\/app\/sound\/(capture|playback)-worklet\.js: set the rig's/,
  );
});

test('the sound card rests when a call is over, and a next one wakes it', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const nodes = [];
  class FakeNode {
    constructor(_, name) {
      nodes.push(Object.assign(this, { name }));
    }
    port = { postMessage: () => {} };
    connect = (node) => node;
    disconnect = () => {};
  }
  Object.assign(globalThis, { AudioWorkletNode: FakeNode, GainNode: FakeNode });
  globalThis.AudioContext = class extends EventTarget {
    audioWorklet = { addModule: async () => {} };
    state = 'running';
    #become(state) {
      this.state = state;
      this.dispatchEvent(new Event('statechange'));
    }
    resume = async () => this.#become('running');
    suspend = async () => this.#become('suspended');
  };
  const rig = new Rig();
  const said = [];
  rig.addEventListener('suspended', () => said.push('suspended'));
  await rig.open();

  rig.releaseMicrophone();
  t.mock.timers.tick(60_000);
  assert.equal(rig.context.state, 'suspended');
  assert.deepEqual(said, [], 'nothing was taken away from the page');

  await rig.open();
  assert.equal(rig.context.state, 'running');
  rig.releaseMicrophone();
  await rig.open();
  t.mock.timers.tick(60_000);
  assert.equal(rig.context.state, 'running', 'a call that started meanwhile keeps it');

  // A microphone that is switched off, and one that another program has taken, deliver zeros.
  const heard = [];
  rig.addEventListener('level', ({ detail }) => heard.push(detail.peak));
  const track = Object.assign(new EventTarget(), { muted: false, stop: () => {} });
  const stream = { getTracks: () => [track], getAudioTracks: () => [track] };
  Object.assign(globalThis, { isSecureContext: true });
  Object.assign(navigator, { mediaDevices: { getUserMedia: async () => stream } });
  rig.context.createMediaStreamSource = () => new FakeNode();
  const capture = nodes.find(({ name }) => name === 'parley-capture');
  const deliver = (peak) => capture.port.onmessage({ data: { type: 'level', rms: peak, peak } });
  await rig.connectMicrophone();
  deliver(0);
  for (const peak of [0.2, 0]) deliver(peak);
  track.muted = true;
  deliver(0);
  assert.deepEqual(heard, [0.2, 0], 'quiet is not off');
});
