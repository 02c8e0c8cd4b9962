/** The part of markdown-it that the pages use. */

export interface Token {
  type: string;
  tag: string;
  nesting: -1 | 0 | 1;
  content: string;
  info: string;
  markup: string;
  hidden: boolean;
  level: number;
  map: [number, number] | null;
  children: Token[] | null;
  attrGet(name: string): string | null;
}
export interface InlineState {
  src: string;
  pos: number;
  posMax: number;
  push(type: string, tag: string, nesting: number): Token;
}
export interface BlockState {
  src: string;
  line: number;
  sCount: number[];
  blkIndent: number;
  bMarks: number[];
  tShift: number[];
  eMarks: number[];
  getLines(from: number, to: number, indent: number, keepLastBreak: boolean): string;
  push(type: string, tag: string, nesting: number): Token;
}
export default class MarkdownIt {
  constructor(options: { html: boolean; linkify: boolean; breaks: boolean; maxNesting: number });
  linkify: { set(options: Record<string, boolean>): void };
  inline: { ruler: { before(at: string, name: string, rule: (state: InlineState, silent: boolean) => boolean): void } };
  block: {
    ruler: {
      before(
        at: string,
        name: string,
        rule: (state: BlockState, start: number, end: number, silent: boolean) => boolean,
        how: { alt: string[] },
      ): void;
    };
  };
  disable(names: string[]): this;
  parse(text: string, env: object): Token[];
}
