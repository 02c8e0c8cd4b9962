/** The server and the browser that scenarios share, one scenario after the other. */

import assert from 'node:assert/strict';

import { allow, launch, makeLively, openStill } from './browser.mjs';
import { eventually } from './page.mjs';
import { startServer } from './server.mjs';

/** The server's other name, which pages take for another machine's. */
const ELSEWHERE = 'parley.test';

/**
 * A context that scenarios have one after the other: the browser keeps what it has loaded and compiled, and nothing
 * that a page has stored. Loading everything again costs more of a processor than most scenarios.
 */
class SharedContext {
  #opened;
  #base;
  #page;

  /** @param {import('playwright-core').Browser} browser @param {string} base */
  static async open(browser, base) {
    const shared = new SharedContext();
    shared.#base = base;
    shared.#opened = await openStill(browser, base);
    shared.#page = await shared.#opened.context.newPage();
    return shared;
  }

  lend() {
    return { ...this.#opened, page: this.#page };
  }

  async takeBack() {
    const { context, errors, expected } = this.#opened;
    const before = context.pages();
    // The next page comes first: a browser without one ends the process that has everything compiled.
    this.#page = await context.newPage();
    await Promise.all(before.map((page) => page.close()));
    const session = await context.newCDPSession(this.#page);
    const storageTypes = 'cookies,local_storage,indexeddb,cache_storage';
    await session.send('Storage.clearDataForOrigin', { origin: this.#base, storageTypes });
    await session.detach();
    await allow(context, this.#base);
    errors.length = expected.length = 0;
  }
}

export class Stage {
  #how;
  #kind = '';
  #options = {};
  /** @type {Awaited<ReturnType<typeof startServer>> | undefined} */
  #server;
  /** @type {import('playwright-core').Browser | undefined} */
  #browser;
  /** @type {SharedContext | undefined} */
  #shared;

  /** @param {{python: string, wav: string}} how */
  constructor(how) {
    this.#how = how;
  }

  get base() {
    return /** @type {NonNullable<typeof this.#server>} */ (this.#server).base;
  }

  /** A server of that kind, with a free slot: another than the one that runs only where it has to be. */
  async serve(model, { replays }) {
    const kind = `${model} ${replays}`;
    if (kind !== this.#kind) {
      // At the same port: the browser continues, and with it what it has loaded and compiled.
      const port = this.#server?.port ?? 0;
      await this.#server?.stop();
      this.#options = { model, slots: 1, replays, port, env: { PARLEY_SECURITY__ALLOWED_HOSTS: ELSEWHERE } };
      this.#server = await startServer(this.#how.python, this.#options);
      this.#kind = kind;
    }
    const idle = async () => (await (await fetch(`${this.base}/status`)).json()).idle_workers;
    await eventually(async () => (await idle()) === 1, 'the slot of the scenario before');
  }

  /**
   * @param {(how: object) => Promise<unknown>} scenario
   * @param {{isMoving: boolean}} how whether its page moves
   */
  async play(scenario, { isMoving }) {
    const { base } = this;
    const elsewhere = `http://${ELSEWHERE}:${new URL(base).port}`;
    this.#browser ??= await launch({ wav: this.#how.wav });
    this.#shared ??= await SharedContext.open(this.#browser, base);
    const opened = this.#shared.lend();
    if (isMoving) await makeLively(opened.page);
    try {
      const restarted = () => this.#restarted();
      const here = { ...this.#how, model: this.#options.model, base, elsewhere, restarted };
      const said = await scenario({ ...here, browser: this.#browser, ...opened });
      assert.deepEqual(opened.errors, [], 'the console is clean');
      await this.#shared.takeBack();
      return said;
    } catch (error) {
      error.stack += opened.errors.map((line) => `\n     ${line}`).join('');
      throw error;
    }
  }

  /** The server ends; what is returned starts it again, at the same port. */
  async #restarted() {
    const { port, stop } = /** @type {Awaited<ReturnType<typeof startServer>>} */ (this.#server);
    await stop();
    return async () => {
      this.#server = await startServer(this.#how.python, { ...this.#options, port });
    };
  }

  async close() {
    await this.#browser?.close();
    await this.#server?.stop();
    this.#kind = '';
    this.#server = this.#browser = this.#shared = undefined;
  }
}
