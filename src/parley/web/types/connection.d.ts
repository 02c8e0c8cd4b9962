/**
 * @typedef {{base?: string, token?: string} & Surroundings} Where the server (the page's own by default), and a key for it
 */
/**
 * @typedef {object} Surroundings what tests replace
 * @property {(url: string) => WebSocket} [connect]
 * @property {(callback: () => void, ms: number) => unknown} [setTimer]
 * @property {(timer: any) => void} [clearTimer]
 * @property {() => number} [now] ms
 * @property {typeof globalThis.fetch} [fetch]
 * @property {boolean} [resume] resume the session if the line breaks and the server offers it; true
 * @property {import('./sound.js').Format} [audioFormat] how sound crosses the wire; by default as published on this
 *   machine, as 16-bit samples in binary messages over a network, where the server offers that
 */
export class Connection extends EventTarget {
    /**
     * @param {string} url
     * @param {Surroundings} [surroundings]
     */
    constructor(url: string, surroundings?: Surroundings);
    /** @type {Phase} */
    phase: Phase;
    sessionId: string;
    recordingId: string;
    dropped: number;
    /** Pauses before a broken line is made again. */
    retryMs: number[];
    /** Server clock readings of this connection begin here (ms of `now`). */
    openedAt: number;
    url: string;
    connect: (to: string) => WebSocket;
    setTimer: ((callback: () => void, ms: number) => unknown) | ((callback: () => void, ms: number) => number);
    clearTimer: (timer: any) => void;
    now: () => number;
    fetch: typeof fetch;
    asksToResume: boolean;
    sound: WireSound;
    /** The field of the server's messages that holds sound. */
    get soundField(): string;
    /** True if a broken line may be dialled again. Chat narrows it: only until a worker has the request. */
    get mayRetry(): boolean;
    /** For the sockets that follow: calls outlive tokens. @param {string} token */
    useToken(token: string): void;
    open(): void;
    /** @param {string} type @param {unknown} detail */
    emit(type: string, detail: unknown): void;
    /** The socket is open. */
    onOpen(): void;
    /** @param {any} _message */
    onMessage(_message: any): void;
    /** @param {Place & {}} place */
    waiting(place: Place & {}): void;
    assigned(): void;
    /** @param {{sessionId: string, recordingId?: string}} session */
    ready({ sessionId, recordingId }: {
        sessionId: string;
        recordingId?: string;
    }): void;
    /** Why the close that follows happens. @param {Partial<Ending>} why */
    farewell(why: Partial<Ending>): void;
    /** The dialect's last word has come: the close frame is not waited for. @param {Partial<Ending>} why */
    finish(why: Partial<Ending>): void;
    /** True if sound is wanted now; what cannot leave yet waits, the newest of it. */
    get takesUnits(): boolean;
    get isOpen(): boolean;
    /** For how long units have been waiting because nothing leaves the socket. */
    stuckMs(): number;
    /** The network is back: what waits before it dials again does it now. */
    hurry(): void;
    /** The line is dead although the socket does not know it yet. */
    giveUp(): void;
    /** The message with which a session begins: from it on both sides count. @param {object} message */
    begin(message: object): void;
    /** @param {object} message @returns {boolean} whether it went out, or will */
    send(message: object): boolean;
    /**
     * A unit of live sound: late sound is worth nothing, so while the network is behind the oldest goes.
     * @param {any} message
     * @param {Float32Array} audio what it holds, 16 kHz
     */
    sendUnit(message: any, audio: Float32Array): void;
    /**
     * End on purpose: say so, wait for the answer, close.
     * @param {object | null} message the dialect's word for it; null where it has none
     */
    stop(message: object | null): void;
    #private;
}
export type Phase = "new" | "connecting" | "queued" | "assigned" | "ready" | "returning" | "stopping" | "ended";
export type Place = import("./place.js").Place;
export type Reason = import("./reasons.js").Reason;
export type Ending = import("./reasons.js").Ending;
/**
 * the server (the page's own by default), and a key for it
 */
export type Where = {
    base?: string;
    token?: string;
} & Surroundings;
/**
 * what tests replace
 */
export type Surroundings = {
    connect?: ((url: string) => WebSocket) | undefined;
    setTimer?: ((callback: () => void, ms: number) => unknown) | undefined;
    clearTimer?: ((timer: any) => void) | undefined;
    /**
     * ms
     */
    now?: (() => number) | undefined;
    fetch?: typeof fetch | undefined;
    /**
     * resume the session if the line breaks and the server offers it; true
     */
    resume?: boolean | undefined;
    /**
     * how sound crosses the wire; by default as published on this
     * machine, as 16-bit samples in binary messages over a network, where the server offers that
     */
    audioFormat?: import("./sound.js").Format | undefined;
};
import { WireSound } from './sound.js';
