"""Write ``docs/api.md``: every endpoint of the built-in routes, who may call it, and the fields of its body.

The endpoints come from the route plugins, the fields from the OpenAPI document that a server shows at
``/openapi.json``. No model is loaded: routes are built for an engine that can do every task and is never asked.

``--check`` writes nothing and fails if the page is not what would be written.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.routing import APIRoute
from generated_page import row, write_or_check

from sglang_plug import EngineClient, Output, PluginOptions, Plugins, Request, RouteSpec, StepStats
from sglang_plug.contracts.request import Task
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug_api.http.app import build_app
from sglang_plug_api.http.middleware import GateState
from sglang_plug_api.options.config import ServerConfig, StorageConfig
from sglang_plug_api.options.request_fields import request_fields
from sglang_plug_api.protocol import misplaced
from sglang_plug_api.protocol.misplaced import Remedies
from sglang_plug_api.service.server_state import ServerState
from sglang_plug_api.stores.storage import load_storage
from sglang_plug_api.text.server_facts import ServerFacts
from sglang_plug_api.text.text_engine import TextEngine

PAGE = Path(__file__).with_name("api.md")
SHOWN = 60
"""Characters of a default that a table shows."""
LARGEST = 1 << 63
"""Default upper bound of integers, which tables leave out."""
VALIDATION = ("HTTPValidationError", "ValidationError")
"""Schemas of FastAPI's own errors, which this server never answers with."""
BOUNDS = {
    "ge": "≥ {}",
    "minimum": "≥ {}",
    "gt": "> {}",
    "exclusiveMinimum": "> {}",
    "le": "≤ {}",
    "maximum": "≤ {}",
    "lt": "< {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} keys",
    "pattern": "matches `{}`",
}

