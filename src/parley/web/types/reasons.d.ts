/** @param {number} code of the close @param {string} serverCode of the error before it @returns {Reason} */
export function reasonOf(code: number, serverCode: string): Reason;
/**
 * stopped: we asked · cancelled: someone took us out of the queue · busy: no room, try later ·
 * refused: not allowed · bad: we said something the server could not use · failed: the server's fault ·
 * lost: the network
 */
export type Reason = "stopped" | "cancelled" | "timeout" | "context_full" | "server_shutdown" | "busy" | "refused" | "bad" | "failed" | "lost";
export type Ending = {
    reason: Reason;
    code: string;
    sentence: string;
    wasReady: boolean;
};
