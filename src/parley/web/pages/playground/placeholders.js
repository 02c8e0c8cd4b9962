/** Placeholders in a message of the playground for a second of silence and for a picture. */

import { encodeBytes, encodePcm } from '../../wire/codec.js';

/** @typedef {import('./dialects.js').Dialect} Dialect */

const SECOND = 16000;

/** A red disc on white: JPEG, base64. */
function drawing() {
  const canvas = Object.assign(document.createElement('canvas'), { width: 320, height: 240 });
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  pen.fillStyle = '#fff';
  pen.fillRect(0, 0, 320, 240);
  pen.fillStyle = '#d22';
  pen.arc(160, 120, 80, 0, 2 * Math.PI);
  pen.fill();
  return canvas.toDataURL('image/jpeg').split(',')[1];
}

/** Returns the message with its placeholders replaced. @param {string} text JSON @param {Dialect} dialect */
export function filled(text, dialect) {
  const message = JSON.parse(text);
  const silence = () =>
    dialect.id === 'openai_realtime' ? encodeBytes(new Uint8Array(48000)) : encodePcm(new Float32Array(SECOND));
  return JSON.parse(JSON.stringify(message), (_, value) => {
    if (value === '$SILENCE') return silence();
    return typeof value === 'string' && value.endsWith('$PICTURE') ? value.replace('$PICTURE', drawing()) : value;
  });
}
