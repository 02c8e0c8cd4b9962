/** The settings of a call, as groups of controls. */

import { choice, group, preset, range, toggle } from '../../elements/form.js';
import { h, textButton } from '../../elements/dom.js';
import { recordingSwitch } from '../../elements/consent.js';
import { developerSwitch } from '../../elements/developer.js';
import { CONTEXT_TOKENS } from '../../wire/duplex.js';
import { RECORD_FORMATS } from './settings.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

/** Values of talkativeness, by name. Source: the published pages' values for the length penalty. */
const LENGTHS = /** @type {[number, string][]} */ ([
  [0.9, 'settings.length_short'],
  [1.1, 'settings.length_balanced'],
  [1.3, 'settings.length_long'],
]);

/** Range of the server's speech threshold. Source: service.md 4.3, `vad.threshold`. */
const THRESHOLD = { min: 0.05, max: 0.99, step: 0.01 };

/** @param {CallPage} page */
function prompt({ settings, prompt: text, content }) {
  if (!content) return group('settings.prompt', true, text);
  const advanced = toggle(settings, 'advanced', { words: 'chat.advanced', hint: 'chat.advanced_hint' });
  const show = () => {
    content.hidden = !settings.get('advanced');
    if (!content.hidden && content.parts.length === 0) content.parts = [{ type: 'text', text: text.text }];
  };
  settings.addEventListener('change', show);
  show();
  return group('settings.prompt', true, text, advanced, content);
}

/** @param {CallPage} page */
function answers({ settings, isHalf }) {
  const talkative = preset(settings, 'lengthPenalty', {
    words: 'settings.length_penalty',
    hint: 'settings.length_penalty_hint',
    options: LENGTHS,
  });
  const fine = range(settings, 'lengthPenalty', { words: 'settings.length_exact', min: 0.1, max: 5, step: 0.05 });
  const delay = range(settings, 'delay', { words: 'settings.delay', min: 0, max: 2000, step: 50, unit: 'ms' });
  const more = isHalf
    ? [
        toggle(settings, 'voiceOn', { words: 'settings.voice' }),
        range(settings, 'maxTokens', { words: 'settings.max_tokens', min: 1, max: 2048, step: 1 }),
        range(settings, 'temperature', { words: 'settings.temperature', min: 0, max: 2, step: 0.05 }),
      ]
    : [];
  return group('settings.answers', false, talkative, fine, ...more, delay);
}

/** @param {CallPage} page */
function turns({ settings, vad }) {
  if (vad) {
    const show = () => Object.assign(vad, { threshold: settings.get('threshold') });
    vad.addEventListener('threshold', (event) => {
      const { detail } = /** @type {CustomEvent} */ (event);
      const rounded = Math.round(detail / THRESHOLD.step) * THRESHOLD.step;
      settings.set('threshold', Math.min(THRESHOLD.max, Math.max(THRESHOLD.min, Number(rounded.toFixed(2)))));
    });
    settings.addEventListener('change', show);
    show();
  }
  return group(
    'settings.turns',
    false,
    interrupting(settings, ['wait', 'policy', 'stop']),
    toggle(settings, 'pushToTalk', { words: 'settings.push_to_talk', hint: 'settings.push_to_talk_hint' }),
    vad,
    range(settings, 'threshold', { words: 'settings.threshold', ...THRESHOLD }),
    range(settings, 'minSpeech', { words: 'settings.min_speech', min: 0, max: 2000, step: 32, unit: 'ms' }),
    range(settings, 'minSilence', { words: 'settings.min_silence', min: 100, max: 3000, step: 50, unit: 'ms' }),
    range(settings, 'pad', { words: 'settings.pad', min: 0, max: 500, step: 10, unit: 'ms' }),
    range(settings, 'timeout', { words: 'settings.timeout', min: 10, max: 1800, step: 10, unit: 's' }),
  );
}

/** @param {import('../../elements/form.js').Settings<any>} settings @param {string[]} ways */
function interrupting(settings, ways) {
  const options = ways.map((way) => /** @type {[string, string]} */ ([way, `settings.interrupting_${way}`]));
  return choice(settings, 'interrupting', { words: 'settings.interrupting', options });
}

