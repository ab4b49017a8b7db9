"""What crosses between scheduler and runner: who computes what in a step, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sglang_plug.request import Finish, TokenLogprob

from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Share:
    """A sequence's part of a step: its next ``count`` tokens, and drafts of what may follow."""

    sequence: Sequence
    count: int
    ahead: int = 0
    """Tokens of the step before, if that is still on the device."""
    drafts: tuple[int, ...] = ()
    """Guesses that are computed behind the sequence's last token."""

    @property
    def start(self) -> int:
        """Place of the first of its tokens in the sequence."""
        return self.sequence.computed + self.ahead

    @property
    def end(self) -> int:
        """Place after the last of them."""
        return self.start + self.count

    @property
    def width(self) -> int:
        """Places that the step computes for it, drafts included."""
        return self.count + len(self.drafts)

    @property
    def reach(self) -> int:
        """Place after the last of them."""
        return self.start + self.count + len(self.drafts)

    @property
    def positions(self) -> Iterable[int]:
        """Of its tokens and drafts, as the model counts them."""
        view, start = self.sequence.view, self.start
        end = start + self.count + len(self.drafts)
        return range(start, end) if view is None else view.positions(start, end)

    @property
    def unseen(self) -> bool:
        """True if the step before gives the sequence the last token of this share, which only the device knows."""
        return self.end > len(self.sequence.tokens)

    @property
    def complete(self) -> bool:
        """True if the step computes the sequence's last token, so that the next one can be sampled."""
        return self.end >= len(self.sequence.tokens)

    @property
    def committed(self) -> Share:
        """The same once the step before is committed."""
        return replace(self, ahead=0)

    @property
    def goes_on(self) -> bool:
        """True if it leaves its sequence something to compute, unless the token it gives ends that."""
        return not self.complete or len(self.sequence.tokens) + 1 < self.sequence.limit

    @property
    def predictable(self) -> bool:
        """True if the next step can be planned, and its forward pass launched, before what comes of this is known."""
        request = self.sequence.request
        if request.task != "generate" or self.drafts:
            return False
        return request.logprobs is None or (self.complete and self.sequence.grammar is None)

    @property
    def dropped(self) -> bool:
        """True if the sequence ended, or was aborted, while this was on the device: nobody wants the result."""
        return not self.sequence.slots


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the runner found for one share: the next token (``None`` before the prompt is complete)."""

    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
    status: int = 500
    """Of the error."""
    forced: tuple[int, ...] = ()
    """Tokens that must follow ``token``, and are taken without being sampled."""
    forced_logprobs: tuple[TokenLogprob, ...] = ()
    """Of earlier forced tokens, if asked for."""
    further: tuple[tuple[int, TokenLogprob | None], ...] = ()
    """The tokens after ``token`` that the step found, as drafts before each of them came true."""
    finish: Finish | None = None
    """Set if the grammar ends the output; the stop tokens of a constrained one are its business."""
    values: tuple[float, ...] | None = None
    """Of a pooling task, once the prompt is complete."""


@dataclass(slots=True)
class Tally:
    """What a step did, for statistics."""

    prefill_sequences: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_sequences: int = 0
    retracted: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queue_seconds: list[float] = field(default_factory=list)
