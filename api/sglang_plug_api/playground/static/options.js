// The settings at the side, and the request fields that they stand for.

import { byId, element } from "./dom.js";
import { checkSchemaText, checkToolsText } from "./json-check.js";

const SAMPLING = [
  { field: "max_tokens", label: "Maximum tokens", min: 1, step: 1 },
  { field: "temperature", label: "Temperature", min: 0, max: 2, step: "any" },
  { field: "top_p", label: "Top p", min: 0, max: 1, step: "any" },
  { field: "top_k", label: "Top k", min: -1, step: 1 },
  { field: "min_p", label: "Min p", min: 0, max: 1, step: "any" },
  { field: "repetition_penalty", label: "Repetition penalty", min: 0, max: 2, step: "any" },
  { field: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any" },
  { field: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any" },
  { field: "seed", label: "Seed", step: 1 },
];

const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, country: { type: "string" } },
  required: ["city", "country"],
  additionalProperties: false,
};

const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_current_weather",
      description: "Get the current weather in a given location",
      parameters: {
        type: "object",
        properties: {
          city: { type: "string", description: "The city, e.g. 'Boston'" },
          unit: { type: "string", enum: ["celsius", "fahrenheit"] },
        },
        required: ["city", "unit"],
      },
    },
  },
];

const formatted = (value) => JSON.stringify(value, null, 2);

/** Thrown for a setting that cannot be sent; `input` is where it stands. */
export class SettingError extends Error {
  constructor(message, input) {
    super(message);
    this.input = input;
  }
}

export class Options {
  constructor() {
    this.inputs = SAMPLING.map(({ field, label, ...bounds }) => {
      const input = element("input", { type: "number", id: `sampling-${field}`, placeholder: "default", ...bounds });
      byId("sampling").append(element("label", { htmlFor: input.id }, label), input);
      return { field, label, input };
    });
    byId("schema").value = formatted(EXAMPLE_SCHEMA);
    byId("schema").addEventListener("input", () => this.#check("schema", checkSchemaText));
    byId("tools").addEventListener("input", () => this.#check("tools", checkToolsText));
    byId("tools-example").addEventListener("click", () => {
      byId("tools").value = formatted(EXAMPLE_TOOLS);
      byId("tools").dispatchEvent(new Event("input", { bubbles: true }));
    });
    byId("format").addEventListener("change", () => this.#showSchema());
    this.#showSchema();
    this.#check("tools", checkToolsText);
  }

  /** Calls `listener` when a setting has changed. */
  onChange(listener) {
    byId("settings").addEventListener("input", listener);
  }

  get system() {
    return byId("system").value.trim();
  }

  /** Fields that chats and completions share. Throws `SettingError`. */
  sampling() {
    const fields = {};
    for (const { field, label, input } of this.inputs) {
      if (!input.validity.valid) throw new SettingError(`${label}: ${input.validationMessage}`, input);
      if (input.value !== "") fields[field] = input.valueAsNumber;
    }
    const stop = byId("stop-strings").value.split("\n").filter((line) => line !== "");
    return stop.length ? { ...fields, stop } : fields;
  }

  /** Number of alternatives of each token; `null` without log-probabilities. */
  alternatives() {
    if (!byId("logprobs").checked) return null;
    const input = byId("top-logprobs");
    if (!input.validity.valid) throw new SettingError(`Alternatives: ${input.validationMessage}`, input);
    return input.value === "" ? 0 : input.valueAsNumber;
  }

  /** Fields of chats only. Throws `SettingError`. */
  chat() {
    const top = this.alternatives();
    return {
      ...(byId("effort").value ? { reasoning_effort: byId("effort").value } : {}),
      ...(top === null ? {} : { logprobs: true, top_logprobs: top }),
      ...this.#format(),
      ...this.#tools(),
    };
  }

  #format() {
    const type = byId("format").value;
    if (type !== "json_schema") return type ? { response_format: { type } } : {};
    const { value, error } = checkSchemaText(byId("schema").value);
    if (error) throw new SettingError(`Schema: ${error}`, byId("schema"));
    return { response_format: { type, json_schema: { name: "answer", schema: value, strict: true } } };
  }

  #tools() {
    const { value, error } = checkToolsText(byId("tools").value);
    if (error) throw new SettingError(`Tools: ${error}`, byId("tools"));
    if (value.length === 0) return {};
    const choice = byId("tool-choice").value;
    return { tools: value, ...(choice ? { tool_choice: choice } : {}) };
  }

  #showSchema() {
    byId("schema-part").hidden = byId("format").value !== "json_schema";
    this.#check("schema", checkSchemaText);
  }

  #check(id, check) {
    const { error, summary } = check(byId(id).value);
    const state = byId(`${id}-state`);
    state.textContent = error ?? summary;
    state.classList.toggle("wrong", error !== undefined);
    byId(id).setAttribute("aria-invalid", String(error !== undefined));
  }
}
