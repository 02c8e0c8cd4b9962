/**
 * Figures of the pages, printed and not asserted: a busy machine makes them worse without anything being wrong.
 *
 *     node tests/web/figures.mjs --wav speech.wav [--python .venv/bin/python] [load | work | latency | hour] …
 *
 * load: bytes as they travel and milliseconds until a page can be used, also with a processor slowed down six
 * times. work: processor time of the page's main thread until then, which other work on the machine moves least.
 * latency: what the page itself adds between microphone and loudspeaker, and from an interruption to
 * silence. hour: one call of --minutes (60), its memory and its clocks; what the server can remember is full
 * after minutes, and the page continues the latest of what was said.
 */

import { parseArgs } from 'node:util';

import { findBrowser, launch, openContext } from './support/browser.mjs';
import { activity, eventually, hangUp, mainButton, phase, pressHush, silenceAfter, tap } from './support/page.mjs';
import { startServer } from './support/server.mjs';

const { values: flags, positionals } = parseArgs({
  options: {
    wav: { type: 'string' },
    python: { type: 'string', default: '.venv/bin/python' },
    model: { type: 'string', default: 'parrot' },
    minutes: { type: 'string', default: '60' },
    times: { type: 'string', default: '5' },
  },
  allowPositionals: true,
});

const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const round = (list) => list.map((value) => Math.round(value));

const PATHS = ['/', '/audio_duplex', '/omni', '/half_duplex', '/turnbased'];

const figures = {
  async work({ browser, base }) {
    for (const path of PATHS) {
      const times = [];
      for (let i = 0; i < Number(flags.times); i++) {
        const { context } = await openContext(browser, base);
        await context.addInitScript(noteUsable);
        const page = await context.newPage();
        await browser.startTracing(page, { categories: ['toplevel', 'devtools.timeline', 'blink.user_timing'] });
        await page.goto(path);
        await eventually(() => page.evaluate(() => globalThis.__usableMs), 'a page that can be used');
        times.push(workUntilUsable(JSON.parse(String(await browser.stopTracing())).traceEvents));
        await context.close();
      }
      console.log(`work ${path}: ${median(times).toFixed(1)} ms (${times.map((ms) => ms.toFixed(1))})`);
    }
  },

  async load({ browser, base }) {
    for (const path of PATHS) {
      for (const rate of [1, 6]) {
        const times = [];
        let bytes = 0;
        for (let i = 0; i < Number(flags.times); i++) {
          const { context } = await openContext(browser, base);
          await context.addInitScript(noteUsable);
          const page = await context.newPage();
          const session = await context.newCDPSession(page);
          await session.send('Emulation.setCPUThrottlingRate', { rate });
          await session.send('Network.enable');
          bytes = 0;
          session.on('Network.loadingFinished', ({ encodedDataLength }) => {
            bytes += encodedDataLength;
          });
          await page.goto(path);
          await eventually(() => page.evaluate(() => globalThis.__usableMs), 'a page that can be used');
          times.push(await page.evaluate(() => globalThis.__usableMs));
          await context.close();
        }
        const kb = rate === 1 ? `, about ${Math.round(bytes / 1024)} KB by then` : '';
        console.log(`load ${path} at 1/${rate} speed: ${Math.round(median(times))} ms (${round(times)})${kb}`);
      }
    }
  },

  async latency({ browser, base }) {
    const { context } = await openContext(browser, base);
    await context.addInitScript(noteSound);
    const page = await context.newPage();
    await page.goto('/audio_duplex');
    await tap(page);
    await page.evaluate(listenToRig);
    await mainButton(page).click();
    const silences = [];
    for (let i = 0; i < 2 * Number(flags.times); i++) {
      await activity(page, 'speaking');
      if (i % 2 === 1) silences.push(await silenceAfter(page, pressHush));
      await activity(page, 'listening');
    }
    const { captured, started, offset } = await page.evaluate(() => globalThis.__sound);
    await hangUp(page);
    const capture = captured.map(({ at, sentAt }) => sentAt - (at * 1000 + offset));
    const playback = started.map(({ at, cameAt }) => at * 1000 + offset - cameAt);
    console.log(`latency, last sample to send: ${median(capture).toFixed(1)} ms (${round(capture)})`);
    console.log(`latency, message to sound: ${median(playback).toFixed(1)} ms (${round(playback)})`);
    console.log(`latency, the page beside the unit: ${(median(capture) + median(playback)).toFixed(1)} ms`);
    console.log(`latency, interruption to silence: ${median(silences)} ms (${silences})`);
    await context.close();
  },

  async hour({ browser, base }) {
    const { context, errors } = await openContext(browser, base, {
      options: { viewport: { width: 1280, height: 800 } },
    });
    // The dialect in which the server says when it sent what, so that a drift is seen.
    const page = await context.newPage();
    const session = await context.newCDPSession(page);
    await page.goto('/privacy');
    await page.evaluate(() =>
      localStorage.setItem('parley.settings.audio_duplex', JSON.stringify({ dialect: 'duplex' })),
    );
    await page.goto('/audio_duplex');
    await mainButton(page).click();
    await phase(page, 'live');
    const row = async (name) =>
      (await page.locator('p-metrics div', { hasText: name }).first().locator('dd').textContent()).trim();
    const renewals = () => page.locator('p-transcript').getByText('memory full').count();
    const from = Date.now();
    for (let minute = 0; minute <= Number(flags.minutes); minute++) {
      await eventually(() => Date.now() - from >= minute * 60_000, `minute ${minute}`, 120_000);
      await session.send('HeapProfiler.collectGarbage');
      const { usedSize } = await session.send('Runtime.getHeapUsage');
      const { nodes } = await session.send('Memory.getDOMCounters');
      const state = await page.locator('main').getAttribute('data-phase');
      const units = await row('Seconds sent');
      const late = Math.round((Date.now() - from) / 1000);
      console.log(
        `hour, minute ${minute}: ${state}, ${late} s, ${units} units, ${(usedSize / 1e6).toFixed(1)} MB, ` +
          `${nodes} nodes, drift ${await row('Drift')}, gaps ${await row('Gaps')}, ` +
          `dropped ${await row('Seconds dropped')}, memory full ${await renewals()} times`,
      );
      if (state === 'ended') break;
    }
    if ((await page.locator('main').getAttribute('data-phase')) === 'live') await hangUp(page);
    if (errors.length > 0) console.log(`hour, in the console: ${errors.join('\n')}`);
    await context.close();
  },
};

