/**
 * Captions of both sides of a call, and how much of the assistant's has been heard.
 *
 * Text arrives before its audio is heard. A caption follows the loudspeaker: each piece of text is mapped to the audio
 * that arrived with it (text without audio waits for the next audio, and audio without text continues the last one), and
 * `hear` computes how much of the text has been heard. Text that an interruption cut off is marked as not heard.
 */

/**
 * @typedef {object} Caption
 * @property {number} id
 * @property {'you' | 'assistant' | 'note'} who
 * @property {string} text
 * @property {number} heard number of characters that have been heard
 * @property {boolean} isComplete true if no more text will be added
 * @property {boolean} isInterrupted
 * @property {string} [key] key of a note in the dictionary
 * @property {Record<string, unknown>} [values] values for the note's placeholders
 * @property {number} at Date.now()
 * @property {number} fromS seconds of the call at which it was first heard
 * @property {number} untilS seconds of the call at which the last of it was heard
 * @property {string} [image] a picture that was sent with it, as a URL
 */

/** Maximum length, in characters, of what was said that is passed to a call that continues another. */
const CARRY_LIMIT = 4000;

/** Maximum length of a title; longer ones are truncated. */
const TITLE_SIGNS = 60;

/**
 * Returns the title of a conversation, for lists and its own page: the first text of the user or, if there is none, of
 * the assistant.
 * @param {{who: string, text: string}[]} said
 */
export function titleOf(said) {
  const words = said.filter(({ who, text }) => who !== 'note' && text);
  const text = (words.find(({ who }) => who === 'you') ?? words[0])?.text.trim() ?? '';
  return text.length > TITLE_SIGNS ? `${text.slice(0, TITLE_SIGNS - 2).trimEnd()}…` : text;
}

/** Characters that change the text direction: text of a call must not reorder the page. */
const DIRECTIONS = /[\u202a-\u202e\u2066-\u2069]/g;

/** @param {string} text */
export const withoutDirections = (text) => text.replace(DIRECTIONS, '');

/** Returns a transcript without the quotation marks that some recognisers put around it. @param {string} text */
export const asSaid = (text) => withoutDirections(text.trim().replace(/^["“](.*)["”]$/s, '$1'));

/**
 * Returns the end of the word that contains `at`: half a word is hard to read.
 * @param {string} text
 * @param {number} at
 */
