/** Programs for the protocols of OpenAI, in Python and JavaScript with OpenAI's own packages. */

/** @typedef {import('./code.js').Facts} Facts */

/** A text between quotes, the same in Python, JavaScript and JSON. @param {string} text */
export const quoted = (text) => JSON.stringify(text);

/** @param {Facts} facts @param {'OpenAI' | 'AsyncOpenAI'} [client] */
function openaiPython({ origin, hasOwnCertificate }, client = 'OpenAI') {
  const address = `base_url=${quoted(`${origin}/v1`)}`;
  if (!hasOwnCertificate) return `from openai import ${client}\n\nclient = ${client}(${address}, api_key="any")`;
  const http = `httpx.${client === 'OpenAI' ? 'Client' : 'AsyncClient'}(verify="certs/cert.pem")`;
  return [
    `import httpx\nfrom openai import ${client}\n`,
    '# The certificate that the server made for itself',
    `client = ${client}(${address}, api_key="any", http_client=${http})`,
  ].join('\n');
}

/** @param {Facts} facts */
const openaiJs = ({ origin }) =>
  `import OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: ${quoted(`${origin}/v1`)}, apiKey: 'any' });`;

/** What is asked for, as a value of Python. @param {unknown} value @returns {string} */
function python(value) {
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (value === null) return 'None';
  if (Array.isArray(value)) return `[${value.map(python).join(', ')}]`;
  if (typeof value === 'object')
    return `{${Object.entries(value ?? {})
      .map(([key, entry]) => `${quoted(key)}: ${python(entry)}`)
      .join(', ')}}`;
  return quoted(/** @type {any} */ (value));
}

/** The request's fields as arguments. @param {string} message JSON */
function keywords(message) {
  return Object.entries(parsed(message))
    .map(([name, value]) => `    ${name}=${python(value)},`)
    .join('\n');
}

/** @param {string} message @returns {Record<string, unknown>} {} if the text is not valid JSON */
function parsed(message) {
  try {
    return JSON.parse(message);
  } catch {
    return {};
  }
}

/** @param {Facts} facts @param {string} verb @param {string} whole what to print of a whole answer @param {string} piece of a piece */
function openaiRequest(facts, verb, whole, piece, jsWhole = whole, jsPiece = piece) {
  const isStream = Boolean(parsed(facts.message).stream);
  const call = `client.${verb}.create(\n${keywords(facts.message)}\n)`;
  const js = `await client.${verb}.create(${JSON.stringify(parsed(facts.message), null, 2)})`;
  return {
    python: isStream
      ? `${openaiPython(facts)}\nfor event in ${call}:\n    ${piece}\n`
      : `${openaiPython(facts)}\nanswer = ${call}\n${whole}\n`,
    javascript: isStream
      ? `${openaiJs(facts)}\nfor await (const event of ${js}) {\n  ${jsPiece}\n}\n`
      : `${openaiJs(facts)}\nconst answer = ${js};\n${jsWhole}\n`,
  };
}

/** @type {Record<string, (facts: Facts) => {python: string, javascript: string}>} */
export const OPENAI_PROGRAMS = {
  openai_realtime: (facts) => ({
    python: `import asyncio

${openaiPython(facts, 'AsyncOpenAI')}


async def main() -> None:
    async with client.realtime.connect(model="any") as connection:
        await connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"],
                     "instructions": ${quoted(facts.instructions)}}
        )
        await connection.conversation.item.create(
            item={"type": "message", "role": "user",
                  "content": [{"type": "input_text", "text": "Hello! Who are you?"}]}
        )
        await connection.response.create()
        async for event in connection:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
            if event.type == "response.done":
                break


asyncio.run(main())
`,
    javascript: `import { RealtimeAgent, RealtimeSession } from '@openai/agents/realtime';

const agent = new RealtimeAgent({ name: 'Assistant', instructions: ${quoted(facts.instructions)} });
const session = new RealtimeSession(agent, { transport: 'websocket', model: 'any' });
session.on('history_updated', (history) => console.log(history.at(-1)));
await session.connect({
  apiKey: 'any',
  url: ${quoted(`${facts.origin.replace(/^http/, 'ws')}/v1/realtime?model=any`)},
});
session.sendMessage('Hello! Who are you?');
`,
  }),
  openai_chat: (facts) =>
    openaiRequest(
      facts,
      `chat.completions`,
      'print(answer.choices[0].message.content)',
      'print(event.choices[0].delta.content or "", end="") if event.choices else None',
      'console.log(answer.choices[0].message.content);',
      "process.stdout.write(event.choices[0]?.delta.content ?? '');",
    ),
  openai_responses: (facts) =>
    openaiRequest(
      facts,
      'responses',
      'print(answer.output_text)',
      'print(event.delta, end="") if event.type == "response.output_text.delta" else None',
      'console.log(answer.output_text);',
      "if (event.type === 'response.output_text.delta') process.stdout.write(event.delta);",
    ),
};