/** @param {CallPage} page */
function duplex({ settings, kind }) {
  const dialects = /** @type {[string, string][]} */ ([
    ['realtime', 'settings.dialect_realtime'],
    ['duplex', 'settings.dialect_duplex'],
  ]);
  const modes = /** @type {[string, string][]} */ ([
    ['video', 'settings.mode_video'],
    ['audio', 'settings.mode_audio'],
  ]);
  return group(
    'settings.duplex',
    false,
    interrupting(settings, ['policy', 'stop', 'duck']),
    choice(settings, 'dialect', { words: 'settings.dialect', options: dialects }),
    kind === 'realtime' ? choice(settings, 'mode', { words: 'settings.mode', options: modes }) : null,
    range(settings, 'contextLimit', { words: 'settings.context', min: 512, max: CONTEXT_TOKENS, step: 256 }),
  );
}

/** @param {CallPage} page */
function picture({ settings }) {
  const part = { min: 0, max: 100, step: 5, unit: '%' };
  return group(
    'settings.picture',
    false,
    toggle(settings, 'captions', { words: 'video.captions' }),
    range(settings, 'captionHeight', { words: 'settings.caption_height', min: 5, max: 80, step: 5, unit: '%' }),
    range(settings, 'captionShadeTop', { words: 'settings.caption_shade_top', ...part }),
    range(settings, 'captionShade', { words: 'settings.caption_shade', ...part }),
  );
}

/** @param {CallPage} page */
function recording({ settings, hasVideo }) {
  const rates = ['1', '2', '4', '8'].map((mb) => /** @type {[string, string]} */ ([mb, `settings.megabits_${mb}`]));
  const formats = RECORD_FORMATS.map((name) => /** @type {[string, string]} */ ([name, `settings.format_${name}`]));
  const film = hasVideo
    ? [
        choice(settings, 'recordFormat', { words: 'settings.record_format', options: formats }),
        choice(settings, 'recordMegabits', { words: 'settings.megabits', options: rates }),
        toggle(settings, 'recordSubtitles', { words: 'settings.record_subtitles' }),
      ]
    : [];
  return group(
    'settings.recording',
    false,
    recordingSwitch(),
    toggle(settings, 'recordHere', { words: 'settings.record_here', hint: 'settings.record_here_hint' }),
    ...film,
  );
}

/** @param {CallPage} page */
function devices({ settings, devices: lists }) {
  return group(
    'settings.devices',
    false,
    lists,
    toggle(settings, 'studio', { words: 'settings.studio', hint: 'settings.studio_hint' }),
    range(settings, 'volume', { words: 'settings.volume', min: 0, max: 1, step: 0.05 }),
  );
}

/** @param {CallPage} page */
function help({ kind, hasVideo }) {
  const topics = ['what', 'interrupt', 'hear', 'end'];
  return group(
    'help.title',
    false,
    h('p', { words: `help.${kind}` }),
    ...topics.map((topic) => h('p', { class: 'small', words: `faq.${topic}` })),
    h('p', { class: 'quiet', words: hasVideo ? 'help.keys_video' : 'help.keys' }),
  );
}

/** @param {CallPage} page */
export function settingsPanel(page) {
  const { settings, prompt: text, voice, ttsVoice, source } = page;
  const reset = () => {
    settings.reset();
    text.reset();
    voice.reset();
    ttsVoice?.reset();
  };
  return h(
    'div',
    { class: 'stack' },
    h('p', { class: 'small quiet settings-note', words: 'settings.next_start' }),
    prompt(page),
    group(
      'settings.voice_group',
      false,
      voice,
      ttsVoice,
      ttsVoice && h('p', { class: 'small quiet', words: 'voice.two_help' }),
    ),
    source ? group('settings.source', false, source) : null,
    devices(page),
    answers(page),
    page.isHalf ? turns(page) : duplex(page),
    page.hasVideo ? picture(page) : null,
    recording(page),
    help(page),
    developerSwitch(),
    h('div', { class: 'row' }, textButton('retry', 'settings.reset', reset)),
  );
}
