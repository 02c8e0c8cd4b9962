/** @typedef {import('./protocol.js').chat.Request} Request */
/** @typedef {import('./protocol.js').chat.ServerMessage} ServerMessage */
export class ChatClient extends LegacyConnection {
    /**
     * @param {Request} request
     * @param {import('./connection.js').Where} [options]
     */
    constructor(request: Request, { base, token, ...surroundings }?: import("./connection.js").Where);
    request: import("./protocol.js").chat.Request;
    text: string;
    /** @param {ServerMessage} message */
    onMessage(message: ServerMessage): void;
    /** Have the answer end here; what was said so far arrives as `done`. */
    cancel(): void;
}
export type Request = import("./protocol.js").chat.Request;
export type ServerMessage = import("./protocol.js").chat.ServerMessage;
import { LegacyConnection } from './legacy.js';
