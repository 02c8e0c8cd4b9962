// The first examples of the SDKs' own READMEs, in JavaScript: only address, key and model are changed.
//
//     first_examples.mjs URL CLIENT…     one JSON line for each example, then {"what": "end"}
//
// An example that the server refuses says so, with part of the sentence that its client raises.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { z } from 'zod';

const [url, ...clients] = process.argv.slice(2);
Object.assign(process.env, { OPENAI_API_KEY: 'sk-any', OPENAI_BASE_URL: url, OPENAI_AGENTS_DISABLE_TRACING: '1' });
// One says without asking which options of a model it left out.
globalThis.AI_SDK_LOG_WARNINGS = false;

const QUESTION = 'What is the capital of Italy?';
const TOOL_QUESTION = "What's the weather in Tokyo?";
const City = z.object({ city: z.string(), country: z.string() });
const Place = z.object({ city: z.string() });

const WEATHER_PARAMETERS = {
  type: 'object',
  properties: { city: { type: 'string' } },
  required: ['city'],
  additionalProperties: false,
};

const openai = async () => new (await import('openai')).default();

const vercel = async () => {
  const { openai: provider } = await import('@ai-sdk/openai');
  return { ...(await import('ai')), openai: provider };
};

const compatible = async () => {
  const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible');
  const provider = createOpenAICompatible({
    name: 'parley',
    baseURL: url,
    apiKey: 'sk-any',
    supportsStructuredOutputs: true,
  });
  return { ...(await import('ai')), model: provider('m') };
};

/** A tool for the AI SDK that counts its calls. */
const weatherOf = (tool, calls) =>
  tool({
    description: 'Get the weather in a location',
    inputSchema: Place,
    execute: async ({ city }) => {
      calls.push(city);
      return { city, temperature: 21 };
    },
  });

async function toolRound({ generateText, tool, stepCountIs }, model) {
  const calls = [];
  const tools = { weather: weatherOf(tool, calls) };
  await generateText({ model, tools, stopWhen: stepCountIs(3), prompt: TOOL_QUESTION });
  assert.equal(calls.length, 1);
}

async function textOf({ textStream }) {
  let text = '';
  for await (const piece of textStream) text += piece;
  assert(text);
}

