import assert from 'node:assert/strict';
import { test } from 'node:test';

import { parseFormula } from '../../../src/parley/web/elements/formula.js';
import { lastBlock, makeParser } from '../../../src/parley/web/elements/markdown.js';
import { withoutDirections } from '../../../src/parley/web/talk/captions.js';
import MarkdownIt from '../../../src/parley/web/vendor/markdown-it.js';
import temml from '../../../src/parley/web/vendor/temml.js';

const parser = makeParser(MarkdownIt);
const inline = (children) =>
  children
    .map(
      ({ type, content }) =>
        ({
          strong_open: '<b>',
          strong_close: '</b>',
          em_open: '<i>',
          em_close: '</i>',
          s_open: '<s>',
          s_close: '</s>',
        })[type] ?? (type === 'text' ? content : type === 'softbreak' ? '\n' : `{${type} ${content}}`),
    )
    .join('');
/** Tokens as one line: what opens, what is in it, what closes. */
const outline = (text) =>
  parser
    .parse(text)
    .filter(({ hidden }) => !hidden)
    .map(({ type, tag, nesting, content, children, attrGet, ...token }) => {
      if (type === 'inline') return inline(children);
      if (nesting < 0) return `/${tag}`;
      const start = type === 'ordered_list_open' ? token.attrs?.[0]?.[1] : undefined;
      return nesting > 0 ? `${tag}${start ? ` ${start}` : ''}` : `[${type} ${content}]`;
    })
    .join(' ');

test('W16: an ordered list continues counting behind what is nested in it', () => {
  assert.equal(
    outline('1. First\n   - nested\n   - again\n2. Second\n\nAfter'),
    'ol li First ul li nested /li li again /li /ul /li li Second /li /ol p After /p',
  );
  assert.equal(outline('4. Four\n5. Five'), 'ol 4 li Four /li li Five /li /ol');
});

test('W16: tables, quotes, rules and struck words', () => {
  assert.equal(
    outline('| a | **b** |\n|---|:-:|\n| 1 | 2 |'),
    'table thead tr th a /th th <b>b</b> /th /tr /thead tbody tr td 1 /td td 2 /td /tr /tbody /table',
  );
  assert.equal(
    outline('> said\n> - one\n\n---\n~~gone~~ stays'),
    'blockquote p said /p ul li one /li /ul /blockquote [hr ] p <s>gone</s> stays /p',
  );
  assert.equal(outline('a | b'), 'p a | b /p', 'a bar alone makes no table');
});

test('markup is text, and lines break where they were broken', () => {
  assert.equal(outline('<b onclick="x">hi</b>\nthere'), 'p <b onclick="x">hi</b>\nthere /p');
  assert.equal(outline('<script>\nalert(1)\n</script>'), 'p <script>\nalert(1)\n</script> /p');
});

test('W16: formulas in a line and on their own', () => {
  assert.equal(
    outline('so $x^2$ and \\(y\\) cost $5 or $6'),
    'p so {math_inline x^2} and {math_inline y} cost $5 or $6 /p',
  );
  assert.equal(
    outline('$$\na = b\n$$\n\\[c\\]\n$$d$$\n\\[\ne\n\\]'),
    '[math_block a = b] [math_block c] [math_block d] [math_block e]',
  );
  assert.equal(outline('1. so\n   \\[\n   x\n   \\]\n2. two'), 'ol li so [math_block x] /li li two /li /ol');
  assert.equal(outline('$$\nhalf of it'), '[math_block half of it]', 'a stream that has not come to the end');
  assert.equal(outline('`$x$` and a \\[ that stays'), 'p {code_inline $x$} and a [ that stays /p');
});

test('emphasis by lines, and addresses that nobody has marked', () => {
  assert.equal(
    outline('__so__ and _so_, but not snake_case_names'),
    'p <b>so</b> and <i>so</i>, but not snake_case_names /p',
  );
  const links = (text) =>
    parser
      .parse(text)[1]
      .children.filter(({ type }) => type === 'link_open')
      .map((token) => token.attrGet('href'));
  assert.deepEqual(links('See https://server.example/a_b?c=1. Or (https://server.example/). readme.md'), [
    'https://server.example/a_b?c=1',
    'https://server.example/',
  ]);
  assert.deepEqual(links('[here](https://server.example/x) [no](javascript:alert) [no](data:text/html,x)'), [
    'https://server.example/x',
  ]);
});

