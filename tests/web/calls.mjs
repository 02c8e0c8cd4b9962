/**
 * Calls that go wrong, or are treated badly, in a real browser: one scenario for each way in which a page
 * once told an untruth. The numbers are those of the review that found them.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { openStill } from './support/browser.mjs';
import { listening, madeUp, speaking } from './support/made-up.mjs';
import {
  activity,
  adjustableClock,
  choose,
  eventually,
  hangUp,
  heard,
  hearOn,
  mainButton,
  openGroup,
  pressMore,
  phase,
  spaceMutes,
  steadyMicrophone,
  tap,
  until,
  wiretap,
} from './support/page.mjs';
import { startProxy } from './support/proxy.mjs';
import { secondsIn } from './support/sound.mjs';

/** Whether a press in the middle of each of these reaches them. */
async function reachable(page, selectors) {
  return await page.evaluate((list) => {
    return Object.fromEntries(
      list.map((selector) => {
        const node = document.querySelector(selector);
        const { left, top, width, height } = node.getBoundingClientRect();
        const hit = document.elementFromPoint(left + width / 2, top + height / 2);
        return [selector, width > 0 && (hit === node || node.contains(hit))];
      }),
    );
  }, selectors);
}

/** So long the server keeps a session for a client that is cut off (limits.resume_window_s). */
const WINDOW_S = 30;

const CONTROLS = ['.dock .main', '.dock [data-act=mute]', '.dock [data-act=more]'];

/** Before a video call there is one thing to do first; it and the camera's switch can be pressed on the smallest phones. */
export async function choicesReachable(page) {
  const choices = ['.dock .main', '.dock [data-act=camera]'];
  assert.equal(await page.locator('.stage button:visible').count(), 0);
  const before = page.viewportSize();
  for (const size of [{ width: 320, height: 568 }, { width: 667, height: 375 }, before]) {
    await page.setViewportSize(size);
    const all = async () => Object.values(await reachable(page, choices)).every(Boolean);
    await eventually(all, `choices of a video call at ${size.width}×${size.height}`, 5_000);
  }
}

/** Until each of the controls can be pressed, when whatever slides has come to rest. */
const allReachable = (page, where, more = []) =>
  eventually(
    async () => Object.values(await reachable(page, [...CONTROLS, ...more])).every(Boolean),
    `controls: ${where}`,
  );

/** The browser's own recording as two channels of samples at 16 kHz. */
async function recordedSides(page) {
  const saving = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Save the recording' }).click();
  const wav = readFileSync(await (await saving).path());
  assert.equal(wav.readUInt16LE(22), 2);
  assert.equal(wav.readUInt32LE(24), 16000);
  const sides = [[], []];
  for (let at = 44; at + 3 < wav.length; at += 4) {
    sides[0].push(wav.readInt16LE(at) / 32768);
    sides[1].push(wav.readInt16LE(at + 2) / 32768);
  }
  return sides;
}

/** The longest stretch without sound, in samples. */
function longestQuiet(samples) {
  let longest = 0;
  let run = 0;
  for (const value of samples) {
    run = Math.abs(value) < 0.001 ? run + 1 : 0;
    longest = Math.max(longest, run);
  }
  return longest;
}

const peak = (samples) => samples.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

/** W12: a video call fills the screen, and everything that a call needs can be seen and pressed. */
async function fullScreen(page) {
  await page.keyboard.press('f');
  await until(page, () => document.fullscreenElement !== null);
  await allReachable(page, 'full screen');
  assert.ok(await page.locator('.dock .status .now').isVisible(), 'the state is there');
  assert.match(await page.locator('.dock .status .num').textContent(), /\d:\d\d/, 'and the time');
  await showToast(page);
  assert.ok(await page.locator('.toast').isVisible());
  await allReachable(page, 'no message lies over them');
  await spaceMutes(page);
}

const showToast = (/** @type {import('playwright-core').Page} */ page) =>
  page.evaluate(async () => {
    const { toast } = await import(document.querySelector('script[src]').src.replace(/pages\/.*/, 'elements/dom.js'));
    toast('call.headphones');
  });

/** W13: on a phone, the controls of a call stay within reach, whatever slides over it. @param {import('playwright-core').Page} page */
export async function phoneSheets(page) {
  await page.goto('/audio_duplex');
  await page.locator('.state', { hasText: 'Tap to talk' }).click();
  await phase(page, 'live');
  for (const name of ['Text', 'Settings']) {
    await pressMore(page, name.toLowerCase());
    await allReachable(page, name, name === 'Text' ? ['.writing textarea', '.writing button:last-child'] : []);
    assert.ok(await page.locator('.dock .status .now').isVisible());
    await showToast(page);
    await page.locator('.toast').first().waitFor();
    await allReachable(page, `${name}, with a message`);
    await page.keyboard.press('Escape');
  }
  await pressMore(page, 'text');
  await allReachable(page, 'Text, once more');
  await page.setViewportSize({ width: 740, height: 360 });
  await allReachable(page, 'Text, sideways', ['.writing textarea']);
  await hangUp(page);
  // Closed by key, the sheet takes no focus with it, though it is still there while it moves.
  await page.emulateMedia({ reducedMotion: 'no-preference' });
  await page.locator('.dock [data-act=text]').press('Enter');
  await until(page, () => document.activeElement.matches('[data-act=text]'));
}