/** Milliseconds of processor time that the main thread took, by a trace of Chromium. */
function workUntilUsable(events) {
  const mark = events.find(({ name, cat }) => name === 'usable' && cat.includes('user_timing'));
  const own = events
    .filter(({ pid, tid, ph, ts }) => pid === mark.pid && tid === mark.tid && ph === 'X' && ts <= mark.ts)
    .sort((a, b) => a.ts - b.ts || b.dur - a.dur);
  let total = 0;
  let end = 0;
  for (const { ts, dur, tdur = dur } of own) {
    // What lies within another event is counted with it.
    if (ts < end) continue;
    end = ts + dur;
    total += end > mark.ts ? (tdur * (mark.ts - ts)) / dur : tdur;
  }
  return total / 1000;
}

/** In the page: when what a person begins with is there. */
function noteUsable() {
  new MutationObserver((_, watch) => {
    if (!document.querySelector('.start, .dock .main, .compose textarea, .hero .button')) return;
    globalThis.__usableMs = performance.now();
    performance.mark('usable');
    watch.disconnect();
  }).observe(document, { childList: true, subtree: true });
}

/** In the page, before its scripts: when units are ready and leave, and when answers come. */
function noteSound() {
  const sound = { captured: [], started: [], offset: Infinity, unitAt: 0, cameAt: 0 };
  globalThis.__sound = sound;
  const Node = globalThis.AudioWorkletNode;
  globalThis.AudioWorkletNode = class extends Node {
    constructor(context, name, options) {
      super(context, name, options);
      if (name === 'parley-capture') {
        this.port.addEventListener('message', ({ data }) => {
          if (data.type === 'unit') sound.unitAt = data.at;
        });
        // The earliest that a moment of the sound's clock was seen: when its block was made.
        setInterval(() => {
          sound.offset = Math.min(sound.offset, performance.now() - context.currentTime * 1000);
        }, 7);
      }
    }
  };
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (text) {
    if (String(text).includes('input_audio_buffer.append')) {
      sound.captured.push({ at: sound.unitAt, sentAt: performance.now() });
    }
    return send.call(this, text);
  };
  const Socket = globalThis.WebSocket;
  globalThis.WebSocket = class extends Socket {
    constructor(...how) {
      super(...how);
      this.addEventListener('message', ({ data, timeStamp }) => {
        const hasSound = String(data).includes('response.output_audio.delta');
        // The first message of a turn: what follows finds it sounding already.
        if (hasSound && !sound.isSounding) {
          sound.isSounding = true;
          sound.cameAt = timeStamp;
        }
      });
    }
  };
}

/** In the page: when a turn's first sample leaves, on the sound's clock. */
async function listenToRig() {
  const { theRig } = await import(document.querySelector('script[src]').src.replace(/pages\/.*/, 'audio/rig.js'));
  const rig = theRig();
  const sound = globalThis.__sound;
  rig.addEventListener('started', ({ detail }) => sound.started.push({ at: detail.at, cameAt: sound.cameAt }));
  for (const end of ['drained', 'silent', 'flushed']) {
    rig.addEventListener(end, () => {
      sound.isSounding = false;
    });
  }
}

if (!findBrowser()) {
  console.log('no Chromium here (apt-get install chromium)');
  process.exit(77);
}
const wanted = positionals.length > 0 ? positionals : ['load', 'latency'];
const env = { PARLEY_LIMITS__DUPLEX_SESSION_S: '7200' };
const server = await startServer(flags.python, { model: flags.model, replays: true, env });
const browser = await launch({ wav: flags.wav, fps: 20, isWhole: true });
try {
  for (const name of wanted) await figures[name]({ browser, base: server.base });
} finally {
  await browser.close();
  await server.stop();
}
process.exit(0);
