"""Text in, text out: the API's side of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from sglang_plug import (
    AUTO,
    Finish,
    MediaPrompt,
    Observer,
    Output,
    Request,
    RequestError,
    RequestEvent,
    TemplateError,
    Tokenizer,
)
from sglang_plug.engine.client import EngineClient

from .adapters import AdapterNames
from .assembly import Assembly
from .config import ServerConfig
from .errors import SHOWN, ApiError
from .images import GivenImage
from .job import Job, Piece, joined, numbered
from .parsers import Parsers
from .pause import Pause
from .sampling import SamplingDefaults
from .sight import Sight
from .watching import ShieldedObserver

logger = logging.getLogger(__name__)

INLINE_CHARACTERS = 2048
"""Longer texts are tokenised in a thread."""
CHARACTERS_PER_TOKEN = 128
"""The longest tokens of common vocabularies, which stand for runs of blanks; other tokens have four on average."""
MIN_TEXT_LIMIT = 1 << 20
"""So many characters are tokenised whatever the model's context."""


class TextEngine:
    """What routes are built with: the model in terms of text, and what is known of it.

    Args:
        config: the server's configuration.
        client: the engine, started.
        info: what the engine said of itself.
        tokenizer: ``None`` if the server was told to do without.
        observers: by name, as loaded.
        plugins: the table that ``/plugins`` shows.
        parsers: of calls and of reasoning in outputs.
        sight: what makes prompts of tokens and images; ``None`` if the model takes text only.
    """

    def __init__(
        self,
        config: ServerConfig,
        client: EngineClient,
        info: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        *,
        observers: Mapping[str, Observer] | None = None,
        plugins: Mapping[str, Any] | None = None,
        parsers: Parsers | None = None,
        sight: Sight | None = None,
    ) -> None:
        self.config, self.client, self.info = config, client, info
        self.observers, self.plugins = dict(observers or {}), dict(plugins or {})
        self.parsers = parsers or Parsers()
        self._tokenizer, self._sight = tokenizer, sight
        self.watchers = tuple(ShieldedObserver(name, one) for name, one in self.observers.items())
        self.defaults = SamplingDefaults(config, info, tokenizer.eos_token_ids if tokenizer else ())
        self.model_name = config.served_model_name or _model_name(config, info)
        self.adapters = AdapterNames(self.model_name, info.get("adapters"))
        self.started = int(time.time())
        self.weight_version = config.weight_version
        self._running = set[_Running]()
        self._pause = Pause()

    @property
    def in_flight(self) -> int:
        """Sequences that are being served or wait for it."""
        return len(self._running)

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ``ApiError`` if the server runs with ``--skip-tokenizer-init``."""
        if self._tokenizer is None:
            raise ApiError("the server runs with --skip-tokenizer-init: send input_ids, and decode output_ids yourself")
        return self._tokenizer

    @property
    def has_text(self) -> bool:
        """False under ``--skip-tokenizer-init``."""
        return self._tokenizer is not None

    @property
    def sees(self) -> bool:
        """True if prompts may have images."""
        return self._sight is not None

    async def with_images(self, tokens: Sequence[int], images: Sequence[GivenImage]) -> MediaPrompt:
        """The prompt of ``tokens``, which hold one placeholder for each of ``images``. Raises ``ApiError``."""
        if not images:
            return MediaPrompt(list(tokens), ())
        if self._sight is None:
            raise images[0].error("this model takes text only")
        return await self._sight.prompt(tokens, images)

    async def fetched(self, images: Sequence[GivenImage]) -> Sequence[GivenImage]:
        """``images``, with the bytes of those that the request only points at. Raises ``ApiError``."""
        return images if self._sight is None else await self._sight.fetched(images)

    def check_model(self, name: str | None) -> None:
        """Refuse requests for an adapter that is not loaded, and under ``--strict-model-name`` for another model.

        Raises ``ApiError``.
        """
        self.adapters.chosen(name)
        if self.config.strict_model_name and name is not None and not self.adapters.knows(name):
            raise unknown_model(name, self.model_name, *self.adapters.paths)

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of ``text``. Raises ``ApiError`` if it is too long to be tokenised."""
        tokenizer = self.tokenizer
        self.check_text(text)
        if len(text) <= INLINE_CHARACTERS:
            return tokenizer.encode(text, special=special)
        return await asyncio.to_thread(tokenizer.encode, text, special=special)

    async def encode_each(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Tokens of each text. Raises ``ApiError`` if one is too long to be tokenised."""
        tokenizer = self.tokenizer
        for text in texts:
            self.check_text(text)

        def work() -> list[list[int]]:
            return [tokenizer.encode(text, special=special) for text in texts]

        return work() if sum(map(len, texts)) <= INLINE_CHARACTERS else await asyncio.to_thread(work)

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Tokens of the prompt that the chat template makes; ``options`` as in ``Tokenizer.chat``."""
        tokenizer = self.tokenizer

        def render() -> list[int]:
            text = tokenizer.chat(messages, **options)
            self.check_text(text)
            return tokenizer.encode(text, special=False)

        try:
            return await asyncio.to_thread(render)
        except TemplateError as error:
            raise ApiError(str(error), param="messages") from None

    def check_text(self, text: str) -> None:
        """Refuse a text that is longer than any that fits the model, before its tokens take memory and time.

        Raises ``ApiError``.
        """
        most = max(MIN_TEXT_LIMIT, CHARACTERS_PER_TOKEN * self.info["context_length"])
        if len(text) > most:
            raise ApiError(f"a text has {len(text)} characters; the most that is tokenised is {most}")

    def check_sequences(self, total: int) -> None:
        """Refuse a request for more sequences than one may have; best before any is tokenised. Raises ``ApiError``."""
        most = self.config.max_sequences_per_request
        if total > most:
            raise ApiError(f"the request asks for {total} sequences (prompts times n); the most is {most}", param="n")

    def expand(self, jobs: Sequence[Job]) -> list[Job]:
        """A job for each of the ``n`` outputs of each prompt. Raises ``ApiError`` if they are too many."""
        self.check_sequences(sum(job.sampling.n for job in jobs))
        return [numbered(job, index) for job in jobs for index in range(job.sampling.n)]

    async def stream(self, job: Job) -> AsyncGenerator[Piece, None]:
        """Pieces as they come; the last has ``ending`` set. Closing early aborts the request.

        Raises ``RequestError`` if the engine refuses and ``EngineError`` if it is gone.
        """
        arrived = time.time()
        assembly = Assembly(job, self._tokenizer)
        request = Request(
            id=job.id,
            tokens=tuple(job.tokens),
            media=job.media,
            params=job.sampling.params,
            task=job.task,
            logprobs=job.logprobs,
            constraint=job.constraint,
            preamble=job.preamble,
            priority=job.priority,
            salt=job.salt,
            adapter=job.adapter,
            arrived=arrived,
        )
        await self._pause.passed()
        first: float | None = None
        running = _Running(job)
        self._running.add(running)
        try:
            outputs = cast(AsyncGenerator[Output, None], self.client.submit(request))
            async with contextlib.aclosing(outputs):
                while assembly.ending is None:
                    output = await running.next(outputs)
                    piece = assembly.feed(output)
                    now = time.time()
                    if output.tokens:
                        first = now if first is None else first
                    for watcher in self.watchers:
                        watcher.on_tokens(job.id, len(piece.tokens), now)
                    yield piece
        except RequestError as error:
            field = _field_of(job, error)
            if field is not None:
                raise ApiError(str(error), error.status, param=field) from None
            raise
        finally:
            self._running.discard(running)
            self._report(job, assembly, arrived, first)

    async def update_weights(self, source: str, revision: str | None = None, version: str | None = None) -> None:
        """Serve the weights of another checkpoint once what is in flight has ended; new requests wait meanwhile.

        Raises ``RequestError`` if they do not fit, and ``TimeoutError`` if requests did not end in time; the old
        weights serve on then.
        """
        async with self._pause.idle(lambda: self.in_flight, self.config.drain_timeout):
            await self.client.control("update_weights", source=source, revision=revision)
        self.info = {**self.info, "model_path": source}
        self.weight_version = version or self.weight_version

    async def load_adapter(self, name: str, path: str) -> None:
        """Let requests use the adapter in the folder ``path`` as ``name``.

        Raises ``ApiError`` or ``RequestError`` if that cannot be.
        """
        self.adapters.check_free(name)
        await self.client.control("load_adapter", adapter=name, path=path)
        self.adapters.paths[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests in flight keep it to their end. Raises ``ApiError`` if it is not loaded."""
        self.adapters.named(name)
        await self.client.control("unload_adapter", adapter=name)
        self.adapters.paths.pop(name, None)

    def abort(self, request: str | None) -> int:
        """End every sequence of the request with exactly this id, or all there are if ``None``.

        Each ends with reason ``abort`` and with what it has. Returns how many were ended.
        """
        found = [one for one in self._running if not one.aborted and (request is None or one.is_of(request))]
        for one in found:
            one.abort()
        return len(found)

    async def complete(self, job: Job) -> Piece:
        """The whole output as one piece."""
        async with contextlib.aclosing(self.stream(job)) as pieces:
            return joined([piece async for piece in pieces])

    def _report(self, job: Job, assembly: Assembly, arrived: float, first: float | None) -> None:
        event = RequestEvent(
            id=job.id,
            reason=assembly.ending.reason if assembly.ending else "abort",
            prompt_tokens=len(job.tokens),
            cached_tokens=assembly.cached_tokens,
            output_tokens=assembly.count,
            arrived=arrived,
            first_token=first,
            finished=time.time(),
            request=job.request,
        )
        for watcher in self.watchers:
            watcher.on_request(event)
        if self.config.log_requests:
            logger.info("Request %s", event)


def _model_name(config: ServerConfig, info: Mapping[str, Any]) -> str:
    """What the user called the model; of one that a plugin chose, the folder's name."""
    source = str(info["model_path"])
    return Path(source).name if config.engine.model.path == AUTO else source


def unknown_model(name: str, *served: str) -> ApiError:
    """The refusal of a request for a model that is not here."""
    return ApiError(
        f"The model {name[:SHOWN]!r} does not exist; this server serves {', '.join(map(repr, served))}",
        404,
        param="model",
        code="model_not_found",
    )


def _field_of(job: Job, error: RequestError) -> str | None:
    """The field of the caller's request that the engine's refusal is about."""
    match error.about:
        case "constraint" if job.constraint is not None:
            return job.constraint_field or job.constraint.kind
        case "states":
            return "input_embeds"
        case _:
            return None


class _Running:
    """A job in flight, which can be ended from outside."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._waiting: asyncio.Task[Any] | None = None
        self.aborted = False

    def is_of(self, request: str) -> bool:
        """True if the caller knows it by this id."""
        return request in (self._job.id, self._job.request)

    def abort(self) -> None:
        """The next output, awaited already or not, is the last."""
        self.aborted = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def next(self, outputs: AsyncGenerator[Output, None]) -> Output:
        """The next of ``outputs``, or an ending if the job was aborted.

        Only while this waits may ``abort`` interrupt the task: at other times it is busy with what came before.
        """
        task = asyncio.current_task()
        if not self.aborted and task is not None:
            self._waiting, cancellations = task, task.cancelling()
            try:
                return await anext(outputs)
            except asyncio.CancelledError:
                if not self.aborted or task.uncancel() > cancellations:
                    raise  # it is not, or not only, the job that was to end
            finally:
                self._waiting = None
        return Output(id=self._job.id, finish=Finish("abort"))
