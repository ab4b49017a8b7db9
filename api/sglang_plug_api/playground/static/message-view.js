// What the page shows of a message.

import { button, element } from "./dom.js";
import { parseJson } from "./json-check.js";
import { TokenView } from "./token-view.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };

function frame(role) {
  const made = element("article", { className: `message ${role}`, "aria-label": NAMES[role] });
  made.append(element("h2", {}, NAMES[role]));
  return made;
}

/** Returns the element of a message of the user, or of a tool. */
export function plainView(message) {
  const made = frame(message.role);
  for (const [index, url] of (message.images ?? []).entries()) {
    made.append(element("img", { src: url, alt: `Image ${index + 1} of the message`, className: "picture" }));
  }
  made.append(element("p", { className: "text" }, message.content));
  return made;
}

/** Shows an answer while it grows, at most once a frame: a fast model must not keep the page from its other work. */
export class AnswerView {
  #tokens = null;
  #reasoning = null;
  #reasoningText = null;
  #calls = [];
  #parts = [];
  #frame = null;

  /** `update` is called with a function that changes the page, and calls it. */
  constructor(answer, update = (change) => change()) {
    this.answer = answer;
    this.update = update;
    this.element = frame("assistant");
    this.content = document.createTextNode("");
    this.text = element("p", { className: "text" }, this.content);
    this.state = element("p", { className: "statistics" }, "Waiting for the first token …");
    this.element.append(this.text, this.state);
  }

  /** Takes a part of the answer, and shows it in the next frame. */
  add(part) {
    this.#parts.push(part);
    this.#frame ??= requestAnimationFrame(() => this.update(() => this.#show()));
  }

  /** Shows why the answer ended; `onResults` is called with the results of its calls, in their order. */
  end(onResults) {
    cancelAnimationFrame(this.#frame);
    this.#show();
    const { error, calls, finish } = this.answer;
    if (this.#reasoning && this.answer.content) this.#reasoning.open = false;
    if (error) this.element.append(element("p", { className: "error" }, error));
    if (calls.length > 0 && finish === "tool_calls") this.#askForResults(onResults);
  }

  /** Removes the form for results, once they cannot be sent any more. */
  settle() {
    this.element.querySelector("form")?.remove();
  }

  /** Shows the parts that came since the last frame. */
  #show() {
    this.#frame = null;
    const parts = this.#parts.splice(0);
    const joined = (name) => parts.map((part) => part[name] ?? "").join("");
    const reasoning = joined("reasoning");
    if (reasoning) this.#addReasoning(reasoning);
    this.content.appendData(joined("content"));
    const tokens = parts.flatMap((part) => part.tokens ?? []);
    if (tokens.length) this.#addTokens(tokens);
    this.#showCalls();
    this.state.textContent = statistics(this.answer);
  }

  #addReasoning(text) {
    if (this.#reasoning === null) {
      this.#reasoningText = document.createTextNode("");
      this.#reasoning = element("details", { open: true, className: "reasoning" });
      const paragraph = element("p", { className: "text" }, this.#reasoningText);
      this.#reasoning.append(element("summary", {}, "Reasoning"), paragraph);
      this.text.before(this.#reasoning);
    }
    this.#reasoningText.appendData(text);
  }

  #addTokens(tokens) {
    if (this.#tokens === null) {
      this.#tokens = new TokenView();
      this.text.before(this.#tokens.element);
      this.text.hidden = true; // the tokens contain it
    }
    this.#tokens.add(tokens);
  }

  #showCalls() {
    for (const [index, call] of this.answer.calls.entries()) {
      if (!call) continue;
      if (!this.#calls[index]) {
        const code = element("pre", { tabIndex: 0, "aria-label": "Arguments" });
        const name = element("code");
        this.#calls[index] = { name, code };
        this.state.before(element("div", { className: "call" }, element("p", {}, "Calls ", name), code));
      }
      const { value, error } = parseJson(call.text);
      this.#calls[index].name.textContent = call.name;
      this.#calls[index].code.textContent = error ? call.text : JSON.stringify(value, null, 2);
    }
  }

  #askForResults(onResults) {
    const form = element("form", { className: "results" });
    const inputs = this.answer.calls.map((call, index) => {
      const input = element("textarea", { rows: 2, required: true, id: `result-${call.id || index}` });
      form.append(element("label", { htmlFor: input.id }, `Result of ${call.name}`), input);
      return input;
    });
    form.append(element("button", { type: "submit", className: "primary" }, "Send results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onResults(inputs.map((input) => input.value));
    });
    this.element.append(form);
  }
}

/** Returns the counts and the speed of an answer in one line. */
export function statistics({ usage, cached, seconds, finish }) {
  const parts = [];
  if (usage) {
    const known = usage.prompt_tokens_details?.cached_tokens ?? cached;
    parts.push(`${usage.prompt_tokens} prompt tokens${known === null ? "" : ` (${known} cached)`}`);
    parts.push(`${usage.completion_tokens} generated`);
  }
  if (seconds.first !== null) parts.push(`first token after ${seconds.first.toFixed(2)} s`);
  const later = (usage?.completion_tokens ?? 0) - 1;
  if (later > 0 && seconds.decode > 0) parts.push(`${(later / seconds.decode).toFixed(1)} tokens/s`);
  if (finish) parts.push(FINISHES[finish] ?? finish);
  return parts.join(" · ");
}

const FINISHES = {
  stop: "complete",
  length: "cut off at the maximum number of tokens",
  tool_calls: "waits for the results of its calls",
  stopped: "stopped",
  error: "failed",
};

/** Returns a button that removes `content` and calls `onRemove`. */
export function removable(content, name, onRemove) {
  const remove = button("✕", onRemove, { "aria-label": `Remove ${name}` });
  return element("span", { className: "removable" }, content, remove);
}
