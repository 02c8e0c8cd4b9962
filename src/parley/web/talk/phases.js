/**
 * States of a call and the transitions between them. They are in one table, so that an invalid transition is an error
 * in a test and not a wrong page.
 *
 *   idle → starting → connecting ⇄ queued → live ⇄ pausing, paused → ending → ended
 *                                             live → reconnecting → live
 *
 * `starting` is entered by the click itself, before anything is awaited. Every state can change to `ended`.
 */

/** @typedef {'idle' | 'starting' | 'connecting' | 'queued' | 'live' | 'pausing' | 'paused' | 'reconnecting' | 'ending' | 'ended'} CallPhase */

/** @type {Record<CallPhase, CallPhase[]>} */
const NEXT = {
  idle: ['starting'],
  starting: ['connecting', 'ended'],
  connecting: ['queued', 'live', 'ending', 'ended'],
  queued: ['connecting', 'reconnecting', 'live', 'ending', 'ended'],
  live: ['pausing', 'paused', 'reconnecting', 'ending', 'ended'],
  pausing: ['paused', 'live', 'reconnecting', 'ending', 'ended'],
  paused: ['live', 'reconnecting', 'ending', 'ended'],
  reconnecting: ['queued', 'live', 'ending', 'ended'],
  ending: ['ended'],
  ended: [],
};

/** @param {CallPhase} from @param {CallPhase} to */
export function mayFollow(from, to) {
  return from === to || NEXT[from].includes(to);
}

/** True if a call in this state uses the microphone or a slot on the server. @param {CallPhase} phase */
export const isBusyIn = (phase) => phase !== 'idle' && phase !== 'ended';

/** True if both sides can hear each other, or the call is paused. @param {CallPhase} phase */
export const isOnIn = (phase) => phase === 'live' || phase === 'pausing' || phase === 'paused';