test('what a model repeats without end costs no more than what it says', () => {
  const times = (text, count) => text.repeat(count);
  const steps = (count, step) => Array.from({ length: count }, (_, i) => `${' '.repeat(i * step)}- a`).join('\n');
  const texts = {
    'quotes in quotes': times('>', 20_000),
    'quotes with spaces': times('> ', 10_000),
    spaces: times(' ', 20_000),
    'spaces under a bar': `a|b\n${times(' ', 20_000)}-x`,
    'items in items': steps(3_000, 1),
    'items far in': steps(400, 2),
    numbers: times('1. ', 6_000),
    stars: times('*', 20_000),
    backticks: times('`', 20_000),
    dollars: times('$', 20_000),
    'formulas without an end': times('\\(', 10_000),
    'a formula without an end': `$$\n${times('x + ', 5_000)}`,
    'code without an end': `\`\`\`python\n${times('x = 1\n', 3_000)}`,
    tildes: times('~', 20_000),
    angles: times('<a ', 7_000),
  };
  parser.parse('warm **up** $x$\n- one\n- two\n\n> three');
  for (const [name, text] of Object.entries(texts)) {
    // The quickest of a few: what else the machine does is not the text's fault.
    const costs = [];
    while (costs.length < 10 && Math.min(Infinity, ...costs) >= 50) {
      const from = process.cpuUsage();
      parser.parse(text);
      const { user, system } = process.cpuUsage(from);
      costs.push((user + system) / 1000);
    }
    assert.ok(Math.min(...costs) < 50, `${name}: ${costs} ms of a processor`);
  }
});

test('what comes before the last block stays, whatever follows', () => {
  const text = 'One\n\n- two\n- three\n\nFour *and*';
  const { token, character } = lastBlock(parser.parse(text), text);
  assert.equal(text.slice(character), 'Four *and*');
  assert.equal(parser.parse(text)[token].type, 'paragraph_open');
  assert.equal(withoutDirections('a\u202eb\u2066c'), 'abc');
});

/** What models write every day. */
const FORMULAS = String.raw`
\frac12|\frac{a+b}{c}|\dfrac{1}{2}|a^{2^3}|f'^2|x_i^2|\sqrt{x}|\sqrt[3]{x}|\binom{n}{k}|\sum_{n=1}^\infty \frac1{n^2}|
\int_0^1 x\,dx|\iint f|\oint_C|\prod_{i}a_i|\lim_{x\to0}\frac{\sin x}{x}|\max_{x\in S} f(x)|\log_2 n|\ln x|
\mathcal{L}|\mathbb{R}^n|\mathbf{v}|\mathfrak{g}|\mathscr{F}|\boldsymbol{\alpha}|\mathrm{kg}|\text{speed in km per hour}|
\textit{a}|\textbf{b}|\operatorname{argmax}_\theta|\operatorname*{argmin}_x|\gg|\ll|\otimes|\oplus|\setminus|\subseteq|\notin|
\boxed{x=2}|\underbrace{a+b}_{n}|\overbrace{a}^{n}|\underline{x}|\overline{AB}|\vec{v}|\hat{y}|\dot{x}|\tilde{x}|
\displaystyle\sum_i i|\bigl(x\bigr)|\left(\frac{a}{b}\right)|\left[0,1\right)|\lVert x\rVert|\langle u,v\rangle|
\begin{pmatrix}1&0\\0&1\end{pmatrix}|\begin{cases}1&x>0\\0&x\le0\end{cases}|\begin{aligned}a&=b\\&=c\end{aligned}|
\begin{equation}E=mc^2\end{equation}|\begin{align}a&=b\end{align}|\xrightarrow{f}|\overset{!}{=}|\cancel{x}|30^\circ|
a \equiv b \pmod{n}|\ldots|\implies|\iff|\forall x\,\exists y|\color{red}{x}|\tag{1} x|\nabla\times\vec{B}|\partial_t u`
  .split('|')
  .map((formula) => formula.trim());

test('W16: the formulas of every day become MathML', () => {
  assert.ok(FORMULAS.length >= 60);
  for (const formula of FORMULAS) assert.ok(parseFormula(temml, formula, true), formula);
  const set = (formula) => parseFormula(temml, formula, false)?.toMarkup() ?? '';
  assert.match(set('\\text{km per hour}'), /<mtext>km\u00a0per\u00a0hour<\/mtext>/);
  assert.match(set('\\mathrm{kg}'), /<mi>kg<\/mi>/);
  assert.match(set('a^{2^3}'), /<mn>2<\/mn><mn>3<\/mn>/);
  assert.match(set("f'^2"), /′<\/mo><mn>2<\/mn>/);
});

test('what is not understood, or reaches out of the page, is not a formula', () => {
  const strange = [
    '\\unknown',
    '\\constructor',
    '\\toString',
    '{a',
    '\\frac{a}',
    'a}',
    '',
    '\\href{javascript:alert(1)}{x}',
    '\\includegraphics{https://server.example/x.png}',
    '\\def\\a{\\a\\a}\\a',
    '{'.repeat(3000),
    'x'.repeat(5000),
  ];
  for (const formula of strange) assert.equal(parseFormula(temml, formula, false), null, formula.slice(0, 40));
});
