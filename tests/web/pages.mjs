/**
 * Every page, once on a desk and once on a phone: whether it fits, what axe-core finds, whether the keyboard reaches
 * all of it, and what it weighs.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { openStill } from './support/browser.mjs';
import { eventually, openSettings } from './support/page.mjs';
import { mockRecording } from './support/recording.mjs';

const PAGES = [
  '/',
  '/explore',
  '/turnbased',
  '/half_duplex',
  '/audio_duplex',
  '/omni',
  '/realtime',
  '/recordings',
  '/privacy',
  '/about',
  '/admin',
  '/components',
  '/playground',
  '/docs',
  '/nothing/here',
  '/s/demo_recording',
];

/** Those whose bytes are counted. */
const WEIGHED = new Set(['/', '/turnbased', '/half_duplex', '/audio_duplex', '/omni', '/realtime', '/admin']);

const axeSource = readFileSync(new URL('../../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');

export const pageScenarios = {
  /** The playground: a written turn over a socket, a streamed request, invalid JSON, and the code. */
  async playground({ page }) {
    await page.goto('/playground#half_duplex');
    const press = (name) => page.getByRole('button', { name, exact: true }).click();
    const got = (type) => page.locator('p-events li b', { hasText: type }).first().waitFor();
    assert.ok(await page.getByRole('button', { name: 'Send', exact: true }).isDisabled());
    await press('Connect');
    await got('queue_done');
    await press('Send');
    await got('prepared');
    await press('Write a message');
    await page.locator('.editor').fill('{"type": "input_text", ');
    await press('Send');
    await page.getByRole('alert').getByText('not valid JSON').waitFor();
    await page.locator('.editor').fill('{"type": "input_text", "text": "Good morning"}');
    for (const language of ['zh-CN', 'en-GB']) {
      await page.locator('.topbar .lang').click();
      await page.locator(`html[lang=${language}]`).waitFor();
    }
    await press('Send');
    await got('turn_done');
    await page.locator('.answer').getByText('Good morning').waitFor();
    await press('Disconnect');
    await got('close');
    // A session that starts with something else than its settings gets them first: they decline recording.
    await page.getByRole('radio', { name: /OpenAI Realtime/ }).click();
    await press('Connect');
    await press('Write a message');
    await press('Send');
    await got('session.updated');
    await got('conversation.item.done');
    await page.getByRole('radio', { name: /Chat Completions/ }).click();
    await page.getByLabel('Instructions').fill('Be brief.');
    const code = page.locator('p-code pre');
    await code.getByText('Be brief.').waitFor();
    for (const [tab, line] of [
      ['JavaScript', "import OpenAI from 'openai';"],
      ['curl', 'curl -N'],
      ['Python', 'from openai import OpenAI'],
    ]) {
      await page.getByRole('tab', { name: tab }).click();
      assert.equal(await page.evaluate(() => document.activeElement.textContent), tab);
      assert.ok((await code.textContent()).includes(line), tab);
    }
    await press('Send');
    await page.locator('.answer').getByText('Hello! Who are you?').waitFor();
    const parts = page.locator('p-events li b', { hasText: 'chat.completion' });
    await eventually(async () => (await parts.count()) > 1, 'that it was streamed');
  },

  /** A person speaks into the playground, and hears the answer. */
  async playground_voice({ page }) {
    await page.goto('/playground#realtime');
    await page.getByRole('button', { name: 'Connect' }).click();
    await page.getByRole('button', { name: 'Speak', exact: true }).click();
    const row = (type) => page.locator('p-events li b', { hasText: type }).first();
    await row('response.listen').waitFor();
    await row('response.output_audio.delta').waitFor({ timeout: 60_000 });
    await page.getByRole('button', { name: 'Disconnect' }).click();
    await row('session.closed').waitFor();
    await page.locator('[aria-pressed=false]', { hasText: 'Speak' }).waitFor();
  },

  /** The REST interface is found, read and tried. */
  async rest_interface({ page }) {
    await page.goto('/docs');
    await page.getByLabel('Search').fill('chat/comp');
    const found = page.locator('.operation:visible');
    await found.first().waitFor();
    assert.equal(await found.count(), 1);
    await found.locator('summary').click();
    await found.getByText('messages[].role').waitFor();
    assert.match(await found.locator('.editor').inputValue(), /"store": false/);
    await found.locator('.editor').fill('{"model": "any", "messages": [{"role": "user", "content": "Good evening"}]}');
    assert.ok((await found.locator('p-code pre').textContent()).includes('Good evening'));
    await found.getByRole('button', { name: 'Send' }).click();
    await found.getByText(/^200 OK in/).waitFor();
    await found.locator('pre', { hasText: 'chat.completion' }).waitFor();
    await page.getByLabel('Search').fill('no such thing');
    await page.getByText('Nothing matches.').waitFor();
    await page.goto('/docs#status');
    await page.locator('#status summary').first().waitFor();
    // On a low screen the end of a list that stays in view would never be seen.
    await page.setViewportSize({ width: 844, height: 390 });
    assert.equal(await page.locator('.rest aside').evaluate((node) => getComputedStyle(node).position), 'static');
  },

  async prose({ page }) {
    await page.routeWebSocket(/\/ws\/chat/, (socket) => {
      socket.onMessage(() => {
        const say = (message) => socket.send(JSON.stringify(message));
        say({ type: 'queue_done' });
        say({ type: 'prefill_done', input_tokens: 3 });
        for (let i = 0; i < ANSWER.length; i += 3) say({ type: 'chunk', text_delta: ANSWER.slice(i, i + 3) });
        say({ type: 'done', text: ANSWER, input_tokens: 3, generated_tokens: 9 });
      });
    });
    await page.setViewportSize({ width: 360, height: 640 });
    await page.goto('/turnbased');
    const field = page.locator('.compose textarea');
    await field.fill('همه چیز را نشان بده');
    const direction = (node) => getComputedStyle(node).direction;
    assert.equal(await field.evaluate(direction), 'rtl');
    await field.press('Enter');
    for (const written of ['.message.user .body p', '.history .open span'])
      assert.equal(await page.locator(written).evaluate(direction), 'rtl');
    const prose = page.locator('.message.assistant .prose');
    await prose.locator('math').nth(2).waitFor();
    await prose.getByText('سلام دنیا').waitFor();
    const seen = await prose.evaluate((node) => ({
      tags: [...node.children].map(({ localName }) => localName),
      inner: node.querySelectorAll('ol > li > ul > li, table td, blockquote p, pre code').length,
      code: node.querySelector('pre').textContent,
      formulas: [...node.querySelectorAll('math')].map((math) => math.getAttribute('alttext')),
      unit: node.querySelector('mtext').textContent,
      risky: node.querySelectorAll('img, script, style, [onerror]').length,
      addresses: [...node.querySelectorAll('a')].map(({ href, rel }) => `${href} ${rel}`),
      title: node.querySelector('[role=heading]').textContent,
      direction: getComputedStyle(node.lastElementChild).direction,
      hasRun: 'ran' in globalThis,
      isHeavy: Number(getComputedStyle(node.querySelector('[role=heading]')).fontWeight) > 600,
      isApart: [...node.children].every(
        (one, i, { [i + 1]: next }) => !next || next.offsetTop > one.offsetTop + one.offsetHeight,
      ),
      tooWidePx: document.querySelector('.view').scrollWidth - document.querySelector('.view').clientWidth,
    }));
    assert.deepEqual(seen, {
      tags: ['p', 'ol', 'div', 'blockquote', 'div', 'p', 'div', 'p', 'p'],
      inner: 5,
      code: 'for i in range(2):\n    print(i)  # which no phone shows in one line, whatever it does\n',
      formulas: ['\\frac12 m v^2', '\\text{km per hour}', '\\boxed{E=mc^2}'],
      unit: 'km\u00a0per\u00a0hour',
      risky: 0,
      addresses: ['https://server.example/p.png noopener noreferrer', 'https://server.example/ noopener noreferrer'],
      title: 'Speed of live',
      direction: 'rtl',
      hasRun: false,
      isHeavy: true,
      isApart: true,
      tooWidePx: 0,
    });
    assert.deepEqual(await findings(page, 'a chat'), []);
    // Where the browser does not let pages copy, the user can.
    await page.evaluate(() => Object.assign(navigator.clipboard, { writeText: () => Promise.reject() }));
    await prose.locator('.copy-code').click();
    assert.equal(await page.locator('dialog textarea').inputValue(), seen.code);
    await page.keyboard.press('Escape');
    assert.match(await prose.textContent(), /<img src=x onerror=.*<script>.*\[no\]\(javascript:/s);
    // What a finger is on stays while the next answer is written.
    const tool = await page.locator('.message.user [aria-label^=Copy]').elementHandle();
    await field.fill('Again');
    await field.press('Enter');
    await page.locator('.message.assistant').nth(1).getByText('سلام دنیا').waitFor();
    assert.ok(await tool.evaluate((node) => node.isConnected));
    // By key, the focus does not go with the old answer.
    await page.getByRole('button', { name: 'Answer again' }).press('Enter');
    assert.ok(await field.evaluate((node) => node === document.activeElement));
    await page.getByRole('button', { name: 'Answer again' }).waitFor();
    // What is far above costs no layout, and getting its height does not undo the scrolling.
    await page.setViewportSize({ width: 360, height: 240 });
    const isShown = (node) => node.checkVisibility({ contentVisibilityAuto: true });
    await eventually(
      async () => !(await page.locator('.message.user .body').first().evaluate(isShown)),
      'skipped layout',
    );
    const leftPx = () =>
      page.locator('.view').evaluate((view) => view.scrollHeight - view.scrollTop - view.clientHeight);
    await page.locator('.view').hover();
    await page.mouse.wheel(0, -50);
    await eventually(async () => (await leftPx()) > 40, 'scrolling');
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    assert.ok((await leftPx()) > 40);
  },

  async every_page_on_a_desk({ page: first, context, expected }) {
    expected.push(/nothing\/here/);
    const found = [];
    const counts = [];
    const weights = [];
    let page = first;
    for (const path of PAGES) {
      if (path.startsWith('/s/')) {
        // Not the page of the others: what is made up for it keeps the browser from using its cache.
        page = await context.newPage();
        await mockRecording(page);
      }
      await page.setViewportSize({ width: 1280, height: 800 });
      if (WEIGHED.has(path)) weights.push(`${path} ${await weigh(page, path)} KB`);
      else await page.goto(path);
      await page.waitForLoadState('networkidle');
      if (path === '/')
        assert.deepEqual(await installed(page), ['standalone', '/', ['192x192', '512x512', '512x512', 'any']]);
      // A phone whose page is magnified twice.
      await page.setViewportSize({ width: 195, height: 420 });
      found.push(...(await overflowing(page, path)));
      await page.setViewportSize({ width: 1280, height: 800 });
      const titleEnd = await page.evaluate(() => document.querySelector('h1').getBoundingClientRect().bottom);
      if (titleEnd > 800) found.push(`${path}: its title is below the first screen`);
      const { seen, faults } = await walk(page);
      counts.push(`${path} ${seen}`);
      found.push(...faults.map((fault) => `${path}: ${fault}`));
      await unfold(page);
      if (['/half_duplex', '/audio_duplex', '/omni'].includes(path)) {
        await openSettings(page);
      }
      found.push(...(await overflowing(page, path)), ...(await findings(page, path)));
    }
    assert.deepEqual(found, []);
    return `${counts.join(', ')}; ${weights.join(', ')}`;
  },

  async every_page_on_a_phone({ browser, base }) {
    // Every word longer, as in languages that compound theirs, on the narrowest of phones.
    const { context, errors } = await openStill(browser, base, {
      expected: [/nothing\/here/],
      options: { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true, colorScheme: 'dark' },
    });
    let page = await context.newPage();
    await lengthen(page);
    const found = [];
    for (const path of PAGES) {
      if (path.startsWith('/s/')) {
        page = await context.newPage();
        await mockRecording(page);
        await lengthen(page);
      }
      await page.goto(path);
      await page.waitForLoadState('networkidle');
      found.push(...(await overflowing(page, path)));
      for (const open of await page.locator('.dock [aria-expanded]:visible').all()) {
        await open.click();
        found.push(...(await overflowing(page, path)));
        await page.keyboard.press('Escape');
      }
      await unfold(page);
      // Sheets open over a call: the last of them is looked at, too.
      const sheet = page.locator('.dock [aria-expanded]:visible').last();
      if ((await sheet.count()) > 0) await sheet.click();
      found.push(...(await overflowing(page, path)), ...(await findings(page, path)));
    }
    assert.deepEqual([...new Set(found)], []);
    assert.deepEqual(errors, []);
    await context.close();
  },
};

/** How the page would be as an app: with its start page, and the sizes of the icons that are there. */
const installed = (page) =>
  page.evaluate(async () => {
    const { href } = document.querySelector('link[rel=manifest]');
    const { display, start_url: start, icons } = await (await fetch(href)).json();
    const all = icons.map(async ({ src, sizes }) => ((await fetch(new URL(src, href))).ok ? sizes : 'missing'));
    return [display, new URL(start, href).pathname, await Promise.all(all)];
  });

/** An answer with everything in it, and with what must not happen. */
const ANSWER = `# Speed of \u202elive

1. First, **read** \`a\`
   - nested
2. Second

| Town | km |
|---|---|
| Ulm | 2 |

> said

\`\`\`python
for i in range(2):
    print(i)  # which no phone shows in one line, whatever it does
\`\`\`

So $\\frac12 m v^2$ in \\(\\text{km per hour}\\).

$$\\boxed{E=mc^2}$$

<img src=x onerror="globalThis.ran=1"><script>globalThis.ran=1</script>
[no](javascript:ran=1) ![p](https://server.example/p.png) [yes](https://server.example/)

سلام دنیا
`;

/**
 * Every word a third longer. Not by `page.route`, which keeps the browser from using its cache for all else, too.
 * @param {import('playwright-core').Page} page
 */
async function lengthen(page) {
  const session = await page.context().newCDPSession(page);
  const longer = (text) =>
    text.replace(/(?<![{\w])[A-Za-z]{4,}(?![}\w])/g, (word) => word + word.slice(-Math.ceil(word.length / 3)));
  session.on('Fetch.requestPaused', async ({ requestId, request }) => {
    const words = await (await fetch(request.url)).text();
    const body = words.replace(/(^\s*'[\w.]+':\s*')((?:[^'\\]|\\.)*)/gm, (_, key, text) => key + longer(text));
    assert.notEqual(body, words);
    await session.send('Fetch.fulfillRequest', {
      requestId,
      responseCode: 200,
      responseHeaders: [{ name: 'content-type', value: 'text/javascript' }],
      body: Buffer.from(body).toString('base64'),
    });
  });
  await session.send('Fetch.enable', { patterns: [{ urlPattern: '*/words/en.js*' }] });
}