PAGE_TEXT = """\
# HTTP API

<!-- Written by docs/generate_api.py from the route plugins and the OpenAPI document: edit those. -->

The endpoints of the built-in route plugins. A running server describes them, and those of other installed plugins, at
`/openapi.json`; the page `/docs` shows it and calls the routes.

* **Access**: `public` routes need no key. `user` routes need one of `--api-key`, or the admin key, once there is an
  `--api-key`. `admin` routes need `--admin-api-key`, or an `--api-key` if there is no admin key. Keys come as
  `Authorization: Bearer KEY` or as `X-Api-Key: KEY`. Files, batches and responses of one `--api-key` are not
  visible with another, see [Security](security.md).
* **Component**: the name with which the route can be left out, `--block-plugin route:chat`.
* **Errors** are JSON: `{{"error": {{"message", "type", "param", "code"}}, …}}`, with the same keys at the top level.
  `code` is a word such as `context_length_exceeded`, or null; at the top level it is the HTTP status. 400: a field is
  wrong, and the message says how; 401: a key is needed; 403: a page of another origin sent the request; 404: there is
  no such route, model or object; 408 and 413: the body arrived too slowly or is too large; 415: it is not JSON, or
  compressed; 416: a `Range` begins behind the end of the file; 421: the server does not answer to the name in `Host`
  ([Security](security.md#browsers)); 429: the caller has too many waiting requests (`--max-queued-per-caller`); 500: an
  error of the server, which is in its log; 503: the server is full, stopping, or its engine is not running; 504: the
  deadline of the request (`deadline_ms`) cannot be met. 429 and 503 may have the header `Retry-After`.
* **Fields of plugins**: a logits processor adds request fields of its own, next to `temperature` in the bodies of
  chats, completions and responses, and in `sampling_params`. `/openapi.json` of a server shows them, and they are
  validated like other fields. `--block-plugin logits-processor:NAME` leaves a processor out; a request that sets one
  of its fields is then refused by name. `logit_bias`, `min_tokens`, `allowed_token_ids` and the penalties are fields
  of built-in processors.
* **Unknown fields** are ignored, unless they are known to change the answer on other servers: those are [refused by
  name](#refused-fields) instead of being ignored. Unknown fields in `sampling_params` are refused too. These fields
  of OpenAI are accepted without effect, because they cannot change an answer: `metadata` and `store` of chats,
  `service_tier`, `safety_identifier`, `prompt_cache_key`, `prompt_cache_options`, `prompt_cache_retention`,
  `prediction`, `max_tool_calls`, `access_programs`, `background_options`, `stream_options.include_obfuscation`.
  `user` changes no answer, but may say which caller a request is scheduled for (`--fairness-key`). Without effect are
  also these of SGLang and vLLM: `session_id`, `custom_labels`, `routing_key`, `conversation_id`, `ngram_corpus_id`,
  `routed_dp_rank`, `data_parallel_rank`, `disagg_prefill_dp_rank`, `kv_router_hint`, `mm_hashes`,
  `mm_content_hashes`, `log_metrics`, `no_logs`, `external_trace_header`, `stream_interval`,
  `spaces_between_special_tokens`. [Compatibility](compatibility.md) lists all fields of the two.
* **Regular expressions that end an output**: `stop_regex` is one pattern of Python's syntax, or a list of at most 32.
  The output ends with the first match, as soon as its text contains one, and `matched_stop` is the pattern. The text is
  searched in time linear in its length: look-arounds, references to groups, ends of lines and borders of words, and
  patterns of more than 512 states together are refused.
* **Token ids and log-probabilities as of vLLM and SGLang**: `return_token_ids` adds `token_ids` and `prompt_token_ids`
  to each choice, in streams to each piece and to the first one, and `prompt_token_ids` to the answer of a chat.
  `return_meta_info` adds `meta_info` of `/generate` to each choice, in streams to the last piece.
  `prompt_logprobs: N` adds the log-probability and the rank of each token of the prompt and of the `N` likeliest ones.
* **Truncation**: `truncate_prompt_tokens: N` keeps the last `N` tokens of a prompt to generate from, and the first `N`
  of a text to embed, classify or score (special tokens around it stay, and of a pair the second text is cut);
  `truncation_side` chooses the side that is cut. -1 stands for as many as fit the model.
* **Input embeddings instead of tokens**: `input_embeds` of `/generate` is a prompt as a list of inputs of the model's
  first layer (for Gemma, embeddings multiplied by the square root of their width), or a list of such prompts. Models
  built on `CausalLM` support them (Llama, Mistral, Qwen, Gemma, Phi, OLMo and their mixtures of experts); others refuse
  them. A body contains at most two million numbers. Penalties count such a prompt as token 0.
* **Responses in the background**: `background: true` of `/v1/responses` answers at once with the status `queued`;
  `GET /v1/responses/{{id}}` shows what became of it, and `POST /v1/responses/{{id}}/cancel` ends it. A refusal of the
  engine makes its status `failed`. With `stream: true` its events can also be read later, if a connection broke:
  `GET /v1/responses/{{id}}?stream=true&starting_after=N`. At most `--max-stored-responses` run at once. The
  default store keeps them in memory, so they end with the server; another `--store` may keep them.
* **Forms of rerank**: `/v1/rerank` answers with a list, as SGLang does. `/v2/rerank` and `?format=jina` answer with an
  object that has `results` and a `relevance_score` in each, as the APIs of Cohere, Jina and vLLM do. So does
  `/v1/rerank` for Cohere's own clients, and for bodies with `truncate_prompt_tokens`, a field of vLLM that SGLang does
  not have; `?format=list` overrides this. With `texts` instead of `documents` the answer is that of Text Embeddings
  Inference (`raw_scores`, `return_text`, `truncate`).
* **Routes for models of other tasks** answer 400 and name the tasks of the served model. **HEAD** is answered as GET,
  without the body.
* **Limits** in the tables are those of the body itself. The operator's limits (`--max-request-bytes`,
  `--max-sequences-per-request`, …) are in [Options](config.md). A request whose sequences (prompts times `n`) do not
  fit the queue even if it is empty (`--max-queued-requests`, `--max-queued-per-caller`) is refused with 400.

## Endpoints

{endpoints}
## Bodies

A field without a default is required; `–` is a default that stands for "not given".

{bodies}
## Refused fields

Fields that change the answer on other servers or routes, and would have no effect here. Neutral values are accepted:
`null`, `false`, an empty text or list, and the values in the table.

{refused}"""
REFUSED: Mapping[str, Remedies] = {
    "chat, completions": misplaced.GENERATION,
    "chat": misplaced.CHAT,
    "completions": misplaced.COMPLETION,
    "responses": misplaced.RESPONSES,
    "embeddings, classify, rerank": misplaced.POOLING,
    "score": misplaced.SCORE,
    "`/encode`, `/classify`": misplaced.ENCODE,
    "`/tokenize`": misplaced.TOKENIZE,
    "`/generate`": misplaced.NATIVE,
    "`sampling_params`": misplaced.SAMPLING_PARAMS,
    "`/separate_reasoning`": misplaced.SEPARATE_REASONING,
    "`/abort_request`": misplaced.ABORT,
    "`/load_lora_adapter`": misplaced.ADAPTERS,
    "`/update_weights_from_disk`": misplaced.WEIGHTS,
}
"""Refused fields by the body that they belong to, with the remedy of each; fields of all bodies are not listed."""


