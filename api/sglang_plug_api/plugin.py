"""Public names of the server that route plugins may import besides ``sglang_plug``.

``build(engine)``, the target of a ``RouteSpec``, gets a ``TextEngine`` and returns a ``fastapi.APIRouter``. A route
reads its body with ``read_body``, makes a ``Job``, answers with ``json_response`` or an ``EventStream``, and refuses by
raising ``ApiError``. Import this module in the file that ``target`` names, never in the declaring module.

================== ==========================================================================================
``TextEngine``     the model in terms of text: ``encode``, ``encode_chat``, ``stream``, ``complete``, ``defaults``, …
``Job``            one sequence to generate; ``new_id`` makes an id for it
``JobOutput``      output of a job since the last one, and its ``Ending``; ``joined`` makes one of several
``RequestImage``   an image in a request, for ``engine.with_images``
``ChatRequest``    a conversation with tools and images; ``prepare_chat`` makes a ``Job`` of it, and
                   ``ChatParsingOptions`` for a ``ChatOutput``, which parses a job's outputs: text, reasoning, calls
``Tool``           a ``Function`` that may be called, for ``ChatRequest.tools``; ``NamedTool`` must be called
``Effort``         the reasoning effort, for ``ChatRequest.reasoning_effort``
``Sampling``       a request's parameters, as ``engine.defaults.complete`` returns them
``RequestBody``    base of bodies (pydantic), with the field types ``Integer``, ``Number``, ``TokenId`` and ``Name``;
                   one that generates is a ``ProcessorFieldsBody``, which takes the fields of logits processors: its
                   ``processor_fields`` belong into what ``engine.defaults.complete`` is given
``takes``          registers a POST endpoint with its body in the OpenAPI document; ``read_body`` then reads it
``json_response``  a response with a JSON body
``EventStream``    server-sent events that end when the client disconnects; ``NamedEvent`` has an ``event:`` line
``JsonLines``      the same as newline-delimited JSON (NDJSON); ``respond(..., lines=True)``
``first_of``       fetches a stream's first event, so that early refusals get an error status
``respond``        answers with either of the two; early refusals get an error status;
                   ``cancel_on_disconnect`` cancels earlier work, such as fetching images, on a disconnect
``merged``         several streams as one
``Service``        a server without its socket, for a platform that has its own: ``start`` returns the ASGI
                   application, ``ready`` warms up; ``drain``, ``drained`` and ``stop`` end it
``named_options``  the configuration of a ``Service`` from options of ``sglang-plug serve``, given by name
``EngineGroup``    the engines of a ``Service`` that a platform starts and stops; ``engine_group`` makes one
``RouteGroup``     a router with the start and stop of what it holds, and the ``ErrorFormat`` of its errors
``ApiError``       a refusal; ``from_exception`` converts any exception to one, as the server does
================== ==========================================================================================
"""

from __future__ import annotations

from typing import Any

from sglang_plug.deprecation import warn_deprecated
from sglang_plug_api.answers.errors import ApiError, from_exception, json_response
from sglang_plug_api.engine_clients.make_client import engine_group
from sglang_plug_api.engine_clients.replicas.changing_group import EngineGroup
from sglang_plug_api.http.request_body import read_body, read_query, takes
from sglang_plug_api.http.route_group import ErrorFormat, RouteGroup
from sglang_plug_api.http.streaming import (
    EventStream,
    JsonLines,
    NamedEvent,
    cancel_on_disconnect,
    first_of,
    merged,
    respond,
    response_unless_disconnected,
)
from sglang_plug_api.lifecycle.service import Service
from sglang_plug_api.multimodal.images import RequestImage
from sglang_plug_api.openai.chat_request import ChatRequest, prepare_chat
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.options.parsing import named_options
from sglang_plug_api.text.chat_events import ChatOutput, ChatParsingOptions
from sglang_plug_api.text.job import Ending, Job, JobOutput, joined, new_id
from sglang_plug_api.text.sampling import Sampling
from sglang_plug_api.text.text_engine import TextEngine

from .protocol.base import Integer, Name, Number, ProcessorFieldsBody, RequestBody, TokenId
from .protocol.openai import Effort
from .protocol.tools import Function, FunctionReference, NamedTool, Tool

RENAMED = {"Piece": "JobOutput"}
"""Earlier name -> name; see docs/migration.md."""
ROUTE_API_VERSION = 2
"""Version that rises only when a name is removed or changes its meaning, not for new names."""

__all__ = [
    "ApiError",
    "ChatOutput",
    "ChatParsingOptions",
    "ChatRequest",
    "Effort",
    "Ending",
    "EngineGroup",
    "ErrorFormat",
    "EventStream",
    "Function",
    "FunctionReference",
    "Integer",
    "Job",
    "JobOutput",
    "JsonLines",
    "Name",
    "NamedEvent",
    "NamedTool",
    "Number",
    "ProcessorFieldsBody",
    "ROUTE_API_VERSION",
    "RequestBody",
    "RequestImage",
    "RouteGroup",
    "Sampling",
    "ServerConfig",
    "Service",
    "TextEngine",
    "TokenId",
    "Tool",
    "cancel_on_disconnect",
    "engine_group",
    "first_of",
    "from_exception",
    "joined",
    "json_response",
    "merged",
    "named_options",
    "new_id",
    "prepare_chat",
    "read_body",
    "read_query",
    "respond",
    "response_unless_disconnected",
    "takes",
]


def __getattr__(name: str) -> Any:
    """Return what has had this name earlier, with a ``DeprecationWarning``."""
    if name not in RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_deprecated(f"{__name__}.{name} is now {__name__}.{RENAMED[name]}")
    return globals()[RENAMED[name]]
