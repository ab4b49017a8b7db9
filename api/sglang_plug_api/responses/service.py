"""Responses: made, streamed, remembered, cancelled, deleted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug import Constraint, LogprobOptions, MediaPrompt
from sglang_plug_api.batches.storage import Storage
from sglang_plug_api.constraints import FORMATS, by_backend, field_of, of_fields
from sglang_plug_api.errors import SHOWN, ApiError, from_exception
from sglang_plug_api.job import Job, new_id
from sglang_plug_api.protocol.base import refuse
from sglang_plug_api.protocol.items import check_outputs
from sglang_plug_api.protocol.openai import MAX_MESSAGES
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.protocol.tools import FlatAllowedTools, FlatNamedTool
from sglang_plug_api.reasoning import reasoned
from sglang_plug_api.sampling import Sampling
from sglang_plug_api.streaming import NamedEvent
from sglang_plug_api.template_variables import template_variables
from sglang_plug_api.text import TextEngine
from sglang_plug_api.tools import Tooling, tooling

from .call import Call
from .images import Message, Turn, turns_of
from .input_items import ItemQuery, page
from .prompt import render
from .store import ResponseStore, Stored

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a request comes to."""

    prompt: MediaPrompt
    constraint: Constraint | None
    """That the request itself brings."""
    tools: Tooling
    variables: Mapping[str, Any]
    """Of the chat template."""


