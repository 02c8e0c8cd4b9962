/**
 * The address of a socket on this page's host, or on another server. `extensions` asks for what the published protocol
 * does not name: recordings, tickets, error codes of our own.
 * @param {string} path
 * @param {string} [base] like `https://server:8006`, or with a path where a proxy offers the server; the page's own host
 *   by default
 * @param {string} [token] a key, or a session token; browsers cannot send it in a header
 */
export function socketUrl(path: string, base?: string, token?: string): string;
/**
 * Where a server takes the goodbye of a client whose socket is gone.
 * @param {string} address of the socket @param {string} sessionId
 */
export function goodbyeUrl(address: string, sessionId: string): string;
/** An id for a conversation: unguessable, because its recording can be asked for by it. @param {string} prefix */
export function makeSessionId(prefix: string): string;
/**
 * What to check if the server does not answer. Pages have words of their own for it.
 * @param {string} address
 */
export function unreachable(address: string): string;
