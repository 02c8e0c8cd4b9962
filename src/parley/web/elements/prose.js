/**
 * A model's text as nodes: paragraphs, lists, headings, code, bold, italics, links. Parsed into values
 * first, so nothing of it is ever markup.
 */

import { h } from './dom.js';

/** @typedef {{kind: 'text' | 'code' | 'strong' | 'em', text: string} | {kind: 'link', text: string, url: string}} Span */
/** @typedef {{kind: 'p' | 'heading', spans: Span[]} | {kind: 'list', isOrdered: boolean, items: Span[][]} | {kind: 'code', text: string}} Block */

const SPANS = /(`[^`\n]+`)|(\*\*[^*\n]+\*\*)|(\*[^*\n]+\*)|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

/** @param {string} text @returns {Span[]} */
export function parseSpans(text) {
  /** @type {Span[]} */
  const spans = [];
  let at = 0;
  for (const match of text.matchAll(SPANS)) {
    if (match.index > at) spans.push({ kind: 'text', text: text.slice(at, match.index) });
    if (match[1]) spans.push({ kind: 'code', text: match[1].slice(1, -1) });
    else if (match[2]) spans.push({ kind: 'strong', text: match[2].slice(2, -2) });
    else if (match[3]) spans.push({ kind: 'em', text: match[3].slice(1, -1) });
    else spans.push({ kind: 'link', text: match[4], url: match[5] });
    at = match.index + match[0].length;
  }
  if (at < text.length) spans.push({ kind: 'text', text: text.slice(at) });
  return spans;
}

/** @param {string} text @returns {Block[]} */
export function parseProse(text) {
  /** @type {Block[]} */
  const blocks = [];
  /** @type {string[]} */
  let paragraph = [];
  const flush = () => {
    if (paragraph.length > 0) blocks.push({ kind: 'p', spans: parseSpans(paragraph.join('\n')) });
    paragraph = [];
  };
  const lines = text.split('\n');
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const item = /^\s*(?:[-*•]|(\d+)[.)])\s+(.*)$/.exec(line);
    const heading = /^#{1,6}\s+(.*)$/.exec(line);
    if (line.trim().startsWith('```')) {
      flush();
      const code = [];
      for (i++; i < lines.length && !lines[i].trim().startsWith('```'); i++) code.push(lines[i]);
      blocks.push({ kind: 'code', text: code.join('\n') });
    } else if (heading) {
      flush();
      blocks.push({ kind: 'heading', spans: parseSpans(heading[1]) });
    } else if (item) {
      flush();
      const last = blocks.at(-1);
      const isOrdered = item[1] !== undefined;
      if (last?.kind === 'list' && last.isOrdered === isOrdered) last.items.push(parseSpans(item[2]));
      else blocks.push({ kind: 'list', isOrdered, items: [parseSpans(item[2])] });
    } else if (line.trim() === '') flush();
    else paragraph.push(line);
  }
  flush();
  return blocks;
}

/** @param {Span[]} spans */
function spanNodes(spans) {
  return spans.map((span) => {
    if (span.kind === 'text') return document.createTextNode(span.text);
    if (span.kind === 'link') return h('a', { href: span.url, target: '_blank', rel: 'noopener noreferrer' }, span.text);
    return h(span.kind, null, span.text);
  });
}

/** @param {string} text @returns {HTMLElement[]} */
export function proseNodes(text) {
  return parseProse(text).map((block) => {
    switch (block.kind) {
      case 'code':
        return h('pre', { tabindex: 0 }, h('code', null, block.text));
      case 'list':
        return h(block.isOrdered ? 'ol' : 'ul', null, ...block.items.map((item) => h('li', null, ...spanNodes(item))));
      case 'heading':
        return h('p', null, h('strong', null, ...spanNodes(block.spans)));
      default:
        return h('p', null, ...spanNodes(block.spans));
    }
  });
}
