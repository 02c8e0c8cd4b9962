/** Notices of a call: what went wrong, and what the user can do. */

import { endingNotice, mediaNotice, microphoneToast, notice } from '../../elements/notice.js';
import { at } from '../../wire/root.js';

/** @typedef {import('./parts.js').CallPage} CallPage */
/** @typedef {import('../../elements/notice.js').Way} Way */

/** @type {Way} */
const writeInstead = { words: 'notice.write_instead', act: () => location.assign(at('/turnbased')) };

const askForKey = async () => (await import('../../elements/key.js')).askForKey();

/** Endings after which the conversation can be continued. */
const isCutShort = (/** @type {string | undefined} */ reason) =>
  reason !== undefined && !['stopped', 'cancelled', 'not_started', 'busy', 'refused', 'bad'].includes(reason);

/** @param {CallPage} page @returns {Node | null} */
function troubleNotice(page) {
  const { calls } = page;
  const { trouble, phase } = calls.state;
  const again = { words: 'action.try_again', act: () => page.start(), isMain: true };
  const choose = { words: 'notice.choose_device', act: () => page.openSide('settings', true) };
  const onClose = () => calls.current?.dismissTrouble();
  if (trouble?.kind === 'media') {
    const without = { words: 'video.without', act: () => page.stageVideo?.goWithout(() => page.start()) };
    const last = trouble.device === 'microphone' ? writeInstead : without;
    const ways = trouble.trouble === 'denied' ? [again, last] : [again, choose, last];
    return mediaNotice(trouble, ways);
  }
  if (trouble?.kind === 'page') {
    const reload = { words: 'action.reload', act: () => location.reload(), isMain: true };
    return notice('error', 'call.no_start', 'call.no_start_fix', { ways: [reload, { ...again, isMain: false }] });
  }
  if (phase === 'ended') return null;
  if (trouble?.kind === 'network') {
    return notice('warn', 'network.slow', 'network.slow_fix', {
      values: { dropped: Math.ceil(trouble.dropped) },
      onClose,
    });
  }
  const words = trouble?.code === 'voice_failed' ? 'trouble.voice' : 'trouble.server';
  return trouble ? notice('warn', words, undefined, { said: trouble.sentence, onClose }) : null;
}

/** @param {CallPage} page @returns {(Node | null)[]} */
function overNotices(page) {
  const { ending, hasGivenBack } = page.calls.state;
  if (!ending || ending.reason === 'not_started') return [];
  /** @type {Way} */
  const again = { words: 'call.again', act: () => page.start(), isMain: true };
  if (hasGivenBack) return [notice('warn', 'queue.gave_back', 'queue.gave_back_fix', { ways: [again] })];
  const call = page.calls.current;
  const said = isCutShort(ending.reason) ? (call?.captions.said() ?? '') : '';
  const whole = () => call?.captions.said(call.order?.said);
  /** @type {Way[]} */
  const ways = [];
  if (said) ways.push({ words: 'call.carry', act: () => page.start(whole()), isMain: true });
  if (ending.code === 'unauthorized') ways.push({ words: 'key.enter', act: () => void askForKey(), isMain: true });
  else ways.push({ ...again, isMain: !said });
  if (ending.reason === 'busy') ways.push(writeInstead);
  const { comeback } = page;
  if (comeback.state === 'back') return [notice('info', 'end.back', 'end.back_fix', { ways })];
  if (comeback.state === 'asked')
    return [notice('info', 'end.asked', 'end.asked_fix', { ways: [{ ...again, isMain: false }] })];
  const ask = () => {
    comeback.state = 'asked';
    page.drawNotices();
  };
  if (comeback.state === 'waiting') ways.unshift({ words: 'call.when_back', act: ask, isMain: true });
  return [endingNotice(/** @type {import('../../wire/reasons.js').Ending} */ (ending), ways)];
}

/** @param {CallPage} page @returns {(Node | null)[]} */
function soundNotices(page) {
  const { calls, devices, settings } = page;
  const { isSuspended, hasLostMic, hasNoSound } = calls.state;
  const microphone = () => ({ deviceId: devices.chosen('microphone'), isStudio: settings.get('studio') });
  const reconnect = () => void calls.current?.useMicrophone(microphone()).catch(microphoneToast);
  return [
    isSuspended
      ? notice('warn', 'media.suspended', undefined, {
          ways: [{ words: 'media.continue', act: () => void calls.current?.wake(), isMain: true }],
        })
      : null,
    hasNoSound && !isSuspended && !hasLostMic
      ? notice('warn', 'media.no_sound', 'media.no_sound_fix', {
          ways: [
            { words: 'action.try_again', act: reconnect, isMain: true },
            { words: 'notice.choose_device', act: () => page.openSide('settings', true) },
          ],
        })
      : null,
    hasLostMic
      ? notice('warn', 'media.lost', 'media.lost_fix', {
          ways: [
            { words: 'media.reconnect', act: reconnect, isMain: true },
            { words: 'notice.choose_device', act: () => page.openSide('settings', true) },
          ],
        })
      : null,
  ];
}

/**
 * Returns the function that draws the notices. It redraws only if something has changed, so that a button is not
 * replaced while it is pressed.
 * @param {CallPage} page
 */
export function noticesOf(page) {
  let shown = '';
  return () => {
    const { trouble, ending, isSuspended, hasLostMic, hasNoSound, hasGivenBack, phase } = page.calls.state;
    const flags = [isSuspended, hasLostMic, hasNoSound, hasGivenBack, phase === 'ended', page.comeback.state];
    const key = JSON.stringify([trouble, ending, ...flags]);
    if (key === shown) return;
    shown = key;
    const list = [troubleNotice(page), ...overNotices(page), ...soundNotices(page)];
    page.notices.replaceChildren(...list.filter((node) => node !== null));
  };
}
