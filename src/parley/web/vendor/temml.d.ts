/** The part of Temml that the pages use: a formula as a tree of values. */

export interface MathTree {
  type?: string;
  text?: string;
  attributes?: Record<string, string>;
  classes?: string[];
  style?: Record<string, string>;
  children?: MathTree[];
  toMarkup(): string;
}
declare const temml: {
  __renderToMathMLTree(
    formula: string,
    options: { displayMode: boolean; throwOnError: true; trust: false; maxExpand: number; maxSize: [number, number] },
  ): MathTree;
};
export default temml;
