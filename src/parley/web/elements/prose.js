/**
 * A model's text as nodes: paragraphs, lists, tables, quotes, headings, code, formulas, links. The parser
 * (`markdown.js`) and the formulas (`formula.js`) are loaded with the first text; until then the text is shown as it
 * was written.
 *
 * A text that grows is parsed from its last block on; the blocks above it stay.
 */

import { copy, h, iconButton, loadedOnce } from './dom.js';
import { withoutDirections } from '../talk/captions.js';
import { lastBlock, makeParser } from './markdown.js';

/** @typedef {import('./markdown.js').Token} Token */

/** @type {import('./markdown.js').Parser | null} */
let parser = null;
const load = loadedOnce(async () => {
  const { default: MarkdownIt } = await import('../vendor/markdown-it.js');
  parser = makeParser(MarkdownIt);
});

/**
 * The text direction of a block depends on its own text, not on that of nested blocks with a direction.
 * @param {Token} token
 */
const outer = ({ level }) => (level === 0 ? { dir: 'auto' } : {});

/** Creates the node that a token of each name opens. @type {Record<string, (token: Token) => HTMLElement>} */
const OPENED = {
  paragraph_open: (token) => h('p', outer(token)),
  heading_open: (token) =>
    h('p', { class: 'heading', role: 'heading', 'aria-level': token.tag.slice(1), ...outer(token) }),
  bullet_list_open: (token) => h('ul', outer(token)),
  ordered_list_open: (token) => h('ol', { start: token.attrGet('start') ?? '1', ...outer(token) }),
  list_item_open: () => h('li', null),
  blockquote_open: (token) => h('blockquote', outer(token)),
  table_open: () => h('table', { dir: 'auto' }),
  thead_open: () => h('thead', null),
  tbody_open: () => h('tbody', null),
  tr_open: () => h('tr', null),
  th_open: () => h('th', null),
  td_open: () => h('td', null),
  strong_open: () => h('strong', null),
  em_open: () => h('em', null),
  s_open: () => h('s', null),
  link_open: (token) => linkNode(token.attrGet('href') ?? ''),
};

/** Returns a link; addresses that are not HTTP stay text. @param {string} url */
function linkNode(url) {
  if (!/^https?:\/\//i.test(url)) return h('span', null);
  return h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' });
}

/** Creates the node of each token that contains no others. @type {Record<string, (token: Token) => Node>} */
const ALONE = {
  text: ({ content }) => document.createTextNode(content),
  softbreak: () => h('br', null),
  hardbreak: () => h('br', null),
  hr: () => h('hr', null),
  code_inline: ({ content }) => h('code', null, content),
  fence: ({ content }) => codeNode(content),
  math_inline: ({ content }) => formula(content, false),
  math_block: ({ content }) => h('div', { class: 'scroll-x', tabindex: 0 }, formula(content, true)),
  // Pictures are shown as links: a model must not make the page fetch from other servers.
  image: (token) => {
    const link = linkNode(token.attrGet('src') ?? '');
    link.append(token.content || (token.attrGet('src') ?? ''));
    return link;
  },
};

/**
 * Returns a formula, shown as it was written until `formula.js` has been loaded.
 * @param {string} text
 * @param {boolean} isBlock
 */
function formula(text, isBlock) {
  const node = h('code', null, text);
  void import('./formula.js').then(async ({ formulaNode }) => {
    const set = await formulaNode(text, isBlock);
    if (set) node.replaceWith(set);
  });
  return node;
}

/** @param {string} text */
function codeNode(text) {
  const button = iconButton('copy', 'action.copy', () => void copy(text), 'copy-code');
  return h('div', { class: 'code', dir: 'ltr' }, h('pre', { tabindex: 0 }, h('code', null, text)), button);
}

/** @param {Token[]} tokens @param {Node[]} found @returns {Node[]} */
function build(tokens, found = []) {
  /** @type {(HTMLElement | null)[]} */
  const open = [];
  const put = (/** @type {Node} */ node) => {
    const parent = open.findLast((one) => one !== null);
    if (parent) parent.append(node);
    else found.push(node);
  };
  for (const token of tokens) {
    if (token.nesting < 0) open.pop();
    else if (token.nesting > 0) {
      const node = token.hidden ? null : (OPENED[token.type]?.(token) ?? h('span', null));
      if (node) put(token.type === 'table_open' ? h('div', { class: 'scroll-x', tabindex: 0 }, node) : node);
      open.push(node);
    } else if (token.type === 'inline') for (const node of build(token.children ?? [])) put(node);
    else put(ALONE[token.type]?.(token) ?? document.createTextNode(token.content));
  }
  return found;
}

/** If parsing takes longer than this, a pause of several times that duration follows, so that the page stays usable. */
const SLOW_MS = 20;
const PAUSE_TIMES = 6;

/** Updates the content of `node` as its text grows. */
export class Prose {
  #text = '';
  /** Length of the text, and number of the nodes, that are final. */
  #settled = { characters: 0, nodes: 0 };
  #restsUntil = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #later;

  /** @param {HTMLElement} node */
  constructor(node) {
    this.node = node;
  }

  /** @param {string} said */
  show(said) {
    const text = withoutDirections(said).replaceAll('\r\n', '\n');
    if (text === this.#text && parser) return;
    if (!text.startsWith(this.#text.slice(0, this.#settled.characters))) this.#settled = { characters: 0, nodes: 0 };
    this.#text = text;
    if (parser) this.#drawSoon(parser);
    else {
      this.node.replaceChildren(...(text ? [h('p', { class: 'as-written', dir: 'auto' }, text)] : []));
      void load().then(
        () => parser && this.#text === text && this.#draw(parser),
        // No network: the text stays as it was written, and the next text tries to load the parser again.
        () => {},
      );
    }
  }

  /** @param {import('./markdown.js').Parser} reader */
  #drawSoon(reader) {
    clearTimeout(this.#later);
    const restMs = this.#restsUntil - performance.now();
    if (restMs > 0) this.#later = setTimeout(() => this.#draw(reader), restMs);
    else this.#draw(reader);
  }

  /** @param {import('./markdown.js').Parser} reader */
  #draw(reader) {
    const from = performance.now();
    const { characters, nodes } = this.#settled;
    const rest = this.#text.slice(characters);
    const tokens = reader.parse(rest);
    const { token, character } = lastBlock(tokens, rest);
    const whole = build(tokens.slice(0, token));
    const kept = [...this.node.childNodes].slice(0, nodes);
    this.node.replaceChildren(...kept, ...whole, ...build(tokens.slice(token)));
    this.#settled = { characters: characters + character, nodes: nodes + whole.length };
    const tookMs = performance.now() - from;
    if (tookMs > SLOW_MS) this.#restsUntil = performance.now() + tookMs * PAUSE_TIMES;
  }
}
