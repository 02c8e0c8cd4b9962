/** Obstacles to a call from another site's page: a short text for visitors and a hint for the page's owner. */

import { mediaBarrier } from '../../audio/devices.js';

const WAIT_MS = 10_000;
const BUSY = ['too_many_sessions', 'rate_limited', 'quota_exceeded', 'queue_full'];

export class Obstacle extends Error {
  /** @param {string} word key of `WORDS` @param {string} [hint] what the owner has to configure; empty if nothing */
  constructor(word, hint = '') {
    super(hint || word);
    this.word = word;
    this.hint = hint;
  }
}

/** @throws {Obstacle} if browsers do not allow the microphone on this page */
export function checkPage() {
  const barrier = mediaBarrier();
  if (barrier === 'insecure') {
    throw new Obstacle(
      barrier,
      `Browsers allow the microphone on HTTPS pages only. Serve ${location.host} over HTTPS.`,
    );
  }
  if (barrier) throw new Obstacle(barrier);
}

/**
 * Checks the server with HTTP requests: for a browser, a refused WebSocket looks the same as a server that is down.
 * @param {string} base @throws {Obstacle} if the server is down or does not accept this page
 */
export async function checkServer(base) {
  const signal = AbortSignal.timeout(WAIT_MS);
  const isOpen = await fetch(`${base}/static/parley-call.js`, { method: 'HEAD', signal }).then(
    ({ ok }) => ok,
    () => false,
  );
  if (isOpen) return;
  const isUp = await fetch(`${base}/health`, { mode: 'no-cors', signal }).then(
    () => true,
    () => false,
  );
  if (isUp) {
    const hint = `${base} does not accept pages of ${location.origin}. On that server, set `;
    throw new Obstacle('unavailable', `${hint}PARLEY_SECURITY__ALLOWED_ORIGINS=${location.origin}.`);
  }
  const hint = `${base} does not answer. Is it running, and is its certificate valid? If this page has a content `;
  throw new Obstacle('unreachable', `${hint}security policy, does it contain connect-src for it?`);
}

/**
 * Fetches a token from the page's own server, valid for a few minutes.
 * @param {string | null} address null if the server needs no token
 * @throws {Obstacle} if there is none
 */
export async function fetchToken(address) {
  if (!address) return '';
  const failed = (/** @type {string} */ how) =>
    new Obstacle('unavailable', `POST ${address} (token-url) ${how}; expected {"token": "…"}.`);
  const answer = await fetch(address, { method: 'POST', signal: AbortSignal.timeout(WAIT_MS) }).catch((error) => {
    throw failed(`did not answer (${error.message})`);
  });
  if (!answer.ok) throw failed(`answered ${answer.status}. See your own server's log: its key may be wrong or expired`);
  const { token } = (await answer.json().catch(() => null)) ?? {};
  if (typeof token !== 'string' || !token) throw failed('answered without a token');
  return token;
}

/**
 * Returns why a call ended or could not start; null if the user ended it.
 * @param {import('../../talk/state.js').CallState} state @param {string | null} tokenUrl
 * @returns {Obstacle | null}
 */
export function obstacleOf({ trouble, ending }, tokenUrl) {
  if (trouble?.kind === 'media') return mediaObstacle(trouble.trouble);
  if (trouble?.kind === 'page') return new Obstacle('failed');
  const { reason = 'stopped', code = '', sentence = '', wasReady = false } = ending ?? {};
  if (['stopped', 'cancelled', 'not_started'].includes(reason)) return null;
  if (code === 'unauthorized') {
    const hint = tokenUrl
      ? `The server did not accept the token of ${tokenUrl}. It may have expired, or come from another server.`
      : 'The server needs a key. Set token-url to an address of your own server that answers POST with {"token": "…"}.';
    return new Obstacle('unavailable', `${hint} (${sentence})`);
  }
  if (reason === 'busy' || BUSY.includes(code)) return new Obstacle('busy', sentence);
  if (reason === 'refused' || reason === 'bad') return new Obstacle('unavailable', `${sentence} (${code})`);
  if (reason === 'timeout') return new Obstacle('timeout');
  if (reason === 'server_shutdown' || !wasReady) return new Obstacle('unreachable', sentence);
  return new Obstacle(reason === 'lost' ? 'lost' : 'failed', sentence);
}

/** @param {import('../../audio/devices.js').MediaTrouble} trouble */
function mediaObstacle(trouble) {
  // Only Chromium reports if the page may ask for permission.
  const isShut = /** @type {any} */ (document).featurePolicy?.allowsFeature('microphone') === false;
  const hint = isShut
    ? 'This page may not use the microphone: see its Permissions-Policy, or set allow="microphone" on its iframe.'
    : '';
  return new Obstacle(trouble === 'failed' ? 'no_microphone' : trouble, hint);
}
