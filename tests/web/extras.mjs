/** What is there next to talking itself: other ways to begin, to hold, to keep and to show. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';

import {
  activity,
  answer,
  choose,
  eventually,
  hangUp,
  mainButton,
  openGroup,
  openSettings,
  pressMore,
  phase,
  until,
  wiretap,
} from './support/page.mjs';
import { findings } from './pages.mjs';
import { openStill } from './support/browser.mjs';
import { DOT, madeUp, sessionsOf } from './support/made-up.mjs';
import { startServer } from './support/server.mjs';

export const extraScenarios = {
  async push_to_talk({ page }) {
    const wire = wiretap(page);
    await choose(page, 'half_duplex', { pushToTalk: true });
    await page.goto('/half_duplex');
    const talk = page.locator('.dock .talk');
    await mainButton(page).waitFor();
    assert.ok(await talk.isHidden(), 'before a call there is nothing to hold');
    await mainButton(page).press('Enter');
    await activity(page, 'listening');
    await until(page, () => document.activeElement.matches('.talk'));
    const chunks = () => wire.sent.filter(({ message }) => message.type === 'audio_chunk').length;
    // The microphone begins with the sentence, whose end alone would not be answered.
    await page.waitForTimeout(3000);
    assert.equal(chunks(), 0, 'nobody is heard who does not hold it');
    await talk.hover();
    await page.mouse.down();
    await page.locator('.dock .talk[aria-pressed=true]').waitFor();
    // In the middle of the sentence: an answer to all of it would come while the button is still held.
    await activity(page, 'hearing');
    await page.waitForTimeout(500);
    assert.ok(chunks() > 0, 'sound while it is held');
    await page.mouse.up();
    await page.locator('.dock .talk[aria-pressed=false]').waitFor();
    // The silence that follows lets the server find the end of what was said.
    await activity(page, 'speaking');
    await activity(page, 'listening');
    const before = chunks();
    await page.keyboard.down('Enter');
    await eventually(() => chunks() > before + 1, 'sound while the key is held');
    await page.keyboard.up('Enter');
    await hangUp(page);
  },

  async small_window({ page }) {
    // A headless browser has no screen for it: a frame of this page stands in for the window.
    await page.addInitScript(() => {
      const value = {
        async requestWindow() {
          const frame = document.createElement('iframe');
          document.body.append(frame);
          const inside = frame.contentWindow;
          inside.close = () => {
            inside.dispatchEvent(new Event('pagehide'));
            frame.remove();
          };
          return inside;
        },
      };
      Object.defineProperty(globalThis, 'documentPictureInPicture', { value });
    });
    await page.goto('/omni');
    await mainButton(page).click();
    await phase(page, 'live');
    await pressMore(page, 'small');
    const small = page.frameLocator('iframe');
    await small.locator('.dock .main').waitFor();
    assert.equal(await page.locator('.dock').count(), 0, 'there is one of each');
    await page.getByText('The controls are in a small window.').waitFor();
    const { width } = await page.locator('.picture').boundingBox();
    assert.equal(width, page.viewportSize().width, 'the picture has the whole page');
    await small.locator('.status .now').getByText('Listening').waitFor();
    await eventually(
      async () => /\d:\d\d/.test(await small.locator('.status .num').textContent()),
      'the time in the small window',
    );
    await small.locator('[aria-label^="Mute"]').click();
    await small.locator('[aria-label^="Unmute"]').waitFor();
    await small.locator('body').press('m');
    await small.locator('[aria-label^="Mute"]').waitFor();
    await small.getByRole('button', { name: 'Pause' }).click();
    await phase(page, 'paused');
    await small.getByRole('button', { name: 'Controls in a small window' }).click();
    await page.locator('main .dock').waitFor();
    await pressMore(page, 'pause');
    await phase(page, 'live');
    await hangUp(page);
  },

  async words_in_a_call({ page, context }) {
    const session = await context.newCDPSession(page);
    const megabytes = async () => {
      await session.send('HeapProfiler.collectGarbage');
      return (await session.send('Runtime.getHeapUsage')).usedSize / 1e6;
    };
    await page.addInitScript(() => {
      navigator.clipboard.writeText = async (text) => {
        globalThis.__copied = text;
      };
    });
    const copied = async () => {
      await eventually(() => page.evaluate(() => globalThis.__copied), 'something copied');
      return await page.evaluate(() => [globalThis.__copied, delete globalThis.__copied][0]);
    };
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await activity(page, 'speaking');
    const [before, from] = [await megabytes(), Date.now()];
    await activity(page, 'listening');
    await eventually(() => Date.now() > from + 6000, 'six seconds');
    const after = await megabytes();
    assert.ok(after - before < 3, `a call needs no more memory the longer it lasts: ${before} → ${after} MB`);
    const tools = page.locator('.words-tools');
    await tools.getByRole('button', { name: 'Copy the text' }).click();
    assert.match(await copied(), /Assistant: \w+/);
    await tools.getByRole('button', { name: 'Save the text' }).click();
    const saving = page.waitForEvent('download');
    await page.getByRole('button', { name: 'As web subtitles (.vtt)' }).click();
    assert.match(readFileSync(await (await saving).path(), 'utf8'), /^WEBVTT\n/);
    await tools.getByRole('button', { name: 'Share' }).click();
    await page.getByRole('button', { name: 'Share and copy the link' }).click();
    const link = await copied();
    assert.equal(await page.locator('main').getAttribute('data-phase'), 'live', 'and the call goes on');
    await hangUp(page);
    // What was shared in the call can be looked at after it.
    const viewer = await context.newPage();
    await viewer.goto(link);
    await viewer.locator('.said .line.assistant').first().waitFor();
    return `${before.toFixed(1)} → ${after.toFixed(1)} MB in six seconds of the call`;
  },

  async w9_written_into_the_call({ page }) {
    const wire = wiretap(page);
    const accepts = [];
    const calls = await madeUp(page, { accepts });
    await answer(page, '/status', { free_slots: 0, total_workers: 1 });
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await phase(page, 'live');
    // Where the server takes no words in a call they need a free place, and there is none.
    const field = page.locator('.writing textarea');
    await phase(page, 'live');
    await pressMore(page, 'text');
    await field.fill('What is the capital of Laos?');
    // Its person types on while the server is asked.
    await field.evaluate((node) => {
      node.form.requestSubmit();
      node.value = 'And of Peru?';
      node.form.requestSubmit();
    });
    await page.locator('#panel-conversation [role=status]').getByText('second free slot').waitFor();
    assert.equal(await field.inputValue(), 'What is the capital of Laos?\nAnd of Peru?', 'what was written stays');
    assert.ok(!wire.urls.some((url) => url.includes('/ws/chat')), 'no stranger loses a place to it');
    assert.equal(await page.locator('p-transcript .you').count(), 0);
    await hangUp(page);
    // The end of a call does not ask immediately if the server is busy: it still has that call.
    const asked = await page.evaluate(() => {
      const { fetch } = globalThis;
      const addresses = [];
      globalThis.fetch = (...request) => {
        addresses.push(String(request[0]));
        return fetch(...request);
      };
      document.dispatchEvent(new Event('placechange'));
      globalThis.fetch = fetch;
      return addresses;
    });
    assert.deepEqual(asked, []);
    // A picture and words go where the voice is, when the server takes them.
    accepts.push('input_text');
    await mainButton(page).click();
    await phase(page, 'live');
    const choosing = page.waitForEvent('filechooser');
    await page.locator('.writing button').first().click();
    await (await choosing).setFiles({ name: 'dot.png', mimeType: 'image/png', buffer: DOT });
    // Sent while the picture is still being read.
    await field.fill('What do you see?');
    await field.press('Enter');
    await page.locator('p-transcript').getByText('What do you see?').waitFor();
    assert.equal(await page.locator('p-transcript .you').textContent(), 'YouWhat do you see?', 'it has a speaker');
    const written = () => calls.at(-1).got.find(({ type }) => type === 'conversation.item.create');
    await eventually(written, 'the words on the wire');
    const [picture, text] = written().item.content;
    assert.match(picture.image_url, /^data:image\/jpeg;base64,/);
    assert.deepEqual(text, { type: 'input_text', text: 'What do you see?' });
    assert.ok(!wire.urls.some((url) => url.includes('/ws/chat')), 'there is one conversation');
    await page.locator('p-transcript img').click();
    await page.locator('dialog.large img').waitFor();
    await page.keyboard.press('Escape');
    await page.locator('p-transcript img').focus();
    await page.keyboard.press('Enter');
    await page.locator('dialog.large img').waitFor();
    await page.keyboard.press('Escape');
    await hangUp(page);
  },

  async scenes({ page }) {
    // Which model answers is told by the server; what can be done with it is offered.
    await answer(page, '/api/frontend_defaults', { model: 'openbmb/MiniCPM-o-4_5' });
    const calls = await madeUp(page);
    const instructions = () => sessionsOf(calls).at(-1).instructions;
    await page.goto('/audio_duplex');
    await page.getByRole('button', { name: 'Interpreter' }).click();
    await page.locator('.suggestion').getByText('Translate everything I say into Chinese.').waitFor();
    await page.locator('p-prompt .note').getByText('You are an interpreter.').waitFor({ state: 'attached' });
    await mainButton(page).click();
    await phase(page, 'live');
    assert.match(instructions(), /^You are an interpreter\./);
    await hangUp(page);
    // After a call only another one is offered; a new page offers scenes again.
    await page.goto('/audio_duplex');
    await page.getByRole('button', { name: 'Interpreter' }).click();
    await page.locator('[data-scene=translator][aria-pressed=true]').waitFor();
    // Left again, here or in the settings, everything is as it was.
    await page.getByRole('button', { name: 'Interpreter' }).click();
    await page.locator('.suggestion').getByText('Help me practice English').waitFor();
    await page.getByRole('button', { name: 'Interpreter' }).click();
    await page.locator('[data-scene=translator][aria-pressed=true]').waitFor();
    await openSettings(page);
    await page.getByRole('button', { name: 'Back to my own instructions' }).click();
    await page.locator('[data-scene=translator][aria-pressed=false]').waitFor();
    await page.locator('.suggestion').getByText('Help me practice English').waitFor();
    await mainButton(page).click();
    await phase(page, 'live');
    assert.doesNotMatch(instructions(), /interpreter/);
    await hangUp(page);
    await answer(page, '/api/frontend_defaults', { model: 'pocket' });
    await page.goto('/audio_duplex');
    await page.getByRole('button', { name: 'Riddles' }).click();
    await page.locator('.suggestion').getByText('Give me a riddle.').waitFor();
    // A voice of the model's own: its sample is heard here, and chooses it there.
    await openGroup(page, 'Its voice');
    const voice = page.locator('p-voice').first();
    await voice.getByText('This model does not imitate').waitFor();
    await voice.locator('select').selectOption({ label: 'A man’s voice' });
    await voice.locator('p-player:not([hidden])').waitFor();
    await mainButton(page).click();
    await phase(page, 'live');
    const { ref_audio: sample } = sessionsOf(calls).at(-1);
    assert.ok(Buffer.from(sample, 'base64').length > 3 * 64000, 'seconds of sound');
    await hangUp(page);
    // Where a model runs is promised of those that are known here.
    for (const [model, where] of [
      ['pocket', 'and nowhere else'],
      ['cascade', 'may run elsewhere'],
      ['', 'may run elsewhere'],
    ]) {
      await answer(page, '/api/frontend_defaults', { model });
      await page.goto('/privacy');
      await page.getByText(where).waitFor();
      await page.goto('/about');
      await page.getByText('under Apache-2.0.').first().waitFor();
      assert.equal(await page.getByText('The model here').count(), model ? 1 : 0);
    }
  },

  async embedded({ browser, python }) {
    // A page of another origin, whose own server exchanges its key for a token that lasts for minutes.
    let parley;
    let tokenAnswer = null;
    const docs = readFileSync(new URL('../../docs/do/embed.md', import.meta.url), 'utf8');
    const tags = /```html\n(.*?)```/s.exec(docs)[1];
    const shop = (/** @type {(tags: string) => string} */ change = (same) => same) =>
      `<!doctype html><html lang=en><meta charset=utf-8><link rel=icon href=data:,><title>A shop</title><main><h1>Shop</h1>
      ${change(tags.replace('https://talk.example.org', parley.base))}`;
    const site = createServer(async (request, response) => {
      if (request.url === '/parley-token') {
        const headers = { authorization: 'Bearer a-token-for-tests', 'content-type': 'application/json' };
        const url = `${parley.base}/v1/realtime/client_secrets`;
        const asked = () => fetch(url, { method: 'POST', headers, body: '{}' });
        const answer = tokenAnswer ?? (await asked().catch(() => new Response('', { status: 502 })));
        const { status } = answer;
        const text = await answer.text();
        const body = answer.ok && !tokenAnswer ? JSON.stringify({ token: JSON.parse(text).value }) : text;
        response.writeHead(status, { 'content-type': 'application/json' }).end(body);
        return;
      }
      response.writeHead(200, { 'content-type': 'text/html' });
      response.end(shop(request.url === '/no-token-url' ? (same) => same.replace(/token-url="[^"]*"/, '') : undefined));
    });
    await new Promise((resolve) => site.listen(0, '127.0.0.1', resolve));
    const origin = `http://127.0.0.1:${site.address().port}`;
    const env = {
      PARLEY_SECURITY__NEEDS_KEY: 'true',
      PARLEY_SECURITY__ADMIN_TOKEN: 'a-token-for-tests',
      PARLEY_SECURITY__ALLOWED_ORIGINS: `${origin},http://plain.example`,
    };
    parley = await startServer(python, { env });
    try {
      const { context, errors, expected } = await openStill(browser, origin);
      const page = await context.newPage();
      await page.addInitScript(() => {
        globalThis.__told = [];
        // Eight minutes pass in half a second: the token is renewed meanwhile.
        const repeat = globalThis.setInterval;
        globalThis.setInterval = (act, ms, ...given) => repeat(act, ms === 480_000 ? 500 : ms, ...given);
        globalThis.__sockets = [];
        globalThis.WebSocket = class extends WebSocket {
          constructor(url) {
            super(url);
            globalThis.__sockets.push(this);
          }
        };
        for (const type of ['phase', 'caption', 'ended'])
          document.addEventListener(type, ({ detail }) => globalThis.__told.push([type, detail]));
      });
      const tap = () => page.getByRole('button', { name: 'Start talking' }).click();
      await page.goto(origin);
      await page.getByText('Tap to talk').waitFor();
      // A person who likes it dark, on a page that is white.
      await page.emulateMedia({ colorScheme: 'dark' });
      assert.deepEqual(await findings(page, 'before a call'), []);
      await tap();
      await until(page, () =>
        globalThis.__told.some(([type, { who, heard }]) => type === 'caption' && who !== 'you' && heard > 3),
      );
      // The line breaks: the call continues over another, with the new token.
      await page.evaluate(() => globalThis.__sockets[0].close(4006));
      await until(page, () => globalThis.__sockets[1]?.readyState === 1);
      const [first, second] = await page.evaluate(() =>
        globalThis.__sockets.map(({ url }) => new URL(url).searchParams.get('token')),
      );
      assert.ok(first && second && first !== second, 'the token is another');
      await page.getByRole('button', { name: 'Mute the microphone' }).click();
      await page.getByText('Muted').waitFor();
      assert.deepEqual(await findings(page, 'in a call'), []);
      await page.getByRole('button', { name: 'Hang up' }).click();
      await until(page, () => globalThis.__told.at(-1)[0] === 'ended');
      assert.equal(await page.evaluate(() => globalThis.__told.at(-1)[1].reason), 'stopped');
      await page.getByText('Tap to talk again').waitFor();
      assert.deepEqual(errors, []);

      // Visitors read a sentence, the page's owner what has to be set.
      expected.push(/./);
      const hints = [];
      page.on('console', (message) => message.text().startsWith('<parley-call>') && hints.push(message.text()));
      const fails = async (sentence, hint) => {
        await page.getByText(sentence).waitFor();
        await eventually(async () => hints.length > 0, `a hint about ${hint}`);
        assert.match(hints.splice(0).join('\n'), hint);
      };
      const unavailable = 'Voice calls are not available right now.';
      tokenAnswer = new Response('', { status: 500 });
      await tap();
      await fails(unavailable, /^<parley-call>: POST \/parley-token \(token-url\) answered 500\. [^\n]*$/);
      tokenAnswer = Response.json({ token: 'st_expired' });
      await tap();
      await fails(unavailable, /did not accept the token of \/parley-token\. It may have expired/);
      tokenAnswer = null;
      await page.goto(`${origin}/no-token-url`);
      await tap();
      await fails(unavailable, /needs a key\. Set token-url/);
      await page.goto(origin);
      await page.evaluate(() => {
        navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', 'NotAllowedError'));
      });
      await tap();
      await page.getByText('Please allow the microphone in your browser').waitFor();
      assert.deepEqual(hints, [], 'nothing that the owner could set');

      await page.route('http://plain.example/', (route) => route.fulfill({ contentType: 'text/html', body: shop() }));
      await page.goto('http://plain.example/');
      await tap();
      await fails('Voice calls work on secure (https) pages only.', /Serve plain\.example over HTTPS\./);

      await page.route('http://shop.example/**', (route) => route.fulfill({ contentType: 'text/html', body: shop() }));
      await page.goto('http://shop.example/');
      await fails(unavailable, /PARLEY_SECURITY__ALLOWED_ORIGINS=http:\/\/shop\.example\./);
      await page.route('http://shop.example/own/**', (route) =>
        route.fulfill({
          contentType: 'text/html',
          body: shop((same) => same.replace('</parley', 'Write to us.</parley')),
        }),
      );
      await page.goto('http://shop.example/own/');
      await page.getByText('Write to us.').waitFor();
      assert.ok(await page.getByText(unavailable).isHidden(), 'the owner has words of their own');
      hints.length = 0;

      await page.goto(origin);
      await page.getByText('Tap to talk').waitFor();
      await parley.stop();
      await tap();
      await fails('No answer at the moment.', /does not answer\. Is it running/);
      await context.close();
    } finally {
      site.close();
      await parley.stop();
    }
  },
};
