/** What is measured in a call in full duplex. */

/** @typedef {ReturnType<typeof freshMetrics>} DuplexMetrics */

const UNKNOWN = /** @type {number | null} */ (null);

export const freshMetrics = () => ({
  units: 0, // sent
  turns: 0,
  contextTokens: 0,
  responseMs: UNKNOWN, // from sending a unit to its answer
  costMs: UNKNOWN, // the server's own measure
  playDelayMs: UNKNOWN, // first result to sound
  driftMs: UNKNOWN, // growth of the way back since the first result
  aheadMs: 0,
  gaps: 0,
  shiftMs: 0,
  dropped: 0,
  slices: 1,
});
