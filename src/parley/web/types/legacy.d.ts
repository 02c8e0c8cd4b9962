export class LegacyConnection extends Connection {
    /** True if written words and pictures can be put into the live call; the server reports it at the start. */
    canText: boolean;
    /** @param {any} message @returns {boolean} whether the message was one of these */
    onShared(message: any): boolean;
    /** The conversation may begin, as the server's `prepared` says. @param {any} message */
    prepared({ audio_format: format, accepts, session_id: sessionId, recording_session_id: recordingId }: any): void;
    /** Written words, and perhaps a picture, into the live call. @param {string} text @param {string | null} image base64 */
    sendText(text: string, image: string | null): void;
    /** A place on a worker is ours. */
    onAssigned(): void;
    /**
     * The close that follows says how bad it is.
     * @param {{code: string, sentence: string}} trouble
     */
    onError({ code, sentence }: {
        code: string;
        sentence: string;
    }): void;
    #private;
}
import { Connection } from './connection.js';
