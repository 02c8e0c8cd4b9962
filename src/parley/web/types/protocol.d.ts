export * from '../wire/protocol.js';