function wordEnd(text, at) {
  let end = Math.min(text.length, Math.round(at));
  while (
    end > 0 &&
    end < text.length &&
    /[\p{Script=Latin}\p{N}'’-]/u.test(text[end]) &&
    /[\p{Script=Latin}\p{N}'’-]/u.test(text[end - 1])
  )
    end++;
  return end;
}

export class CaptionTrack {
  text = '';
  /** Number of samples of audio so far. */
  samples = 0;
  isComplete = false;
  /** @type {{fromText: number, toText: number, fromSample: number, toSample: number}[]} */
  #pieces = [];
  #covered = 0;

  /** @param {string} text @param {number} samples */
  add(text, samples) {
    this.text += text;
    if (samples === 0) return;
    const from = this.samples;
    this.samples += samples;
    const last = this.#pieces.at(-1);
    // Long audio is sent in pieces, the text with the first one.
    if (last && this.#covered === this.text.length) last.toSample = this.samples;
    else
      this.#pieces.push({
        fromText: this.#covered,
        toText: this.text.length,
        fromSample: from,
        toSample: this.samples,
      });
    this.#covered = this.text.length;
  }

  complete() {
    this.isComplete = true;
  }

  /**
   * @param {number} samples number of samples of this turn that have been heard
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
        if (samples > fromSample)
          heard = fromText + ((samples - fromSample) / (toSample - fromSample)) * (toText - fromText);
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
  /** Captions of the user's utterances that are not final, by id. @type {Map<string, Caption>} */
  #yours = new Map();
  #now = () => 0;
  #since = 0;

  /** Sets the time from which `fromS` and `untilS` are counted. @param {number} since @param {() => number} now ms */
  begin(since, now) {
    this.#since = since;
    this.#now = now;
  }

  #atS() {
    return Math.max(0, (this.#now() - this.#since) / 1000);
  }

  #changed() {
    this.dispatchEvent(new Event('change'));
  }

  /** @param {Partial<Caption> & {who: Caption['who']}} caption @returns {Caption} */
  #append(caption) {
    const atS = this.#atS();
    const whole = {
      text: '',
      heard: 0,
      isComplete: true,
      isInterrupted: false,
      at: Date.now(),
      fromS: atS,
      untilS: atS,
      ...caption,
      id: this.#nextId++,
    };
    this.list.push(whole);
    if (this.list.length > 400) this.list.shift();
    return whole;
  }

  /** Adds a note between the captions. @param {string} key @param {Record<string, unknown>} [values] */
  note(key, values = {}) {
    this.#append({ who: 'note', key, values });
    this.#changed();
  }

  /**
   * Adds what the user did, if their speech is not transcribed.
   * @param {string} key
   * @param {Record<string, unknown>} [values]
   */
  you(key, values = {}) {
    this.#append({ who: 'you', key, values });
    this.#changed();
  }

  /** Adds what the user wrote, optionally with a picture. @param {string} text @param {string} [image] */
  wrote(text, image) {
    this.#append({ who: 'you', text, heard: text.length, image });
    this.#changed();
  }

  /**
   * Sets the transcript of an utterance of the user.
   * @param {string} id of the utterance, since its text may arrive in several versions
   * @param {string} text all of it so far
   * @param {boolean} isFinal
   */
  heardYou(id, text, isFinal) {
    let caption = this.#yours.get(id);
    if (!caption) {
      const last = this.list.findLast(({ who }) => who === 'you');
      // The caption that showed how long the user spoke becomes the one with the text.
      caption = last?.key && !last.text ? last : this.#append({ who: 'you', isComplete: false });
      delete caption.key;
      this.#yours.set(id, caption);
    }
    const words = asSaid(text);
    Object.assign(caption, { text: words, heard: words.length, isComplete: isFinal, untilS: this.#atS() });
    if (isFinal) this.#yours.delete(id);
    this.#changed();
  }

  /**
   * Returns what both sides said, for a call that continues this one; if it is long, only the end.
   * @param {string} [before] what was said in an earlier call
   */
  said(before = '') {
    const lines = this.list
      .filter(({ who, text, heard }) => who !== 'note' && text.slice(0, heard).trim())
      .map(({ who, text, heard }) => `${who === 'you' ? 'User' : 'Assistant'}: ${text.slice(0, heard).trim()}`);
    return [before, ...lines].filter(Boolean).join('\n').slice(-CARRY_LIMIT);
  }

  /** @param {number} turn @param {string} text @param {number} samples */
  add(turn, text, samples) {
    let entry = this.#turns.get(turn);
    if (!entry) {
      entry = { track: new CaptionTrack(), caption: this.#append({ who: 'assistant', isComplete: false }) };
      this.#turns.set(turn, entry);
      if (this.#turns.size > 20) this.#turns.delete(this.#turns.keys().next().value ?? -1);
    }
    entry.track.add(withoutDirections(text), samples);
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

  /** @param {number} turn @param {number} samples number of samples that have left the loudspeaker */
  hear(turn, samples) {
    const entry = this.#turns.get(turn);
    if (!entry || entry.caption.isInterrupted) return;
    const heard = entry.track.hear(samples);
    if (heard <= entry.caption.heard) return;
    this.#hasHeard(entry.caption, heard);
    this.#changed();
  }

  /** @param {Caption} caption @param {number} heard */
  #hasHeard(caption, heard) {
    const atS = this.#atS();
    if (caption.heard === 0) caption.fromS = atS;
    caption.untilS = atS;
    caption.heard = heard;
  }

  /** Marks a turn as completely heard. @param {number} turn */
  drained(turn) {
    const entry = this.#turns.get(turn);
    if (!entry || entry.caption.isInterrupted) return;
    if (entry.caption.heard < entry.caption.text.length) this.#hasHeard(entry.caption, entry.caption.text.length);
    this.#changed();
  }

  /**
   * Marks a turn as interrupted: the rest will not be heard.
   * @param {number} turn
   * @param {string} [kept] the text that the server counts as heard and the model remembers, so that the caption
   *   shows the same
   */
  interrupt(turn, kept) {
    const entry = this.#turns.get(turn);
    if (!entry) return;
    if (kept !== undefined && entry.caption.text.startsWith(kept)) this.#hasHeard(entry.caption, kept.length);
    if (entry.caption.heard >= entry.caption.text.length) return;
    entry.caption.isInterrupted = true;
    entry.caption.isComplete = true;
    this.#changed();
  }
}
