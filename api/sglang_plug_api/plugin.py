"""What a route plugin may import besides ``sglang_plug``: the server's side of the contract.

``build(engine)``, the target of a ``RouteSpec``, gets a ``TextEngine`` and returns a ``fastapi.APIRouter``. A route
reads its body with ``read_body``, makes a ``Job``, answers with ``json_response`` or an ``EventStream``, and refuses by
raising ``ApiError``. Import this module in the file that ``target`` names, never in the module that declares.

================== ==========================================================================================
``TextEngine``     the model in terms of text: ``encode``, ``encode_chat``, ``stream``, ``complete``, ``defaults``, …
``Job``            one sequence to generate; ``new_id`` makes an id for it
``Piece``          what came of a job since its last piece, and its ``Ending``; ``joined`` makes one of several
``GivenImage``     an image as a request has it, for ``engine.with_images``
``ChatRequest``    a conversation with tools and images; ``prepare_chat`` makes a ``ChatPrompt`` of it, whose ``output``
                   is a ``ChatOutput``: it reads a job's pieces as text, reasoning and calls
``Tool``           a ``Function`` that may be called, for ``ChatRequest.tools``; ``NamedTool`` is one that must be
``Effort``         of reasoning, as ``ChatRequest.reasoning_effort`` has it
``Sampling``       a request's parameters, as ``engine.defaults.complete`` returns them
``RequestBody``    base of bodies (pydantic), with the field types ``Integer``, ``Number``, ``TokenId`` and ``Name``
``takes``          registers a POST endpoint with its body in the OpenAPI document; ``read_body`` then reads it
``json_response``  an answer
``EventStream``    server-sent events that end when the client leaves; ``NamedEvent`` has an ``event:`` line
``first_of``       fetches a stream's first event, so that what is refused at once has an error status
``respond``        either of the two, as the caller wishes, with what refuses at once as an error status;
                   ``while_connected`` ends what is done before, such as fetching images, when the client leaves
``merged``         several streams as one
``ApiError``       a refusal; ``from_exception`` makes one of any exception, as the server itself would
================== ==========================================================================================
"""

from __future__ import annotations

from .bodies import read_body, read_query, takes
from .chat_events import Choice as ChatOutput
from .chat_request import ChatPrompt, ChatRequest, prepare_chat
from .errors import ApiError, from_exception, json_response
from .images import GivenImage
from .job import Ending, Job, Piece, joined, new_id
from .protocol.base import Integer, Name, Number, RequestBody, TokenId
from .protocol.openai import Effort
from .protocol.tools import Function, FunctionReference, NamedTool, Tool
from .sampling import Sampling
from .streaming import EventStream, NamedEvent, first_of, merged, respond, unless_disconnected, while_connected
from .text import TextEngine

ROUTE_API_VERSION = 1
"""Rises only when a name is removed from here or changes its meaning. New names do not raise it."""

__all__ = [
    "ApiError",
    "ChatOutput",
    "ChatPrompt",
    "ChatRequest",
    "Effort",
    "Ending",
    "EventStream",
    "Function",
    "FunctionReference",
    "GivenImage",
    "Integer",
    "Job",
    "Name",
    "NamedEvent",
    "NamedTool",
    "Number",
    "Piece",
    "ROUTE_API_VERSION",
    "RequestBody",
    "Sampling",
    "TextEngine",
    "TokenId",
    "Tool",
    "first_of",
    "from_exception",
    "joined",
    "json_response",
    "merged",
    "new_id",
    "prepare_chat",
    "read_body",
    "read_query",
    "respond",
    "takes",
    "unless_disconnected",
    "while_connected",
]
