/**
 * Parser of a model's Markdown into tokens; pure. It uses markdown-it and adds formulas between `$`, `$$`, `\(…\)` and
 * `\[…\]`. HTML is never markup but text.
 */

/** @typedef {import('../vendor/markdown-it.js').Token} Token */
/** @typedef {import('../vendor/markdown-it.js').InlineState} InlineState */
/** @typedef {import('../vendor/markdown-it.js').BlockState} BlockState */
/** @typedef {{parse: (text: string) => Token[]}} Parser */

/** Maximum nesting of quotes and lists; deeper ones are not shown. */
const DEEPEST = 100;

/** @param {string} line @returns {[open: string, close: string] | null} delimiters of a formula on separate lines */
function fenceOf(line) {
  if (line.startsWith('$$')) return ['$$', '$$'];
  return line.startsWith('\\[') ? ['\\[', '\\]'] : null;
}

/**
 * Parses a formula on separate lines.
 * @param {BlockState} state
 * @param {number} start
 * @param {number} end
 * @param {boolean} silent
 */
function mathBlock(state, start, end, silent) {
  const line = (/** @type {number} */ at) => state.src.slice(state.bMarks[at] + state.tShift[at], state.eMarks[at]);
  const first = line(start);
  const fence = fenceOf(first);
  if (!fence || state.sCount[start] - state.blkIndent >= 4) return false;
  const [open, close] = fence;
  const rest = first.slice(open.length);
  const isOneLine = rest.trimEnd().endsWith(close) && rest.trim() !== '';
  // Text after the formula makes it part of a paragraph.
  if (!isOneLine && rest.includes(close)) return false;
  if (silent) return true;
  let last = start;
  while (!isOneLine && ++last < end) if (line(last).trimEnd().endsWith(close)) break;
  const lines = isOneLine
    ? [first]
    : [first, ...state.getLines(start + 1, last + 1, state.blkIndent, false).split('\n')];
  const text = lines.join('\n').trim().slice(open.length).trimEnd();
  const token = state.push('math_block', 'math', 0);
  token.content = (text.endsWith(close) ? text.slice(0, -close.length) : text).trim();
  token.map = [start, Math.min(last + 1, end)];
  state.line = Math.min(last + 1, end);
  return true;
}

const ROUND = /\\\(([^\n]{1,400}?)\\\)|\\\[([^\n]{1,400}?)\\\]/y;
/** `$5 or $6` is money: a formula has no space inside its delimiters and no digit after them. */
const DOLLAR = /\$\$([^$\n]{1,400})\$\$|\$([^\s$](?:[^$\n]{0,400}[^\s$\\])?)\$(?!\d)/y;

/** Parses a formula within a line. @param {InlineState} state @param {boolean} silent */
function mathInline(state, silent) {
  const sign = state.src[state.pos];
  if (sign !== '$' && sign !== '\\') return false;
  const pattern = sign === '$' ? DOLLAR : ROUND;
  pattern.lastIndex = state.pos;
  const found = pattern.exec(state.src);
  if (!found) return false;
  if (!silent) state.push('math_inline', 'math', 0).content = (found[1] ?? found[2]).trim();
  state.pos += found[0].length;
  return true;
}

/** @param {typeof import('../vendor/markdown-it.js').default} MarkdownIt @returns {Parser} */
export function makeParser(MarkdownIt) {
  const reader = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: DEEPEST });
  // Only text with a protocol is an address; `readme.md` is a file.
  reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
  // With references the end of a text could change its start, which is already drawn.
  reader.disable(['reference', 'lheading', 'code']);
  reader.block.ruler.before('fence', 'math_block', mathBlock, { alt: ['paragraph', 'blockquote', 'list'] });
  reader.inline.ruler.before('escape', 'math_inline', mathInline);
  return { parse: (text) => reader.parse(text, {}) };
}

/**
 * Returns the start of the last block: text before it does not change, whatever is added.
 * @param {Token[]} tokens @param {string} text from which they were parsed
 * @returns {{token: number, character: number}}
 */
export function lastBlock(tokens, text) {
  const token = tokens.findLastIndex(({ level, map, nesting }) => level === 0 && map && nesting >= 0);
  const line = tokens[token]?.map?.[0] ?? 0;
  let character = 0;
  for (let i = 0; i < line; i++) character = text.indexOf('\n', character) + 1;
  return { token: Math.max(0, token), character };
}
