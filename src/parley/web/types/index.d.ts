export { ChatClient } from "./chat.js";
export { HalfDuplexClient } from "./half-duplex.js";
export { RealtimeClient } from "./realtime.js";
export { Connection } from "./connection.js";
export { CONTEXT_TOKENS, DuplexClient } from "./duplex.js";
export { makeSessionId, socketUrl } from "./address.js";
export { decodeBytes, decodePcm, encodeBytes, encodePcm } from "./codec.js";
export { HttpError, request } from "./http.js";
