"""Write ``docs/compatibility.md``: every endpoint and request field of SGLang and vLLM, and what becomes of it here.

What the others have is listed in ``tests/api/protocol``, whose tests send each field to a server. What becomes of it
comes from the routes and bodies of the built-in plugins and of the plugin for Anthropic's API.

``--check`` writes nothing and fails if the page is not what would be written.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fastapi.routing import APIRoute
from generate_api import application
from generated_page import row, write_or_check

from sglang_plug import Plugins
from sglang_plug_api.http.app import OPTIONAL_ROUTES
from sglang_plug_api.protocol.native import SamplingBody
from sglang_plug_api.text.text_engine import TextEngine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
PLUGIN = ROOT / "plugins" / "sglang-plug-anthropic"

PAGE_TEXT = """\
# Compatibility with SGLang and vLLM

<!-- Written by docs/generate_compatibility.py from the routes, the bodies and tests/api/protocol: edit those. -->

Clients of SGLang and vLLM can be pointed at this server. The tables list each endpoint and each request field of
SGLang {sglang_version} and vLLM {vllm_version}, and what becomes of it here:

* **works**: it has the effect that it has there; differences are named.
* **no effect**: accepted and ignored, because it cannot change an answer.
* **refused**: 400, with the name of the field and what to do instead. `null`, `false` and other values that ask for
  nothing pass. A field that is in no table is ignored.
* **not offered**: 404.

[HTTP API](api.md) describes endpoints and bodies as they are here. SGLang's command line is accepted by
`sglang-plug serve` where an option exists here, and otherwise answered with the option to use, see
[Options](config.md). The distribution `sglang-compat` provides SGLang's module names on top of the [frontend
language](frontend-language.md).

## Clients

`make clients` runs these against a real server: LangChain, LangGraph, LlamaIndex, Haystack, LiteLLM, Instructor,
pydantic-ai, OpenAI's clients for Python and Node and its Agents SDK, Vercel's AI SDK, Anthropic's SDK with
`tool_runner`, Cohere's client, LlamaIndex's client of Jina's rerank API (`base_url` ends with `/v2`), and the load
generators of SGLang and vLLM.

## Endpoints

{endpoints}

## Fields

{fields}"""
WORKS, NO_EFFECT, REFUSED, MISSING = "works", "no effect", "refused", "not offered"


@dataclass(frozen=True)
class Body:
    """The fields of a request body of this server, and the remedies for fields that it refuses."""

    fields: frozenset[str]
    remedies: Mapping[str, str]


def data(name: str) -> ModuleType:
    """Import a module of ``tests/api/protocol``."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(f"tests.api.protocol.{name}")


def routes_of(engine: TextEngine, plugins: Plugins) -> list[APIRoute]:
    """Return the routes of all plugins."""
    routers = [component.load()(engine) for component in plugins.all("route")]
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def endpoint_rows(paths: frozenset[str]) -> Iterator[str]:
    """Yield a line for each endpoint of SGLang and vLLM. Raises ``LookupError`` for one without a description."""
    others = data("endpoints_of_others")
    reasons = {path: reason for reason, listed in others.NOT_OFFERED.items() for path in listed.split()}
    sglang, vllm = set(others.SGLANG.split()), set(others.VLLM.split())
    if unused := reasons.keys() & paths | reasons.keys() - sglang - vllm:
        raise LookupError(f"reasons for what is offered here, or not there: {sorted(unused)}")
    for path in sorted(sglang | vllm):
        if path not in paths and path not in reasons:
            raise LookupError(f"{path} is neither offered nor listed as not offered")
        outcome = (WORKS, others.DIFFERENCES.get(path, "")) if path in paths else (MISSING, reasons[path])
        yield row(f"`{path}`", mark(path in sglang), mark(path in vllm), *outcome)


def bodies(routes: Iterable[APIRoute], schemas: Mapping[str, Any]) -> dict[str, Body]:
    """Return the request bodies by the names of their schemas."""
    models = {route.endpoint.body_model for route in routes if hasattr(route.endpoint, "body_model")}
    by_name = {
        model.__name__: Body(frozenset(schemas[model.__name__]["properties"]), getattr(model, "misplaced", {}))
        for model in (*models, SamplingBody)
    }
    sys.path.append(str(PLUGIN))
    from sglang_plug_anthropic import bodies as anthropic

    remedies = {name: "leave it out" for name in anthropic.UNSUPPORTED}
    for model in (anthropic.AnthropicBody, anthropic.AnthropicCountBody):
        by_name[model.__name__] = Body(frozenset(model.model_fields), {**model.misplaced, **remedies})
    return by_name


def verdict(request: Any, field: str, body: Body) -> tuple[str, str]:
    """Return whether a field is served, and how it differs or why it is refused.

    Raises ``LookupError`` if the lists do not contain it.
    """
    fields, notes = data("fields_of_others"), data("differences")
    harmless = {name: reason for reason, names in fields.HARMLESS.items() for name in names.split()}
    alias = fields.ALIASES.get(field, "") if request.schema == "ScoreBody" else ""
    if reason := notes.REFUSED_VALUES.get(request.location, {}).get(field):
        return REFUSED, reason
    if field in body.fields or alias in body.fields:
        return WORKS, notes.DIFFERENCES.get(request.location, {}).get(field, "")
    if field in body.remedies:
        return REFUSED, body.remedies[field]
    if field in harmless:
        return NO_EFFECT, harmless[field]
    raise LookupError(f"{request.location}: {field!r} is neither known, nor refused, nor listed as harmless")


def field_sections(known: Mapping[str, Body]) -> Iterator[str]:
    """Yield a table for each request."""
    for request in data("fields_of_others").REQUESTS:
        sglang, vllm = set(request.sglang.split()), set(request.vllm.split())
        yield f"### {'' if request.location.startswith('/') else '/generate: '}{request.location}\n"
        yield "| field | SGLang | vLLM | here | |\n|---|---|---|---|---|"
        for name in request.names:
            yield row(
                f"`{name}`", mark(name in sglang), mark(name in vllm), *verdict(request, name, known[request.schema])
            )
        yield ""


def mark(supported: bool) -> str:
    """Return a cell that shows whether a server has an endpoint or field."""
    return "✓" if supported else ""


def page() -> str:
    """Return the content of the page."""
    with application() as (engine, plugins, app):
        routes = routes_of(engine, plugins)
        known = bodies(routes, app.openapi()["components"]["schemas"])
    paths = frozenset({*(route.path_format for route in routes), *OPTIONAL_ROUTES})
    endpoint_lines = ["| endpoint | SGLang | vLLM | here | |\n|---|---|---|---|---|", *endpoint_rows(paths)]
    sections = list(field_sections(known))
    versions = data("fields_of_others")
    return PAGE_TEXT.format(
        endpoints="\n".join(endpoint_lines),
        fields="\n".join(sections),
        sglang_version=versions.SGLANG_VERSION,
        vllm_version=versions.VLLM_VERSION,
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
