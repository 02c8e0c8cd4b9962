/** Closes after which there is nothing to come back to. */
export const FINAL_CODES: number[];
/** With which a connection is given up that the session is to outlive. */
export const CUT_CODE: 4006;
export class Returning {
    sessionId: string;
    token: string;
    windowS: number;
    /** True if the server keeps the session for us. */
    get isPossible(): boolean;
    /** True if anything came over the present connection: if nothing does, another is not better. */
    get hasHeard(): boolean;
    /** @param {string | Uint8Array} frame of a message that is about to be sent */
    sent(frame: string | Uint8Array): void;
    /**
     * Count a message of the server.
     * @param {any} message
     * @param {number} [size] of it as it came
     * @returns {boolean} false when it came before
     */
    take({ seq, received, session_id: id, resume_token: token, resume_window_s: windowS }: any, size?: number): boolean;
    /** The acknowledgement that is due now; null: none yet. */
    dueAck(): {
        type: string;
        seq: number;
        generation: number;
    } | null;
    /** The first message of the next connection. */
    request(): {
        type: string;
        session_id: string;
        resume_token: string;
        seq: number;
        sent: number;
    };
    /**
     * The server resumes the session.
     * @param {any} granted its `session.resumed`
     * @returns {(string | Uint8Array)[]} what to send now: the acknowledgement, and the messages that were lost
     */
    granted(granted: any): (string | Uint8Array)[];
    #private;
}
