/**
 * A model's text as nodes: paragraphs, lists in lists, tables, quotes, headings, code, formulas, links.
 * Parsed into values first, so nothing of it is ever markup.
 */

import { copy, h } from './dom.js';

/**
 * @typedef {{kind: 'text' | 'code' | 'strong' | 'em' | 'strike' | 'math', text: string}
 *   | {kind: 'link', text: string, url: string}} Span
 * @typedef {{spans: Span[], blocks: Block[]}} Item
 * @typedef {{kind: 'p' | 'heading', spans: Span[]} | {kind: 'list', isOrdered: boolean, start: number, items: Item[]}
 *   | {kind: 'code', text: string} | {kind: 'math', text: string} | {kind: 'quote', blocks: Block[]}
 *   | {kind: 'table', head: Span[][], rows: Span[][][]} | {kind: 'rule'}} Block
 */

/** What stands out within a line; the names are those of the groups in the pattern. */
const SPANS = new RegExp(
  [
    '(?<code>`[^`\\n]+`)',
    '(?<strong>\\*\\*[^*\\n]+\\*\\*|(?<![\\w_])__[^_\\n]+__(?![\\w_]))',
    '(?<strike>~~[^~\\n]+~~)',
    // Names with_lines_in_them are no emphasis.
    '(?<em>\\*[^*\\s][^*\\n]*\\*|(?<![\\w_])_[^_\\s][^_\\n]*_(?![\\w_]))',
    '\\\\\\((?<round>[^\\n]+?)\\\\\\)',
    '\\$(?<dollar>[^\\s$](?:[^$\\n]*[^\\s$\\\\])?)\\$(?!\\d)',
    '\\[(?<label>[^\\]\\n]+)\\]\\((?<url>https?:\\/\\/[^\\s)]+)\\)',
    // A bare address ends before the sign that ends the sentence.
    '(?<bare>https?:\\/\\/[^\\s<>()\\[\\]]*[^\\s<>()\\[\\].,;:!?\'"])',
  ].join('|'),
  'g',
);

/** @param {string} text @returns {Span[]} */
export function parseSpans(text) {
  /** @type {Span[]} */
  const spans = [];
  let at = 0;
  for (const match of text.matchAll(SPANS)) {
    if (match.index > at) spans.push({ kind: 'text', text: text.slice(at, match.index) });
    const { code, strong, strike, em, round, dollar, label, url, bare } = match.groups ?? {};
    if (code) spans.push({ kind: 'code', text: code.slice(1, -1) });
    else if (strong) spans.push({ kind: 'strong', text: strong.slice(2, -2) });
    else if (strike) spans.push({ kind: 'strike', text: strike.slice(2, -2) });
    else if (em) spans.push({ kind: 'em', text: em.slice(1, -1) });
    else if (round ?? dollar) spans.push({ kind: 'math', text: (round ?? dollar).trim() });
    else if (bare) spans.push({ kind: 'link', text: bare, url: bare });
    else spans.push({ kind: 'link', text: label, url });
    at = match.index + match[0].length;
  }
  if (at < text.length) spans.push({ kind: 'text', text: text.slice(at) });
  return spans;
}

const ITEM = /^(\s*)(?:[-*•+]|(\d+)[.)])\s+(.*)$/;
const isRule = (/** @type {string} */ line) => /^\s*([-*_])(?:\s*\1){2,}\s*$/.test(line);
const isTableRule = (/** @type {string | undefined} */ line) =>
  /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(line ?? '') && (line ?? '').includes('-');

/** @param {string} line */
const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, '')
    .split('|')
    .map((cell) => parseSpans(cell.trim()));

class Reader {
  /** @type {Block[]} */
  blocks = [];
  /** @type {string[]} */
  #paragraph = [];

  /** @param {string[]} lines */
  constructor(lines) {
    this.lines = lines;
    this.at = 0;
  }

  #flush() {
    if (this.#paragraph.length > 0) this.blocks.push({ kind: 'p', spans: parseSpans(this.#paragraph.join('\n')) });
    this.#paragraph = [];
  }

