/**
 * A server that went in the middle of a call, for a restart or because the line broke for good: the page looks
 * for it, says when it is there again, and calls by itself if that was asked for.
 */

import { request } from '../../wire/http.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

const LOOK_MS = 2000;
/** Whoever comes back later than that presses a button. */
const LOOKS = 150;

/** Endings after which the server may come back. @param {import('../../talk/state.js').Ending | null} ending */
export function isGone(ending) {
  if (!ending?.wasReady) return false;
  return ['server_shutdown', 'lost'].includes(ending.reason) || ending.code === 'service_unavailable';
}

export class Comeback {
  /** '': nothing is waited for; asked: the call shall begin by itself. @type {'' | 'waiting' | 'asked' | 'back'} */
  state = '';
}

/** @param {CallPage} page @param {() => void} changed */
export function watchReturn(page, changed) {
  const { calls, comeback } = page;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let looks = 0;
  const look = async () => {
    // A gateway without a worker is up, and cannot take a call yet.
    const isThere = await request('/status').then(
      (status) => (status?.total_workers ?? 0) > (status?.loading_workers ?? 0),
      () => false,
    );
    if (!comeback.state || comeback.state === 'back') return;
    if (isThere && comeback.state === 'asked') page.start(calls.current?.captions.said(calls.current.order?.said));
    else if (isThere) comeback.state = 'back';
    else if (++looks < LOOKS) timer = setTimeout(look, LOOK_MS);
    changed();
  };
  calls.addEventListener('change', () => {
    const { phase, ending } = calls.state;
    if (phase === 'ended' && isGone(ending) && !comeback.state) {
      comeback.state = 'waiting';
      looks = 0;
      // A server that is going answers for a moment longer.
      timer = setTimeout(look, LOOK_MS);
      changed();
    }
    if (phase === 'ended') return;
    clearTimeout(timer);
    comeback.state = '';
  });
}
