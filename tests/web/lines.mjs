/** What the best machine does not show: slow lines, slow processors, and proxies. */

import assert from 'node:assert/strict';

import { openStill } from './support/browser.mjs';
import { activity, hangUp, mainButton, phase, until, wiretap } from './support/page.mjs';
import { startBelow, startProxy } from './support/proxy.mjs';

/** 200 ms there and back, one packet in a hundred lost, 1 Mbit/s. */
const LINE = { delayMs: 100, bytesPerS: 125_000, loss: 0.01 };
/** 50 to 400 ms each way, and pauses of one second. */
const JITTER = { delayMs: 50, jitterMs: 350, pauses: 0.02 };

export const lineScenarios = {
  /** A half-duplex call over a network whose delays vary stays connected, and both sides are understood. */
  async jittery_line({ browser, base }) {
    const proxy = await startProxy(Number(new URL(base).port), JITTER);
    const { context, errors } = await openStill(browser, proxy.base);
    try {
      const page = await context.newPage();
      const wire = wiretap(page);
      await page.goto('/half_duplex', { timeout: 60_000 });
      await mainButton(page).click();
      for (let turn = 0; turn < 3; turn++) {
        await activity(page, 'speaking');
        await activity(page, 'listening');
      }
      await hangUp(page);
      const words = await page.locator('p-transcript').textContent();
      assert.equal(wire.urls.length, 1, 'one connection for the whole call');
      assert.doesNotMatch(words, /connection/i);
      assert.deepEqual(errors, []);
      const { length } = wire.types(wire.got).filter((type) => type === 'turn_done');
      assert.ok(length >= 3);
      return `${length} turns`;
    } finally {
      await context.close();
      proxy.stop();
    }
  },

  async slow_line({ browser, base }) {
    const proxy = await startProxy(Number(new URL(base).port), LINE);
    const { context, errors } = await openStill(browser, proxy.base);
    try {
      const page = await context.newPage();
      const wire = wiretap(page);
      const from = Date.now();
      await page.goto('/audio_duplex', { timeout: 60_000 });
      await mainButton(page).waitFor({ timeout: 60_000 });
      const toButtonMs = Date.now() - from;
      await mainButton(page).click();
      await phase(page, 'live');
      await activity(page, 'speaking');
      await activity(page, 'listening');
      const dropped = await page.locator('p-metrics div', { hasText: 'Seconds dropped' }).locator('dd').textContent();
      await hangUp(page);
      const answers = wire.types(wire.got).filter((type) => /listen|delta/.test(type)).length;
      assert.ok(answers > 3, `${answers} answers`);
      assert.equal(wire.urls.length, 1, 'the line was slow, not lost');
      assert.deepEqual(errors, []);
      return `button after ${toButtonMs} ms, ${answers} answers, ${dropped.trim()} dropped`;
    } finally {
      await context.close();
      proxy.stop();
    }
  },

  async below_a_path({ browser, base }) {
    // A proxy serves everything below /voice/ and strips it; nothing of ours may be asked for elsewhere.
    const proxy = await startBelow(Number(new URL(base).port), '/voice/');
    const { context, errors } = await openStill(browser, proxy.origin);
    try {
      const page = await context.newPage();
      const wire = wiretap(page);
      await page.goto(`${proxy.base}explore`);
      await page.locator('.cards a').first().click();
      await page.waitForURL('**/voice/audio_duplex');
      await mainButton(page).click();
      await activity(page, 'speaking');
      await until(page, () => document.querySelector('.caption')?.textContent.trim());
      await hangUp(page);
      assert.match(wire.urls[0], /\/voice\/v1\/realtime\?/);
      const opening = context.waitForEvent('page');
      await page.getByRole('link', { name: 'View recording' }).click();
      const viewer = await opening;
      await viewer.locator('.said .line').first().waitFor();
      await until(viewer, () => document.querySelector('.media audio')?.readyState > 0);
      await page.goto(`${proxy.base}turnbased`);
      await page.locator('.compose textarea').fill('Hello there');
      await page.keyboard.press('Enter');
      await page.locator('.message.assistant .body').getByText('Hello').first().waitFor();
      await page.goto(`${proxy.base}mobile-omni`);
      await page.waitForURL('**/voice/mobile-omni/');
      await mainButton(page).waitFor();
      await page.goto(`${proxy.base}half_duplex`);
      await mainButton(page).click();
      await activity(page, 'listening');
      await hangUp(page);
      for (const path of ['recordings', 'privacy', 'admin']) {
        await page.goto(proxy.base + path);
        await page.locator('h1').waitFor();
        await page.waitForLoadState('networkidle');
      }
      await page.locator('.brand').click();
      await page.waitForURL(proxy.base);
      assert.deepEqual(proxy.strays, []);
      assert.deepEqual(errors, []);
    } finally {
      await context.close();
      proxy.stop();
    }
  },

  async slow_processor({ page, context }) {
    const wire = wiretap(page);
    const session = await context.newCDPSession(page);
    await session.send('Emulation.setCPUThrottlingRate', { rate: 6 });
    await page.goto('/audio_duplex');
    await mainButton(page).waitFor();
    const readyMs = await page.evaluate(() => performance.now());
    await mainButton(page).click();
    await phase(page, 'live');
    await wire.has(({ type }) => /^response\./.test(type));
    const gaps = await page.locator('p-metrics div', { hasText: /^Gaps/ }).locator('dd').textContent();
    await session.send('Emulation.setCPUThrottlingRate', { rate: 1 });
    await hangUp(page);
    return `button after ${Math.round(readyMs)} ms, gaps ${gaps.trim()}`;
  },
};
