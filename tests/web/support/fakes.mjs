/** A socket, a clock and a rig that tests drive by hand. */

export class FakeSocket {
  readyState = 0;
  bufferedAmount = 0;
  sent = [];
  constructor(url) {
    this.url = url;
  }
  send(frame) {
    this.sent.push(typeof frame === 'string' ? JSON.parse(frame) : frame);
  }
  close(code = 1000) {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.closedWith = code;
    this.onclose?.({ code, reason: '' });
  }
  // what the server does
  accept() {
    this.readyState = 1;
    this.onopen?.();
  }
  say(...messages) {
    for (const message of messages) {
      const isReady = typeof message === 'string' || message instanceof ArrayBuffer;
      this.onmessage?.({ data: isReady ? message : JSON.stringify(message) });
    }
  }
  hangUp(code, reason = '') {
    this.readyState = 3;
    this.onclose?.({ code, reason });
  }
  types() {
    return this.sent.map((message) => message.type);
  }
}

export class FakeClock {
  now = 0;
  timers = new Set();
  /** Says 'online' and 'offline'. */
  network = new EventTarget();
  surroundings() {
    return {
      network: this.network,
      now: () => this.now,
      setTimer: (callback, ms) => {
        const timer = { callback, at: this.now + ms };
        this.timers.add(timer);
        return timer;
      },
      clearTimer: (timer) => this.timers.delete(timer),
    };
  }
  pass(ms) {
    const end = this.now + ms;
    for (;;) {
      const due = [...this.timers].filter((timer) => timer.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!due) break;
      this.now = Math.max(this.now, due.at);
      this.timers.delete(due);
      due.callback();
    }
    this.now = end;
  }
}

export class FakeRig extends EventTarget {
  turns = 0;
  log = [];
  onUnit = null;
  permission = null;
  async open() {}
  async connectMicrophone() {
    if (this.permission) throw this.permission;
    this.log.push('mic');
  }
  releaseMicrophone() {
    this.log.push('release');
    this.onUnit = null;
  }
  capture(unitSamples, onUnit) {
    this.unitSamples = unitSamples;
    this.onUnit = onUnit;
  }
  stopCapture() {
    this.onUnit = null;
  }
  recycle() {}
  mute(on) {
    this.log.push(on ? 'mute' : 'unmute');
  }
  play(turn, audio, last = false) {
    this.log.push(`play ${turn} ${audio.length}${last ? ' last' : ''}`);
  }
  endTurn(turn) {
    this.log.push(`end ${turn}`);
  }
  flush() {
    this.log.push('flush');
  }
  setPlaybackDelay(ms) {
    this.delayMs = ms;
  }
  duck(on) {
    if (on) this.log.push('duck');
  }
  // what the sound card does
  unit(value = 0.1) {
    this.onUnit?.(new Float32Array(this.unitSamples).fill(value), false);
  }
  second(value) {
    for (let from = 0; from < 16000; from += this.unitSamples) this.unit(value);
  }
  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
  position(turn, played, sounding = true) {
    this.emit('position', {
      turn,
      played,
      heard: played,
      sounding,
      level: 0.2,
      aheadMs: 500,
      gaps: 0,
      shiftMs: 0,
      delayMs: 200,
      at: 0,
    });
  }
  newTurn() {
    return ++this.turns;
  }
  plays() {
    return this.log.filter((line) => line.startsWith('play'));
  }
}

/** Sockets a test can find again, the newest last, a clock, and what was asked for next to the sockets. */
export function surroundings() {
  const clock = new FakeClock();
  const sockets = [];
  const requests = [];
  const connection = {
    // As on this machine, where sound crosses as published.
    base: 'http://parley.localhost',
    fetch: async (url, init) => {
      requests.push([init.method, url]);
      return new Response();
    },
    connect: (url) => {
      const socket = new FakeSocket(url);
      sockets.push(socket);
      return socket;
    },
    ...clock.surroundings(),
  };
  return { clock, sockets, requests, connection };
}

/** A browser's codec that makes of each packet of sound one byte, its first sample in hundredths, and the reverse. */
export function fakeCodecs({ isOffered = true } = {}) {
  const made = [];
  class Codec {
    state = 'unconfigured';
    static async isConfigSupported() {
      return { supported: isOffered };
    }
    constructor({ output, error }) {
      Object.assign(this, { output, error });
      made.push(this);
    }
    configure() {
      this.state = 'configured';
    }
    close() {
      this.state = 'closed';
    }
  }
  const AudioEncoder = class extends Codec {
    given = 0;
    encode({ init }) {
      const copyTo = (to) => to.set([Math.round(init.data[0] * 100)]);
      for (this.given += init.numberOfFrames; this.given >= 640; this.given -= 640)
        setImmediate(() => this.output({ byteLength: 1, copyTo, duration: 40_000 }));
    }
  };
  const AudioDecoder = class extends Codec {
    decode({ init }) {
      const copyTo = (to) => to.fill(init.data[0] / 100);
      setImmediate(() => this.output({ numberOfFrames: 960, sampleRate: 48000, copyTo, close() {} }));
    }
  };
  class Holder {
    constructor(init) {
      this.init = init;
    }
    close() {}
  }
  return { made, codecs: { AudioEncoder, AudioDecoder, AudioData: Holder, EncodedAudioChunk: Holder } };
}

/** @param {number} count samples of quiet sound as they travel */
export function sound(count) {
  return Buffer.from(new Float32Array(count).fill(0.1).buffer).toString('base64');
}

/** Let promises that are ready continue. */
export const settle = () => new Promise((resolve) => setImmediate(resolve));
