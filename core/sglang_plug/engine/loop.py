"""The engine: receive, schedule, run, tell. Read this file first."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Protocol

from sglang_plug.config import ConfigError
from sglang_plug.model import Model
from sglang_plug.policy import StepStats
from sglang_plug.request import Finish, Output, Request, RequestError

from .adapted import LoadedAdapter
from .adapters import Adapters
from .constraints import Constraints
from .messages import Abort, Close, Control, FromEngine, News, Reply, Submit, ToEngine
from .open_requests import OpenRequests, media_bytes
from .pipeline import Pipeline
from .ranks import Ranks
from .runner import Runner
from .scheduler import Scheduler
from .sequence import Sequence
from .shares import Tally
from .sight import view_of
from .watchdog import Heartbeat

logger = logging.getLogger(__name__)

Controls = Mapping[str, Callable[..., Any]]
"""Name of a control call -> function of keyword arguments that returns plain data."""
MOST_MEDIA_BYTES = 8 << 30
"""Of the images of all requests in the engine, prepared for the model."""
POLL = 0.005
"""Seconds between two looks at what is being compiled, while nothing else is to be done."""


class Inbox(Protocol):
    """Where messages to the engine arrive."""

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Everything that has arrived; if ``wait``, at least one message, unless none comes in ``timeout`` seconds."""


