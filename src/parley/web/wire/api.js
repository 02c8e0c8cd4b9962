/**
 * Choice of another server for the calls of a page: `?api=host:port` in its address.
 *
 * A link must not send a user's voice to an arbitrary server, so only this host (at any port), this machine and the
 * hosts that the operator has allowed (`gateway.api_hosts`) are accepted.
 */

const THIS_MACHINE = ['localhost', '127.0.0.1', '[::1]'];

/**
 * @param {string} address of the page
 * @param {string[]} allowed hosts, with port or for any port
 * @returns {{base: string | null, refused: string | null}} both null: none was requested
 */
export function chosenApi(address, allowed = []) {
  const page = new URL(address);
  const asked = page.searchParams.get('api');
  if (!asked) return { base: null, refused: null };
  /** @type {URL} */
  let url;
  try {
    url = new URL(/^\w+:\/\//.test(asked) ? asked : `${page.protocol}//${asked}`);
  } catch {
    return { base: null, refused: asked };
  }
  url.protocol = url.protocol.replace(/^ws/, 'http');
  const isKnown =
    url.hostname === page.hostname ||
    THIS_MACHINE.includes(url.hostname) ||
    allowed.includes(url.host) ||
    allowed.includes(url.hostname);
  // A secure page must not fall back to an unencrypted connection.
  const isWeaker = page.protocol === 'https:' && url.protocol === 'http:' && !THIS_MACHINE.includes(url.hostname);
  const isHttp = url.protocol === 'http:' || url.protocol === 'https:';
  return isKnown && isHttp && !isWeaker && !url.username
    ? { base: url.origin, refused: null }
    : { base: null, refused: asked };
}
