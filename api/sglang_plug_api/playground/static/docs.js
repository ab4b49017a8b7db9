// The page of the API's routes: what `/openapi.json` says, and a form to call each route.

import { getJson, ROOT } from "./api.js";
import { byId, button, element, row } from "./dom.js";
import { askForKey, authorization } from "./key.js";
import { example, fieldsOf, typeName } from "./openapi.js";
import { table } from "./pooling-view.js";

const FORM = "multipart/form-data";
const JSON_TYPE = "application/json";
const SHOWN = 200000; // maximum number of characters of an answer that are shown
/** Values of required fields that say more than "text". */
const EXAMPLES = {
  messages: [{ role: "user", content: "What is the capital of Peru?" }],
  prompt: "The capital of Peru is",
  input: "The capital of Peru",
  query: "The capital of Peru",
  documents: ["Lima", "Oslo"],
};

let document_ = {};
let model = "";

function routeView(path, method, operation) {
  const details = element("details", { className: "route" });
  const summary = element("summary", {}, element("span", { className: "method" }, method.toUpperCase()));
  summary.append(element("code", { className: "path" }, path), element("span", {}, operation.summary ?? ""));
  details.append(summary);
  details.dataset.text = `${method} ${path} ${operation.summary ?? ""} ${(operation.tags ?? []).join(" ")}`.toLowerCase();
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(contentView(path, method, operation));
  });
  return details;
}

function contentView(path, method, operation) {
  const content = operation.requestBody?.content ?? {};
  const [mediaType] = Object.keys(content);
  const schema = content[mediaType]?.schema;
  const view = element("div");
  if (operation.description) view.append(element("p", {}, operation.description));
  const parameters = operation.parameters ?? [];
  if (parameters.length) {
    const rows = parameters.map((parameter) => row([parameter.name, parameter.in, typeName(parameter.schema ?? {}, document_), need(parameter.required)]));
    view.append(table("Parameters", ["name", "in", "type", ""], rows));
  }
  const fields = schema ? fieldsOf(schema, document_) : [];
  if (fields.length) {
    const rows = fields.map((field) => row([element("code", {}, field.name), field.type, need(field.required), field.text]));
    view.append(element("details", {}, element("summary", {}, `Fields of the body (${fields.length})`),
      table(mediaType, ["field", "type", "", "meaning"], rows)));
  }
  view.append(tryView(path, method, { parameters, fields, mediaType, schema }));
  return view;
}

const need = (required) => (required ? "required" : "");

/** Returns the form that calls a route. */
function tryView(path, method, { parameters, fields, mediaType, schema }) {
  const inputs = parameters.map((parameter) => [parameter, labelled(`${parameter.name} (${parameter.in})`, element("input", { type: "text" }))]);
  const parts = mediaType === FORM ? fields.map((field) => [field, formField(field, schema)]) : [];
  const body = mediaType === JSON_TYPE ? labelled("Body", element("textarea", { rows: 10, spellcheck: false })) : null;
  if (body) body.field.value = JSON.stringify(bodyExample(schema), null, 2);
  const state = element("p", { className: "state", role: "status" });
  const answer = element("pre", { className: "answer", tabIndex: 0, hidden: true, "aria-label": "Answer" });
  const send = button("Send", () => {
    const query = new URLSearchParams();
    const headers = {};
    let target = path.slice(1);
    for (const [parameter, { field }] of inputs) {
      if (parameter.in === "path") target = target.replace(`{${parameter.name}}`, encodeURIComponent(field.value));
      else if (field.value && parameter.in === "header") headers[parameter.name] = field.value;
      else if (field.value) query.set(parameter.name, field.value);
    }
    const options = { method: method.toUpperCase(), headers };
    if (body) {
      options.body = body.field.value;
      headers["content-type"] = JSON_TYPE;
    } else if (mediaType === FORM) options.body = formData(parts);
    run(query.size ? `${target}?${query}` : target, options, { send, state, answer });
  }, { className: "primary" });
  const made = [...inputs, ...parts].map(([, input]) => input.element);
  return element("section", {}, element("h3", {}, "Try it"), ...made, ...(body ? [body.element] : []),
    element("div", { className: "actions" }, send), state, answer);
}

