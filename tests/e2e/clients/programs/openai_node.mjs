// OpenAI's client for JavaScript: chat, stream, and the errors it makes of refusals.
import { createRequire } from "node:module";

const require = createRequire(process.env.MODULES);
const OpenAI = require("openai");
const client = new OpenAI.OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "None", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const ask = { model: "demo", messages, temperature: 0 };

async function refusal(options, path = "chat") {
  try {
    await (path === "chat" ? client.chat.completions.create({ ...ask, ...options }) : client.models.retrieve(options));
    return null;
  } catch (error) {
    return { name: error.constructor.name, status: error.status, message: error.message };
  }
}

const answer = await client.chat.completions.create(ask);
const pieces = [];
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  pieces.push(chunk.choices[0].delta.content ?? "");
}
const long = await client.chat.completions.create({ ...ask, max_tokens: 3000, stream: true, ignore_eos: true });
let taken = 0;
for await (const _ of long) {
  taken += 1;
  if (taken === 5) break; // closes the connection
}
const models = [];
for await (const model of client.models.list()) models.push(model.id);
console.log(
  JSON.stringify({
    text: answer.choices[0].message.content,
    usage: answer.usage.total_tokens,
    pieces,
    taken,
    models,
    bad: await refusal({ temperature: -1 }),
    missing: await refusal("no-such-model", "models"),
  }),
);
