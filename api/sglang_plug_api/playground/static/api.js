// Calls of the server that this page came from, also behind a proxy that puts a prefix before its paths.

import { askForKey, authorization, hasKey } from "./key.js";

/** The address of the server's root: this script is `<root>playground/api.js`. */
export const ROOT = new URL("..", import.meta.url);

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Calls a path such as `v1/models`; a `body` is sent as JSON. Asks for the key when the server wants one.
 * Throws `ApiError` with the server's message. */
export async function call(path, { body, signal } = {}) {
  for (;;) {
    const sentKey = hasKey();
    const options = { headers: authorization(), signal, credentials: "same-origin" };
    if (body !== undefined) {
      options.method = "POST";
      options.headers["content-type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    const answer = await fetch(new URL(path, ROOT), options);
    if (answer.ok) return answer;
    const error = new ApiError(await errorMessage(answer), answer.status);
    if (error.status !== 401) throw error;
    const message = sentKey ? "The server refused this key." : "This server needs an API key.";
    if (!(await askForKey(message))) throw error;
  }
}

export async function getJson(path) {
  return (await call(path)).json();
}

export async function postJson(path, body, signal) {
  return (await call(path, { body, signal })).json();
}

/** Yields the JSON objects of a stream of server-sent events. Throws `ApiError` for an error in it, and if it ends
 * before `[DONE]`. */
export async function* postStream(path, body, signal) {
  const answer = await call(path, { body, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError("The connection was closed before the end of the answer.", 0);
    buffered += value;
    const events = buffered.split(/\r?\n\r?\n/);
    buffered = events.pop();
    for (const event of events) {
      const data = eventData(event);
      if (data === "[DONE]") return;
      if (data === "") continue;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new ApiError(parsed.error.message ?? "the server reported an error", parsed.error.code);
      yield parsed;
    }
  }
}

function eventData(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

async function errorMessage(answer) {
  const text = await answer.text();
  try {
    const parsed = JSON.parse(text);
    return parsed.error?.message ?? parsed.message ?? text;
  } catch {
    return text.slice(0, 500) || `The server answered with status ${answer.status}.`;
  }
}
