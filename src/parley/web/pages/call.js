/**
 * The page of a live conversation: half-duplex, voice call, video call, and the protocol demonstration.
 * Assembles elements around one state machine; what happens in a conversation is decided there.
 */

import { Chimes } from '../audio/chime.js';
import { EchoWatch } from '../audio/echo.js';
import { theRig } from '../audio/rig.js';
import { $, copy, h, once, reicon, relabel, say, toast } from '../elements/dom.js';
import { choice, group, range, Settings, toggle } from '../elements/form.js';
import { askForKey } from '../elements/key.js';
import { barrierNotice, endingNotice, mediaNotice, notice } from '../elements/notice.js';
import { remember, viewerUrl } from '../elements/recents.js';
import { saveRecording } from '../elements/save.js';
import { mountShell } from '../elements/shell/shell.js';
import { plainTranscript } from '../elements/transcript/transcript.js';
import { grade } from '../elements/metrics/metrics.js';
import { DuplexTalk } from '../talk/duplex.js';
import { HalfDuplexTalk } from '../talk/half-duplex.js';
import { chosenApi } from '../wire/api.js';
import { CONTEXT_TOKENS } from '../wire/duplex.js';
import { request, requestIfAny } from '../wire/http.js';
import { clock, t } from '../words/words.js';
import { followUnits } from './monitor.js';
import { mountWriting } from './writing.js';
import '../elements/devices/devices.js';
import '../elements/events/events.js';
import '../elements/orb/orb.js';
import '../elements/prompt/prompt.js';
import '../elements/queue/queue.js';
import '../elements/voice/voice.js';
import '../elements/wave/wave.js';

/** @typedef {'half_duplex' | 'audio_duplex' | 'omni' | 'realtime'} Kind */

const APP = { half_duplex: 'half_duplex_audio', audio_duplex: 'audio_duplex', omni: 'omni', realtime: 'realtime' };
/** The person is told when this much is left. */
const HINT_AT_S = 30;
/** And when its memory is this full. */
const NEARLY_FULL = 0.8;
/** A voice this much above the room's own level, five reports in a row, is somebody interrupting. */
const BARGE_LEVEL = 0.05;
const BARGE_REPORTS = 5;
/** So much of what was said goes into a call that continues another, in signs. */
const CARRY_LIMIT = 4000;

