/** Metrics of a call in full duplex. */

/** @typedef {ReturnType<typeof freshMetrics>} DuplexMetrics */

const UNKNOWN = /** @type {number | null} */ (null);

export const freshMetrics = () => ({
  units: 0, // sent
  turns: 0,
  contextTokens: 0,
  responseMs: UNKNOWN, // from sending a unit to its answer
  costMs: UNKNOWN, // measured by the server
  playDelayMs: UNKNOWN, // from the first result to its sound
  driftMs: UNKNOWN, // growth of the transit time from the server since the first result
  aheadMs: 0,
  gaps: 0,
  shiftMs: 0,
  dropped: 0,
  slices: 1,
});
