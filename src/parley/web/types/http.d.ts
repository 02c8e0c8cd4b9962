/**
 * @param {string} path
 * @param {RequestInit & {token?: string, base?: string}} [options]
 * @returns {Promise<any>} parsed JSON
 */
export function request(path: string, { token, base, ...init }?: RequestInit & {
    token?: string;
    base?: string;
}): Promise<any>;
/**
 * The same, for what a server may not have: null instead of an error when it is absent.
 * @param {string} path
 * @param {RequestInit & {token?: string, base?: string}} [options]
 */
export function requestIfAny(path: string, options?: RequestInit & {
    token?: string;
    base?: string;
}): Promise<any>;
/** @param {VoiceInfo} voice one that was registered just now */
export function rememberVoice(voice: VoiceInfo): void;
/** @returns {Promise<VoiceInfo[]>} */
export function listVoices(): Promise<VoiceInfo[]>;
/** @param {string} id @returns {Promise<Float32Array<ArrayBuffer> | null>} 16 kHz */
export function fetchVoice(id: string): Promise<Float32Array<ArrayBuffer> | null>;
/** `code` is the server's word; `offline` when there was no answer at all. */
export class HttpError extends Error {
    /** @param {number} status @param {string} code @param {string} sentence */
    constructor(status: number, code: string, sentence: string);
    status: number;
    code: string;
}
export type VoiceInfo = {
    id: string;
    name: string;
    durationMs: number;
    source: string;
};
