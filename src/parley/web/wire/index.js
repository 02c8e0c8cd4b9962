/** The part of the client that runs in Node as well as in a page: sockets, messages, requests. */

export { ChatClient } from './chat.js';
export { HalfDuplexClient } from './half-duplex.js';
export { CONTEXT_TOKENS, DuplexClient } from './duplex.js';
export { RealtimeClient } from './realtime.js';
export { Connection } from './connection.js';
export { makeSessionId, socketUrl } from './address.js';
export { decodeBytes, decodePcm, encodeBytes, encodePcm } from './codec.js';
export { HttpError, request } from './http.js';
