/**
 * The parts of a call page, in two steps: parts that are visible immediately, and parts that are needed when the user
 * opens the settings, writes, or starts a call. The second step is loaded after the first is shown.
 */

import { Chimes } from '../../audio/chime.js';
import { theRig } from '../../audio/rig.js';
import { element, h } from '../../elements/dom.js';
import { AnswerTime } from '../../talk/answer-time.js';
import { Calls } from '../../talk/calls.js';
import { t } from '../../words/words.js';
import { Comeback } from './comeback.js';
import { APP, callSettings } from './settings.js';
import '../../elements/metrics/metrics.js';
import '../../elements/orb/orb.js';
import '../../elements/queue/queue.js';
import '../../elements/transcript/transcript.js';
import '../../elements/wave/wave.js';

/** @typedef {import('./settings.js').Kind} Kind */
/** @typedef {import('../../talk/duplex.js').DuplexCall} DuplexCall */
/** @typedef {import('../../talk/half-duplex.js').HalfDuplexCall} HalfDuplexCall */
/** @typedef {ReturnType<typeof makeParts>} Parts */
/** @typedef {ReturnType<typeof import('./later.js').makeLater>} Later */
/**
 * The objects that the modules of a call page use. Those of `Later` exist only after `whenLoaded`.
 * @typedef {Parts & Later & {
 *   stageVideo: ReturnType<typeof import('../stage-video.js').mountStageVideo> | null,
 *   stage: {node: HTMLElement},
 *   openSide: (name: string | null, isTab?: boolean) => void,
 *   start: (said?: string) => void,
 *   drawNotices: () => void,
 *   whenLoaded: () => Promise<typeof import('./later.js')>,
 * }} CallPage
 */

/**
 * Parts that only one kind of call has, passed by its page.
 * @typedef {object} KindOfCall
 * @property {new (rig: any) => DuplexCall | HalfDuplexCall} CallOfKind
 * @property {typeof import('../stage-video.js').mountStageVideo} [mountStageVideo] if there is a picture
 */

/** @param {Kind} kind @param {KindOfCall} own */
export function makeParts(kind, { CallOfKind }) {
  // The title of the tab or window; the start page has a different one.
  if (document.title !== 'parley') document.title = `${t(`app.${APP[kind]}`)} · parley`;
  const isHalf = kind === 'half_duplex';
  const rig = theRig();
  /** @type {Calls<any>} */
  const calls = new Calls(() => {
    const call = new CallOfKind(rig);
    call.isAway = () => document.hidden;
    return call;
  });
  const parts = {
    kind,
    isHalf,
    hasVideo: kind === 'omni' || kind === 'realtime',
    app: APP[kind],
    rig,
    calls,
    settings: callSettings(kind),
    chimes: new Chimes(() => rig.context),
    notices: h('div', { class: 'notices' }),
    /** Meter of the response time in this call. */
    answerTime: new AnswerTime(),
    /** State of the recovery from a server that was lost during a call. */
    comeback: new Comeback(),
    orb: /** @type {import('../../elements/orb/orb.js').Orb} */ (element('p-orb')),
    wave: /** @type {import('../../elements/wave/wave.js').Wave} */ (element('p-wave')),
    queue: /** @type {import('../../elements/queue/queue.js').Queue} */ (element('p-queue')),
    transcript: /** @type {import('../../elements/transcript/transcript.js').Transcript} */ (element('p-transcript')),
    metrics: /** @type {import('../../elements/metrics/metrics.js').Metrics} */ (element('p-metrics')),
    signal: /** @type {import('../../elements/metrics/metrics.js').Signal} */ (element('p-signal')),
    /** Returns the current call or the last one, if it is a full-duplex call. @returns {DuplexCall | null} */
    get duplex() {
      return isHalf ? null : /** @type {DuplexCall | null} */ (calls.current);
    },
    /** @returns {HalfDuplexCall | null} */
    get half() {
      return isHalf ? /** @type {HalfDuplexCall | null} */ (calls.current) : null;
    },
  };
  parts.queue.chimes = parts.chimes;
  return parts;
}
