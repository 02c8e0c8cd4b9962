/**
 * Calls, chat and replay in Firefox, driven by WebDriver BiDi. Its microphone plays a tone and its camera
 * draws a picture; no addition to the browser is needed. A machine without a sound card needs a PulseAudio
 * (Debian: pulseaudio), of which a private one is started.
 */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';

import playwright from 'playwright-core';

import { activity, eventually, hangUp, mainButton, phase, pressMore, until } from './support/page.mjs';
import { startBelow } from './support/proxy.mjs';

const PLACES = [process.env.FIREFOX, '/usr/bin/firefox-esr', '/usr/bin/firefox'];
export const findFirefox = () => PLACES.find((place) => place && existsSync(place));

const PREFERENCES = {
  // Nothing is drawn sixty times a second then.
  'ui.prefersReducedMotion': 1,
  'layout.frame_rate': 5,
  // One process for pages, and none that waits for the next.
  'fission.autostart': false,
  'dom.ipc.processCount': 1,
  'dom.ipc.processPrelaunch.enabled': false,
  'media.navigator.streams.fake': true,
  'media.navigator.permission.disabled': true,
  'media.autoplay.default': 0,
  'intl.accept_languages': 'en-GB',
  'datareporting.policy.dataSubmissionEnabled': false,
};

/** Playwright asks a page by `eval`, which our policy forbids and Firefox does not excuse; the rest of it holds. */
const mayAsk = ({ 'content-security-policy': policy, ...headers }) =>
  policy ? { ...headers, 'content-security-policy': `${policy}; script-src 'self' 'unsafe-eval'` } : headers;

