/** Where sockets of a server are, and how a conversation is named. */

import { at } from './root.js';

/**
 * The address of a socket on this page's host, or on another server. `extensions` asks for what the published protocol
 * does not name: recordings, tickets, error codes of our own.
 * @param {string} path
 * @param {string} [base] like `https://server:8006`, or with a path where a proxy offers the server; the page's own host
 *   by default
 * @param {string} [token] a key, or a session token; browsers cannot send it in a header
 */
export function socketUrl(path, base, token) {
  const url = base
    ? new URL(base.replace(/[?#].*$/, '').replace(/\/*$/, '') + path)
    : new URL(at(path), globalThis.location?.href);
  url.protocol = url.protocol.replace(/^http/, 'ws');
  if (token) url.searchParams.set('token', token);
  url.searchParams.set('extensions', 'true');
  return url.href;
}

/**
 * Where a server takes the goodbye of a client whose socket is gone.
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

/** An id for a conversation: unguessable, because its recording can be asked for by it. @param {string} prefix */
export function makeSessionId(prefix) {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return prefix + Array.from(random, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * What to check if the server does not answer. Pages have words of their own for it.
 * @param {string} address
 */
export function unreachable(address) {
  if ('document' in globalThis) return '';
  const { origin, protocol, host } = new URL(address);
  const hint =
    protocol === 'wss:'
      ? 'If the server made its own certificate, start Node with NODE_EXTRA_CA_CERTS=certs/cert.pem.'
      : `If the server speaks HTTPS, its address is https://${host}.`;
  return `No connection to ${origin}. Is the server running, and is the port right? ${hint}`;
}
