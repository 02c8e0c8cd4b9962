/**
 * Conversations in a real browser against a real server.
 *
 *     node tests/web/browser.mjs --wav speech.wav [--python .venv/bin/python] [--model parrot] scenario …
 *
 * Starts the server with one slot, so that two people have to queue. Prints one line
 * per scenario; exit status 1 when one failed, 77 when there is no browser here.
 *
 * Without scenarios they are read from standard input, one line of JSON each, `{"name": "chat", "model": "parrot"}`;
 * after what is printed of it comes a line `= ok`, `= failed` or `= skipped`.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { parseArgs, promisify } from 'node:util';

import { PIECE_SAMPLES } from '../../src/parley/web/wire/sound.js';
import { envelope, floats, secondsIn } from './support/sound.mjs';
import {
  tap,
  startToListening,
  heard,
  noteSupply,
  hearTurn,
  messagesOf,
  holdMessages,
  hearOn,
  eventually,
  noteFlush,
  audibleAfter,
  assertHeard,
  silenceAfter,
  pressHush,
  wiretap,
  until,
  phase,
  activity,
  mainButton,
  silentMicrophone,
  hangUp,
  openGroup,
  openSettings,
  pressMore,
  takeTurn,
  choose,
  MUTE_MS,
  spaceMutes,
  tone,
  toneLevel,
  jpegWidth,
  example,
} from './support/page.mjs';
import { callScenarios, choicesReachable, phoneSheets } from './calls.mjs';
import { findFirefox, firefoxScenarios } from './firefox.mjs';
import { extraScenarios } from './extras.mjs';
import { lineScenarios } from './lines.mjs';
import { findings, pageScenarios } from './pages.mjs';
import { wholeScenarios } from './whole.mjs';
import { findBrowser, launch, openStill } from './support/browser.mjs';
import { DOT, failed, listening, madeUp, second, sessionsOf, speaking } from './support/made-up.mjs';
import { startBelow } from './support/proxy.mjs';
import { startServer } from './support/server.mjs';
import { Stage } from './support/stage.mjs';
import { mockRecording, recording } from './support/recording.mjs';

const { values: flags, positionals: wanted } = parseArgs({
  options: {
    wav: { type: 'string' },
    python: { type: 'string', default: '.venv/bin/python' },
    model: { type: 'string', default: 'parrot' },
  },
  allowPositionals: true,
});

/** Text of the control that has the focus. */
const focused = (page) => page.evaluate(() => document.activeElement.textContent);

/** What is left of 1280 by 1024 for a person who magnifies it four times. */
const MAGNIFIED = { width: 320, height: 256 };

/** In the middle of a mixed call: the mixer moves, shows levels, and its sliders are heard immediately. */
async function tryMixer(page, units) {
  const mixer = page.locator('p-mixer');
  await mixer.waitFor();
  await until(page, () => [...document.querySelectorAll('p-mixer meter')].some((meter) => meter.value > 0.01));
  const handle = mixer.getByRole('button', { name: 'Mixer' });
  const { x, y } = await mixer.boundingBox();
  await handle.hover();
  await page.mouse.down();
  await page.mouse.move(x + 260, y + 160, { steps: 4 });
  await page.mouse.up();
  const moved = await mixer.boundingBox();
  assert.ok(moved.x > x + 60 && moved.y > y + 60, `dragged from ${x}, ${y} to ${moved.x}, ${moved.y}`);
  await handle.press('ArrowLeft');
  assert.ok((await mixer.boundingBox()).x < moved.x, 'and pushed back by a key');
  await handle.evaluate((node) => {
    for (let i = 0; i < 200; i++) node.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
  });
  assert.ok((await mixer.boundingBox()).x < 1280 - 40, 'it stays in the window');
  const before = toneLevel(units().at(-1), 1000);
  await mixer.locator('input').first().fill('-12');
  await eventually(() => toneLevel(units().at(-1), 1000) < before / 2, 'a softer file');
}

/** The first seconds of a WAV file of 16-bit samples at 16 kHz. @param {Buffer} wav @param {number} seconds */
function beginning(wav, seconds) {
  const begun = Buffer.from(wav.subarray(0, 44 + seconds * 32000));
  begun.writeUInt32LE(begun.length - 8, 4);
  begun.writeUInt32LE(begun.length - 44, 40);
  return begun;
}

/** The bars of half-duplex: loud where a person spoke, and of another colour where the server heard it. */
async function speechFound(page) {
  const colours = () =>
    page.evaluate(() => {
      const canvas = document.querySelector('p-vad canvas');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) seen.add(data.slice(i, i + 3).join());
      return seen.size;
    });
  await eventually(async () => (await colours()) >= 3, 'bars in two colours, and the line');
}

/** The line over those bars is dragged: down to a tenth, and over the edge. */
async function dragThreshold(page) {
  const canvas = page.locator('p-vad canvas');
  await canvas.scrollIntoViewIfNeeded();
  const { x, y, width, height } = await canvas.boundingBox();
  const threshold = () =>
    page.evaluate(() => JSON.parse(localStorage.getItem('parley.settings.half_duplex')).threshold);
  await page.mouse.move(x + width / 2, y + height / 2);
  await page.mouse.down();
  assert.ok(Math.abs((await threshold()) - 0.5) < 0.03, 'where it was pressed');
  await page.mouse.move(x + width / 2, y + 0.9 * height, { steps: 3 });
  assert.ok(Math.abs((await threshold()) - 0.1) < 0.03, 'and where it was dragged to');
  await page.mouse.move(x + width / 2, y - 40);
  await page.mouse.up();
  assert.equal(await threshold(), 0.99);
  await page.getByLabel('Speech threshold').press('ArrowLeft');
  assert.equal(await threshold(), 0.98, 'by key, too');
  // Space on a slider is the slider's.
  await page.evaluate(() => document.activeElement.blur());
}

/** W18: who leaves a call that is going on is asked first, and finds the call again. */
async function leave(page) {
  const asked = [];
  page.on('dialog', (dialog) => {
    asked.push(dialog.type());
    void dialog.dismiss();
  });
  await page.locator('nav a', { hasText: 'Chat' }).first().click();
  await eventually(() => asked.length > 0, 'the question of the browser');
  assert.deepEqual(asked, ['beforeunload']);
  assert.equal(await page.locator('main').getAttribute('data-phase'), 'live', 'the call goes on');
  page.removeAllListeners('dialog');
  page.on('dialog', (dialog) => void dialog.accept());
  await page.goto('/explore');
  await page.locator('.recent a').first().waitFor();
  assert.equal(await page.locator('.recent a').count(), 1, 'and it is found again');
}

