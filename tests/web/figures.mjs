/**
 * Figures of the pages, printed and not asserted: a busy machine makes them worse without anything being wrong.
 *
 *     node tests/web/figures.mjs --wav speech.wav [--python .venv/bin/python] [load | work | wait | hour] …
 *
 * load: bytes as they travel and milliseconds until a page can be used, also with a processor slowed down six
 * times. work: processor time of the page's main thread until then, which other work on the machine moves least.
 * wait: from the last sound of a sentence in the microphone to the first of its answer that leaves the page, for every
 * sentence of the file, on --pages (`make web-wait`). hour: one call of --minutes (60), its memory and its clocks; what
 * the server can remember is full after minutes, and the page continues the latest of what was said.
 */

import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

import { findBrowser, launch, openContext } from './support/browser.mjs';
import { choose, eventually, hangUp, mainButton, phase, until } from './support/page.mjs';
import { startServer } from './support/server.mjs';
import { correlation, envelope } from './support/sound.mjs';

const { values: flags, positionals } = parseArgs({
  options: {
    wav: { type: 'string' },
    python: { type: 'string', default: '.venv/bin/python' },
    model: { type: 'string', default: 'parrot' },
    minutes: { type: 'string', default: '60' },
    times: { type: 'string', default: '5' },
    pages: { type: 'string', default: '/audio_duplex,/realtime,/half_duplex' },
  },
  allowPositionals: true,
});

const percentile = (list, part) => [...list].sort((a, b) => a - b)[Math.floor(part * list.length)];
const median = (list) => percentile(list, 0.5);
const round = (list) => list.map((value) => Math.round(value));

/** Silence between two sentences of a file, in frames of 5 ms. */
const PAUSE_FRAMES = 600;

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

  async wait({ browser, base }) {
    const file = readFileSync(flags.wav);
    const { levels, sentences } = spokenIn(new Int16Array(file.buffer, file.byteOffset + 44));
    for (const path of flags.pages.split(',')) {
      const { context } = await openContext(browser, base, { options: { reducedMotion: 'reduce' } });
      const page = await context.newPage();
      await choose(page, 'realtime', { mode: 'audio' });
      await page.goto(path);
      await page.evaluate(listenToBoth);
      await mainButton(page).click();
      await phase(page, 'live');
      await until(page, (seconds) => globalThis.__both.mic.length > seconds * 200, {
        given: levels.length / 200 + 4,
        ms: 1000 * (levels.length / 100 + 60),
      });
      const heard = await page.evaluate(() => globalThis.__both);
      await hangUp(page);
      const found = waits(levels, sentences, heard);
      const total = found.map(({ soundMs }) => soundMs);
      const own = found.map(({ soundMs, cameMs }) => soundMs - cameMs);
      console.log(`wait ${path}: median ${median(total)}, p95 ${percentile(total, 0.95)} ms (${total})`);
      console.log(`wait ${path}: of that behind the message ${median(own)} ms (${own}), ${heard.gaps} gaps`);
      console.log(`wait ${path}: the sound lost ${Math.round(heard.slowMs)} ms`);
      await context.close();
    }
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

/** Where speech lies between long pauses, in frames of 5 ms. @param {Int16Array} samples 16 kHz */
function spokenIn(samples) {
  const levels = envelope(
    Array.from(samples, (value) => value / 32768),
    16000,
  );
  const sentences = [];
  levels.forEach((level, i) => {
    if (level < 0.002) return;
    if (i - (sentences.at(-1)?.to ?? -Infinity) > PAUSE_FRAMES) sentences.push({ from: i, to: i });
    sentences.at(-1).to = i;
  });
  return { levels, sentences };
}

/**
 * From the end of each sentence, as the page's microphone heard it, to the first sound of the answer, and to the
 * moment in which the page had it; ms.
 */
function waits(levels, sentences, { mic, voice, from, came }) {
  let shift = null;
  return sentences.flatMap(({ from: begins, to }, i) => {
    const said = levels.slice(begins, to + 1);
    const places = shift === null ? [0, mic.length - said.length - begins] : [shift - 200, shift + 200];
    shift = bestShift(mic, said, begins, places);
    const end = to + 1 + shift;
    const next = (sentences[i + 1]?.from ?? Infinity) + shift;
    const sounds = voice.findIndex((level, at) => level > 0.001 && at > begins + shift && at < next);
    if (sounds < 0) return [];
    const began = from + (begins + shift) / 200;
    const cameMs = 1000 * (came.find((at) => at > began) - from) - 5 * end;
    return [{ soundMs: 5 * (sounds - end), cameMs: Math.round(cameMs) }];
  });
}

/** How many frames later `said` was heard than it lies in the file. */
function bestShift(mic, said, begins, [least, most]) {
  let best = { shift: least, likeness: -1 };
  for (let shift = Math.max(least, -begins); shift <= most; shift++) {
    const likeness = correlation(mic.slice(begins + shift, begins + shift + said.length), said);
    if (likeness > best.likeness) best = { shift, likeness };
  }
  return best.shift;
}

/** In the page: levels of microphone and voice, and when the page gives its loudspeaker something. */
async function listenToBoth() {
  const { theRig } = await import(document.querySelector('script[src]').src.replace(/pages\/.*/, 'audio/rig.js'));
  const rig = theRig();
  await rig.open();
  const { node } = await rig.listenIn();
  const both = { mic: [], voice: [], from: null, came: [], gaps: 0, slowMs: 0 };
  globalThis.__both = both;
  const { context } = rig;
  const frame = context.sampleRate / 200;
  const levelsOf = (samples) =>
    Array.from(
      { length: Math.floor(samples.length / frame) },
      (_, i) => Math.hypot(...samples.subarray(i * frame, (i + 1) * frame)) / Math.sqrt(frame),
    );
  node.port.onmessage = ({ data }) => {
    if (data.type !== 'block') return;
    both.from ??= data.at;
    both.mic.push(...levelsOf(data.left));
    both.voice.push(...levelsOf(data.right));
  };
  rig.addEventListener('gap', () => both.gaps++);
  const play = rig.play.bind(rig);
  rig.play = (turn, audio, last) => {
    both.came.push(context.currentTime);
    play(turn, audio, last);
  };
  const offset = () => performance.now() - context.currentTime * 1000;
  const before = offset();
  setInterval(() => Object.assign(both, { slowMs: offset() - before }), 1000);
}

if (!findBrowser()) {
  console.log('no Chromium here (apt-get install chromium)');
  process.exit(77);
}
const wanted = positionals.length > 0 ? positionals : ['load'];
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
