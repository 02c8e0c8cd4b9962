/** Place in the queue, read from the queue events of any dialect. */

/** @typedef {{position: number, length: number, waitS: number | null, ticketId: string}} Place */

/** @param {any} message a queue event of any dialect @returns {Place} */
export function placeOf(message) {
  return {
    position: message.position,
    length: message.queue_length ?? message.position,
    waitS: message.estimated_wait_s ?? message.eta_seconds ?? null,
    ticketId: message.ticket_id ?? '',
  };
}