function labelled(text, field) {
  return { field, element: element("label", {}, text, field) };
}

function formField(field, schema) {
  const property = schema.properties?.[field.name] ?? {};
  if (property.format === "binary") return labelled(field.name, element("input", { type: "file" }));
  if (!property.enum) return labelled(field.name, element("input", { type: "text" }));
  return labelled(field.name, element("select", {}, ...property.enum.map((value) => element("option", {}, value))));
}

function formData(parts) {
  const data = new FormData();
  for (const [{ name }, { field }] of parts) {
    if (field.type !== "file") data.set(name, field.value);
    else if (field.files.length) data.set(name, field.files[0]);
  }
  return data;
}

function bodyExample(schema) {
  const made = example(schema, document_);
  if (typeof made !== "object" || made === null) return made;
  const names = new Set(fieldsOf(schema, document_).map((field) => field.name));
  if (names.has("model")) made.model = model;
  for (const [name, value] of Object.entries(EXAMPLES)) {
    if (name in made || (name === "messages" && names.has(name))) made[name] = value;
  }
  if (names.has("input_ids") && names.has("text") && !("text" in made)) made.text = EXAMPLES.prompt;
  return made;
}

/** Calls a route and shows the answer as it arrives. */
async function run(path, options, { send, state, answer }) {
  send.disabled = true;
  answer.hidden = true;
  answer.textContent = "";
  state.className = "state";
  state.textContent = "…";
  const started = performance.now();
  try {
    options.headers = { ...options.headers, ...authorization() };
    const response = await fetch(new URL(path, ROOT), { ...options, credentials: "same-origin" });
    answer.hidden = false;
    await showText(response, answer);
    const seconds = ((performance.now() - started) / 1000).toFixed(2);
    state.textContent = `${response.status} ${response.statusText}, ${seconds} s, ${response.headers.get("content-type") ?? ""}`;
    if (!response.ok) state.classList.add("wrong");
    if (response.status === 401) state.textContent += ". Give the key with the button “API key”, then send again.";
  } catch (error) {
    state.classList.add("wrong");
    state.textContent = `No answer: ${error.message}`;
  } finally {
    send.disabled = false;
  }
}

async function showText(response, answer) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of response.body ?? []) {
    text += decoder.decode(chunk, { stream: true });
    answer.textContent = text.slice(0, SHOWN);
  }
  if (response.headers.get("content-type")?.startsWith(JSON_TYPE)) text = indented(text);
  answer.textContent = text.length > SHOWN ? `${text.slice(0, SHOWN)}\n… ${text.length - SHOWN} further characters` : text;
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function showRoutes() {
  const groups = new Map();
  for (const [path, operations] of Object.entries(document_.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const tag = operation.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), routeView(path, method, operation)]);
    }
  }
  const sections = [...groups].map(([tag, views]) => element("section", {}, element("h2", {}, tag), ...views));
  byId("routes").replaceChildren(...sections);
  filter();
}

function filter() {
  const text = byId("filter").value.trim().toLowerCase();
  for (const section of byId("routes").children) {
    const routes = [...section.querySelectorAll(".route")];
    for (const route of routes) route.hidden = !route.dataset.text.includes(text);
    section.hidden = routes.every((route) => route.hidden);
  }
}

async function load() {
  try {
    document_ = await getJson("openapi.json");
    model = (await getJson("v1/models")).data?.[0]?.id ?? "";
  } catch (error) {
    byId("notice").textContent = error.message;
    byId("notice").hidden = false;
    if (!document_.paths) return;
  }
  showRoutes();
}

byId("filter").addEventListener("input", filter);
byId("key-button").addEventListener("click", async () => {
  if ((await askForKey("The key is sent with each call of this page.")) && !document_.paths) {
    byId("notice").hidden = true;
    await load();
  }
});
load();
