// The current request as code: curl, Python and JavaScript.

import { ROOT } from "./api.js";
import { byId } from "./dom.js";
import { hasKey } from "./key.js";

/** Fields that OpenAI's Python client takes by name; it takes others as `extra_body`. */
const CLIENT_FIELDS = new Set(
  ("model messages max_tokens temperature top_p frequency_penalty presence_penalty seed stop logprobs top_logprobs " +
    "response_format tools tool_choice reasoning_effort stream prompt input").split(" "),
);
const METHODS = {
  "v1/chat/completions": "chat.completions",
  "v1/completions": "completions",
  "v1/embeddings": "embeddings",
};
const LONGEST_SHOWN = 200; // characters of a base64 text

export class CodeView {
  #request = null;
  #text = "";

  constructor() {
    byId("code").addEventListener("toggle", () => this.refresh());
    byId("code-language").addEventListener("change", () => this.refresh());
    byId("code-copy").addEventListener("click", () => this.#copy());
  }

  /** Shows the code of what `request` returns: `{path, body}`. */
  show(request) {
    this.#request = request;
    this.refresh();
  }

  refresh() {
    if (this.#request === null || !byId("code").open) return;
    try {
      const { path, body } = this.#request();
      this.#text = WRITERS[byId("code-language").value](path, body);
    } catch (error) {
      this.#text = error.message;
    }
    byId("code-text").textContent = this.#text.replace(/base64,[A-Za-z0-9+/=]+/g, (data) =>
      data.length > LONGEST_SHOWN ? `${data.slice(0, LONGEST_SHOWN)}… (Copy copies all of it)` : data,
    );
  }

  async #copy() {
    const label = byId("code-copy");
    try {
      await navigator.clipboard.writeText(this.#text);
      label.textContent = "Copied";
    } catch {
      // Browsers have a clipboard for pages of https and of this machine only.
      byId("code-text").textContent = this.#text;
      getSelection().selectAllChildren(byId("code-text"));
      label.textContent = "Selected; press Ctrl+C";
    }
    byId("announcement").textContent = label.textContent;
    setTimeout(() => {
      label.textContent = "Copy";
    }, 2000);
  }
}

const address = (path) => new URL(path, ROOT).href;
const isStreamed = (path) => path in METHODS && path !== "v1/embeddings";
const shellQuoted = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

function curl(path, body) {
  const streamed = isStreamed(path) ? { ...body, stream: true } : body;
  const key = hasKey() ? ' \\\n  -H "Authorization: Bearer $API_KEY"' : "";
  const quiet = isStreamed(path) ? "-N " : "";
  return (
    `curl ${quiet}${shellQuoted(address(path))}${key} \\\n  -H 'Content-Type: application/json' \\\n` +
    `  -d ${shellQuoted(JSON.stringify(streamed, null, 2))}`
  );
}

const indented = (text, by) => text.replaceAll("\n", `\n${by}`);

/** Returns a value as a Python literal. */
function pythonLiteral(value, indent = "") {
  const inner = `${indent}    `;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const parts = Array.isArray(value)
    ? value.map((item) => pythonLiteral(item, inner))
    : Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${pythonLiteral(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}` : open + close;
}

function python(path, body) {
  const method = METHODS[path];
  const key = hasKey() ? 'os.environ["API_KEY"]' : '"none"';
  const imports = hasKey() ? "import os\n\n" : "";
  if (method === undefined) {
    const headers = hasKey() ? `,\n    headers={"Authorization": f"Bearer {${key}}"}` : "";
    const json = indented(pythonLiteral(body), "    ");
    return `${imports}import httpx\n\nanswer = httpx.post(\n    ${JSON.stringify(address(path))},\n    json=${json}${headers},\n)\nprint(answer.json())\n`;
  }
  const known = Object.entries(body).filter(([name]) => CLIENT_FIELDS.has(name));
  const others = Object.entries(body).filter(([name]) => !CLIENT_FIELDS.has(name));
  const all = isStreamed(path) ? [...known, ["stream", true]] : known;
  if (others.length) all.push(["extra_body", Object.fromEntries(others)]);
  const parameters = all.map(([name, value]) => `    ${name}=${pythonLiteral(value, "    ")},\n`).join("");
  const client = `client = OpenAI(base_url=${JSON.stringify(address("v1"))}, api_key=${key})\n`;
  const use = PYTHON_USES[method];
  return `${imports}from openai import OpenAI\n\n${client}answer = client.${method}.create(\n${parameters})\n${use}`;
}

const PYTHON_USES = {
  "chat.completions": `for event in answer:
    for choice in event.choices:
        print(choice.delta.content or "", end="", flush=True)
`,
  completions: `for event in answer:
    for choice in event.choices:
        print(choice.text, end="", flush=True)
`,
  embeddings: "print([len(item.embedding) for item in answer.data])\n",
};

function javascript(path, body) {
  const method = METHODS[path];
  const streamed = isStreamed(path) ? { ...body, stream: true } : body;
  const json = JSON.stringify(streamed, null, 2);
  if (method === undefined) {
    const key = hasKey() ? "\n    authorization: `Bearer ${process.env.API_KEY}`," : "";
    return `const answer = await fetch(${JSON.stringify(address(path))}, {
  method: "POST",
  headers: {
    "content-type": "application/json",${key}
  },
  body: JSON.stringify(${indented(json, "  ")}),
});
console.log(await answer.json());
`;
  }
  const key = hasKey() ? "process.env.API_KEY" : '"none"';
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${JSON.stringify(address("v1"))}, apiKey: ${key} });
const answer = await client.${method}.create(${json});
${JAVASCRIPT_USES[method]}`;
}

const JAVASCRIPT_USES = {
  "chat.completions": `for await (const event of answer) {
  process.stdout.write(event.choices[0]?.delta.content ?? "");
}
`,
  completions: `for await (const event of answer) {
  process.stdout.write(event.choices[0]?.text ?? "");
}
`,
  embeddings: "console.log(answer.data.map((item) => item.embedding.length));\n",
};

const WRITERS = { curl, python, javascript };
