"""Text in, text out: the API's interface to the engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from sglang_plug import (
    AUTO,
    EngineClient,
    EngineError,
    MediaPrompt,
    Observer,
    RequestError,
    TemplateError,
    Tokenizer,
)
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.multimodal.image_prompts import ImagePrompts
from sglang_plug_api.multimodal.images import RequestImage
from sglang_plug_api.observers.request_reports import JobReport, RequestReports
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.admission_gate import AdmissionGate
from sglang_plug_api.service.callers import Callers, current_caller
from sglang_plug_api.service.gather import shielded
from sglang_plug_api.service.request_context import DEADLINE_STATUS, current_request_context
from sglang_plug_api.service.sequence_limits import SequenceLimits
from sglang_plug_api.stores.storage import Storage

from .adapter_names import AdapterNames, unknown_model
from .constraints import constraint_refusal
from .detokenizing import Detokenizer
from .job import Job, JobOutput, RunningJob, joined, limited, output_job
from .parsers import Parsers
from .sampling import SamplingDefaults

Result = TypeVar("Result")
Encoded = TypeVar("Encoded", bound=Sequence[Any])
"""A prompt that is not a text."""

MAX_INLINE_CHARACTERS = 2048
"""Longest text that is tokenized on the event loop; longer ones are tokenized in a thread."""
CHARACTERS_PER_TOKEN = 128
"""Length of the longest tokens of common vocabularies, runs of blanks; other tokens average four characters."""
CHAT_THREADS = 4
"""Chat requests whose prompts are rendered at the same time."""
MIN_TEXT_LIMIT = 1 << 20
"""Characters that are tokenized whatever the model's context length is."""


