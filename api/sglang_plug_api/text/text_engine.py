"""Text in, text out: the API's interface to the engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sglang_plug import (
    AUTO,
    EngineClient,
    EngineError,
    MediaPrompt,
    RequestError,
    Tokenizer,
)
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.multimodal.image_prompts import ImagePrompts
from sglang_plug_api.multimodal.images import RequestImage
from sglang_plug_api.observers.request_reports import JobReport, RequestReports
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.admission_gate import AdmissionGate
from sglang_plug_api.service.callers import Caller, current_caller
from sglang_plug_api.service.gather import shielded
from sglang_plug_api.service.preparation import Preparation
from sglang_plug_api.service.request_context import RequestContext, current_request_context
from sglang_plug_api.service.sequence_limits import SequenceLimits

from .adapters import Adapters, unknown_model
from .constraints import constraint_refusal
from .detokenizing import Detokenizer
from .job import Job, JobOutput, RunningJob, joined, limited, output_job
from .parsers import Parsers
from .prompt_encoder import PromptEncoder
from .sampling import SamplingDefaults
from .server_facts import ServerFacts


class TextEngine:
    """The model in terms of text.

    Args:
        config: the server's configuration.
        client: client of the started engine.
        info: the engine's description of itself.
        tokenizer: ``None`` with ``--skip-tokenizer-init``.
        server: the server around the model, for routes.
        parsers: parsers of tool calls and of reasoning.
        image_prompts: makes prompts of tokens and images; ``None`` if the model takes text only.
        request_fields: the request fields of plugins.
    """

    def __init__(
        self,
        config: ServerConfig,
        client: EngineClient,
        info: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        *,
        server: ServerFacts,
        parsers: Parsers | None = None,
        image_prompts: ImagePrompts | None = None,
        request_fields: RequestFields | None = None,
    ) -> None:
        self.config = config
        self.client = client
        self.info = info
        self.server = server
        self.parsers = parsers or Parsers()
        self.request_fields = RequestFields() if request_fields is None else request_fields
        end_tokens = tokenizer.eos_token_ids if tokenizer else ()
        self.defaults = SamplingDefaults(config, info, end_tokens, self.request_fields)
        self.model_name = config.served_model_name or _model_name(config, info)
        self.adapters = Adapters(self.model_name, info.get("adapters"), client)
        self.reports = RequestReports(server.observers, log=config.log_requests)
        self.encoder = PromptEncoder(tokenizer, info["context_length"], self.reports.late)
        """Converts texts and chats into tokens."""
        self.admission_gate = AdmissionGate()
        """Closed while new requests wait for an update of the weights."""
        self._tokenizer = tokenizer
        self._image_prompts = image_prompts
        self._running = set[RunningJob]()
        self._held = set[RunningJob]()  # those that wait for the gate
        self._preparing = WeakSet[Preparation]()  # those without jobs

    @property
    def in_flight(self) -> int:
        """The number of sequences that are being served or wait for it."""
        return len(self._running)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ``ApiError`` if the server runs with ``--skip-tokenizer-init``."""
        return self.encoder.tokenizer

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
        return await self.encoder.encode(text, special=special)

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, context: RequestContext | None = None, **options: Any
    ) -> list[int]:
        """Return the tokens of the prompt that the chat template renders; ``options`` as in ``Tokenizer.chat``.

        ``context`` has the deadline; ``None``: that of the request that is being served.
        """
        return await self.encoder.encode_chat(messages, context or current_request_context(), **options)

    def check_sequences(self, total: int) -> None:
        """Raise ``ApiError`` for a request with too many sequences; call it before tokenizing."""
        SequenceLimits.of(self.config, self.info).check(total, len(self.client.replicas))

    @contextlib.contextmanager
    def preparing(self, *ids: str | None) -> Iterator[None]:
        """Let ``abort`` reach the request that is being served until its jobs begin, which the block makes.

        ``ids`` are those that the client knows the request by.
        """
        preparation = current_request_context().preparation
        if preparation is None:
            yield
            return
        preparation.begin(frozenset(id for id in ids if id), current_caller())
        self._preparing.add(preparation)
        try:
            yield
        except BaseException:
            self._preparing.discard(preparation)
            raise

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
        running, job_outputs = RunningJob(job, self._running.discard), list[JobOutput]()
        preparation = job.context.preparation
        if preparation is not None:
            self._preparing.discard(preparation)
            if preparation.has_aborted(job.request or job.id):
                running.abort(with_all=preparation.with_all)
        await self._admitted(running)
        report = JobReport(
            self.reports,
            id=job.id,
            request=job.request,
            prompt_tokens=len(job.tokens),
            arrived=arrived,
            deadline=job.context.deadline,
        )
        refused, repeats = 0, int(whole)
        self._running.add(running)
        try:
            while detokenizer.ending is None:
                try:
                    async with running.reading(self.client.submit(request)):
                        while detokenizer.ending is None:
                            job_output = detokenizer.feed(await running.next())
                            report.progress(job_output.completion_tokens)
                            if whole or detokenizer.ending is not None:
                                job_outputs.append(job_output)
                            else:
                                yield job_output
                except EngineError as error:
                    if error.replica is None or not repeats:
                        raise
                    repeats -= 1
                    detokenizer = Detokenizer(job, self._tokenizer)
                    report.restart()
                    job_outputs.clear()
            self._running.discard(running)  # nothing waits for a client that does not read the end of its stream
            yield joined(job_outputs)
        except RequestError as error:
            refused = error.status
            text = str(error).replace(job.engine_id, job.request or job.id)  # as the client knows it
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

    async def _admitted(self, job: RunningJob) -> None:
        """Wait until the admission gate is open; ``abort`` ends the wait."""
        self._held.add(job)
        try:
            await job.wait(self.admission_gate)
        finally:
            self._held.discard(job)

    async def update_weights(
        self, source: str, revision: str | None = None, version: str | None = None, *, abort: bool = False
    ) -> None:
        """Replace the weights by those of another checkpoint once no request is in flight; new requests wait meanwhile.

        With ``abort``, requests in flight are ended instead of waited for. Raises ``RequestError`` if the weights do
        not fit, and ``TimeoutError`` if requests did not end in time; the old weights stay in use then, as when the
        call is cancelled before the update has begun.
        """

        def in_flight() -> int:
            if abort:  # also those that came in just before the gate was closed
                _abort(self._running, with_all=True)
            return self.in_flight

        async with self.admission_gate.closed_and_idle(in_flight, self.config.drain_timeout):
            await shielded(self._replace_weights(source, revision, version))

    async def _replace_weights(self, source: str, revision: str | None, version: str | None) -> None:
        await self.client.control("update_weights", source=source, revision=revision)
        self.info = {**self.info, "model_path": source}
        self.server.state.weight_version = version or self.server.state.weight_version

    def abort(self, request: str | None, caller: Caller | None = None) -> int:
        """End every sequence of the request with exactly this id, or all sequences if ``None``.

        Each ends with reason ``abort`` and with its output so far; lines of batches run again if all were ended.
        Returns how many were ended; a request whose prompts are being made counts once. Requests that ``caller`` may
        not use are treated as if they did not exist; ``None``: that of the request that is being served.
        """
        caller, jobs = caller or current_caller(), self._running | self._held
        chosen = jobs if request is None else {job for job in jobs if job.belongs_to(request, caller)}
        preparing = [item for item in self._preparing if request is None or item.belongs_to(request, caller)]
        return _abort(chosen, with_all=request is None) + sum(item.abort(request) for item in preparing)

    async def complete(self, job: Job) -> JobOutput:
        """Return the whole output."""
        async with contextlib.aclosing(self.stream(job, whole=True)) as job_outputs:
            return await anext(job_outputs)


def _abort(jobs: Iterable[RunningJob], *, with_all: bool) -> int:
    """Abort those of ``jobs`` that were not aborted yet; return how many these are."""
    chosen = [job for job in jobs if not job.aborted]
    for job in chosen:
        job.abort(with_all=with_all)
    return len(chosen)


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
