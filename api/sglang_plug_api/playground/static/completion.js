// Completion of a text, without a chat template.

import { postStream } from "./api.js";
import { Answer } from "./conversation.js";
import { byId } from "./dom.js";
import { AnswerView } from "./message-view.js";

const PATH = "v1/completions";

/** Starts the panel and returns it for the tabs. */
export function startCompletion({ model, options, code }) {
  const request = () => {
    const top = options.alternatives();
    const logprobs = top === null ? {} : { logprobs: top };
    return { path: PATH, body: { model, prompt: byId("completion-prompt").value, ...options.sampling(), ...logprobs } };
  };
  let stopping = null;

  const showState = (announcement) => {
    byId("complete").disabled = stopping !== null;
    byId("completion-stop").hidden = stopping === null;
    byId("announcement").textContent = announcement;
  };

  const complete = async () => {
    if (stopping) return;
    const answer = new Answer();
    const view = new AnswerView(answer);
    byId("completion-output").replaceChildren(view.element);
    stopping = new AbortController();
    showState("Generating");
    try {
      const counts = { include_usage: true, continuous_usage_stats: true };
      const body = { ...request().body, stream: true, stream_options: counts, return_cached_tokens_details: true };
      for await (const event of postStream(PATH, body, stopping.signal)) view.add(answer.addCompletion(event));
      answer.end("stop");
    } catch (error) {
      answer.end(error.name === "AbortError" ? "stopped" : "error");
      if (error.name !== "AbortError") answer.error = error.message;
    }
    stopping = null;
    view.end();
    showState(answer.error ?? `The completion: ${answer.content}`);
  };

  byId("completion-form").addEventListener("submit", (event) => {
    event.preventDefault();
    complete();
  });
  byId("completion-prompt").addEventListener("input", () => code.refresh());
  byId("completion-stop").addEventListener("click", () => stopping?.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stopping?.abort();
  });
  return { name: "completion", onShow: () => code.show(request) };
}
