/**
 * Recovery from a server that was lost during a call, because of a restart or a broken connection: the page polls it,
 * shows when it is back, and starts the call again if the user has chosen so.
 */

import { request } from '../../wire/http.js';

/** @typedef {import('./parts.js').CallPage} CallPage */

const LOOK_MS = 2000;
/** Maximum number of polls; after that the user has to press a button. */
const LOOKS = 150;

/**
 * True for endings after which the server may come back.
 * @param {import('../../talk/state.js').Ending | null} ending
 */
export function isGone(ending) {
  if (!ending?.wasReady) return false;
  return ['server_shutdown', 'lost'].includes(ending.reason) || ending.code === 'service_unavailable';
}

export class Comeback {
  /** '': not waiting; asked: the call starts automatically. @type {'' | 'waiting' | 'asked' | 'back'} */
  state = '';
}

/** @param {CallPage} page @param {() => void} changed */
export function watchReturn(page, changed) {
  const { calls, comeback } = page;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let looks = 0;
  const look = async () => {
    // A gateway without a ready worker is up but cannot accept a call yet.
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
      // A server that is shutting down still answers for a moment.
      timer = setTimeout(look, LOOK_MS);
      changed();
    }
    if (phase === 'ended') return;
    clearTimeout(timer);
    comeback.state = '';
  });
}
