/**
 * Opus on the wire, with the browser's own codec (WebCodecs): an eighth of the bytes of 16-bit samples.
 *
 * Each packet follows its length in two big-endian bytes. The codec works in its own thread, so both directions return
 * promises; those of one direction are fulfilled in order. Source: docs/protocols/README.md, "Audio format".
 */

/** Samples in one packet of ours, 16 kHz: 40 ms, a compromise of delay and of bytes that surround each message. */
export const PACKET_SAMPLES = 640;
const IN_HZ = 16000;
const OUT_HZ = 24000;
/** Rate at which browsers decode Opus. */
const DECODED_HZ = 48000;
/** Samples on each side that the filter sees which halves this rate. */
const REACH = 31;
/** Half-band low-pass with a Blackman window: every other tap is zero, so that these belong to 1, 3, 5 … */
const TAPS = Float32Array.from({ length: (REACH + 1) / 2 }, (_, i) => {
  const k = 2 * i + 1;
  const turn = (Math.PI * k) / (REACH + 1);
  return ((i % 2 ? -1 : 1) / (Math.PI * k)) * (0.42 + 0.5 * Math.cos(turn) + 0.08 * Math.cos(2 * turn));
});
const PACKET_US = (PACKET_SAMPLES / IN_HZ) * 1e6;
const ENCODER = {
  codec: 'opus',
  sampleRate: IN_HZ,
  numberOfChannels: 1,
  bitrate: 24000,
  opus: /** @type {const} */ ({ application: 'voip', frameDuration: PACKET_US }),
};
const DECODER = { codec: 'opus', sampleRate: DECODED_HZ, numberOfChannels: 1 };
/** A packet of silence, 20 ms. */
const SILENCE = Uint8Array.of(0, 3, 0xf8, 0xff, 0xfe);
/** Time after which a codec that returns nothing has failed, and one that keeps something back is not waited for. */
const PATIENCE_MS = 2000;

/** @typedef {Pick<typeof globalThis, 'AudioEncoder' | 'AudioDecoder' | 'AudioData' | 'EncodedAudioChunk'>} Codecs */

/** @param {Partial<Codecs>} codecs @returns {Promise<boolean>} true if both directions are supported */
export async function offersOpus({ AudioEncoder, AudioDecoder } = globalThis) {
  if (!AudioEncoder || !AudioDecoder) return false;
  const [out, back] = await Promise.all([
    AudioEncoder.isConfigSupported(ENCODER).catch(() => null),
    AudioDecoder.isConfigSupported(DECODER).catch(() => null),
  ]);
  return Boolean(out?.supported && back?.supported);
}

/**
 * Work of a codec, done in order: each job gets the parts that belong to it.
 * @template {ArrayBufferView} Part
 */
class Jobs {
  /** @type {{left: number, parts: Part[], done: (parts: Part[]) => void}[]} */
  #jobs = [];
  /** @type {any} */
  #timer = null;

  /** @param {() => void} fail called if the codec returns nothing */
  constructor(fail) {
    this.fail = fail;
  }

  /** @param {number} amount of parts to wait for @returns {Promise<Part[]>} */
  add(amount) {
    return new Promise((done) => {
      this.#jobs.push({ left: amount, parts: [], done });
      if (this.#jobs.length === 1) this.#goOn();
    });
  }

  /** @param {Part} part @param {number} [amount] */
  take(part, amount = 1) {
    const [job] = this.#jobs;
    if (!job) return;
    job.parts.push(part);
    job.left -= amount;
    if (job.left <= 0) this.#goOn();
  }

  #goOn() {
    clearTimeout(this.#timer);
    for (let job = this.#jobs[0]; job && job.left <= 0; job = this.#jobs[0]) {
      this.#jobs.shift();
      job.done(job.parts);
    }
    const [job] = this.#jobs;
    if (!job) return;
    this.#timer = setTimeout(() => {
      if (job.parts.length === 0) return this.fail();
      job.left = 0;
      this.#goOn();
    }, PATIENCE_MS);
  }

  end() {
    clearTimeout(this.#timer);
    this.#jobs.length = 0;
  }
}

