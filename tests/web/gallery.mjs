/** The page of the documentation that shows what the pages look like, of the pictures that are there. */

import { existsSync, writeFileSync } from 'node:fs';

const docs = new URL('../../docs/', import.meta.url);

/** Name of the picture, what is seen, and what there is to it. @type {[string, string, string][]} */
const SHOWN = [
  ['home', 'The first page', 'tap the sphere and talk; its voices, things to do together'],
  ['explore', 'What can it do?', 'every way to talk, what the model can do, and privacy'],
  ['call-speaking', 'A voice call', 'the assistant speaks; its words appear as they are heard'],
  ['call-settings', 'Its settings', 'instructions, voice, devices, answers, recording'],
  ['call-denied', 'Without a microphone', 'what is wrong, and what to do'],
  ['queue', 'Waiting', 'place, estimate, and a bell when it is your turn'],
  ['half-duplex', 'Taking turns', 'the server detects when you have finished'],
  ['omni', 'A video call', 'from edge to edge, with subtitles'],
  ['realtime', 'For builders', 'the protocol, message by message'],
  ['chat', 'A chat, before', 'text, pictures, sound and clips'],
  ['chat-answer', 'A chat', 'answers in words and voice'],
  ['chat-settings', 'Its settings', 'instructions, voices, answers, recording'],
  ['replay', 'A recording', 'the conversation, both voices, every second'],
  ['recordings', 'My conversations', 'to watch, rename and delete'],
  ['privacy', 'Privacy', 'what happens to what you say, show and write'],
  ['about', 'About', 'what answers here, and the licences of its parts'],
  ['admin', 'The operator’s page', 'workers, queue, figures, keys, recordings'],
];
/** Those that are shown on a phone, too. */
export const ON_PHONES = ['home', 'call-speaking', 'omni', 'chat-answer'];

const THEMES = ['light', 'dark'];
const isThere = (/** @type {string} */ name) => existsSync(new URL(`images/${name}.webp`, docs));
/** @param {string} name @param {string} words @param {number} width */
const picture = (name, words, width) => `<img src="../images/${name}.webp" alt="${words}" width="${width}">`;

export function writeGallery() {
  const rows = SHOWN.filter(([name]) => THEMES.every((theme) => isThere(`${name}-desktop-${theme}`))).map(
    ([name, title, more]) => {
      const pictures = THEMES.map((theme) => picture(`${name}-desktop-${theme}`, `${title}, ${theme}`, 380));
      return `| **${title}**<br>${more} | ${pictures.join(' | ')} |`;
    },
  );
  const phones = SHOWN.filter(([name]) => ON_PHONES.includes(name)).flatMap(([name, title]) =>
    THEMES.filter((theme) => isThere(`${name}-phone-${theme}`)).map((theme) =>
      picture(`${name}-phone-${theme}`, `${title} on a phone, ${theme}`, 180),
    ),
  );
  const text = `# What the pages look like

Made by \`make web-shots ARGS=--docs\` with the default model, whose answers are real. What the camera sees is a drawing.

| | light | dark |
|---|---|---|
${rows.join('\n')}

On a phone, in English and Chinese:

${phones.join('\n')}
`;
  writeFileSync(new URL('do/pages.md', docs), text);
}
