/**
 * One conversation of the playground: a socket, or one request whose response may be streamed.
 *
 * Events (`CustomEvent.detail`): `state` 'off' | 'opening' | 'on', `wire` {out, message}, `closed` {code, reason},
 * `trouble` a sentence.
 */

import { at } from '../../wire/root.js';

/** @typedef {'off' | 'opening' | 'on'} State */

export class Line extends EventTarget {
  /** @type {State} */
  state = 'off';
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {AbortController | null} */
  #request = null;

  /** @param {string} type @param {unknown} detail */
  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** @param {State} state */
  #become(state) {
    this.state = state;
    this.#emit('state', state);
  }

  /** @param {string} path */
  open(path) {
    this.close();
    const url = new URL(at(path), location.href);
    url.protocol = url.protocol.replace(/^http/, 'ws');
    const socket = new WebSocket(url);
    this.#socket = socket;
    this.#become('opening');
    const mine = () => this.#socket === socket;
    socket.onopen = () => mine() && this.#become('on');
    socket.onmessage = ({ data }) => mine() && this.#receive(data);
    socket.onclose = ({ code, reason }) => {
      if (!mine()) return;
      this.#socket = null;
      this.#become('off');
      this.#emit('closed', { code, reason });
    };
  }

  /** @param {unknown} data */
  #receive(data) {
    if (typeof data !== 'string') return;
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      message = { type: 'text', text: data };
    }
    this.#emit('wire', { out: false, message });
  }

  /** @param {object} message */
  send(message) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    this.#socket.send(JSON.stringify(message));
    this.#emit('wire', { out: true, message });
  }

  /** @param {string} path @param {object} body */
  async post(path, body) {
    this.close();
    const control = new AbortController();
    this.#request = control;
    this.#become('on');
    this.#emit('wire', { out: true, message: body });
    try {
      const response = await fetch(at(path), {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: control.signal,
      });
      await this.#read(response);
      if (this.#request === control) this.#emit('closed', { code: response.status, reason: response.statusText });
    } catch (error) {
      if (!control.signal.aborted) this.#emit('trouble', error instanceof Error ? error.message : String(error));
    } finally {
      if (this.#request === control) {
        this.#request = null;
        this.#become('off');
      }
    }
  }

  /** Reports server-sent events one by one, any other response as a whole. @param {Response} response */
  async #read(response) {
    if (!response.headers.get('content-type')?.includes('event-stream') || !response.body) {
      this.#receive(await response.text());
      return;
    }
    let rest = '';
    for await (const piece of pieces(response.body)) {
      rest += piece;
      const lines = rest.split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) if (line.startsWith('data:') && !line.endsWith('[DONE]')) this.#receive(line.slice(5));
    }
  }

  /** @param {object | null} [goodbye] sent first, if the protocol has one; the server then closes */
  close(goodbye = null) {
    this.#request?.abort();
    if (goodbye && this.#socket?.readyState === WebSocket.OPEN) {
      this.send(goodbye);
      const socket = this.#socket;
      setTimeout(() => socket.close(1000), 2000);
      return;
    }
    const socket = this.#socket;
    this.#socket = null;
    socket?.close(1000);
    if (socket) this.#become('off');
  }
}

/** Yields the text of a stream as it arrives. @param {ReadableStream<Uint8Array<ArrayBuffer>>} body */
async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
}