/** A sound card that nobody hears: without one Firefox starts no AudioContext. */
async function soundCard() {
  const program = '/usr/bin/pulseaudio';
  if (!existsSync(program)) return { env: process.env, stop: () => {} };
  const folder = mkdtempSync(`${tmpdir()}/parley-sound-`);
  const socket = `${folder}/native`;
  const modules = ['module-null-sink', `module-native-protocol-unix socket=${socket} auth-anonymous=1`];
  const flags = ['--daemonize=no', '--exit-idle-time=-1', '--use-pid-file=no', '-n'];
  const server = spawn(program, [...flags, ...modules.flatMap((name) => ['-L', name])], { stdio: 'ignore' });
  await eventually(async () => existsSync(socket), 'a sound server');
  return {
    env: { ...process.env, PULSE_SERVER: `unix:${socket}` },
    stop: () => {
      server.kill();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** A page of Firefox whose person has been here before. */
async function open(server) {
  const proxy = await startBelow(Number(new URL(server).port), '/', mayAsk);
  const { base } = proxy;
  const sound = await soundCard();
  const browser = await playwright._bidiFirefox.launch({
    executablePath: findFirefox(),
    headless: true,
    firefoxUserPrefs: PREFERENCES,
    env: sound.env,
  });
  const context = await browser.newContext({ baseURL: base });
  context.setDefaultTimeout(60_000);
  browser.on('disconnected', () => {
    proxy.stop();
    sound.stop();
  });
  const page = await context.newPage();
  // Reading it can stop the tab for good: `latencyOf` in audio/rig.js.
  await page.addInitScript(() => {
    const get = () => {
      throw new Error('outputLatency was read');
    };
    Object.defineProperty(AudioContext.prototype, 'outputLatency', { get });
  });
  const errors = [];
  page.on('pageerror', (error) => errors.push(String(error.stack ?? error)));
  page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
  await page.goto('/');
  await page.evaluate(() => {
    localStorage.setItem('parley.record', 'yes');
    localStorage.setItem('parley.explained', 'yes');
  });
  return { browser, page, errors };
}

const SOUNDLESS = 'NOT TRIED: Firefox starts no AudioContext without a sound card; Debian: pulseaudio';

/** True if Firefox can process sound. */
const processesSound = () =>
  Boolean(process.env.PULSE_SERVER) || existsSync('/usr/bin/pulseaudio') || existsSync('/dev/snd');

/** What the page itself has noted of its messages, newest first. */
const messages = (page) =>
  page.evaluate(() => [...document.querySelectorAll('p-events li b')].map((node) => node.textContent));

/** They are noted where they are shown. */
const showMessages = (page) =>
  page.evaluate(() => {
    document.querySelector('#tab-connection').click();
    document.querySelector('details:has(p-events)').open = true;
  });

export const firefoxScenarios = {
  /** A voice call and its replay, a video call, a call in turns, and a chat. */
  async firefox({ base }) {
    const parts = processesSound() ? [voiceCall, videoCall, turns, chat] : [chat];
    const { browser, page, errors } = await open(base);
    try {
      for (const part of parts) {
        await free(base);
        await part(page);
        assert.deepEqual(errors, [], part.name);
      }
    } finally {
      await browser.close();
    }
    return parts.length > 1 ? '' : SOUNDLESS;
  },
};

async function voiceCall(page) {
  await page.goto('/audio_duplex');
  await page.evaluate(async () => {
    const rig = (await import(document.querySelector('script[src]').src.replace(/pages\/.*/, 'audio/rig.js'))).theRig();
    globalThis.__loudest = 0;
    rig.addEventListener('level', ({ detail }) => {
      globalThis.__loudest = Math.max(globalThis.__loudest, detail.rms);
    });
  });
  await mainButton(page).click();
  await phase(page, 'live');
  await until(page, () => globalThis.__loudest > 0.01);
  await showMessages(page);
  await answers(page, 2);
  await page.keyboard.press('Space');
  await page.locator('.dock [aria-label^="Unmute"]').waitFor();
  assert.equal(await page.locator('main').getAttribute('data-phase'), 'live', 'Space mutes here too');
  await page.keyboard.press('Space');
  await pressMore(page, 'pause');
  await phase(page, 'paused');
  await pressMore(page, 'pause');
  await phase(page, 'live');
  await hangUp(page);
  await eventually(async () => (await messages(page)).includes('session.closed'), 'session.closed');
  const seen = await messages(page);
  assert.ok(seen.includes('session.created'), seen.join(' '));
  const replay = await page.getByRole('link', { name: 'View recording' }).getAttribute('href');
  await page.goto(replay);
  await page.locator('.units summary').waitFor();
  await page.locator('.media audio').waitFor();
  const { height } = await page.locator('.media audio').boundingBox();
  assert.ok(height < 60, `the recording's player is ${height} pixels high`);
}

/** Units of which the model has said whether it listens or speaks. @param {number} count at least */
const answers = (page, count) =>
  until(
    page,
    (least) =>
      [...document.querySelectorAll('p-events li b')].filter((node) => /listen|delta/.test(node.textContent)).length >=
      least,
    { given: count },
  );

/** The server has one slot: on a busy machine the call before may still have it. @param {string} base */
const free = (base) =>
  eventually(async () => (await (await fetch(`${base}/status`)).json()).idle_workers === 1, 'a free slot', 90_000);

async function videoCall(page) {
  await page.goto('/omni');
  await mainButton(page).click();
  await phase(page, 'live');
  await until(page, () => document.querySelector('video').videoWidth > 0);
  await showMessages(page);
  await answers(page, 5);
  assert.ok(
    await page.evaluate(() =>
      [...document.querySelectorAll('p-events li')].some((row) => row.textContent.includes('video_frames')),
    ),
    'pictures are sent',
  );
  assert.equal(await page.evaluate(() => document.querySelector('video').disablePictureInPicture), true);
  await hangUp(page);
}

async function turns(page) {
  await page.goto('/half_duplex');
  await mainButton(page).click();
  await activity(page, 'listening');
  await hangUp(page);
}

async function chat(page) {
  await page.goto('/turnbased');
  await page.locator('.compose textarea').fill('Hello there');
  await page.keyboard.press('Enter');
  await until(page, () => (document.querySelector('.message.assistant .body')?.textContent ?? '').includes('Hello'));
  await until(page, () => document.querySelector('.messages + [role=log]')?.textContent.length > 3);
  await page.reload();
  await page
    .getByRole('button', { name: /^Hello there/ })
    .first()
    .click();
  await until(page, () => document.querySelectorAll('.message').length === 2);
}
