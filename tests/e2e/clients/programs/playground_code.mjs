// The JavaScript that the playground shows for a request: written by its own script, and run as a program.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { register } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

// The page's scripts are modules of the server, and take its address from their own.
const loader = `
export const resolve = (name, context, next) => {
  const url = URL.canParse(name, context.parentURL) ? new URL(name, context.parentURL).href : name;
  return url.startsWith("http:") ? { url, format: "module", shortCircuit: true } : next(name, context);
};
export const load = async (url, context, next) =>
  url.startsWith("http:")
    ? { format: "module", source: await (await fetch(url)).text(), shortCircuit: true }
    : next(url, context);
`;
register(`data:text/javascript,${encodeURIComponent(loader)}`);

const elements = {};
globalThis.document = {
  getElementById: (id) => (elements[id] ??= { addEventListener() {}, open: true, value: "javascript", textContent: "" }),
};
const url = process.argv[2];
const { CodeView } = await import(`${url}/playground/code.js`);
const view = new CodeView();
const folder = mkdtempSync(join(tmpdir(), "playground-code-"));
symlinkSync(process.env.MODULES.replace(/\/$/, ""), join(folder, "node_modules"));

function output(path, body) {
  view.show(() => ({ path, body }));
  const file = join(folder, "shown.mjs");
  writeFileSync(file, elements["code-text"].textContent);
  return execFileSync(process.execPath, [file], { encoding: "utf-8" });
}

const options = { model: "demo", temperature: 0, max_tokens: 16, top_k: 4 };
try {
  const messages = [{ role: "user", content: 'What is the capital of France?' }];
  console.log(
    JSON.stringify({
      chat: output("v1/chat/completions", { ...options, messages }),
      completion: output("v1/completions", { ...options, prompt: "The capital of France is", stop: ["."] }),
      fetched: output("tokenize", { model: "demo", prompt: "It's `5` \\ \"é\"" }),
    }),
  );
} finally {
  rmSync(folder, { recursive: true });
}
