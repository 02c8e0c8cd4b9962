/** Small client for the REST API, with errors that a page can explain. */

import { decodePcm } from './codec.js';

import { at } from './root.js';

/** `code` is the server's error code; `offline` if there was no answer, `signed_out` if a proxy wants the user to sign in. */
export class HttpError extends Error {
  /** @param {number} status @param {string} code @param {string} sentence */
  constructor(status, code, sentence) {
    super(sentence);
    this.name = 'HttpError';
    this.status = status;
    this.code = code;
  }
}

/**
 * @param {string} path
 * @param {RequestInit & {token?: string, base?: string}} [options]
 * @returns {Promise<any>} parsed JSON
 */
export async function request(path, { token, base, ...init } = {}) {
  const headers = new Headers(init.headers);
  if (token) headers.set('authorization', `Bearer ${token}`);
  if (typeof init.body === 'string') headers.set('content-type', 'application/json');
  /** @type {Response} */
  let response;
  // A proxy that signs users in redirects their requests, too, to an address that pages may not read.
  const redirect = base ? 'follow' : 'manual';
  try {
    response = await fetch(base ? base.replace(/\/*$/, '') + path : at(path), { redirect, ...init, headers });
  } catch (error) {
    throw new HttpError(0, 'offline', error instanceof Error ? error.message : 'no answer');
  }
  if (response.type === 'opaqueredirect') throw new HttpError(401, 'signed_out', 'The sign-in has expired.');
  const type = response.headers.get('content-type') ?? '';
  // The login page of a hotel's network, or of a proxy: the server has not answered.
  if (response.ok && type.includes('html')) throw new HttpError(0, 'offline', 'no answer of this server');
  const isJson = type.includes('json');
  const body = isJson ? await response.json().catch(() => null) : null;
  if (!response.ok) {
    const detail = typeof body?.detail === 'string' ? body.detail : response.statusText;
    // A proxy refuses large bodies, too, in its own words.
    const code = response.status === 413 ? 'too_large' : String(response.status);
    throw new HttpError(response.status, body?.code ?? code, detail);
  }
  return body;
}

/**
 * Like `request`, but returns null instead of an error if the server does not have the resource.
 * @param {string} path
 * @param {RequestInit & {token?: string, base?: string}} [options]
 */
export async function requestIfAny(path, options) {
  try {
    return await request(path, options);
  } catch (error) {
    if (error instanceof HttpError && [404, 405, 501].includes(error.status)) return null;
    throw error;
  }
}

/** @typedef {{id: string, name: string, durationMs: number, source: string}} VoiceInfo */

const OWN_VOICES = 'parley.voices';
const OWN_VOICES_LIMIT = 50;

/** Voices registered in this browser; without an API key they can be reached only by their ids. */
/** @returns {VoiceInfo[]} */
function ownVoices() {
  try {
    const list = JSON.parse(localStorage.getItem(OWN_VOICES) ?? '[]');
    return Array.isArray(list) ? list.filter((voice) => typeof voice?.id === 'string') : [];
  } catch {
    return [];
  }
}

/** @param {VoiceInfo} voice one that was registered just now */
export function rememberVoice(voice) {
  try {
    localStorage.setItem(OWN_VOICES, JSON.stringify([...ownVoices(), voice].slice(-OWN_VOICES_LIMIT)));
  } catch {
    // Storage is full or forbidden: the voice can be used until the page is closed.
  }
}

/** @returns {Promise<VoiceInfo[]>} */
export async function listVoices() {
  const answer = await requestIfAny('/api/assets/ref_audio');
  const listed = (answer?.ref_audios ?? []).map((/** @type {any} */ voice) => ({
    id: String(voice.id),
    name: String(voice.name ?? voice.filename ?? voice.id),
    durationMs: Number(voice.duration_ms ?? 0),
    source: String(voice.source_type ?? ''),
  }));
  const ids = new Set(listed.map((/** @type {VoiceInfo} */ voice) => voice.id));
  return [...listed, ...ownVoices().filter((voice) => !ids.has(voice.id))];
}

/** @param {string} id @returns {Promise<Float32Array<ArrayBuffer> | null>} 16 kHz */
export async function fetchVoice(id) {
  const answer = await requestIfAny(
    id === 'default' ? '/api/default_ref_audio' : `/api/assets/ref_audio/${encodeURIComponent(id)}`,
  );
  const text = answer?.base64 ?? answer?.audio_base64 ?? answer?.data;
  return text ? decodePcm(text) : null;
}
