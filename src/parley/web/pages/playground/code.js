/** Programs that do the same as the playground: for each protocol in Python, JavaScript and for a shell. */

import { isShowing, OPENAI_PROGRAMS, quoted } from './openai-code.js';

/** @typedef {{origin: string, instructions: string, message: string, hasOwnCertificate: boolean}} Facts */
/** @typedef {import('../../elements/code/code.js').Version} Version */

/** Quotes text for a shell with single quotes. @param {string} text */
const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** @param {string} text text whose lines after the first are indented */
const indented = (text, by = '  ') => text.replaceAll('\n', `\n${by}`);

/**
 * Returns a message for a shell, with commands in place of its placeholders.
 * @param {string} text inside single quotes
 */
const filledInShell = (text) =>
  shell(text)
    .replaceAll('$SILENCE', `'"$(head -c 64000 /dev/zero | base64 | tr -d '\\n')"'`)
    .replaceAll('$PICTURE', `'"$(base64 < picture.jpg | tr -d '\\n')"'`);

/** @param {Facts} facts @param {string} path @param {string[]} lines messages */
function socketShell({ origin, hasOwnCertificate }, path, lines) {
  const url = origin.replace(/^http/, 'ws') + path;
  const said = lines.map((line) => `  printf '%s\\n' ${filledInShell(line)}; sleep 3`).join('\n');
  return `{\n${said}\n} | websocat${hasOwnCertificate ? ' -k' : ''} -B 2000000 ${shell(url)}`;
}

/** @param {Facts} facts @param {string} path */
function curl({ origin, message, hasOwnCertificate }, path) {
  return [
    `printf '%s' ${filledInShell(message)} |`,
    `  curl ${hasOwnCertificate ? '-k ' : ''}-N ${shell(origin + path)} \\`,
    `    -H 'content-type: application/json' -d @-`,
  ].join('\n');
}

// Except for its own imports, no line of this file starts with `import`: scripts are joined at such lines.
/**
 * @param {Facts} facts @param {string} client @param {string[]} options @param {string[]} ask lines with which the
 *   program speaks, shows or writes
 */
const pythonCall = (facts, client, options, ask) =>
  [
    '# In a clone of parley: pip install -e .',
    'import asyncio',
    ...(isShowing(facts) ? ['from pathlib import Path'] : []),
    '',
    'import parley',
    ...(ask.includes(SAY) ? ['from parley.media import wav'] : []),
    '',
    '',
    'async def main() -> None:',
    `    async with parley.${client}(`,
    ...[quoted(facts.origin), ...options, 'record=False', ...(facts.hasOwnCertificate ? ['insecure=True'] : [])].map(
      (option) => `        ${option},`,
    ),
    '    ) as talk:',
    ...ask.map((line) => `        ${line}`),
    '        async for turn in talk.turns():',
    '            print(turn.text)',
    '            await talk.stop()',
    '',
    '',
    'asyncio.run(main())',
    '',
  ].join('\n');

const SAY = 'await talk.say(wav.load("speech.wav"))';
/** @param {Facts} facts */
const shown = (facts) => (isShowing(facts) ? ['talk.show(Path("picture.jpg").read_bytes())'] : []);
const WRITE = ['await talk.ready()', 'talk.write("What is this?", Path("picture.jpg").read_bytes())'];

/** @param {Facts} facts @param {string} order source code of the options of the call */
const javascriptCall = (facts, order, make = 'DuplexCall') => {
  const names = ['Calls', ...(isShowing(facts) ? ['Camera'] : []), make, 'theRig'];
  const camera = isShowing(facts) ? `\n  const camera = new Camera(document.createElement('video'));` : '';
  const open = isShowing(facts) ? 'camera.open().then(() => calls.start(order))' : 'calls.start(order)';
  return `<button id="talk">Talk</button> <p id="said"></p>
<script type="module">
  import { ${names.join(', ')} } from ${quoted(`${facts.origin}/static/client.js`)};
${camera}
  const calls = new Calls(() => new ${make}(theRig()));
  calls.addEventListener('captions', ({ detail: { list } }) => {
    document.querySelector('#said').textContent = list.at(-1)?.text ?? '';
  });
  const order = ${order};
  document.querySelector('#talk').onclick = () => (calls.isBusy ? calls.stop() : ${open});
</script>
`;
};

/** @param {Facts} facts @param {string} dialect */
const duplexOrder = (facts, dialect) =>
  `{
    dialect: ${quoted(dialect)},
    mode: ${isShowing(facts) ? "'video',\n    frame: () => camera.frame()" : "'audio'"},
    connection: { base: ${quoted(facts.origin)} },
    microphone: {},
    options: () => ({ instructions: ${quoted(facts.instructions)}, record: false }),
  }`;

