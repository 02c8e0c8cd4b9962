/**
 * Chromium with a microphone that plays a file and a camera that draws a test picture.
 *
 * Every page is watched: an error in its console, an exception or a violated content policy fails the
 * run, unless a test says beforehand that it expects one.
 */

import { existsSync } from 'node:fs';

import { chromium } from 'playwright-core';

const PLACES = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];

/** The same browser without its window, which costs a third of the processor time of most tests; Debian: chromium-headless-shell. */
const SHELL_PLACES = [process.env.CHROMIUM_SHELL, '/usr/bin/chromium-headless-shell'];

const find = (/** @type {(string | undefined)[]} */ places) => places.find((place) => place && existsSync(place));

/** @returns {string | undefined} */
export const findBrowser = () => find(PLACES);

/** Fewer processes cost less: graphics, sound and network are the browser's own. */
const ONE_PROCESS = ['--in-process-gpu', '--enable-features=NetworkServiceInProcess2'];

/**
 * @param {{wav?: string, film?: string, fps?: number, devices?: boolean, isWhole?: boolean, elsewhere?: string}} [options] wav: what the
 *   microphone hears, again and again; film: what the camera sees, MJPEG; fps: pictures a second of the camera that
 *   draws, which cost a processor without a graphics card more than anything else; devices: false for a machine without microphone and camera;
 *   isWhole: with its window and its questions: only then permissions can be denied; elsewhere: the address of a server
 *   on this machine, `http://name:port`, that pages of a whole browser take for another machine's, and for safe all the
 *   same
 */
export async function launch({ wav, film, fps = 5, devices = true, isWhole = false, elsewhere } = {}) {
  const shell = isWhole ? undefined : find(SHELL_PLACES);
  return await chromium.launch({
    executablePath: shell ?? findBrowser(),
    headless: true,
    args: [
      ...ONE_PROCESS,
      // The shell cannot ask: devices are granted.
      ...(shell ? ['--use-fake-ui-for-media-stream'] : []),
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      // Pages of one scenario after the other in one process, which has the scripts compiled.
      '--renderer-process-limit=1',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      '--autoplay-policy=no-user-gesture-required',
      // A page that a test makes up comes from no network, and would be kept from the local server.
      `--disable-features=LocalNetworkAccessChecks,AudioServiceOutOfProcess`,
      ...(devices ? [`--use-fake-device-for-media-stream=fps=${fps}`] : []),
      ...(film ? [`--use-file-for-fake-video-capture=${film}`] : []),
      ...(elsewhere
        ? [
            `--host-resolver-rules=MAP ${new URL(elsewhere).hostname} 127.0.0.1`,
            `--unsafely-treat-insecure-origin-as-secure=${elsewhere}`,
          ]
        : []),
      ...(wav ? [`--use-file-for-fake-audio-capture=${wav}`] : []),
    ],
  });
}

/**
 * The context of a person who wants no motion: nothing is drawn sixty times a second then, which costs tests more of a
 * processor than all the rest. Sound comes and goes in blocks of 50 ms instead of 10, and nothing cancels an echo that
 * nobody hears, which together is another sixth.
 *
 * @type {typeof openContext}
 */
export async function openStill(browser, base, how = {}) {
  const opened = await openContext(browser, base, { ...how, options: { reducedMotion: 'reduce', ...how.options } });
  await opened.context.addInitScript(() => {
    const isLively = () => 'isLively' in globalThis;
    globalThis.AudioContext = class extends AudioContext {
      constructor(options) {
        super(isLively() ? options : { ...options, latencyHint: 0.05 });
      }
    };
    // Pages that are not safe have no devices.
    if (!navigator.mediaDevices) return;
    const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    const plain = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    navigator.mediaDevices.getUserMedia = (wishes) =>
      ask(wishes?.audio && !isLively() ? { ...wishes, audio: { ...wishes.audio, ...plain } } : wishes);
  });
  return opened;
}

/** From the next page that is loaded on: motion, and sound as everybody has it. @param {import('playwright-core').Page} page */
export async function makeLively(page) {
  await page.emulateMedia({ reducedMotion: 'no-preference' });
  await page.addInitScript(() => Object.defineProperty(globalThis, 'isLively', { value: true }));
}

const DEVICES = ['microphone', 'camera'];

/** What pages of `base` may use, and nothing else. @param {import('playwright-core').BrowserContext} context @param {string} base */
export async function allow(context, base, permissions = DEVICES) {
  await context.clearPermissions();
  await context.grantPermissions(permissions, { origin: base });
}

/**
 * @param {import('playwright-core').Browser} browser
 * @param {string} base
 * @param {{permissions?: string[], options?: import('playwright-core').BrowserContextOptions, expected?: RegExp[]}} [how]
 */
export async function openContext(
  browser,
  base,
  { permissions = DEVICES, options = {}, expected = [], isNew = false } = {},
) {
  const context = await browser.newContext({ baseURL: base, locale: 'en-GB', ...options });
  await allow(context, base, permissions);
  // A person who has been here before; who is new is asked first.
  if (!isNew) {
    await context.addInitScript(() => {
      try {
        localStorage.setItem('parley.record', localStorage.getItem('parley.record') ?? 'yes');
        localStorage.setItem('parley.explained', 'yes');
      } catch {
        // A page without an origin keeps nothing.
      }
    });
  }
  context.setDefaultTimeout(60_000);
  /** @type {string[]} */
  const errors = [];
  const note = (text) => {
    if (!expected.some((pattern) => pattern.test(text))) errors.push(text);
  };
  context.on('page', (page) => {
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type()))
        note(`${message.type()}: ${message.text()} (${message.location().url})`);
    });
    page.on('pageerror', (error) => note(`exception: ${error.stack ?? error.message}`));
    page.on('requestfailed', (request) => {
      const why = request.failure()?.errorText ?? '';
      if (why !== 'net::ERR_ABORTED') note(`failed: ${request.url()} ${why}`);
    });
  });
  return { context, errors, expected };
}