class UncalledEngine(EngineClient):
    """An engine client that is never called, because the program reads only routes and schemas."""

    async def start(self) -> Mapping[str, Any]:
        raise NotImplementedError

    def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        raise NotImplementedError

    async def control(self, name: str, **arguments: Any) -> Any:
        raise NotImplementedError

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        pass

    @property
    def failure(self) -> str | None:
        return None

    async def wait_failed(self) -> str:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Facts(dict[str, Any]):
    """Stand-in for the description that an engine gives of itself; keys that routes ask for besides are unknown."""

    def __missing__(self, key: str) -> None:
        return None


FACTS = Facts(
    tasks=sorted(get_args(Task)),
    vocab_size=0,
    context_length=0,
    max_total_tokens=0,
    eos_token_ids=[],
    generation={},
    model_path="model",
    checkpoint_path="model",
)


@dataclass(frozen=True)
class Endpoint:
    """One path with its methods, and the route that serves it."""

    path: str
    methods: tuple[str, ...]
    call: Mapping[str, Any]
    """The operation of the OpenAPI document."""
    spec: RouteSpec

    @property
    def tag(self) -> str:
        """The heading of the endpoint's table."""
        tags = self.call.get("tags") or ["other"]
        return str(tags[0])

    @property
    def body(self) -> str:
        """A link to the schema of the body, if there is one."""
        for kind, content in self.call.get("requestBody", {}).get("content", {}).items():
            return type_of(content["schema"]) if "$ref" in content["schema"] else f"`{kind}`"
        return ""

    def row(self) -> str:
        """Return the line of the table of routes."""
        summary = str(self.call.get("summary", "")) + (" (deprecated)" if self.call.get("deprecated") else "")
        tasks = ", ".join(sorted(self.spec.tasks)) or "any"
        methods = ", ".join(self.methods)
        return row(f"`{methods} {self.path}`", summary, self.spec.auth, tasks, self.body, f"`route:{self.spec.name}`")


def endpoints(engine: TextEngine, plugins: Plugins, document: Mapping[str, Any]) -> Iterator[Endpoint]:
    """Yield every endpoint of the plugins, in the order of the routes."""
    for component in plugins.all("route"):
        assert isinstance(component.spec, RouteSpec)
        for route in component.load()(engine).routes:
            if isinstance(route, APIRoute):
                methods = tuple(sorted(route.methods or ()))
                hidden = {"tags": route.tags, "summary": route.summary or ""}
                call = document["paths"].get(route.path_format, {}).get(methods[0].lower(), hidden)
                yield Endpoint(route.path_format, methods, call, component.spec)


