/**
 * Formulas: the part of LaTeX that people and models write, as MathML, which browsers set themselves. What
 * is not understood is shown as it was written.
 *
 * Pure up to `mathNode`: text → a tree of values.
 */

/** @typedef {{tag: string, text?: string, children?: Tree[], attributes?: Record<string, string>}} Tree */

const GREEK =
  'alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ iota ι kappa κ lambda λ mu μ nu ν xi ξ ' +
  'pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π ' +
  'Sigma Σ Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ emptyset ∅ Re ℜ Im ℑ';
const SIGNS =
  'times × cdot ⋅ div ÷ pm ± mp ∓ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ equiv ≡ sim ∼ propto ∝ to → rightarrow → ' +
  'leftarrow ← Rightarrow ⇒ Leftrightarrow ⇔ implies ⟹ iff ⟺ mapsto ↦ in ∈ notin ∉ subset ⊂ subseteq ⊆ cup ∪ cap ∩ ' +
  'forall ∀ exists ∃ neg ¬ land ∧ lor ∨ ldots … cdots ⋯ dots … prime ′ mid ∣ parallel ∥ perp ⊥ angle ∠ circ ∘ ' +
  'langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ | ‖ { { } } % % $ $ # # & &';
const LARGE = 'sum ∑ prod ∏ int ∫ iint ∬ oint ∮ bigcup ⋃ bigcap ⋂ lim lim max max min min sup sup inf inf';
const FUNCTIONS = 'sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp det dim gcd deg ker arg mod';
const ACCENTS = 'hat ^ bar ¯ vec → dot ˙ ddot ¨ tilde ~ overline ¯ widehat ^';
const LETTERS = 'R ℝ N ℕ Z ℤ Q ℚ C ℂ P ℙ';
const SPACES = { ',': '0.17em', ':': '0.22em', ';': '0.28em', ' ': '0.33em', quad: '1em', qquad: '2em', '!': '0' };

/** @param {string} text names and signs in turns */
function table(text) {
  const words = text.split(' ');
  return new Map(words.flatMap((word, i) => (i % 2 === 0 ? [[word, words[i + 1]]] : [])));
}

const greek = table(GREEK);
const signs = table(SIGNS);
const large = table(LARGE);
const accents = table(ACCENTS);
const letters = table(LETTERS);
const functions = new Set(FUNCTIONS.split(' '));
const MATRICES = new Map([
  ['matrix', ['', '']],
  ['pmatrix', ['(', ')']],
  ['bmatrix', ['[', ']']],
  ['vmatrix', ['|', '|']],
  ['cases', ['{', '']],
  ['aligned', ['', '']],
  ['align', ['', '']],
  ['array', ['', '']],
]);

/** @param {string} tag @param {Tree[]} children @param {Record<string, string>} [attributes] @returns {Tree} */
const node = (tag, children, attributes) => ({ tag, children, attributes });
/** @param {string} tag @param {string} text @param {Record<string, string>} [attributes] @returns {Tree} */
const leaf = (tag, text, attributes) => ({ tag, text, attributes });
/** @param {Tree[]} list @returns {Tree} */
const row = (list) => (list.length === 1 ? list[0] : node('mrow', list));

class Parser {
  /** @param {string} text */
  constructor(text) {
    this.tokens = text.match(/\\[a-zA-Z]+\*?|\\.|\d+(?:[.,]\d+)?|\s+|[\s\S]/g)?.filter((token) => token.trim()) ?? [];
    this.at = 0;
  }

  get next() {
    return this.tokens[this.at];
  }

  take() {
    const token = this.tokens[this.at++];
    if (token === undefined) throw new Error('the formula ends too soon');
    return token;
  }

  /** Up to one of these, which is not taken. @param {string[]} ends @returns {Tree[]} */
  list(ends) {
    const found = [];
    while (this.next !== undefined && !ends.includes(this.next)) found.push(this.scripted());
    return found;
  }

  /** Something with what stands over and under it. @returns {Tree} */
  scripted() {
    const base = this.atom();
    /** @type {{sub?: Tree, sup?: Tree}} */
    const scripts = {};
    while (this.next === '_' || this.next === '^' || this.next === "'") {
      const sign = this.take();
      if (sign === "'") scripts.sup = leaf('mo', '′');
      else scripts[sign === '_' ? 'sub' : 'sup'] = this.argument();
    }
    const { sub, sup } = scripts;
    const [below, above, both] = base.attributes?.movablelimits
      ? ['munder', 'mover', 'munderover']
      : ['msub', 'msup', 'msubsup'];
    if (sub && sup) return node(both, [base, sub, sup]);
    if (sub) return node(below, [base, sub]);
    return sup ? node(above, [base, sup]) : base;
  }

  /** One thing: a group, or a single token. @returns {Tree} */
  argument() {
    if (this.next !== '{') return this.atom();
    this.take();
    const inside = this.list(['}']);
    if (this.take() !== '}') throw new Error('a brace is not closed');
    return row(inside);
  }

