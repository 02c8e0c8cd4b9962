/** Settings of a chat, and saving it as a file. */

import { recordingSwitch } from '../../elements/consent.js';
import { download, h, iconButton, painted, sheet, textButton } from '../../elements/dom.js';
import { group, range, toggle } from '../../elements/form.js';
import { titleOf } from '../../talk/history.js';
import { t } from '../../words/words.js';

/** @param {import('./parts.js').ChatPage} page */
function answers({ settings }) {
  return group(
    'settings.answers',
    false,
    toggle(settings, 'streaming', { words: 'settings.streaming' }),
    toggle(settings, 'thinking', { words: 'settings.thinking' }),
    toggle(settings, 'detailed', { words: 'settings.detailed', hint: 'settings.detailed_hint' }),
    range(settings, 'maxTokens', { words: 'settings.max_tokens', min: 1, max: 2048, step: 1 }),
    range(settings, 'lengthPenalty', { words: 'settings.length_penalty', min: 0.1, max: 5, step: 0.05 }),
    range(settings, 'temperature', { words: 'settings.temperature', min: 0, max: 2, step: 0.05 }),
  );
}

/** @param {import('./parts.js').ChatPage} page */
export function optionsPanel(page) {
  const { settings, prompt, voice, ttsVoice, systemParts } = page;
  const advanced = toggle(settings, 'advanced', { words: 'chat.advanced', hint: 'chat.advanced_hint' });
  const spoken = toggle(settings, 'voice', { words: 'settings.voice', hint: 'chat.voice_hint' });
  const reset = () => {
    settings.reset();
    for (const part of [prompt, voice, ttsVoice]) part.reset();
  };
  const showAdvanced = () => {
    systemParts.hidden = !settings.get('advanced');
    if (!systemParts.hidden && systemParts.parts.length === 0)
      systemParts.parts = [{ type: 'text', text: prompt.text }];
  };
  settings.addEventListener('change', showAdvanced);
  prompt.addEventListener('voice', (event) => {
    const { sound, name } = /** @type {CustomEvent} */ (event).detail;
    voice.offer(sound, name);
  });
  const close = iconButton('close', 'action.close', () => node.removeAttribute('data-open'));
  const node = h(
    'aside',
    { class: 'options', label: 'call.settings' },
    h('div', { class: 'row spread' }, h('h2', { words: 'call.settings' }), close),
  );
  node.removeAttribute('title');
  const controls = () =>
    h(
      'div',
      { class: 'stack' },
      group('settings.prompt', true, prompt, advanced, systemParts),
      group('settings.voice_group', false, spoken, voice, ttsVoice),
      answers(page),
      group('settings.recording', true, recordingSwitch()),
      group('help.title', false, h('p', { words: 'help.chat' }), h('p', { class: 'quiet', words: 'help.keys_chat' })),
      h('div', { class: 'row' }, textButton('retry', 'settings.reset', reset)),
    );
  // These settings are many, and none is needed to write a message.
  void painted().then(async () => {
    node.append(controls());
    showAdvanced();
    await prompt.load();
    showAdvanced();
  });
  return node;
}

/** @param {import('../../talk/chat.js').ChatMessage[]} messages */
function markdown(messages) {
  const who = (/** @type {string} */ role) => t(`who.${role === 'user' ? 'you' : 'assistant'}`);
  const said = (/** @type {import('../../talk/chat.js').Part} */ part) =>
    part.type === 'text' ? part.text : `[${t(`part.${part.type}`)}]`;
  return messages.map(({ role, parts }) => `**${who(role)}**\n\n${parts.map(said).join('\n')}`).join('\n\n---\n\n');
}

/** @param {import('../../talk/chat.js').ChatMessage[]} messages @param {string} name set by the user */
export function openExport(messages, name) {
  const file = (name || titleOf(messages) || 'chat').replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 40);
  const json = () =>
    messages.map(({ role, parts, at, tokens, timing }) => ({
      role,
      content: parts,
      at: new Date(at).toISOString(),
      tokens,
      timing,
    }));
  /** @param {string} icon @param {string} words @param {string} ending @param {string} type @param {() => string} make */
  const way = (icon, words, ending, type, make) => {
    const onclick = () => {
      download(new Blob([make()], { type }), `${file}.${ending}`);
      node.close();
    };
    return h('button', { class: 'button', type: 'button', icon, words, onclick });
  };
  const node = sheet(
    'chat.export',
    h(
      'div',
      { class: 'stack' },
      way('file', 'chat.export_md', 'md', 'text/markdown', () => markdown(messages)),
      way('code', 'chat.export_json', 'json', 'application/json', () => JSON.stringify(json(), null, 2)),
    ),
  );
}