/** @param {Kind} kind */
export async function mountCall(kind) {
  const isHalf = kind === 'half_duplex';
  const hasVideo = kind === 'omni' || kind === 'realtime';
  const app = APP[kind];
  mountShell({ app });
  // What only some calls need is loaded by those.
  const [stageVideoModule] = await Promise.all([hasVideo ? import('./stage-video.js') : null, isHalf ? null : import('../elements/source/source.js')]);

  const settings = new Settings(kind, {
    dialect: kind === 'realtime' || kind === 'omni' || kind === 'audio_duplex' ? 'realtime' : 'half',
    mode: 'video',
    threshold: 0.8,
    minSpeech: 128,
    minSilence: 800,
    pad: 30,
    maxTokens: 256,
    lengthPenalty: kind === 'audio_duplex' ? 1.05 : 1.1,
    temperature: 0.7,
    voiceOn: true,
    timeout: 180,
    delay: 200,
    contextLimit: CONTEXT_TOKENS,
    studio: false,
    barge: false,
    recordServer: true,
    recordHere: false,
    recordMegabits: '2',
    recordSubtitles: true,
    volume: 1,
    captions: true,
    captionHeight: 20,
    captionShade: 80,
  });

  const rig = theRig();
  const talk = isHalf ? new HalfDuplexTalk(rig) : new DuplexTalk(rig);
  const duplex = talk instanceof DuplexTalk ? talk : null;
  const half = talk instanceof HalfDuplexTalk ? talk : null;
  const chimes = new Chimes(() => rig.context);
  const echo = new EchoWatch();
  /** The server of the calls; null: this page's own. @type {string | null} */
  let api = null;
  /** A sound file on its way to the model; a film is heard from its picture. */
  const monitor = new Audio();
  let hasMonitor = false;
  /** @type {import('../talk/recorder.js').VoiceRecorder | import('../talk/recorder.js').VideoRecorder | null} */
  let recorder = null;
  /** @type {Blob | null} */
  let recorded = null;
  let hasHinted = false;
  let hasWarned = false;
  let barge = 0;
  /** @type {WakeLockSentinel | null} */
  let awake = null;

  const make = (/** @type {string} */ tag, /** @type {Record<string, string>} */ attributes = {}) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const orb = /** @type {import('../elements/orb/orb.js').Orb} */ (make('p-orb'));
  const wave = /** @type {import('../elements/wave/wave.js').Wave} */ (make('p-wave'));
  const queue = /** @type {import('../elements/queue/queue.js').Queue} */ (make('p-queue'));
  const transcript = /** @type {import('../elements/transcript/transcript.js').Transcript} */ (make('p-transcript'));
  const prompt = /** @type {import('../elements/prompt/prompt.js').Prompt} */ (make('p-prompt'));
  const voice = /** @type {import('../elements/voice/voice.js').Voice} */ (make('p-voice', { words: isHalf ? 'voice.label' : 'voice.model' }));
  const ttsVoice = isHalf ? null : /** @type {import('../elements/voice/voice.js').Voice} */ (make('p-voice', { words: 'voice.tts', same: '' }));
  const devices = /** @type {import('../elements/devices/devices.js').Devices} */ (make('p-devices', { page: kind, ...(hasVideo ? { camera: '' } : {}) }));
  const metrics = /** @type {import('../elements/metrics/metrics.js').Metrics} */ (make('p-metrics'));
  const signal = /** @type {import('../elements/metrics/metrics.js').Signal} */ (make('p-signal'));
  const events = /** @type {import('../elements/events/events.js').Events} */ (make('p-events'));
  const source = isHalf ? null : /** @type {import('../elements/source/source.js').Source} */ (make('p-source'));
  if (source) source.isVideo = hasVideo;
  queue.chimes = chimes;
  prompt.mode = kind === 'realtime' ? 'omni' : app;
  transcript.captions = talk.captions;

  // The stage

  const stateLine = h('p', { class: 'state', role: 'status', 'aria-live': 'polite' });
  const caption = h('p', { class: 'caption' }, h('span', null), h('span', { class: 'ahead' }));
  // Captions grow word by word; who listens to the page instead of looking at it gets them whole.
  const spoken = h('p', { class: 'visually-hidden', 'aria-live': 'polite' });
  let announced = -1;
  const notices = h('div', { class: 'notices' });
  const rings = /** @type {import('../elements/metrics/metrics.js').Rings} */ (make('p-rings', { hidden: '' }));
  const time = h('span', null);
  const memory = h('span', { class: 'visually-hidden' });
  const timer = h('span', { class: 'chip num', hidden: true }, rings, time, ' ', memory);
  const recordChip = h('span', { class: 'chip rec', hidden: true, words: 'call.recorded' });
  const after = h('div', { class: 'row after', hidden: true });
  const stageVideo = stageVideoModule ? stageVideoModule.mountStageVideo({ settings, devices, talk: /** @type {DuplexTalk} */ (talk) }) : null;

  // The dock

  /** @param {string} name @param {string} label @param {() => void} act */
  const round = (name, label, act) => h('button', { class: 'round', type: 'button', icon: name, label, onclick: act });
  const main = h('button', { class: 'button main', type: 'button', icon: 'mic', onclick: (/** @type {MouseEvent} */ event) => press(event) }, h('span', null));
  /** The second half of a double click means the same as the first, not the opposite. @param {MouseEvent} event */
  function press(event) {
    if (event.detail > 1) return;
    if (talk.isBusy) talk.stop();
    else void start();
  }
  const mainText = /** @type {HTMLElement} */ (main.lastElementChild);
  const mute = round('mic', 'call.mute', () => talk.mute(!talk.state.isMuted));
  const pause = duplex ? round('pause', 'call.pause', () => (talk.state.phase === 'live' ? duplex.pause() : duplex.resume())) : null;
  const hush = round(isHalf ? 'skip' : 'hush', isHalf ? 'call.skip' : 'call.hush', () => hushNow());
  const force = duplex ? round('headphones', 'call.force', () => duplex.forceListen(!talk.state.isForcingListen)) : null;
  const textButton = round('text', 'call.conversation', () => openSide('conversation'));
  const settingsButton = round('settings', 'call.settings', () => openSide('settings'));
  const dock = h('div', { class: 'dock', role: 'toolbar', label: 'call.controls' }, h('div', { class: 'left' }, mute, pause), main, h('div', { class: 'right' }, hush, force, textButton, settingsButton));
  dock.removeAttribute('title');

  const stage = h(
    'section',
    { class: 'stage', label: 'call.stage' },
    h('div', { class: 'signs row' }, timer, recordChip, signal),
    stageVideo ? stageVideo.node : h('div', { class: 'presence' }, orb),
    stageVideo ? h('div', { class: 'mini' }, orb) : wave,
    stateLine,
    caption,
    spoken,
    queue,
    notices,
    after,
  );
  stage.removeAttribute('title');

  // The side: conversation, settings, connection

  const writing = mountWriting({ captions: talk.captions, prompt: () => prompt.text, isBusy: () => talk.isBusy });
  const settingsPanel = h('div', { class: 'stack' }, ...settingsOf());
  const connectionPanel = h('div', { class: 'stack' }, metrics, group('events.title', kind === 'realtime', events), h('p', { class: 'small quiet', words: 'metrics.help' }));
  /** @type {[string, Node[]][]} */
  const tabs = [
    ['conversation', [transcript, writing]],
    ['settings', [settingsPanel]],
    ['connection', [connectionPanel]],
  ];
  const tabRow = h('div', { class: 'tabs', role: 'tablist', label: 'call.panels' });
  tabRow.removeAttribute('title');
  const panels = tabs.map(([name, nodes]) => h('div', { class: 'panel', role: 'tabpanel', id: `panel-${name}`, 'aria-labelledby': `tab-${name}`, 'data-panel': name, hidden: true }, ...nodes));
  const closeSide = h('button', { class: 'round slim close-side', type: 'button', label: 'action.close', icon: 'close', onclick: () => openSide(null) });
  tabs.forEach(([name], i) => {
    tabRow.append(
      h('button', {
        type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': `panel-${name}`, words: `call.${name}`, onclick: () => openSide(name, true),
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
          const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
          if (!step) return;
          const next = tabs[(i + step + tabs.length) % tabs.length][0];
          openSide(next, true);
          $(`#tab-${next}`).focus();
        },
      }),
    );
  });
  const side = h('aside', { class: 'side', label: 'call.side' }, h('div', { class: 'row spread head' }, tabRow, closeSide), ...panels);
  side.removeAttribute('title');

  const mainNode = $('#main');
  mainNode.className = 'call';
  mainNode.dataset.kind = kind;
  mainNode.append(h('h1', { class: 'visually-hidden', words: `app.${app}` }), stage, dock, side);

  // The server has told which other servers there are before a call can go to one of them.
  const defaultsKnown = requestIfAny('/api/frontend_defaults').catch(() => null).then((defaults) => {
    if (typeof defaults?.playback_delay_ms === 'number') settings.suggest({ delay: defaults.playback_delay_ms });
    if (isHalf) return;
    const { base, refused } = chosenApi(location.href, defaults?.api_hosts ?? []);
    api = base;
    if (base) toast('call.other_server', { host: new URL(base).host });
    if (refused) notices.prepend(notice('warn', 'call.server_refused', 'call.server_refused_fix', { values: { host: refused } }));
  });
  talk.isAway = () => document.hidden;
  if (duplex) followUnits(monitor, duplex, () => hasMonitor);

  /** @param {string | null} name @param {boolean} [isTab] */
  function openSide(name, isTab = false) {
    const wasOpen = side.dataset.open === name && !isTab;
    side.dataset.open = name === null || wasOpen ? '' : name;
    const shown = side.dataset.open || 'conversation';
    panels.forEach((panel) => {
      panel.hidden = panel.dataset.panel !== shown;
    });
    for (const tab of tabRow.children) {
      const isHere = tab.id === `tab-${shown}`;
      tab.setAttribute('aria-selected', String(isHere));
      /** @type {HTMLElement} */ (tab).tabIndex = isHere ? 0 : -1;
    }
    textButton.setAttribute('aria-expanded', String(side.dataset.open === 'conversation'));
    settingsButton.setAttribute('aria-expanded', String(side.dataset.open === 'settings'));
  }
  openSide(null);
  if (kind === 'realtime' && matchMedia('(min-width: 68.01rem)').matches) openSide('connection', true);

  function settingsOf() {
    const reset = h('button', {
      class: 'button slim', type: 'button', icon: 'retry', words: 'settings.reset',
      onclick: () => {
        settings.reset();
        prompt.reset();
        voice.reset();
        ttsVoice?.reset();
      },
    });
    const answers = isHalf
      ? [
          toggle(settings, 'voiceOn', { words: 'settings.voice' }),
          range(settings, 'maxTokens', { words: 'settings.max_tokens', min: 1, max: 2048, step: 1 }),
          range(settings, 'lengthPenalty', { words: 'settings.length_penalty', min: 0.1, max: 5, step: 0.05 }),
          range(settings, 'temperature', { words: 'settings.temperature', min: 0, max: 2, step: 0.05 }),
        ]
      : [range(settings, 'lengthPenalty', { words: 'settings.length_penalty', min: 0.1, max: 5, step: 0.05 })];
    return [
      h('p', { class: 'small quiet', words: 'settings.next_start' }),
      group('settings.prompt', true, prompt),
      group('settings.voice_group', false, voice, ttsVoice, ttsVoice ? h('p', { class: 'small quiet', words: 'voice.two_help' }) : null),
      source ? group('settings.source', false, source) : null,
      group('settings.devices', false, devices, toggle(settings, 'studio', { words: 'settings.studio', hint: 'settings.studio_hint' }), range(settings, 'volume', { words: 'settings.volume', min: 0, max: 1, step: 0.05 })),
      group('settings.answers', false, ...answers, range(settings, 'delay', { words: 'settings.delay', min: 0, max: 2000, step: 50, unit: 'ms' })),
      isHalf
        ? group(
            'settings.turns', false,
            range(settings, 'threshold', { words: 'settings.threshold', min: 0.05, max: 0.99, step: 0.01 }),
            range(settings, 'minSpeech', { words: 'settings.min_speech', min: 0, max: 2000, step: 32, unit: 'ms' }),
            range(settings, 'minSilence', { words: 'settings.min_silence', min: 100, max: 3000, step: 50, unit: 'ms' }),
            range(settings, 'pad', { words: 'settings.pad', min: 0, max: 500, step: 10, unit: 'ms' }),
            range(settings, 'timeout', { words: 'settings.timeout', min: 10, max: 1800, step: 10, unit: 's' }),
          )
        : group(
            'settings.duplex', false,
            choice(settings, 'dialect', { words: 'settings.dialect', options: [['realtime', 'settings.dialect_realtime'], ['duplex', 'settings.dialect_duplex']] }),
            kind === 'realtime' ? choice(settings, 'mode', { words: 'settings.mode', options: [['video', 'settings.mode_video'], ['audio', 'settings.mode_audio']] }) : null,
            range(settings, 'contextLimit', { words: 'settings.context', min: 512, max: CONTEXT_TOKENS, step: 256 }),
            toggle(settings, 'barge', { words: 'settings.barge', hint: 'settings.barge_hint' }),
          ),
      hasVideo
        ? group(
            'settings.picture', false,
            toggle(settings, 'captions', { words: 'video.captions' }),
            range(settings, 'captionHeight', { words: 'settings.caption_height', min: 5, max: 80, step: 5, unit: '%' }),
            range(settings, 'captionShade', { words: 'settings.caption_shade', min: 0, max: 100, step: 5, unit: '%' }),
          )
        : null,
      group(
        'settings.recording', false,
        toggle(settings, 'recordServer', { words: 'settings.record_server', hint: 'settings.record_server_hint' }),
        toggle(settings, 'recordHere', { words: 'settings.record_here', hint: 'settings.record_here_hint' }),
        hasVideo ? choice(settings, 'recordMegabits', { words: 'settings.megabits', options: ['1', '2', '4', '8'].map((mb) => [mb, `settings.megabits_${mb}`]) }) : null,
        hasVideo ? toggle(settings, 'recordSubtitles', { words: 'settings.record_subtitles' }) : null,
      ),
      group('help.title', false, h('p', { words: `help.${kind}` }), h('p', { class: 'quiet', words: hasVideo ? 'help.keys_video' : 'help.keys' })),
      h('div', { class: 'row' }, reset),
    ];
  }

  // Starting and ending

  /** @param {string} [before] what was said in the call that this one continues */
  async function start(before = '') {
    const barrier = barrierNotice();
    if (barrier) {
      notices.replaceChildren(barrier);
      return;
    }
    // At once, while the click counts: what is awaited below may take longer than that.
    void rig.open().catch(() => {});
    if (prompt.isLoading || voice.isLoading || ttsVoice?.isLoading) {
      say(stateLine, 'voice.loading');
      while (prompt.isLoading || voice.isLoading || ttsVoice?.isLoading) await new Promise((resolve) => setTimeout(resolve, 100));
      if (talk.isBusy) return;
    }
    if (source?.isFile && !source.feed()) {
      openSide('settings', true);
      toast('source.none');
      return;
    }
    await defaultsKnown;
    notices.replaceChildren();
    recorded = null;
    const instructions = before ? `${prompt.text}\n\n${t('call.carried')}\n${before.slice(-CARRY_LIMIT)}` : prompt.text;
    hasHinted = hasWarned = false;
    echo.reset();
    wave.clear();
    rig.setPlaybackDelay(settings.get('delay'));
    rig.setVolume(settings.get('volume'));
    void rig.setSpeaker(devices.chosen('speaker') ?? '');
    const microphone = { deviceId: devices.chosen('microphone'), isStudio: settings.get('studio') };
    const watched = (/** @type {import('../wire/connection.js').Connection | null} */ client) =>
      client?.addEventListener('wire', (event) => events.note(/** @type {CustomEvent} */ (event).detail));

    if (half) {
      const content = voice.data
        ? { system_content: [{ type: /** @type {const} */ ('text'), text: t('prompt.imitate') }, { type: /** @type {const} */ ('audio'), data: voice.data }, { type: /** @type {const} */ ('text'), text: instructions }] }
        : { system_prompt: instructions };
      const begun = half.start(
        {
          ...content,
          record: settings.get('recordServer'),
          config: {
            vad: { threshold: settings.get('threshold'), min_speech_duration_ms: settings.get('minSpeech'), min_silence_duration_ms: settings.get('minSilence'), speech_pad_ms: settings.get('pad') },
            generation: { max_new_tokens: settings.get('maxTokens'), length_penalty: settings.get('lengthPenalty'), temperature: settings.get('temperature') },
            tts: { enabled: settings.get('voiceOn') },
            session: { timeout_s: settings.get('timeout') },
          },
        },
        microphone,
      );
      watched(half.client);
      await begun;
    } else if (duplex) {
      const dialect = settings.get('dialect') === 'duplex' && kind !== 'realtime' ? 'duplex' : 'realtime';
      const mode = kind === 'omni' || (kind === 'realtime' && settings.get('mode') === 'video') ? 'video' : 'audio';
      const feed = source?.feed() ?? null;
      if (mode === 'video' && !feed && !(await stageVideo?.ready())) return;
      hasMonitor = feed !== null && !stageVideo && source?.sound !== 'mic';
      if (hasMonitor && source) {
        monitor.src = source.url;
        monitor.volume = source.monitor;
      }
      if (feed) stageVideo?.showFile(source?.url ?? '', source?.monitor ?? 0.3, source?.sound ?? 'file');
      const begun = duplex.start(
        dialect,
        mode,
        { instructions, voice: voice.data, ttsVoice: ttsVoice?.isSame ? null : (ttsVoice?.data ?? null), slices: stageVideo?.slices() ?? 1, config: { length_penalty: settings.get('lengthPenalty') }, record: settings.get('recordServer') },
        { ...microphone, ...(api ? { connection: { base: api } } : {}), sound: source?.sound ?? 'mic', feed, frame: mode === 'video' && stageVideo ? () => stageVideo.frame() : null, slices: mode === 'video' && stageVideo ? () => stageVideo.slices() : undefined },
      );
      watched(duplex.client);
      await begun;
    }
    void devices.refresh();
  }

  function hushNow() {
    if (duplex) duplex.interrupt();
    else void half?.skip((sessionId) => request('/api/half_duplex/stop', { method: 'POST', body: JSON.stringify({ session_id: sessionId, scope: 'turn' }) }));
  }

  async function onLive() {
    chimes.ready();
    if ('mediaSession' in navigator) {
      // Headset and lock screen: the microphone and the end of the call.
      navigator.mediaSession.metadata = new MediaMetadata({ title: t(`app.${app}`), artist: 'parley' });
      onSystemKey('togglemicrophone', () => talk.mute(!talk.state.isMuted));
      onSystemKey('hangup', () => talk.stop());
    }
    after.hidden = true;
    awake = (await navigator.wakeLock?.request('screen').catch(() => null)) ?? null;
    if (!settings.get('recordHere')) return;
    const { VideoRecorder, VoiceRecorder } = await import('../talk/recorder.js');
    recorder =
      hasVideo && stageVideo?.isOn()
        ? new VideoRecorder(rig, stageVideo.video, { megabits: Number(settings.get('recordMegabits')), subtitle: settings.get('recordSubtitles') ? () => caption.textContent ?? '' : null })
        : new VoiceRecorder(rig);
    await recorder.start();
  }

  /** @param {string} key @param {(() => void) | null} act */
  function onSystemKey(key, act) {
    try {
      navigator.mediaSession.setActionHandler(/** @type {MediaSessionAction} */ (key), act);
    } catch {
      // A browser that does not know this key.
    }
  }

  async function onOver() {
    if ('mediaSession' in navigator) for (const key of ['togglemicrophone', 'hangup']) onSystemKey(key, null);
    void awake?.release();
    awake = null;
    hasMonitor = false;
    monitor.pause();
    chimes.hush();
    stageVideo?.over();
    const { recordingId } = talk.state;
    if (recordingId) remember(recordingId, app);
    recorded = (await recorder?.stop()) ?? null;
    recorder = null;
    const blob = recorded;
    const lines = talk.captions.list.length > 0;
    after.replaceChildren(
      ...[
        blob ? h('button', { class: 'button slim', type: 'button', icon: 'download', words: 'after.recording', onclick: () => saveRecording(blob, `parley-${kind}`) }) : null,
        lines ? h('button', { class: 'button slim', type: 'button', icon: 'copy', words: 'after.copy', onclick: () => void copy(plainTranscript(talk.captions)) }) : null,
        recordingId ? h('a', { class: 'button slim', href: viewerUrl(recordingId), target: '_blank', rel: 'noopener', icon: 'play', words: 'after.look' }) : null,
        recordingId ? h('button', { class: 'button slim', type: 'button', icon: 'share', words: 'after.share', onclick: async () => (await import('../elements/share/share.js')).openShare({ recordingId, app, blob }) }) : null,
      ].filter((node) => node !== null),
    );
    after.hidden = after.children.length === 0;
  }

  // State → page

  /** @type {string} */
  let phaseBefore = 'idle';

  function draw() {
    const { state } = talk;
    const { phase, activity } = state;
    mainNode.dataset.phase = phase;
    mainNode.dataset.activity = activity;
    const isLive = phase === 'live';
    const isOn = isLive || phase === 'pausing' || phase === 'paused';

    const mood =
      phase === 'idle' || phase === 'ended' ? 'idle'
      : phase === 'paused' || phase === 'pausing' ? 'paused'
      : !isLive ? 'waiting'
      : state.isMuted && activity === 'listening' ? 'muted'
      : activity;
    orb.state = mood;
    if (!isLive) orb.level = 0;
    say(stateLine, state.retrying ? 'state.retrying' : isLive && state.isForcingListen ? 'state.forced' : isLive && mood === 'muted' ? 'state.muted' : isLive ? `state.${activity}` : phase === 'ended' ? 'state.ended' : phase === 'idle' && hasVideo ? 'state.idle_video' : `state.${phase}`);

    reicon(main, talk.isBusy ? (phase === 'queued' ? 'close' : 'end') : phase === 'ended' ? 'phone' : 'mic');
    say(mainText, phase === 'queued' ? 'call.cancel' : phase === 'idle' ? 'call.start' : phase === 'ended' ? 'call.again' : isOn ? 'call.stop' : phase === 'stopping' ? 'call.stopping' : 'call.preparing');
    main.classList.toggle('primary', !talk.isBusy);
    main.classList.toggle('live', isOn);
    main.disabled = phase === 'stopping';

    for (const button of [mute, hush, pause, force]) if (button) button.disabled = !isOn;
    mute.setAttribute('aria-pressed', String(state.isMuted));
    reicon(mute, state.isMuted ? 'mic-off' : 'mic');
    relabel(mute, state.isMuted ? 'call.unmute' : 'call.mute');
    force?.setAttribute('aria-pressed', String(state.isForcingListen));
    if (half) hush.disabled = !isLive || (activity !== 'thinking' && activity !== 'speaking');
    if (pause) {
      const isPaused = phase === 'paused' || phase === 'pausing';
      reicon(pause, isPaused ? 'play' : 'pause');
      relabel(pause, isPaused ? 'call.resume' : 'call.pause');
      pause.setAttribute('aria-pressed', String(isPaused));
      if (phase !== phaseBefore) recorder?.pause(isPaused);
    }
    queue.update(state.queue);
    recordChip.hidden = !(isOn && state.recordingId);
    for (const group of settingsPanel.querySelectorAll('p-prompt textarea, p-prompt button, p-voice select, p-voice button, p-source select')) /** @type {HTMLButtonElement} */ (group).disabled = talk.isBusy;

    drawNotices();
    if (phase !== phaseBefore) {
      const before = phaseBefore;
      document.dispatchEvent(new Event('placechange'));
      drawClock();
      phaseBefore = phase;
      if (phase === 'live' && before !== 'paused' && before !== 'pausing') void onLive();
      if (phase === 'ended') void onOver();
      if (phase === 'idle' && before === 'opening') stageVideo?.over();
      if (phase === 'live' || phase === 'ended') main.focus({ preventScroll: true });
    }
  }

  let shown = '';

  function drawNotices() {
    const { trouble, ending, isSuspended, hasLostMic, hasGivenBack, phase } = talk.state;
    const key = JSON.stringify([trouble, ending?.reason, ending?.code, isSuspended, hasLostMic, hasGivenBack, phase === 'ended']);
    if (key === shown) return;
    shown = key;
    const again = { words: 'call.again', act: () => void start(), isMain: true };
    /** @type {(Node | null)[]} */
    const list = [];
    if (trouble?.kind === 'media') list.push(mediaNotice(trouble, [{ words: 'action.try_again', act: () => void start(), isMain: true }, { words: 'notice.choose_device', act: () => openSide('settings', true) }, ...(trouble.device === 'microphone' ? [{ words: 'notice.write_instead', act: () => location.assign('/turnbased') }] : [])]));
    else if (trouble?.kind === 'network' && phase !== 'ended') list.push(notice('warn', 'network.slow', 'network.slow_fix', { values: { dropped: trouble.dropped }, onClose: () => talk.dismissTrouble() }));
    else if (trouble?.kind === 'server' && phase !== 'ended') list.push(notice('warn', 'trouble.server', undefined, { said: trouble.sentence, onClose: () => talk.dismissTrouble() }));
    if (ending && hasGivenBack) list.push(notice('warn', 'queue.gave_back', 'queue.gave_back_fix', { ways: [again] }));
    const said = ['timeout', 'context_full'].includes(ending?.reason ?? '') ? talk.captions.list.filter(({ who }) => who === 'assistant').map(({ text, heard }) => text.slice(0, heard).trim()).filter(Boolean).join('\n') : '';
    if (ending) list.push(endingNotice(ending, [...(said ? [{ words: 'call.carry', act: () => void start(said), isMain: true }] : []), ending.code === 'unauthorized' ? { words: 'key.enter', act: () => void askForKey(), isMain: true } : { ...again, isMain: !said }, ...(ending.reason === 'busy' ? [{ words: 'notice.write_instead', act: () => location.assign('/turnbased') }] : [])]));
    if (isSuspended) list.push(notice('warn', 'media.suspended', undefined, { ways: [{ words: 'media.continue', act: () => void talk.wake(), isMain: true }] }));
    if (hasLostMic) list.push(notice('warn', 'media.lost', 'media.lost_fix', { ways: [{ words: 'media.reconnect', act: () => void talk.useMicrophone({ deviceId: devices.chosen('microphone'), isStudio: settings.get('studio') }).catch(() => toast('media.missing_microphone')), isMain: true }, { words: 'notice.choose_device', act: () => openSide('settings', true) }] }));
    notices.replaceChildren(...list.filter((node) => node !== null));
  }

  function drawClock() {
    const { phase, liveSince } = talk.state;
    const left = duplex ? duplex.leftS() : (half?.idleLeftS() ?? null);
    const isNear = left !== null && left <= (isHalf ? HINT_AT_S : 60);
    timer.hidden = phase !== 'live' && phase !== 'paused' && phase !== 'pausing';
    timer.toggleAttribute('data-near', isNear);
    if (duplex && left !== null) say(time, 'call.left', { time: clock(left) });
    else if (isNear && left !== null) say(time, 'call.idle_left', { time: clock(left) });
    else time.textContent = clock((performance.now() - liveSince) / 1000);
    if (duplex && left !== null && left <= HINT_AT_S && !hasHinted) {
      hasHinted = true;
      toast('call.soon_over', { seconds: HINT_AT_S });
    }
    if (duplex && !timer.hidden) {
      const used = duplex.metrics.contextTokens / settings.get('contextLimit');
      rings.show({ time: duplex.leftPart(), memory: used });
      timer.toggleAttribute('data-full', used >= NEARLY_FULL);
      say(memory, 'call.memory', { percent: Math.round(used * 100) });
    }
    if (duplex && duplex.isLive) {
      signal.show(duplex.quality());
      drawMetrics(duplex);
      const used = duplex.metrics.contextTokens / settings.get('contextLimit');
      if (used >= NEARLY_FULL && !hasWarned) {
        hasWarned = true;
        toast('call.context_nearly', { percent: Math.round(used * 100) });
      }
      if (used >= 1) {
        toast('call.context_full');
        duplex.stop();
      }
    } else if (half) {
      const { firstSoundMs, turns, speechMs } = half.metrics;
      const position = half.position;
      metrics.show([
        { name: 'session', value: talk.state.sessionId.slice(0, 12) || null },
        { name: 'turns', value: turns },
        { name: 'first_sound', value: firstSoundMs, unit: 'ms', is: grade(firstSoundMs, 1200, 2500) },
        { name: 'speech', value: speechMs, unit: 'ms' },
        { name: 'ahead', value: position?.aheadMs ?? null, unit: 'ms' },
        { name: 'gaps', value: position?.gaps ?? 0, is: position?.gaps ? 'poor' : 'good' },
      ]);
    }
  }

  /** @param {DuplexTalk} call */
  function drawMetrics({ metrics: now, state }) {
    const used = now.contextTokens / settings.get('contextLimit');
    metrics.show([
      { name: 'session', value: state.sessionId.slice(0, 12) || null },
      { name: 'units', value: now.units },
      { name: 'turns', value: now.turns },
      { name: 'context', value: now.contextTokens, is: grade(used, 0.5, 0.8) },
      { name: 'vision', value: now.slices * 64, is: now.slices > 1 ? 'fair' : 'good' },
      { name: 'response', value: now.responseMs, unit: 'ms', is: grade(now.responseMs, 700, 1300) },
      { name: 'inference', value: now.costMs, unit: 'ms', is: grade(now.costMs, 200, 500) },
      { name: 'first_speech', value: now.firstSpeechMs, unit: 'ms', is: grade(now.firstSpeechMs, 1000, 2000) },
      { name: 'play_delay', value: now.playDelayMs, unit: 'ms' },
      { name: 'ahead', value: now.aheadMs, unit: 'ms', is: now.gaps ? 'poor' : now.aheadMs > 200 ? 'good' : now.aheadMs > 50 ? 'fair' : '' },
      { name: 'gaps', value: now.gaps, is: now.gaps ? 'poor' : 'good' },
      { name: 'shift', value: now.shiftMs, unit: 'ms', is: grade(now.shiftMs, 1, 200) },
      { name: 'drift', value: now.driftMs, unit: 'ms', is: grade(now.driftMs === null ? null : Math.abs(now.driftMs), 50, 200) },
      { name: 'dropped', value: now.dropped, is: now.dropped ? 'poor' : 'good' },
    ]);
  }

  talk.addEventListener('change', draw);
  talk.addEventListener('level', (event) => {
    const { mic, voice: said } = /** @type {CustomEvent} */ (event).detail;
    const { activity, isMuted } = talk.state;
    orb.level = activity === 'speaking' ? said * 3.5 : isMuted ? 0 : mic * 5;
    wave.note(isMuted ? 0 : mic, said);
    if (!duplex || !talk.isLive) return;
    if (said > 0 && echo.note(mic, said) && !localStorage.getItem('parley.headphones')) {
      localStorage.setItem('parley.headphones', 'told');
      toast('call.headphones');
    }
    barge = settings.get('barge') && said > 0 && !isMuted && mic > BARGE_LEVEL && mic > said * 0.5 ? barge + 1 : 0;
    rig.duck(barge > 1 && barge < BARGE_REPORTS);
    if (barge === BARGE_REPORTS) {
      rig.duck(false);
      duplex.interrupt();
    }
  });
  talk.captions.addEventListener('change', () => {
    const last = talk.captions.list.findLast(({ who }) => who === 'assistant');
    const [said, ahead] = /** @type {HTMLElement[]} */ ([...caption.children]);
    const text = last?.text ?? '';
    said.textContent = text.slice(0, last?.heard ?? 0);
    ahead.textContent = last?.isInterrupted ? '' : text.slice(last?.heard ?? 0);
    caption.scrollTop = caption.scrollHeight;
    if (last?.isComplete && last.text && last.id !== announced) {
      announced = last.id;
      spoken.textContent = last.text;
    }
    stageVideo?.caption(said.textContent ?? '', ahead.textContent ?? '');
  });
  settings.addEventListener('change', () => rig.setVolume(settings.get('volume')));
  prompt.addEventListener('voice', (event) => {
    const { sound, name } = /** @type {CustomEvent} */ (event).detail;
    if (!talk.isBusy) voice.offer(sound, name);
  });
  devices.addEventListener('device', (event) => {
    const { kind: device, id } = /** @type {CustomEvent} */ (event).detail;
    if (device === 'speaker') void rig.setSpeaker(id);
    if (device === 'microphone' && rig.stream) void talk.useMicrophone({ deviceId: id || undefined, isStudio: settings.get('studio') }).catch(() => toast('media.missing_microphone'));
    if (device === 'camera') void stageVideo?.reopen();
  });
  for (const sign of ['pointerdown', 'keydown']) document.addEventListener(sign, () => talk.noticed(), { capture: true });
  document.addEventListener('visibilitychange', async () => {
    if (!document.hidden) talk.noticed();
    if (document.hidden || !talk.isBusy) return;
    if (rig.context && rig.context.state !== 'running') await talk.wake().catch(() => {});
    if (talk.isLive && awake?.released) awake = (await navigator.wakeLock?.request('screen').catch(() => null)) ?? null;
  });
  // Some phones give the next page a black picture while this one still holds the camera.
  globalThis.addEventListener('pagehide', () => {
    talk.stop();
    stageVideo?.release();
    void rig.close();
  });

  const tapMute = once(() => talk.isBusy && talk.mute(!talk.state.isMuted), 200);
  document.addEventListener('keydown', (event) => {
    const at = /** @type {HTMLElement} */ (event.target);
    if (at.closest('input, textarea, select, dialog, [contenteditable]') || event.ctrlKey || event.metaKey || event.altKey) return;
    const isButton = at.closest('button, a, summary') !== null;
    if (event.key === ' ' && !isButton) {
      event.preventDefault();
      tapMute();
    } else if (event.key === 'm') tapMute();
    else if (event.key === 'f') stageVideo?.full();
    else if (event.key === 's' && stageVideo) settings.set('captions', !settings.get('captions'));
    else if (event.key === 'Escape' && side.dataset.open) openSide(null);
  });

  setInterval(drawClock, 500);
  draw();
  drawClock();
  void prompt.load();
  const barrier = barrierNotice();
  if (barrier) notices.replaceChildren(barrier);
  else if (duplex && !localStorage.getItem('parley.hint.headphones')) {
    notices.replaceChildren(notice('info', 'hint.headphones', undefined, { onClose: () => {
      localStorage.setItem('parley.hint.headphones', 'seen');
      notices.replaceChildren();
    } }));
  }
}
