// The playground: asks what the model can do, and shows a tab for each of it.

import { getJson, postJson } from "./api.js";
import { startChat } from "./chat.js";
import { CodeView } from "./code.js";
import { startCompletion } from "./completion.js";
import { byId } from "./dom.js";
import { startEmbeddings } from "./embeddings.js";
import { askForKey } from "./key.js";
import { Options } from "./options.js";
import { startRerank } from "./rerank.js";
import { startTabs } from "./tabs.js";

async function start() {
  byId("key-button").addEventListener("click", () => askForKey("The key is sent with every request of this page."));
  if (matchMedia("(max-width: 52rem)").matches) {
    for (const part of document.querySelectorAll("#settings details")) part.open = false;
  }
  const model = await getJson("model_info");
  const name = model.served_model_name;
  byId("model").textContent = `${name}, ${model.context_length.toLocaleString()} tokens of context`;
  document.title = `${name} – sglang-plug`;
  const options = new Options();
  const code = new CodeView();
  const panels = [];
  if (model.tasks.includes("generate")) {
    panels.push(startChat({ model: name, options, code, images: model.has_image_understanding }));
    panels.push(startCompletion({ model: name, options, code }));
  }
  if (model.tasks.includes("embed")) panels.push(startEmbeddings({ model: name, code }));
  if (model.tasks.includes("rerank") || (await hasYesAndNo(model))) panels.push(startRerank({ model: name, code }));
  if (panels.length === 0) throw new Error(`This model can ${model.tasks.join(", ")}, which this page cannot show.`);
  startTabs(panels);
  options.onChange(() => code.refresh());
}

/** A model that generates is asked whether a document fits; that takes one token each for "yes" and "no". */
async function hasYesAndNo(model) {
  if (!model.tasks.includes("generate")) return false;
  try {
    const { tokens } = await postJson("tokenize", { prompt: ["yes", "no"], add_special_tokens: false });
    return tokens.every((token) => token.length === 1);
  } catch (error) {
    if (error.status === 401) throw error;
    return false; // there is no tokenizer, or no route for it
  }
}

start().catch((error) => {
  const notice = byId("notice");
  notice.textContent = `${error.message} Reload the page to try again.`;
  notice.hidden = false;
});
