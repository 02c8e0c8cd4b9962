/**
 * Who decides what speaking over the assistant means. policy: the server, which distinguishes an interruption from
 * "mhm", coughs and its own echo; stop: the server, which takes any speech for one; duck: the model, and the server only
 * says when the voice is to be lowered; wait: it is ignored.
 * @typedef {'policy' | 'stop' | 'duck' | 'wait'} Interrupting
 */

/**
 * What the server is asked to do; undefined: nothing.
 * @param {Interrupting} how
 * @returns {import('../wire/protocol.js').duplex.InterruptionOptions | undefined}
 */
export function interruptionOf(how) {
  if (how === 'wait') return undefined;
  return how === 'stop' ? { mode: 'stop', backchannel: 'heed' } : { mode: how === 'duck' ? 'duck' : 'stop' };
}
