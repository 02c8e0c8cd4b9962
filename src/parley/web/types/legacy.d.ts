export class LegacyConnection extends Connection {
    /** @param {any} message @returns {boolean} whether the message was one of these */
    onShared(message: any): boolean;
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
