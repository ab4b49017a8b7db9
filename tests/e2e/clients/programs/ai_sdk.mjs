// Vercel's AI SDK with its provider for servers like this one: text, stream, a loop with a tool, an object by schema.
import { createRequire } from "node:module";

const require = createRequire(process.env.MODULES);
const { generateText, generateObject, stepCountIs, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { z } = require("zod");

const baseURL = `${process.argv[2]}/v1`;
const provider = createOpenAICompatible({ name: "demo", baseURL, apiKey: "None", supportsStructuredOutputs: true, includeUsage: true });
const options = { model: provider("demo"), temperature: 0, maxRetries: 0, maxOutputTokens: 100 };
const prompt = "What is the capital of France?";
const inputSchema = z.object({ city: z.string().max(12) });
const get_weather = tool({ description: "The weather", inputSchema, execute: async ({ city }) => `sunny in ${city}` });

async function parts(stream) {
  const types = [];
  for await (const part of stream) types.push(part.type);
  return types;
}

const whole = await generateText({ ...options, prompt });
const streamed = streamText({ ...options, prompt });
const kinds = await parts(streamed.fullStream);
const weather = { ...options, prompt: "What's the weather like in Boston today?", tools: { get_weather } };
const loop = await generateText({ ...weather, stopWhen: stepCountIs(3) });
const forced = streamText({ ...weather, toolChoice: { type: "tool", toolName: "get_weather" } });
const calls = await parts(forced.fullStream);
const schema = z.object({ name: z.string().max(8), country: z.string().max(8) });
const { object } = await generateObject({ ...options, prompt: "Paris", schema });
const refusal = await generateText({ ...options, prompt, temperature: -1 }).catch((error) => [error.statusCode, error.message]);
console.log(
  JSON.stringify({
    text: whole.text,
    reason: whole.finishReason,
    streamed: await streamed.text,
    usage: (await streamed.usage).totalTokens,
    kinds,
    steps: loop.steps.map((step) => step.finishReason),
    results: loop.steps[0].toolResults.map((result) => result.output),
    calls,
    object,
    refusal,
  }),
);
