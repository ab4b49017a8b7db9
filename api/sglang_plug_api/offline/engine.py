"""The engine without a server: ``with Engine(model_path=...) as engine: engine.generate("Hello")``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from sglang_plug import ConfigError, PluginOptions, Plugins, Tokenizer
from sglang_plug.clients.thread_client import ThreadClient
from sglang_plug_api.answers.errors import ApiError, from_validation
from sglang_plug_api.answers.large_json import plain
from sglang_plug_api.lifecycle.assembly import assemble, start_components
from sglang_plug_api.multimodal.offline_images import load_offline_images
from sglang_plug_api.native.generate import Generation
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.options.parsing import named_options
from sglang_plug_api.pooling.native_pooling import pool_prompts
from sglang_plug_api.pooling.pair_scoring import pair_answers
from sglang_plug_api.protocol.base import validation_context
from sglang_plug_api.protocol.native import GenerateBody, PoolBody
from sglang_plug_api.service.request_context import RequestContext, deadline_of, set_request_context
from sglang_plug_api.text.text_engine import TextEngine

Result = TypeVar("Result")
Body = TypeVar("Body", GenerateBody, PoolBody)
Answer = dict[str, Any] | list[dict[str, Any]]
ONE_ENGINE = "Engine is one engine in this process; 'sglang-plug serve' has replicas and deployments"


class Engine:
    """A model in this process, in its own thread. Safe to use from several threads.

    Args:
        model_path: a local folder or a hub id; ``None`` takes the embedded demo model.
        plugins: the plugins to load.
        options: options of ``sglang-plug serve``, with underscores: ``max_total_tokens=4096``.

    Raises ``ConfigError`` if the model cannot be served. Call ``shutdown`` when done, or use it in ``with``.
    """

    def __init__(self, model_path: str | None = None, *, plugins: PluginOptions | None = None, **options: Any) -> None:
        if model_path is not None:
            options["model_path"] = model_path
        discovered = Plugins.discover(plugins)
        config = named_options(options, discovered, "Engine")
        if options.get("deployment", "thread") != "thread":
            raise ConfigError(ONE_ENGINE)
        self._start(config, discovered)

    @classmethod
    def of(cls, config: ServerConfig, plugins: Plugins) -> Engine:
        """Return the engine that a configuration describes. Raises ``ConfigError`` if the model cannot be served."""
        engine = cls.__new__(cls)
        engine._start(config, plugins)
        return engine

    def _start(self, config: ServerConfig, discovered: Plugins) -> None:
        if config.engines > 1:
            raise ConfigError(ONE_ENGINE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        self._thread.start()
        self._client, self._lifecycle = ThreadClient(config.engine, discovered), discovered.lifecycle
        try:
            info = self._run(self._client.start())
            self._engine: TextEngine = assemble(config, discovered, self._client, info)
            self._run(start_components(self._engine, discovered))
        except BaseException:
            try:
                self._run(self._client.close())
            finally:
                self._stop_loop()
            raise

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._engine.tokenizer

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        stream: bool = False,
        **fields: Any,
    ) -> Answer | Iterator[dict[str, Any]]:
        """Generate as ``POST /generate`` does, with its fields; ``image_data`` may also be files and Pillow images.

        Returns one object, or a list of them for a batch; with ``stream`` an iterator of growing responses. Closing the
        iterator early aborts the request. Raises ``ApiError`` where the server would answer with an error,
        ``RequestError`` if the engine refuses the request, and ``EngineError`` if the engine has ended.
        """
        body = self._body(prompt, sampling_params, input_ids, stream, fields)
        if stream:
            return self._iterate(self._events(body))
        return self._run(self._answer(body))

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        stream: bool = False,
        **fields: Any,
    ) -> Answer | AsyncGenerator[dict[str, Any], None]:
        """Generate for callers with an event loop of their own; with ``stream`` return an asynchronous iterator."""
        body = self._body(prompt, sampling_params, input_ids, stream, fields)
        if stream:
            return self._forward(self._events(body))
        return await self._await(self._answer(body))

    def encode(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **fields: Any,
    ) -> Answer:
        """Embed as ``POST /encode`` does: return ``{embedding, meta_info}`` of a prompt, or a list of them.

        Raises ``ApiError`` where the server would answer with an error, such as for a model that only generates.
        """
        return self._run(self._pool(self._checked(PoolBody, {"text": prompt, "input_ids": input_ids, **fields})))

    async def async_encode(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **fields: Any,
    ) -> Answer:
        """Embed for callers with an event loop of their own."""
        return await self._await(
            self._pool(self._checked(PoolBody, {"text": prompt, "input_ids": input_ids, **fields}))
        )

    def rerank(self, prompt: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """Score how well documents answer queries: ``prompt`` has pairs of a query and a document.

        Returns ``{embedding, meta_info}`` of each pair, in order; ``embedding`` has one number, the score of
        ``/v1/rerank``. Raises ``ApiError`` where the server would answer with an error.
        """
        return self._run(self._pairs(prompt))

    def update_weights_from_disk(
        self, model_path: str, *, revision: str | None = None, weight_version: str | None = None
    ) -> None:
        """Replace the weights by those of another checkpoint of the same shape, once no request is in flight.

        Raises ``RequestError`` if they do not fit, and ``TimeoutError`` if requests did not end in time; the old
        weights stay in use then.
        """
        self._run(self._engine.update_weights(model_path, revision, weight_version))

    def load_lora_adapter(self, lora_name: str, lora_path: str) -> None:
        """Load the adapter in a folder; prompts use it with ``generate(..., lora_path=lora_name)``.

        Raises ``ApiError`` or ``RequestError`` if it cannot be loaded.
        """
        self._run(self._engine.adapters.load(lora_name, lora_path))

    def unload_lora_adapter(self, lora_name: str) -> None:
        """Unload an adapter; requests in flight keep it. Raises ``ApiError`` if it is not loaded."""
        self._run(self._engine.adapters.unload(lora_name))

    def flush_cache(self) -> bool:
        """Empty the prefix cache; return False if requests are running."""
        return bool(self._run(self._client.control("flush_cache"))["success"])

    def get_server_info(self) -> dict[str, Any]:
        """Return limits, load and components."""
        return dict(self._run(self._client.control("info")))

    def shutdown(self) -> None:
        """Stop the engine and free its memory."""
        if self._thread.is_alive():
            try:
                self._run(self._lifecycle.stop_async())
                self._run(self._client.close())
            finally:
                self._stop_loop()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def _answer(self, body: GenerateBody) -> Answer:
        set_request_context(RequestContext(deadline_ms=deadline_of(body)))
        answer: Answer = plain(await (await Generation.prepare(self._engine, body)).answer())
        return answer

    async def _pool(self, body: PoolBody) -> Answer:
        set_request_context(RequestContext(deadline_ms=deadline_of(body)))
        _, answer = await pool_prompts(self._engine, body, "embed", "classify")
        return answer

    async def _pairs(self, pairs: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        set_request_context(RequestContext())
        return await pair_answers(self._engine, pairs)

    async def _events(self, body: GenerateBody) -> AsyncGenerator[dict[str, Any], None]:
        set_request_context(RequestContext(deadline_ms=deadline_of(body)))
        generation = await Generation.prepare(self._engine, body)
        events = generation.events()
        try:
            async for event in events:
                yield plain(event)
        finally:
            await events.aclose()

    def _iterate(self, events: AsyncGenerator[dict[str, Any], None]) -> Iterator[dict[str, Any]]:
        async def next_event() -> dict[str, Any] | None:
            return await anext(events, None)

        try:
            while (event := self._run(next_event())) is not None:
                yield event
        finally:
            self._run(events.aclose())

    async def _forward(self, events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield ``events``, which run in the engine's loop, in the caller's loop."""
        turn = asyncio.Lock()  # a cancelled caller leaves the fetching of an event behind

        async def next_event() -> dict[str, Any] | None:
            async with turn:
                return await anext(events, None)

        async def close() -> None:
            async with turn:
                await events.aclose()

        try:
            while (event := await self._await(next_event())) is not None:
                yield event
        finally:
            await self._await(close())

    async def _await(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if threading.current_thread() is self._thread:
            raise RuntimeError("called from the engine's own thread")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # such as KeyboardInterrupt: the engine would go on with the request
            future.cancel()
            raise

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _body(
        self,
        prompt: str | Sequence[str] | None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
        stream: bool,
        fields: Mapping[str, Any],
    ) -> GenerateBody:
        values = {"text": prompt, "sampling_params": sampling_params, "input_ids": input_ids, "stream": stream}
        if "image_data" in fields:
            fields = {**fields, "image_data": load_offline_images(fields["image_data"])}
        return self._checked(GenerateBody, {**values, **fields})

    def _checked(self, kind: type[Body], values: Mapping[str, Any]) -> Body:
        """Return a request's body. Raises ``ApiError`` for unknown fields and invalid values."""
        unknown = sorted(set(values) - set(kind.model_fields))
        if unknown:
            name = {GenerateBody: "generate", PoolBody: "encode"}[kind]
            raise ApiError(f"{name} has no field {unknown[0]!r}", param=unknown[0])
        try:
            return kind.model_validate(values, context=validation_context(self._engine.request_fields))
        except ValidationError as error:
            raise from_validation(error) from None
