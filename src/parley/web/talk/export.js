/**
 * Export of a conversation: plain text, or subtitles that match a recording of it. It contains only what was heard;
 * interruptions are marked.
 *
 * Pure; the texts for "You", "Assistant" and "(interrupted)" are in the reader's language.
 */

/**
 * @typedef {object} Line
 * @property {string} who name of the speaker as shown
 * @property {string} text the part that was heard
 * @property {boolean} isNote
 * @property {boolean} isInterrupted
 * @property {number} fromS
 * @property {number} untilS
 */

/** Minimum and maximum duration of a subtitle. */
const LEAST_S = 1.2;
const MOST_S = 8;

/**
 * @param {import('./captions.js').Caption[]} captions
 * @param {(key: string, values?: Record<string, unknown>) => string} t
 * @returns {Line[]}
 */
export function linesOf(captions, t) {
  return captions
    .map((caption) => {
      const whole = caption.key ? t(caption.key, caption.values) : caption.text;
      const isCut = caption.who === 'assistant' && caption.heard < whole.length && caption.isComplete;
      const text = (isCut ? whole.slice(0, caption.heard) : whole).trim();
      const { isInterrupted, fromS, untilS } = caption;
      return { who: t(`who.${caption.who}`), text, isNote: caption.who === 'note', isInterrupted, fromS, untilS };
    })
    .filter(({ text, isInterrupted }) => text || isInterrupted);
}

/** @param {Line[]} lines @param {string} interrupted text for an interruption */
export function plainText(lines, interrupted) {
  const ending = (/** @type {Line} */ line) => (line.isInterrupted ? `${line.text ? '… ' : ''}(${interrupted})` : '');
  return lines
    .map((line) => (line.isNote ? `— ${line.text} —` : `${line.who}: ${line.text}${ending(line)}`))
    .join('\n');
}

/** @param {number} seconds @param {string} point */
function stamp(seconds, point) {
  const ms = Math.round(seconds * 1000);
  const two = (/** @type {number} */ value) => String(value).padStart(2, '0');
  const [h, m, s] = [Math.floor(ms / 3_600_000), Math.floor(ms / 60_000) % 60, Math.floor(ms / 1000) % 60];
  return `${two(h)}:${two(m)}:${two(s)}${point}${String(ms % 1000).padStart(3, '0')}`;
}

/** @param {Line[]} lines */
function cues(lines) {
  const spoken = lines.filter(({ isNote, text }) => !isNote && text);
  return spoken.map((line, i) => {
    const next = spoken[i + 1]?.fromS ?? Infinity;
    const wanted = Math.max(line.untilS, line.fromS + LEAST_S);
    const until = Math.min(Math.max(wanted, line.fromS + 0.2), line.fromS + Math.max(MOST_S, line.untilS - line.fromS));
    return { ...line, untilS: next > line.fromS ? Math.min(until, Math.max(next, line.fromS + 0.2)) : until };
  });
}

/** SubRip. @param {Line[]} lines */
export function srt(lines) {
  const time = (/** @type {number} */ seconds) => stamp(seconds, ',');
  return cues(lines)
    .map(
      ({ who, text, fromS, untilS }, i) => `${i + 1}\n${time(fromS)} --> ${time(untilS)}\n${who}: ${oneLine(text)}\n`,
    )
    .join('\n');
}

/** WebVTT. @param {Line[]} lines */
export function vtt(lines) {
  const time = (/** @type {number} */ seconds) => stamp(seconds, '.');
  const safe = (/** @type {string} */ text) =>
    oneLine(text).replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
  const body = cues(lines).map(
    ({ who, text, fromS, untilS }) => `${time(fromS)} --> ${time(untilS)}\n<v ${safe(who)}>${safe(text)}\n`,
  );
  return `WEBVTT\n\n${body.join('\n')}`;
}

/** Removes empty lines, which would end a subtitle. @param {string} text */
const oneLine = (text) => text.replace(/\s*\n\s*/g, ' ');
