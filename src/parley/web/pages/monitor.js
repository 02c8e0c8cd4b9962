/** Playback of the file of a call at the pace at which its seconds are sent, not at its own. */

/** Maximum difference, beyond which the file is set to the position of the call. */
const APART_S = 0.6;

/**
 * @param {HTMLMediaElement} media
 * @param {{calls: import('../talk/calls.js').Calls<any>}} page
 * @param {() => boolean} isOn
 */
export function followUnits(media, { calls }, isOn) {
  calls.addEventListener('unit', () => {
    const feed = calls.current?.order?.feed;
    if (!isOn() || !feed) return;
    const at = feed.at - 1;
    if (at < 0 || at >= feed.playS) {
      media.pause();
      return;
    }
    if (Math.abs(media.currentTime - at) > APART_S) media.currentTime = at;
    void media.play().catch(() => {});
  });
  calls.addEventListener('change', () => {
    if (isOn() && !calls.isLive) media.pause();
  });
}
