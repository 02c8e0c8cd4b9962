/** A place in the queue, as every dialect reports it in its own words. */
/** @typedef {{position: number, length: number, waitS: number | null, ticketId: string}} Place */
/** @param {any} message a queue event of any dialect @returns {Place} */
export function placeOf(message: any): Place;
export type Place = {
    position: number;
    length: number;
    waitS: number | null;
    ticketId: string;
};
