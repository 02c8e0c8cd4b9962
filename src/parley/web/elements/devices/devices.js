/**
 * <p-devices>: choice of microphone, loudspeaker and camera, stored per page and updated when devices are connected.
 */

import { canChooseSpeaker, listDevices } from '../../audio/devices.js';
import { h, textButton } from '../dom.js';

/** @typedef {'microphone' | 'speaker' | 'camera'} DeviceKind */

export class Devices extends HTMLElement {
  /** @type {Record<DeviceKind, HTMLSelectElement>} */
  #selects = { microphone: h('select', null), speaker: h('select', null), camera: h('select', null) };
  /** @type {AbortController} */
  #life = new AbortController();

  connectedCallback() {
    this.#life = new AbortController();
    const kinds = /** @type {DeviceKind[]} */ ([
      'microphone',
      'speaker',
      ...(this.hasAttribute('camera') ? ['camera'] : []),
    ]);
    for (const kind of kinds) {
      if (kind === 'speaker' && !canChooseSpeaker()) continue;
      const select = this.#selects[kind];
      select.onchange = () => {
        localStorage.setItem(this.#key(kind), select.value);
        this.dispatchEvent(new CustomEvent('device', { detail: { kind, id: select.value } }));
      };
      this.append(h('label', null, h('span', { words: `device.${kind}` }), select));
    }
    this.append(textButton('retry', 'device.refresh', () => this.refresh(), 'plain slim'));
    navigator.mediaDevices?.addEventListener?.('devicechange', () => this.refresh(), { signal: this.#life.signal });
    void this.refresh();
  }

  disconnectedCallback() {
    this.#life.abort();
    this.replaceChildren();
  }

  /** @param {DeviceKind} kind */
  #key(kind) {
    return `parley.device.${this.getAttribute('page') ?? ''}.${kind}`;
  }

  /** Returns the chosen device; undefined for the system's choice. @param {DeviceKind} kind */
  chosen(kind) {
    return localStorage.getItem(this.#key(kind)) || undefined;
  }

  async refresh() {
    const { microphones, speakers, cameras } = await listDevices();
    const lists = { microphone: microphones, speaker: speakers, camera: cameras };
    for (const kind of /** @type {DeviceKind[]} */ (Object.keys(lists))) {
      const select = this.#selects[kind];
      const chosen = this.chosen(kind) ?? '';
      select.replaceChildren(
        h('option', { value: '', words: 'device.system' }),
        ...lists[kind].filter(({ id }) => id !== 'default').map(({ id, label }) => h('option', { value: id }, label)),
      );
      select.value = lists[kind].some(({ id }) => id === chosen) ? chosen : '';
    }
  }
}

customElements.define('p-devices', Devices);