/** @param {Facts} facts */
function chatPython(facts) {
  const asked = isShowing(facts)
    ? `    picture = Path("picture.jpg").read_bytes()
    answer = server.ask("What is this?", images=[picture], record=False, system=${quoted(facts.instructions)})`
    : `    answer = server.ask("Hello! Who are you?", record=False, system=${quoted(facts.instructions)})`;
  return [
    '# In a clone of parley: pip install -e .',
    ...(isShowing(facts) ? ['from pathlib import Path', ''] : []),
    'from parley.client import sync',
    '',
    `with sync.connect(${quoted(facts.origin)}${facts.hasOwnCertificate ? ', insecure=True' : ''}) as server:`,
    asked,
    '    print(answer.text)',
    '',
  ].join('\n');
}

/** @param {Facts} facts */
function chatJavascript(facts) {
  const picture = `
  const bytes = await (await fetch('picture.jpg')).arrayBuffer();
  const picture = encodeBytes(new Uint8Array(bytes));`;
  return `<p id="said"></p>
<script type="module">
  import { ChatClient${isShowing(facts) ? ', encodeBytes' : ''} } from ${quoted(`${facts.origin}/static/client.js`)};
${isShowing(facts) ? picture : ''}
  const question = ${indented(facts.message).replaceAll('"$PICTURE"', 'picture')};
  const chat = new ChatClient(question, { base: ${quoted(facts.origin)} });
  chat.addEventListener('delta', ({ detail }) => document.querySelector('#said').append(detail.text));
  chat.open();
</script>
`;
}

/** @type {Record<string, (facts: Facts) => {python: string, javascript: string}>} */
const PROGRAMS = {
  realtime: (facts) => ({
    python: pythonCall(
      facts,
      'RealtimeClient',
      [`mode="${isShowing(facts) ? 'video' : 'audio'}"`, `instructions=${quoted(facts.instructions)}`],
      [...shown(facts), SAY],
    ),
    javascript: javascriptCall(facts, duplexOrder(facts, 'realtime')),
  }),
  duplex: (facts) => ({
    python: pythonCall(
      facts,
      'DuplexClient',
      [`system_prompt=${quoted(facts.instructions)}`, ...(isShowing(facts) ? ['video=True'] : [])],
      [...shown(facts), SAY],
    ),
    javascript: javascriptCall(facts, duplexOrder(facts, 'duplex')),
  }),
  half_duplex: (facts) => ({
    python: pythonCall(
      facts,
      'HalfDuplexClient',
      [`system_prompt=${quoted(facts.instructions)}`],
      isShowing(facts) ? WRITE : [SAY],
    ),
    javascript: javascriptCall(
      { ...facts, message: '' },
      `{
    connection: { base: ${quoted(facts.origin)} },
    microphone: {},
    options: () => ({ instructions: ${quoted(facts.instructions)}, record: false }),
  }`,
      'HalfDuplexCall',
    ),
  }),
  chat: (facts) => ({
    python: chatPython(facts),
    javascript: chatJavascript(facts),
  }),
  ...OPENAI_PROGRAMS,
};

/**
 * @param {import('./dialects.js').Dialect} dialect @param {Facts} shown
 * @returns {Version[]}
 */
export function programs(dialect, shown) {
  const messages = dialect.messages(shown.instructions).map(({ message }) => message);
  // The message that stops an answer asks for none.
  const isAsking = dialect.id !== 'chat' || shown.message.includes('"messages"');
  const facts = isAsking ? shown : { ...shown, message: JSON.stringify(messages[0], null, 2) };
  const { python: py, javascript } = PROGRAMS[dialect.id](facts);
  const lines = messages
    .map((message) => JSON.stringify(message))
    .filter((line) => isShowing(facts) || !line.includes('$PICTURE'));
  const text = dialect.isHttp
    ? curl(facts, dialect.path())
    : socketShell(facts, dialect.path(), chosen(dialect, lines, facts));
  return [
    { id: 'python', name: 'Python', text: py },
    { id: 'javascript', name: 'JavaScript', text: javascript },
    { id: 'shell', name: dialect.isHttp ? 'curl' : 'websocat', text },
  ];
}

/**
 * Returns the messages of a program: a session needs all of them in order; a chat has one request, the one in the
 * editor.
 *
 * @param {import('./dialects.js').Dialect} dialect @param {string[]} lines @param {Facts} facts
 */
function chosen({ id }, lines, facts) {
  if (id === 'chat') return lines.filter((line) => line.includes('$PICTURE') === isShowing(facts)).slice(0, 1);
  // The program must not cancel the answer that it reads.
  return lines.filter((line) => !line.includes('response.cancel'));
}
