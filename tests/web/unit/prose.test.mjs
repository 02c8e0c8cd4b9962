import assert from 'node:assert/strict';
import { test } from 'node:test';

import { parseMath } from '../../../src/parley/web/elements/math.js';
import { parseProse, parseSpans } from '../../../src/parley/web/elements/prose.js';

const text = (spans) => spans.map((span) => (span.kind === 'text' ? span.text : `${span.kind}:${span.text}`)).join('');
const outline = (blocks) =>
  blocks.map((block) => {
    if (block.kind !== 'list') return `${block.kind} ${text(block.spans ?? [])}`.trim();
    const items = block.items.map(({ spans, blocks: inside }) => [text(spans), ...outline(inside)]);
    return [block.isOrdered ? `ol ${block.start}` : 'ul', ...items];
  });

test('W16: an ordered list goes on counting behind what is nested in it', () => {
  const blocks = parseProse('1. First\n   - nested\n   - again\n\n2. Second\n\n   with a paragraph\n3. Third\n\nAfter');
  assert.deepEqual(outline(blocks), [
    ['ol 1', ['First', ['ul', ['nested'], ['again']]], ['Second', 'p with a paragraph'], ['Third']],
    'p After',
  ]);
  assert.equal(parseProse('4. Four\n5. Five')[0].start, 4);
});

test('W16: tables, quotes, rules and struck words', () => {
  const [table] = parseProse('| a | **b** |\n|---|:-:|\n| 1 | 2 |\n| 3 | 4 |');
  assert.deepEqual(table.head.map(text), ['a', 'strong:b']);
  assert.deepEqual(
    table.rows.map((row) => row.map(text)),
    [
      ['1', '2'],
      ['3', '4'],
    ],
  );
  const [quote, rule, last] = parseProse('> said\n> - one\n\n---\n~~gone~~ stays');
  assert.deepEqual(outline(quote.blocks), ['p said', ['ul', ['one']]]);
  assert.equal(rule.kind, 'rule');
  assert.equal(text(last.spans), 'strike:gone stays');
  assert.equal(parseProse('a | b')[0].kind, 'p', 'a bar alone makes no table');
});

test('W16: formulas in a line and on their own', () => {
  assert.deepEqual(
    parseSpans('so $x^2$ and \\(y\\) cost $5 or $6').map(({ kind }) => kind),
    ['text', 'math', 'text', 'math', 'text'],
  );
  const kinds = parseProse('$$\na = b\n$$\n\\[c\\]\n$$d$$').map(({ kind, text: inside }) => [kind, inside]);
  assert.deepEqual(kinds, [
    ['math', 'a = b'],
    ['math', 'c'],
    ['math', 'd'],
  ]);
});

const tags = ({ tag, text: inside, children = [] }) =>
  children.length > 0 ? `${tag}(${children.map(tags).join(' ')})` : `${tag}:${inside}`;

test('W16: a formula becomes MathML', () => {
  assert.equal(tags(parseMath('\\frac{a+1}{2}')), 'mrow(mfrac(mrow(mi:a mo:+ mn:1) mn:2))');
  assert.equal(tags(parseMath('x_i^2')), 'mrow(msubsup(mi:x mi:i mn:2))');
  assert.equal(tags(parseMath('\\sum_{n=1}^\\infty n')), 'mrow(munderover(mo:∑ mrow(mi:n mo:= mn:1) mi:∞) mi:n)');
  assert.equal(tags(parseMath('\\sqrt[3]{x}')), 'mrow(mroot(mi:x mn:3))');
  assert.equal(
    tags(parseMath('\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}')),
    'mrow(mrow(mo:( mtable(mtr(mtd(mn:1) mtd(mn:0)) mtr(mtd(mn:0) mtd(mn:1))) mo:)))',
  );
  assert.equal(tags(parseMath('\\left(\\alpha\\right)')), 'mrow(mrow(mo:( mi:α mo:)))');
  for (const strange of ['\\unknown', '{a', '\\frac{a}', 'a}', '']) assert.equal(parseMath(strange), null, strange);
});

test('emphasis by lines, and addresses that nobody has marked', () => {
  assert.equal(
    text(parseSpans('__so__ and _so_, but not snake_case_names')),
    'strong:so and em:so, but not snake_case_names',
  );
  assert.deepEqual(parseSpans('See https://server.example/a_b?c=1. Or (https://server.example/).'), [
    { kind: 'text', text: 'See ' },
    { kind: 'link', text: 'https://server.example/a_b?c=1', url: 'https://server.example/a_b?c=1' },
    { kind: 'text', text: '. Or (' },
    { kind: 'link', text: 'https://server.example/', url: 'https://server.example/' },
    { kind: 'text', text: ').' },
  ]);
  const [link] = parseSpans('[here](https://server.example/x)');
  assert.deepEqual(link, { kind: 'link', text: 'here', url: 'https://server.example/x' });
});