const EXAMPLES = {
  openai: {
    async responses() {
      const found = await (await openai()).responses.create({ model: 'gpt-5.2', input: QUESTION });
      assert(found.output_text);
    },
    async 'responses streamed'() {
      const stream = await (await openai()).responses.create({ model: 'gpt-5.2', input: QUESTION, stream: true });
      let last;
      for await (const event of stream) last = event;
      assert.equal(last.type, 'response.completed');
    },
    async 'responses stream helper'() {
      const found = await (await openai()).responses.stream({ model: 'gpt-5.2', input: QUESTION }).finalResponse();
      assert(found.output_text);
    },
    async 'responses parse'() {
      const { zodTextFormat } = await import('openai/helpers/zod');
      const text = { format: zodTextFormat(City, 'city') };
      const found = await (await openai()).responses.parse({ model: 'gpt-5.2', input: QUESTION, text });
      assert(found.output_parsed.city);
    },
    async 'responses tools'() {
      const sdk = await openai();
      const tools = [{ type: 'function', name: 'get_weather', parameters: WEATHER_PARAMETERS, strict: true }];
      const input = [{ role: 'user', content: TOOL_QUESTION }];
      const first = await sdk.responses.create({ model: 'gpt-5.2', tools, input });
      const call = first.output.find(({ type }) => type === 'function_call');
      input.push(...first.output, { type: 'function_call_output', call_id: call.call_id, output: 'sunny' });
      assert((await sdk.responses.create({ model: 'gpt-5.2', tools, input })).output_text);
    },
    async 'chat streamed'() {
      const messages = [{ role: 'user', content: QUESTION }];
      const stream = await (await openai()).chat.completions.create({ model: 'gpt-5.2', messages, stream: true });
      let text = '';
      for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? '';
      assert(text);
    },
    async chat() {
      const found = await (await openai()).chat.completions.create({
        model: 'gpt-5.2',
        messages: [
          { role: 'developer', content: 'Talk like a pirate.' },
          { role: 'user', content: QUESTION },
        ],
      });
      assert(found.choices[0].message.content);
    },
    async 'chat parse'() {
      const { zodResponseFormat } = await import('openai/helpers/zod');
      const found = await (await openai()).chat.completions.parse({
        model: 'gpt-5.2',
        messages: [{ role: 'user', content: QUESTION }],
        response_format: zodResponseFormat(City, 'city'),
      });
      assert(found.choices[0].message.parsed.city);
    },
    async 'chat run tools'() {
      const calls = [];
      const tool = {
        type: 'function',
        function: {
          name: 'getWeather',
          description: 'Weather of a city',
          parameters: { type: 'object', properties: { city: { type: 'string' } } },
          parse: JSON.parse,
          function: async ({ city }) => `${calls.push(city)}: sunny`,
        },
      };
      const runner = (await openai()).chat.completions.runTools({
        model: 'gpt-5.2',
        messages: [{ role: 'user', content: TOOL_QUESTION }],
        tools: [tool],
      });
      assert(await runner.finalContent());
      assert.equal(calls.length, 1);
    },
    async 'speech and transcription'() {
      const { toFile } = await import('openai');
      const sdk = await openai();
      const said = await sdk.audio.speech.create({
        model: 'gpt-4o-mini-tts',
        voice: 'coral',
        input: 'What is the capital of Italy?',
        instructions: 'Speak in a cheerful and positive tone.',
      });
      const file = await toFile(Buffer.from(await said.arrayBuffer()), 'speech.mp3');
      const found = await sdk.audio.transcriptions.create({ model: 'gpt-4o-transcribe', file });
      assert.match(found.text, /Italy/);
    },
    async 'client secret'() {
      const session = { type: 'realtime', model: 'gpt-realtime', audio: { output: { voice: 'marin' } } };
      const found = await (await openai()).realtime.clientSecrets.create({ session });
      assert.equal(found.session.audio.output.voice, 'marin');
    },
    async embeddings() {
      await (await openai()).embeddings.create({ model: 'text-embedding-3-small', input: 'Hello' });
    },
  },
  '@openai/agents': {
    async hello() {
      const { Agent, run } = await import('@openai/agents');
      const agent = new Agent({ name: 'Assistant', instructions: 'You are a helpful assistant' });
      const found = await run(agent, 'Write a haiku about recursion in programming.');
      assert(found.finalOutput);
    },
    async streamed() {
      const { Agent, run } = await import('@openai/agents');
      const found = await run(new Agent({ name: 'Joker', instructions: 'Be funny.' }), 'Joke!', { stream: true });
      for await (const _ of found);
      assert(found.finalOutput);
    },
    async function() {
      const { Agent, run, tool } = await import('@openai/agents');
      const calls = [];
      const weather = tool({
        name: 'get_weather',
        description: 'Get the weather for a given city',
        parameters: Place,
        execute: async ({ city }) => `${calls.push(city)}: The weather in ${city} is sunny.`,
      });
      const agent = new Agent({ name: 'Data agent', instructions: 'You help.', tools: [weather] });
      assert((await run(agent, TOOL_QUESTION)).finalOutput);
      assert.equal(calls.length, 1);
    },
    async 'output type'() {
      const { Agent, run } = await import('@openai/agents');
      const agent = new Agent({ name: 'City', instructions: 'Name it.', outputType: City });
      assert((await run(agent, QUESTION)).finalOutput.city);
    },
  },
  '@ai-sdk/openai': {
    async generateText() {
      const { generateText, openai } = await vercel();
      assert((await generateText({ model: openai('gpt-5'), prompt: QUESTION })).text);
    },
    async streamText() {
      const { streamText, openai } = await vercel();
      await textOf(streamText({ model: openai('gpt-5'), prompt: QUESTION }));
    },
    async chat() {
      const { streamText, openai } = await vercel();
      await textOf(streamText({ model: openai.chat('gpt-5'), system: 'Be brief.', prompt: QUESTION }));
    },
    async tool() {
      const sdk = await vercel();
      await toolRound(sdk, sdk.openai('gpt-5'));
    },
    async output() {
      const { generateText, Output, openai } = await vercel();
      const model = openai('gpt-5');
      const found = await generateText({ model, prompt: QUESTION, output: Output.object({ schema: City }) });
      assert(found.output.city);
    },
    async generateObject() {
      const { generateObject, openai } = await vercel();
      assert((await generateObject({ model: openai.chat('gpt-5'), schema: City, prompt: QUESTION })).object.city);
    },
    async 'speech and transcribe'() {
      const { experimental_generateSpeech: generateSpeech, experimental_transcribe: transcribe, openai } = await vercel();
      const said = await generateSpeech({ model: openai.speech('tts-1'), text: 'What is the capital of Italy?' });
      const found = await transcribe({ model: openai.transcription('whisper-1'), audio: said.audio.uint8Array });
      assert.match(found.text, /Italy/);
    },
    async embed() {
      const { embed, openai } = await vercel();
      await embed({ model: openai.embedding('text-embedding-3-small'), value: 'Hello', maxRetries: 0 });
    },
  },
  '@ai-sdk/openai-compatible': {
    async generateText() {
      const { generateText, model } = await compatible();
      assert((await generateText({ model, prompt: QUESTION })).text);
    },
    async streamText() {
      const { streamText, model } = await compatible();
      await textOf(streamText({ model, prompt: QUESTION }));
    },
    async tool() {
      const sdk = await compatible();
      await toolRound(sdk, sdk.model);
    },
    async generateObject() {
      const { generateObject, model } = await compatible();
      assert((await generateObject({ model, schema: City, prompt: QUESTION })).object.city);
    },
  },
};

/** Part of what the server says instead of an answer. */
const REFUSED = { embeddings: 'make no embeddings', embed: 'make no embeddings' };

for (const client of clients) {
  const { version } = JSON.parse(readFileSync(new URL(`../../node_modules/${client}/package.json`, import.meta.url)));
  for (const [example, run] of Object.entries(EXAMPLES[client])) {
    const line = { what: 'example', client, version, example, refused: REFUSED[example] ?? '' };
    let problem = '';
    try {
      await run();
    } catch (error) {
      problem = `${error?.name}: ${error?.message}`.slice(0, 1000);
    }
    console.log(JSON.stringify({ ...line, problem }));
  }
}
console.log(JSON.stringify({ what: 'end' }));
process.exit(0);