const scenarios = {
  async half_duplex({ page, model }) {
    // How one turn follows another is nothing of the model's.
    const turns = model === 'parrot' ? 2 : 1;
    const wire = wiretap(page);
    await page.goto('/half_duplex');
    await openGroup(page, 'When you have finished speaking');
    await tap(page);
    await noteSupply(page);
    await mainButton(page).click();
    await activity(page, 'listening');
    const toListeningMs = await startToListening(page);
    await activity(page, 'hearing');
    const said = [];
    // On a busy machine sound may come after what came before it has been heard: another turn is listened to then.
    while (said.length < turns || (said.every(({ isLate }) => isLate) && said.length < turns + 2)) {
      await activity(page, 'speaking');
      if (said.length === 0) await speechFound(page);
      await activity(page, 'listening');
      said.push(await takeTurn(page));
    }
    await dragThreshold(page);
    await spaceMutes(page);
    await hangUp(page);

    const order = wire.types(wire.got).filter((type) => ['generating', 'turn_done'].includes(type));
    assert.deepEqual(order.slice(0, 2 * turns), Array(turns).fill(['generating', 'turn_done']).flat());
    await wire.ends('stopped');
    assert.ok(
      said.some(({ isLate }) => !isLate),
      'in every turn sound came late',
    );
    const ends = wire.got.flatMap(({ message }, i) => (message.type === 'turn_done' ? [i] : []));
    for (const [turn, { levels, gaps, isLate }] of said.entries()) {
      if (isLate) continue;
      const sounds = wire.got.slice(ends[turn - 1] ?? 0, ends[turn]).filter(({ message }) => message.audio_data);
      const sent = envelope(
        sounds.flatMap(({ message }) => floats(message.audio_data)),
        24000,
      );
      assertHeard(levels.slice(0, levels.findIndex((level) => level > 0.008) + sent.length + 160), sent, gaps);
    }
    // Nothing of the assistant's own voice goes back.
    for (const done of wire.got.filter(({ message }) => message.type === 'generating')) {
      const end = wire.got.find(({ at, message }) => at >= done.at && message.type === 'turn_done');
      assert.equal(
        wire.sent.filter(({ at, message }) => message.type === 'audio_chunk' && at > done.at + 150 && at < end.at)
          .length,
        0,
      );
    }
    const chunk = wire.sent.find(({ message }) => message.type === 'audio_chunk');
    assert.equal(Buffer.from(chunk.message.audio_base64, 'base64').length, PIECE_SAMPLES * 4);
    const line = await page.locator('p-transcript .assistant .said').first().textContent();
    assert.ok(line.length > 5);
    return `start to listening ${toListeningMs} ms`;
  },

  async chat({ page }) {
    const wire = wiretap(page);
    await page.goto('/turnbased');
    await page.getByRole('button', { name: 'Answer with a voice' }).click();
    await tap(page);
    const field = page.locator('.compose textarea');
    await field.fill('What do you see?');
    const held = await holdMessages(page);
    const isLeft = await page.evaluate(
      ([bytes, wav]) => {
        const transfer = new DataTransfer();
        // Text that is dropped, and cells of a spreadsheet that are pasted, are the browser's matter.
        transfer.setData('text/plain', 'Rome');
        transfer.setData('text/html', '<td>Rome</td>');
        const as = (name) => ({ [name]: transfer, bubbles: true, cancelable: true });
        const isDropped = document.dispatchEvent(new DragEvent('drop', as('dataTransfer')));
        transfer.items.add(new File([new Uint8Array(bytes)], 'dot.png', { type: 'image/png' }));
        const paste = new ClipboardEvent('paste', as('clipboardData'));
        const isPasted = document.querySelector('.compose textarea').dispatchEvent(paste);
        transfer.items.add(
          new File([Uint8Array.from(atob(wav), (sign) => sign.charCodeAt(0))], 'speech.wav', { type: 'audio/wav' }),
        );
        document.dispatchEvent(new DragEvent('drop', as('dataTransfer')));
        return isDropped && isPasted;
      },
      /** @type {const} */ ([[...DOT], beginning(readFileSync(flags.wav), 3).toString('base64')]),
    );
    // Sent while the files are still being read.
    await field.press('Enter');
    // The only slot is its own: nothing is said of a busy server.
    await page.locator('main[data-calling=true]').waitFor();
    const asked = page.waitForResponse(/\/status$/);
    await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
    await asked;
    assert.ok(await page.locator('.topbar .status').isHidden());
    await held.release();
    const done = await wire.has((message) => message.type === 'done');
    await page.waitForSelector('.message.assistant p-player', { timeout: 60_000 });

    const request = wire.sent[0].message;
    assert.ok(isLeft);
    assert.deepEqual(
      request.messages.at(-1).content.map(({ type }) => type),
      ['image', 'audio', 'text'],
    );
    assert.deepEqual([...Buffer.from(request.messages.at(-1).content[0].data, 'base64').subarray(0, 2)], [0xff, 0xd8]);
    assert.equal(request.tts.enabled, true);
    await page.locator('.message.assistant .body').getByText(done.text.slice(0, 20)).waitFor();
    assert.equal(await page.locator('.message .facts').count(), 0, 'times are for developers');
    const sounds = wire.got
      .filter(({ message }) => message.audio_data)
      .map(({ message }) => floats(message.audio_data));
    await hearOn(page, sounds.flat().length / 24000 + 0.8);
    const { levels, gaps } = await heard(page);
    assertHeard(levels, envelope(sounds.flat(), 24000), gaps);
    // The chat has an address: reload, Back and a bookmark lead to it.
    const address = page.url();
    assert.match(address, /turnbased#\w+$/);
    await page.reload();
    await until(page, () => document.querySelectorAll('.message').length === 2);
    await page.getByRole('button', { name: 'Rename “What do you see?”' }).click();
    await page.keyboard.type('A dark dot');
    await page.keyboard.press('Enter');
    // Leaving it stores it again.
    await page.locator('.chats').getByRole('button', { name: 'New chat' }).click();
    await until(page, () => document.querySelectorAll('.message').length === 0);
    assert.doesNotMatch(page.url(), /#/);
    await page.goBack();
    await until(page, () => document.querySelectorAll('.message').length === 2);
    assert.equal(page.url(), address);
    assert.equal(await page.locator('.history .open span').textContent(), 'A dark dot');
    await page.goto('/chat');
    assert.match(page.url(), /\/turnbased$/);
    await page.getByRole('button', { name: /^A dark dot/ }).click();
    await until(page, () => document.querySelectorAll('.message').length === 2);
    assert.equal(page.url(), address);
    // Two tabs with this chat lose nothing of each other.
    const other = await page.context().newPage();
    await other.goto(address);
    for (const [tab, text, count] of [
      [page, 'One', 4],
      [other, 'Two', 6],
      [page, 'Three', 8],
    ]) {
      await until(tab, (before) => document.querySelectorAll('.message').length === before, { given: count - 2 });
      await tab.locator('.compose textarea').fill(text);
      await tab.keyboard.press('Enter');
      await until(tab, (after) => document.querySelectorAll('.message').length === after, { given: count });
      await tab.locator('.message.assistant [aria-label="Answer again"]').waitFor();
    }
    // A name that one gives while the other has an answer made is that chat's name; deleting it then deletes all of it.
    const names = page.locator('.history .open span');
    const ask = async (before) => {
      await page.locator('.compose textarea').fill('Four');
      await page.keyboard.press('Enter');
      await until(page, (count) => document.querySelectorAll('.message').length > count, { given: before });
    };
    await other.locator('.history [data-id]').click();
    await other.locator('dialog input').fill('Renamed');
    await ask(8);
    await other.keyboard.press('Enter');
    await until(page, () => document.querySelectorAll('.message').length === 10);
    await page.locator('.message.assistant [aria-label="Answer again"]').waitFor();
    assert.equal(page.url(), address);
    // The other tab may store the name later than this one its answer.
    await names.getByText('Renamed', { exact: true }).waitFor();
    assert.equal(await names.count(), 1);
    await other.getByRole('button', { name: 'Delete “Renamed”' }).click();
    await ask(10);
    await other.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await until(page, () => document.querySelectorAll('.message, .history .open').length === 0);
    await ask(0);
    await page.locator('.chats').getByRole('button', { name: 'New chat' }).click();
    await page.getByRole('button', { name: 'Settings' }).click();
    await page.locator('.presets').getByText('Video analysis').click();
    await page.locator('.topbar .lang').click();
    await page.locator('.history small', { hasText: '月' }).waitFor();
    await page.locator('.presets').getByText('中文对话').waitFor();
    assert.equal(await page.locator('.presets [aria-checked=true]').textContent(), 'Video analysis');
    await page.locator('.topbar .lang').click();
    await page.locator('p-prompt textarea').fill('Be brief.');
    await page.getByRole('button', { name: 'Keep as my own' }).click();
    await page.keyboard.type('Brief');
    await page.keyboard.press('Enter');
    await until(page, () => document.activeElement.textContent === 'Brief');
    await page.getByRole('button', { name: 'Delete this preset' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Delete this preset' }).click();
    await until(page, () => document.activeElement.matches('.presets [aria-checked=true]'));
    await page.getByRole('button', { name: 'Delete “Four”' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await names.waitFor({ state: 'detached' });
    assert.equal(await focused(page), 'New chat');
    // Panels that lie over the page are open one at a time; by key, the focus goes there and back.
    await page.setViewportSize({ width: 390, height: 844 });
    await page.locator('.bar [data-icon=history]').locator('..').press('Enter');
    await until(page, () => document.activeElement.matches('.chats button'));
    await page.locator('.bar [data-icon=settings]').locator('..').press('Enter');
    await page.locator('.chats').waitFor({ state: 'hidden' });
    await until(page, () => document.activeElement.matches('.options button'));
    await page.keyboard.press('Escape');
    await until(page, () => document.activeElement.matches('.bar [aria-expanded=false]'));
    return `${done.generated_tokens} tokens`;
  },

  async voice_note({ page }) {
    const wire = wiretap(page);
    await page.goto('/turnbased');
    const mic = page.locator('.compose').getByRole('button', { name: /Record/ });
    await mic.click();
    await page.waitForSelector('.recording:not([hidden])');
    await page.waitForTimeout(1500);
    await mic.click();
    await page.waitForSelector('.attached p-player');
    await page.locator('.compose .send').click();
    await wire.has((message) => message.type === 'done');
    const part = wire.sent[0].message.messages.at(-1).content[0];
    assert.equal(part.type, 'audio');
    assert.ok(floats(part.data).length > 16000);
    // A microphone that is switched off has said nothing to send.
    await silentMicrophone(page);
    await page.reload();
    await mic.click();
    await page.locator('.recording').getByText('0:01').waitFor();
    await page.setViewportSize({ width: 320, height: 640 });
    const [one, other] = await Promise.all([mic, page.locator('.compose .send')].map((node) => node.boundingBox()));
    assert.ok(one.y === other.y && other.x + other.width < 320, 'all of it fits on a narrow phone');
    await mic.click();
    await page.locator('.notices').getByText('No sound comes from your microphone.').waitFor();
    assert.ok(await page.locator('.attached').isHidden());
  },

  async audio_duplex({ page }) {
    const wire = wiretap(page);
    await page.goto('/audio_duplex');
    await tap(page);
    await mainButton(page).click();
    await activity(page, 'speaking');
    const toListeningMs = await startToListening(page);
    const silentAfterMs = await silenceAfter(page, pressHush);
    const forced = wire.sent.filter(({ message }) => message.force_listen);
    await activity(page, 'speaking');
    const drawn = await page
      .locator('p-rings .drawn')
      .evaluateAll((arcs) => arcs.map((arc) => parseInt(arc.getAttribute('stroke-dasharray') ?? '', 10)));
    assert.ok(drawn[0] > 50 && drawn[0] <= 100 && drawn[1] >= 0 && drawn[1] < 50, `time and memory drawn as ${drawn}`);
    assert.match(await page.locator('.chip:has(p-rings)').textContent(), / left Memory: \d+ %$/);
    await hangUp(page);
    const units = wire.sent.filter(({ message }) => message.type === 'input_audio_buffer.append');
    assert.ok(units.every(({ message }) => Buffer.from(message.audio, 'base64').length === PIECE_SAMPLES * 4));
    assert.ok(forced.length <= 1);
    assert.equal(wire.sent.filter(({ message }) => message.force_listen).length, 1);
    await wire.ends('session.closed');
    return `start to listening ${toListeningMs} ms, silent ${silentAfterMs} ms after the hand`;
  },

  async duplex_gapless({ page }) {
    const wire = wiretap(page);
    await page.goto('/audio_duplex');
    await tap(page);
    await noteSupply(page);
    await mainButton(page).click();
    const { said, isLate } = await hearTurn(page);
    await hangUp(page);
    const turn = messagesOf(wire, isLate).map(({ message }) => floats(message.audio));
    const difference = assertHeard(said.levels, envelope(turn.flat(), 24000), said.gaps);
    const how = isLate ? ', all of the turn at once because units came late' : '';
    return `${turn.length} units, likeness ${difference.likeness.toFixed(3)}, ${difference.longerMs} ms longer${how}`;
  },

  async interrupted({ page }) {
    // A server that speaks and then, in the middle of its turn, listens: a person has interrupted it.
    const calls = await madeUp(page, {
      onUnit: () => {},
      onStart(say) {
        for (let i = 0; i < 5; i++) say(speaking(`word ${i} `, { audio: second(0.4) }));
      },
    });
    await page.goto('/audio_duplex');
    await tap(page);
    await mainButton(page).click();
    await until(page, () =>
      globalThis.__tap.blocks.slice(-1).some(({ right }) => right.some((value) => Math.abs(value) > 0.3)),
    );
    await noteFlush(page);
    calls[0].say(listening);
    await until(page, () => globalThis.__flushedAt !== undefined);
    const silentAfterMs = await audibleAfter(page, await page.evaluate(() => globalThis.__flushedAt));
    await page.locator('p-transcript .assistant').getByText('(interrupted)').first().waitFor();
    await activity(page, 'listening');
    await hangUp(page);
    return `silent ${silentAfterMs} ms after it was dropped`;
  },

  async turned_away({ page }) {
    const endings = [
      [failed('queue_full', 'Queue full'), 1013, 'The queue is full.'],
      [failed('inference_error', 'The worker was lost.'), 1011, 'The model could not finish.'],
      [{ type: 'session.closed', reason: 'timeout' }, 1000, 'The time for this conversation is over.'],
      [failed('app_disabled', 'off'), 1008, 'This way to talk is switched off here.'],
    ];
    let next = 0;
    await page.routeWebSocket(/\/v1\/realtime/, (socket) => {
      const [farewell, code] = endings[next];
      socket.send(JSON.stringify(farewell));
      socket.close({ code });
    });
    await page.goto('/audio_duplex');
    for (; next < endings.length; next++) {
      await mainButton(page).click();
      await page.locator('.notices').getByText(endings[next][2]).waitFor();
      assert.ok(await page.locator('.notices').getByRole('button', { name: 'Call again' }).isVisible());
    }
  },

  async omni({ page }) {
    const wire = wiretap(page);
    await page.goto('/omni');
    await tap(page);
    await mainButton(page).click();
    await activity(page, 'speaking');
    assert.equal(await page.title(), 'Video call · parley');
    const round = await page.locator('.dock button:visible').all();
    const acts = await Promise.all(round.map((button) => button.getAttribute('data-act')));
    assert.deepEqual(acts, ['mute', 'camera', null, 'more'], 'what matters, and hanging up');
    const silentAfterMs = await silenceAfter(page, pressHush);
    await activity(page, 'listening');
    await pressMore(page, 'detail');
    const before = wire.sent.length;
    await wire.sends(before + 2);
    await page.locator('.dock [data-act=more]').click();
    assert.deepEqual(await findings(page, 'a video call with more open'), []);
    await page.keyboard.press('Escape');
    await hangUp(page);
    const units = wire.sent
      .filter(({ message }) => message.type === 'input_audio_buffer.append')
      .map(({ message }) => message);
    const frames = units.filter((unit) => unit.video_frames?.length === 1);
    // The end of a second carries a picture, and does not wait for one that is late, as on a busy machine.
    const seconds = secondsIn(units.length);
    assert.ok(frames.length >= seconds / 2 && frames.length <= seconds, `${frames.length} pictures in ${seconds} s`);
    const jpeg = Buffer.from(frames[0].video_frames[0], 'base64');
    assert.deepEqual([...jpeg.subarray(0, 2)], [0xff, 0xd8]);
    assert.equal(units.at(-1).max_slice_nums, 2);
    assert.ok(wire.urls[0].includes('mode=video'));
    assert.equal(await page.evaluate(() => document.querySelector('video').srcObject), null);
    return `${units.length} units, picture ${Math.round(jpeg.length / 1024)} KB, silent ${silentAfterMs} ms after the hand`;
  },

  async pause({ page }) {
    const wire = wiretap(page);
    await choose(page, 'audio_duplex', { dialect: 'duplex' });
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await phase(page, 'live');
    await wire.sends(1, ({ type }) => type === 'audio_chunk');
    await pressMore(page, 'pause');
    await phase(page, 'paused');
    await page.waitForTimeout(500);
    // A page that hears nothing asks the server for a sign of life.
    const units = () => wire.types(wire.sent).filter((type) => type === 'audio_chunk').length;
    const resting = units();
    await page.waitForTimeout(2200);
    assert.equal(units(), resting);
    await pressMore(page, 'pause');
    await phase(page, 'live');
    await wire.sends(resting + 2, ({ type }) => type === 'audio_chunk');
    await hangUp(page);
    assert.ok(wire.types(wire.got).includes('paused') && wire.types(wire.got).includes('resumed'));
    assert.ok(wire.types(wire.sent).includes('client_diagnostic'));
    await wire.ends('stopped');
  },

  async queue({ page, context }) {
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await phase(page, 'live');
    const second = await context.newPage();
    // Nobody looks and nobody speaks there when the turn comes: after 20 seconds, of which 3 are waited for here, the
    // next one has it.
    await silentMicrophone(second);
    await second.addInitScript(() => {
      Object.defineProperty(Document.prototype, 'hidden', { get: () => globalThis.__away ?? false });
      const setTimer = globalThis.setTimeout;
      globalThis.setTimeout = (act, ms, ...given) => setTimer(act, ms === 20_000 ? 3000 : ms, ...given);
    });
    const wire = wiretap(second);
    await second.goto('/half_duplex');
    await mainButton(second).click();
    await phase(second, 'queued');
    await second.waitForSelector('p-queue:not([hidden])');
    assert.equal(await second.locator('p-queue [role=status]').textContent(), 'Number 1 in the queue');
    assert.equal(wire.sent.length, 0, 'nothing is sent while waiting');
    const estimate = await second.locator('p-queue .quiet').first().textContent();
    assert.match(estimate, /about \d+ (s|min)/);
    await eventually(async () => /^\(1\)/.test(await second.title()), 'the place in the title');
    // Leaving and coming back costs the place only.
    await mainButton(second).click();
    await phase(second, 'ended');
    await mainButton(second).click();
    await phase(second, 'queued');
    await second.evaluate(() => (globalThis.__away = true));
    await hangUp(page);
    await phase(second, 'live');
    const from = Date.now();
    await mainButton(page).click();
    await phase(page, 'queued');
    await phase(second, 'ended');
    const waitedS = (Date.now() - from) / 1000;
    assert.ok(waitedS > 2, `after ${waitedS} s`);
    assert.ok(await second.getByText('Your turn came while you were away').isVisible());
    await phase(page, 'live');
    await hangUp(page);
    return `estimate ${estimate}, given back after ${waitedS.toFixed(1)} s`;
  },

  async no_microphone({ base }) {
    const browser = await launch({ devices: false });
    try {
      const { context } = await openStill(browser, base);
      const page = await context.newPage();
      await page.goto('/playground#realtime');
      await page.getByRole('button', { name: 'Connect' }).click();
      await page.getByRole('button', { name: 'Speak', exact: true }).click();
      await page.getByText('Plug one in or switch it on').waitFor();
      await page.goto('/audio_duplex');
      await mainButton(page).click();
      await page.getByText('No microphone was found.').waitFor();
      await page.getByRole('button', { name: 'Write instead' }).click();
      await page.waitForURL('**/turnbased');
    } finally {
      await browser.close();
    }
  },

  async insecure({ page }) {
    // A secure origin cannot be made insecure from outside: the page is told that it is.
    await page.addInitScript(() => Object.defineProperty(globalThis, 'isSecureContext', { value: false }));
    await page.goto('/audio_duplex');
    await page.getByText('The browser allows the microphone on secure pages only.').waitFor();
    await page.getByText('Start it without --http').waitFor();
    // The explanation stays when one tries nevertheless.
    await page.locator('.notices .notice').evaluate((node) => node.classList.add('old'));
    await mainButton(page).click();
    await page.locator('.notices .notice:not(.old)').getByText('on secure pages only.').waitFor();
  },

  async restart({ page, expected, restarted }) {
    expected.push(/.*/);
    await page.goto('/half_duplex');
    await mainButton(page).click();
    await phase(page, 'live');
    const again = await restarted();
    await phase(page, 'ended');
    const notice = await page.locator('.notices .notice strong').first().textContent();
    assert.equal(notice, 'The server was stopped.');
    // What can be done with the call has not to be fetched from a server that is gone.
    await page.locator('.after').getByRole('link', { name: 'View recording' }).waitFor();
    // Asked to, the page calls by itself once the server is there again.
    await page.getByRole('button', { name: 'Call again when it is back' }).click();
    await page.locator('.notices').getByText('Waiting for the server…').waitFor();
    await again();
    await phase(page, 'live');
    await hangUp(page);
    const look = page.locator('.after').getByRole('link', { name: 'View recording' });
    await look.waitFor();
    await page.locator('.after').getByRole('button', { name: 'Delete' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
    await look.waitFor({ state: 'detached' });
    assert.equal(await page.evaluate(() => document.activeElement.className), 'start');
    return notice;
  },

  async call_comes_online({ page, context, expected }) {
    expected.push(/INTERNET_DISCONNECTED/, /ERR_FAILED/, /^error: .*dynamically imported module/);
    // What failed to load is not blamed on the microphone, and an attempt that failed is not the last one.
    const part = /\/call\/later\.js/;
    await page.route(part, (route) => route.abort());
    await page.goto('/half_duplex');
    await mainButton(page).click();
    await page.getByText('A part of this page could not be loaded.').waitFor();
    await page.getByRole('button', { name: 'Reload the page' }).waitFor();
    await openSettings(page);
    await page.getByRole('status').getByText('A part of this page could not be loaded.').waitFor();
    await page.locator('.close-side').click();
    await page.unroute(part);
    await openSettings(page);
    await page.locator('#panel-settings details').first().waitFor();
    await page.waitForLoadState('networkidle');
    await context.setOffline(true);
    await mainButton(page).click();
    await page.locator('.state').getByText('You appear to be offline').waitFor();
    await context.setOffline(false);
    await phase(page, 'live');
    await hangUp(page);
  },

  async chat_comes_online({ page, expected }) {
    // The reader of Markdown is fetched with the first answer: an attempt that failed is not the last one.
    expected.push(/ERR_FAILED/);
    await page.route(/markdown-it\.js/, (route) => route.abort());
    let isDown = false;
    await page.routeWebSocket(/\/ws\/chat/, (socket) => {
      if (!isDown) return void socket.connectToServer();
      socket.onMessage(() => {
        const error = 'The language model cannot be reached.';
        socket.send(JSON.stringify({ type: 'error', error, message: error, code: 'upstream_failed' }));
        void socket.close({ code: 1011 });
      });
    });
    await page.goto('/turnbased');
    const field = page.locator('.compose textarea');
    const answers = page.locator('.message.assistant .prose');
    await field.fill('As **written**');
    await field.press('Enter');
    await answers.locator('.as-written').getByText('As **written**').waitFor();
    await page.unroute(/markdown-it\.js/);
    await field.fill('In **bold**');
    await field.press('Enter');
    await answers.nth(1).locator('strong').getByText('bold').waitFor();
    assert.match(await page.locator('.messages').textContent(), /^You.*Assistant/);
    // A voice that a browser has recorded has the type of a clip.
    await page.evaluate(async () => {
      const context = new AudioContext();
      const outlet = context.createMediaStreamDestination();
      new OscillatorNode(context).connect(outlet);
      const recorder = new MediaRecorder(outlet.stream);
      const recorded = new Promise((resolve) => {
        recorder.ondataavailable = ({ data }) => resolve(data);
      });
      recorder.start();
      setTimeout(() => recorder.stop(), 300);
      const transfer = new DataTransfer();
      transfer.items.add(new File([await recorded], 'memo.webm', { type: 'video/webm' }));
      document.dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));
    });
    await page.locator('.compose p-player').waitFor();
    // Where the page has no text of its own, the server's says what is wrong.
    isDown = true;
    await field.fill('What did I say?');
    await field.press('Enter');
    await page.locator('.message .error').getByText('The language model cannot be reached.').waitFor();
  },

  async keys({ browser }) {
    const server = await startServer(flags.python, {
      env: { PARLEY_SECURITY__NEEDS_KEY: 'true', PARLEY_SECURITY__ADMIN_TOKEN: 'a-token-for-tests' },
    });
    // Below a path of a proxy: the cookie of the key has to reach the server there too.
    const proxy = await startBelow(server.port, '/voice/');
    try {
      const { context, errors } = await openStill(browser, proxy.origin, { expected: [/401 \(Unauthorized\)/] });
      const admin = await context.newPage();
      await admin.goto(`${proxy.base}admin`);
      await admin.locator('input[type=password]').fill('wrong');
      await admin.keyboard.press('Enter');
      await admin.getByText('That token is not accepted here.').waitFor();
      await admin.locator('input[type=password]').fill('a-token-for-tests');
      await admin.keyboard.press('Enter');
      await admin.getByRole('button', { name: 'New key' }).click();
      await admin.locator('dialog input').fill('a kiosk');
      await admin.locator('dialog').getByRole('button', { name: 'New key' }).click();
      const key = await admin.locator('dialog .mono').textContent();
      await admin.locator('dialog').getByRole('button', { name: 'Close' }).click();
      await admin.getByText('a kiosk').waitFor();

      const page = await context.newPage();
      await page.goto(`${proxy.base}audio_duplex`);
      await page.getByText('This server needs a key').waitFor();
      // It comes by itself: when it is closed, keys continue in the page's content.
      await page.keyboard.press('Escape');
      await until(page, () => document.activeElement.matches('main'));
      // And it comes once: the next answer of the status does not open it, but a call does.
      const refused = page.waitForResponse((answer) => answer.url().endsWith('/status') && answer.status() === 401);
      await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
      await refused;
      await mainButton(page).click();
      await page.getByRole('button', { name: 'Enter the key' }).click();
      await page.getByText('This server needs a key').waitFor();
      // The field has the focus.
      await page.keyboard.type('pk_wrong');
      await page.keyboard.press('Enter');
      await page.getByText('That key is not accepted here.').waitFor();
      await page.locator('dialog input[type=password]').fill(key);
      await page.keyboard.press('Enter');
      await page.waitForEvent('load');
      await page.getByText('Ready', { exact: true }).waitFor({ state: 'attached' });
      await mainButton(page).click();
      await phase(page, 'live');
      await hangUp(page);

      await admin.getByRole('button', { name: 'Revoke' }).click();
      await admin.locator('dialog').getByRole('button', { name: 'Revoke' }).click();
      await admin.getByRole('cell', { name: 'a kiosk' }).waitFor({ state: 'detached' });
      assert.equal(await focused(admin), 'New key');
      assert.deepEqual(proxy.strays, []);
      assert.deepEqual(errors, []);
      await context.close();
    } catch (error) {
      error.message += `\n${
        server
          .log()
          .split('\n')
          .filter((line) => /Traceback|"level": "error"/.test(line))
          .at(-1) ?? ''
      }`;
      throw error;
    } finally {
      proxy.stop();
      await server.stop();
    }
  },

  async viewer({ page, expected }) {
    // It is in flight first, and looked for again until it is here.
    expected.push(/503/);
    await mockRecording(page);
    let asked = 0;
    await page.route('**/api/sessions/demo_recording', (route) => {
      asked++;
      const body = JSON.stringify({ detail: 'This recording is being handed over.', code: 'recording_coming' });
      return route.fulfill({ status: 503, contentType: 'application/json', body });
    });
    await page.goto('/s/demo_recording');
    await page.getByText('This recording is being prepared.').waitFor();
    await eventually(() => asked > 1, 'a second question');
    await page.getByText('This recording is being prepared.').waitFor();
    // For a moment it is complete, and its sound has not been asked for.
    const { meta, recording: complete } = recording();
    const json = (route, body) => route.fulfill({ contentType: 'application/json', body: JSON.stringify(body) });
    meta.ended_at = new Date().toISOString();
    await page.route('**/api/sessions/demo_recording', (route) => json(route, meta));
    await page.route('**/api/sessions/demo_recording/recording', (route) =>
      json(route, { ...complete, merged_replay: meta.replay && complete.merged_replay }),
    );
    await page.locator('.said .line').first().waitFor();
    assert.equal(await page.locator('.media audio').count(), 0);
    meta.replay = { state: 'done', progress: 1 };
    await page.locator('.media audio').waitFor();
    const said = page.locator('.said .line.assistant p');
    assert.deepEqual(await said.allTextContents(), ['The weather is nice today, so take a walk.']);
    const saving = page.waitForEvent('download');
    await page.getByRole('button', { name: 'As subtitles (.srt)' }).click();
    const subtitles = readFileSync(await (await saving).path(), 'utf8');
    assert.match(subtitles, /^1\n00:00:04,000 --> 00:00:07,000\nAssistant: The weather is nice today/);
    await page.getByLabel('Speed').selectOption('2');
    assert.equal(await page.evaluate(() => document.querySelector('audio').playbackRate), 2);
    await page.getByLabel('Speed').selectOption('1');
    await page.locator('.units summary').click();
    assert.equal(await page.locator('.cells li').count(), 8);
    await until(page, () => document.querySelector('audio').readyState > 0);
    await page.locator('.cells').evaluate(({ style }) => Object.assign(style, { maxHeight: '60px' }));
    await page.locator('.cells').getByRole('button', { name: 'Play from 0:04' }).click();
    await until(page, () => document.querySelector('audio').currentTime > 4.2);
    await until(page, () => /0:0[4-9]/.test(document.querySelector('.cells li[aria-current]')?.textContent ?? ''));
    await until(page, () => document.querySelector('.cells').scrollTop > 100);
    const drawn = await page.evaluate(() => {
      const canvas = document.querySelector('.timeline canvas');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      return data.filter((value, i) => i % 4 === 3 && value > 200).length;
    });
    assert.ok(drawn > 1000, 'the waveforms are drawn');
    await page.locator('textarea').fill('Nice');
    await page.locator('textarea').blur();
    await page.getByText('Saved').waitFor();
    await page.getByRole('button', { name: 'Delete' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('status').getByText('Deleted.').first().waitFor();
    assert.equal(await focused(page), 'Start page');
  },

  async look_again({ page, context, model }) {
    const wire = wiretap(page);
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await activity(page, 'speaking');
    await activity(page, 'listening');
    const heard = await page.locator('p-transcript .you .said').allTextContents();
    await hangUp(page);
    const spoken = wire.got
      .filter(({ message }) => message.type === 'response.output_audio.delta')
      .map(({ message }) => message.text)
      .join('');
    const opening = context.waitForEvent('page');
    await page.getByRole('link', { name: 'View recording' }).click();
    const viewer = await opening;
    await viewer.locator('.units summary').click();
    await viewer.locator('.cells li').first().waitFor();
    const read = (await viewer.locator('.said .line.assistant p').allTextContents()).join('');
    assert.equal(read.replace(/\s/g, ''), spoken.replace(/\s/g, ''), 'the conversation has all of it');
    if (model === 'pocket') {
      // What the person said is there, with the time at which it was said: the speech begins the file.
      const yours = await viewer.locator('.said .line.you p').allTextContents();
      assert.ok(heard.length > 0 && heard.every((words, i) => words === yours[i]), `${heard} became ${yours}`);
      assert.equal(await viewer.locator('h1').textContent(), yours[0]);
      const { said } = await (await fetch(`${viewer.url().replace('/s/', '/api/sessions/')}/recording`)).json();
      const [question, answer] = said;
      assert.ok(question.end_ms > question.start_ms + 400 && question.end_ms <= answer.start_ms, JSON.stringify(said));
      assert.match(await viewer.locator('.said .line.assistant').first().textContent(), /\d ms/);
    }
    const text = (await viewer.locator('.cells .words > span:not(.small, .user)').allTextContents()).join('');
    assert.equal(text.replace(/\s/g, ''), spoken.replace(/\s/g, ''));
    await until(viewer, () => document.querySelector('.media audio')?.readyState > 0);
    await viewer.locator('.cells li[data-mode="speak"] .time').first().click();
    await until(viewer, () => document.querySelector('.media audio').currentTime > 0.5);

    await page.bringToFront();
    await page.locator('.after').getByRole('button', { name: 'Share' }).click();
    await page.locator('dialog textarea').fill('Heard myself.');
    await page.getByRole('button', { name: 'Share and copy the link' }).click();
    const link = await page.locator('dialog textarea[readonly]').inputValue();
    assert.match(link, /\/s\/sh_/);
    await viewer.goto(link);
    await viewer.locator('.said .line').first().waitFor();
    assert.equal(await viewer.getByRole('button', { name: 'Delete' }).count(), 0);
    assert.equal(await viewer.locator('textarea').count(), 0, 'who was given the link may look only');
    await page.locator('dialog button').first().click();
    await page.goto('/explore');
    await page.locator('.recent a').first().waitFor();
    assert.equal(await page.locator('.recent a').count(), 1);
    assert.notEqual(await page.locator('.recent .name').textContent(), 'Voice call', 'its first words name it');
    // One's own list: another name, and a delete that takes both copies.
    await page.goto('/recordings');
    await page.locator('.recent').getByRole('button', { name: 'Rename' }).click();
    await page.keyboard.type('With myself');
    await page.keyboard.press('Enter');
    await page.locator('.recent').getByRole('button', { name: 'Rename “With myself”' }).waitFor();
    assert.equal(await focused(page), await page.locator('.recent a').textContent());
    await page.reload();
    await page.getByText('With myself').waitFor();
    const id = (await page.locator('.recent a').getAttribute('href')).replace('/s/', '');
    await page.getByRole('button', { name: 'Delete “With myself”' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
    await page.getByText('No conversations yet').waitFor();
    assert.equal(await focused(page), 'Start talking');
    const status = (await page.request.get(`/api/sessions/${id}`)).status();
    assert.equal(status, 404, 'the server’s copy is gone too');
  },

  async voice_upload({ page }) {
    const wire = wiretap(page);
    await page.goto('/audio_duplex');
    await openGroup(page, 'Its voice');
    const voice = page.locator('p-voice').first();
    const upload = async (file) => {
      const choosing = page.waitForEvent('filechooser');
      await voice.getByRole('button', { name: 'From a file' }).click();
      await (await choosing).setFiles(file);
    };
    await upload({ name: 'notes.txt', mimeType: 'text/plain', buffer: Buffer.from('not a sound') });
    await page.getByText('The browser cannot read this sound.').waitFor();
    await upload({ name: 'long.wav', mimeType: 'audio/wav', buffer: tone(440, 25) });
    const toast = page.getByText('A voice sample may last 20 seconds.');
    // What a message covers can be pressed.
    assert.equal(await toast.evaluate((node) => getComputedStyle(node).pointerEvents), 'none');
    assert.equal(await voice.locator('select').inputValue(), 'default');
    await upload({ name: 'short.wav', mimeType: 'audio/wav', buffer: tone(300, 2) });
    const short = voice.getByText('5 to 15 seconds give a better likeness.');
    await short.waitFor();
    await voice.locator('select').selectOption('default');
    await short.waitFor({ state: 'detached' });
    await voice.locator('select').selectOption('own:0');
    await short.waitFor();
    await upload({ name: 'mine.wav', mimeType: 'audio/wav', buffer: tone(300, 6) });
    await until(page, () => document.querySelector('p-voice select').value === 'own:1');
    await voice.locator('p-player button').click();
    await mainButton(page).click();
    await phase(page, 'live');
    await hangUp(page);
    const { session } = wire.sent.find(({ message }) => message.type === 'session.update').message;
    assert.equal(floats(session.ref_audio).length, 6 * 16000);
  },

  async voice_record({ page }) {
    const wire = wiretap(page);
    await page.goto('/half_duplex');
    await openGroup(page, 'Its voice');
    const record = async () => {
      await page.locator('p-voice').first().getByRole('button', { name: 'Record' }).click();
      const start = page.locator('dialog').getByRole('button', { name: 'Record' });
      assert.ok(await start.isDisabled(), 'nobody’s voice is taken without their word');
      await page.locator('dialog .switch input').click();
      await start.click();
      await until(
        page,
        () => Number.parseInt(document.querySelector('dialog .num').textContent.split(':')[1], 10) >= 2,
      );
      await page.locator('dialog').getByRole('button', { name: 'Finish' }).click();
      await page.locator('dialog p-player:not([hidden])').waitFor();
    };
    await record();
    assert.ok(!(await page.locator('dialog [role=status]').textContent()).includes('too short'));
    await page.locator('dialog').getByRole('button', { name: 'Use this voice' }).click();
    await mainButton(page).click();
    await phase(page, 'live');
    await hangUp(page);
    const { system_content: content } = wire.sent.find(({ message }) => message.type === 'prepare').message;
    const sound = floats(content.find(({ type }) => type === 'audio').data);
    assert.ok(sound.length >= 2 * 16000 && sound.some((value) => Math.abs(value) > 0.05));

    // Kept on the server, it is there for the next visit.
    await record();
    await page.locator('dialog').getByRole('textbox', { name: 'Name' }).fill('A friend');
    await page.locator('dialog').getByRole('button', { name: 'Save on the server' }).click();
    await page.getByText('Voice saved').waitFor();
    await page.reload();
    await openGroup(page, 'Its voice');
    await page.locator('p-voice select').first().selectOption({ label: 'A friend' });
    await page.locator('p-voice p-player:not([hidden])').first().waitFor();
    await page.locator('p-voice select').first().selectOption('default');
    await page.locator('p-voice').first().getByRole('button', { name: 'Listen' }).click();
    await page.locator('p-voice p-player:not([hidden])').first().waitFor();
  },

  async film({ page }) {
    await choose(page, 'omni', { recordHere: true, recordSubtitles: true, recordMegabits: '1' });
    await page.goto('/omni');
    await mainButton(page).click();
    await activity(page, 'speaking');
    await page.waitForTimeout(1500);
    await hangUp(page);
    const saving = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save the recording' }).click();
    const bytes = readFileSync(await (await saving).path());
    assert.equal(bytes.readUInt32BE(0), 0x1a45dfa3, 'a WebM file');
    // Looked at: a picture, both voices, and subtitles: bright words in its lower quarter, and a shade under them.
    const seen = await page.evaluate(async (text) => {
      const whole = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
      const url = URL.createObjectURL(new Blob([whole], { type: 'video/webm' }));
      const video = Object.assign(document.createElement('video'), { src: url, muted: true });
      const event = (name) =>
        new Promise((resolve, reject) => {
          video.addEventListener(name, resolve, { once: true });
          video.addEventListener('error', () => reject(new Error('it does not play')), { once: true });
        });
      await event('loadeddata');
      const known = event('durationchange');
      video.currentTime = 1e9;
      await known;
      const canvas = Object.assign(document.createElement('canvas'), { width: 160, height: 90 });
      const pen = canvas.getContext('2d', { willReadFrequently: true });
      const light = (x, y, width, height) => {
        const { data } = pen.getImageData(x, y, width, height);
        return data.reduce((sum, value, i) => (i % 4 === 3 ? sum : sum + value), 0) / (data.length * 0.75);
      };
      // Beside the words, where the camera's picture is no darker below than in its middle.
      const below = () => light(0, 85, 6, 5) / light(0, 40, 6, 20);
      const brightest = () =>
        pen
          .getImageData(20, 68, 120, 22)
          .data.reduce((most, value, i) => (i % 4 === 3 ? most : Math.max(most, value)), 0);
      let darkest = { below: Infinity, words: 0 };
      // It spoke last.
      for (let at = Math.max(0.2, video.duration - 2.8); at < video.duration; at += 0.4) {
        const sought = event('seeked');
        video.currentTime = at;
        await sought;
        pen.drawImage(video, 0, 0, 160, 90);
        if (below() < darkest.below) darkest = { below: below(), words: brightest() };
      }
      const context = new OfflineAudioContext(2, 1, 16000);
      const sound = await context.decodeAudioData(whole.buffer);
      const peaks = [0, 1].map((channel) =>
        sound.getChannelData(channel).reduce((most, value) => Math.max(most, Math.abs(value)), 0),
      );
      return { seconds: video.duration, width: video.videoWidth, darkest, peaks };
    }, bytes.toString('base64'));
    assert.ok(seen.width > 0 && seen.seconds > 3, JSON.stringify(seen));
    assert.ok(seen.darkest.below < 0.7, `subtitles have a shade: ${seen.darkest.below}`);
    assert.ok(seen.darkest.words > 180, `and words in it: ${seen.darkest.words}`);
    assert.ok(
      seen.peaks.every((peak) => peak > 0.02),
      `both voices: ${seen.peaks}`,
    );
    return `${seen.seconds.toFixed(1)} s, ${Math.round(bytes.length / 1024)} KB`;
  },

  async mixed({ page }) {
    // A steady tone as the file, speech as the microphone: in a mixed call the model hears both.
    const wire = wiretap(page);
    await page.goto('/audio_duplex');
    await openGroup(page, 'Live or from a file');
    await page.locator('p-source select').first().selectOption('file');
    const file = { name: 'tone.wav', mimeType: 'audio/wav', buffer: tone(1000, 30) };
    await page.locator('p-source input[type=file]').setInputFiles(file);
    await page.getByText(/LUFS/).first().waitFor();
    await page.locator('p-source select').last().selectOption('mixed');
    await page.getByRole('button', { name: 'Try the mix' }).click();
    await until(page, () => {
      const meters = [...document.querySelectorAll('p-source meter')];
      return meters.length === 3 && meters.every((meter) => meter.value > 0.01);
    });
    await page.getByRole('button', { name: 'Stop and listen' }).click();
    await page.locator('p-source > div > fieldset > p-player:not([hidden])').waitFor();
    await page.evaluate(() => {
      globalThis.__played = [];
      const play = HTMLMediaElement.prototype.play;
      HTMLMediaElement.prototype.play = function () {
        globalThis.__played.push(this);
        return play.call(this);
      };
    });
    await mainButton(page).click();
    await phase(page, 'live');
    const units = () =>
      wire.sent
        .filter(({ message }) => message.type === 'input_audio_buffer.append')
        .map(({ message }) => floats(message.audio));
    const rest = (unit) => {
      const whole = unit.reduce((sum, value) => sum + value * value, 0) / unit.length;
      return Math.sqrt(Math.max(0, whole - toneLevel(unit, 1000) ** 2));
    };
    await eventually(() => units().length >= 4, 'four units');
    await eventually(() => units().some((unit) => rest(unit) > 0.01), 'the microphone, too');
    await tryMixer(page, units);
    const isAudible = await page.evaluate(() =>
      globalThis.__played.some(
        (media) => media.src.startsWith('blob:') && !media.paused && Math.abs(media.volume - 0.3) < 0.01,
      ),
    );
    await hangUp(page);
    const levels = units().map((unit) => toneLevel(unit, 1000));
    assert.ok(
      levels.every((level) => level > 0.005),
      `the file is in every second: ${levels}`,
    );
    assert.ok(isAudible, 'the person hears the file too');
    assert.ok(
      await page.evaluate(() => globalThis.__played.every((media) => media.paused)),
      'and it ends with the call',
    );
  },

  async film_file({ page }) {
    const wire = wiretap(page);
    await page.goto('/omni');
    // What a browser has recorded: a clip that does not say how long it is.
    const clip = await page.evaluate(async () => {
      const canvas = Object.assign(document.createElement('canvas'), { width: 320, height: 180 });
      const pen = canvas.getContext('2d');
      const context = new AudioContext();
      const outlet = context.createMediaStreamDestination();
      const sound = new OscillatorNode(context, { frequency: 700 });
      sound.connect(outlet);
      sound.start();
      const recorder = new MediaRecorder(
        new MediaStream([...canvas.captureStream(15).getTracks(), ...outlet.stream.getTracks()]),
        { mimeType: 'video/webm' },
      );
      const parts = [];
      recorder.ondataavailable = ({ data }) => parts.push(data);
      // A busy machine starts to record only when many pictures have been drawn: those do not count.
      let startedAt = Infinity;
      recorder.onstart = () => (startedAt = performance.now());
      recorder.start(200);
      for (let i = 0; !(performance.now() - startedAt > 2200); i++) {
        pen.fillStyle = `hsl(${i * 8} 80% 50%)`;
        pen.fillRect(0, 0, 320, 180);
        await new Promise((resolve) => setTimeout(resolve, 66));
      }
      await new Promise((resolve) => {
        recorder.onstop = resolve;
        recorder.stop();
      });
      await context.close();
      return [...new Uint8Array(await new Blob(parts).arrayBuffer())];
    });
    await openGroup(page, 'Live or from a file');
    await page.locator('p-source select').first().selectOption('file');
    await page
      .locator('p-source input[type=file]')
      .setInputFiles({ name: 'clip.webm', mimeType: 'video/webm', buffer: Buffer.from(clip) });
    const told = await page.getByText(/clip\.webm · 0:0\d/).textContent();
    // A busy machine makes a longer clip of as many pictures.
    const seconds = Number(/0:0(\d)/.exec(told)?.[1]);
    assert.ok(seconds >= 2, told);
    await mainButton(page).click();
    await phase(page, 'live');
    const units = () =>
      wire.sent.filter(({ message }) => message.type === 'input_audio_buffer.append').map(({ message }) => message);
    await eventually(() => units().length >= seconds + 2, 'units after the clip');
    await hangUp(page);
    const [first] = units();
    assert.ok(toneLevel(floats(first.audio), 700) > 0.01, 'the sound of the clip');
    const pictures = new Set(units().flatMap(({ video_frames: pictured }) => pictured ?? []));
    assert.ok(pictures.size > 1, 'the picture moves');
    // After the clip: its last picture, and silence.
    const last = units()[seconds + 1];
    assert.deepEqual(last.video_frames, units()[seconds].video_frames);
    assert.ok(floats(last.audio).every((value) => Math.abs(value) < 0.01));
  },

  async barge_in({ page }) {
    // A server that speaks, and says in the middle of a second that it was interrupted.
    const STOPPED = 110; // in the middle of the fourth second
    const calls = await madeUp(page, {
      onPiece(say, count) {
        if (count === STOPPED) say({ type: 'response.interruption', state: 'stopped', index: 3, text: 'and so' });
      },
      onUnit: (say, count) =>
        say(count > secondsIn(STOPPED) ? listening : speaking('and so on ', { audio: second(0.1) })),
    });
    await choose(page, 'audio_duplex', { interrupting: 'stop' });
    await page.goto('/audio_duplex');
    await tap(page);
    await noteFlush(page);
    await mainButton(page).click();
    await phase(page, 'live');
    await until(page, () => globalThis.__flushedAt !== undefined);
    const at = await page.evaluate(() => globalThis.__flushedAt);
    const silentAfterMs = await audibleAfter(page, at);
    const { levels, from } = await heard(page);
    assert.ok(
      levels.slice(Math.round((at - from - 0.35) * 200), Math.round((at - from) * 200)).some((level) => level > 0.02),
      'it was speaking',
    );
    assert.deepEqual(sessionsOf(calls)[0].interruption, { mode: 'stop', backchannel: 'heed' });
    const told = calls[0].got.map(({ playback }) => playback).filter(Boolean);
    assert.ok(
      told.some(({ received_ms: came, buffered_ms: left }) => came >= 1000 && left >= 0 && left <= came),
      `with its sound it says what has come and what is still to be heard: ${JSON.stringify(told)}`,
    );
    await page.locator('p-transcript .assistant').getByText('(interrupted)').first().waitFor();
    await hangUp(page);
    return `silent ${silentAfterMs} ms after it was noticed`;
  },

  async operations({ page, context }) {
    // A way to talk is switched off, and on again.
    await page.goto('/admin');
    const toggle = page.locator('[data-app="omni"] input');
    await toggle.waitFor();
    await toggle.click();
    await page.getByRole('button', { name: 'Switch it off' }).click();
    await page.getByText('Done').first().waitFor();
    const caller = await context.newPage();
    await caller.goto('/omni');
    await caller.waitForURL((url) => url.pathname === '/');
    await caller.locator('[data-app="audio_duplex"]').first().waitFor();
    await until(caller, () => [...document.querySelectorAll('[data-app="omni"]')].every((node) => node.hidden));
    await page.bringToFront();
    await toggle.click();
    await until(page, async () => (await (await fetch('/api/apps')).json()).apps.some((app) => app.app_id === 'omni'));
    // A worker is taken out of service, put back, and started again.
    await page.getByText(/GB are free/).waitFor();
    const restart = page.getByRole('button', { name: 'Restart' });
    await restart.focus();
    await page.getByRole('button', { name: 'No new work' }).evaluate((node) => node.click());
    await page.getByText(/gets nothing new/).waitFor();
    // A look at the server takes neither the focus nor a button from under a finger.
    assert.ok(await restart.evaluate((node) => node === document.activeElement));
    await caller.bringToFront();
    await caller.goto('/audio_duplex');
    await mainButton(caller).click();
    await phase(caller, 'queued');
    await page.bringToFront();
    await page.getByRole('button', { name: 'Work again' }).click();
    await phase(caller, 'live');
    const sessions = page.locator('[aria-labelledby="admin-sessions"]');
    await sessions.getByText('connected').waitFor();
    await page.locator('.facts .chip', { hasText: 'half_duplex' }).waitFor();
    await page.locator('[aria-labelledby="admin-answers"]').getByRole('cell', { name: 'Voice call' }).waitFor();
    await sessions.getByRole('button', { name: 'End', exact: true }).click();
    await page.locator('dialog').getByRole('button', { name: 'End', exact: true }).click();
    await phase(caller, 'ended');
    await sessions.getByText('connected').waitFor({ state: 'detached' });
    await caller.bringToFront();
    await mainButton(caller).click();
    await phase(caller, 'live');
    await page.bringToFront();
    await restart.click();
    await page.locator('dialog').getByRole('button', { name: 'Restart' }).click();
    await phase(caller, 'ended');
    assert.ok(await caller.getByText('The server was stopped.').isVisible());
    await until(page, async () => (await (await fetch('/status')).json()).idle_workers === 1);
    await page.reload();
    await page.locator('#admin-log').waitFor();
    await page.waitForLoadState('networkidle');
    assert.equal(await page.getByText('worker_died').count(), 0, 'a restart that was ordered is no fault');
  },

  async phones({ browser, base }) {
    const { context, errors } = await openStill(browser, base, {
      options: { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 },
    });
    const page = await context.newPage();
    await page.goto('/mobile');
    await page.waitForURL('**/mobile/');
    await page.locator('[data-app="audio_duplex"]').first().waitFor({ state: 'attached' });
    const wire = wiretap(page);
    await page.goto('/mobile-omni/');
    const power = page.locator('.dock [data-act=camera]');
    await power.waitFor();
    await choicesReachable(page);
    // Off, then on: the person sees themselves before they call.
    await power.click();
    await page.getByText('The camera is off').waitFor();
    await power.click();
    await until(page, () => document.querySelector('video').videoWidth > 0);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
    const small = await page.evaluate(() =>
      [...document.querySelectorAll('button')]
        .filter((node) => node.checkVisibility({ visibilityProperty: true }))
        .map((node) => [node.getAttribute('aria-label') ?? node.textContent, node.getBoundingClientRect()])
        .filter(([, { width, height }]) => width > 0 && (width < 43.5 || height < 43.5))
        .map(([name, { width, height }]) => `${name} ${width}×${height}`),
    );
    assert.deepEqual(small, [], 'targets for thumbs');
    await mainButton(page).click();
    await phase(page, 'live');
    assert.ok(wire.urls[0].includes('mode=video'));
    const frames = () =>
      wire.sent.filter(({ message }) => message.video_frames).map(({ message }) => message.video_frames[0]);
    await eventually(() => frames().length >= 1, 'a picture');
    // Two fingers apart: the picture that is sent is the middle of what the camera sees.
    await page.evaluate(() => {
      const picture = document.querySelector('.picture');
      const touch = (type, pointerId, clientX) =>
        picture.dispatchEvent(
          new PointerEvent(type, { pointerId, pointerType: 'touch', clientX, clientY: 200, bubbles: true }),
        );
      touch('pointerdown', 1, 150);
      touch('pointerdown', 2, 200);
      touch('pointermove', 2, 250);
      touch('pointerup', 1, 150);
      touch('pointerup', 2, 250);
    });
    assert.equal(await page.locator('.zoomed').textContent(), '2×');
    const before = frames().length;
    await eventually(() => frames().length >= before + 2, 'two pictures');
    const camera = await page.evaluate(() => document.querySelector('video').videoWidth);
    assert.equal(jpegWidth(frames().at(-1)), camera / 2);
    await page.locator('.zoomed').click();
    // Held sideways nothing is cut off; what is far down in the settings does not move the frame.
    await page.setViewportSize({ width: 740, height: 360 });
    await until(page, () => {
      const [state, dock] = ['.state', '.dock .buttons'].map((name) =>
        document.querySelector(name).getBoundingClientRect(),
      );
      return innerHeight === 360 && state.bottom <= dock.top + 1 && dock.bottom <= 360;
    });
    const more = page.locator('.dock [data-act=more]');
    await more.click();
    const menu = page.locator('.more-menu');
    for (const viewport of [{ width: 740, height: 360 }, MAGNIFIED]) {
      await page.setViewportSize(viewport);
      await until(page, (width) => innerWidth === width, { given: viewport.width });
      assert.equal(await menu.evaluate((node) => node.scrollWidth - node.clientWidth), 0, 'all tools are in view');
      assert.ok((await menu.boundingBox()).x >= 0, `the menu is on the screen of ${viewport.width}`);
    }
    await more.click();
    await page.setViewportSize({ width: 360, height: 740 });
    await openSettings(page);
    await page.locator('#panel-settings summary').last().scrollIntoViewIfNeeded();
    assert.deepEqual(await page.evaluate(() => [scrollY, document.body.scrollTop]), [0, 0]);
    await page.keyboard.press('Escape');
    await pressMore(page, 'freeze');
    const atHold = frames().length;
    // The first of these may have been taken before.
    await eventually(() => frames().length >= atHold + 3, 'held pictures');
    const held = frames().slice(-2);
    await hangUp(page);
    assert.equal(held[0], held[1], 'a held picture stays the same');
    await phoneSheets(page);
    assert.deepEqual(errors, []);
    await context.close();
  },

  async screen({ page }) {
    const wire = wiretap(page);
    // No screen can be chosen in a headless browser: what the browser would hand over is drawn here.
    await page.addInitScript(() => {
      navigator.mediaDevices.getDisplayMedia = async () => {
        const canvas = Object.assign(document.createElement('canvas'), { width: 1600, height: 400 });
        canvas.getContext('2d').fillRect(0, 0, 9, 9);
        setInterval(() => canvas.getContext('2d').fillRect(0, 0, Math.random() * 99, 9), 100);
        return canvas.captureStream(5);
      };
    });
    await page.goto('/omni');
    await page.getByRole('button', { name: 'Turn the camera off' }).click();
    await mainButton(page).click();
    await phase(page, 'live');
    await pressMore(page, 'screen');
    await until(page, () => document.querySelector('video').videoWidth === 1600);
    assert.ok(
      !(await page.evaluate(() => document.querySelector('video').classList.contains('mirrored'))),
      'a screen is no mirror',
    );
    const frames = () =>
      wire.sent.filter(({ message }) => message.video_frames).map(({ message }) => message.video_frames[0]);
    await eventually(() => frames().length >= 2, 'two pictures');
    assert.equal(jpegWidth(frames()[1]), 896);
    // The browser's own "stop sharing": the call continues.
    await page.evaluate(() =>
      document.querySelector('video').srcObject.getTracks()[0].dispatchEvent(new Event('ended')),
    );
    await page.getByText('The camera was disconnected.').waitFor();
    assert.equal(await page.locator('main').getAttribute('data-phase'), 'live');
    await hangUp(page);
  },

  async other_server({ page, base }) {
    const wire = wiretap(page);
    await page.goto('/audio_duplex?api=evil.example:443');
    await page.getByText('Calls to evil.example:443 are not allowed here.').waitFor();
    await mainButton(page).click();
    await phase(page, 'live');
    assert.equal(new URL(wire.urls[0]).host, new URL(base).host);
    await leave(page);
    let asked = '';
    await page.routeWebSocket(/localhost:1234/, (socket) => {
      asked = socket.url();
      socket.send(JSON.stringify({ type: 'session.queue_done' }));
    });
    await page.goto('/audio_duplex?api=localhost:1234');
    await page.getByText('Calls go to localhost:1234').waitFor();
    await mainButton(page).click();
    await phase(page, 'connecting');
    assert.match(asked, /^ws:\/\/localhost:1234\/v1\/realtime\?mode=audio/);
  },

  async go_on({ page }) {
    // One call ends because its time is over, the next because the server has lost it.
    const answers = ['The capital is Vientiane.', 'Vientiane is in Laos.'];
    const audio = Buffer.alloc(4 * 12000).toString('base64');
    const calls = await madeUp(page, {
      onUnit: () => {},
      onStart(say, call) {
        if (call <= answers.length) say(speaking(answers[call - 1], { last: true, audio, tokens: 7000 }));
      },
    });
    const end = (farewell, code) => {
      calls.at(-1).say(farewell);
      void calls.at(-1).socket.close({ code });
    };
    // Who presses before the server has told its presets begins with the chosen one all the same.
    await page.addInitScript(() => {
      const ask = globalThis.fetch;
      globalThis.fetch = async (url, init) => {
        if (String(url).endsWith('/api/presets')) await new Promise((resolve) => setTimeout(resolve, 500));
        return await ask(url, init);
      };
    });
    const hasSaid = (text) => page.locator('p-transcript .assistant .said').getByText(text).waitFor();
    const goOn = async () => {
      await page.getByRole('button', { name: 'Continue' }).click();
      await phase(page, 'live');
    };
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await page.getByText('Its memory for this call is 85 % full.').waitFor();
    await hasSaid('The capital is Vientiane.');
    end({ type: 'session.closed', reason: 'timeout' }, 1000);
    await page.getByText('The time for this conversation is over.').waitFor();
    await goOn();
    await hasSaid('Vientiane is in Laos.');
    end(failed('inference_error', 'lost'), 1011);
    await goOn();
    await hangUp(page);
    const instructions = sessionsOf(calls).map(({ instructions }) => instructions);
    assert.ok(!instructions[0].includes('Vientiane'));
    assert.ok(instructions[1].startsWith(instructions[0]), instructions.join('\n---\n'));
    assert.ok(instructions[1].includes('The capital is Vientiane.'), instructions[1]);
    assert.match(instructions[2], /Assistant: Vientiane is in Laos\./);
  },

  async languages_and_writing({ page }) {
    await page.goto('/audio_duplex');
    await page.getByRole('button', { name: '中文' }).click();
    await page.locator('.state').getByText('点一下，开始说话').waitFor();
    // The call's preset follows the language, a request later.
    await page.getByText('用中文聊天').waitFor({ state: 'attached' });
    const left = await page.evaluate(() => {
      const words = [];
      const walk = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
      // Names of presets are the server's own.
      while (walk.nextNode())
        if (/[A-Za-z]{4,}/.test(walk.currentNode.data) && !walk.currentNode.parentElement.closest('.presets'))
          words.push(walk.currentNode.data.trim());
      return words;
    });
    assert.deepEqual(
      left.filter(
        (word) =>
          !/^(Realtime|Duplex|LUFS)/.test(word) &&
          !/token|Mbit|Duplex|Fake|fake|Default|Monitor|parrot/.test(word) &&
          // The name of a voice that a scenario before has saved on the server.
          word !== 'A friend',
      ),
      [],
    );
    await page.reload();
    await page.locator('.state').getByText('点一下，开始说话').waitFor();
    await page.locator('.dock [data-act=text]').click();
    // What is written is answered, in any language of the page.
    const field = page.locator('.writing textarea');
    await field.fill('Hello there');
    await field.press('Enter');
    await until(page, () => (document.querySelector('p-transcript .assistant .said')?.textContent ?? '').length > 3);
    // On a phone whose page is magnified twice, whole words can be read in the field.
    await page.setViewportSize({ width: 195, height: 420 });
    assert.ok((await field.boundingBox()).width > 100);
  },

  async keyboard({ page }) {
    // What a headset or the lock screen would press.
    await page.addInitScript(() => {
      const session = navigator.mediaSession;
      const listen = session.setActionHandler.bind(session);
      globalThis.__keys = {};
      session.setActionHandler = (key, act) => {
        globalThis.__keys[key] = act;
        listen(key, act);
      };
      // A headless browser has no screen to keep awake.
      globalThis.__locks = [];
      const lock = { released: false, release: () => globalThis.__locks.push('released') };
      navigator.wakeLock.request = async (kind) => void globalThis.__locks.push(kind) ?? lock;
    });
    const press = (key) => page.evaluate((name) => globalThis.__keys[name](), key);
    await page.goto('/audio_duplex');
    await mainButton(page).waitFor();
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the content');
    // A key that is held down begins one call and ends none.
    await mainButton(page).focus();
    await page.keyboard.down('Enter');
    await phase(page, 'live');
    for (let i = 0; i < 5; i++) await page.keyboard.down('Enter');
    await page.keyboard.up('Enter');
    assert.equal(await page.locator('main').getAttribute('data-phase'), 'live');
    assert.equal(await page.locator('.dock [aria-label^="Unmute"]').count(), 0, 'nor does it mute');
    await page.locator('body').press('m');
    await page.locator('.state').getByText('Your microphone is muted').waitFor();
    await page.waitForTimeout(MUTE_MS);
    await page.locator('body').press('M');
    await page.locator('.dock [aria-label^="Mute"]').waitFor();
    await page.waitForTimeout(MUTE_MS);
    // Text by key: the focus is in the panel, and after Escape where it came from.
    const focused = (selector) => until(page, (name) => document.activeElement.matches(name), { given: selector });
    await page.locator('.dock [data-act=more]').press('Enter');
    await page.locator('.dock [data-act=text]').press('Enter');
    await focused('[role=tab]');
    await page.locator('.writing textarea').press('Escape');
    await focused('.dock [data-act=more]');
    // The menu takes no focus with it.
    await page.keyboard.press('Enter');
    await page.locator('.dock [data-act=force]').press('Enter');
    await focused('.dock [data-act=more]');
    await pressMore(page, 'text');
    await page.getByRole('tab', { name: 'Text' }).focus();
    await page.keyboard.press('ArrowRight');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Settings');
    // Every control can be reached and says what it is.
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll('button, a[href], input, select, textarea')]
        .filter(
          (node) =>
            node.checkVisibility() &&
            !(
              node.getAttribute('aria-label') ||
              node.textContent.trim() ||
              node.labels?.length ||
              node.getAttribute('aria-labelledby')
            ),
        )
        .map((node) => node.outerHTML),
    );
    assert.deepEqual(nameless, []);
    await mainButton(page).focus();
    await spaceMutes(page);
    await press('togglemicrophone');
    await page.locator('.dock [aria-label^="Mute"]').waitFor();
    await press('togglemicrophone');
    await page.locator('.dock [aria-label^="Unmute"]').waitFor();
    await press('pause');
    await phase(page, 'paused');
    await press('play');
    await phase(page, 'live');
    await press('hangup');
    await phase(page, 'ended');
    const left = await page.evaluate(() => Object.values(globalThis.__keys).filter(Boolean).length);
    assert.equal(left, 0, 'without a call the keys are somebody else’s');
    assert.deepEqual(await page.evaluate(() => globalThis.__locks), ['screen', 'released']);
  },

  async example_node({ base }) {
    const code = example('js')
      .replace(/https?:\/\/localhost:8006/, base)
      .replace("'parley-client'", JSON.stringify(new URL('../../src/parley/web/client.js', import.meta.url).href));
    const { stdout } = await promisify(execFile)(
      process.execPath,
      ['--no-warnings', '--experimental-websocket', '--input-type=module', '--eval', code],
      { timeout: 240_000 },
    );
    assert.match(stdout, /What is the capital of France/);
    assert.match(stdout, /\d+ tokens\nstopped ?\n$/);
  },

  async example_page({ page }) {
    await page.route('**/example', (route) =>
      route.fulfill({
        contentType: 'text/html',
        body: `<!doctype html><link rel="icon" href="/static/icon.svg">${example('html')}`,
      }),
    );
    await page.goto('/example');
    await page.locator('#talk').click();
    await until(page, () => document.title.startsWith('live'));
    await until(page, () => document.querySelector('#said').textContent.length > 5);
    await page.locator('#talk').click();
    await until(page, () => document.title.startsWith('ended'));
  },
};

if (!findBrowser()) {
  console.log('skipped: no Chromium here (apt-get install chromium)');
  process.exit(77);
}
Object.assign(scenarios, callScenarios, extraScenarios, firefoxScenarios, lineScenarios, pageScenarios, wholeScenarios);
/** Scenarios whose pages move, and are heard and seen as well for it. */
const MOVING = new Set(['duplex_gapless', 'omni', 'slow_processor']);
/** Scenarios that look at what the server recorded. */
const RENDERED = new Set(['look_again', 'below_a_path', 'firefox']);

const stage = new Stage({ python: flags.python, wav: flags.wav });

/** @param {string} name @param {string} model @returns {Promise<'ok' | 'failed' | 'skipped'>} */
async function perform(name, model) {
  if (!(name in scenarios)) throw new Error(`no such scenario: ${name}`);
  if (name in firefoxScenarios && !findFirefox()) {
    console.log(`skip ${name}: no Firefox here (apt-get install firefox-esr)`);
    return 'skipped';
  }
  const from = Date.now();
  try {
    await stage.serve(model, { replays: RENDERED.has(name) });
    const said =
      name in firefoxScenarios
        ? await scenarios[name]({ base: stage.base })
        : await stage.play(scenarios[name], { isMoving: MOVING.has(name) });
    console.log(`ok   ${name} (${((Date.now() - from) / 1000).toFixed(1)} s)${said ? `: ${said}` : ''}`);
    return 'ok';
  } catch (error) {
    console.log(`FAIL ${name}: ${error.stack ?? error}`);
    // Whatever it has left behind is nobody else's.
    await stage.close();
    return 'failed';
  }
}

let failures = 0;
for (const name of wanted) failures += Number((await perform(name, flags.model)) === 'failed');
if (wanted.length === 0) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { name, model } = JSON.parse(line);
    console.log(`= ${await perform(name, model)}`);
  }
}
await stage.close();
process.exit(failures ? 1 : 0);
