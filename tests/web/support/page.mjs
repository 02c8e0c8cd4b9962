/** What scenarios do with a page: press, wait, listen to its loudspeaker and to its sockets. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { encodeWav } from '../../../src/parley/web/audio/wav.js';
import { compareSound, lastLoud } from './sound.mjs';

/**
 * What has not come by then never comes, however busy the machine: nothing is claimed about speed. What is
 * measured in sound (how long something was audible) is counted in samples, which a busy machine does not
 * stretch.
 */
export const PATIENCE_MS = 60_000;

/** What a turn waits at least before it is heard (talk/head-start.js). */
const HEAD_START_MS = 40;

/**
 * Wait for what the test itself has noted, as messages on a wire.
 * @param {() => unknown} check
 * @param {string} what is waited for
 */
export async function eventually(check, what, ms = PATIENCE_MS) {
  const end = Date.now() + ms;
  while (!(await check())) {
    if (Date.now() > end) throw new Error(`never came: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 40));
  }
}

/** Hear what leaves the loudspeaker from now on. */
export async function tap(page) {
  await page.evaluate(async () => {
    const { theRig } = await import(document.querySelector('script[src]').src.replace(/pages\/.*/, 'audio/rig.js'));
    const rig = theRig();
    await rig.open();
    const { node } = await rig.listenIn();
    const tap = { blocks: [], rateHz: rig.context.sampleRate, gaps: 0 };
    node.port.onmessage = ({ data }) => data.type === 'block' && tap.blocks.push({ right: data.right, at: data.at });
    rig.addEventListener('gap', () => tap.gaps++);
    globalThis.__tap = tap;
  });
}

/** Until the tap has got the sound of so many seconds after this moment (context time). */
export const heardUntil = (page, at, seconds) =>
  until(page, (end) => (globalThis.__tap.blocks.at(-1)?.at ?? 0) > end, { given: at + seconds });

/** Go on listening for so many seconds of sound. */
export async function hearOn(page, seconds) {
  await heardUntil(page, await page.evaluate(() => globalThis.__tap.blocks.at(-1)?.at ?? 0), seconds);
}

/** Loudness of what was heard, per 5 ms, and the context time of its beginning. */
export async function heard(page) {
  return await page.evaluate(() => {
    const { blocks, rateHz, gaps } = globalThis.__tap;
    const frame = Math.round(rateHz / 200);
    const levels = [];
    let sum = 0;
    let count = 0;
    for (const { right } of blocks) {
      for (const value of right) {
        sum += value * value;
        if (++count === frame) {
          levels.push(Math.sqrt(sum / count));
          sum = count = 0;
        }
      }
    }
    return { levels, from: blocks[0]?.at ?? 0, gaps };
  });
}

/** What the loudspeaker got is what the server sent: as long, as loud, without holes. */
export function assertHeard(heardLevels, sentLevels, gaps) {
  const difference = compareSound(heardLevels, sentLevels);
  assert.equal(gaps, 0);
  assert.ok(
    difference.likeness > 0.95 && Math.abs(difference.longerMs) <= 20 && difference.holeMs <= 20,
    `what was heard is not what was sent: ${JSON.stringify(difference)}`,
  );
  return difference;
}

/** Note when the page hands sound to its loudspeaker. */
export async function noteSupply(page) {
  await page.evaluate(async () => {
    const { theRig } = await import(document.querySelector('script[src]').src.replace(/pages\/.*/, 'audio/rig.js'));
    const rig = theRig();
    const supply = { pieces: [], isHeld: false, isOver: false };
    globalThis.__supply = supply;
    const play = rig.play.bind(rig);
    rig.play = (turn, audio, last = false) => {
      const piece = { at: performance.now(), samples: audio.length, last };
      // The rig hands the samples on and has them no more.
      supply.pieces.push(supply.isHeld ? { ...piece, hand: () => play(turn, audio, last) } : piece);
      if (!supply.isHeld) play(turn, audio, last);
      else if (last) for (const { hand } of supply.pieces) hand();
      supply.isOver = last;
    };
  });
}

/** What was heard since the last time, a turn, and whether a piece of it came too late to be heard without a gap. */
export async function takeTurn(page) {
  const said = await heard(page);
  const pieces = await page.evaluate(() => {
    const { pieces } = globalThis.__supply;
    Object.assign(globalThis.__supply, { pieces: [] });
    Object.assign(globalThis.__tap, { blocks: [], gaps: 0 });
    return pieces.map(({ at, samples }) => ({ at, samples }));
  });
  return { ...said, isLate: said.gaps > 0 && cameLate(pieces) };
}

/** From the next turn on all of a turn is handed over in one piece; what was heard before does not count. */
export async function holdSupply(page) {
  await page.evaluate(() => {
    Object.assign(globalThis.__supply, { pieces: [], isHeld: true, isOver: false });
    Object.assign(globalThis.__tap, { blocks: [], gaps: 0 });
  });
}

/**
 * Whether a piece came after all that came before had been heard, and so had to leave a gap.
 * @param {{at: number, samples: number}[]} pieces of one turn
 */
export function cameLate(pieces) {
  let end = pieces[0].at;
  return pieces.some(({ at, samples }) => {
    const isLate = at > end + HEAD_START_MS;
    end += samples / 24;
    return isLate;
  });
}

/**
 * The first turn of a duplex call whose supply is noted, heard as it should be.
 *
 * On a busy machine a unit may come after the previous one it has been heard. No page can hide that: another turn is
 * held back until all of it is there, and has to be heard without a gap.
 * @returns what was heard, and whether it is the second turn because units of the first came late
 */
export async function hearTurn(page) {
  await activity(page, 'speaking');
  // Where answers come late the person would speak again before the end, and lower the voice.
  const mute = () => page.locator('body').press('m');
  await mute();
  await activity(page, 'listening');
  await hearOn(page, 0.5);
  const said = await heard(page);
  if (said.gaps === 0 || !cameLate(await page.evaluate(() => globalThis.__supply.pieces)))
    return { said, isLate: false };
  await holdSupply(page);
  await mute();
  await until(page, () => globalThis.__supply.pieces.length > 0);
  await mute();
  await until(page, () => globalThis.__supply.isOver);
  const pieces = await page.evaluate(() => globalThis.__supply.pieces.map(({ samples }) => samples));
  await hearOn(page, pieces.reduce((sum, samples) => sum + samples, 0) / 24000 + 1);
  return { said: await heard(page), isLate: true };
}

/** The messages of that turn, as the server sent them. */
export function messagesOf(wire, isLate) {
  const speaking = wire.got.filter(({ message }) => message.type === 'response.output_audio.delta');
  const ends = speaking.flatMap(({ message }, i) => (message.end_of_turn ? [i + 1] : []));
  const from = isLate ? ends[0] : 0;
  return speaking.slice(
    from,
    ends.find((end) => end > from),
  );
}

/** Press something, and how long the assistant was still audible. */
export async function silenceAfter(page, press) {
  await until(page, () =>
    globalThis.__tap.blocks.slice(-2).some(({ right }) => right.some((value) => Math.abs(value) > 0.1)),
  );
  const at = await page.evaluate(press);
  // From the press: the way from the page to the sound's own thread takes as long as the machine is busy.
  return await audibleAfter(page, at, 200);
}

/** How long after that moment (context time) something was still audible, in ms; never longer than `most`. */
export async function audibleAfter(page, at, most = 100) {
  await heardUntil(page, at, 0.7);
  const { levels, from } = await heard(page);
  const last = lastLoud(levels, (at - from) * 200, (at - from + 0.6) * 200);
  const silentAfterMs = Math.max(0, (last / 200 + from - at) * 1000);
  assert.ok(silentAfterMs < most, `still audible after ${silentAfterMs} ms`);
  return Math.round(silentAfterMs);
}

/** When the loudspeaker is next told to be silent, `globalThis.__flushedAt` says when that was. */
export async function noteFlush(page) {
  await page.evaluate(async () => {
    const { theRig } = await import(document.querySelector('script[src]').src.replace(/pages\/.*/, 'audio/rig.js'));
    const rig = theRig();
    rig.addEventListener('flushed', ({ detail }) => (globalThis.__flushedAt ??= detail.at));
  });
}

/** In the page: press the hand; the time at which that was. */
export const pressHush = async () => {
  const { theRig } = await import(document.querySelector('script[src]').src.replace(/pages\/.*/, 'audio/rig.js'));
  const at = theRig().context.currentTime;
  document.querySelector('.dock [data-act=hush]').click();
  return at;
};

/**
 * A message as it was sent; a binary one has its sound behind the JSON (docs/protocols/README.md, "Audio format").
 * @param {string | Buffer} payload
 */
function opened(payload) {
  if (typeof payload === 'string') return { message: JSON.parse(payload) };
  const end = 4 + payload.readUInt32BE(0);
  return { message: JSON.parse(String(payload.subarray(4, end))), sound: payload.subarray(end) };
}

/** Messages of the page's sockets, both ways. */
export function wiretap(page) {
  const wire = { sent: [], got: [], urls: [] };
  page.on('websocket', (socket) => {
    wire.urls.push(socket.url());
    const note =
      (list) =>
      ({ payload }) => {
        const sized = { at: Date.now(), bytes: payload.length };
        try {
          list.push({ ...sized, ...opened(payload) });
        } catch {
          list.push({ ...sized, message: {} });
        }
      };
    socket.on('framesent', note(wire.sent));
    socket.on('framereceived', note(wire.got));
  });
  wire.types = (list) => list.map(({ message }) => message.type);
  /** Until a message like that has come; it. */
  wire.has = async (predicate) => {
    const find = () => wire.got.find(({ message }) => predicate(message));
    await eventually(find, String(predicate)).catch((error) => {
      throw new Error(`${error.message}; got ${JSON.stringify(wire.types(wire.got))}`);
    });
    return find().message;
  };
  /** Until the last message that came is of this type. */
  wire.ends = (type) => eventually(() => wire.types(wire.got).at(-1) === type, type);
  /** Until so many messages have left. */
  wire.sends = (count, like = () => true) =>
    eventually(() => wire.sent.filter(({ message }) => like(message)).length >= count, `${count} sent`);
  return wire;
}

/** Messages on sockets that the page opens from now on reach it when this is released. */
export async function holdMessages(page) {
  await page.evaluate(() => {
    const waiting = [];
    let isHeld = true;
    for (const name of ['onmessage', 'onclose']) {
      const { get, set } = Object.getOwnPropertyDescriptor(WebSocket.prototype, name);
      const hold = (listen) => (event) => (isHeld ? waiting.push(() => listen(event)) : listen(event));
      Object.defineProperty(WebSocket.prototype, name, {
        get,
        set(listen) {
          set.call(this, listen && hold(listen));
        },
      });
    }
    globalThis.__release = () => {
      isHeld = false;
      for (const deliver of waiting) deliver();
    };
  });
  return { release: () => page.evaluate(() => globalThis.__release()) };
}

/**
 * Until it is true in the page, which looks itself: a question of ours every few milliseconds would cost more than
 * most pages do. Playwright's own waitForFunction compiles text later on, which the page's policy forbids.
 * @param {(given?: any) => unknown} predicate
 */
export async function until(page, predicate, { given, ms = PATIENCE_MS } = {}) {
  const end = Date.now() + ms;
  const look = `(async () => {
    const isTrue = ${predicate};
    while (!(await isTrue(${JSON.stringify(given)}))) {
      if (Date.now() > ${end}) return false;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return true;
  })()`;
  for (;;) {
    const isTrue = await page.evaluate(look).catch((error) => {
      // The page has gone to another, which is asked then.
      if (!/context was destroyed|navigat/i.test(error.message)) throw error;
    });
    if (isTrue) return;
    if (Date.now() > end) throw new Error(`never true: ${predicate}`);
  }
}

export const phase = (page, name, timeout = PATIENCE_MS) =>
  page.waitForSelector(`main[data-phase="${name}"]`, { timeout });
export const activity = (page, name, timeout = 90_000) =>
  page.waitForSelector(`main[data-phase="live"][data-activity="${name}"]`, { timeout });
/** Where one begins a call and ends it: the sphere, or below a picture a button. */
export const mainButton = (page) => page.locator('.dock .main:visible, .start:enabled:visible').first();

/** A control of a running call that is behind “More”. @param {string} act its `data-act` */
export async function pressMore(page, act) {
  await page.locator('.dock [data-act=more]').click();
  await page.locator(`.dock [data-act=${act}]`).click();
}

export async function hangUp(page) {
  await mainButton(page).click();
  await phase(page, 'ended');
}

/** Milliseconds from the tap until the page listened, as the page itself has measured it. */
export const startToListening = (page) =>
  page.evaluate(() => Math.round(performance.getEntriesByName('start-to-listening').at(-1).duration));

/** The settings, before a call and in it. */
export async function openSettings(page) {
  const tab = page.getByRole('tab', { name: 'Settings' });
  if (await tab.isVisible()) return await tab.click();
  const button = page.locator('.dock [data-act=settings]');
  if (!(await button.isVisible())) await page.locator('.dock [data-act=more]').click();
  await button.click();
}

/** Settings, and in them the group of that name. */
export async function openGroup(page, name) {
  await openSettings(page);
  await page.locator('summary', { hasText: name }).click();
}

/** Before a page is loaded: what its person has chosen for that way of talking. */
export const choose = (page, kind, values) =>
  page.addInitScript(
    ([key, text]) => localStorage.setItem(key, text),
    [`parley.settings.${kind}`, JSON.stringify(values)],
  );

/**
 * Before a page is loaded: what it is told of a path, in place of what the server says of these fields. The last one
 * counts. Not by `page.route`, which keeps the browser from using its cache for all else, too.
 */
export const answer = (page, path, fields) =>
  page.addInitScript(
    ([asked, told]) => {
      const ask = globalThis.fetch;
      globalThis.fetch = async (url, init) => {
        const response = await ask(url, init);
        if (new URL(url, location.href).pathname !== asked) return response;
        return Response.json({ ...(await response.json()), ...told });
      };
    },
    [path, fields],
  );

/**
 * Before a page is loaded: its clock can be put forward, as by a machine that slept; timers run on as they are.
 * What has waited for so long that something is done about it need not be waited for then.
 */
export async function adjustableClock(page) {
  await page.addInitScript(() => {
    let aheadMs = 0;
    const now = performance.now.bind(performance);
    performance.now = () => now() + aheadMs;
    globalThis.__putForward = (ms) => {
      aheadMs += ms;
    };
  });
  return { putForward: (seconds) => page.evaluate((ms) => globalThis.__putForward(ms), seconds * 1000) };
}

/** A key that mutes does nothing for so long after it has been pressed. */
export const MUTE_MS = 250;

/** In a live call: Space mutes and unmutes, wherever the focus is, and ends nothing. */
export async function spaceMutes(page) {
  const isLive = async (where) => assert.equal(await page.locator('main').getAttribute('data-phase'), 'live', where);
  await page.keyboard.press('Space');
  await page.locator('.dock [aria-label^="Unmute"]').waitFor();
  await isLive('from anywhere');
  await page.waitForTimeout(MUTE_MS);
  await page.keyboard.press('Space');
  await page.locator('.dock [aria-label^="Mute"]').waitFor();
  await page.waitForTimeout(MUTE_MS);
  await mainButton(page).focus();
  await page.keyboard.press('Space');
  await page.locator('.dock [aria-label^="Unmute"]').waitFor();
  await isLive('from the main button');
}

/** A microphone of which nothing is heard, or a tone that never ends: for what the browser's own does not play. */
export const silentMicrophone = (page) => steadyMicrophone(page, 0);

/** @param {number} hz of the tone; 0 for silence */
export async function steadyMicrophone(page, hz) {
  await page.addInitScript((frequency) => {
    navigator.mediaDevices.getUserMedia = async () => {
      const context = new AudioContext();
      const outlet = context.createMediaStreamDestination();
      const tone = new OscillatorNode(context, { frequency });
      tone.connect(new GainNode(context, { gain: frequency ? 0.3 : 0 })).connect(outlet);
      tone.start();
      return outlet.stream;
    };
  }, hz);
}

/** A WAV file with a tone. */
export function tone(hz, seconds, size = 0.3) {
  return Buffer.from(
    encodeWav(
      [Float32Array.from({ length: seconds * 16000 }, (_, i) => size * Math.sin((2 * Math.PI * hz * i) / 16000))],
      16000,
    ),
  );
}

/** Root mean square of one frequency in a second of sound. */
export function toneLevel(samples, hz) {
  let sine = 0;
  let cosine = 0;
  samples.forEach((value, i) => {
    sine += value * Math.sin((2 * Math.PI * hz * i) / 16000);
    cosine += value * Math.cos((2 * Math.PI * hz * i) / 16000);
  });
  return (Math.hypot(sine, cosine) / samples.length) * Math.SQRT2;
}

/** @param {string} text base64 JPEG: its frame header says how wide it is */
export function jpegWidth(text) {
  const bytes = Buffer.from(text, 'base64');
  for (let at = 2; at < bytes.length; at += 2 + bytes.readUInt16BE(at + 2)) {
    if ([0xc0, 0xc1, 0xc2].includes(bytes[at + 1])) return bytes.readUInt16BE(at + 7);
  }
  return 0;
}

/** A piece of code in the documentation, word for word. */
export function example(language) {
  const page = readFileSync(new URL('../../../docs/do/javascript-client.md', import.meta.url), 'utf8');
  return new RegExp(`\`\`\`${language}\\n([\\s\\S]*?)\`\`\``).exec(page)[1];
}
