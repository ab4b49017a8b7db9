// Checks of JSON that is being typed: syntax with line and column, tools, and the keywords of JSON schemas.
// The server checks everything again; this says what is wrong before a request is sent.

import { faultIndex } from "./json-fault.js";

const TYPES = ["string", "number", "integer", "boolean", "object", "array", "null"];
const SCHEMAS = ["items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"];
const SCHEMA_LISTS = ["anyOf", "allOf", "oneOf", "prefixItems"];
const SCHEMA_MAPS = ["properties", "$defs", "definitions", "patternProperties"];
const TOOL_NAME = /^[A-Za-z0-9_.-]{1,64}$/;

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Returns `{value}` or `{error}`, with line and column. */
export function parseJson(text) {
  try {
    return { value: JSON.parse(text) };
  } catch {
    const index = faultIndex(text);
    const before = text.slice(0, index).split("\n");
    const problem = index < text.length ? `${JSON.stringify(text[index])} cannot stand here` : "the text ends too early";
    return { error: `line ${before.length}, column ${before.at(-1).length + 1}: ${problem}` };
  }
}

/** Returns `{value, summary}` or `{error}` for the text of a JSON schema. */
export function checkSchemaText(text) {
  const { value, error } = parseJson(text);
  const fault = error ?? schemaFault(value, "the schema");
  return fault ? { error: fault } : { value, summary: "This is a schema." };
}

/** Returns `{value, summary}` or `{error}` for a list of tools; an empty text is an empty list. */
export function checkToolsText(text) {
  if (text.trim() === "") return { value: [], summary: "No tools." };
  const { value, error } = parseJson(text);
  if (error) return { error };
  if (!Array.isArray(value)) return { error: "tools are an array: [ … ]" };
  for (const [index, tool] of value.entries()) {
    const fault = toolFault(tool);
    if (fault) return { error: `tool ${index + 1}: ${fault}` };
  }
  const names = value.map((tool) => tool.function.name);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  return twice ? { error: `two tools are named ${twice}` } : { value, summary: `Tools: ${names.join(", ") || "none"}.` };
}

function toolFault(tool) {
  if (!isObject(tool) || tool.type !== "function") return 'it is not an object with "type": "function"';
  if (!isObject(tool.function)) return '"function" is missing';
  if (!TOOL_NAME.test(tool.function.name ?? "")) return '"name" must be 1 to 64 letters, digits, "_", "-" or "."';
  const { parameters } = tool.function;
  return parameters === undefined ? null : schemaFault(parameters, '"parameters"');
}

/** Returns what is wrong with a schema, or `null`. */
export function schemaFault(schema, where) {
  if (typeof schema === "boolean") return null;
  if (!isObject(schema)) return `${where} must be an object or a boolean`;
  return keywordFault(schema, where) ?? nestedFault(schema, where);
}

function keywordFault(schema, where) {
  const types = Array.isArray(schema.type) ? schema.type : [schema.type ?? "object"];
  const unknown = types.find((type) => !TYPES.includes(type));
  if (unknown !== undefined) return `${where}: ${JSON.stringify(unknown)} is no type; types are ${TYPES.join(", ")}`;
  const { required } = schema;
  if (required !== undefined && !(Array.isArray(required) && required.every((name) => typeof name === "string"))) {
    return `${where}: "required" must be an array of names`;
  }
  if (schema.enum !== undefined && !Array.isArray(schema.enum)) return `${where}: "enum" must be an array`;
  if (schema.pattern !== undefined && typeof schema.pattern !== "string") return `${where}: "pattern" must be a string`;
  return null;
}

function nestedFault(schema, where) {
  for (const key of SCHEMAS) {
    const fault = schema[key] === undefined ? null : schemaFault(schema[key], `${where}.${key}`);
    if (fault) return fault;
  }
  for (const key of SCHEMA_LISTS) {
    if (schema[key] === undefined) continue;
    if (!Array.isArray(schema[key])) return `${where}: "${key}" must be an array of schemas`;
    const fault = firstFault(schema[key].entries(), `${where}.${key}`);
    if (fault) return fault;
  }
  for (const key of SCHEMA_MAPS) {
    if (schema[key] === undefined) continue;
    if (!isObject(schema[key])) return `${where}: "${key}" must be an object of schemas`;
    const fault = firstFault(Object.entries(schema[key]), `${where}.${key}`);
    if (fault) return fault;
  }
  return null;
}

function firstFault(entries, where) {
  for (const [key, schema] of entries) {
    const fault = schemaFault(schema, `${where}.${key}`);
    if (fault) return fault;
  }
  return null;
}