class EngineLoop:
    """One model, served.

    Args:
        scheduler: the queue and the slots.
        runner: the device.
        inbox: where messages arrive.
        send: where answers go.
        info: what is known of the model and the choices made at start.
        max_queued: sequences that may wait.
        heartbeat: told when a step begins and ends.
        update_weights: builds the model with the weights of a checkpoint and revision.
        model_controls: asks the model being served for control calls of its own.
        constraints: where constrained requests wait for their grammars.
        shortage: what to tell of an error if it says that memory did not suffice for a step.
        overlap: plan and launch steps while the one before is on the device.
        describe: an error in one line, with whose code it came out of.
        adapters: those that requests may name, if they are enabled.
        ranks: the others that share the model, to be ended with the engine.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        inbox: Inbox,
        send: Callable[[FromEngine], None],
        *,
        info: dict[str, Any],
        max_queued: int,
        heartbeat: Heartbeat,
        update_weights: Callable[[str, str | None], Model],
        model_controls: Callable[[], Controls] = dict,
        constraints: Constraints | None = None,
        shortage: Callable[[Exception], str | None] = lambda error: None,
        overlap: bool = False,
        describe: Callable[[BaseException], str] = repr,
        adapters: Adapters | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.describe = describe
        self.scheduler, self.runner, self.inbox, self.send = scheduler, runner, inbox, send
        self.info, self.max_queued, self.heartbeat = info, max_queued, heartbeat
        self.vocab_size: int = info["vocab_size"]
        self.longest = min(info["context_length"], scheduler.pool.capacity)
        self._load_weights, self._model_controls = update_weights, model_controls
        self.constraints = Constraints("the engine has no grammar backend") if constraints is None else constraints
        self.pipeline = Pipeline(
            scheduler, runner, overlap=overlap, shortage=shortage, describe=describe, shared=ranks is not None
        )
        self.ranks = ranks
        self.requests = OpenRequests()
        self.adapters = adapters
        self._closed = False
        self._controls = self._all_controls()

    def run(self) -> None:
        """Serve until ``Close`` arrives. Raises what a step raised if that happens again and again."""
        try:
            while not self._closed:
                self.step()
        except Exception as error:
            if self.ranks is not None and (lost := self.ranks.lost()) is not None:
                raise RuntimeError(lost) from error
            raise
        finally:
            self.constraints.close()
            if self.ranks is not None:
                self.ranks.close()

    @property
    def busy(self) -> bool:
        """True while any request is being served."""
        return self.scheduler.busy or len(self.constraints) > 0

    def step(self) -> None:
        """One turn: messages in, one step of the model, news out."""
        held = POLL if len(self.constraints) else None
        messages = list(self.inbox.take(wait=not self.scheduler.busy, timeout=held))
        if any(isinstance(message, Control) for message in messages) and self.pipeline.in_flight:
            self._advance(ahead=False)  # what a control call looks at, or changes, is not on its way
        for message in messages:
            self.handle(message)
        self.pipeline.forget_dropped()
        self._release()
        if self.scheduler.busy:
            self._advance()

    def _advance(self, *, ahead: bool = True) -> None:
        """One step, and its news."""
        with self.heartbeat.beat():
            started = time.perf_counter()
            outputs = self.pipeline.step(ahead=ahead)
            for output in outputs:
                if output.finish is not None:
                    self.requests.end(output.id)
            self.send(News(outputs, self._stats(time.perf_counter() - started)))
        if not self.scheduler.busy:
            self.scheduler.check()

    def handle(self, message: ToEngine) -> None:
        """Take one message."""
        match message:
            case Submit(request):
                self._submit(request)
            case Abort(ids):
                for id in ids:
                    self._abort(id)
            case Control():
                self.send(self._control(message))
            case Close():
                self._closed = True

    def _submit(self, request: Request) -> None:
        try:
            self._validate(request)
            sequence = Sequence.of(request, self.longest)
            sequence.adapter = self._adapter(request)
            if request.media:
                sequence.view = view_of(self.runner.model, request)
            if request.constraint is not None:
                self.constraints.hold(sequence)
        except RequestError as error:
            self._end(request.id, _refused(error))
            return
        self.requests.add(request)
        if request.constraint is None:
            self.scheduler.add(sequence)

    def _adapter(self, request: Request) -> LoadedAdapter | None:
        if request.adapter is None:
            return None
        if self.adapters is None:
            raise RequestError("adapters are not enabled: start the server with --enable-lora or --lora-paths")
        return self.adapters.find(request.adapter)

    def _release(self) -> None:
        """Admit the sequences whose grammars have come, with what these make them begin with."""
        released = list(self.constraints.release())
        begun = [place for place, (_, error) in enumerate(released) if error is None]
        verdicts = self.runner.open([released[place][0] for place in begun]) if begun else {}
        found = {begun[row]: verdict for row, verdict in verdicts.items()}
        for place, (sequence, error) in enumerate(released):
            verdict = found.get(place)
            if verdict is not None:
                sequence.tokens += verdict.forced
                error = verdict.error
            self._admit(sequence, error)

    def _admit(self, sequence: Sequence, error: RequestError | None) -> None:
        """Queue a sequence that was held, unless there is nothing to compute."""
        grammar, id = sequence.grammar, sequence.request.id
        if error is None and (grammar is None or not grammar.ended):
            self.scheduler.add(sequence)
            return
        self.requests.end(id)
        self._end(id, Finish("stop") if error is None else _refused(error))

    def _end(self, id: str, finish: Finish) -> None:
        """The only news of a request that was never computed."""
        self.send(News([Output(id=id, finish=finish)]))

    def _validate(self, request: Request) -> None:
        scheduler, tokens = self.scheduler, request.tokens
        if request.id in self.requests:
            raise RequestError(f"Duplicate request ID: {request.id!r} is still being served")
        if request.task not in self.info["tasks"]:
            raise RequestError(f"the model cannot {request.task}; it can: {', '.join(self.info['tasks'])}")
        if not tokens:
            raise RequestError("the prompt has no tokens")
        room = 1 if request.task == "generate" else 0
        if len(tokens) + room > self.info["context_length"]:
            raise RequestError(
                f"The input ({len(tokens)} tokens) is longer than the model's context length "
                f"({self.info['context_length']} tokens)."
            )
        if len(tokens) + room > self.longest:
            raise RequestError(
                f"The input ({len(tokens)} tokens) does not fit the KV pool ({self.longest} tokens); "
                "the server's --max-total-tokens or --mem-fraction-static is too small for it."
            )
        named = [*request.params.stop_token_ids, *request.params.logit_bias]
        named += request.logprobs.ids if request.logprobs else ()
        if (preamble := request.preamble) is not None:
            if not preamble.ends or not all(preamble.ends):
                raise RequestError("a preamble needs what ends it")
            named += [*chain.from_iterable(preamble.ends), *preamble.opening]
        for what, ids in (("prompt", tokens), ("stop_token_ids, logit_bias, logprob ids or preamble", named)):
            if ids and not (0 <= min(ids) and max(ids) < self.vocab_size):
                raise RequestError(f"a token id in {what} is not in the vocabulary of {self.vocab_size} tokens")
        self._check_media(request)
        there = len(self.constraints) + len(scheduler.waiting) + len(scheduler.running)
        if there >= scheduler.max_running + self.max_queued:
            raise RequestError(f"The request queue is full ({self.max_queued} waiting); try again later.", 503)

    def _check_media(self, request: Request) -> None:
        """Raises ``RequestError`` if images of all there is would take too much of the host's memory."""
        if not request.media:
            return
        size = self.requests.media_bytes + media_bytes(request)
        if size > MOST_MEDIA_BYTES:
            raise RequestError(f"Too many images are waiting ({size} bytes with these); try again later.", 503)

    def _abort(self, id: str) -> None:
        if id not in self.requests:
            return
        if not self.constraints.abort(id):
            self.scheduler.abort(id)
        self.requests.end(id)
        self._end(id, Finish("abort"))
        self._tell_idle()

    def _tell_idle(self) -> None:
        """What changed without a step, for those who watch; also the moment to look for lost slots."""
        if self.scheduler.busy:
            return
        self.scheduler.check()
        self.scheduler.tally = Tally()
        self.send(News([], self._stats(0.0)))

    def _control(self, message: Control) -> Reply:
        call = self._controls.get(message.name)
        if call is None:
            return Reply(message.number, error=f"no control call named {message.name!r}", status=404)
        try:
            return Reply(message.number, call(**message.arguments))
        except Exception as error:
            status = error.status if isinstance(error, RequestError) else 500
            if status == 500:
                logger.exception("control call %s failed", message.name)
            return Reply(message.number, error=str(error), status=status)

    def _all_controls(self) -> Controls:
        """The engine's control calls and the model's. Raises ``ConfigError`` if two have the same name."""
        own: Controls = {
            "info": self._info,
            "flush_cache": self._flush_cache,
            "check": self._check,
            "update_weights": self._update_weights,
        }
        own = own if self.adapters is None else {**own, **self.adapters.controls()}
        added = self._model_controls()
        if twice := sorted(own.keys() & added.keys()):
            raise ConfigError(f"the model's control call {twice[0]!r} has the name of one of the engine's")
        return {**own, **added}

    def _info(self) -> dict[str, Any]:
        scheduler = self.scheduler
        load = {"running": len(scheduler.running), "waiting": len(scheduler.waiting) + len(self.constraints)}
        adapters = None if self.adapters is None else self.adapters.paths
        states = None if scheduler.states is None else scheduler.states.accounts()
        return {**self.info, "slots": scheduler.accounts(), "states": states, **load, "adapters": adapters}

    def _flush_cache(self) -> dict[str, Any]:
        done = not self.busy and self.scheduler.flush()
        self._tell_idle()
        logger.info("Cache flushed successfully!" if done else "Cache not flushed: requests are running or waiting")
        return {"success": done, "message": "Cache flushed." if done else "Requests are running or waiting."}

    def _update_weights(self, source: str, revision: str | None = None) -> dict[str, Any]:
        """Serve the weights of ``source`` from now on; what was cached with the old ones is forgotten."""
        if self.busy:
            raise RequestError("weights can only be updated while no request is running or waiting", 409)
        self.runner.model = self._load_weights(source, revision)
        self._controls = self._all_controls()
        self.scheduler.flush()
        _collect_all()
        self._tell_idle()
        return {"success": True, "message": "Succeeded to update model weights."}

    def _check(self) -> dict[str, int]:
        self.scheduler.check()
        self.scheduler.cache.check()
        return self.scheduler.accounts()

    def _stats(self, seconds: float) -> StepStats:
        scheduler, tally, accounts = self.scheduler, self.scheduler.tally, self.scheduler.accounts()
        return StepStats(
            time=time.time(),
            seconds=seconds,
            prefill_sequences=tally.prefill_sequences,
            prefill_tokens=tally.prefill_tokens,
            cached_tokens=tally.cached_tokens,
            decode_sequences=tally.decode_sequences,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self.constraints),
            used_slots=accounts["running"],
            cached_slots=accounts["cached"],
            free_slots=accounts["free"],
            capacity=accounts["capacity"],
            retracted=tally.retracted,
            forced_tokens=tally.forced_tokens,
            drafted_tokens=tally.drafted_tokens,
            accepted_tokens=tally.accepted_tokens,
            queue_seconds=tuple(tally.queue_seconds),
        )


def _refused(error: RequestError) -> Finish:
    return Finish("error", message=str(error), status=error.status, about=error.about)


def _collect_all() -> None:
    """Free what nothing refers to any more, also of what was there when the collector was told to look no more."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
