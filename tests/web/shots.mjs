/**
 * Pictures of every page: desktop and phone, light and dark, at rest and in conversation with a model that
 * really answers. What a camera sees is drawn (`scene.svg`).
 *
 *     node tests/web/shots.mjs --wav speech.wav [--out .shots] [--looks desktop-light,phone-dark] [page …]
 *     node tests/web/shots.mjs --wav speech.wav --docs
 *
 * `--docs` makes those that the documentation shows, where it looks for them, and the page that shows them.
 */

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { ON_PHONES, writeGallery } from './gallery.mjs';
import { findBrowser, launch, openContext } from './support/browser.mjs';
import { activity, hangUp, mainButton, openSettings, phase } from './support/page.mjs';
import { startServer } from './support/server.mjs';

const { values: flags, positionals: wanted } = parseArgs({
  options: {
    wav: { type: 'string' },
    out: { type: 'string', default: '.shots' },
    docs: { type: 'boolean' },
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

/** What an image may take of the bytes that a better one would. */
const QUALITY = 82;

const main = mainButton;
const live = async (page) => {
  await main(page).click();
  await phase(page, 'live');
};
const speaking = async (page) => {
  await activity(page, 'speaking');
  // Until some of its words have been heard.
  await page.waitForTimeout(1500);
};
/** A call from the first word to the end, and the address of its recording. */
const call = async (page) => {
  await page.goto('/audio_duplex');
  await live(page);
  await speaking(page);
  await activity(page, 'listening');
  await hangUp(page);
  return await page.locator('.after a[href*="/s/"]').getAttribute('href');
};
const ask = async (page, text) => {
  const answers = page.locator('.message.assistant');
  const before = await answers.count();
  await page.locator('.compose textarea').fill(text);
  await page.keyboard.press('Enter');
  await answers.nth(before).waitFor();
  await page.locator('.status-line').waitFor({ state: 'hidden' });
};

/** name → address and what to do before the picture */
const PAGES = {
  home: ['/', null],
  explore: ['/explore', null, { fullPage: true }],
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
    async (page) => {
      await openSettings(page);
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
      await live(page);
      await speaking(page);
    },
  ],
  chat: ['/turnbased', null],
  'chat-answer': [
    '/turnbased',
    async (page) => {
      for (const text of ['What is seven plus five?', 'What is the opposite of happy?']) await ask(page, text);
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
      await live(page);
      await page.waitForTimeout(3500);
    },
  ],
  replay: [
    '/',
    async (page) => {
      const address = await call(page);
      await page.goto(address);
      // Once the server has mixed it.
      await page.locator('.media audio').waitFor();
      await page.waitForTimeout(900);
    },
  ],
  privacy: ['/privacy', null, { fullPage: true }],
  about: ['/about', async (page) => page.waitForTimeout(500)],
  recordings: [
    '/turnbased',
    async (page) => {
      await ask(page, 'What is the capital of Italy?');
      await call(page);
      await page.goto('/recordings');
      await page.locator('.recent a').first().waitFor();
    },
  ],
  admin: ['/admin', async (page) => page.waitForTimeout(1200)],
};

/** A drawing as a film for the camera: one picture, again and again. @param {string} name */
async function filmOf(name) {
  const browser = await launch({ isWhole: true });
  const page = await browser.newPage({ viewport: { width: 1280, height: 720 } });
  await page.setContent(`<body style="margin:0">${readFileSync(new URL(name, import.meta.url), 'utf8')}`);
  const picture = await page.screenshot({ type: 'jpeg', quality: 92 });
  await browser.close();
  const path = join(flags.out, 'scene.mjpeg');
  writeFileSync(path, picture);
  return path;
}

/** WebP, which takes a third of what PNG does. @param {import('playwright-core').Page} page @param {string} path @param {boolean} [isWhole] */
async function save(page, path, isWhole = false) {
  const session = await page.context().newCDPSession(page);
  const { cssContentSize: size } = await session.send('Page.getLayoutMetrics');
  const clip = isWhole ? { clip: { x: 0, y: 0, width: size.width, height: size.height, scale: 1 } } : {};
  const how = { format: 'webp', quality: QUALITY, captureBeyondViewport: isWhole, ...clip };
  const { data } = await session.send('Page.captureScreenshot', how);
  writeFileSync(path, Buffer.from(data, 'base64'));
}

if (!findBrowser()) {
  console.log('skipped: no Chromium here (apt-get install chromium)');
  process.exit(77);
}
/** Name and look of each picture, page by page. @returns {[string, string][]} */
function wantedPictures() {
  const looks = flags.looks && !flags.docs ? flags.looks.split(',') : Object.keys(LOOKS);
  const names = wanted.length > 0 ? wanted : Object.keys(PAGES);
  const isShown = (/** @type {string} */ name, /** @type {string} */ look) =>
    !flags.docs || look.startsWith('desktop') || ON_PHONES.includes(name);
  return names.flatMap((name) =>
    looks.filter((look) => isShown(name, look)).map((look) => /** @type {[string, string]} */ ([name, look])),
  );
}

const out = flags.docs ? new URL('../../docs/images/', import.meta.url).pathname : flags.out;
mkdirSync(out, { recursive: true });
mkdirSync(flags.out, { recursive: true });
const server = await startServer(flags.python, { model: flags.model, replays: true });
const browser = await launch({ wav: flags.wav, film: await filmOf('scene.svg'), isWhole: true });
for (const [name, look] of wantedPictures()) {
  const [path, prepare, how] = PAGES[name];
  const { locale = 'en-GB', ...options } = LOOKS[look];
  const { context } = await openContext(browser, server.base, { options: { locale, ...options }, expected: [/.*/] });
  const page = await context.newPage();
  try {
    await page.goto(path);
    await page.waitForLoadState('networkidle');
    await prepare?.(page, look.startsWith('phone'));
    await page.waitForTimeout(300);
    await save(page, join(out, `${name}-${look}.webp`), how?.fullPage);
    console.log(`${name}-${look}`);
  } catch (error) {
    console.log(`FAIL ${name}-${look}: ${error.message}`);
    process.exitCode = 1;
  }
  await context.close();
}
if (flags.docs) writeGallery();
await browser.close();
await server.stop();
