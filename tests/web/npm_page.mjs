// Opens a page in Chromium and prints the first line that its console has.
//
//     npm_page.mjs ADDRESS
import { findBrowser, launch } from './support/browser.mjs';

if (!findBrowser()) process.exit(77);
const browser = await launch();
const page = await browser.newPage();
const line = page.waitForEvent('console', { timeout: 30_000 });
page.on('pageerror', (error) => console.error(error));
await page.goto(process.argv[2]);
console.log((await line).text());
await browser.close();
