/** What a server stores: voices, keys, recordings, disk space, and its log. */

import { copy, h, sheet, textButton, toast } from '../../elements/dom.js';
import { clock, date, number, t } from '../../words/words.js';
import { act, ask, askIfAny, dangerButton, refreshAll, renew, showSection, table, taskWord } from './shared.js';

// Data that a server does not have (null) has no section; data that could not be loaded (undefined) leaves its section
// as it was.

export async function drawVoices() {
  const answer = await askIfAny('/api/assets/ref_audio').catch(() => undefined);
  if (answer === undefined) return;
  showSection('voices', answer !== null);
  if (!answer) return;
  renew(
    'voices',
    table(
      ['name', 'length', 'made', ''],
      (answer.ref_audios ?? []).map((/** @type {any} */ voice) => [
        String(voice.name ?? voice.filename),
        clock((voice.duration_ms ?? 0) / 1000),
        voice.created_at ? date(voice.created_at) : '–',
        dangerButton('action.delete', ['admin.voice_sure', 'action.delete', { name: voice.name }], () =>
          ask(`/api/assets/ref_audio/${encodeURIComponent(voice.id)}`, { method: 'DELETE' }),
        ),
      ]),
      'voices',
    ),
  );
}

/** Shows a new key, once. @param {string} key */
function showKey(key) {
  const button = {
    class: 'button primary',
    type: 'button',
    icon: 'copy',
    words: 'action.copy',
    onclick: () => void copy(key),
  };
  sheet(
    'admin.key_made',
    h('p', { words: 'admin.key_once' }),
    h('p', { class: 'mono' }, key),
    h('div', { class: 'row' }, h('button', button)),
  );
}

function newKey() {
  const name = h('input', { maxlength: 60, required: true, autofocus: true });
  const form = h(
    'form',
    { class: 'stack' },
    h('label', null, h('span', { words: 'admin.th_name' }), name),
    h('button', { class: 'button primary', type: 'submit', words: 'admin.key_new' }),
  );
  const node = sheet('admin.key_new', form);
  form.onsubmit = async (event) => {
    event.preventDefault();
    try {
      const made = await ask('/api/admin/keys', { method: 'POST', body: JSON.stringify({ name: name.value }) });
      node.close();
      showKey(made.key);
      await refreshAll();
    } catch (error) {
      toast('admin.failed', { why: error instanceof Error ? error.message : '' });
    }
  };
}

export async function drawKeys() {
  const answer = await askIfAny('/api/admin/keys').catch(() => undefined);
  if (answer === undefined) return;
  showSection('keys', answer !== null);
  if (!answer) return;
  const add = textButton('plus', 'admin.key_new', newKey);
  renew(
    'keys',
    table(
      ['name', 'made', 'used', ''],
      (answer.keys ?? []).map((/** @type {any} */ key) => [
        String(key.name ?? key.id),
        key.created_at ? date(key.created_at) : '–',
        key.last_used_at ? date(key.last_used_at) : '–',
        dangerButton('admin.revoke', ['admin.key_sure', 'admin.revoke', { name: key.name ?? key.id }], () =>
          ask(`/api/admin/keys/${encodeURIComponent(key.id)}`, { method: 'DELETE' }),
        ),
      ]),
      'keys',
    ),
    add,
  );
}

export async function drawRecordings() {
  const answer = await askIfAny('/api/sessions').catch(() => undefined);
  if (answer === undefined) return;
  showSection('recordings', answer !== null);
  if (!answer) return;
  const link = (/** @type {string} */ id, /** @type {string} */ text) =>
    h('a', { href: `/s/${encodeURIComponent(id)}`, target: '_blank', rel: 'noopener' }, text);
  const live = (answer.sessions ?? []).map((/** @type {any} */ session) => [
    link(session.session_id, session.session_id),
    h('span', { class: 'chip' }, h('span', { class: 'dot', 'data-is': 'good' }), t('admin.live')),
    '–',
    session.last_active ? date(session.last_active) : '–',
    null,
    null,
  ]);
  const kept = (answer.recordings ?? []).map((/** @type {any} */ one) => {
    const path = `/api/sessions/${encodeURIComponent(one.session_id)}`;
    const pin = h('input', {
      type: 'checkbox',
      role: 'switch',
      checked: one.pinned,
      label: 'admin.pin',
      onchange: () =>
        void act(() => ask(`${path}/pin`, { method: 'PUT', body: JSON.stringify({ pinned: pin.checked }) })),
    });
    return [
      link(one.session_id, one.title || one.session_id),
      taskWord(one.app_type),
      one.duration_s ? clock(one.duration_s) : '–',
      date(one.created_at),
      h('label', { class: 'switch' }, pin),
      dangerButton('action.delete', ['replay.delete_sure', 'action.delete'], () => ask(path, { method: 'DELETE' })),
    ];
  });
  renew('recordings', table(['session', 'task', 'length', 'made', 'pinned', ''], [...live, ...kept], 'recordings'));
}

export async function drawDisk() {
  const disk = await askIfAny('/api/admin/disk').catch(() => undefined);
  if (disk === undefined) return;
  showSection('disk', disk !== null);
  if (!disk) return;
  const used = 1 - disk.free_gb / Math.max(disk.total_gb, 0.01);
  const isTight = disk.free_gb < 2 * disk.min_free_gb;
  renew(
    'disk',
    h(
      'div',
      { class: 'stack' },
      h('meter', { min: 0, max: 1, low: 0.8, high: 0.95, optimum: 0, value: used, 'aria-labelledby': 'admin-disk' }),
      h('p', { words: ['admin.disk_free', { free: disk.free_gb, total: disk.total_gb }] }),
      h('p', {
        class: 'quiet small',
        words: [
          'admin.disk_recordings',
          {
            count: disk.recordings,
            size:
              disk.recordings_gb < 1
                ? `${number(disk.recordings_gb * 1000, { maximumFractionDigits: 1 })} MB`
                : `${number(disk.recordings_gb)} GB`,
          },
        ],
      }),
      h(
        'p',
        { class: 'quiet small' },
        [
          disk.retention_days < 0 ? t('admin.disk_forever') : t('admin.disk_days', { days: disk.retention_days }),
          disk.max_gb < 0 ? '' : t('admin.disk_cap', { size: disk.max_gb }),
        ]
          .filter(Boolean)
          .join(' '),
      ),
      isTight
        ? h('p', { class: 'error small', role: 'alert', words: ['admin.disk_tight', { size: disk.min_free_gb }] })
        : null,
    ),
  );
}

export async function drawLog() {
  const answer = await askIfAny('/api/admin/log').catch(() => undefined);
  if (answer === undefined) return;
  showSection('log', answer !== null);
  if (!answer) return;
  renew(
    'log',
    table(
      ['time', 'level', 'event', 'source'],
      (answer.lines ?? []).map((/** @type {any} */ line) => [
        date(line.at),
        h(
          'span',
          { class: 'chip' },
          h('span', { class: 'dot', 'data-is': line.level === 'warning' ? 'fair' : 'poor' }),
          line.level,
        ),
        h(
          'span',
          { class: 'event' },
          line.event,
          h(
            'small',
            { class: 'quiet mono' },
            ` ${Object.entries(line.more ?? {})
              .map(([name, value]) => `${name}=${value}`)
              .join(' ')}`,
          ),
        ),
        h('span', { class: 'quiet small' }, line.source),
      ]),
      'log',
    ),
  );
}
