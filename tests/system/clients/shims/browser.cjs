// What a page has and node has not, so that the printed programs run as printed:
//   node --experimental-websocket browser.cjs PROGRAM
//
// SERVER_WS_URL: the server. SPEECH: 16 kHz mono float32 samples, raw, that the microphone hears.
// REFERENCE: the same, for the reference voice. On standard output, one JSON line per server
// message with its type and the length of its sound, and one per piece that was played.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const CHUNK_SAMPLES = 8000; // 0.5 s at 16 kHz, as the program's comment says.
const QUIET_CHUNKS = 40; // Silence after the speech, as a microphone would bring it.

const report = (line) => fs.writeSync(1, JSON.stringify(line) + "\n");
const samplesOf = (name) => {
  const bytes = fs.readFileSync(name);
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
};
const toBase64 = (samples) =>
  Buffer.from(samples.buffer, samples.byteOffset, samples.byteLength).toString("base64");

const define = (name, value) =>
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });

let turns = 0;
let microphone = null;

const Real = globalThis.WebSocket;
define(
  "WebSocket",
  class extends Real {
    constructor(url) {
      super(url.replace("wss://the-server", process.env.SERVER_WS_URL));
      this.addEventListener("message", (event) => {
        const message = JSON.parse(event.data);
        const { type } = message;
        report({ type, sound: (message.audio_data ?? "").length, text: message.text });
        if (type === "turn_done" && ++turns === 1) {
          // The person behind the page presses its stop button.
          setTimeout(() => globalThis.stopSession(), 200);
        }
      });
      this.addEventListener("close", (event) => {
        clearInterval(microphone);
        report({ type: "(closed)", code: event.code });
      });
    }
  },
);

define("location", { host: "the-server" });
define("getRefAudioBase64", () => toBase64(samplesOf(process.env.REFERENCE)));
define("playAudio", (text) => report({ type: "(played)", sound: text.length }));
define("getPlaybackRemaining", () => 0);
define("float32ToBase64", toBase64);
define("navigator", { mediaDevices: { getUserMedia: async () => ({}) } });
define(
  "AudioContext",
  class {
    audioWorklet = { addModule: async () => undefined };
    createMediaStreamSource() {
      return { connect() {} };
    }
  },
);
define(
  "AudioWorkletNode",
  class {
    port = { onmessage: null };
    constructor() {
      const speech = samplesOf(process.env.SPEECH);
      let sent = 0;
      microphone = setInterval(() => {
        const audio = new Float32Array(CHUNK_SAMPLES);
        audio.set(speech.subarray(sent, sent + CHUNK_SAMPLES));
        sent += CHUNK_SAMPLES;
        this.port.onmessage?.({ data: { type: "chunk", audio } });
        if (sent > speech.length + QUIET_CHUNKS * CHUNK_SAMPLES) clearInterval(microphone);
      }, 500);
    }
  },
);

// The programs say console.log; keep that apart from our report.
console.log = (...words) => console.error(...words);
process.stdout.write = (text) => process.stderr.write(text);

const program = path.resolve(process.argv[2]);
vm.runInThisContext(fs.readFileSync(program, "utf8"), { filename: program });
