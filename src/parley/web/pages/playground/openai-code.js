/** Programs for the protocols of OpenAI, in Python and JavaScript with OpenAI's own packages. */

/** @typedef {import('./code.js').Facts} Facts */

/** Quotes text in a form that is valid in Python, JavaScript and JSON. @param {string} text */
export const quoted = (text) => JSON.stringify(text);

/** True if the message in the editor has a picture, in which case the programs show one. @param {Facts} facts */
export const isShowing = ({ message }) => message.includes('$PICTURE');

/**
 * Replaces the placeholder in code with the variable `picture`, a data URL.
 * @param {string} code with the placeholder in JSON
 */
const withPicture = (code) => code.replaceAll('"data:image/jpeg;base64,$PICTURE"', 'picture');

const PICTURE_PYTHON = `

with open("picture.jpg", "rb") as file:
    picture = "data:image/jpeg;base64," + base64.b64encode(file.read()).decode()
`;
const PICTURE_JS = `\n\nconst picture = 'data:image/jpeg;base64,' + readFileSync('picture.jpg', 'base64');\n`;

/** @param {Facts} facts @param {'OpenAI' | 'AsyncOpenAI'} [client] */
function openaiPython(facts, client = 'OpenAI') {
  const { origin, hasOwnCertificate } = facts;
  const base64 = isShowing(facts) ? 'import base64\n' : '';
  const picture = isShowing(facts) ? PICTURE_PYTHON : '';
  const address = `base_url=${quoted(`${origin}/v1`)}`;
  if (!hasOwnCertificate)
    return `${base64}from openai import ${client}\n\nclient = ${client}(${address}, api_key="any")${picture}`;
  const http = `httpx.${client === 'OpenAI' ? 'Client' : 'AsyncClient'}(verify="certs/cert.pem")`;
  return [
    `${base64}import httpx\nfrom openai import ${client}\n`,
    '# The certificate that the server made for itself',
    `client = ${client}(${address}, api_key="any", http_client=${http})${picture}`,
  ].join('\n');
}

/** @param {Facts} facts */
const openaiJs = (facts) =>
  [
    ...(isShowing(facts) ? ["import { readFileSync } from 'node:fs';"] : []),
    "import OpenAI from 'openai';",
    '',
    `const client = new OpenAI({ baseURL: ${quoted(`${facts.origin}/v1`)}, apiKey: 'any' });`,
  ].join('\n') + (isShowing(facts) ? PICTURE_JS : '');

/** Returns a value as a Python literal. @param {unknown} value @returns {string} */
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

/** Returns the request's fields as Python arguments. @param {string} message JSON */
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

/**
 * @param {Facts} facts @param {string} verb @param {string} whole expression to print for a whole answer @param
 *   {string} piece expression to print for a piece
 */
function openaiRequest(facts, verb, whole, piece, jsWhole = whole, jsPiece = piece) {
  const isStream = Boolean(parsed(facts.message).stream);
  const call = withPicture(`client.${verb}.create(\n${keywords(facts.message)}\n)`);
  const js = withPicture(`await client.${verb}.create(${JSON.stringify(parsed(facts.message), null, 2)})`);
  return {
    python: isStream
      ? `${openaiPython(facts)}\nfor event in ${call}:\n    ${piece}\n`
      : `${openaiPython(facts)}\nanswer = ${call}\n${whole}\n`,
    javascript: isStream
      ? `${openaiJs(facts)}\nfor await (const event of ${js}) {\n  ${jsPiece}\n}\n`
      : `${openaiJs(facts)}\nconst answer = ${js};\n${jsWhole}\n`,
  };
}

const READ_FILE = "import { readFileSync } from 'node:fs';\n";
const AGENTS = "import { RealtimeAgent, RealtimeSession } from '@openai/agents/realtime';";
const ITEM = '{"type": "input_text", "text": "Hello! Who are you?"}';
const ITEM_SHOWN = `{"type": "input_image", "image_url": picture},
                              {"type": "input_text", "text": "What is this?"}`;
const SEND_SHOWN = `session.sendMessage({
  type: 'message',
  role: 'user',
  content: [
    { type: 'input_image', image: picture },
    { type: 'input_text', text: 'What is this?' },
  ],
});`;

/** @type {Record<string, (facts: Facts) => {python: string, javascript: string}>} */
export const OPENAI_PROGRAMS = {
  openai_realtime: (facts) => ({
    python: `import asyncio

${openaiPython(facts, 'AsyncOpenAI')}


async def main() -> None:
    async with client.realtime.connect(model="any") as connection:
        await connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "store": False,
                     "instructions": ${quoted(facts.instructions)}}
        )
        await connection.conversation.item.create(
            item={"type": "message", "role": "user",
                  "content": [${isShowing(facts) ? ITEM_SHOWN : ITEM}]}
        )
        await connection.response.create()
        async for event in connection:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
            if event.type == "response.done":
                break


asyncio.run(main())
`,
    javascript: `${isShowing(facts) ? READ_FILE : ''}${AGENTS}
${isShowing(facts) ? PICTURE_JS.slice(1) : ''}
const agent = new RealtimeAgent({ name: 'Assistant', instructions: ${quoted(facts.instructions)} });
const config = { providerData: { store: false } };
const session = new RealtimeSession(agent, { transport: 'websocket', model: 'any', config });
session.on('history_updated', (history) => console.log(history.at(-1)));
await session.connect({
  apiKey: 'any',
  url: ${quoted(`${facts.origin.replace(/^http/, 'ws')}/v1/realtime?model=any`)},
});
${isShowing(facts) ? SEND_SHOWN : "session.sendMessage('Hello! Who are you?');"}
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