def endpoint_tables(endpoints: Iterable[Endpoint]) -> Iterator[str]:
    """Yield a table for each tag."""
    by_tag: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_tag.setdefault(endpoint.tag, []).append(endpoint)
    for tag in sorted(by_tag, key=str.lower):
        yield f"### {tag[:1].upper() + tag[1:]}\n"
        yield "| endpoint | | access | for models that | body | component |\n|---|---|---|---|---|---|"
        for endpoint in sorted(by_tag[tag], key=lambda item: (item.path, item.methods)):
            yield endpoint.row()
        yield ""


def body_tables(schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yield a section for each body and for each schema in bodies."""
    for name in sorted(schemas):
        if name in VALIDATION or "properties" not in schemas[name]:
            continue
        schema = schemas[name]
        yield f"### {name}\n"
        if text := plain(schema.get("description", "")):
            yield f"{text}\n"
        yield "| field | type | default | limits |\n|---|---|---|---|"
        for field, kind in schema["properties"].items():
            default = "required" if field in schema.get("required", ()) else default_cell(kind.get("default"))
            yield row(f"`{field}`", type_of(kind), default, ", ".join(dict.fromkeys(limits(kind))))
        yield ""


def refused_table() -> Iterator[str]:
    """Yield the table of fields that are refused by name, those of all bodies first."""
    yield "| field of | field | passes | instead |\n|---|---|---|---|"
    rows: set[tuple[str, str]] = set()
    for body, remedies in {"all": misplaced.EVERYWHERE, **REFUSED}.items():
        for field, remedy in remedies.items():
            if (field, remedy) in rows:
                continue
            rows.add((field, remedy))
            neutral = ", ".join(f"`{json.dumps(value)}`" for value in misplaced.NEUTRAL.get(field, ()))
            yield row(body, f"`{field}`", neutral, remedy)
    yield ""


def type_of(schema: Mapping[str, Any]) -> str:
    """Return a short description of a schema; ``null`` for a field that is not given is left out."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(type_of(part) for part in parts if part.get("type") != "null"))
    match schema.get("type"):
        case "array":
            inner = type_of(schema.get("items", {}))
            return f"list of ({inner})" if " or " in inner else f"list of {inner}"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {type_of(values)}" if isinstance(values, dict) and values else "object"
        case str(kind):
            return kind
        case _:
            return "any"


def limits(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the limits of a value, those of its entries included."""
    for key, pattern in BOUNDS.items():
        bound = schema.get(key)
        if bound is not None and not (isinstance(bound, int) and abs(bound) >= LARGEST):
            yield prefix + pattern.format(bound)
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from limits(part, prefix)
    if isinstance(items := schema.get("items"), dict):
        yield from limits(items, "each ")


def default_cell(default: Any) -> str:
    """Return a default as the text of a cell."""
    if default is None:
        return "–"
    text = json.dumps(default, ensure_ascii=False)
    return f"`{text[:SHOWN]}{'…' if len(text) > SHOWN else ''}`"


def plain(text: str) -> str:
    """Return a docstring as a paragraph of Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))


@contextlib.contextmanager
def application() -> Iterator[tuple[TextEngine, Plugins, FastAPI]]:
    """Yield the application with the built-in plugins, over an engine client that is never called."""
    plugins = Plugins.discover(PluginOptions(allow=(DISTRIBUTION,), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        config = ServerConfig(storage=StorageConfig(file_storage_path=folder))
        server = ServerFacts(
            storage=load_storage(config, plugins), state=ServerState(weight_version=""), observers={}, plugins={}
        )
        engine = TextEngine(
            config, UncalledEngine(), FACTS, None, server=server, request_fields=request_fields(plugins)
        )
        yield engine, plugins, build_app(engine, plugins, GateState())


def page() -> str:
    """Return the content of the page."""
    with application() as (engine, plugins, app):
        document = app.openapi()
        listed = list(endpoints(engine, plugins, document))
    return PAGE_TEXT.format(
        endpoints="\n".join(endpoint_tables(listed)),
        bodies="\n".join(body_tables(document["components"]["schemas"])),
        refused="\n".join(refused_table()),
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
