/** What is measured in a call in full duplex. */

/**
 * @typedef {object} DuplexMetrics
 * @property {number} units sent
 * @property {number} turns
 * @property {number} contextTokens
 * @property {number | null} responseMs from sending a unit to its answer
 * @property {number | null} costMs the server's own measure
 * @property {number | null} playDelayMs first result to sound
 * @property {number | null} driftMs growth of the way back since the first result
 * @property {number} aheadMs
 * @property {number} gaps
 * @property {number} shiftMs
 * @property {number} dropped
 * @property {number} slices
 */

/** @returns {DuplexMetrics} */
export function freshMetrics() {
  return {
    units: 0,
    turns: 0,
    contextTokens: 0,
    responseMs: null,
    costMs: null,
    playDelayMs: null,
    driftMs: null,
    aheadMs: 0,
    gaps: 0,
    shiftMs: 0,
    dropped: 0,
    slices: 1,
  };
}
