import { asSaid } from '../../talk/captions.js';

/**
 * Parser of a recording of the server: its units or turns, and the conversation in them.
 *
 * Pure.
 */

/**
 * @typedef {object} Cell one row of the timeline: a unit or a turn
 * @property {number} index
 * @property {number} at seconds
 * @property {number} length seconds
 * @property {string | undefined} userAudio
 * @property {string | undefined} aiAudio
 * @property {string[]} images
 * @property {string | undefined} video
 * @property {string} userText
 * @property {string} text
 * @property {'listen' | 'speak' | 'turn'} mode
 * @property {boolean} isEnd
 * @property {Record<string, number>} timing
 */
/**
 * @typedef {object} Said one side's contribution
 * @property {'you' | 'assistant'} who
 * @property {string} text '' if it was not transcribed
 * @property {number} fromS
 * @property {number} untilS
 * @property {string[]} images
 * @property {boolean} isInterrupted
 * @property {number | null} latencyMs from the last word of the user to the first of the answer, if both are timed
 */

/** @param {any} chunk @param {number} i @param {any[]} chunks @returns {Cell} */
function unit(chunk, i, chunks) {
  const at = startOf(chunk, i);
  return {
    index: chunk.index ?? i,
    at,
    length: i + 1 < chunks.length ? Math.min(1, startOf(chunks[i + 1], i + 1) - at) : 1,
    userAudio: chunk.user_audio,
    aiAudio: chunk.result?.ai_audio,
    images: chunk.user_frame ? [chunk.user_frame] : [],
    video: undefined,
    userText: [chunk.user_text, chunk.user_transcript].filter(Boolean).join('\n'),
    text: chunk.result?.text ?? '',
    mode: String(chunk.result?.mode ?? '').toUpperCase() === 'SPEAK' ? 'speak' : 'listen',
    isEnd: Boolean(chunk.result?.end_of_turn),
    timing: chunk.result?.timing ?? {},
  };
}

/** Returns the start of a unit in seconds; published recordings have whole ones. @param {any} chunk @param {number} i */
const startOf = (chunk, i) => (chunk.start_ms === undefined ? i : chunk.start_ms / 1000);

/** @param {any} recording @returns {Cell[]} */
export function cellsOf(recording) {
  const chunks = Array.isArray(recording?.chunks) ? recording.chunks : [];
  if (chunks.length > 0) return chunks.map(unit);
  const turns = Array.isArray(recording?.turns) ? recording.turns : [];
  const first = turns[0]?.request_ts_ms ?? 0;
  const isSpoken = recording?.mode === 'half_duplex_audio';
  return turns.map((/** @type {any} */ turn, /** @type {number} */ i) => {
    const asked = turn.input?.duration_ms ?? 0;
    const sentMs = turn.request_ts_ms ?? first;
    // In half-duplex, times count from `ready`, and a request is sent after the user has spoken.
    const atMs = isSpoken ? (turn.input?.start_ms ?? sentMs - asked) : sentMs - first;
    const answerMs = isSpoken ? sentMs + (turn.timing?.first_piece_ms ?? 0) : atMs + asked;
    return {
      index: turn.turn_index ?? i,
      at: Math.max(0, atMs / 1000),
      length: Math.max(1, (answerMs + (turn.output?.audio_duration_ms ?? 0) - atMs) / 1000),
      userAudio: turn.input?.audio,
      aiAudio: turn.output?.audio,
      images: turn.input?.images ?? [],
      video: turn.input?.videos?.[0],
      userText: turn.input?.text ?? turn.input?.transcript ?? '',
      text: turn.output?.text ?? '',
      mode: /** @type {const} */ ('turn'),
      isEnd: !turn.output?.interrupted,
      timing: turn.timing ?? {},
    };
  });
}

/**
 * Returns a contribution of one side that was not interrupted.
 * @param {Said['who']} who @param {string} text @param {number} fromS @param {number} untilS @returns {Said}
 */
const contribution = (who, text, fromS, untilS) => ({
  who,
  text,
  fromS,
  untilS,
  images: [],
  isInterrupted: false,
  latencyMs: null,
});

/** @param {Cell} cell @returns {Said[]} */
function saidInTurn({ at, length, userText, images, text, isEnd }) {
  const answerS = at + Math.min(length, 1);
  return [
    { ...contribution('you', userText, at, answerS), images },
    { ...contribution('assistant', text, answerS, at + length), isInterrupted: !isEnd },
  ];
}

/**
 * Returns what both sides said with the server's times, so that all kinds of subtitles have the same times.
 * @param {any[]} list @param {Cell[]} cells @returns {Said[]}
 */
function timed(list, cells) {
  /** @type {Said[]} */
  const said = [];
  for (const { who, text, start_ms: startMs, end_ms: endMs, interrupted = false } of list) {
    const fromS = startMs / 1000;
    const before = said.at(-1);
    const isAnswer = who === 'assistant' && before?.who === 'you';
    // A picture is shown only with text that was written about it: in a video every second has one.
    const shown = cells.find(
      ({ at, length, userText, images }) => at <= fromS && fromS < at + length && userText && images,
    );
    said.push({
      who: who === 'user' ? 'you' : 'assistant',
      text: who === 'user' ? asSaid(text) : text,
      fromS,
      untilS: endMs / 1000,
      images: who === 'user' ? (shown?.images ?? []) : [],
      isInterrupted: interrupted,
      latencyMs: isAnswer && fromS > before.untilS ? Math.round((fromS - before.untilS) * 1000) : null,
    });
  }
  return said;
}

/** Returns what both sides said, in order. @param {Cell[]} cells @param {any} [recording] @returns {Said[]} */
export function conversationOf(cells, recording) {
  return Array.isArray(recording?.said) ? timed(recording.said, cells) : derived(cells);
}

/** Returns the same for a recording without the server's times. @param {Cell[]} cells @returns {Said[]} */
function derived(cells) {
  /** @type {Said[]} */
  const said = [];
  /** @type {Said | null} */
  let open = null;
  for (const cell of cells) {
    if (cell.mode === 'turn') {
      said.push(...saidInTurn(cell));
      continue;
    }
    if (cell.userText)
      said.push({ ...contribution('you', cell.userText, cell.at, cell.at + cell.length), images: cell.images });
    if (cell.mode === 'speak') {
      if (!open) {
        open = contribution('assistant', '', cell.at + 1, cell.at + 1);
        said.push(open);
      }
      open.text += cell.text;
      open.untilS = cell.at + 1 + cell.length;
      if (cell.isEnd) open = null;
    } else if (open) {
      // The model listens again without having ended its turn: it was interrupted.
      open.isInterrupted = true;
      open = null;
    }
  }
  return said.map((one) => ({ ...one, text: one.text.trim() }));
}
