"""Service behind ``/v1/responses``: generates, streams, stores, cancels and deletes responses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI

from sglang_plug import Constraint, LogprobOptions
from sglang_plug.system.library_panics import is_error
from sglang_plug_api.answers.errors import RETRY_AFTER, SHOWN, ApiError, from_exception
from sglang_plug_api.http.middleware import GateState
from sglang_plug_api.http.streaming import NamedEvent
from sglang_plug_api.openai.chat_request import ChatRequest, prepare_rendered_chat
from sglang_plug_api.protocol.items import check_outputs
from sglang_plug_api.protocol.openai import MAX_MESSAGES
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.protocol.sampling import renamed_params
from sglang_plug_api.protocol.tools import FlatAllowedTools, FlatNamedTool
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.text.chat_events import ChatParsingOptions
from sglang_plug_api.text.constraints import FormatFields, constraint_from_fields
from sglang_plug_api.text.job import Job, limited, new_id
from sglang_plug_api.text.sampling import Sampling
from sglang_plug_api.text.text_engine import TextEngine

from .active_response import ActiveResponse
from .background import BackgroundTasks
from .input_items import ItemQuery, items_page
from .message_images import ImageMessage, Message, split_images
from .prompt import render
from .stored import ABANDONED, RENEW_INTERVAL, StoredResponses, unknown_response

logger = logging.getLogger(__name__)

FIELDS = FormatFields("text.format", "text.format")


class ResponsesService:
    """The responses that this server generates, and those that it can read.

    Args:
        engine: generates the outputs; its storage has the files that images refer to, and maybe the responses.
        renew_interval: seconds between two messages to the store that the running responses are still generated.
    """

    def __init__(self, engine: TextEngine, *, renew_interval: float = RENEW_INTERVAL) -> None:
        config, self._renew_interval = engine.config, renew_interval
        self._engine, self._storage = engine, engine.server.storage
        self._stored = StoredResponses(engine.server.storage, config)
        self._running: dict[str, ActiveResponse] = {}
        self._background_tasks = BackgroundTasks()
        self._counted: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self._starting = 0  # responses in the background that the store has not begun yet

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Generate responses in the background while the application lives; those that are left at its end fail."""
        gate: GateState | None = getattr(app.state, "gate", None)
        if gate is not None and self._stored.is_shared:  # other servers can show them after the end of this one
            self._counted = gate.background_work
        renewing = asyncio.create_task(self._renew_running())
        try:
            async with self._background_tasks.lifespan(app):
                try:
                    yield
                finally:
                    for response in self._running.values():
                        response.fail(ApiError(ABANDONED["message"], 503))
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def prepare(self, body: ResponsesBody, request: str = "") -> ActiveResponse:
        """Check, render and tokenize a request. Raises ``ApiError``.

        ``request`` is the client's id of this request; the response has an id of its own.
        """
        engine = self._engine
        messages, job, parsing = await self._prepare(body)
        job = replace(
            job,
            id=f"resp_{new_id()}",
            request=request,
            sampling=_sampling(engine, parsing.sampling(body.sampling()), len(job.tokens)),
            logprobs=LogprobOptions(top=body.top_logprobs or 0) if body.includes_logprobs else None,
            priority=body.priority or 0,
            salt=body.salt,
            adapter=engine.adapters.resolve(body.model),
        )
        (job,) = limited([job])
        keep = body.store is not False and self._stored.enabled
        return ActiveResponse(engine, body, messages, job, parsing, keep=keep)

    async def count(self, body: ResponsesBody) -> dict[str, Any]:
        """Count the tokens of the prompt that a response would have. Raises ``ApiError``."""
        _, job, _ = await self._prepare(body)
        return {"object": "response.input_tokens", "input_tokens": len(job.tokens)}

    async def answer(self, response: ActiveResponse) -> dict[str, Any]:
        """Generate and return the whole response."""
        response.add(await self._engine.complete(response.job))
        await response.count_reasoning()
        response.close()
        await self._remember(response)
        return response.as_dict()

    async def start(self, response: ActiveResponse) -> dict[str, Any]:
        """Generate a response in the background, and return it as it is now. Raises ``ApiError`` if too many run."""
        limit = self._engine.config.max_stored_responses
        if len(self._background_tasks) + self._starting >= limit:
            raise ApiError(
                f"{limit} responses are generated in the background, which is the maximum (--max-stored-responses); "
                "try again later",
                503,
                param="background",
                headers={"retry-after": str(RETRY_AFTER)},
            )
        self._starting += 1
        try:
            await self._stored.begin(response)
        finally:
            self._starting -= 1
        self._running[response.id] = response
        self._background_tasks.start(self._generate(response))
        return response.as_dict()

    async def replay(self, id: str, after: int = -1) -> AsyncGenerator[NamedEvent, None]:
        """Return the events of a response that is or was streamed in the background, those after number ``after``.

        Raises ``ApiError`` for any other response.
        """
        running = self._running_response(id)
        if running is not None:
            streams = running.keep and running.streams and running.background
        else:
            streams = (await self._stored.get(id)).streams
        if not streams:
            raise ApiError("only a response created with background and stream can be streamed later", param="stream")
        return self._stored.events(id, after)

    async def _generate(self, response: ActiveResponse) -> None:
        """Generate and store a response in the background."""
        with self._counted():
            try:
                await self._write_events(response)
            finally:
                await self._finish(response)

    async def _write_events(self, response: ActiveResponse) -> None:
        """Generate a response; its events are kept only if they were asked for."""
        writer = self._stored.writer(response.id)
        is_announced = False
        try:
            async with contextlib.aclosing(self.events(response)) as events:
                async for event in events:
                    if response.streams:
                        writer.add(event.data)
                    if response.started and not is_announced:  # other servers see that it is not queued any more
                        is_announced = True
                        await self._stored.update(response)
        finally:
            await writer.flush()

    async def _renew_running(self) -> None:
        """Keep the responses in the background, and stop those that another server cancelled or deleted."""
        while True:
            await asyncio.sleep(self._renew_interval)
            try:
                stopped = await self._stored.renew()
            except Exception:  # a fault of a store must not let all responses count as abandoned
                logger.exception("responses that run could not be renewed")
                continue
            for id in stopped:
                if (response := self._running.get(id)) is not None and not response.cancelled:
                    response.cancel()

    async def events(self, response: ActiveResponse) -> AsyncGenerator[NamedEvent, None]:
        """Yield events while the response is generated.

        The first waits for a token, so that refusals precede it; in the background refusals are events, too. However
        the stream ends, the response is stored with its output so far.
        """
        error: ApiError | None = None
        try:
            if response.background:
                for event in response.queued_events():
                    yield event
            async with contextlib.aclosing(self._engine.stream(response.job)) as outputs:
                async for output in outputs:
                    if not response.started:
                        self._running[response.id] = response
                        for event in response.first_events():
                            yield event
                    if response.must_stop:  # maybe since before the engine had the job
                        self._engine.abort(response.id, response.job.caller)
                    for event in response.add(output):
                        yield event
            await response.count_reasoning()
        except BaseException as failure:
            if response.id not in self._running or not is_error(failure):
                raise
            error = from_exception(failure)
            logger.warning("response %s failed: %s", response.id, failure, exc_info=error.status == 500)
        finally:
            response.close(error)
            if not response.background:  # in the background the last events are stored, too
                await self._finish(response)
        for event in response.last_events():
            yield event

    async def input_items(self, id: str, query: ItemQuery) -> dict[str, Any]:
        """Return a page of the input items of a response's own request. Raises ``ApiError``."""
        running = self._running_response(id)
        kept = running is not None and running.keep
        items = running.items if running is not None and kept else (await self._stored.get(id)).items
        return items_page(items, query)

    async def retrieve(self, id: str) -> Mapping[str, Any]:
        """Return a stored response, or a running one that will be stored. Raises ``ApiError``."""
        running = self._running_response(id)
        if running is not None and running.keep:
            return running.as_dict()
        return (await self._stored.get(id)).answer

    async def cancel(self, id: str) -> Mapping[str, Any]:
        """Abort a response, or return one that is cancelled already. Raises ``ApiError`` if it has ended otherwise."""
        running = self._running_response(id)
        if running is None:
            record = await self._stored.get(id)
            answer = (await self._stored.cancel(id) if record.running else record).answer
            if answer["status"] != "cancelled":
                raise ApiError(
                    f"a response that has ended as {answer['status']} cannot be cancelled", param="response_id"
                )
            return answer
        running.cancel()
        return running.as_dict()

    async def delete(self, id: str) -> dict[str, Any]:
        """Delete a response, and abort it if it is running. Raises ``ApiError``."""
        running = self._running_response(id)
        if running is not None and running.keep:
            running.keep = False
            running.cancel()
            if running.background:
                await self._stored.delete(id)
        elif not await self._stored.delete(id):
            raise unknown_response(id)
        return {"id": id, "object": "response", "deleted": True}

    async def _prepare(self, body: ResponsesBody) -> tuple[list[Message], Job, ChatParsingOptions]:
        """Return the conversation, and what ``prepare_chat`` returns for it. Raises ``ApiError``."""
        self._engine.check_model(body.model)
        if body.background and (body.store is False or not self._stored.enabled):
            reason = "store is false" if self._stored.enabled else "this server stores no responses"
            raise ApiError(f"a response in the background is stored until it is read, but {reason}", param="background")
        messages, template_messages = await self._conversation(body)
        rendering = partial(
            render,
            self._engine,
            body.instructions,
            template_messages,
            reserved=body.max_output_tokens or 1,
            truncate=body.truncation == "auto",
        )
        request = _chat_request(body, [item.message for item in template_messages])
        try:
            job, parsing = await prepare_rendered_chat(self._engine, request, rendering)
        except ApiError as error:
            error.param = error.param and error.param.replace(".function.", ".")  # tools are not nested here
            raise
        return messages, job, parsing

    async def _conversation(self, body: ResponsesBody) -> tuple[list[Message], list[ImageMessage]]:
        """Return the conversation including the input, and its form for the template. Raises ``ApiError``."""
        input_messages = body.messages()
        if not input_messages:
            raise ApiError("input cannot be empty", param="input")
        previous = await self._previous_messages(body.previous_response_id)
        messages = [*previous, *input_messages]
        if len(messages) > MAX_MESSAGES:
            raise ApiError(f"the conversation has more than {MAX_MESSAGES} messages", param="previous_response_id")
        supports_images = self._engine.supports_images
        split = split_images(previous, self._storage, supports_images=supports_images, where="previous_response_id")
        split += split_images(input_messages, self._storage, supports_images=supports_images)
        try:
            check_outputs(messages)
        except ValueError as error:
            raise ApiError(str(error), param="input") from None
        return messages, split

    async def _previous_messages(self, id: str | None) -> list[Message]:
        """Return the conversation including the response ``id``."""
        if id is None:
            return []
        stored = await self._stored.find(id)
        if stored is None or stored.running or stored.answer["status"] == "failed":
            reason = "not found" if stored is None else "failed"
            if self._running_response(id) or (stored is not None and stored.running):
                reason = "is still in progress"
            raise ApiError(
                f"Previous response with id {id[:SHOWN]!r} {reason}.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return list(stored.messages)

    def _running_response(self, id: str) -> ActiveResponse | None:
        """Return the running response with this id, if it belongs to the current caller."""
        response = self._running.get(id)
        return response if response is not None and current_caller().may_use(response.job.caller.owner) else None

    async def _finish(self, response: ActiveResponse) -> None:
        if self._running.pop(response.id, None) is not None:
            await self._remember(response)

    async def _remember(self, response: ActiveResponse) -> None:
        if response.keep or response.background:  # the store knows whether one in the background was deleted
            await self._stored.update(response)


def _chat_request(body: ResponsesBody, messages: Sequence[Message]) -> ChatRequest:
    """Return the request as one for a chat. Raises ``ApiError``."""
    constraint, field = _constraint(body)
    choice = body.tool_choice
    return ChatRequest(
        messages=messages,
        tools=[tool.nested() for tool in body.tools or ()],
        tool_choice=choice.nested() if isinstance(choice, FlatNamedTool | FlatAllowedTools) else choice,
        tool_schema_field="parameters",
        parallel_tool_calls=body.parallel_tool_calls,
        constraint=constraint,
        constraint_field=field,
        grammar_backend=body.grammar_backend,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        reasoning_effort_field="reasoning.effort",
        template_variables=body.chat_template_kwargs,
    )


def _sampling(engine: TextEngine, params: Mapping[str, Any], prompt: int) -> Sampling:
    with renamed_params({"max_new_tokens": "max_output_tokens"}):
        return engine.defaults.complete(params, prompt, None)


def _constraint(body: ResponsesBody) -> tuple[Constraint | None, str]:
    """Return the constraint that the request sets, and the field that sets it."""
    format = body.text.format if body.text else None
    response_format = None if format is None else format.as_response_format()
    structured = body.structured_outputs
    return constraint_from_fields(body, response_format, FIELDS, structured)