/** How long a page has asked for nothing when it has all that it takes to be used. */
const QUIET_MS = 500;

/** Fonts come after the words; what is asked by script is the state of the server, and grows with what it has done. */
const UNCOUNTED = new Set(['Font', 'Fetch', 'XHR']);

/** Load it without the cache: kilobytes of files until it can be used, of all. What travels, headers and packing included. */
async function weigh(page, path) {
  const session = await page.context().newCDPSession(page);
  await session.send('Network.enable');
  // What is loaded while the page is being looked at waits here, so that it is not counted; pages whose requests are
  // looked at use no cache.
  const later = /\/call\/later\.js$/;
  const coming = new Set();
  const uncounted = new Set();
  let bytes = 0;
  let scripts = 0;
  session.on('Network.requestWillBeSent', ({ requestId, request }) => {
    if (!later.test(request.url)) coming.add(requestId);
  });
  session.on('Network.responseReceived', ({ requestId, type }) => {
    if (UNCOUNTED.has(type)) uncounted.add(requestId);
    if (type === 'Script') scripts++;
  });
  session.on('Network.loadingFailed', ({ requestId }) => coming.delete(requestId));
  session.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
    coming.delete(requestId);
    if (!uncounted.has(requestId)) bytes += encodedDataLength;
  });
  const packed = page.waitForResponse((response) => response.url().endsWith('/words/en.js'));
  let letGo;
  const counted = new Promise((resolve) => {
    letGo = resolve;
  });
  await page.route(later, (route) => counted.then(() => route.continue()));
  await page.goto(path);
  await page.locator('.start, .dock .main, .compose textarea, .hero .button, .admin h1').first().waitFor();
  await page.waitForLoadState('load');
  for (let quietMs = 0; quietMs < QUIET_MS; quietMs = coming.size > 0 ? 0 : quietMs + 50) await page.waitForTimeout(50);
  const first = Math.round(bytes / 1024);
  letGo();
  assert.ok(first <= 90, `${path} takes ${first} KB until it can be used`);
  await page.waitForLoadState('networkidle');
  assert.equal((await (await packed).allHeaders())['content-encoding'], 'gzip');
  assert.ok(bytes > 10 * 1024 && bytes < 300 * 1024, `${path} loads ${bytes} bytes`);
  // On a line of three seconds there and back, modules that import modules cost a call half a minute.
  assert.ok(scripts <= 4, `${path} loads ${scripts} scripts`);
  await session.detach();
  await page.unroute(later);
  return `${first} of ${Math.round(bytes / 1024)}`;
}

