/**
 * QR code of an address, for the camera of a phone. Byte mode, error correction M, versions 1 to 10 (213 bytes).
 * Source: ISO/IEC 18004.
 *
 * Pure up to `qrNode`.
 */

/**
 * By version, for correction level M: data codewords of each block (of both groups), and correction codewords per
 * block.
 */
const BLOCKS = /** @type {Record<number, {correction: number, data: number[]}>} */ ({
  1: { correction: 10, data: [16] },
  2: { correction: 16, data: [28] },
  3: { correction: 26, data: [44] },
  4: { correction: 18, data: [32, 32] },
  5: { correction: 24, data: [43, 43] },
  6: { correction: 16, data: [27, 27, 27, 27] },
  7: { correction: 18, data: [31, 31, 31, 31] },
  8: { correction: 22, data: [38, 38, 39, 39] },
  9: { correction: 22, data: [36, 36, 36, 37, 37] },
  10: { correction: 26, data: [43, 43, 43, 43, 44] },
});
/** Centres of the alignment patterns, by version. */
const CENTRES = [
  [],
  [],
  [6, 18],
  [6, 22],
  [6, 26],
  [6, 30],
  [6, 34],
  [6, 22, 38],
  [6, 24, 42],
  [6, 26, 46],
  [6, 28, 50],
];

// Arithmetic of GF(256) with x^8 + x^4 + x^3 + x^2 + 1.
const EXP = new Uint8Array(512);
const LOG = new Uint8Array(256);
for (let i = 0, x = 1; i < 255; i++) {
  EXP[i] = EXP[i + 255] = x;
  LOG[x] = i;
  x = x & 128 ? (x << 1) ^ 285 : x << 1;
}
const times = (/** @type {number} */ a, /** @type {number} */ b) => (a && b ? EXP[LOG[a] + LOG[b]] : 0);

/** @param {number[]} data @param {number} count @returns {number[]} the Reed–Solomon correction codewords */
function correction(data, count) {
  let divisor = [1];
  for (let i = 0; i < count; i++) {
    const next = [...divisor, 0];
    for (let j = 0; j < divisor.length; j++) next[j + 1] ^= times(divisor[j], EXP[i]);
    divisor = next;
  }
  const rest = [...data, ...Array(count).fill(0)];
  for (let i = 0; i < data.length; i++) {
    const factor = rest[i];
    if (factor) for (let j = 0; j < divisor.length; j++) rest[i + j] ^= times(divisor[j], factor);
  }
  return rest.slice(data.length);
}

/** @param {Uint8Array} bytes @returns {{version: number, codewords: number[]}} */
function encode(bytes) {
  const version = Object.keys(BLOCKS)
    .map(Number)
    .find((one) => {
      const room = BLOCKS[one].data.reduce((a, b) => a + b, 0);
      return bytes.length + (one < 10 ? 2 : 3) <= room;
    });
  if (!version) throw new Error('too long for a QR code');
  const { correction: count, data: sizes } = BLOCKS[version];
  const room = sizes.reduce((a, b) => a + b, 0);
  /** @type {number[]} */
  const bits = [];
  const put = (/** @type {number} */ value, /** @type {number} */ length) => {
    for (let i = length - 1; i >= 0; i--) bits.push((value >> i) & 1);
  };
  put(4, 4);
  put(bytes.length, version < 10 ? 8 : 16);
  for (const byte of bytes) put(byte, 8);
  put(0, Math.min(4, room * 8 - bits.length));
  while (bits.length % 8) bits.push(0);
  /** @type {number[]} */
  const all = [];
  for (let i = 0; i < bits.length; i += 8) all.push(Number.parseInt(bits.slice(i, i + 8).join(''), 2));
  for (let i = 0; all.length < room; i++) all.push(i % 2 ? 0x11 : 0xec);
  let at = 0;
  const blocks = sizes.map((size) => {
    at += size;
    return all.slice(at - size, at);
  });
  const checks = blocks.map((block) => correction(block, count));
  const woven = (/** @type {number[][]} */ lists) =>
    Array.from({ length: Math.max(...lists.map(({ length }) => length)) }, (_, i) =>
      lists.flatMap((list) => (i < list.length ? [list[i]] : [])),
    ).flat();
  return { version, codewords: [...woven(blocks), ...woven(checks)] };
}

/** @typedef {(boolean | null)[][]} Grid null: free for data */

/** @param {number} version @returns {Grid} the modules that every code of this version has */
function frame(version) {
  const size = version * 4 + 17;
  /** @type {Grid} */
  const grid = Array.from({ length: size }, () => Array(size).fill(null));
  const square = (
    /** @type {number} */ row,
    /** @type {number} */ column,
    /** @type {number} */ reach,
    /** @type {(ring: number) => boolean} */ isDark,
  ) => {
    for (let y = -reach; y <= reach; y++) {
      for (let x = -reach; x <= reach; x++) {
        if (grid[row + y]?.[column + x] !== undefined)
          grid[row + y][column + x] = isDark(Math.max(Math.abs(x), Math.abs(y)));
      }
    }
  };
  const centres = CENTRES[version];
  for (const row of centres) {
    for (const column of centres) {
      const isCorner =
        (row < 10 && column < 10) || (row < 10 && column > size - 10) || (row > size - 10 && column < 10);
      if (!isCorner) square(row, column, 2, (ring) => ring !== 1);
    }
  }
  for (const [row, column] of [
    [3, 3],
    [3, size - 4],
    [size - 4, 3],
  ])
    square(row, column, 4, (ring) => ring !== 2 && ring !== 4);
  for (let i = 8; i < size - 8; i++) grid[6][i] = grid[i][6] = i % 2 === 0;
  return grid;
}

