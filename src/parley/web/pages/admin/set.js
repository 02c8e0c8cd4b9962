/** Settings of the operator: ways to talk, and expected durations. */

import { confirmed, h } from '../../elements/dom.js';
import { has, t } from '../../words/words.js';
import { act, ask, askIfAny, place, renew, taskWord } from './shared.js';

let shownApps = '';
let shownEta = '';

/** Redraws everything, possibly in another language. */
export function forgetShown() {
  shownApps = shownEta = '';
}

export async function drawApps() {
  const { apps } = await ask('/api/admin/apps');
  const key = JSON.stringify(apps);
  if (key === shownApps) return;
  shownApps = key;
  renew(
    'apps',
    ...apps.map((/** @type {any} */ app) => {
      const box = h('input', { type: 'checkbox', role: 'switch', checked: app.enabled });
      box.onchange = async () => {
        const on = box.checked;
        if (
          !on &&
          !(await confirmed('admin.app_off_sure', 'admin.app_off', {
            app: has(`app.${app.app_id}`) ? t(`app.${app.app_id}`) : app.name,
          }))
        ) {
          box.checked = true;
          return;
        }
        shownApps = '';
        await act(() =>
          ask(`/api/admin/apps/${encodeURIComponent(app.app_id)}`, {
            method: 'PUT',
            body: JSON.stringify({ enabled: on }),
          }),
        );
      };
      return h(
        'label',
        { class: 'switch', 'data-app': app.app_id },
        h(
          'span',
          null,
          h('span', null, has(`app.${app.app_id}`) ? t(`app.${app.app_id}`) : app.name),
          h('small', { class: 'mono' }, app.route),
        ),
        box,
      );
    }),
  );
}

export async function drawEta() {
  const eta = await askIfAny('/api/config/eta');
  if (!eta) {
    /** @type {HTMLElement} */ (place.eta.parentElement).hidden = true;
    return;
  }
  const key = JSON.stringify(eta);
  // Not while the user is typing.
  if (key === shownEta || place.eta.contains(document.activeElement)) return;
  shownEta = key;
  const kinds = ['chat', 'half_duplex', 'audio_duplex', 'omni_duplex'];
  /** @type {Record<string, HTMLInputElement>} */
  const inputs = {};
  const field = (
    /** @type {string} */ name,
    /** @type {string} */ label,
    /** @type {string} */ more,
    /** @type {Record<string, unknown>} */ limits,
  ) => {
    inputs[name] = h('input', { type: 'number', value: String(eta[name]), required: true, ...limits });
    return h(
      'label',
      null,
      h('span', { class: 'row spread' }, h('span', null, label), h('span', { class: 'small quiet' }, more)),
      inputs[name],
    );
  };
  const form = h(
    'form',
    { class: 'eta' },
    ...kinds.map((kind) => {
      const mean = eta[`ema_${kind}_s`];
      return field(
        `eta_${kind}_s`,
        taskWord(kind === 'half_duplex' ? 'half_duplex_audio' : kind),
        mean == null ? t('admin.no_samples') : t('admin.samples', { mean, count: eta[`ema_${kind}_samples`] ?? 0 }),
        { min: 0.1, step: 0.1 },
      );
    }),
    field('eta_ema_alpha', t('admin.alpha'), '', { min: 0.01, max: 1, step: 0.01 }),
    field('eta_ema_min_samples', t('admin.min_samples'), '', { min: 1, step: 1 }),
    h('button', { class: 'button slim', type: 'submit', words: 'action.save' }),
  );
  form.onsubmit = async (event) => {
    event.preventDefault();
    const changed = Object.fromEntries(
      Object.entries(inputs)
        .filter(([name, input]) => Number(input.value) !== eta[name])
        .map(([name, input]) => [name, Number(input.value)]),
    );
    if (Object.keys(changed).length === 0) return;
    shownEta = '';
    /** @type {HTMLElement | null} */ (document.activeElement)?.blur();
    await act(() => ask('/api/config/eta', { method: 'PUT', body: JSON.stringify(changed) }));
  };
  place.eta.replaceChildren(form);
}
