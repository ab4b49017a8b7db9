"""The extension points in the life of a request: its admission, its time in the queue, its outputs and its end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from sglang_plug.contracts.extension.queueing import QueuePhase, QueueView
from sglang_plug.contracts.extension.request_phases import AdmissionPhase
from sglang_plug.contracts.extension.sampling_phases import HoldPhase
from sglang_plug.contracts.extension.views import PromptLayout, SequenceView
from sglang_plug.contracts.request import Output, Request, RequestError, RequestPart
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.system.library_panics import panics_as_errors

from .names import ExtensionNames

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPoints:
    """The extension points of requests, which the loop and the scheduler call."""

    constrains: tuple[Callable[[Request], bool], ...] = ()
    admission: tuple[AdmissionPhase, ...] = ()
    """The extensions that take part in admission."""
    layout: tuple[Callable[[SequenceView], PromptLayout | None], ...] = ()
    cache_key: tuple[Callable[[SequenceView], str], ...] = ()
    hold_phases: tuple[HoldPhase, ...] = ()
    """The extensions that may hold requests."""
    queue_phases: tuple[QueuePhase, ...] = ()
    """The extensions that decide which requests may wait."""
    verified: tuple[Callable[[SequenceView, int, int], None], ...] = ()
    output: tuple[Callable[[SequenceView, Output], Output], ...] = ()
    finished: tuple[Callable[[SequenceView], None], ...] = ()
    vocab_size: int = sys.maxsize
    """The number of token ids, which limits those that are forced."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Request fields that no extension serves, or that one refuses, with the message of the refusal."""
    names: ExtensionNames = ExtensionNames()

    def is_constrained(self, request: Request) -> bool:
        """Report whether an extension constrains the output. Raises ``RequestError`` if two of them do."""
        constraining = [constrains for constrains in self.constrains if constrains(request)]
        if len(constraining) > 1:
            raise RequestError(f"{self.names.of_all(constraining)} constrain this output; block all but one", 500)
        return bool(constraining)

    def admit_sequence(self, sequence: Sequence) -> None:
        """Let the extensions admit ``sequence``, lay it out, and separate it in the prefix cache.

        Raises ``RequestError`` if one of them refuses it, and the error of one that fails; ``finished`` of those that
        had admitted it is called then.
        """
        for name, message in self.refusals.items():
            if getattr(sequence.request, name) not in (None, ()):
                about: Any = name if name in get_args(RequestPart) else ""
                raise RequestError(message, about=about)
        admitted: list[AdmissionPhase] = []
        try:
            for extension in self.admission:
                extension.admit(sequence)
                admitted.append(extension)
            if self.layout:
                sequence.layout = self._prompt_layout(sequence)
            for cache_key in self.cache_key:
                key = cache_key(sequence)
                sequence.salt = f"{len(key)}:{key}{sequence.salt}"  # the length, so that no other two join to the same
        except BaseException:
            self._call_finished([extension.finished for extension in admitted], sequence)
            raise

    def end_sequence(self, sequence: Sequence) -> None:
        """Tell the extensions that the request of ``sequence``, which was admitted, is over; called once for each."""
        self._call_finished(self.finished, sequence)

    def _call_finished(self, methods: Iterable[Callable[[SequenceView], None]], sequence: Sequence) -> None:
        """Call all ``methods``; an error of one is logged, so that the others still release what the request holds."""
        for finished in methods:
            try:
                with panics_as_errors():
                    finished(sequence)
            except Exception:
                logger.exception("%s: finished() failed for request %r", self.names.of(finished), sequence.request.id)

    def sequence_queued(self, sequence: Sequence, queue: QueueView) -> None:
        """Tell the extensions that ``sequence`` is queued. Raises ``RequestError`` if one of them refuses it."""
        for extension in self.queue_phases:
            extension.queued(sequence, queue)

    def end_waiting(self) -> list[tuple[SequenceView, RequestError]]:
        """Return the sequences that should wait no longer, and the errors that end their requests."""
        return [ended for extension in self.queue_phases for ended in extension.end_waiting()]

    def _prompt_layout(self, sequence: Sequence) -> PromptLayout | None:
        """Return the layout of a prompt. Raises ``RequestError`` if two extensions have one."""
        results = [(method, method(sequence)) for method in self.layout]
        layouts = [(method, layout) for method, layout in results if layout is not None]
        if len(layouts) > 1:
            names = self.names.of_all(method for method, _ in layouts)
            raise RequestError(f"{names} lay out this prompt; block all but one", 500)
        return layouts[0][1] if layouts else None
