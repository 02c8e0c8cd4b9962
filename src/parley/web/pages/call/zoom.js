/** Zooms the middle of the picture with two fingers, or with Ctrl and the wheel. */

/** @param {HTMLElement} node @param {import('../../talk/camera.js').Camera} camera */
export function zoomByFingers(node, camera) {
  /** @type {Map<number, PointerEvent>} */
  const fingers = new Map();
  let spread = 0;
  const between = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  };
  node.addEventListener('pointerdown', (event) => {
    if (event.pointerType !== 'touch' || !camera.isOn) return;
    fingers.set(event.pointerId, event);
    if (fingers.size === 2) spread = between() / camera.zoom;
  });
  node.addEventListener('pointermove', (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, event);
    if (fingers.size === 2 && spread > 0) camera.setZoom(between() / spread);
  });
  for (const end of ['pointerup', 'pointercancel', 'pointerleave']) {
    node.addEventListener(end, (event) => fingers.delete(/** @type {PointerEvent} */ (event).pointerId));
  }
  /** @param {WheelEvent} event */
  const onWheel = (event) => {
    if (!event.ctrlKey || !camera.isOn) return;
    event.preventDefault();
    camera.setZoom(camera.zoom * Math.exp(-event.deltaY / 300));
  };
  node.addEventListener('wheel', onWheel, { passive: false });
}
