/**
 * Which of the assistant's words have been heard.
 *
 * Text runs ahead of its sound. A caption follows the loudspeaker: each piece of text is laid over the
 * sound that came with it (text without sound waits for the next sound), and `hear` says how far the
 * voice has come. What an interruption cut off stays known as not heard.
 */

/**
 * @typedef {object} Caption
 * @property {number} id
 * @property {'you' | 'assistant' | 'note'} who
 * @property {string} text
 * @property {number} heard characters that have been said aloud
 * @property {boolean} isComplete nothing is added any more
 * @property {boolean} isInterrupted
 * @property {string} [key] a note's word in the dictionary
 * @property {Record<string, unknown>} [values] what the note's word needs
 * @property {number} at Date.now()
 */

/** The end of the word in which `at` lies: half a word is hard to read. @param {string} text @param {number} at */
function wordEnd(text, at) {
  let end = Math.min(text.length, Math.round(at));
  while (end > 0 && end < text.length && /[\p{Script=Latin}\p{N}'’-]/u.test(text[end]) && /[\p{Script=Latin}\p{N}'’-]/u.test(text[end - 1])) end++;
  return end;
}

export class CaptionTrack {
  text = '';
  /** Samples of sound so far. */
  samples = 0;
  isComplete = false;
  /** @type {{fromText: number, toText: number, fromSample: number, toSample: number}[]} */
  #pieces = [];
  #covered = 0;

  /** @param {string} text @param {number} samples */
  add(text, samples) {
    this.text += text;
    if (samples === 0) return;
    this.#pieces.push({ fromText: this.#covered, toText: this.text.length, fromSample: this.samples, toSample: this.samples + samples });
    this.#covered = this.text.length;
    this.samples += samples;
  }

  complete() {
    this.isComplete = true;
  }

  /**
   * @param {number} samples heard of this turn
   * @returns {number} characters
   */
  hear(samples) {
    if (this.samples === 0) return this.isComplete ? this.text.length : 0;
    if (this.isComplete && samples >= this.samples) return this.text.length;
    let heard = 0;
    for (const { fromText, toText, fromSample, toSample } of this.#pieces) {
      if (samples >= toSample) {
        heard = toText;
      } else {
        if (samples > fromSample) heard = fromText + ((samples - fromSample) / (toSample - fromSample)) * (toText - fromText);
        break;
      }
    }
    return wordEnd(this.text, heard);
  }
}

/** All captions of a conversation, newest last; bounded, since a call may be long. */
export class Captions extends EventTarget {
  /** @type {Caption[]} */
  list = [];
  #nextId = 0;
  /** @type {Map<number, {track: CaptionTrack, caption: Caption}>} */
  #turns = new Map();

  #changed() {
    this.dispatchEvent(new Event('change'));
  }

  /** @param {Partial<Caption> & {who: Caption['who']}} caption @returns {Caption} */
  #append(caption) {
    const whole = { text: '', heard: 0, isComplete: true, isInterrupted: false, at: Date.now(), ...caption, id: this.#nextId++ };
    this.list.push(whole);
    if (this.list.length > 400) this.list.shift();
    return whole;
  }

  /** A line between the speakers. @param {string} key @param {Record<string, unknown>} [values] */
  note(key, values = {}) {
    this.#append({ who: 'note', key, values });
    this.#changed();
  }

  /** What the person did; the server does not write down what they say. @param {string} key @param {Record<string, unknown>} [values] */
  you(key, values = {}) {
    this.#append({ who: 'you', key, values });
    this.#changed();
  }

  /** What the person wrote. @param {string} text */
  wrote(text) {
    this.#append({ who: 'you', text, heard: text.length });
    this.#changed();
  }

  /** @param {number} turn @param {string} text @param {number} samples */
  add(turn, text, samples) {
    let entry = this.#turns.get(turn);
    if (!entry) {
      entry = { track: new CaptionTrack(), caption: this.#append({ who: 'assistant', isComplete: false }) };
      this.#turns.set(turn, entry);
      if (this.#turns.size > 20) this.#turns.delete(this.#turns.keys().next().value ?? -1);
    }
    entry.track.add(text, samples);
    entry.caption.text = entry.track.text;
    this.#changed();
  }

  /** @param {number} turn */
  complete(turn) {
    const entry = this.#turns.get(turn);
    if (!entry || entry.caption.isComplete) return;
    entry.track.complete();
    entry.caption.isComplete = true;
    entry.caption.heard = Math.max(entry.caption.heard, entry.track.hear(0));
    this.#changed();
  }

  /** @param {number} turn @param {number} samples that have left the loudspeaker */
  hear(turn, samples) {
    const entry = this.#turns.get(turn);
    if (!entry || entry.caption.isInterrupted) return;
    const heard = entry.track.hear(samples);
    if (heard <= entry.caption.heard) return;
    entry.caption.heard = heard;
    this.#changed();
  }

  /** Everything of this turn has been heard. @param {number} turn */
  drained(turn) {
    const entry = this.#turns.get(turn);
    if (!entry || entry.caption.isInterrupted) return;
    entry.caption.heard = entry.caption.text.length;
    this.#changed();
  }

  /** The rest of this turn will not be heard. @param {number} turn */
  interrupt(turn) {
    const entry = this.#turns.get(turn);
    if (!entry || entry.caption.heard >= entry.caption.text.length) return;
    entry.caption.isInterrupted = true;
    entry.caption.isComplete = true;
    this.#changed();
  }

  clear() {
    this.list = [];
    this.#turns.clear();
    this.#changed();
  }
}