  /** @param {Block} block */
  #add(block) {
    this.#flush();
    this.blocks.push(block);
  }

  read() {
    while (this.at < this.lines.length) this.#line(this.lines[this.at]);
    this.#flush();
    return this.blocks;
  }

  /** @param {string} line */
  #line(line) {
    const heading = /^#{1,6}\s+(.*)$/.exec(line);
    const fence = /^\s*(```|\$\$|\\\[)/.exec(line);
    if (fence) this.#fenced(line, fence[1]);
    else if (heading) this.#take({ kind: 'heading', spans: parseSpans(heading[1]) });
    else if (isRule(line)) this.#take({ kind: 'rule' });
    else if (/^\s*>/.test(line)) this.#quote();
    else if (line.includes('|') && isTableRule(this.lines[this.at + 1])) this.#table();
    else if (ITEM.test(line)) this.#list();
    else if (line.trim() === '') {
      this.#flush();
      this.at++;
    } else {
      this.#paragraph.push(line);
      this.at++;
    }
  }

  /** @param {Block} block of one line */
  #take(block) {
    this.#add(block);
    this.at++;
  }

  /** Code or a formula between two marks. @param {string} line @param {string} open */
  #fenced(line, open) {
    const close = open === '\\[' ? '\\]' : open;
    const kind = open === '```' ? 'code' : 'math';
    const first = line.trim().slice(open.length);
    this.at++;
    if (kind === 'math' && first.trimEnd().endsWith(close)) {
      this.#add({ kind, text: first.trimEnd().slice(0, -close.length).trim() });
      return;
    }
    const inside = kind === 'math' && first ? [first] : [];
    while (this.at < this.lines.length) {
      const next = this.lines[this.at++];
      const end = next.trim();
      if (kind === 'code' ? end.startsWith(close) : end.endsWith(close)) {
        if (kind === 'math' && end !== close) inside.push(end.slice(0, -close.length));
        break;
      }
      inside.push(next);
    }
    this.#add({ kind, text: inside.join('\n') });
  }

  #quote() {
    const inside = [];
    while (this.at < this.lines.length && /^\s*>/.test(this.lines[this.at])) {
      inside.push(this.lines[this.at++].replace(/^\s*> ?/, ''));
    }
    this.#add({ kind: 'quote', blocks: new Reader(inside).read() });
  }

  #table() {
    const head = cells(this.lines[this.at]);
    this.at += 2;
    const rows = [];
    while (this.at < this.lines.length && this.lines[this.at].includes('|')) rows.push(cells(this.lines[this.at++]));
    this.#add({ kind: 'table', head, rows });
  }

  /** Items of one depth; what is indented further belongs to the item above it. */
  #list() {
    const [, indent, number] = /** @type {RegExpExecArray} */ (ITEM.exec(this.lines[this.at]));
    const isOrdered = number !== undefined;
    /** @type {Item[]} */
    const items = [];
    while (this.at < this.lines.length) {
      const found = ITEM.exec(this.lines[this.at]);
      if (!found || found[1].length !== indent.length || (found[2] !== undefined) !== isOrdered) break;
      this.at++;
      items.push({ spans: parseSpans(found[3]), blocks: new Reader(this.#indented(indent.length)).read() });
    }
    this.#add({ kind: 'list', isOrdered, start: Number(number ?? 1), items });
  }

  /** The lines that follow and are indented further, without that; blank lines between them included. @param {number} depth */
  #indented(depth) {
    const inside = [];
    while (this.at < this.lines.length) {
      const line = this.lines[this.at];
      const isBlank = line.trim() === '';
      const next = this.lines.slice(this.at).find((one) => one.trim() !== '');
      const deeper = (/** @type {string} */ one) => /^\s*/.exec(one)?.[0].length ?? 0;
      if (isBlank ? !next || deeper(next) <= depth : deeper(line) <= depth) {
        // A blank line between two items of one list does not end it.
        if (isBlank && next && ITEM.test(next) && deeper(next) === depth) this.at++;
        else break;
      } else {
        inside.push(line);
        this.at++;
      }
    }
    const margin = Math.min(...inside.filter((line) => line.trim()).map((line) => /^\s*/.exec(line)?.[0].length ?? 0));
    return inside.map((line) => line.slice(Math.min(margin, line.length)));
  }
}

/** @param {string} text @returns {Block[]} */
export function parseProse(text) {
  return new Reader(text.split('\n')).read();
}

/** A formula; until what sets it has been loaded, as it was written. @param {string} text @param {boolean} isBlock */
function formula(text, isBlock) {
  const node = h('code', null, text);
  const set = async () => node.replaceWith((await import('./math.js')).mathNode(text, isBlock));
  void set();
  return node;
}

/** @param {Span[]} spans */
function spanNodes(spans) {
  return spans.map((span) => {
    if (span.kind === 'text') return document.createTextNode(span.text);
    if (span.kind === 'math') return formula(span.text, false);
    if (span.kind === 'link') {
      return h('a', { href: span.url, target: '_blank', rel: 'noopener noreferrer' }, span.text);
    }
    return h(span.kind === 'strike' ? 's' : span.kind, null, span.text);
  });
}

/** @param {Item} item */
const itemNode = ({ spans, blocks }) => h('li', null, ...spanNodes(spans), ...blocks.map(blockNode));

/** @param {string} text */
function codeNode(text) {
  const button = h('button', {
    class: 'round slim copy-code',
    type: 'button',
    icon: 'copy',
    label: 'action.copy',
    onclick: () => void copy(text),
  });
  return h('div', { class: 'code' }, h('pre', { tabindex: 0 }, h('code', null, text)), button);
}

/** @param {Block} block @returns {HTMLElement} */
function blockNode(block) {
  switch (block.kind) {
    case 'code':
      return codeNode(block.text);
    case 'math':
      return h('div', { class: 'scroll-x' }, formula(block.text, true));
    case 'list':
      return block.isOrdered
        ? h('ol', { start: block.start }, ...block.items.map(itemNode))
        : h('ul', null, ...block.items.map(itemNode));
    case 'quote':
      return h('blockquote', null, ...block.blocks.map(blockNode));
    case 'rule':
      return h('hr', null);
    case 'table': {
      const cell = (/** @type {'th' | 'td'} */ tag) => (/** @type {Span[]} */ spans) =>
        h(tag, null, ...spanNodes(spans));
      const rows = block.rows.map((row) => h('tr', null, ...row.map(cell('td'))));
      const head = h('thead', null, h('tr', null, ...block.head.map(cell('th'))));
      return h('div', { class: 'scroll-x', tabindex: 0 }, h('table', null, head, h('tbody', null, ...rows)));
    }
    case 'heading':
      return h('p', null, h('strong', null, ...spanNodes(block.spans)));
    default:
      return h('p', null, ...spanNodes(block.spans));
  }
}

/** @param {string} text @returns {HTMLElement[]} */
export function proseNodes(text) {
  return parseProse(text).map(blockNode);
}
