export class Backlog {
    /**
     * @param {any} message a unit
     * @param {number} ms how long it is
     * @param {number} now ms
     * @param {{bufferedAmount: number} | null} socket null: there is none now
     * @param {(frame: string | Uint8Array, message: any) => void} post
     * @returns {number} ms given up
     */
    push(message: any, ms: number, now: number, socket: {
        bufferedAmount: number;
    } | null, post: (frame: string | Uint8Array, message: any) => void): number;
    clear(): void;
    /** For how long units have been waiting, in ms. @param {number} now */
    waitedMs(now: number): number;
    #private;
}
