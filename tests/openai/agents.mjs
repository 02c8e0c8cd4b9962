// OpenAI's agents in JavaScript with only the address changed. Says what happened as JSON lines.
import { readFileSync } from 'node:fs';
import { RealtimeAgent, RealtimeSession, tool } from '@openai/agents-realtime';

const [url, scenario, spoken] = process.argv.slice(2);
const RATE_HZ = 24_000;
const tell = (what, more = {}) => console.log(JSON.stringify({ what, ...more }));

const weather = tool({
  name: 'get_weather',
  description: 'Weather of a city',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: true,
  },
  strict: false,
  execute: async ({ city }) => {
    tell('called', { city });
    return 'sunny';
  },
});
const tools = scenario === 'call' ? [weather] : [];
const agent = new RealtimeAgent({ name: 'Helper', instructions: 'You help.', tools });
const session = new RealtimeSession(agent, { transport: 'websocket', tracingDisabled: true });

const waiting = new Map();
const next = (name) => new Promise((resolve) => waiting.set(name, [...(waiting.get(name) ?? []), resolve]));
const happened = (name, value) => {
  const resolves = waiting.get(name) ?? [];
  waiting.delete(name);
  for (const resolve of resolves) resolve(value);
};

let soundBytes = 0;
session.on('audio', (event) => {
  soundBytes += event.data.byteLength;
  happened('audio', event);
});
session.on('agent_end', (_context, _agent, output) => happened('agent_end', output));
session.on('audio_interrupted', () => happened('audio_interrupted'));
session.on('error', (event) => {
  tell('error', { error: event.error?.error ?? String(event.error) });
  happened('error', event);
});
session.transport.on('*', (event) => {
  tell('event', { type: event.type });
  happened(event.type, event);
});

const pcm = (seconds, level) => {
  const samples = new Int16Array(seconds * RATE_HZ);
  for (let i = 0; i < samples.length; i++) samples[i] = level * Math.sin((2 * Math.PI * 300 * i) / RATE_HZ);
  return samples.buffer;
};
// With a silence as long as any pause may be: whether words shorten it depends on how busy the machine is.
const say = (sound = pcm(1, 12000)) => {
  for (let at = 0; at < sound.byteLength; at += RATE_HZ / 5) session.sendAudio(sound.slice(at, at + RATE_HZ / 5));
  for (let i = 0; i < 25; i++) session.sendAudio(pcm(0.1, 0));
};

const scenarios = {
  async turns() {
    for (let turn = 0; turn < 2; turn++) {
      const answered = next('agent_end');
      say();
      tell('answer', { text: await answered, soundBytes });
    }
  },
  async interruption() {
    const sound = next('audio');
    session.sendMessage('Tell me a long story.');
    await sound;
    const interrupted = next('audio_interrupted');
    const done = next('response.done');
    // Words: under semantic_vad, which this client asks for, tones are echo.
    say(new Uint8Array(readFileSync(spoken)).buffer);
    await interrupted;
    const event = await done;
    tell('interrupted', { status: event.response.status });
  },
  async call() {
    const answered = new Promise((resolve) => session.on('agent_end', (_context, _agent, text) => text && resolve(text)));
    session.sendMessage('What is the weather in Rome?');
    tell('answer', { text: await answered, soundBytes });
  },
  async error() {
    const wrong = next('error');
    session.transport.sendEvent({ type: 'conversation.item.delete', item_id: 'nowhere' });
    await wrong;
    const answered = next('agent_end');
    session.sendMessage('Still there?');
    tell('answer', { text: await answered, soundBytes });
  },
};

await session.connect({ url, apiKey: 'sk-any' });
await scenarios[scenario]();
session.close();
tell('end');
process.exit(0);
