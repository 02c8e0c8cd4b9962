export class RealtimeClient extends Connection {
    /**
     * @param {import('./duplex.js').DuplexOptions} options
     * @param {'audio' | 'video'} mode
     * @param {import('./connection.js').Where} [where]
     */
    constructor(options: import("./duplex.js").DuplexOptions, mode: "audio" | "video", { base, token, ...surroundings }?: import("./connection.js").Where);
    /** Not sending is the pause: the protocol has no word for it. */
    canPause: boolean;
    /** True if written words and pictures can be put into the live call; the server reports it at the start. */
    canText: boolean;
    options: import("./duplex.js").DuplexOptions;
    mode: "audio" | "video";
    /** @type {number | null} */
    limitS: number | null;
    /** @param {ServerMessage | Transcript} message */
    onMessage(message: ServerMessage | Transcript): void;
    /** Written words, and perhaps a picture, into the live call. @param {string} text @param {string | null} image base64 JPEG */
    sendText(text: string, image: string | null): void;
    /** @param {Unit} unit */
    sendUnitOf({ audio, frames, forceListen, slices }: Unit): void;
    pause(): void;
    resume(): void;
    /** @param {object} _metrics */
    diagnose(_metrics: object): void;
    end(): void;
    #private;
}
export type ServerMessage = import("./protocol.js").realtime.ServerMessage;
export type Unit = import("./duplex.js").Unit;
/**
 * Words of the person. The names are those of OpenAI's realtime interface; a server sends them only when
 * it can, and this one takes them as they come.
 */
export type Transcript = {
    type: "conversation.item.input_audio_transcription.delta" | "conversation.item.input_audio_transcription.completed";
    item_id?: string;
    delta?: string;
    transcript?: string;
};
import { Connection } from './connection.js';
