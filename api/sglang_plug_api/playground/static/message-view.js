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

/** Shows an answer while it grows. */
export class AnswerView {
  #tokens = null;
  #reasoning = null;
  #reasoningText = null;
  #calls = [];

  constructor(answer) {
    this.answer = answer;
    this.element = frame("assistant");
    this.text = element("p", { className: "text" });
    this.state = element("p", { className: "statistics" }, "Waiting for the first token …");
    this.element.append(this.text, this.state);
  }

  add(part) {
    if (part.reasoning) this.#addReasoning(part.reasoning);
    if (part.content) this.text.append(part.content);
    if (part.tokens?.length) this.#addTokens(part.tokens);
    this.#showCalls();
    this.state.textContent = statistics(this.answer);
  }

  /** Shows why the answer ended; `onResults` is called with the results of its calls, in their order. */
  end(onResults) {
    const { error, calls, finish } = this.answer;
    this.#showCalls();
    this.state.textContent = statistics(this.answer);
    if (this.#reasoning && this.answer.content) this.#reasoning.open = false;
    if (error) this.element.append(element("p", { className: "error" }, error));
    if (calls.length > 0 && finish === "tool_calls") this.#askForResults(onResults);
  }

  /** Removes the form for results, once they cannot be sent any more. */
  settle() {
    this.element.querySelector("form")?.remove();
  }

  #addReasoning(text) {
    if (this.#reasoning === null) {
      this.#reasoningText = element("p", { className: "text" });
      this.#reasoning = element("details", { open: true, className: "reasoning" });
      this.#reasoning.append(element("summary", {}, "Reasoning"), this.#reasoningText);
      this.text.before(this.#reasoning);
    }
    this.#reasoningText.append(text);
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
  if (later > 0 && seconds.rest > 0) parts.push(`${(later / seconds.rest).toFixed(1)} tokens/s`);
  if (finish) parts.push(FINISHES[finish] ?? finish);
  return parts.join(" · ");
}

const FINISHES = {
  stop: "complete",
  length: "cut off at the most tokens",
  tool_calls: "waits for the results of its calls",
  stopped: "stopped",
  error: "failed",
};

/** Returns a button that removes `shown` and calls `onRemove`. */
export function removable(shown, name, onRemove) {
  const remove = button("✕", onRemove, { "aria-label": `Remove ${name}` });
  return element("span", { className: "removable" }, shown, remove);
}
