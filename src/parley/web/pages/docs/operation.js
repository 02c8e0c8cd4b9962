/** One operation of the REST API: a line when closed; its details and a form to try it when open. */

import { download, element, h, say } from '../../elements/dom.js';
import { at } from '../../wire/root.js';
import { number } from '../../words/words.js';
import { addressOf } from './openapi.js';
import '../../elements/code/code.js';

/** @typedef {import('./openapi.js').Operation} Operation */
/** @typedef {import('./openapi.js').Field} Field */

/** @param {Operation} operation */
export function operationNode(operation) {
  const { id, method, path, summary } = operation;
  const node = h(
    'details',
    { class: 'operation', id },
    h(
      'summary',
      null,
      h('b', { class: 'method', 'data-method': method }, method.toUpperCase()),
      h('code', null, ...breakable(path)),
      h('span', { class: 'quiet' }, summary),
    ),
  );
  // The page has some sixty operations; details are created only for those that are opened.
  node.addEventListener('toggle', () => node.append(...inside(operation)), { once: true });
  return node;
}

/** Returns a path that can wrap after its slashes. @param {string} path @returns {(Node | string)[]} */
const breakable = (path) => path.split(/(?<=\/)/).flatMap((part) => [part, document.createElement('wbr')]);

/** @param {Operation} operation */
function inside(operation) {
  const { description, parameters, contentType, fields, responses } = operation;
  const parts = [];
  if (description) parts.push(h('p', { class: 'about' }, ...marked(description)));
  if (parameters.length > 0) parts.push(h('h3', { words: 'rest.parameters' }), fieldTable(parameters));
  if (contentType) {
    parts.push(h('h3', null, h('span', { words: 'rest.body' }), ' ', h('code', { class: 'quiet small' }, contentType)));
    if (fields.length > 0) parts.push(fieldTable(fields));
  }
  const statuses = responses.map(({ status, description: what }) =>
    h(
      'li',
      null,
      h('code', { 'data-good': String(status < '400') }, status),
      ' ',
      h('span', { class: 'quiet' }, ...marked(what)),
    ),
  );
  parts.push(h('h3', { words: 'rest.responses' }), h('ul', { class: 'statuses' }, ...statuses));
  parts.push(...trial(operation));
  return parts;
}

/** Returns nodes for text that contains `code`. @param {string} text @returns {(Node | string)[]} */
const marked = (text) => text.split('`').map((part, i) => (i % 2 ? h('code', null, part) : part));

/** @param {(Field & {in?: string})[]} fields */
function fieldTable(fields) {
  const row = (/** @type {Field & {in?: string}} */ { name, type, isRequired, description, in: place }) =>
    h(
      'li',
      null,
      h('code', { class: 'name' }, name),
      h('span', { class: 'quiet small' }, [place, type].filter(Boolean).join(', ')),
      isRequired ? h('span', { class: 'chip', words: 'rest.required' }) : null,
      description ? h('span', { class: 'what' }, ...marked(description)) : null,
    );
  return h('ul', { class: 'fields' }, ...fields.map(row));
}

/**
 * Returns fields for the parameters and the body, the same request as a command, and the server's response.
 * @param {Operation} operation
 */
function trial(operation) {
  const { method, parameters, contentType, example } = operation;
  const canTry = !contentType || contentType.includes('json');
  const inputs = parameters
    .filter((one) => one.in !== 'header')
    .map(({ name, isRequired }) => {
      const input = h('input', {
        name,
        required: isRequired,
        autocomplete: 'off',
        spellcheck: 'false',
        oninput: () => draw(),
      });
      return { name, input, label: h('label', null, h('span', null, h('code', null, name)), input) };
    });
  const body = h('textarea', { class: 'mono editor', label: 'rest.body', spellcheck: 'false', oninput: () => draw() });
  body.value = example;
  const code = /** @type {import('../../elements/code/code.js').Code} */ (element('p-code'));
  const answer = h('div', { class: 'stack', hidden: true, 'aria-live': 'polite' });
  const address = () => addressOf(operation, Object.fromEntries(inputs.map(({ name, input }) => [name, input.value])));
  const draw = () => code.show([{ id: 'shell', name: 'curl', text: curl(operation, address(), body.value) }]);
  const form = h(
    'form',
    { class: 'stack' },
    h('h3', { words: 'rest.try' }),
    ...inputs.map(({ label }) => label),
    example ? body : null,
    method === 'get' ? null : h('p', { class: 'small quiet', words: 'rest.sure' }),
    h(
      'div',
      { class: 'row' },
      h('button', { class: 'button primary', type: 'submit', icon: 'send', words: 'rest.send' }),
    ),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    void ask(operation, address(), example ? body.value : null, answer);
  };
  draw();
  return canTry ? [form, answer, code] : [code];
}

/** @param {Operation} operation @param {string} address @param {string} body */
function curl({ method, contentType, fields }, address, body) {
  const quoted = (/** @type {string} */ text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const url = new URL(at(address), location.href).href;
  const insecure = location.protocol === 'https:' && !/\.[a-z]+$/i.test(location.hostname) ? ' -k' : '';
  const verb = method === 'get' ? '' : ` -X ${method.toUpperCase()}`;
  const parts = [`curl${insecure}${verb} ${quoted(url)}`];
  if (contentType.includes('json')) parts.push(`-H 'content-type: application/json'`, `-d ${quoted(body)}`);
  else
    for (const { name, type } of contentType ? fields : [])
      if (!name.includes('.')) parts.push(`-F ${quoted(`${name}=${type === 'file' ? '@file' : '…'}`)}`);
  return parts.join(' \\\n  ');
}

/** @param {Operation} operation @param {string} address @param {string | null} body @param {HTMLElement} place */
async function ask({ method, path }, address, body, place) {
  const began = performance.now();
  const status = h('p', { class: 'num' });
  place.hidden = false;
  place.replaceChildren(status);
  try {
    const headers = body === null ? undefined : { 'content-type': 'application/json' };
    const response = await fetch(at(address), { method: method.toUpperCase(), headers, body });
    const type = response.headers.get('content-type')?.split(';')[0] ?? '';
    const isText = /json|text|event-stream|javascript|xml/.test(type);
    const blob = await response.blob();
    const ms = Math.round(performance.now() - began);
    say(status, 'rest.status', { status: `${response.status} ${response.statusText}`.trim(), ms });
    if (blob.size === 0) place.append(h('p', { class: 'quiet', words: 'rest.no_body' }));
    else if (isText)
      place.append(h('pre', { tabindex: 0, role: 'region', label: 'rest.answer' }, pretty(await blob.text(), type)));
    else {
      const save = () => download(blob, path.split('/').at(-1) ?? 'file');
      place.append(
        h('p', { class: 'quiet', words: ['rest.binary', { type, size: number(blob.size) }] }),
        h(
          'div',
          { class: 'row' },
          h('button', { class: 'button slim', type: 'button', icon: 'download', words: 'rest.save', onclick: save }),
        ),
      );
    }
  } catch (error) {
    status.textContent = error instanceof Error ? error.message : String(error);
  }
}

/** @param {string} text @param {string} type */
function pretty(text, type) {
  if (!type.includes('json')) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
