/**
 * A network between browser and server: it can be slow, lossy and cut. TCP hides lost packets as delays,
 * so a loss is a pause of a retransmission's length.
 */

import { createServer as createHttpServer, request } from 'node:http';
import { createServer, connect } from 'node:net';

/** A lost packet is sent again after about this long. */
const RETRANSMIT_MS = 200;
const PACKET_BYTES = 1400;
const PAUSE_MS = 1000;

/**
 * @param {number} port of the server on this machine
 * @param {{delayMs?: number, bytesPerS?: number, loss?: number, jitterMs?: number, pauses?: number}} [line] one way;
 *   loss: part of the packets; jitterMs: longest random addition to the delay; pauses: part of the pieces that a pause
 *   of one second delays
 */
export async function startProxy(port, line = {}) {
  const sockets = new Set();
  let isCut = false;
  /** What waits for the line to be fixed. @type {(() => void)[]} */
  let waiting = [];
  let seed = 1;
  const random = () => {
    seed = (seed * 16807) % 2147483647;
    return seed / 2147483647;
  };

  /** @param {import('node:net').Socket} from @param {import('node:net').Socket} to */
  const carry = (from, to) => {
    let freeAt = 0;
    let dueAt = 0;
    // Timers of different lengths that are due together fire in any order; bytes must not.
    /** @type {Buffer[]} */
    const underWay = [];
    from.on('data', (bytes) => {
      underWay.push(bytes);
      const { delayMs = 0, bytesPerS = Infinity, loss = 0, jitterMs = 0, pauses = 0 } = line;
      const lost = Array.from({ length: Math.ceil(bytes.length / PACKET_BYTES) }).filter(() => random() < loss).length;
      const now = Date.now();
      freeAt = Math.max(now, freeAt) + (bytes.length / bytesPerS) * 1000 + lost * RETRANSMIT_MS;
      const waitMs = delayMs + random() * jitterMs + (random() < pauses ? PAUSE_MS : 0);
      // Later bytes never overtake earlier ones.
      dueAt = Math.max(dueAt, freeAt + waitMs);
      const send = () => {
        if (isCut) waiting.push(send);
        else {
          const next = underWay.shift();
          if (next && !to.destroyed) to.write(next);
        }
      };
      if (dueAt <= now && !isCut) send();
      else setTimeout(send, dueAt - now);
      // What cannot leave must not be gathered without end.
      if (freeAt - now > 500) {
        from.pause();
        setTimeout(() => from.resume(), 250);
      }
    });
    from.on('close', () => to.destroy());
    from.on('error', () => to.destroy());
  };

  const server = createServer((client) => {
    if (isCut) return client.destroy();
    const upstream = connect(port, '127.0.0.1');
    sockets.add(client).add(upstream);
    carry(client, upstream);
    carry(upstream, client);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(undefined)));
  const { port: own } = /** @type {import('node:net').AddressInfo} */ (server.address());
  return {
    base: `http://127.0.0.1:${own}`,
    /** Nothing passes; open connections do not notice. */
    cut() {
      isCut = true;
    },
    mend() {
      isCut = false;
      const due = waiting;
      waiting = [];
      for (const send of due) send();
    },
    /** Open connections break. */
    drop() {
      for (const socket of sockets) socket.destroy();
    },
    stop() {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}

/**
 * A proxy that serves the server below a path, as `location /voice/ { proxy_pass http://parley/; }` does:
 * the path is cut off, `Host` stays, and what is elsewhere on this host is another's.
 * @param {number} port of the server @param {string} path with a slash at both ends
 * @param {(headers: import('node:http').IncomingHttpHeaders) => import('node:http').IncomingHttpHeaders} [change] of answers
 */
export async function startBelow(port, path, change = (headers) => headers) {
  /** What was asked for outside of the path: nothing of ours should be. @type {string[]} */
  const strays = [];
  const server = createHttpServer((asked, answer) => {
    if (!asked.url?.startsWith(path)) {
      if (asked.url !== '/favicon.ico') strays.push(String(asked.url));
      answer.writeHead(404).end();
      return;
    }
    const { method, headers } = asked;
    const there = { port, host: '127.0.0.1', path: asked.url.slice(path.length - 1), method, headers };
    const upstream = request(there, (reply) => {
      answer.writeHead(reply.statusCode ?? 502, change(reply.headers));
      reply.pipe(answer);
    });
    upstream.on('error', () => answer.destroy());
    asked.pipe(upstream);
  });
  const sockets = new Set();
  server.on('upgrade', (asked, socket, head) => {
    sockets.add(socket);
    if (!asked.url?.startsWith(path)) {
      strays.push(String(asked.url));
      socket.destroy();
      return;
    }
    const upstream = connect(port, '127.0.0.1', () => {
      const lines = [`GET ${asked.url?.slice(path.length - 1)} HTTP/1.1`];
      for (let i = 0; i < asked.rawHeaders.length; i += 2)
        lines.push(`${asked.rawHeaders[i]}: ${asked.rawHeaders[i + 1]}`);
      upstream.write(`${lines.join('\r\n')}\r\n\r\n`);
      upstream.write(head);
      upstream.pipe(socket);
      socket.pipe(upstream);
    });
    for (const [one, other] of [
      [upstream, socket],
      [socket, upstream],
    ]) {
      one.on('close', () => other.destroy());
      one.on('error', () => other.destroy());
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(undefined)));
  const { port: own } = /** @type {import('node:net').AddressInfo} */ (server.address());
  return {
    origin: `http://127.0.0.1:${own}`,
    base: `http://127.0.0.1:${own}${path}`,
    strays,
    stop() {
      for (const socket of sockets) socket.destroy();
      server.closeAllConnections();
      server.close();
    },
  };
}