class TextEngine:
    """The model in terms of text, and the facts about it that routes need.

    Args:
        config: the server's configuration.
        client: client of the started engine.
        info: the engine's description of itself.
        tokenizer: ``None`` with ``--skip-tokenizer-init``.
        storage: files, batches and stored responses.
        observers: maps names to loaded observers.
        plugins: the table that ``/plugins`` shows.
        parsers: parsers of tool calls and of reasoning.
        image_prompts: makes prompts of tokens and images; ``None`` if the model takes text only.
        request_fields: the request fields of logits processors.
    """

    def __init__(
        self,
        config: ServerConfig,
        client: EngineClient,
        info: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        *,
        storage: Storage,
        observers: Mapping[str, Observer] | None = None,
        plugins: Mapping[str, Any] | None = None,
        parsers: Parsers | None = None,
        image_prompts: ImagePrompts | None = None,
        request_fields: RequestFields | None = None,
    ) -> None:
        self.config, self.client, self.info = config, client, info
        self.observers, self.plugins = dict(observers or {}), dict(plugins or {})
        self.parsers = parsers or Parsers()
        self._tokenizer, self._image_prompts = tokenizer, image_prompts
        self.callers = Callers(config)
        self.storage = storage
        self.reports = RequestReports(self.observers, log=config.log_requests)
        self.request_fields = RequestFields() if request_fields is None else request_fields
        self.defaults = SamplingDefaults(
            config, info, tokenizer.eos_token_ids if tokenizer else (), self.request_fields
        )
        self.model_name = config.served_model_name or _model_name(config, info)
        self.adapters = AdapterNames(self.model_name, info.get("adapters"))
        self.started = int(time.time())
        self.weight_version = config.weight_version
        self.startup_time: float | None = None
        """Seconds from the start of the server until it was ready; ``None``: it is not ready yet."""
        self.warming_up = False
        """True until the server's own first request has ended."""
        self._chat_threads = ThreadPoolExecutor(CHAT_THREADS, "chat-template")
        self._running = set[RunningJob]()
        self.admission_gate = AdmissionGate()
        """Closed while new requests wait for an update of the weights."""

    @property
    def in_flight(self) -> int:
        """The number of sequences that are being served or wait for it."""
        return len(self._running)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ``ApiError`` if the server runs with ``--skip-tokenizer-init``."""
        if self._tokenizer is None:
            raise ApiError("the server runs with --skip-tokenizer-init: send input_ids, and decode output_ids yourself")
        return self._tokenizer

    @property
    def has_text(self) -> bool:
        """False with ``--skip-tokenizer-init``."""
        return self._tokenizer is not None

    @property
    def supports_images(self) -> bool:
        """True if prompts may have images."""
        return self._image_prompts is not None

    async def with_images(self, tokens: Sequence[int], images: Sequence[RequestImage]) -> MediaPrompt:
        """Return the prompt of ``tokens``, which hold one placeholder for each of ``images``. Raises ``ApiError``."""
        if not images:
            return MediaPrompt(list(tokens), ())
        if self._image_prompts is None:
            raise images[0].error("this model takes text only")
        return await self._image_prompts.prompt(tokens, images)

    def fetched_images(self, images: Sequence[RequestImage]) -> AbstractAsyncContextManager[Sequence[RequestImage]]:
        """Fetch ``images`` that the request only refers to, and keep them while the context is open.

        Contexts that fetch are limited in number: others wait. Raises ``ApiError`` on entry.
        """
        return contextlib.nullcontext(images) if self._image_prompts is None else self._image_prompts.fetched(images)

    def check_model(self, name: str | None) -> None:
        """Raise ``ApiError`` for an adapter that is not loaded, and with ``--strict-model-name`` for another model."""
        self.adapters.resolve(name)
        if self.config.strict_model_name and name is not None and not self.adapters.is_served(name):
            raise unknown_model(name, self.model_name, *self.adapters.paths)

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of ``text``. Raises ``ApiError`` if it is too long to be tokenized."""
        tokens: list[list[int]] = await self.encode_each([text], special=special)
        return tokens[0]

    async def encode_each(self, prompts: Sequence[str | Encoded], *, special: bool = True) -> list[list[int] | Encoded]:
        """Return the tokens of each text, and other prompts as they are. Raises ``ApiError`` if a text is too long."""
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if not texts:
            return [prompt for prompt in prompts if not isinstance(prompt, str)]
        tokenizer = self.tokenizer
        for text in texts:
            self.check_text(text)

        def work() -> list[list[int] | Encoded]:
            return [
                tokenizer.encode(prompt, special=special) if isinstance(prompt, str) else prompt for prompt in prompts
            ]

        return work() if sum(map(len, texts)) <= MAX_INLINE_CHARACTERS else await asyncio.to_thread(work)

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Return the tokens of the prompt that the chat template renders; ``options`` as in ``Tokenizer.chat``."""
        tokenizer = self.tokenizer

        def render() -> list[int]:
            text = tokenizer.chat(messages, **options)
            self.check_text(text)
            return tokenizer.encode(text, special=False)

        try:
            return await self.in_chat_thread(render)
        except TemplateError as error:
            param = "chat_template_kwargs" if error.about == "variables" else "messages"
            raise ApiError(str(error), param=param) from None

    async def in_chat_thread(self, work: Callable[[], Result]) -> Result:
        """Run ``work``, which renders chat templates, and return its result.

        Slow templates delay only each other, since they have threads of their own. Raises ``RequestError`` if the
        deadline of the request passed before a thread was free.
        """
        context = current_request_context()

        def render() -> Result:
            context.check_deadline()
            return work()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._chat_threads, render)
        except RequestError as error:
            if error.status == DEADLINE_STATUS:
                self.reports.late(context)
            raise

    def check_text(self, text: str) -> None:
        """Raise ``ApiError`` for a text that is longer than any that fits the model, before tokenizing it."""
        limit = max(MIN_TEXT_LIMIT, CHARACTERS_PER_TOKEN * self.info["context_length"])
        if len(text) > limit:
            raise ApiError(f"a text has {len(text)} characters; the maximum is {limit}")

    def check_sequences(self, total: int) -> None:
        """Raise ``ApiError`` for a request with too many sequences; call it before tokenizing."""
        SequenceLimits.of(self.config, self.info).check(total, len(self.client.replicas))

    def expand(self, jobs: Sequence[Job]) -> list[Job]:
        """Return a job for each of the ``n`` outputs of each prompt.

        Raises ``ApiError`` if they, their log-probabilities, or their parameters are too many.
        """
        self.check_sequences(sum(job.sampling.n for job in jobs))
        return [output_job(job, index) for job in limited(jobs) for index in range(job.sampling.n)]

    async def stream(self, job: Job, *, whole: bool = False) -> AsyncGenerator[JobOutput, None]:
        """Yield the output as it arrives; the last part has ``ending`` set. Closing early aborts the request.

        With ``whole``, all of the output comes at once; it is computed once more if its replica fails while others
        serve, since nothing of it was delivered. Raises ``RequestError`` if the engine refuses the job and
        ``EngineError`` if it is not running.
        """
        arrived = time.time()
        detokenizer = Detokenizer(job, self._tokenizer)
        request = job.engine_request(arrived, isolated=self.config.tenant_isolation)
        await self.admission_gate.wait_open()
        report = JobReport(
            self.reports,
            id=job.id,
            request=job.request,
            prompt_tokens=len(job.tokens),
            arrived=arrived,
            deadline=job.context.deadline,
        )
        refused, repeats = 0, int(whole)
        running, job_outputs = RunningJob(job), list[JobOutput]()
        self._running.add(running)
        try:
            while detokenizer.ending is None:
                try:
                    async with contextlib.aclosing(self.client.submit(request)) as outputs:
                        while detokenizer.ending is None:
                            job_output = detokenizer.feed(await running.next(outputs))
                            report.progress(job_output.completion_tokens)
                            if not whole:
                                yield job_output
                            else:
                                job_outputs.append(job_output)
                except EngineError as error:
                    if error.replica is None or not repeats:
                        raise
                    repeats -= 1
                    detokenizer = Detokenizer(job, self._tokenizer)
                    report.restart()
                    job_outputs.clear()
            if whole:
                yield joined(job_outputs)
        except RequestError as error:
            refused = error.status
            text = str(error).replace(job.engine_id, job.id)  # the client knows the job by this id
            refusal = _refusal(job, error, text)
            if refusal is not None:
                raise refusal from None
            if text == str(error):
                raise
            raise RequestError(text, error.status, error.about, error.field) from error
        finally:
            self._running.discard(running)
            reason = "" if detokenizer.ending is None else detokenizer.ending.reason
            report.end(reason, detokenizer.count, detokenizer.cached_tokens, refused)

    async def update_weights(self, source: str, revision: str | None = None, version: str | None = None) -> None:
        """Replace the weights by those of another checkpoint once no request is in flight; new requests wait meanwhile.

        Raises ``RequestError`` if they do not fit, and ``TimeoutError`` if requests did not end in time; the old
        weights stay in use then, as when the call is cancelled before the update has begun.
        """
        async with self.admission_gate.closed_and_idle(lambda: self.in_flight, self.config.drain_timeout):
            await shielded(self._replace_weights(source, revision, version))

    async def _replace_weights(self, source: str, revision: str | None, version: str | None) -> None:
        await self.client.control("update_weights", source=source, revision=revision)
        self.info = {**self.info, "model_path": source}
        self.weight_version = version or self.weight_version

    async def load_adapter(self, name: str, path: str) -> None:
        """Let requests use the adapter in the folder ``path`` as ``name``.

        Raises ``ApiError`` or ``RequestError`` if it cannot be loaded.
        """
        self.adapters.check_free(name)
        await shielded(self._load_adapter(name, path))

    async def _load_adapter(self, name: str, path: str) -> None:
        await self.client.control("load_adapter", adapter=name, path=path)
        self.adapters.paths[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; requests in flight keep it until they end. Raises ``ApiError`` if it is not loaded."""
        self.adapters.require_loaded(name)
        await shielded(self._unload_adapter(name))

    async def _unload_adapter(self, name: str) -> None:
        await self.client.control("unload_adapter", adapter=name)
        self.adapters.paths.pop(name, None)

    def abort(self, request: str | None) -> int:
        """End every sequence of the request with exactly this id, or all sequences if ``None``.

        Each ends with reason ``abort`` and with its output so far; lines of batches run again if all were ended.
        Returns how many were ended. Requests of other callers are treated as if they did not exist.
        """
        caller, running = current_caller(), [job for job in self._running if not job.aborted]
        jobs = [job for job in running if request is None or job.belongs_to(request, caller)]
        for job in jobs:
            job.abort(with_all=request is None)
        return len(jobs)

    async def complete(self, job: Job) -> JobOutput:
        """Return the whole output."""
        async with contextlib.aclosing(self.stream(job, whole=True)) as job_outputs:
            return await anext(job_outputs)


def _model_name(config: ServerConfig, info: Mapping[str, Any]) -> str:
    """Return the model's name as the user wrote it; the folder's name if a plugin chose the model."""
    source = str(info["model_path"])
    return Path(source).name if config.engine.model.path == AUTO else source


def _refusal(job: Job, error: RequestError, text: str) -> ApiError | None:
    """Return the engine's refusal ``text`` as an error that names the request's field; ``None`` if it is about none."""
    match error.about:
        case "constraint" if job.constraint is not None:
            field = job.constraint_field or job.constraint.kind
            return constraint_refusal(job.constraint, field, text, error.status)
        case "input_embeds":
            return ApiError(text, error.status, param="input_embeds")
        case "processor_fields":
            return ApiError(text, error.status, param=error.field or None)
        case _:
            return None
