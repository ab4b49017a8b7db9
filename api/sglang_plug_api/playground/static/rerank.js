// Documents in the order in which they answer a query.

import { postJson } from "./api.js";
import { byId, row } from "./dom.js";
import { linesOf, showFailure, table } from "./pooling-view.js";

const PATH = "v1/rerank";

/** Starts the panel and returns it for the tabs. */
export function startRerank({ model, code }) {
  const request = () => ({
    path: PATH,
    body: { model, query: byId("rerank-query").value, documents: linesOf("rerank-documents") },
  });
  byId("rerank-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const output = byId("rerank-output");
    try {
      const { path, body } = request();
      const ranked = await postJson(path, body);
      const rows = ranked.map(({ index, score }) => row([score.toFixed(4), body.documents[index]]));
      output.replaceChildren(table("Documents, the best first", ["score", "document"], rows));
    } catch (error) {
      showFailure(output, error);
    }
  });
  for (const id of ["rerank-query", "rerank-documents"]) byId(id).addEventListener("input", () => code.refresh());
  return { name: "rerank", onShow: () => code.show(request) };
}
