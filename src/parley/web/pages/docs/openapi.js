/** Parser of an OpenAPI document into a list of operations, with references resolved. Does not use the DOM. */

/**
 * @typedef {object} Field
 * @property {string} name `messages[].role` for a field inside others
 * @property {string} type
 * @property {boolean} isRequired
 * @property {string} description
 */
/**
 * @typedef {object} Operation
 * @property {string} id
 * @property {string} tag
 * @property {string} method in lower case
 * @property {string} path
 * @property {string} summary
 * @property {string} description
 * @property {(Field & {in: string})[]} parameters
 * @property {string} contentType of the body; '' without one
 * @property {Field[]} fields of the body
 * @property {string} example body as text
 * @property {{status: string, description: string}[]} responses
 * @property {string} searched all text that is searched, in lower case
 */

/** Maximum depth to which nested fields are listed. */
const DEPTH = 3;
const METHODS = ['get', 'post', 'put', 'patch', 'delete'];

/** @param {any} document @returns {(schema: any) => any} returns the schema for a reference */
function resolver(document) {
  return (schema) => {
    const name = schema?.$ref?.replace('#/components/schemas/', '');
    return name ? (document.components?.schemas?.[name] ?? {}) : (schema ?? {});
  };
}

/** @param {any} schema @param {(schema: any) => any} resolve @returns {string} */
function typeOf(schema, resolve) {
  const real = resolve(schema);
  const one = real.anyOf ?? real.oneOf;
  if (one) return [...new Set(one.map((/** @type {any} */ option) => typeOf(option, resolve)))].join(' | ');
  if (real.enum) return real.enum.map((/** @type {unknown} */ value) => JSON.stringify(value)).join(' | ');
  if (real.const !== undefined) return JSON.stringify(real.const);
  if (real.type === 'array') return `${typeOf(real.items, resolve)}[]`;
  if (Array.isArray(real.type)) return real.type.join(' | ');
  return real.format === 'binary' ? 'file' : (real.type ?? 'any');
}

/**
 * @param {any} schema @param {(schema: any) => any} resolve
 * @param {string} [before] name of the object that contains the fields @param {number} [depth]
 * @returns {Field[]}
 */
function fieldsOf(schema, resolve, before = '', depth = 0) {
  const real = resolve(schema);
  if (depth >= DEPTH) return [];
  const options = (real.anyOf ?? []).filter((/** @type {any} */ option) => option.type !== 'null');
  if (options.length === 1) return fieldsOf(options[0], resolve, before, depth);
  if (real.type === 'array') return fieldsOf(real.items, resolve, `${before}[]`, depth);
  return Object.entries(real.properties ?? {}).flatMap(([name, field]) => {
    const whole = before ? `${before}.${name}` : name;
    const isRequired = real.required?.includes(name) ?? false;
    const found = resolve(field);
    const about = { name: whole, type: typeOf(field, resolve), isRequired };
    const description = String(/** @type {any} */ (field).description ?? found.description ?? '');
    return [{ ...about, description }, ...fieldsOf(field, resolve, whole, depth + 1)];
  });
}

/**
 * Returns an example value, if the description has none.
 * @param {any} schema
 * @param {(schema: any) => any} resolve
 * @returns {unknown}
 */
function sample(schema, resolve, depth = 0) {
  const real = resolve(schema);
  if (real.example !== undefined) return real.example;
  if (real.default !== undefined) return real.default;
  if (real.enum) return real.enum[0];
  const option = (real.anyOf ?? real.oneOf)?.[0];
  if (option) return sample(option, resolve, depth);
  if (real.type === 'object' && depth < DEPTH) {
    const required = Object.entries(real.properties ?? {}).filter(
      ([name]) => real.required?.includes(name) ?? depth === 0,
    );
    return Object.fromEntries(required.map(([name, field]) => [name, sample(field, resolve, depth + 1)]));
  }
  const plain = /** @type {Record<string, unknown>} */ ({
    string: '',
    integer: real.minimum ?? 0,
    number: real.minimum ?? 0,
    boolean: false,
    array: [],
  });
  return plain[real.type] ?? {};
}

/** @param {any} body @param {(schema: any) => any} resolve */
function bodyOf(body, resolve) {
  const [contentType = '', content = {}] = Object.entries(body?.content ?? {})[0] ?? [];
  const { schema, example, examples } = /** @type {any} */ (content);
  const given = example ?? /** @type {any} */ (Object.values(examples ?? {})[0])?.value;
  const fields = schema ? fieldsOf(schema, resolve) : [];
  // Pages record only what their user has agreed to.
  const declined = fields.filter(({ name }) => name === 'record' || name === 'store').map(({ name }) => [name, false]);
  const shown = given ?? sample(schema, resolve);
  const value = declined.length > 0 ? { ...shown, ...Object.fromEntries(declined) } : shown;
  return { contentType, fields, example: contentType.includes('json') ? JSON.stringify(value, null, 2) : '' };
}

/** @param {any} document @returns {Operation[]} in the order of the document */
export function operations(document) {
  const resolve = resolver(document);
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => method in /** @type {any} */ (methods)).map((method) => {
      const one = /** @type {any} */ (methods)[method];
      const parameters = (one.parameters ?? []).map((/** @type {any} */ parameter) => ({
        name: parameter.name,
        in: parameter.in,
        type: typeOf(parameter.schema, resolve),
        isRequired: parameter.required ?? false,
        description: parameter.description ?? '',
      }));
      const responses = Object.entries(one.responses ?? {}).map(([status, response]) => ({
        status,
        description: String(/** @type {any} */ (response).description ?? ''),
      }));
      const tag = one.tags?.[0] ?? 'other';
      const description = one.description ?? '';
      // The names are those of functions; the first sentence of the description is more useful.
      const summary = description.split(/[.;:](?:\s|$)/)[0].replaceAll('`', '') || (one.summary ?? '');
      return {
        id: one.operationId ?? `${method}-${path}`,
        tag,
        method,
        path,
        summary,
        description,
        parameters,
        responses,
        searched: `${method} ${path} ${summary} ${description} ${tag}`.toLowerCase(),
        ...bodyOf(one.requestBody, resolve),
      };
    }),
  );
}

/** @param {Operation} operation @param {Record<string, string>} values of its parameters; '' for none @returns {string} path with query */
export function addressOf({ path, parameters }, values) {
  const whole = parameters
    .filter((one) => one.in === 'path')
    .reduce((before, { name }) => before.replace(`{${name}}`, encodeURIComponent(values[name] ?? '')), path);
  const query = new URLSearchParams(
    parameters.filter((one) => one.in === 'query' && values[one.name]).map(({ name }) => [name, values[name]]),
  );
  return query.size > 0 ? `${whole}?${query}` : whole;
}
