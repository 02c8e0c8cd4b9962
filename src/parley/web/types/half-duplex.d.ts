/** @typedef {import('./protocol.js').half_duplex.HalfDuplexPrepare} Prepare */
/** @typedef {import('./protocol.js').half_duplex.ServerMessage} ServerMessage */
/** 50 ms at 16 kHz: until a piece has left, the server cannot notice the end of a turn in it. */
export const UNIT_SAMPLES: 800;
export class HalfDuplexClient extends LegacyConnection {
    /**
     * @param {Omit<Prepare, 'type'>} options
     * @param {{sessionId?: string} & import('./connection.js').Where} [where]
     */
    constructor(options: Omit<Prepare, "type">, { base, token, sessionId, ...surroundings }?: {
        sessionId?: string;
    } & import("./connection.js").Where);
    options: Omit<import("./protocol.js").half_duplex.HalfDuplexPrepare, "type">;
    timeoutS: number;
    /** @param {ServerMessage} message */
    onMessage(message: ServerMessage): void;
    /** @param {Float32Array} audio */
    sendAudio(audio: Float32Array): void;
    end(): void;
}
export type Prepare = import("./protocol.js").half_duplex.HalfDuplexPrepare;
export type ServerMessage = import("./protocol.js").half_duplex.ServerMessage;
import { LegacyConnection } from './legacy.js';
