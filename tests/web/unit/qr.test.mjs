import assert from 'node:assert/strict';
import { test } from 'node:test';

import jsqr from 'jsqr';

import { qr } from '../../../src/parley/web/elements/qr.js';

/** What the camera of a phone would read. */
function readBack(code) {
  const zoom = 4;
  const side = (code.length + 8) * zoom;
  const pixels = new Uint8ClampedArray(side * side * 4).fill(255);
  for (const [y, row] of code.entries()) {
    for (const [x, isDark] of row.entries()) {
      for (let i = 0; isDark && i < zoom * zoom; i++) {
        const at = (((y + 4) * zoom + Math.floor(i / zoom)) * side + (x + 4) * zoom + (i % zoom)) * 4;
        pixels.fill(0, at, at + 3);
      }
    }
  }
  return (jsqr.default ?? jsqr)(pixels, side, side)?.data;
}

test('a QR code is read back as the address it was made of', () => {
  for (const length of [12, 26, 42, 62, 84, 106, 122, 152, 180, 213]) {
    const address = `https://talk.example.org:8006/${'päge-'.repeat(50)}`.slice(0, length - 4);
    let text = address;
    while (new TextEncoder().encode(text).length > length) text = text.slice(0, -1);
    assert.equal(readBack(qr(text)), text, `${length} bytes`);
  }
  assert.throws(() => qr('x'.repeat(214)), /too long/);
});
