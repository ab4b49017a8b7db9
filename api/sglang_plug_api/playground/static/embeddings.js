// Embeddings of several texts, and how similar the texts are.

import { postJson } from "./api.js";
import { byId, element, row } from "./dom.js";
import { linesOf, showFailure, table } from "./pooling-view.js";

const PATH = "v1/embeddings";
const SHOWN = 6; // numbers of each embedding

/** Starts the panel and returns it for the tabs. */
export function startEmbeddings({ model, code }) {
  const request = () => ({ path: PATH, body: { model, input: linesOf("embeddings-input") } });
  byId("embeddings-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const output = byId("embeddings-output");
    try {
      const { path, body } = request();
      show(output, body.input, await postJson(path, body));
    } catch (error) {
      showFailure(output, error);
    }
  });
  byId("embeddings-input").addEventListener("input", () => code.refresh());
  return { name: "embeddings", onShow: () => code.show(request) };
}

function show(output, texts, answer) {
  const vectors = answer.data.map((item) => item.embedding);
  const beginnings = vectors.map((vector) => `${vector.slice(0, SHOWN).map((value) => value.toFixed(4)).join(", ")}, …`);
  const rows = texts.map((text, index) => row([index + 1, text, vectors[index].length, beginnings[index]]));
  const names = texts.map((_, index) => String(index + 1));
  const similarities = vectors.map((vector, index) =>
    row([names[index], ...vectors.map((other) => cosine(vector, other).toFixed(3))]),
  );
  output.replaceChildren(
    element("p", { className: "statistics" }, `${answer.usage.prompt_tokens} tokens`),
    table("Embeddings", ["", "text", "dimensions", "begins with"], rows),
    table("Cosine similarity", ["", ...names], similarities),
  );
}

function cosine(a, b) {
  const dot = (left, right) => left.reduce((sum, value, index) => sum + value * right[index], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b) || 1);
}
