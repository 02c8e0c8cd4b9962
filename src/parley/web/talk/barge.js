/**
 * The user speaks while the assistant does: lower its voice immediately; the server, which hears more than
 * a level, decides what it means. The page can also silence the voice.
 *
 * Pure: levels in, about 20 a second, and what to do out. Loudspeakers in a room look like a person who
 * speaks whenever the assistant does; `EchoWatch` detects that, and then nothing is lowered any more.
 */

/** A voice this much above the room's own level is speech. */
const LEVEL = 0.05;
/** Reports in a row until the voice is lowered, and until it is silenced. */
const DUCK_AFTER = 2;
const STOP_AFTER = 5;
/** Reports of quiet until it is as loud as before. */
const BACK_AFTER = 8;

/**
 * Who decides what speaking over the assistant means. policy: the server, which distinguishes an interruption from
 * "mhm", coughs and its own echo, after about a second; stop: the page, immediately; duck: the model.
 * @typedef {'policy' | 'stop' | 'duck'} Interrupting
 */

/**
 * What the server is asked to do meanwhile; undefined: nothing.
 * @param {Interrupting | 'wait'} how wait: speech over the assistant is ignored
 * @returns {import('../wire/protocol.js').duplex.InterruptionOptions | undefined}
 */
export function interruptionOf(how) {
  if (how === 'policy') return { mode: 'stop' };
  return how === 'stop' ? { mode: 'stop', backchannel: 'heed' } : undefined;
}

export class Barge {
  #loud = 0;
  #quiet = 0;
  isDucked = false;

  /**
   * @param {number} mic level, 0 to 1
   * @param {number} voice level of the assistant; 0 while it is silent
   * @returns {'duck' | 'back' | 'stop' | null} stop: certainly an interruption
   */
  note(mic, voice) {
    const isLoud = voice > 0 && mic > LEVEL && mic > voice * 0.5;
    this.#loud = isLoud ? this.#loud + 1 : 0;
    this.#quiet = isLoud ? 0 : this.#quiet + 1;
    if (this.#loud === STOP_AFTER) return 'stop';
    if (this.#loud === DUCK_AFTER && !this.isDucked) {
      this.isDucked = true;
      return 'duck';
    }
    if (this.isDucked && (this.#quiet >= BACK_AFTER || voice === 0)) {
      this.isDucked = false;
      return 'back';
    }
    return null;
  }
}
