/**
 * Where the server of this page begins. A proxy may serve it below a path, as `/voice/` of its host:
 * what is written here as `/status` is `/voice/status` there. Found out from where the scripts came from, so
 * nothing has to be set.
 */

const found = /^(\w+:\/\/[^/]+)(.*?)\/static\//.exec(import.meta.url);

/** '' or a path without a slash at its end. Scripts of another server say nothing about this one. */
export const ROOT = found && found[1] === globalThis.location?.origin ? found[2] : '';

/** An address of ours as the browser has to ask for it. @param {string} path beginning with a slash */
export function at(path) {
  return ROOT === '' || path === ROOT || path.startsWith(`${ROOT}/`) ? path : ROOT + path;
}

/** The path of this page as its server knows it. */
export function here() {
  const { pathname } = globalThis.location;
  return pathname.startsWith(`${ROOT}/`) ? pathname.slice(ROOT.length) : pathname;
}
