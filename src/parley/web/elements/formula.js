/**
 * Formulas as MathML, which browsers typeset. Temml parses the LaTeX; only MathML elements of its tree become nodes,
 * which this module creates one by one. A formula that cannot be parsed stays as it was written.
 */

/** @typedef {import('../vendor/temml.js').MathTree} MathTree */

const MATHML = 'http://www.w3.org/1998/Math/MathML';
/** Maximum length of a formula in characters. */
const LONGEST = 4000;

const TAGS = new Set(
  (
    'math mrow mi mn mo mtext mspace ms mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts ' +
    'mprescripts none mtable mtr mtd mstyle mpadded mphantom menclose semantics merror'
  ).split(' '),
);
const ATTRIBUTES = new Set(
  (
    'display displaystyle scriptlevel mathvariant accent accentunder stretchy symmetric fence separator form largeop ' +
    'movablelimits lspace rspace minsize maxsize width height depth voffset linethickness columnalign rowspacing ' +
    'columnspacing columnlines rowlines columnspan rowspan notation mathcolor mathbackground'
  ).split(' '),
);
const STYLES = new Set(
  (
    'color textAlign width padding paddingLeft paddingRight border borderTop borderBottom borderLeft borderRight ' +
    'fontWeight fontStyle mathDepth mathShift textTransform'
  ).split(' '),
);

/**
 * @param {MathTree} tree
 * @returns {Node}
 */
function nodeOf({ type, text, attributes = {}, style = {}, children = [], classes = [] }) {
  if (type === undefined && text !== undefined) return document.createTextNode(text);
  const made = document.createElementNS(MATHML, type && TAGS.has(type) ? type : 'mrow');
  for (const [name, value] of Object.entries(attributes)) if (ATTRIBUTES.has(name)) made.setAttribute(name, value);
  for (const [name, value] of Object.entries(style)) {
    if (STYLES.has(name)) /** @type {any} */ (made).style[name] = value;
  }
  const own = classes.filter((name) => /^tml-[\w-]+$/.test(name));
  if (own.length > 0) made.setAttribute('class', own.join(' '));
  made.append(...children.map((child) => nodeOf(child)));
  return made;
}

/**
 * @param {typeof import('../vendor/temml.js').default} temml
 * @param {string} text LaTeX without its delimiters
 * @param {boolean} isBlock
 * @returns {MathTree | null} null if it cannot be parsed
 */
export function parseFormula(temml, text, isBlock) {
  if (!text || text.length > LONGEST) return null;
  try {
    return temml.__renderToMathMLTree(text, {
      displayMode: isBlock,
      throwOnError: true,
      trust: false,
      maxExpand: 200,
      maxSize: [25, 25],
    });
  } catch {
    return null;
  }
}

/** @param {string} text @param {boolean} isBlock @returns {Promise<Node | null>} null if it cannot be parsed */
export async function formulaNode(text, isBlock) {
  const { default: temml } = await import('../vendor/temml.js');
  const tree = parseFormula(temml, text, isBlock);
  if (!tree) return null;
  const node = nodeOf(tree);
  // Screen readers that cannot read formulas read the text as it was written.
  if (node instanceof Element) node.setAttribute('alttext', text);
  return node;
}
