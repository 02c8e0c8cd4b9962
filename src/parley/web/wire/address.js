/** Addresses of a server's sockets, and ids of conversations. */

import { at } from './root.js';

/**
 * Returns the address of a socket on this page's host or on another server. `extensions` requests what the published
 * protocol does not define: recordings, tickets and our own error codes.
 * @param {string} path
 * @param {string} [base] like `https://server:8006` or `server:8006`, or with a path if a proxy serves it below one; the page's own
 *   host by default
 * @param {string} [token] an API key or a session token; browsers cannot send it in a header
 */
export function socketUrl(path, base, token) {
  const url = base
    ? new URL((base.includes('://') ? '' : 'https://') + base.replace(/[?#].*$/, '').replace(/\/*$/, '') + path)
    : new URL(at(path), globalThis.location?.href);
  url.protocol = url.protocol.replace(/^http/, 'ws');
  if (token) url.searchParams.set('token', token);
  url.searchParams.set('extensions', 'true');
  return url.href;
}

/**
 * Returns the address at which a client whose socket is lost ends its session.
 * @param {string} address of the socket @param {string} sessionId
 */
export function goodbyeUrl(address, sessionId) {
  const url = new URL(address);
  const token = url.searchParams.get('token');
  url.protocol = url.protocol.replace(/^ws/, 'http');
  url.pathname = `${url.pathname.replace(/\/(ws|v1)\/.*/, '')}/api/sessions/${encodeURIComponent(sessionId)}/end`;
  url.search = token ? `?${new URLSearchParams({ token })}` : '';
  return url.href;
}

/**
 * Generates an id for a conversation. It cannot be guessed, because it gives access to the recording.
 * @param {string} prefix
 */
export function makeSessionId(prefix) {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return prefix + Array.from(random, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * Returns what to check if the server does not answer; '' in its own pages, which show their own text.
 * @param {string} address
 */
export function unreachable(address) {
  const { origin, pathname, protocol, host } = new URL(address);
  const server = origin.replace(/^ws/, 'http');
  if (globalThis.location?.origin === server) return '';
  let hint = 'Is the server running, and is the port right? ';
  if (globalThis.document) {
    // Browsers hide from pages why a socket was refused.
    hint = `Open ${server} here. If that works, start it with PARLEY_SECURITY__ALLOWED_ORIGINS=${location.origin}.`;
  } else if (protocol === 'wss:')
    hint += 'If the server made its own certificate, start Node with NODE_EXTRA_CA_CERTS=certs/cert.pem.';
  else hint += `If the server speaks HTTPS, its address is https://${host}.`;
  return `No connection to ${origin}${pathname}. ${hint}`;
}
