/**
 * Root path of this page's server. A proxy may serve it below a path, such as `/voice/` of its host: `/status` in this
 * code is `/voice/status` there. The root is derived from the address of the scripts, so it needs no setting.
 */

const found = /^(\w+:\/\/[^/]+)(.*?)\/static\//.exec(import.meta.url);

/** '' or a path without a slash at its end. It is also '' if the scripts come from another server. */
export const ROOT = found && found[1] === globalThis.location?.origin ? found[2] : '';

/** Returns the path that the browser must request. @param {string} path starting with a slash */
export function at(path) {
  return ROOT === '' || path === ROOT || path.startsWith(`${ROOT}/`) ? path : ROOT + path;
}

/** Returns the path of this page as its server knows it. */
export function here() {
  const { pathname } = globalThis.location;
  return pathname.startsWith(`${ROOT}/`) ? pathname.slice(ROOT.length) : pathname;
}
