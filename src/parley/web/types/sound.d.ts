/** The format to ask for by default. @param {string} address of the socket @returns {Format} */
export function fitting(address: string): Format;
/** A message as it leaves: bytes where a field of it holds bytes, text otherwise. @param {any} message */
export function pack(message: any): string | Uint8Array<any>;
/**
 * A binary message as an object.
 * @param {ArrayBuffer} data @param {string} field where its sound belongs
 */
export function unpack(data: ArrayBuffer, field: string): any;
/** @typedef {'float32' | 'pcm16'} Coding */
/** @typedef {{received_ms: number, buffered_ms: number}} PlaybackReport */
/** @typedef {{input: Coding, output: Coding, binary: boolean}} Format */
/** @type {Format} */
export const PUBLISHED: Format;
/** @type {Format} */
export const SAMPLES: Format;
/**
 * Of a microphone, at 16 kHz: 32 ms, half a window of the server's detector. With pieces that do not fit into it the
 * end of a turn is noticed later: with 50 ms by 24 ms in the mean.
 */
export const PIECE_SAMPLES: 512;
export class WireSound {
    /** @param {Format} wanted */
    constructor(wanted: Format);
    /** What is in force. */
    format: Format;
    /** How much of it has not been played; unknown without it. @type {(() => number) | null} */
    unheardMs: (() => number) | null;
    wanted: Format;
    /** What the first message of a conversation says about it; undefined: nothing, which means as published. */
    get asked(): Format | undefined;
    /** The server says what is in force; one that knows no formats says nothing. @param {any} told */
    agree(told: any): void;
    /** @param {Float32Array} samples 16 kHz @returns {string | Uint8Array} as the field of a message */
    out(samples: Float32Array): string | Uint8Array;
    /** With sound that is sent: how far the assistant has been heard. @returns {{playback?: PlaybackReport}} */
    get told(): {
        playback?: PlaybackReport;
    };
    /**
     * Sound of a server. Never throws: a call continues without a damaged piece.
     * @param {string | Uint8Array | null | undefined} field
     * @returns {Float32Array<ArrayBuffer>} 24 kHz; empty when there is nothing to play
     */
    come(field: string | Uint8Array | null | undefined): Float32Array<ArrayBuffer>;
    #private;
}
export type Coding = "float32" | "pcm16";
export type PlaybackReport = {
    received_ms: number;
    buffered_ms: number;
};
export type Format = {
    input: Coding;
    output: Coding;
    binary: boolean;
};
