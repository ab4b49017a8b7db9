// What the panels of embeddings and reranking share.

import { byId, element, row } from "./dom.js";

/** Returns the lines of a text area that are not empty. */
export const linesOf = (id) => byId(id).value.split("\n").filter((line) => line.trim() !== "");

/** Returns a table that scrolls separately where it is wider than the page. */
export function table(caption, heads, rows) {
  const made = element("table", {}, element("caption", {}, caption));
  made.append(element("thead", {}, row(heads, "th")), element("tbody", {}, ...rows));
  return element("div", { className: "scrolling", tabIndex: 0, role: "region", "aria-label": caption }, made);
}

export function showFailure(output, error) {
  output.replaceChildren(element("p", { className: "error" }, error.message));
}
