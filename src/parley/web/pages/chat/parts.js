/** Objects that the parts of the chat page share: settings, audio, the conversation, and the settings of a request. */

import { theRig } from '../../audio/rig.js';
import { mayRecord } from '../../elements/consent.js';
import { element } from '../../elements/dom.js';
import { Settings } from '../../elements/form.js';
import { ChatTalk } from '../../talk/chat.js';
import { t } from '../../words/words.js';
import '../../elements/orb/orb.js';
import '../../elements/parts/parts.js';
import '../../elements/player/player.js';
import '../../elements/prompt/prompt.js';
import '../../elements/queue/queue.js';
import '../../elements/voice/voice.js';

/** @typedef {import('../../talk/chat.js').Part} Part */
/** @typedef {ReturnType<typeof makeParts>} ChatPage */

/** Maximum length of audio in the instructions that is used as a voice to imitate. */
const VOICE_LIMIT_S = 20;

export function makeParts() {
  const settings = new Settings('chat', {
    streaming: true,
    voice: false,
    maxTokens: 512,
    lengthPenalty: 1.1,
    temperature: 0.7,
    detailed: false,
    thinking: false,
    advanced: false,
    independent: false,
  });
  const rig = theRig();
  let turn = 0;
  const talk = new ChatTalk({
    onSound: (audio, id) => {
      if (page.playing !== id) {
        page.playing = id;
        turn = rig.newTurn();
      }
      rig.play(turn, audio);
      page.changed();
    },
    onSoundEnd: () => rig.endTurn(turn),
  });
  const page = {
    settings,
    rig,
    talk,
    /** Id of the message that is being played; '' if none is. */
    playing: '',
    prompt: /** @type {import('../../elements/prompt/prompt.js').Prompt} */ (element('p-prompt')),
    voice: /** @type {import('../../elements/voice/voice.js').Voice} */ (element('p-voice', { words: 'voice.label' })),
    ttsVoice: /** @type {import('../../elements/voice/voice.js').Voice} */ (
      element('p-voice', { words: 'voice.tts', same: '' })
    ),
    systemParts: /** @type {import('../../elements/parts/parts.js').Parts} */ (element('p-parts')),
    queue: /** @type {import('../../elements/queue/queue.js').Queue} */ (element('p-queue')),
    orb: /** @type {import('../../elements/orb/orb.js').Orb} */ (element('p-orb')),
    /** Called when something has changed that the compose bar shows. */
    changed: () => {},
    /** Stops playback and cancels the answer. */
    hush: () => {
      talk.cancel();
      rig.flush();
    },
    settingsNow: () => settingsNow(page),
  };
  page.prompt.mode = 'turnbased';
  const quiet = () => {
    page.playing = '';
    page.changed();
  };
  rig.addEventListener('drained', quiet);
  rig.addEventListener('flushed', quiet);
  return page;
}

/** @param {ChatPage} page @returns {import('../../talk/chat.js').ChatSettings} */
function settingsNow({ settings, voice, ttsVoice, prompt, systemParts }) {
  const voiceData = voice.data;
  /** @type {Part[]} */
  const spoken = [
    { type: 'text', text: t('prompt.imitate') },
    { type: 'audio', data: voiceData ?? '' },
  ];
  /** @type {Part[]} */
  const plain = [...(voiceData ? spoken : []), { type: 'text', text: prompt.text }];
  const system = settings.get('advanced') && systemParts.parts.length > 0 ? systemParts.parts : plain;
  const sounds = system.filter((part) => part.type === 'audio');
  const [only] = sounds;
  const isVoice = sounds.length === 1 && only.type === 'audio' && (only.seconds ?? 0) < VOICE_LIMIT_S;
  const own = ttsVoice.isSame ? null : ttsVoice.data;
  return {
    system,
    streaming: settings.get('streaming'),
    voice: settings.get('voice'),
    ttsVoice: own ?? (isVoice && only.type === 'audio' ? only.data : null),
    maxNewTokens: settings.get('maxTokens'),
    lengthPenalty: settings.get('lengthPenalty'),
    temperature: settings.get('temperature'),
    detailed: settings.get('detailed'),
    thinking: settings.get('thinking'),
    record: mayRecord(),
  };
}