export class OpusCoder {
  /** @type {Jobs<Uint8Array<ArrayBuffer>>} */
  #packets;
  /** @type {Jobs<Float32Array<ArrayBuffer>>} */
  #sounds;
  #encoder;
  #decoder;
  /** Audio that was given to the encoder, and whole packets of it. */
  #givenUs = 0;
  #packedUs = 0;
  #count = 0;
  /** The last decoded samples, which the filter sees again. */
  #rest = new Float32Array(2 * REACH);

  /** @param {() => void} onFail called once if the codec fails @param {Codecs} codecs */
  constructor(onFail, codecs = globalThis) {
    const fail = () => {
      if (this.#encoder.state === 'closed' && this.#decoder.state === 'closed') return;
      this.close();
      onFail();
    };
    this.codecs = codecs;
    this.#packets = new Jobs(fail);
    this.#sounds = new Jobs(fail);
    this.#encoder = new codecs.AudioEncoder({
      output: (chunk) => {
        const packet = new Uint8Array(2 + chunk.byteLength);
        new DataView(packet.buffer).setUint16(0, chunk.byteLength);
        chunk.copyTo(packet.subarray(2));
        this.#packets.take(packet, chunk.duration ?? PACKET_US);
      },
      error: fail,
    });
    this.#decoder = new codecs.AudioDecoder({ output: (data) => this.#decoded(data), error: fail });
    this.#encoder.configure(ENCODER);
    this.#decoder.configure(DECODER);
    // The first packet takes up to half a second, while the browser starts the decoder.
    void this.decode(SILENCE);
  }

  /**
   * @param {Float32Array} samples 16 kHz
   * @returns {Promise<Uint8Array>} packets with their lengths; samples that fill none are in the next ones
   */
  async encode(samples) {
    if (this.#encoder.state !== 'configured') return new Promise(() => {});
    const data = new this.codecs.AudioData({
      format: 'f32',
      sampleRate: IN_HZ,
      numberOfFrames: samples.length,
      numberOfChannels: 1,
      timestamp: this.#givenUs,
      data: /** @type {Float32Array<ArrayBuffer>} */ (samples),
    });
    this.#encoder.encode(data);
    data.close();
    this.#givenUs += (samples.length / IN_HZ) * 1e6;
    const us = Math.floor((this.#givenUs - this.#packedUs) / PACKET_US) * PACKET_US;
    this.#packedUs += us;
    return joined(Uint8Array, await this.#packets.add(us));
  }

  /** @param {Uint8Array} bytes packets with their lengths @returns {Promise<Float32Array<ArrayBuffer>>} 24 kHz */
  async decode(bytes) {
    if (this.#decoder.state !== 'configured') return new Promise(() => {});
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    let packets = 0;
    for (let at = 0; at + 2 < bytes.length; packets++) {
      const size = view.getUint16(at);
      const data = bytes.subarray(at + 2, at + 2 + size);
      this.#decoder.decode(new this.codecs.EncodedAudioChunk({ type: 'key', timestamp: 20_000 * this.#count++, data }));
      at += 2 + size;
    }
    return joined(Float32Array, packets === 0 ? [] : await this.#sounds.add(packets));
  }

  /** @param {AudioData} data */
  #decoded(data) {
    const samples = new Float32Array(data.numberOfFrames);
    data.copyTo(samples, { planeIndex: 0, format: 'f32-planar' });
    const isHalf = data.sampleRate === OUT_HZ;
    data.close();
    this.#sounds.take(isHalf ? samples : this.#halved(samples));
  }

  /** @param {Float32Array<ArrayBuffer>} samples 48 kHz */
  #halved(samples) {
    const all = joined(Float32Array, [this.#rest, samples]);
    const sound = new Float32Array((all.length - 2 * REACH) >> 1);
    for (let i = 0; i < sound.length; i++) {
      const at = REACH + 2 * i;
      let sum = all[at] / 2;
      for (let tap = 0, k = 1; k <= REACH; tap++, k += 2) sum += TAPS[tap] * (all[at - k] + all[at + k]);
      sound[i] = sum;
    }
    this.#rest = all.slice(2 * sound.length);
    return sound;
  }

  close() {
    for (const each of [this.#encoder, this.#decoder]) if (each.state !== 'closed') each.close();
    this.#packets.end();
    this.#sounds.end();
  }
}

/**
 * @template {Uint8Array<ArrayBuffer> | Float32Array<ArrayBuffer>} Part
 * @param {new (length: number) => Part} Kind @param {Part[]} parts
 */
function joined(Kind, parts) {
  const whole = new Kind(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
