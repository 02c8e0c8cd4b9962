/**
 * What only a browser with a window shows: permissions that are denied, and a page of another machine that is trusted
 * by its name. The shell that other scenarios run in grants every device.
 */

import assert from 'node:assert/strict';

import { allow, launch, openContext } from './support/browser.mjs';
import {
  assertHeard,
  hangUp,
  hearTurn,
  mainButton,
  messagesOf,
  noteSupply,
  phase,
  tap,
  wiretap,
} from './support/page.mjs';
import { envelope } from './support/sound.mjs';

/** Without motion, but with sound as everybody has it. */
const STILL = { options: { reducedMotion: /** @type {const} */ ('reduce') } };

export const wholeScenarios = {
  /** One browser for all three, which is started for them. */
  async whole_browser({ wav, base, elsewhere }) {
    const browser = await launch({ wav, elsewhere, isWhole: true });
    try {
      const { context, errors } = await openContext(browser, base, STILL);
      await deniedMicrophone({ page: await context.newPage(), context, base });
      await withoutCamera({ page: await context.newPage(), context, base });
      assert.deepEqual(errors, []);
      return await smallSound({ browser, elsewhere });
    } finally {
      await browser.close();
    }
  },
};

async function deniedMicrophone({ page, context, base }) {
  await allow(context, base, []);
  const wire = wiretap(page);
  await page.goto('/half_duplex');
  await mainButton(page).click();
  await page.getByText('The microphone is not allowed here.').waitFor();
  assert.ok(await page.getByText('Click the icon to the left of the address bar').isVisible());
  assert.equal(wire.urls.length, 0, 'no place is taken');
  assert.equal(await page.locator('main').getAttribute('data-phase'), 'idle');
}

async function withoutCamera({ page, context, base }) {
  await allow(context, base, ['microphone']);
  const wire = wiretap(page);
  await page.goto('/omni');
  await page.getByRole('button', { name: 'Turn the camera off' }).click();
  await mainButton(page).click();
  await phase(page, 'live');
  await wire.sends(2, ({ type }) => type === 'input_audio_buffer.append');
  assert.ok(wire.sent.every(({ message }) => !message.video_frames?.length));
  await page.getByText('The camera is off').waitFor();
  await allow(context, base, []);
  await page.getByRole('button', { name: 'Use the microphone again' }).click();
  await page.getByText('The microphone is not allowed here.').waitFor();
  await hangUp(page);
}

async function smallSound({ browser, elsewhere }) {
  // A server of another name is another machine to the page: sound crosses as Opus.
  const { context, errors } = await openContext(browser, elsewhere, STILL);
  try {
    const page = await context.newPage();
    const wire = wiretap(page);
    await page.goto('/audio_duplex');
    await tap(page);
    await noteSupply(page);
    await mainButton(page).click();
    const { said, isLate } = await hearTurn(page);
    await hangUp(page);

    const units = wire.sent.filter(({ message }) => message.type === 'input_audio_buffer.append');
    assert.ok(units.length > 75, 'pieces of 40 ms');
    // Beside the sound: the message's type, and how much of the answer has been played.
    assert.ok(units.every(({ sound, bytes }) => sound.length > 2 && sound.length < 400 && bytes - sound.length < 200));
    const sounds = messagesOf(wire, isLate).map(({ sound }) => [...sound]);
    const { likeness } = assertHeard(said.levels, envelope(await page.evaluate(decoded, sounds), 48000), said.gaps);
    assert.deepEqual(errors, []);
    const perS = (25 * units.reduce((sum, { bytes }) => sum + bytes, 0)) / units.length;
    return `${(perS / 1000).toFixed(1)} KB of sound a second, likeness ${likeness.toFixed(3)}`;
  } finally {
    await context.close();
  }
}

/** In the page, without its code: the samples in messages of Opus, 48 kHz. @param {number[][]} messages */
async function decoded(messages) {
  const samples = [];
  const decoder = new AudioDecoder({
    output(data) {
      const part = new Float32Array(data.numberOfFrames);
      data.copyTo(part, { planeIndex: 0, format: 'f32-planar' });
      samples.push(...part);
    },
    error: console.error,
  });
  decoder.configure({ codec: 'opus', sampleRate: 48000, numberOfChannels: 1 });
  for (const bytes of messages)
    for (let at = 0; at < bytes.length; ) {
      const size = 256 * bytes[at] + bytes[at + 1];
      const data = Uint8Array.from(bytes.slice(at + 2, at + 2 + size));
      decoder.decode(new EncodedAudioChunk({ type: 'key', timestamp: 0, data }));
      at += 2 + size;
    }
  await decoder.flush();
  return samples;
}