/**
 * The line breaks, the page tries to continue and is closed meanwhile: nobody waits for the place it had. How long that
 * took, in ms.
 */
async function leaveWhileMended(page, proxy, base) {
  const wire = wiretap(page);
  // Another connection is never made.
  await page.addInitScript(() => {
    const nowhere = () => Object.assign(new EventTarget(), { readyState: 0, close() {}, send() {} });
    globalThis.WebSocket = new Proxy(globalThis.WebSocket, {
      construct: (Socket, how) => (String(how[0]).includes('resume=true') ? nowhere() : new Socket(...how)),
    });
  });
  const free = async () => (await (await fetch(`${base}/status`)).json()).idle_workers;
  await page.goto('/audio_duplex');
  await eventually(async () => (await free()) === 1, 'the place of the call before');
  await mainButton(page).click();
  await phase(page, 'live');
  await wire.has(({ type }) => /^response\./.test(type));
  proxy.drop();
  await page.locator('.state').getByText('Connection lost. Reconnecting…').waitFor();
  assert.equal(await free(), 0, 'the server keeps the place');
  page.on('dialog', (dialog) => void dialog.accept());
  const from = Date.now();
  await page.goto('/privacy');
  await eventually(async () => (await free()) === 1, 'the place is free', WINDOW_S * 800);
  return Date.now() - from;
}

