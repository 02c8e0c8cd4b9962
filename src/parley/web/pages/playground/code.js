/** Programs that do what the playground does: per protocol in Python, JavaScript and for a shell. */

import { OPENAI_PROGRAMS, quoted } from './openai-code.js';

/** @typedef {{origin: string, instructions: string, message: string, hasOwnCertificate: boolean}} Facts */
/** @typedef {import('../../elements/code/code.js').Version} Version */

/** Some text inside single quotes of a shell. @param {string} text */
const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** @param {string} text lines of it that go one step to the right */
const indented = (text, by = '  ') => text.replaceAll('\n', `\n${by}`);

/** @param {Facts} facts @param {string} path @param {string[]} lines messages */
function socketShell({ origin, hasOwnCertificate }, path, lines) {
  const url = origin.replace(/^http/, 'ws') + path;
  const said = lines.map((line) => `  echo ${shell(line)}; sleep 3`).join('\n');
  const silence = lines.some((line) => line.includes('$SILENCE'))
    ? `# Replace $SILENCE with sound: base64 of 16,000 float32 samples\n`
    : '';
  return `${silence}{\n${said}\n} | websocat${hasOwnCertificate ? ' -k' : ''} -B 200000 ${shell(url)}`;
}

/** @param {Facts} facts @param {string} path */
function curl({ origin, message, hasOwnCertificate }, path) {
  return [
    `curl ${hasOwnCertificate ? '-k ' : ''}-N ${shell(origin + path)} \\`,
    `  -H 'content-type: application/json' \\`,
    `  -d ${shell(message)}`,
  ].join('\n');
}

/** @param {Facts} facts */
const insecure = ({ hasOwnCertificate }) => (hasOwnCertificate ? ', insecure=True' : '');

// No line of this file but its own imports begins with `import`: scripts are joined by such lines.
/** @param {string} events names */
const pythonImports = (events) =>
  [
    '# pip install parley-voice',
    'import asyncio',
    '',
    'import parley',
    `from parley.client.events import ${events}`,
    'from parley.media import wav',
  ].join('\n');

/** @param {Facts} facts @param {string} client @param {string} options @param {string} events @param {string} body */
const pythonCall = (facts, client, options, events, body) => `${pythonImports(events)}


async def main() -> None:
    async with parley.${client}(${quoted(facts.origin)}, ${options}${insecure(facts)}) as talk:
        speaking = asyncio.create_task(talk.say(wav.load("speech.wav")))
        async for event in talk:
${body}
        speaking.cancel()


asyncio.run(main())
`;

const UNITS = `            match event:
                case Speaking(text=text):
                    print(text, end="", flush=True)
                case Ended(reason=reason):
                    print(reason)`;
const PIECES = `            match event:
                case Piece(text=text):
                    print(text, end="", flush=True)
                case Ended(reason=reason):
                    print(reason)`;

/** @param {Facts} facts @param {string} order what a call is started with */
const javascriptCall = ({ origin }, order, make = 'DuplexCall') => `<button id="talk">Talk</button> <p id="said"></p>
<script type="module">
  import { Calls, ${make}, theRig } from ${quoted(`${origin}/static/client.js`)};

  const calls = new Calls(() => new ${make}(theRig()));
  calls.addEventListener('captions', ({ detail: { list } }) => {
    document.querySelector('#said').textContent = list.at(-1)?.text ?? '';
  });
  const order = ${order};
  document.querySelector('#talk').onclick = () => (calls.isBusy ? calls.stop() : calls.start(order));
</script>
`;

/** @param {Facts} facts @param {string} dialect */
const duplexOrder = ({ instructions, origin }, dialect) =>
  `{
    dialect: ${quoted(dialect)},
    mode: 'audio',
    connection: { base: ${quoted(origin)} },
    microphone: {},
    options: () => ({ instructions: ${quoted(instructions)} }),
  }`;

/** @type {Record<string, (facts: Facts) => {python: string, javascript: string}>} */
const PROGRAMS = {
  realtime: (facts) => ({
    python: pythonCall(
      facts,
      'RealtimeClient',
      `mode="audio", instructions=${quoted(facts.instructions)}`,
      'Ended, Speaking',
      UNITS,
    ),
    javascript: javascriptCall(facts, duplexOrder(facts, 'realtime')),
  }),
  duplex: (facts) => ({
    python: pythonCall(facts, 'DuplexClient', `system_prompt=${quoted(facts.instructions)}`, 'Ended, Speaking', UNITS),
    javascript: javascriptCall(facts, duplexOrder(facts, 'duplex')),
  }),
  half_duplex: (facts) => ({
    python: pythonCall(
      facts,
      'HalfDuplexClient',
      `system_prompt=${quoted(facts.instructions)}`,
      'Ended, Piece',
      PIECES,
    ),
    javascript: javascriptCall(
      facts,
      `{
    connection: { base: ${quoted(facts.origin)} },
    microphone: {},
    options: () => ({ instructions: ${quoted(facts.instructions)} }),
  }`,
      'HalfDuplexCall',
    ),
  }),
  chat: (facts) => ({
    python: `# pip install parley-voice
from parley.client import sync

with sync.connect(${quoted(facts.origin)}${insecure(facts)}) as server:
    answer = server.ask("Hello! Who are you?", system=${quoted(facts.instructions)})
    print(answer.text)
`,
    javascript: `import { ChatClient } from ${quoted(`${facts.origin}/static/client.js`)};

const chat = new ChatClient(${indented(facts.message)}, { base: ${quoted(facts.origin)} });
chat.addEventListener('delta', ({ detail }) => console.log(detail.text));
chat.addEventListener('ended', ({ detail }) => console.log(detail.reason));
chat.open();
`,
  }),
  ...OPENAI_PROGRAMS,
};

/**
 * @param {import('./dialects.js').Dialect} dialect @param {Facts} facts
 * @returns {Version[]}
 */
export function programs(dialect, facts) {
  const { python: py, javascript } = PROGRAMS[dialect.id](facts);
  const lines = dialect.messages(facts.instructions).map(({ message }) => JSON.stringify(message));
  const text = dialect.isHttp
    ? curl(facts, dialect.path())
    : socketShell(facts, dialect.path(), chosen(dialect, lines));
  return [
    { id: 'python', name: 'Python', text: py },
    { id: 'javascript', name: 'JavaScript', text: javascript },
    { id: 'shell', name: dialect.isHttp ? 'curl' : 'websocat', text },
  ];
}

/** A session needs the messages in order; a chat has one request. @param {import('./dialects.js').Dialect} dialect @param {string[]} lines */
const chosen = ({ id }, lines) =>
  id === 'chat' ? lines.slice(0, 1) : id === 'openai_realtime' ? lines.slice(0, 3) : lines;
