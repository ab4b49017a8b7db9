// What an OpenAPI document says about a route: its fields in words, and an example of a body.

const MAX_DEPTH = 4;

/** Returns the schema that a reference names, or the schema itself. */
export function resolve(schema, document) {
  const name = schema?.$ref?.split("/").at(-1);
  return name === undefined ? (schema ?? {}) : (document.components?.schemas?.[name] ?? {});
}

/** Returns the type of a schema in words, such as `string or array of integer`. */
export function typeName(schema, document, depth = 0) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return [...new Set(options.map((option) => typeName(option, document, depth)))].join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array" && depth < MAX_DEPTH) {
    return `array of ${typeName(schema.items ?? {}, document, depth + 1)}`;
  }
  return [schema.type ?? "any"].flat().join(" or ");
}

/** Returns the fields of an object's schema, those that are required first: `[{name, type, required, text}]`. */
export function fieldsOf(schema, document) {
  const object = resolve(schema, document);
  const required = new Set(object.required ?? []);
  const fields = Object.entries(object.properties ?? {}).map(([name, field]) => ({
    name,
    type: typeName(field, document),
    required: required.has(name),
    text: fieldText(field),
  }));
  return [...fields.filter((field) => field.required), ...fields.filter((field) => !field.required)];
}

function fieldText(field) {
  const parts = [field.description ?? ""];
  if (field.default !== undefined && field.default !== null) parts.push(`default: ${JSON.stringify(field.default)}`);
  return parts.filter(Boolean).join("; ");
}

/** Returns a value that fits a schema: of objects only the fields that are required. */
export function example(schema, document, depth = 0) {
  const resolved = resolve(schema, document);
  if (resolved.examples?.length) return resolved.examples[0];
  if (resolved.default !== undefined && resolved.default !== null) return resolved.default;
  if (resolved.enum) return resolved.enum[0];
  if ("const" in resolved) return resolved.const;
  const options = resolved.anyOf ?? resolved.oneOf;
  if (options) return example(options[0], document, depth);
  const type = [resolved.type].flat()[0];
  if (type === "array") return depth < MAX_DEPTH ? [example(resolved.items ?? {}, document, depth + 1)] : [];
  if (type === "object" || resolved.properties) {
    const names = depth < MAX_DEPTH ? (resolved.required ?? []) : [];
    return Object.fromEntries(names.map((name) => [name, example(resolved.properties[name], document, depth + 1)]));
  }
  return { string: "text", integer: 1, number: 1, boolean: false }[type] ?? null;
}
