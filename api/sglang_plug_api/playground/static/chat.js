// The chat: sends the conversation, shows the answer as it comes, stops it, and asks again.

import { postStream } from "./api.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { Images } from "./images.js";
import { AnswerView, plainView } from "./message-view.js";
import { SettingError } from "./options.js";

const PATH = "v1/chat/completions";
const NEAR_END = 80; // pixels from the end of the conversation in which it follows the answer

/** Starts the chat and returns its panel for the tabs. */
export function startChat({ model, options, code, images }) {
  const chat = new Chat(model, options, code, images ? new Images() : null);
  return { name: "chat", onShow: () => code.show(() => chat.request()) };
}

class Chat {
  #conversation = new Conversation();
  #views = [];
  #stopping = null;

  constructor(model, options, code, images) {
    this.model = model;
    this.options = options;
    this.code = code;
    this.images = images;
    this.log = byId("conversation");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("message").addEventListener("keydown", (event) => this.#key(event));
    byId("message").addEventListener("input", () => code.refresh());
    byId("stop").addEventListener("click", () => this.#stopping?.abort());
    byId("regenerate").addEventListener("click", () => this.#regenerate());
    byId("clear").addEventListener("click", () => this.#clear());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !byId("key-dialog").open) this.#stopping?.abort();
    });
  }

  /** Returns the path and body of the request for the message that is being written, or else for the last answer. */
  request() {
    const messages = this.#conversation.requestMessages(this.options.system);
    const written = byId("message").value.trim();
    if (written) messages.push({ role: "user", content: written });
    else if (messages.at(-1)?.role === "assistant") messages.pop();
    return { path: PATH, body: this.#body(messages) };
  }

  #body(messages) {
    return { model: this.model, messages, ...this.options.sampling(), ...this.options.chat() };
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  }

  async #send() {
    const text = byId("message").value.trim();
    if (this.#stopping || !text) return;
    if (!this.#settingsAreRight()) return;
    this.#show(plainView(this.#conversation.addUser(text, this.images?.take() ?? [])));
    byId("message").value = "";
    await this.#answer();
  }

  async #regenerate() {
    if (this.#stopping || !this.#settingsAreRight() || !this.#conversation.dropAnswer()) return;
    this.#views.pop().element.remove();
    await this.#answer();
  }

  async #sendResults(answer, results) {
    if (this.#stopping || !this.#settingsAreRight()) return;
    this.#views.at(-1).settle();
    answer.calls.forEach((call, index) => {
      this.#show(plainView(this.#conversation.addToolResult(call.id, results[index])));
    });
    await this.#answer();
  }

  async #answer() {
    const body = this.#body(this.#conversation.requestMessages(this.options.system));
    const answer = this.#conversation.addAnswer();
    const view = new AnswerView(answer, (change) => this.#following(change));
    this.#views.at(-1)?.settle();
    this.#views.push(view);
    this.#show(view.element);
    this.#stopping = new AbortController();
    this.#showState("Generating");
    try {
      await this.#read(body, answer, view);
    } catch (error) {
      this.#fail(answer, error);
    }
    this.#stopping = null;
    view.end((results) => this.#sendResults(answer, results));
    this.#showState(answer.error ? `The answer failed: ${answer.error}` : `The answer: ${answer.content}`);
    this.#showEnd();
  }

  async #read(body, answer, view) {
    const streamed = {
      ...body,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      return_cached_tokens_details: true,
    };
    for await (const event of postStream(PATH, streamed, this.#stopping.signal)) {
      view.add(answer.addChat(event));
    }
    answer.end("stop");
  }

  #fail(answer, error) {
    if (error.name === "AbortError") {
      answer.end("stopped");
      return;
    }
    answer.end("error");
    answer.error = error.message;
  }

  #clear() {
    this.#conversation = new Conversation();
    this.#views = [];
    this.log.replaceChildren(byId("empty"));
    byId("empty").hidden = false;
    this.#showState("New chat");
    byId("message").focus();
  }

  #settingsAreRight() {
    byId("notice").hidden = true;
    try {
      this.#body([]);
      return true;
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      byId("notice").textContent = error.message;
      byId("notice").hidden = false;
      for (let part = error.input.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
      error.input.focus();
      return false;
    }
  }

  #show(made) {
    byId("empty").hidden = true;
    this.log.append(made);
    this.#showEnd();
  }

  #showState(announcement) {
    const busy = this.#stopping !== null;
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("regenerate").disabled = busy || this.#conversation.messages.at(-1)?.role !== "assistant";
    byId("clear").disabled = busy || this.#conversation.messages.length === 0;
    byId("announcement").textContent = announcement;
    this.code.refresh();
  }

  /** Where the screen is small the page scrolls, and not the conversation. */
  get #pageScrolls() {
    return getComputedStyle(this.log).overflowY === "visible";
  }

  #isAtEnd() {
    if (this.#pageScrolls) return byId("composer").getBoundingClientRect().bottom < innerHeight + NEAR_END;
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR_END;
  }

  /** Changes the page, and shows its end afterwards if it was shown before. */
  #following(change) {
    const follows = this.#isAtEnd();
    change();
    if (follows) this.#showEnd();
  }

  #showEnd() {
    if (this.#pageScrolls) byId("composer").scrollIntoView({ block: "end" });
    else this.log.scrollTop = this.log.scrollHeight;
  }
}
