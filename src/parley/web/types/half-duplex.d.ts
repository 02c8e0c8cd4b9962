/** @typedef {import('./protocol.js').half_duplex.HalfDuplexPrepare} Prepare */
/** @typedef {import('./protocol.js').half_duplex.ServerMessage} ServerMessage */
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
