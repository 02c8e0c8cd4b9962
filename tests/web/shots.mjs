/**
 * Pictures of every page: desktop and phone, light and dark, at rest and in conversation.
 *
 *     node tests/web/shots.mjs --wav speech.wav --out .shots [page …]
 */

import { mkdirSync } from 'node:fs';
import { parseArgs } from 'node:util';

import { findBrowser, launch, openContext } from './support/browser.mjs';
import { mockRecording } from './support/recording.mjs';
import { startServer } from './support/server.mjs';

const { values: flags, positionals: wanted } = parseArgs({
  options: {
    wav: { type: 'string' },
    out: { type: 'string', default: '.shots' },
    python: { type: 'string', default: '.venv/bin/python' },
    looks: { type: 'string' },
    model: { type: 'string', default: 'pocket' },
  },
  allowPositionals: true,
});

const LOOKS = {
  'desktop-light': { viewport: { width: 1360, height: 850 }, colorScheme: 'light' },
  'desktop-dark': { viewport: { width: 1360, height: 850 }, colorScheme: 'dark' },
  'phone-light': {
    viewport: { width: 390, height: 844 },
    colorScheme: 'light',
    hasTouch: true,
    isMobile: true,
    deviceScaleFactor: 2,
  },
  'phone-dark': {
    viewport: { width: 390, height: 844 },
    colorScheme: 'dark',
    hasTouch: true,
    isMobile: true,
    deviceScaleFactor: 2,
    locale: 'zh-CN',
  },
};

const main = (page) => page.locator('.dock .main');
const live = async (page) => {
  await main(page).click();
  await page.waitForSelector('main[data-phase="live"]');
};
const speaking = (page) =>
  page.waitForSelector('main[data-activity="speaking"]', { timeout: 45_000 }).then(() => page.waitForTimeout(1500));

/** name → address and what to do before the picture */
const PAGES = {
  home: ['/', null],
  'home-whole': ['/', null, { fullPage: true }],
  call: ['/audio_duplex', null],
  'call-speaking': [
    '/audio_duplex',
    async (page) => {
      await live(page);
      await speaking(page);
    },
  ],
  'call-settings': [
    '/audio_duplex',
    async (page, isPhone) => {
      if (isPhone) await page.locator('.dock .right .round').last().click();
      else await page.locator('#tab-settings').click();
      await page.locator('#panel-settings details').nth(3).locator('summary').click();
      await page.waitForTimeout(500);
    },
  ],
  'call-denied': [
    '/half_duplex',
    async (page) => {
      await page.context().clearPermissions();
      await main(page).click();
      await page.waitForSelector('.notice');
    },
  ],
  'half-duplex': [
    '/half_duplex',
    async (page) => {
      await live(page);
      await speaking(page);
    },
  ],
  queue: [
    '/half_duplex',
    async (page) => {
      const other = await page.context().newPage();
      await other.goto('/audio_duplex');
      await live(other);
      await page.bringToFront();
      await main(page).click();
      await page.waitForSelector('p-queue:not([hidden])');
      await page.waitForTimeout(800);
    },
  ],
  omni: [
    '/omni',
    async (page) => {
      await page.locator('.placeholder').click();
      await live(page);
      await speaking(page);
    },
  ],
  chat: ['/turnbased', null],
  'chat-answer': [
    '/turnbased',
    async (page) => {
      for (const text of ['What is seven plus five?', 'What is the opposite of happy?']) {
        await page.locator('.compose textarea').fill(text);
        await page.keyboard.press('Enter');
        await page.waitForTimeout(1500);
      }
    },
  ],
  'chat-settings': [
    '/turnbased',
    async (page) => {
      await page.locator('.bar button').last().click();
      await page.waitForTimeout(400);
    },
  ],
  realtime: [
    '/realtime',
    async (page) => {
      await page.locator('.placeholder').click();
      await live(page);
      await page.waitForTimeout(3500);
    },
  ],
  viewer: [
    '/s/demo_recording',
    async (page) => {
      await page.locator('.said .line').first().waitFor();
      await page.waitForTimeout(900);
    },
    { fullPage: true },
  ],
  privacy: ['/privacy', null, { fullPage: true }],
  recordings: ['/recordings', null],
  admin: ['/admin', async (page) => page.waitForTimeout(1200), { fullPage: true }],
};

if (!findBrowser()) {
  console.log('skipped: no Chromium here (apt-get install chromium)');
  process.exit(77);
}
mkdirSync(flags.out, { recursive: true });
const server = await startServer(flags.python, { model: flags.model });
const browser = await launch({ wav: flags.wav });
for (const [look, { locale, ...options }] of Object.entries(LOOKS).filter(
  ([name]) => !flags.looks || flags.looks.split(',').includes(name),
)) {
  for (const name of wanted.length > 0 ? wanted : Object.keys(PAGES)) {
    const [path, prepare, how] = PAGES[name];
    const { context } = await openContext(browser, server.base, {
      options: { locale: locale ?? 'en-GB', ...options },
      expected: [/.*/],
    });
    const page = await context.newPage();
    try {
      if (name === 'viewer') await mockRecording(page);
      await page.goto(path);
      await page.waitForLoadState('networkidle');
      await prepare?.(page, look.startsWith('phone'));
      await page.waitForTimeout(300);
      await page.screenshot({ path: `${flags.out}/${name}-${look}.png`, ...how });
      console.log(`${name}-${look}`);
    } catch (error) {
      console.log(`FAIL ${name}-${look}: ${error.message}`);
      process.exitCode = 1;
    }
    await context.close();
  }
}
await browser.close();
await server.stop();