class Responses:
    """All responses of this process. Others that serve the same address know nothing of them.

    Args:
        engine: who answers.
        storage: of the files that images may be.
    """

    def __init__(self, engine: TextEngine, storage: Storage) -> None:
        config = engine.config
        self._engine, self._storage = engine, storage
        self._store = ResponseStore(config.max_stored_responses, config.max_stored_response_bytes)
        self._running: dict[str, Call] = {}

    async def prepare(self, body: ResponsesBody, request: str = "") -> Call:
        """Render, tokenise and check. Raises ``ApiError``.

        ``request``: what the caller calls this request; the response has an id of its own.
        """
        engine = self._engine
        messages, plan = await self._plan(body)
        tokens = plan.prompt.tokens
        constraint = by_backend(plan.tools.constraint, body) or plan.constraint
        reading, preamble = reasoned(
            plan.tools.reading(engine.parsers),
            engine.parsers.reasoning,
            engine.tokenizer,
            tokens,
            plan.variables,
            constrained=constraint is not None,
            calls=plan.tools.constraint is not None,
        )
        given = body.sampling() | ({"skip_special_tokens": False} if reading.needs_special_tokens else {})
        job = Job(
            id=f"resp_{new_id()}",
            request=request,
            tokens=tokens,
            media=plan.prompt.media,
            sampling=_sampling(engine, given, len(tokens)),
            constraint=constraint,
            constraint_field="tools" if plan.tools.constraint else _field(constraint),
            preamble=preamble,
            logprobs=LogprobOptions(top=body.top_logprobs or 0) if body.wants_logprobs else None,
            priority=body.priority or 0,
            salt=body.salt,
            adapter=engine.adapters.chosen(body.model),
        )
        return Call(engine, body, messages, job, reading, keep=body.store is not False and self._store.enabled)

    async def count(self, body: ResponsesBody) -> dict[str, Any]:
        """How many tokens the prompt of a response would have. Raises ``ApiError``."""
        _, plan = await self._plan(body)
        return {"object": "response.input_tokens", "input_tokens": len(plan.prompt.tokens)}

    async def answer(self, call: Call) -> dict[str, Any]:
        """The whole response."""
        call.add(await self._engine.complete(call.job))
        await call.count_reasoning()
        call.close()
        self._remember(call)
        return call.show()

    async def events(self, call: Call) -> AsyncGenerator[NamedEvent, None]:
        """The response as it grows; the first event waits for the first token, so that refusals come before it.

        Whatever ends the stream, the response is remembered with what it has.
        """
        error: ApiError | None = None
        try:
            async with contextlib.aclosing(self._engine.stream(call.job)) as pieces:
                async for piece in pieces:
                    if call.id not in self._running:
                        self._running[call.id] = call
                        for event in call.opening():
                            yield event
                    for event in call.add(piece):
                        yield event
            await call.count_reasoning()
        except Exception as failure:
            if call.id not in self._running:
                raise
            error = from_exception(failure)
            logger.warning("response %s failed: %s", call.id, failure, exc_info=error.status == 500)
        finally:
            call.close(error)
            if self._running.pop(call.id, None) is not None:
                self._remember(call)
        for event in call.closing():
            yield event

    def input_items(self, id: str, query: ItemQuery) -> dict[str, Any]:
        """A page of what the request for a response said itself. Raises ``ApiError``."""
        running = self._running.get(id)
        kept = running is not None and running.keep
        return page(running.items if running is not None and kept else self._stored(id).items, query)

    def retrieve(self, id: str) -> Mapping[str, Any]:
        """A remembered response, or one that is being made and will be. Raises ``ApiError``."""
        running = self._running.get(id)
        if running is not None and running.keep:
            return running.show()
        return self._stored(id).answer

    def cancel(self, id: str) -> Mapping[str, Any]:
        """End a response; of one that has ended already nothing changes. Raises ``ApiError``."""
        running = self._running.get(id)
        if running is None:
            return self._stored(id).answer
        running.cancel()
        return running.show()

    def delete(self, id: str) -> dict[str, Any]:
        """Forget a response, and end it if it is being made. Raises ``ApiError``."""
        running = self._running.get(id)
        if running is not None and running.keep:
            running.keep = False
            running.cancel()
        elif not self._store.delete(id):
            raise _unknown(id)
        return {"id": id, "object": "response", "deleted": True}

    async def _plan(self, body: ResponsesBody) -> tuple[list[Message], _Plan]:
        """The conversation, and what is made of the request. Raises ``ApiError``."""
        self._engine.check_model(body.model)
        refuse(body, "background", remedy="use stream")
        messages, turns = self._conversation(body)
        constraint = _constraint(body)
        tools = _tooling(self._engine, body, has_format=constraint is not None)
        variables = _variables(self._engine, body, tools)
        prompt = await render(
            self._engine,
            body.instructions,
            turns,
            tools=tools.shown,
            room=body.max_output_tokens or 1,
            shorten=body.truncation == "auto",
            variables=variables,
        )
        return messages, _Plan(prompt, constraint, tools, variables)

    def _conversation(self, body: ResponsesBody) -> tuple[list[Message], list[Turn]]:
        """The conversation up to and with the input, and how it is shown. Raises ``ApiError``."""
        fresh = body.messages()
        if not fresh:
            raise ApiError("input cannot be empty", param="input")
        before = self._before(body.previous_response_id)
        messages = [*before, *fresh]
        if len(messages) > MAX_MESSAGES:
            raise ApiError(f"the conversation has more than {MAX_MESSAGES} messages", param="previous_response_id")
        turns = turns_of(before, self._storage, sees=self._engine.sees, where="previous_response_id")
        turns += turns_of(fresh, self._storage, sees=self._engine.sees)
        try:
            check_outputs(messages)
        except ValueError as error:
            raise ApiError(str(error), param="input") from None
        return messages, turns

    def _before(self, id: str | None) -> list[Message]:
        """What was said up to and with the response ``id``."""
        if id is None:
            return []
        found = self._store.get(id)
        if found is None or found.answer["status"] == "failed":
            trouble = "is still being made" if id in self._running else "not found" if found is None else "failed"
            raise ApiError(
                f"Previous response with id {id[:SHOWN]!r} {trouble}.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return list(found.messages)

    def _stored(self, id: str) -> Stored:
        found = self._store.get(id)
        if found is None:
            raise _unknown(id)
        return found

    def _remember(self, call: Call) -> None:
        if call.keep:
            self._store.put(call.id, Stored(call.show(), call.conversation, call.items))


def _variables(engine: TextEngine, body: ResponsesBody, tools: Tooling) -> dict[str, Any]:
    effort = body.reasoning.effort if body.reasoning else None
    return template_variables(
        engine, body.chat_template_kwargs, effort, tools=tools.shown is not None, field="reasoning.effort"
    )


def _sampling(engine: TextEngine, given: Mapping[str, Any], prompt: int) -> Sampling:
    with _renamed({"max_tokens": "max_output_tokens", "max_new_tokens": "max_output_tokens"}):
        return engine.defaults.complete(given, prompt, None)


def _constraint(body: ResponsesBody) -> Constraint | None:
    format = body.text.format if body.text else None
    with _renamed(dict.fromkeys(("response_format", *FORMATS), "text.format")):
        return of_fields(body, None if format is None else format.as_response_format())


def _field(constraint: Constraint | None) -> str:
    return field_of(constraint).replace("response_format", "text.format")


def _tooling(engine: TextEngine, body: ResponsesBody, *, has_format: bool) -> Tooling:
    tools = [one.nested() for one in body.tools or ()]
    said = body.tool_choice
    choice = said.nested() if isinstance(said, FlatNamedTool | FlatAllowedTools) else said
    try:
        return tooling(engine.parsers, tools, choice, body.parallel_tool_calls, has_format=has_format)
    except ApiError as error:
        error.param = error.param and error.param.replace(".function.", ".")
        raise


@contextlib.contextmanager
def _renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about fields that other routes call otherwise name those of this one."""
    try:
        yield
    except ApiError as error:
        error.param = names.get(error.param or "", error.param)
        raise


def _unknown(id: str) -> ApiError:
    return ApiError(f"Response with id {id[:SHOWN]!r} not found.", 404, param="response_id", code="response_not_found")
