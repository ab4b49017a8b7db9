// The messages of a conversation, and what a request sends of them. Knows nothing of the page.

/** An answer of the model, put together from the events of a stream. */
export class Answer {
  role = "assistant";
  content = "";
  reasoning = "";
  calls = [];
  tokens = [];
  usage = null;
  cached = null;
  /** Why it ended: the server's `finish_reason`, or "stopped"; `null` while it is generated. */
  finish = null;
  error = null;
  #started = performance.now();
  #first = null;
  #last = null;

  /** Takes an event of a chat, and returns the part of the answer that is new. */
  addChat(event) {
    const choice = event.choices[0];
    this.#count(event);
    if (choice === undefined) return {};
    const { content, reasoning_content: reasoning, tool_calls: calls = [] } = choice.delta;
    const tokens = (choice.logprobs?.content ?? []).map(chatToken);
    for (const call of calls ?? []) this.#addCall(call);
    return this.#add({ content: content ?? "", reasoning: reasoning ?? "", tokens }, choice, calls?.length > 0);
  }

  /** Takes an event of a completion, and returns the part of the answer that is new. */
  addCompletion(event) {
    const choice = event.choices[0];
    this.#count(event);
    if (choice === undefined) return {};
    return this.#add({ content: choice.text, reasoning: "", tokens: completionTokens(choice.logprobs) }, choice, false);
  }

  end(finish) {
    this.finish ??= finish;
  }

  get seconds() {
    return { first: this.#first && (this.#first - this.#started) / 1000, decode: (this.#last - this.#first) / 1000 };
  }

  /** The message that continues the conversation after this answer. */
  message() {
    const message = { role: "assistant", content: this.content };
    if (this.calls.length === 0) return message;
    const calls = this.calls.map(({ id, name, text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    return { ...message, tool_calls: calls };
  }

  #add(part, choice, hasCalls) {
    if (part.content || part.reasoning || part.tokens.length || hasCalls) {
      this.#last = performance.now();
      this.#first ??= this.#last;
    }
    this.content += part.content;
    this.reasoning += part.reasoning;
    this.tokens.push(...part.tokens);
    if (choice.finish_reason) this.finish = choice.finish_reason;
    return part;
  }

  #addCall({ index, id, function: part }) {
    this.calls[index] ??= { id: "", name: "", text: "" };
    const call = this.calls[index];
    call.id ||= id ?? "";
    call.name += part?.name ?? "";
    call.text += part?.arguments ?? "";
  }

  #count(event) {
    this.usage = event.usage ?? this.usage;
    this.cached = event.sglext?.cached_tokens_details?.device ?? this.cached;
  }
}

const chatToken = ({ token, logprob, top_logprobs: top }) => ({
  text: token,
  logprob,
  alternatives: (top ?? []).map((other) => ({ text: other.token, logprob: other.logprob })),
});

function completionTokens(logprobs) {
  return (logprobs?.tokens ?? []).map((text, index) => ({
    text,
    logprob: logprobs.token_logprobs[index],
    alternatives: Object.entries(logprobs.top_logprobs?.[index] ?? {}).map(([other, logprob]) => ({
      text: other,
      logprob,
    })),
  }));
}

export class Conversation {
  messages = [];

  addUser(text, images) {
    return this.#add({ role: "user", content: text, images });
  }

  addToolResult(id, content) {
    return this.#add({ role: "tool", content, id });
  }

  addAnswer() {
    return this.#add(new Answer());
  }

  /** Forgets the last answer, so that another one can replace it; returns whether there was one. */
  dropAnswer() {
    if (this.messages.at(-1)?.role !== "assistant") return false;
    this.messages.pop();
    return true;
  }

  /** Returns the `messages` of a request. An answer without content, such as one that failed, is left out. */
  requestMessages(system) {
    const sent = this.messages.filter((message) => message.role !== "assistant" || message.content || message.calls.length > 0);
    return [...(system ? [{ role: "system", content: system }] : []), ...sent.map(plainMessage)];
  }

  #add(message) {
    this.messages.push(message);
    return message;
  }
}

function plainMessage(message) {
  if (message.role === "assistant") return message.message();
  if (message.role === "tool") return { role: "tool", tool_call_id: message.id, content: message.content };
  if (message.images.length === 0) return { role: "user", content: message.content };
  const images = message.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [...images, { type: "text", text: message.content }] };
}
