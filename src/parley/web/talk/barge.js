/**
 * Who decides what happens when the user speaks over the assistant. policy: the server, which distinguishes an
 * interruption from "mhm", coughs and its own echo; stop: the server, which treats any speech as an interruption; duck:
 * the model, and the server only reports when to lower the voice; wait: speech is ignored.
 * @typedef {'policy' | 'stop' | 'duck' | 'wait'} Interrupting
 */

/**
 * Returns the options to request from the server; undefined for none.
 * @param {Interrupting} how
 * @returns {import('../wire/protocol.js').duplex.InterruptionOptions | undefined}
 */
export function interruptionOf(how) {
  if (how === 'wait') return undefined;
  return how === 'stop' ? { mode: 'stop', backchannel: 'heed' } : { mode: how === 'duck' ? 'duck' : 'stop' };
}