  /** The words of a group as they stand. */
  words() {
    if (this.take() !== '{') throw new Error('a group is missing');
    let text = '';
    while (this.next !== '}') text += ` ${this.take()}`;
    this.take();
    return text.trim();
  }

  /** @returns {Tree} */
  atom() {
    if (this.next === '{') return this.argument();
    const token = this.take();
    if (token.startsWith('\\')) return this.command(token.slice(1));
    if (/^\d/.test(token)) return leaf('mn', token);
    if (/^\p{L}$/u.test(token)) return leaf('mi', token);
    if (token === '}' || token === '&') throw new Error(`${token} in a strange place`);
    return leaf('mo', token === '-' ? '−' : token === '*' ? '∗' : token);
  }

  /** @param {string} name @returns {Tree} */
  command(name) {
    if (greek.has(name)) return leaf('mi', /** @type {string} */ (greek.get(name)));
    if (signs.has(name)) return leaf('mo', /** @type {string} */ (signs.get(name)));
    if (large.has(name)) return leaf('mo', /** @type {string} */ (large.get(name)), { movablelimits: 'true' });
    if (functions.has(name)) return leaf('mi', name);
    if (accents.has(name)) {
      return node('mover', [this.argument(), leaf('mo', /** @type {string} */ (accents.get(name)))], {
        accent: 'true',
      });
    }
    if (name in SPACES) return leaf('mspace', '', { width: SPACES[/** @type {keyof typeof SPACES} */ (name)] });
    switch (name) {
      case 'frac':
      case 'dfrac':
      case 'tfrac':
        return node('mfrac', [this.argument(), this.argument()]);
      case 'binom':
        return row([
          leaf('mo', '('),
          node('mfrac', [this.argument(), this.argument()], { linethickness: '0' }),
          leaf('mo', ')'),
        ]);
      case 'sqrt':
        return this.root();
      case 'text':
      case 'mathrm':
      case 'operatorname':
      case 'mathbf':
      case 'textbf':
        return leaf(
          name === 'text' ? 'mtext' : 'mi',
          this.words(),
          name === 'mathbf' ? { mathvariant: 'bold' } : undefined,
        );
      case 'mathbb':
        return leaf('mi', letters.get(this.words()) ?? '□');
      case 'left':
        return this.fenced();
      case 'begin':
        return this.matrix();
      default:
        throw new Error(`\\${name} is not known`);
    }
  }

  /** @returns {Tree} */
  root() {
    if (this.next !== '[') return node('msqrt', [this.argument()]);
    this.take();
    const index = row(this.list([']']));
    this.take();
    return node('mroot', [this.argument(), index]);
  }

  /** @param {string} token @returns {Tree[]} */
  fence(token) {
    if (token === '.') return [];
    const sign = token.startsWith('\\') ? signs.get(token.slice(1)) : token;
    return [leaf('mo', sign ?? token, { stretchy: 'true' })];
  }

  /** @returns {Tree} */
  fenced() {
    const open = this.fence(this.take());
    const inside = this.list(['\\right']);
    this.take();
    return node('mrow', [...open, ...inside, ...this.fence(this.take())]);
  }

  /** @returns {Tree} */
  matrix() {
    const kind = this.words().replaceAll(' ', '').replace('*', '');
    const [open, close] = MATRICES.get(kind) ?? [];
    if (open === undefined || close === undefined) throw new Error(`${kind} is not known`);
    if (kind === 'array' && this.next === '{') this.words();
    const rows = [];
    for (;;) {
      const cells = [];
      for (;;) {
        cells.push(node('mtd', this.list(['&', '\\\\', '\\end'])));
        if (this.next !== '&') break;
        this.take();
      }
      rows.push(node('mtr', cells));
      if (this.take() !== '\\\\') break;
    }
    this.words();
    return node('mrow', [...this.fence(open || '.'), node('mtable', rows), ...this.fence(close || '.')]);
  }
}

/** @param {string} text LaTeX without its dollars @returns {Tree | null} null: not understood */
export function parseMath(text) {
  try {
    const parser = new Parser(text);
    const list = parser.list([]);
    return list.length > 0 ? node('mrow', list) : null;
  } catch {
    return null;
  }
}

const MATHML = 'http://www.w3.org/1998/Math/MathML';

/** @param {Tree} tree @returns {Element} */
function element({ tag, text = '', children = [], attributes = {} }) {
  const made = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  made.append(...children.map(element));
  return made;
}

/** @param {string} text @param {boolean} isBlock @returns {Element} */
export function mathNode(text, isBlock) {
  const tree = parseMath(text);
  if (!tree) {
    const code = document.createElement('code');
    code.textContent = text;
    return code;
  }
  const math = element({ tag: 'math', children: [tree], attributes: isBlock ? { display: 'block' } : {} });
  // Read aloud as it was written where the browser cannot read formulas.
  math.setAttribute('alttext', text);
  return math;
}
