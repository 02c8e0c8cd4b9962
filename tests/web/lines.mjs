/** What the best machine does not show: slow lines, slow processors, long words, and no mouse at all. */

import assert from 'node:assert/strict';

import { launch, openContext, openStill } from './support/browser.mjs';
import { activity, hangUp, heard, hearOn, mainButton, phase, tap, until, wiretap } from './support/page.mjs';
import { startBelow, startProxy } from './support/proxy.mjs';
import { mockRecording } from './support/recording.mjs';
import { startServer } from './support/server.mjs';
import { compareSound, envelope } from './support/sound.mjs';

/** 200 ms there and back, one packet in a hundred lost, 1 Mbit/s. */
const LINE = { delayMs: 100, bytesPerS: 125_000, loss: 0.01 };
const PAGES = [
  '/',
  '/turnbased',
  '/half_duplex',
  '/audio_duplex',
  '/omni',
  '/realtime',
  '/recordings',
  '/privacy',
  '/about',
  '/admin',
  '/s/demo_recording',
];

export const lineScenarios = {
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
      await tap(page);
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

  async small_sound({ wav, python }) {
    // A server of another name is another machine to the page: sound crosses as 16-bit samples.
    const env = { PARLEY_SECURITY__ALLOWED_HOSTS: 'parley.test' };
    const server = await startServer(python, { env });
    const elsewhere = `http://parley.test:${server.port}`;
    const browser = await launch({ wav, elsewhere });
    try {
      const { context, errors } = await openStill(browser, elsewhere);
      const page = await context.newPage();
      const wire = wiretap(page);
      await page.goto('/audio_duplex');
      await tap(page);
      await mainButton(page).click();
      await activity(page, 'speaking');
      await activity(page, 'listening');
      await hearOn(page, 0.5);
      const { levels } = await heard(page);
      await hangUp(page);

      const units = wire.sent.filter(({ message }) => message.type === 'input_audio_buffer.append');
      const answers = wire.got.filter(({ message }) => message.type === 'response.output_audio.delta');
      assert.ok(units.length > 3 && units.every(({ sound }) => sound.length === 16_000 * 2));
      // Beside the samples: the message's type, and how much of the answer has been played.
      assert.ok(units.every(({ bytes }) => bytes < 16_000 * 2 + 250));
      const turn = answers.slice(0, answers.findIndex(({ message }) => message.end_of_turn) + 1);
      assert.ok(turn.every(({ sound }) => sound.length % 2 === 0));
      const said = turn.flatMap(({ sound }) =>
        Array.from({ length: sound.length / 2 }, (_, i) => sound.readInt16LE(2 * i) / 32768),
      );
      const { likeness } = compareSound(levels, envelope(said, 24000));
      assert.ok(likeness > 0.95, `heard as it was sent: ${likeness}`);
      assert.deepEqual(errors, []);
      const published = Math.ceil((16_000 * 4) / 3) * 4;
      return `${Math.round((100 * units[0].bytes) / published)} % of the bytes of a published unit, likeness ${likeness.toFixed(3)}`;
    } finally {
      await browser.close();
      await server.stop();
    }
  },

  async below_a_path({ browser, base }) {
    // A proxy serves everything below /voice/ and strips it; nothing of ours may be asked for elsewhere.
    const proxy = await startBelow(Number(new URL(base).port), '/voice/');
    const { context, errors } = await openStill(browser, proxy.origin);
    try {
      const page = await context.newPage();
      const wire = wiretap(page);
      await page.goto(proxy.base);
      await page.locator('.cards a').first().click();
      await page.waitForURL('**/voice/audio_duplex');
      await mainButton(page).click();
      await activity(page, 'speaking');
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

  async slow_processor({ browser, base }) {
    const { context, errors } = await openContext(browser, base);
    const page = await context.newPage();
    const session = await context.newCDPSession(page);
    await session.send('Emulation.setCPUThrottlingRate', { rate: 6 });
    await page.goto('/audio_duplex');
    await mainButton(page).waitFor();
    const readyMs = await page.evaluate(() => performance.now());
    await mainButton(page).click();
    await phase(page, 'live');
    await page.waitForTimeout(5000);
    const gaps = await page.locator('p-metrics div', { hasText: /^Gaps/ }).locator('dd').textContent();
    await hangUp(page);
    assert.deepEqual(errors, []);
    await context.close();
    return `button after ${Math.round(readyMs)} ms, gaps ${gaps.trim()}`;
  },

  async stress({ browser, base }) {
    // Every word a third longer, as in languages that compound theirs, on the narrowest of phones.
    const options = { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true };
    const { context, errors } = await openStill(browser, base, { options });
    await context.route(/\/words\/en\.js$/, async (route) => {
      const response = await route.fetch();
      const longer = (text) =>
        text.replace(/(?<![{\w])[A-Za-z]{4,}(?![}\w])/g, (word) => word + word.slice(-Math.ceil(word.length / 3)));
      const body = (await response.text()).replace(
        /(^\s*'[\w.]+':\s*')((?:[^'\\]|\\.)*)/gm,
        (_, key, text) => key + longer(text),
      );
      await route.fulfill({ response, body });
    });
    const wide = [];
    for (const path of PAGES) {
      const page = await context.newPage();
      if (path.startsWith('/s/')) await mockRecording(page);
      await page.goto(path);
      await page.waitForLoadState('networkidle');
      for (const open of await page.locator('.dock [aria-expanded]').all()) {
        await open.click();
        await page.waitForTimeout(350);
        wide.push(...(await overflowing(page, path)));
        await page.keyboard.press('Escape');
      }
      wide.push(...(await overflowing(page, path)));
      await page.close();
    }
    assert.deepEqual([...new Set(wide)], []);
    assert.deepEqual(errors, []);
    await context.close();
  },

  async walk({ context }) {
    // Everything that can be pressed is reached by Tab alone, in order, shows that it is, and has a name.
    const counts = [];
    for (const path of PAGES) {
      const page = await context.newPage();
      if (path.startsWith('/s/')) await mockRecording(page);
      await page.goto(path);
      await page.waitForLoadState('networkidle');
      const wanted = await page.evaluate(() => {
        const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')];
        const open = all.filter(
          (node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled && node.tabIndex >= 0,
        );
        for (const [i, node] of open.entries()) node.dataset.walk = String(i);
        return open.length;
      });
      const seen = new Set();
      for (let i = 0; i < wanted + 5; i++) {
        await page.keyboard.press('Tab');
        const here = await page.evaluate(() => {
          const node = document.activeElement;
          if (!node || node === document.body) return null;
          const style = getComputedStyle(node);
          const isShown =
            style.outlineStyle !== 'none' ||
            // The browser's own player shows inside itself which of its buttons has the focus.
            node.matches('audio[controls], video[controls]') ||
            node.closest(':focus-within')?.matches('.compose, .writing') ||
            getComputedStyle(node.closest('form') ?? node).outlineStyle !== 'none';
          return { id: node.dataset.walk ?? '', isShown, what: node.outerHTML.slice(0, 90) };
        });
        if (!here) break;
        assert.ok(here.isShown, `${path}: the focus is not seen on ${here.what}`);
        seen.add(here.id);
      }
      seen.delete('');
      assert.ok(seen.size >= wanted - 1, `${path}: ${seen.size} of ${wanted} are reached`);
      counts.push(`${path} ${seen.size}`);
      await page.close();
    }
    return counts.join(', ');
  },
};

/** What sticks out of the screen, where nothing scrolls it. */
async function overflowing(page, path) {
  return await page.evaluate((where) => {
    const found = [];
    if (document.documentElement.scrollWidth > innerWidth)
      found.push(`${where}: the page is ${document.documentElement.scrollWidth} wide`);
    for (const node of document.querySelectorAll('button, a, p, h1, h2, strong, label, .chip, li')) {
      if (
        !node.checkVisibility({ visibilityProperty: true }) ||
        node.closest('.visually-hidden, .scroll-x, .skip, .toasts, .tabs')
      )
        continue;
      const { left, right, width } = node.getBoundingClientRect();
      if (width > 0 && (right > innerWidth + 1 || left < -1))
        found.push(
          `${where}: ${node.tagName} “${(node.textContent ?? '').trim().slice(0, 40)}” ${Math.round(left)}–${Math.round(right)}`,
        );
    }
    return found;
  }, path);
}