/** @param {number} value @param {number} divisor @param {number} bits */
function remainder(value, divisor, bits) {
  let rest = value << bits;
  for (let i = 31 - Math.clz32(rest); i >= bits; i = 31 - Math.clz32(rest)) rest ^= divisor << (i - bits);
  return rest;
}

/** @param {Grid} grid @param {number} version @param {number} mask */
function writeFormat(grid, version, mask) {
  const size = grid.length;
  // Correction level M is 00.
  const format = ((mask << 10) | remainder(mask, 0b10100110111, 10)) ^ 0b101010000010010;
  const bit = (/** @type {number} */ i) => ((format >> i) & 1) === 1;
  for (let i = 0; i < 15; i++) {
    if (i < 6) grid[i][8] = bit(i);
    else if (i < 8) grid[i + 1][8] = bit(i);
    else grid[size - 15 + i][8] = bit(i);
    if (i < 8) grid[8][size - 1 - i] = bit(i);
    else if (i < 9) grid[8][7] = bit(i);
    else grid[8][14 - i] = bit(i);
  }
  grid[size - 8][8] = true;
  if (version < 7) return;
  const about = (version << 12) | remainder(version, 0b1111100100101, 12);
  for (let i = 0; i < 18; i++) {
    const isDark = ((about >> i) & 1) === 1;
    const [row, column] = [Math.floor(i / 3), (i % 3) + size - 11];
    grid[row][column] = grid[column][row] = isDark;
  }
}

/** @type {((row: number, column: number) => boolean)[]} */
const MASKS = [
  (row, column) => (row + column) % 2 === 0,
  (row) => row % 2 === 0,
  (_, column) => column % 3 === 0,
  (row, column) => (row + column) % 3 === 0,
  (row, column) => (Math.floor(row / 2) + Math.floor(column / 3)) % 2 === 0,
  (row, column) => ((row * column) % 2) + ((row * column) % 3) === 0,
  (row, column) => (((row * column) % 2) + ((row * column) % 3)) % 2 === 0,
  (row, column) => (((row + column) % 2) + ((row * column) % 3)) % 2 === 0,
];

/** @param {Grid} grid @param {number[]} codewords @param {number} mask */
function writeData(grid, codewords, mask) {
  const size = grid.length;
  let at = 0;
  for (let right = size - 1; right > 0; right -= 2) {
    if (right === 6) right = 5;
    const goesUp = ((right + 1) & 2) === 0;
    for (let i = 0; i < size; i++) {
      const row = goesUp ? size - 1 - i : i;
      for (const column of [right, right - 1]) {
        if (grid[row][column] !== null) continue;
        const isDark = ((codewords[at >> 3] >> (7 - (at & 7))) & 1) === 1;
        grid[row][column] = isDark !== MASKS[mask](row, column);
        at++;
      }
    }
  }
}

/** Returns the penalty of a code: long runs, blocks, and an uneven share of dark modules. @param {Grid} grid */
function penalty(grid) {
  const size = grid.length;
  let points = 0;
  const columns = grid.map((_, x) => grid.map((row) => row[x]));
  for (const lines of [grid, columns]) {
    for (const line of lines) {
      const text = line.map(Number).join('');
      for (const [run] of text.matchAll(/0{5,}|1{5,}/g)) points += run.length - 2;
      for (const _ of text.matchAll(/(?=10111010000|00001011101)/g)) points += 40;
    }
  }
  for (let y = 0; y + 1 < size; y++) {
    for (let x = 0; x + 1 < size; x++) {
      const sum = Number(grid[y][x]) + Number(grid[y][x + 1]) + Number(grid[y + 1][x]) + Number(grid[y + 1][x + 1]);
      if (sum % 4 === 0) points += 3;
    }
  }
  const dark = grid.flat().filter(Boolean).length / size ** 2;
  return points + Math.floor(Math.abs(dark * 20 - 10)) * 10;
}

/** @param {string} text @returns {boolean[][]} rows of modules, true if dark */
export function qr(text) {
  const { version, codewords } = encode(new TextEncoder().encode(text));
  const codes = MASKS.map((_, mask) => {
    const grid = frame(version);
    writeFormat(grid, version, mask);
    writeData(grid, codewords, mask);
    return grid;
  });
  return /** @type {boolean[][]} */ (codes.reduce((best, code) => (penalty(code) < penalty(best) ? code : best)));
}

const SVG = 'http://www.w3.org/2000/svg';

/** @param {string} text @param {string} label description for screen readers */
export function qrNode(text, label) {
  const code = qr(text);
  const side = code.length + 8;
  const svg = document.createElementNS(SVG, 'svg');
  const path = document.createElementNS(SVG, 'path');
  const squares = code.flatMap((row, y) => row.flatMap((isDark, x) => (isDark ? [`M${x + 4} ${y + 4}h1v1h-1z`] : [])));
  path.setAttribute('d', squares.join(''));
  for (const [name, value] of Object.entries({
    viewBox: `0 0 ${side} ${side}`,
    role: 'img',
    'aria-label': label,
    class: 'qr',
  })) {
    svg.setAttribute(name, value);
  }
  svg.append(path);
  return svg;
}
