// The shared wire transcripts, replayed against the state machines: the page hears all that was said and
// ends for the reason the server gave.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

import { ChatTalk } from '../../../src/parley/web/talk/chat.js';
import { DuplexCall } from '../../../src/parley/web/talk/duplex.js';
import { HalfDuplexCall } from '../../../src/parley/web/talk/half-duplex.js';
import { reasonOf } from '../../../src/parley/web/wire/reasons.js';
import { FakeRig, settle, surroundings } from '../support/fakes.mjs';

const folder = new URL('../../transcripts/', import.meta.url);

function conversations() {
  const all = [];
  for (const file of readdirSync(folder).filter((name) => name.endsWith('.jsonl'))) {
    for (const line of readFileSync(new URL(file, folder), 'utf8').split('\n').filter(Boolean)) {
      const entry = JSON.parse(line);
      if (entry.connect) all.push({ file, about: entry.about, path: entry.connect, lines: [] });
      else all.at(-1).lines.push(entry);
    }
  }
  // A call ends when its configuration is refused; these go on with another one.
  for (const one of all) {
    const start = one.lines.findIndex(({ message }) => ['prepared', 'session.created'].includes(message?.type));
    one.lines = one.lines.filter(({ message }, at) => at > start || message?.type !== 'error');
  }
  return all;
}

const soundOf = (message) =>
  message.audio_data ?? (message.type === 'response.output_audio.delta' ? message.audio : '') ?? '';
const textOf = (message) =>
  message.type === 'chunk'
    ? (message.text_delta ?? '')
    : message.type === 'result' || message.type === 'response.output_audio.delta'
      ? message.text
      : '';

/** What the server's last words and close code mean. */
function wantedReason(lines) {
  const close = lines.find((line) => 'close' in line);
  const said = lines.filter((line) => line.from === 'server').map((line) => line.message);
  const last = said.at(-1);
  if (last?.type === 'timeout') return 'timeout';
  if (last?.type === 'session.closed') return last.reason === 'error' ? 'failed' : last.reason;
  if (last?.type === 'stopped' && said.at(-2)?.code === 'context_full') return 'context_full';
  if (last?.type === 'stopped' || last?.type === 'done') return 'stopped';
  const error = last?.type === 'error' ? last : null;
  const sentence = error?.message ?? error?.error ?? '';
  if (sentence === 'Cancelled') return 'cancelled';
  return close ? reasonOf(close.close, error?.code ?? error?.error?.code ?? '') : null;
}

function start(path, world, rig, request) {
  const { connection, clock } = world;
  if (path.startsWith('/ws/chat')) {
    const talk = new ChatTalk({ connection, onSound: (audio) => rig.play(0, audio) });
    const endings = [];
    talk.addEventListener('finished', ({ detail }) => endings.push(detail.ending));
    const content = request?.messages?.filter((message) => message.role === 'user').at(-1)?.content ?? 'Hi';
    const parts = typeof content === 'string' ? [{ type: 'text', text: content }] : content;
    talk.send(parts, {
      system: [],
      streaming: request?.streaming ?? true,
      voice: true,
      ttsVoice: null,
      maxNewTokens: 256,
      lengthPenalty: 1.1,
      detailed: false,
    });
    return {
      talk,
      ending: () => endings[0],
      text: () => talk.messages.at(-1)?.parts[0].text ?? '',
      stop: () => talk.cancel(),
    };
  }
  const half = path.startsWith('/ws/half_duplex');
  const talk = half ? new HalfDuplexCall(rig, clock.surroundings()) : new DuplexCall(rig, clock.surroundings());
  if (half) void talk.start({ options: () => ({}), microphone: {}, connection });
  else {
    const mode = path.includes('mode=audio') || path.includes('/adx_') ? 'audio' : 'video';
    const dialect = path.startsWith('/v1/realtime') ? 'realtime' : 'duplex';
    void talk.start({ dialect, mode, options: () => ({ instructions: 'x' }), microphone: {}, connection });
  }
  return {
    talk,
    ending: () => talk.state.ending,
    text: () =>
      talk.captions.list
        .filter((caption) => caption.who === 'assistant')
        .map((caption) => caption.text)
        .join(''),
    stop: () => talk.stop(),
  };
}

for (const { file, about, path, lines } of conversations()) {
  test(`${file}: ${about}`, async (t) => {
    t.mock.method(console, 'warn', () => {});
    const world = surroundings();
    const rig = new FakeRig();
    const request = lines.find((line) => line.from === 'client')?.message;
    const page = start(path, world, rig, request);
    await settle();
    const socket = world.sockets[0];
    socket.accept();
    let samples = 0;
    let text = '';
    for (const line of lines) {
      if (line.from === 'server') {
        samples += Math.floor(Buffer.from(soundOf(line.message), 'base64').length / 4);
        text += textOf(line.message);
        socket.say(line.message);
        if (line.message.type === 'turn_done') {
          rig.emit('drained', { turn: page.talk.turn });
          world.clock.pass(800);
        }
      } else if (line.from === 'client') {
        const type = line.message?.type;
        if (type === 'audio_chunk' || type === 'input_audio_buffer.append') rig.unit();
        if (type === 'pause') page.talk.pause();
        if (type === 'resume') page.talk.resume();
        if (type === 'stop' || type === 'session.close') page.stop();
        await settle();
      } else if ('close' in line) {
        socket.hangUp(line.close);
      }
    }

    const wanted = wantedReason(lines);
    if (wanted) assert.equal(page.ending()?.reason, wanted);
    const last = lines.filter((line) => line.from === 'server').at(-1)?.message;
    assert.equal(page.text(), last?.type === 'done' ? last.text || text : text);
    const played = rig.plays().reduce((sum, line) => sum + Number(line.split(' ')[2]), 0);
    assert.equal(played, samples);
  });
}
