/** The real server on loopback. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const START_MS = 180_000;

/**
 * @param {string} python
 * @param {{model?: string, slots?: number, port?: number, replays?: boolean, env?: Record<string, string>}} [options]
 *   port 0: any; replays: whether every recording is rendered when its session ends, which costs seconds
 */
export async function startServer(python, { model = 'parrot', slots = 1, port = 0, replays = false, env = {} } = {}) {
  const data = mkdtempSync(join(tmpdir(), 'parley-web-'));
  const child = spawn(
    python,
    [
      '-m',
      'parley',
      'serve',
      '--http',
      '--host',
      '127.0.0.1',
      '--port',
      String(port),
      '--model',
      model,
      '--slots',
      String(slots),
    ],
    {
      env: {
        ...process.env,
        OMP_NUM_THREADS: '1',
        PARLEY_STORAGE__DATA_DIR: data,
        PARLEY_STORAGE__REPLAYS: String(replays),
        ...env,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  );
  let log = '';
  const base = await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`the server did not start:\n${log}`)), START_MS);
    const read = (chunk) => {
      log = (log + chunk).slice(-20_000);
      const match = /ready after .*(http:\/\/127\.0\.0\.1:\d+)/.exec(log);
      if (match) {
        clearTimeout(timer);
        resolve(match[1]);
      }
    };
    child.stdout.on('data', read);
    child.stderr.on('data', read);
    child.once('exit', (code) => reject(new Error(`the server ended with ${code}:\n${log}`)));
  }).catch((error) => {
    child.kill('SIGKILL');
    throw error;
  });
  return {
    base,
    port: Number(new URL(base).port),
    log: () => log,
    async stop() {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const gone = once(child, 'exit');
      child.kill('SIGTERM');
      const timer = setTimeout(() => child.kill('SIGKILL'), 15_000);
      await gone;
      clearTimeout(timer);
      rmSync(data, { recursive: true, force: true });
    },
  };
}
