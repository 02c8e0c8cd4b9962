/** An address of ours as the browser has to ask for it. @param {string} path beginning with a slash */
export function at(path: string): string;
/** The path of this page as its server knows it. */
export function here(): string;
/** '' or a path without a slash at its end. Scripts of another server say nothing about this one. */
export const ROOT: string;