export const callScenarios = {
  async w1_second_press({ page }) {
    // The camera question stays open for as long as the test wants.
    await page.addInitScript(() => {
      const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
      navigator.mediaDevices.getUserMedia = async (wishes) => {
        if (wishes.video) {
          await new Promise((resolve) => {
            globalThis.__allow = resolve;
          });
        }
        const stream = await ask(wishes);
        globalThis.__opened = stream;
        return stream;
      };
    });
    const wire = wiretap(page);
    await page.goto('/omni');
    await mainButton(page).click();
    await phase(page, 'starting');
    await page.locator('.state').getByText('Getting ready…').waitFor();
    await until(page, () => globalThis.__allow !== undefined);
    await mainButton(page).click();
    await phase(page, 'idle');
    await page.evaluate(() => globalThis.__allow());
    await until(page, () => globalThis.__opened?.getTracks().every(({ readyState }) => readyState === 'ended'));
    assert.equal(wire.urls.length, 0, 'no place was taken');
    await page.evaluate(() => {
      globalThis.__allow = undefined;
    });
    await mainButton(page).click();
    await until(page, () => globalThis.__allow !== undefined);
    await page.evaluate(() => globalThis.__allow());
    await phase(page, 'live');
    await wire.sends(1, ({ type }) => type === 'input_audio_buffer.append');
    await fullScreen(page);
    await hangUp(page);
    await wire.ends('session.closed');
  },

  async w3_asked_before_anything_is_kept({ browser, base }) {
    const { context, errors } = await openStill(browser, base, { isNew: true, permissions: [] });
    const page = await context.newPage();
    const wire = wiretap(page);
    const asked = () => wire.sent.filter(({ message }) => message.messages).map(({ message }) => message.record);
    await page.goto('/turnbased');
    const write = async (text) => {
      await page.locator('.compose textarea').fill(text);
      await page.keyboard.press('Enter');
    };
    await write('Hello');
    for (let i = 0; i < 2; i++) await page.keyboard.press('Enter');
    await page.locator('dialog').getByText('May this server keep your conversations').waitFor();
    assert.equal(wire.urls.length, 0, 'nothing is sent before the answer');
    await page.getByRole('button', { name: 'Start, keep nothing' }).click();
    await wire.has((message) => message.type === 'done');
    assert.deepEqual(asked(), [false]);
    assert.ok(await page.locator('.bar .rec').isHidden());
    await page.locator('.bar').getByRole('button', { name: 'Settings' }).click();
    await page.locator('.switch', { hasText: 'Keep conversations on the server' }).click();
    await page.locator('.bar .rec').waitFor();
    wire.got.length = 0;
    await write('Once more');
    await wire.has((message) => message.type === 'done');
    assert.deepEqual(asked(), [false, true], 'not asked again, and the switch counts');

    // A call explains the browser's question before it comes; anyone who closes the explanation is not asked.
    const call = await context.newPage();
    // A browser without a screen has decided already; one with a screen would ask.
    await call.addInitScript(() => {
      navigator.permissions.query = async () => ({ state: 'prompt' });
    });
    await call.goto('/audio_duplex');
    await mainButton(call).click();
    await call.locator('dialog').getByText('Your browser will ask for the microphone').waitFor();
    await call.keyboard.press('Escape');
    await phase(call, 'idle');
    await until(call, () => document.activeElement.matches('.start'));
    assert.deepEqual(errors, []);
    await context.close();
  },

  async w8_the_answer_to_a_photo_is_seen({ page }) {
    const wire = wiretap(page);
    await page.goto('/turnbased');
    await page.locator('.compose textarea').waitFor();
    await page.evaluate(async () => {
      const transfer = new DataTransfer();
      for (let i = 0; i < 2; i++) {
        const canvas = Object.assign(document.createElement('canvas'), { width: 600, height: 900 });
        canvas.getContext('2d').fillRect(80, 80, 300, 500);
        const blob = await new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
        transfer.items.add(new File([blob], `photo-${i}.png`, { type: 'image/png' }));
      }
      document.dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));
    });
    await until(page, () => document.querySelectorAll('.attached img').length === 2);
    await page.locator('.compose textarea').fill('What do you see?');
    await page.keyboard.press('Enter');
    await wire.has((message) => message.type === 'done');
    await until(page, () => (document.querySelector('.message.assistant .body')?.textContent ?? '').length > 3);
    // All of the answer is in sight.
    await until(page, () => {
      const answer = document.querySelector('.message.assistant').getBoundingClientRect();
      return answer.bottom - document.querySelector('.view').getBoundingClientRect().bottom < 2;
    });
    await page.locator('.message.user img').first().click();
    await page.locator('dialog.large img').waitFor();
  },

  async w4_muted_is_not_recorded({ page }) {
    // A microphone that is never silent by itself, and nothing that would take a steady tone for noise.
    await steadyMicrophone(page, 300);
    await choose(page, 'audio_duplex', { recordHere: true, studio: true });
    await madeUp(page);
    await page.goto('/audio_duplex');
    await tap(page);
    await mainButton(page).click();
    await phase(page, 'live');
    await hearOn(page, 1);
    await page.keyboard.press('m');
    await hearOn(page, 3);
    await page.keyboard.press('m');
    await hearOn(page, 2);
    await hangUp(page);
    const [left] = await recordedSides(page);
    const quiet = longestQuiet(left) / 16000;
    assert.ok(quiet > 2, `muted for 3 s, of which ${quiet} s are silent in the recording`);
    assert.ok(peak(left.slice(-16000)) > 0.05, `and heard after that: ${left.length / 16000} s, ${peak(left)}`);
    return `${quiet.toFixed(1)} s of silence`;
  },

  async w15_another_microphone({ page }) {
    // Recorded here, both sides, and whichever microphone it is.
    await choose(page, 'audio_duplex', { recordHere: true });
    await madeUp(page, { onUnit: (say, count) => say(count === 2 ? speaking('Hello. ', { last: true }) : listening) });
    await page.goto('/audio_duplex');
    await tap(page);
    await mainButton(page).click();
    await phase(page, 'live');
    await openGroup(page, 'Microphone and loudspeaker');
    await page.locator('p-devices select').first().dispatchEvent('change');
    await hearOn(page, 4);
    await hangUp(page);
    const [left, right] = await recordedSides(page);
    assert.ok(peak(left.slice(16000)) > 0.05, 'the person is still in the recording');
    assert.ok(peak(right) > 0.05, 'and so is the assistant');
    return `${(left.length / 16000).toFixed(1)} s`;
  },

  async w6_network_cut({ browser, base }) {
    const proxy = await startProxy(Number(new URL(base).port));
    const expected = [/WebSocket|Failed to load|failed:/];
    const { context, errors } = await openStill(browser, proxy.base, { expected });
    try {
      const page = await context.newPage();
      const { putForward } = await adjustableClock(page);
      await page.goto('/audio_duplex');
      await mainButton(page).click();
      await phase(page, 'live');
      await until(page, () => document.querySelector('p-signal').textContent !== '');
      // In one and the same moment: a page that says the server is slow next to a good sign contradicts itself.
      await page.evaluate(() => {
        const main = document.querySelector('main');
        new MutationObserver(() => {
          if (main.dataset.service === 'slow') globalThis.__sign ??= document.querySelector('p-signal').textContent;
        }).observe(main, { attributeFilter: ['data-service'] });
      });
      proxy.cut();
      const from = Date.now();
      await page.waitForSelector('main[data-service="slow"]');
      const toSlowMs = Date.now() - from;
      assert.match(await page.evaluate(() => globalThis.__sign), /Very slow/);
      await putForward(5);
      await page.locator('.state').getByText('Connection lost. Reconnecting…').waitFor();
      proxy.mend();
      await page.locator('p-transcript').getByText('lost for a moment').waitFor();
      await page.waitForSelector('main[data-service="ok"]');
      assert.equal(await page.locator('main').getAttribute('data-phase'), 'live', 'it is the same session');
      await hangUp(page);
      assert.ok(await page.locator('p-signal').isHidden(), 'nothing is said of a connection that is no more');
      assert.deepEqual(errors, []);
      const next = await context.newPage();
      await page.close();
      expected.splice(0, 1, /WebSocket/);
      const freeMs = await leaveWhileMended(next, proxy, base);
      assert.deepEqual(errors, []);
      return `said to be slow after ${(toSlowMs / 1000).toFixed(1)} s; free after ${(freeMs / 1000).toFixed(1)} s`;
    } finally {
      await context.close();
      proxy.stop();
    }
  },

  async w6_stalled_server({ page }) {
    // Three late answers, then prompt ones: the sign of it recovers. Then none at all; the call after that is answered.
    const { putForward } = await adjustableClock(page);
    let isStalled = false;
    const calls = await madeUp(page, {
      onUnit: (say, count, call) => {
        if (call === 1 && count <= 3) setTimeout(() => say(listening), 1500);
        else if (call > 1 || !isStalled) say(listening);
      },
    });
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await until(page, () => document.querySelector('p-signal').textContent.includes('Very slow'));
    await until(page, () => document.querySelector('p-signal').textContent.includes('in time'));
    isStalled = true;
    await page.waitForSelector('main[data-service="slow"]');
    await page.locator('.state').getByText('The server is slow to answer').waitFor();
    await putForward(5);
    await page
      .locator('.state')
      .getByText(/No answer for \d+ s/)
      .waitFor();
    await putForward(12);
    await until(page, () => document.querySelector('p-transcript').textContent.includes('reconnected'));
    await phase(page, 'live');
    await eventually(() => secondsIn(calls[1].pieces) >= 4, 'four units of the second call');
    await until(page, () => /in time|^Slow/.test(document.querySelector('p-signal').textContent));
    await hangUp(page);
    assert.ok(await page.locator('p-signal').isHidden());
  },

  async w14_second_call({ page, context, expected }) {
    // Nothing of the first call is in the second, which is told when the network is away.
    await madeUp(page, {
      onStart: (say, call) => say(call === 1 ? speaking('The first call. ', { last: true }) : listening),
    });
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await page.locator('p-transcript .assistant .said').getByText('The first call.').waitFor();
    await hangUp(page);
    await mainButton(page).click();
    await phase(page, 'live');
    assert.equal(await page.locator('p-transcript .assistant').count(), 0);
    assert.equal((await page.locator('.caption').textContent()).trim(), '');
    // The page asks how the server is now and then.
    expected.push(/INTERNET_DISCONNECTED/);
    await context.setOffline(true);
    await page.locator('.state').getByText('You appear to be offline').waitFor();
    await context.setOffline(false);
    await page.locator('.state').getByText('Listening').waitFor();
    await hangUp(page);
  },

  async w20_ducking({ page }) {
    // It speaks without end; the server wonders for two seconds whether it was interrupted. Nothing is switched on for
    // this.
    const wonders = (state) => ({ type: 'response.interruption', state, index: 1, heard_ms: 500, text: '' });
    await madeUp(page, {
      onUnit(say, count) {
        if (count === 4) say(wonders('suspected'));
        if (count === 6) say(wonders('dismissed'));
        say(speaking('and so on '));
      },
    });
    await page.goto('/audio_duplex');
    await tap(page);
    await mainButton(page).click();
    await activity(page, 'speaking');
    await hearOn(page, 9);
    const { levels } = await heard(page);
    const tenths = Array.from({ length: Math.floor(levels.length / 20) }, (_, i) =>
      peak(levels.slice(20 * i, 20 * i + 20)),
    );
    const loud = tenths.findIndex((level) => level > 0.1);
    const soft = tenths.findIndex((level, i) => i > loud && level < 0.08);
    const again = tenths.findIndex((level, i) => i > soft && level > 0.1);
    await hangUp(page);
    assert.ok(loud >= 0 && soft > 0, `it is lowered: ${tenths.map((level) => level.toFixed(2))}`);
    assert.ok(again - soft >= 15 && again - soft <= 25, `softer for ${again - soft} tenths`);
    assert.ok(
      tenths.slice(soft + 1, again - 1).every((level) => level > 0.02),
      'it speaks on, only softer',
    );
    return `softer for ${again - soft} tenths`;
  },
};
