/** @typedef {import('./protocol.js').duplex.Prepare} Prepare */
/** @typedef {import('./protocol.js').duplex.ServerMessage} ServerMessage */
/**
 * @typedef {object} Unit
 * @property {Float32Array} audio 16 kHz, at most 16000 samples
 * @property {string[]} [frames] base64 JPEG
 * @property {boolean} [forceListen]
 * @property {number} [slices] 1 to 9
 */
/** @typedef {{allMs?: number, wallMs?: number, sentAt?: number, slices?: number, visionTokens?: number}} Costs */
/**
 * What a conversation in full duplex begins with.
 * @typedef {object} DuplexOptions
 * @property {string} instructions
 * @property {string | null} [voice] base64 sound the language model hears as its voice
 * @property {string | null} [ttsVoice] base64 sound the vocoder imitates; `voice` when absent
 * @property {number} [slices]
 * @property {import('./protocol.js').duplex.DuplexConfig} [config]
 * @property {boolean} [record]
 * @property {import('./protocol.js').duplex.InterruptionOptions} [interruption] what the server does when
 *   the person speaks while the assistant does; nothing by default
 */
/** @template M @template {keyof M} F @typedef {Omit<M, F> & Record<F, string | Uint8Array>} WithSound */
export const UNIT_SAMPLES: 16000;
export function costsOf(message: any): Costs;
/** Tokens a context can hold. Source: service.md 4.5. */
export const CONTEXT_TOKENS: 8192;
export class DuplexClient extends LegacyConnection {
    /**
     * @param {DuplexOptions} options
     * @param {'audio' | 'video'} mode
     * @param {import('./connection.js').Where} [where]
     */
    constructor(options: DuplexOptions, mode: "audio" | "video", { base, token, ...surroundings }?: import("./connection.js").Where);
    canPause: boolean;
    /** The legacy dialect has no short total limit to show. @type {number | null} */
    limitS: number | null;
    options: DuplexOptions;
    ownId: string;
    /** @param {ServerMessage} message */
    onMessage(message: ServerMessage): void;
    /** @param {Unit} unit */
    sendUnitOf({ audio, frames, forceListen, slices }: Unit): void;
    pause(): void;
    resume(): void;
    /** @param {object} metrics */
    diagnose(metrics: object): void;
    end(): void;
}
export type Prepare = import("./protocol.js").duplex.Prepare;
export type ServerMessage = import("./protocol.js").duplex.ServerMessage;
export type Unit = {
    /**
     * 16 kHz, at most 16000 samples
     */
    audio: Float32Array;
    /**
     * base64 JPEG
     */
    frames?: string[] | undefined;
    forceListen?: boolean | undefined;
    /**
     * 1 to 9
     */
    slices?: number | undefined;
};
export type Costs = {
    allMs?: number;
    wallMs?: number;
    sentAt?: number;
    slices?: number;
    visionTokens?: number;
};
/**
 * What a conversation in full duplex begins with.
 */
export type DuplexOptions = {
    instructions: string;
    /**
     * base64 sound the language model hears as its voice
     */
    voice?: string | null | undefined;
    /**
     * base64 sound the vocoder imitates; `voice` when absent
     */
    ttsVoice?: string | null | undefined;
    slices?: number | undefined;
    config?: import("./protocol.js").duplex.DuplexConfig | undefined;
    record?: boolean | undefined;
    /**
     * what the server does when
     * the person speaks while the assistant does; nothing by default
     */
    interruption?: import("./protocol.js").duplex.InterruptionOptions | undefined;
};
export type WithSound<M, F extends keyof M> = Omit<M, F> & Record<F, string | Uint8Array>;
import { LegacyConnection } from './legacy.js';