/** Open what is folded, so that it is looked at too. */
const unfold = (page) =>
  page.evaluate(() => {
    for (const node of document.querySelectorAll('details')) node.open = true;
  });

/** What axe-core finds. Through the debugger: the page's own policy forbids scripts from elsewhere, as it should. */
export async function findings(page, path) {
  const session = await page.context().newCDPSession(page);
  await session.send('Runtime.evaluate', { expression: axeSource });
  const { result } = await session.send('Runtime.evaluate', {
    expression:
      'axe.run({resultTypes: ["violations"]}).then(({violations}) => JSON.stringify(violations.map(({id, nodes}) => [id, nodes.slice(0, 4).map((node) => node.target.join(" ") + " " + node.failureSummary)])))',
    awaitPromise: true,
    returnByValue: true,
  });
  await session.detach();
  return JSON.parse(result.value).map(([id, nodes]) => `${path}: ${id}: ${nodes.join(' | ')}`);
}

/** Everything that can be pressed is reached by Tab alone, in order, shows that it is, and has a name. */
async function walk(page) {
  const { wanted, small } = await page.evaluate(() => {
    const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')];
    const open = all.filter(
      (node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled && node.tabIndex >= 0,
    );
    for (const [i, node] of open.entries()) node.dataset.walk = String(i);
    const small = open.filter((node) => {
      const { width, height } = (node.labels?.[0] ?? node).getBoundingClientRect();
      return Math.min(width, height) < 24 && !node.matches('.skip, :is(p, li, td, small) a');
    });
    return { wanted: open.length, small: small.map(({ outerHTML }) => outerHTML.slice(0, 90)) };
  });
  await page.evaluate(() => {
    globalThis.__walked = [];
    document.addEventListener('focusin', ({ target: node }) => {
      const isShown =
        getComputedStyle(node).outlineStyle !== 'none' ||
        // The browser's own player shows inside itself which of its buttons has the focus.
        node.matches('audio[controls], video[controls]') ||
        node.closest(':focus-within')?.matches('.compose, .writing') ||
        getComputedStyle(node.closest('form') ?? node).outlineStyle !== 'none';
      globalThis.__walked.push({ id: node.dataset.walk ?? '', isShown, what: node.outerHTML.slice(0, 90) });
    });
  });
  for (let i = 0; i < wanted + 5; i++) await page.keyboard.press('Tab');
  const walked = await page.evaluate(() => globalThis.__walked);
  const unseen = new Set(walked.filter(({ isShown }) => !isShown).map(({ what }) => what));
  const faults = [
    ...[...unseen].map((what) => `the focus is not seen on ${what}`),
    ...small.map((what) => `less than 24 pixels: ${what}`),
  ];
  const seen = new Set(walked.map(({ id }) => id));
  seen.delete('');
  if (seen.size < wanted - 1) faults.push(`${seen.size} of ${wanted} are reached`);
  return { seen: seen.size, faults };
}

/** What sticks out of the screen, where nothing scrolls it. */
async function overflowing(page, path) {
  return await page.evaluate((where) => {
    const found = [];
    if (document.documentElement.scrollWidth > innerWidth)
      found.push(`${where}: the page is ${document.documentElement.scrollWidth} wide`);
    for (const node of document.querySelectorAll('button, a, p, h1, h2, strong, label, .chip, li')) {
      if (
        !node.checkVisibility({ visibilityProperty: true }) ||
        node.closest('.visually-hidden, .scroll-x, .skip, .toasts, .tabs')
      )
        continue;
      const { left, right, width } = node.getBoundingClientRect();
      if (width > 0 && (right > innerWidth + 1 || left < -1))
        found.push(
          `${where}: ${node.tagName} “${(node.textContent ?? '').trim().slice(0, 40)}” ${Math.round(left)}–${Math.round(right)}`,
        );
    }
    return found;
  }, path);
}
